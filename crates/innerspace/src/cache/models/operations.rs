//! Whole operations on one file from two or three threads, under shuttle's random scheduler.
//!
//! Each model ends with a recount of every layer. The names contain `shuttle`, so that one command
//! runs them all.

mod requests;

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::cache::core::validate::validate;
use crate::cache::lookup::get::Get;
use crate::cache::{Cache, FileAccess, FileError, FileOptions, PagedFile};
use crate::reclaim::{Pool, PoolOptions, Retired, Step};
use crate::store::{MemoryStore, Store};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Arc, Condvar, Mutex, thread};
use crate::units::PageCount;

const PAGE: u64 = 4096;

/// A store that delays once, before it punches or after it has looked for data, so that other
/// threads get far meanwhile.
struct SlowStore {
    inner: MemoryStore,
    dawdled: AtomicBool,
}

impl SlowStore {
    fn new(inner: MemoryStore) -> SlowStore {
        SlowStore {
            inner,
            dawdled: AtomicBool::new(false),
        }
    }

    fn dawdle(&self) {
        if !self.dawdled.swap(true, Ordering::SeqCst) {
            (0..1_000).for_each(|_| thread::yield_now());
        }
    }
}

impl Store for SlowStore {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.inner.write_at(buf, offset)
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.dawdle();
        self.inner.punch(offset, len)
    }
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let found = self.inner.next_data(offset);
        self.dawdle();
        found
    }
    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        self.inner.next_hole(offset)
    }
    fn writable(&self) -> bool {
        true
    }
}

/// The number of schedules tried for each model.
const ROUNDS: usize = 300;

/// Creates a file of `pages` pages full of ones, in a memory of `frames` frames.
fn file(frames: u32, pages: u64) -> (Arc<Cache>, Arc<MemoryStore>, PagedFile) {
    over(
        frames,
        MemoryStore::from_bytes(&vec![1; (pages * PAGE) as usize]),
    )
}

fn over<S: Store>(frames: u32, store: S) -> (Arc<Cache>, Arc<S>, PagedFile) {
    let pool = Pool::new(&PoolOptions::new(frames)).expect("small arenas can be had");
    let cache = Cache::new(&pool);
    let store = Arc::new(store);
    let options = FileOptions::new()
        .access(FileAccess::ReadWrite)
        .name("data.bin");
    let as_store: Arc<dyn Store> = store.clone();
    let file = PagedFile::open(&cache, as_store, &options).expect("the store is whole");
    (cache, store, file)
}

fn finish(cache: &Arc<Cache>, file: PagedFile) {
    validate(file.inner().core());
    drop(file);
    cache.pool.flush_retired();
    assert_eq!(cache.pool.totals().usage, 0, "pages are charged still");
    cache.pool.frames.validate();
}

fn page(number: u64) -> Range<u64> {
    number * PAGE..(number + 1) * PAGE
}

/// Returns the value of the bytes, which is the same for all.
fn value(bytes: &[u8]) -> u8 {
    assert!(
        bytes.iter().all(|byte| *byte == bytes[0]),
        "bytes of two writes in one view"
    );
    bytes[0]
}

fn model(body: fn()) {
    shuttle::check_random(body, ROUNDS);
}

/// Appends to a file beside `cut`, which takes the second half of its 20 bytes away.
fn append_beside(cut: impl Fn(&PagedFile), file: PagedFile, cache: &Arc<Cache>) {
    let appender = {
        let file = file.clone();
        thread::spawn(move || file.append(&[3; 5]).unwrap())
    };
    cut(&file);
    let at = appender.join().unwrap() as usize;
    let bytes = file.read_to_vec(..).unwrap();
    assert!(bytes.iter().all(|byte| *byte != 0), "a gap of zeros");
    if bytes.len() > 10 {
        assert_eq!(bytes[at..], [3; 5]);
    }
    finish(cache, file);
}

#[test]
fn shuttle_an_append_beside_a_discard() {
    model(|| {
        let (cache, _store, file) = over(64, MemoryStore::from_bytes(&[1; 10]));
        file.write_at(&[2; 10], 10).unwrap();
        append_beside(|file| file.discard().unwrap(), file, &cache);
    });
}

#[test]
fn shuttle_an_append_beside_an_invalidation() {
    model(|| {
        let (cache, store, file) = over(64, MemoryStore::from_bytes(&[1; 20]));
        file.view(..).unwrap();
        store.set_len_externally(10).unwrap();
        let cut = |file: &PagedFile| {
            file.invalidate(..).unwrap();
        };
        append_beside(cut, file, &cache);
    });
}

