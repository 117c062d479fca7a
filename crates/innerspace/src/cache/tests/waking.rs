//! Wakers may run any code. They may use the same file, on whatever thread and in whatever place
//! they are called.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::cache::core::validate::validate;
use crate::cache::map::fault::fault_block;
use crate::cache::{FaultKind, FileError, Reading, Wait};
use crate::exec::reentry::FileLocked;
use crate::group::{GroupId, Reclaimer};
use crate::reclaim::AllocMode;
use crate::store::faulty::{Failure, Fault, OperationKind, Rule};

/// A waker that acts inside `wake`, like an executor that polls there.
struct AtOnce<F> {
    work: F,
    woken: AtomicUsize,
}

impl<F: Fn() + Send + Sync + 'static> Wake for AtOnce<F> {
    fn wake(self: std::sync::Arc<Self>) {
        self.woken.fetch_add(1, Ordering::Relaxed);
        (self.work)();
    }
}

impl<F: Fn() + Send + Sync + 'static> AtOnce<F> {
    fn new(work: F) -> std::sync::Arc<AtOnce<F>> {
        let woken = AtomicUsize::new(0);
        std::sync::Arc::new(AtOnce { work, woken })
    }

    fn woken(&self) -> usize {
        self.woken.load(Ordering::Relaxed)
    }
}

/// Makes calls that together take each lock of the file that a call may wait for.
fn use_in_every_way(file: &PagedFile) {
    let len = file.append(b"more").expect("there is room");
    file.set_len(len).expect("as it was");
    file.punch(len - 1..len).expect("a byte");
    let _ = file.view(len - 1..len);
}

/// The length of the file, whose last block is not whole.
const LEN: u64 = 8 * 4096 - 100;

fn a_file(cache: &Arc<Cache>) -> (Arc<Faulty>, PagedFile) {
    let store = patterned(LEN);
    let file = open(cache, &store, &options(4096));
    (store, file)
}

/// Has a future for bytes of block `block` woken once by `work`. Its waker then uses the file.
fn woken_by(block: u64, work: impl FnOnce(&Faulty, &PagedFile)) {
    let cache = memory(64);
    let (store, file) = a_file(&cache);
    let at_once = AtOnce::new({
        let file = file.clone();
        move || use_in_every_way(&file)
    });
    let waker = Waker::from(at_once.clone());
    let mut ready = pin!(file.ready(block * 4096..block * 4096 + 10));
    let polled = ready.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    work(&store, &file);
    assert_eq!(at_once.woken(), 1);
    let again = ready.as_mut().poll(&mut Context::from_waker(&waker));
    drop(again);
    validate(core(&file));
}

// spec: P29
#[test]
fn who_is_woken_by_a_call_may_use_the_file_at_once() {
    woken_by(1, |_, file| drop(file.view(4096..4106)));
    woken_by(1, |store, file| {
        store.add(Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::Read]));
        file.view(4096..4106).unwrap_err();
    });
    woken_by(1, |_, file| drop(file.read_at(&mut [0; 10], 4096)));
    woken_by(2, |_, file| file.prefetch(8192..16_384).unwrap());
    woken_by(1, |_, file| file.write_at(&[7; 10], 5000).unwrap());
    woken_by(1, |_, file| file.write_at(&[7; 4096], 4096).unwrap());
    woken_by(1, |_, file| file.write_at(&[7; 20_000], 0).unwrap());
    woken_by(7, |_, file| assert_eq!(file.append(&[7; 10]).unwrap(), LEN));
    woken_by(1, |_, file| file.set_len(10).unwrap());
    woken_by(1, |_, file| file.punch(0..8192).unwrap());
    woken_by(1, |_, file| file.punch(5000..5010).unwrap());
    woken_by(1, |_, file| file.discard().unwrap());
    woken_by(1, |_, file| assert_eq!(file.invalidate(..).unwrap().0, 0));
    woken_by(1, |_, file| core(file).cache.tick());
}

// spec: P29
#[test]
fn who_is_woken_by_a_later_call_may_use_the_file_at_once() {
    let cache = memory(64);
    let (_store, file) = a_file(&cache);
    let at_once = AtOnce::new({
        let file = file.clone();
        move || use_in_every_way(&file)
    });
    let waker = Waker::from(at_once.clone());
    let mut cut = pin!(file.defer(move |file| file.set_len(10)));
    let mut context = Context::from_waker(&waker);
    assert!(cut.as_mut().poll(&mut context).is_pending());
    cache.tick();
    assert_eq!(at_once.woken(), 1);
    assert!(matches!(cut.poll(&mut context), Poll::Ready(Ok(()))));
}