// spec: P15
#[test]
fn shuttle_a_read_beside_a_punch() {
    model(|| {
        let (cache, _store, file) = over(
            64,
            SlowStore::new(MemoryStore::from_bytes(&[1; PAGE as usize])),
        );
        let puncher = {
            let file = file.clone();
            thread::spawn(move || file.punch(page(0)).unwrap())
        };
        let seen = value(&file.view(page(0)).unwrap());
        assert!(seen <= 1);
        puncher.join().unwrap();
        assert_eq!(
            value(&file.view(page(0)).unwrap()),
            0,
            "old bytes after the punch"
        );
        finish(&cache, file);
    });
}

// The index and the tags are changed one after the other. After a thread has seen that a block is
// gone, no thread may see it again.
// spec: P15
#[test]
fn shuttle_a_block_that_is_gone_is_not_guessed() {
    model(|| {
        let (cache, _store, file) = file(64, 1);
        // The second view finds the block cached, and enters it in the lookaside table.
        for _ in 0..2 {
            assert_eq!(value(&file.view(page(0)).unwrap()), 1);
        }
        let puncher = {
            let file = file.clone();
            thread::spawn(move || file.punch(page(0)).unwrap())
        };
        while file.inner().core().lookup(0).is_some() {
            thread::yield_now();
        }
        let seen = file.try_view(page(0));
        assert!(
            !seen.is_ok_and(|view| value(&view) == 1),
            "a block that was gone before"
        );
        puncher.join().unwrap();
        finish(&cache, file);
    });
}

// An append does not exclude a cut: to other threads it is one step.
// spec: P15
#[test]
fn shuttle_an_append_beside_a_cut_is_before_or_after_it() {
    model(|| {
        let (cache, _store, file) = file(64, 2);
        // The view makes a node, without which the append would not be one step.
        drop(file.view(page(1)).unwrap());
        let cutter = {
            let file = file.clone();
            thread::spawn(move || file.set_len(PAGE).unwrap())
        };
        file.write_at(&[7; PAGE as usize], 2 * PAGE).unwrap();
        cutter.join().unwrap();
        if file.len() > PAGE {
            assert_eq!(file.len(), 3 * PAGE);
            let (before, appended) = (file.view(page(1)).unwrap(), file.view(page(2)).unwrap());
            assert_eq!(value(&before), 0, "bytes from before the cut");
            assert_eq!(value(&appended), 7, "the cut took what came after it");
        }
        finish(&cache, file);
    });
}

// spec: P15
#[test]
fn shuttle_a_read_beside_a_truncation() {
    model(|| {
        let (cache, _store, file) = file(64, 2);
        let cutter = {
            let file = file.clone();
            thread::spawn(move || {
                file.set_len(100).unwrap();
                assert!(matches!(file.view(page(0)), Err(FileError::PastEnd { .. })));
                file.set_len(2 * PAGE).unwrap();
            })
        };
        for number in [1, 0] {
            match file.view(page(number)) {
                Ok(view) => assert!(view[100..].iter().all(|byte| *byte == view[100])),
                Err(error) => assert!(matches!(error, FileError::PastEnd { .. }), "{error}"),
            }
        }
        cutter.join().unwrap();
        assert_eq!(value(&file.view(100..PAGE).unwrap()), 0);
        assert_eq!(value(&file.view(page(1)).unwrap()), 0);
        finish(&cache, file);
    });
}

// spec: P5
#[test]
fn shuttle_a_lock_beside_a_truncation() {
    model(|| {
        let (cache, _store, file) = file(64, 2);
        file.view(page(0)).unwrap();
        let cutter = {
            let file = file.clone();
            thread::spawn(move || file.set_len(0).unwrap())
        };
        let core = file.inner().core();
        if let Some(locked) = core.find_lock(0, Get::NONE).unwrap() {
            assert!(
                core.is_still(0, locked.frame()),
                "locked, and not the file's"
            );
        }
        cutter.join().unwrap();
        finish(&cache, file);
    });
}

// spec: P28
#[test]
fn shuttle_a_view_beside_writers() {
    model(|| {
        let (cache, store, file) = file(64, 1);
        let writers: Vec<_> = [2, 3]
            .map(|number: u8| {
                let file = file.clone();
                thread::spawn(move || file.write_at(&[number; PAGE as usize], 0).unwrap())
            })
            .into();
        let view = file.view(page(0)).unwrap();
        let before = value(&view);
        let again = value(&file.view(page(0)).unwrap());
        assert!(before == 1 || again != 1, "time went backwards");
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        assert_eq!(value(&view), before, "a view changed");
        drop(view);
        file.sync_all().unwrap();
        assert!(value(&store.to_vec()) >= 2);
        finish(&cache, file);
    });
}

// spec: P4, P21
#[test]
fn shuttle_fills_of_one_block_read_once() {
    model(|| {
        let (cache, store, file) = file(64, 1);
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let file = file.clone();
                thread::spawn(move || value(&file.view(page(0)).unwrap()))
            })
            .collect();
        assert_eq!(value(&file.view(page(0)).unwrap()), 1);
        readers
            .into_iter()
            .for_each(|reader| assert_eq!(reader.join().unwrap(), 1));
        assert_eq!(store.counts().reads, 1);
        assert_eq!(cache.pool.totals().usage, 1, "the losers' frames are back");
        finish(&cache, file);
    });
}

#[test]
fn shuttle_eviction_beside_views_and_writes() {
    model(|| {
        let (cache, store, file) = file(64, 2);
        file.view(page(0)).unwrap();
        let evictor = {
            let file = file.clone();
            thread::spawn(move || {
                file.evict(..).unwrap();
                file.evict(..).unwrap();
            })
        };
        let writer = {
            let file = file.clone();
            thread::spawn(move || {
                file.write_at(&[2; PAGE as usize], 0).unwrap();
                file.sync_all().unwrap();
            })
        };
        let view = file.view(page(0)).unwrap();
        let seen = value(&view);
        evictor.join().unwrap();
        writer.join().unwrap();
        assert_eq!(value(&view), seen);
        drop(view);
        assert_eq!(value(&file.view(page(0)).unwrap()), 2);
        assert_eq!(store.to_vec()[0], 2);
        assert_ne!(file.evict(..).unwrap(), PageCount(0));
        finish(&cache, file);
    });
}

#[test]
fn shuttle_writes_beside_syncs_reach_the_store() {
    model(|| {
        let (cache, store, file) = file(64, 2);
        let writer = {
            let file = file.clone();
            thread::spawn(move || {
                for number in 2..4 {
                    file.write_at(&[number; PAGE as usize + 10], 0).unwrap();
                }
            })
        };
        let syncer = {
            let file = file.clone();
            thread::spawn(move || file.sync_data().unwrap())
        };
        file.sync_all().unwrap();
        writer.join().unwrap();
        syncer.join().unwrap();
        file.sync_all().unwrap();
        let stored = store.to_vec();
        assert!(stored[..PAGE as usize + 10].iter().all(|byte| *byte == 3));
        assert_eq!(file.inner().core().dirty_blocks(), 0);
        finish(&cache, file);
    });
}

// spec: P4
#[test]
fn shuttle_long_writes_over_each_other_beside_a_sync() {
    model(|| {
        // The memory is large enough for pages to be allocated many at a time.
        let (cache, store, file) = over(1_024, MemoryStore::new());
        let group = cache.root.id();
        assert_eq!(cache.pool.alloc_some(group, 2).len(), 2);
        let writer = |number: u8, first: u64| {
            let file = file.clone();
            thread::spawn(move || {
                let bytes = [number; 5 * PAGE as usize];
                file.write_at(&bytes, first * PAGE).unwrap();
            })
        };
        let writers = [writer(2, 0), writer(3, 3)];
        file.sync_all().unwrap();
        file.evict(..).unwrap();
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
        for number in 0..8 {
            let seen = value(&file.view(page(number)).unwrap());
            let both = (3..5).contains(&number);
            let alone = if number < 5 { 2 } else { 3 };
            assert!(seen == alone || both && seen == 3, "page {number}: {seen}");
        }
        file.sync_all().unwrap();
        assert_eq!(store.to_vec().len() as u64, 8 * PAGE);
        assert!(store.to_vec().iter().all(|byte| *byte >= 2));
        finish(&cache, file);
    });
}

#[test]
fn shuttle_a_drop_beside_reclaim_writes_and_frees_everything() {
    model(|| {
        let (cache, store, file) = file(64, 2);
        file.write_at(&[2; 2 * PAGE as usize], 0).unwrap();
        let reclaimer = {
            let cache = cache.clone();
            thread::spawn(move || cache.pool.background_step())
        };
        let view = file.view(page(1)).unwrap();
        drop(file);
        reclaimer.join().unwrap();
        assert_eq!(value(&view), 2);
        drop(view);
        assert_eq!(value(&store.to_vec()), 2);
        cache.pool.flush_retired();
        assert_eq!(cache.pool.totals().usage, 0);
    });
}