// spec: P29
#[test]
fn page_faults_leave_the_waking_to_the_service() {
    let fault = |_: &Faulty, file: &PagedFile| {
        let core = core(file);
        drop(fault_block(
            core,
            1,
            FaultKind::Read,
            &(1..2),
            Reading::Normal,
            Wait::Yes,
        ));
        core.cache.tick();
    };
    woken_by(1, fault);
    woken_by(1, |_, file| {
        core(file).fill_together(&[0, 1, 2]);
        core(file).cache.tick();
    });
}

/// A store that reads from a file of the same memory.
#[derive(Debug)]
struct Above(PagedFile);

impl Store for Above {
    fn len(&self) -> std::io::Result<u64> {
        Ok(self.0.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        Ok(self.0.read_at(buf, offset)?)
    }
}

// spec: P29
#[test]
fn who_is_woken_below_a_store_is_so_when_the_file_above_can_be_used() {
    let cache = memory(64);
    let (_store, below) = a_file(&cache);
    let above = open(&cache, &Arc::new(Above(below.clone())), &FileOptions::new());
    let at_once = AtOnce::new({
        let (below, above) = (below.clone(), above.clone());
        move || {
            use_in_every_way(&below);
            above
                .invalidate(..)
                .expect("nobody is in a call of its store");
        }
    });
    let waker = Waker::from(at_once.clone());
    let mut ready = pin!(below.ready(4096..4106));
    let mut context = Context::from_waker(&waker);
    assert!(ready.as_mut().poll(&mut context).is_pending());
    assert_eq!(above.view(4096..4106).unwrap()[..], pattern(4096..4106));
    assert_eq!(
        at_once.woken(),
        0,
        "the read of the file above was under way"
    );
    cache.tick();
    assert_eq!(at_once.woken(), 1);
    assert!(matches!(ready.poll(&mut context), Poll::Ready(Ok(_))));
}

// spec: P27, P29
#[test]
fn who_is_woken_by_a_close_may_open_the_store_again_at_once() {
    let cache = memory(64);
    let (store, file) = a_file(&cache);
    let identity = store.identity().expect("a memory store knows itself");
    let at_once = AtOnce::new({
        let (cache, store) = (cache.clone(), store.clone());
        move || {
            assert!(!cache.is_closing(identity), "would wait for this thread");
            use_in_every_way(&open(&cache, &store, &options(4096)));
        }
    });
    let waker = Waker::from(at_once.clone());
    let mut ready = pin!(file.ready(4096..4106));
    let mut context = Context::from_waker(&waker);
    assert!(ready.as_mut().poll(&mut context).is_pending());
    drop(file);
    assert_eq!(at_once.woken(), 1);
    let end = ready.poll(&mut context);
    assert!(matches!(end, Poll::Ready(Err(FileError::Closed { .. }))));
}

// spec: P29
#[test]
fn who_needs_memory_closes_no_file_and_wakes_nobody() {
    let cache = memory(64);
    let (_store, writer) = a_file(&cache);
    let (_other, closed) = a_file(&cache);
    drop(closed.view(8192..8202));
    let at_once = AtOnce::new({
        let writer = writer.clone();
        move || use_in_every_way(&writer)
    });
    let waker = Waker::from(at_once.clone());
    let mut ready = pin!(closed.ready(0..10));
    let mut context = Context::from_waker(&waker);
    assert!(ready.as_mut().poll(&mut context).is_pending());
    // A mapping holds such a reference. Here it is the last one that keeps the file open.
    let last = closed.inner().clone();
    drop(closed);
    drop(last);
    let mut taken = Vec::new();
    let group = cache.root.id();
    while let Ok(frame) = cache.pool.alloc(group, 0, AllocMode::NoWait) {
        taken.push(frame);
    }
    assert_eq!(cache.files().len(), 2, "nobody has closed it so far");
    writer.write_at(&[7; 10], 0).unwrap();
    let still = "the write needed memory, and had its own file locked";
    assert_eq!(cache.files().len(), 2, "{still}");
    assert_eq!(at_once.woken(), 0, "{still}");
    drop(taken);
    cache.tick();
    assert_eq!(cache.files().len(), 1);
    assert_eq!(at_once.woken(), 1);
    let end = ready.poll(&mut context);
    assert!(matches!(end, Poll::Ready(Err(FileError::Closed { .. }))));
}

// spec: P29
#[test]
fn a_future_that_goes_takes_its_waker_and_its_view_along() {
    let cache = memory(64);
    let (_store, file) = a_file(&cache);
    let at_once = AtOnce::new(|| {});
    let waker = Waker::from(at_once.clone());
    let views = || cache.pool.holders(cache.root.id()).views;
    for comes_late in [false, true] {
        let mut ready = Box::pin(file.ready(4096..4106));
        let polled = ready.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        // An operation that fills a block holds such a list, with the block locked.
        let held = core(&file).ready.live();
        if comes_late {
            drop(ready);
            held[0].settle(file.view(4096..4106));
        } else {
            held[0].settle(file.view(4096..4106));
            assert_eq!(views(), 1);
            held[0].settle(file.view(4096..4106));
            assert_eq!(views(), 1, "the first is as good");
            drop(ready);
        }
        assert_eq!(views(), 0);
        assert_eq!(std::sync::Arc::strong_count(&at_once), 2, "ours alone");
        file.invalidate(..).unwrap();
    }
}

// spec: P29
#[test]
fn a_call_that_is_queued_late_in_a_tick_is_made_by_the_next() {
    let cache = memory(64);
    let (_store, file) = a_file(&cache);
    let late = std::sync::Arc::new(std::sync::Mutex::new(
        file.defer(move |file| file.set_len(10)),
    ));
    let at_once = AtOnce::new({
        let late = late.clone();
        // This runs on a thread of its own, since on this one the call would be made in the poll.
        move || {
            let late = late.clone();
            let polls = move || {
                let mut late = late.lock().unwrap();
                let context = &mut Context::from_waker(Waker::noop());
                assert!(std::pin::Pin::new(&mut *late).poll(context).is_pending());
            };
            crate::sync::thread::spawn(polls).join().unwrap();
        }
    });
    let scope = cache.pool.store_scope(None);
    cache.wake(GroupId::ROOT, Waker::from(at_once));
    drop(scope);
    cache.tick();
    assert_eq!(file.len(), LEN, "it has made what calls there were");
    cache.tick();
    assert_eq!(file.len(), 10);
}

#[test]
fn what_is_refused_in_a_waker_is_counted_whoever_wakes() {
    let works: [fn(&PagedFile); 2] = [
        |file| file.punch(0..2 * 4096).unwrap(),
        |file| file.set_len(0).unwrap(),
    ];
    for work in works {
        let cache = memory(256);
        let group = cache.root.create_child("full", 16 * 4096).unwrap();
        let (_store, file) = a_file(&cache);
        let at_once = AtOnce::new({
            let (cache, group) = (cache.clone(), group.clone());
            move || {
                let charge = cache
                    .pool
                    .charge(group.id(), PageCount(17), AllocMode::Wait);
                charge.unwrap_err();
            }
        });
        let waker = Waker::from(at_once.clone());
        let mut ready = pin!(file.ready(0..4096));
        let polled = ready.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        work(&file);
        assert_eq!((at_once.woken(), group.events().oom), (1, 1));
    }
}

// spec: P29
#[test]
fn a_job_that_is_run_with_a_file_locked_wakes_nobody() {
    let cache = memory(64);
    let (_store, file) = a_file(&cache);
    let (_other_store, other) = a_file(&cache);
    // The view makes the file learn where the store's data is.
    drop(file.view(0..10));
    let at_once = AtOnce::new(|| {});
    let waker = Waker::from(at_once.clone());
    let mut context = Context::from_waker(&waker);
    // An append that finds no memory runs jobs in this way, and so does a call to another file's
    // store.
    let run = || while core(&file).store_calls.run_one() {};
    let runs: [&dyn Fn(); 2] = [
        &|| {
            let _held = core(&file).locks.append();
            let _holding = FileLocked::begin();
            run();
        },
        &|| {
            let _call = core(&other).store_call();
            run();
        },
    ];
    for (block, run) in (2..).zip(runs) {
        let mut ready = pin!(file.ready(block * 4096..block * 4096 + 10));
        assert!(ready.as_mut().poll(&mut context).is_pending());
        let before = at_once.woken();
        run();
        assert_eq!(at_once.woken(), before, "something is locked");
        cache.tick();
        assert_eq!(at_once.woken(), before + 1);
        assert!(matches!(ready.poll(&mut context), Poll::Ready(Ok(_))));
    }
}