#[test]
fn shuttle_two_writers_of_a_hole_lose_nothing() {
    model(|| {
        let (cache, store, file) = over(64, SlowStore::new(MemoryStore::with_len(PAGE)));
        let other = {
            let file = file.clone();
            thread::spawn(move || {
                // The block is made, written and evicted, all during the other thread's operation.
                file.write_at(&[3; 100], 200).unwrap();
                file.sync_all().unwrap();
                file.evict(..).unwrap();
            })
        };
        file.write_at(&[2; 100], 0).unwrap();
        other.join().unwrap();
        file.sync_all().unwrap();
        let stored = store.inner.to_vec();
        assert_eq!((stored[50], stored[150], stored[250]), (2, 0, 3));
        finish(&cache, file);
    });
}

#[test]
fn shuttle_what_a_close_loses_is_told_beside_the_end_of_the_memory() {
    // One thread has to get far while the other pauses. This scheduler tries such schedules.
    let body = || {
        let (cache, _store, file) = file(16, 1);
        let told = Arc::new(AtomicU32::new(0));
        let tells = told.clone();
        cache.set_error_hook(std::sync::Arc::new(move |_: &FileError| {
            tells.fetch_add(1, Ordering::SeqCst);
        }));
        let error = file.inner().core().closed();
        let closing = {
            let cache = cache.clone();
            // This is the end of a close that has lost data.
            thread::spawn(move || {
                cache.log_error(error);
                cache.run_deferred_if_abandoned();
            })
        };
        cache.abandon();
        closing.join().unwrap();
        assert_eq!(told.load(Ordering::SeqCst), 1);
        finish(&cache, file);
    };
    shuttle::check_pct(body, ROUNDS, 2);
}

#[test]
fn shuttle_what_a_close_retires_is_freed_when_it_ends_whoever_frees_it() {
    // See the model before this one for the scheduler.
    let body = || {
        let (cache, _store, file) = file(16, 1);
        let closing = {
            let cache = cache.clone();
            // This is the end of a close that has left an entry for a grace period.
            thread::spawn(move || {
                let freed = Arc::new(AtomicU32::new(0));
                let frees = freed.clone();
                cache.pool.retire(Retired::Call(Box::new(move |_| {
                    frees.fetch_add(1, Ordering::SeqCst);
                })));
                cache.pool.finish_retired();
                assert_eq!(freed.load(Ordering::SeqCst), 1);
            })
        };
        cache.abandon();
        closing.join().unwrap();
        assert_eq!(cache.pool.totals().retired, 0);
        finish(&cache, file);
    };
    shuttle::check_pct(body, ROUNDS, 2);
}

/// Waits for a future as an executor does.
fn wait_for<F: Future>(mut future: std::pin::Pin<&mut F>) -> F::Output {
    let bell = std::sync::Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        bell.wait();
    }
}

/// A flag that a waker sets, with its waiters.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        *self.0.lock() = true;
        self.1.notify_all();
    }
}

impl Bell {
    /// Waits until the flag is set, and clears it.
    fn wait(&self) {
        let mut rung = self.0.lock();
        while !std::mem::take(&mut *rung) {
            rung = self.1.wait(rung);
        }
    }
}

#[test]
fn shuttle_a_service_sleeps_on_no_call_whoever_ticks_meanwhile() {
    // One thread has to get far while the other pauses. This scheduler tries such schedules.
    let body = || {
        let (cache, _store, file) = file(16, 1);
        let ended = Arc::new(AtomicBool::new(false));
        let service = {
            let (cache, ended) = (cache.clone(), ended.clone());
            thread::spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    // No time passes under shuttle: only a kick ends the wait.
                    cache.pool.background.wait_for_work(Duration::from_secs(1));
                    while cache.step() == Step::More {}
                }
            })
        };
        let ticking = {
            let cache = cache.clone();
            thread::spawn(move || cache.tick())
        };
        let other = {
            let file = file.clone();
            thread::spawn(move || {
                wait_for(pin!(file.defer(move |file| file.set_len(PAGE)))).unwrap()
            })
        };
        wait_for(pin!(file.defer(|file| file.sync_data()))).unwrap();
        ticking.join().unwrap();
        other.join().unwrap();
        ended.store(true, Ordering::SeqCst);
        cache.pool.background.kick();
        service.join().unwrap();
        finish(&cache, file);
    };
    shuttle::check_pct(body, 1000, 3);
}
