//! Calls made as futures.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::blocking::{Alarm, Bell, poll};
use super::*;
use crate::cache::FileError;
use crate::exec::Turn;
use crate::store::faulty::{Failure, Fault, OperationKind, Release, Rule};
use crate::sync::thread;

/// Returns the store's bytes.
fn stored(store: &Faulty) -> Vec<u8> {
    let mut bytes = vec![0; store.inner().len().expect("it tells its length") as usize];
    let got = store.inner().read_at(&mut bytes, 0);
    assert_eq!(got.expect("it can be read"), bytes.len());
    bytes
}

// spec: P29
#[test]
fn a_call_is_made_by_a_tick_in_the_order_of_the_first_polls() {
    for size in SIZES {
        let cache = memory_of(16, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        let bell = Arc::new(Bell::default());
        let mut cut = pin!(file.defer(move |file| file.set_len(size)));
        let mut append = pin!(file.defer(move |file| file.append(&[7; 100])));
        let mut punch = pin!(file.defer(move |file| file.punch(0..size)));
        let mut sync = pin!(file.defer(|file| file.sync_all()));
        let mut read = pin!(file.defer_shared(move |file| file.read_to_vec(size - 10..size + 100)));
        let mut outside = pin!(file.defer_shared(move |file| file.read_to_vec(0..4 * size)));
        store.clear_log();
        cache.tick();
        assert_eq!(
            (file.len(), store.log().len()),
            (4 * size, 0),
            "nobody polled"
        );
        assert!(poll(cut.as_mut(), &bell).is_pending());
        assert!(poll(append.as_mut(), &bell).is_pending());
        assert!(poll(punch.as_mut(), &bell).is_pending());
        assert!(poll(sync.as_mut(), &bell).is_pending());
        assert!(poll(read.as_mut(), &bell).is_pending());
        assert!(poll(read.as_mut(), &bell).is_pending());
        assert!(poll(outside.as_mut(), &bell).is_pending());
        assert_eq!(file.len(), 4 * size);
        cache.tick();
        assert_eq!(bell.rung(), 6, "each was woken once");
        assert!(matches!(poll(cut.as_mut(), &bell), Poll::Ready(Ok(()))));
        let at = poll(append.as_mut(), &bell);
        assert!(
            matches!(at, Poll::Ready(Ok(at)) if at == size),
            "behind the cut: {at:?}"
        );
        assert!(matches!(poll(punch.as_mut(), &bell), Poll::Ready(Ok(()))));
        assert!(matches!(poll(sync.as_mut(), &bell), Poll::Ready(Ok(()))));
        let Poll::Ready(Ok(bytes)) = poll(read.as_mut(), &bell) else {
            panic!("read by the tick");
        };
        assert_eq!(bytes, [[0; 10].as_slice(), &[7; 100]].concat());
        let end = poll(outside.as_mut(), &bell);
        assert!(
            matches!(end, Poll::Ready(Err(FileError::PastEnd { .. }))),
            "{end:?}"
        );
        assert_eq!(stored(&store).len() as u64, size + 100);
    }
}

// spec: P29
#[test]
fn a_call_whose_future_is_dropped_before_its_turn_is_not_made() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    {
        let mut write = pin!(file.defer(move |file| file.write_at(&[9; 10], 0)));
        assert!(poll(write.as_mut(), &bell).is_pending());
    }
    cache.tick();
    assert_eq!(bell.rung(), 0);
    assert_eq!(contents(&file), pattern(0..65_536));
    drop(file);
    assert_empty(&cache);
}

// spec: P29
#[test]
fn futures_that_are_dropped_leave_no_queue_behind() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    let bell = Arc::new(Bell::default());
    // Some of the futures live on and get their turn.
    let mut reads = Vec::new();
    let mut views = Vec::new();
    for number in 0..10_000 {
        let mut read = Box::pin(file.defer_shared(move |file| file.read_to_vec(0..10)));
        let mut view = Box::pin(file.ready(0..10));
        assert!(poll(read.as_mut(), &bell).is_pending());
        assert!(poll(view.as_mut(), &bell).is_pending());
        if number % 500 == 0 {
            reads.push(read);
            views.push(view);
        }
    }
    assert!(cache.queued() < 300, "{}", cache.queued());
    cache.tick();
    assert!(
        reads
            .iter_mut()
            .all(|of| poll(of.as_mut(), &bell).is_ready())
    );
    assert!(
        views
            .iter_mut()
            .all(|of| poll(of.as_mut(), &bell).is_ready())
    );
    assert_eq!(cache.queued(), 0);
}

// spec: P29
#[test]
fn a_call_keeps_its_file_open_until_it_is_made() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    let mut write = pin!(file.defer(move |file| file.write_at(&[9; 10], 100)));
    assert!(poll(write.as_mut(), &bell).is_pending());
    drop(file);
    assert_eq!(cache.files().len(), 1);
    cache.tick();
    assert_eq!(bell.rung(), 1);
    assert!(matches!(poll(write.as_mut(), &bell), Poll::Ready(Ok(()))));
    assert_eq!(stored(&store)[100..110], [9; 10], "written when it closed");
    assert_empty(&cache);
}

// spec: P29
#[test]
fn a_call_under_way_ends_without_its_future() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    file.write_at(&[9; 4096], 0).unwrap();
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
    let ticking = {
        let mut sync = pin!(file.defer(|file| file.sync_data()));
        assert!(poll(sync.as_mut(), &bell).is_pending());
        let cache = cache.clone();
        let ticking = thread::spawn(move || cache.tick());
        store.wait_hanging(1);
        assert!(poll(sync.as_mut(), &bell).is_pending());
        ticking
    };
    store.release(Release::Proceed);
    ticking.join().unwrap();
    assert_eq!(bell.rung(), 1, "the waker is told, whoever it wakes");
    assert_eq!(stored(&store)[..4096], [9; 4096]);
    drop(file);
    assert_empty(&cache);
}

// spec: P29
#[test]
fn the_handle_hears_once_of_a_sync_that_failed_later() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let other = file.clone();
    let bell = Arc::new(Bell::default());
    file.write_at(&[9; 4096], 0).unwrap();
    store.add(
        Rule::new(Fault::Fail(Failure::Io))
            .on(&[OperationKind::Write])
            .times(1),
    );
    let mut sync = pin!(file.defer(|file| file.sync_all()));
    assert!(poll(sync.as_mut(), &bell).is_pending());
    cache.tick();
    let end = poll(sync.as_mut(), &bell);
    assert!(
        matches!(end, Poll::Ready(Err(FileError::Store { .. }))),
        "{end:?}"
    );
    file.sync_all().unwrap();
    assert!(other.sync_all().is_err(), "another handle hears for itself");
    other.sync_all().unwrap();
    assert_eq!(stored(&store)[..4096], [9; 4096]);
}

// spec: P29
#[test]
fn all_other_calls_are_made_as_well() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    file.write_at(&[9; 4096], 0).unwrap();
    file.write_at(&[9; 4096], 8192).unwrap();
    let mut sync = pin!(file.defer(move |file| file.sync_range(..4096)));
    let mut discard = pin!(file.defer(|file| file.discard()));
    let mut prefetch = pin!(file.defer_shared(move |file| file.prefetch(16_384..20_480)));
    let mut invalidate = pin!(file.defer(move |file| file.invalidate(16_384..20_480)));
    assert!(poll(sync.as_mut(), &bell).is_pending());
    assert!(poll(discard.as_mut(), &bell).is_pending());
    assert!(poll(prefetch.as_mut(), &bell).is_pending());
    assert!(poll(invalidate.as_mut(), &bell).is_pending());
    cache.tick();
    assert!(matches!(poll(sync.as_mut(), &bell), Poll::Ready(Ok(()))));
    assert!(matches!(poll(discard.as_mut(), &bell), Poll::Ready(Ok(()))));
    assert!(matches!(
        poll(prefetch.as_mut(), &bell),
        Poll::Ready(Ok(()))
    ));
    let forgotten = poll(invalidate.as_mut(), &bell);
    assert!(
        matches!(forgotten, Poll::Ready(Ok(pages)) if pages.0 == 1),
        "{forgotten:?}"
    );
    assert_eq!(stored(&store)[..4096], [9; 4096]);
    file.view(..4096).unwrap();
    let mut evict = pin!(file.defer(move |file| file.evict(..4096)));
    assert!(poll(evict.as_mut(), &bell).is_pending());
    cache.tick();
    let evicted = poll(evict.as_mut(), &bell);
    assert!(
        matches!(evicted, Poll::Ready(Ok(pages)) if pages.0 == 1),
        "{evicted:?}"
    );
    assert!(core(&file).lookup(0).is_none());
    assert_eq!(contents(&file)[8192..], pattern(8192..65_536));
}

// spec: P29
#[test]
fn a_read_for_which_there_is_no_memory_is_an_error() {
    let cache = memory(64);
    let store = Arc::new(MemoryStore::with_len(1 << 62));
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    let mut read = pin!(file.defer_shared(move |file| file.read_to_vec(..)));
    assert!(poll(read.as_mut(), &bell).is_pending());
    cache.tick();
    let end = poll(read.as_mut(), &bell);
    assert!(
        matches!(end, Poll::Ready(Err(FileError::NoMemory { len, .. })) if len == 1 << 62),
        "{end:?}"
    );
}

/// A store whose reads use a file of the same memory through futures, and a store whose reads
/// panic.
#[derive(Debug)]
struct Odd(Option<PagedFile>);

impl Store for Odd {
    fn len(&self) -> std::io::Result<u64> {
        Ok(65_536)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let file = self.0.as_ref().expect("one to read from");
        let range = offset..offset + buf.len() as u64;
        let mut read = pin!(file.defer_shared(move |file| file.read_to_vec(range)));
        match poll(read.as_mut(), &Arc::new(Bell::default())) {
            Poll::Ready(bytes) => buf.copy_from_slice(&bytes?),
            Poll::Pending => panic!("who makes the call waits for it here"),
        }
        Ok(buf.len())
    }
}

// spec: P29
#[test]
fn a_call_by_who_makes_the_calls_is_made_at_once() {
    let cache = memory(64);
    let below = open(&cache, &patterned(65_536), &options(4096));
    let above = open(&cache, &Arc::new(Odd(Some(below))), &FileOptions::new());
    let bell = Arc::new(Bell::default());
    let mut read = pin!(above.defer_shared(move |file| file.read_to_vec(0..10_000)));
    assert!(poll(read.as_mut(), &bell).is_pending());
    cache.tick();
    let Poll::Ready(Ok(bytes)) = poll(read.as_mut(), &bell) else {
        panic!("read by the tick");
    };
    assert_eq!(bytes, pattern(0..10_000));
}

// spec: P29
#[test]
fn a_panic_of_a_call_is_of_who_polls_it_and_ends_no_other() {
    let cache = memory(64);
    let odd = open(&cache, &Arc::new(Odd(None)), &FileOptions::new());
    let file = open(&cache, &patterned(65_536), &options(4096));
    let bell = Arc::new(Bell::default());
    let mut bad = pin!(odd.defer_shared(move |file| file.read_to_vec(0..10)));
    let mut good = pin!(file.defer_shared(move |file| file.read_to_vec(0..10)));
    assert!(poll(bad.as_mut(), &bell).is_pending());
    assert!(poll(good.as_mut(), &bell).is_pending());
    cache.tick();
    assert_eq!(bell.rung(), 2);
    let polled = std::panic::AssertUnwindSafe(|| poll(bad.as_mut(), &bell));
    assert!(std::panic::catch_unwind(polled).is_err());
    assert!(matches!(poll(good.as_mut(), &bell), Poll::Ready(Ok(_))));
}

// spec: P29
#[test]
fn a_waker_that_panics_keeps_a_tick_from_no_other_call() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    let bell = Arc::new(Bell::default());
    let alarm = Waker::from(std::sync::Arc::new(Alarm));
    let mut alarmed = pin!(file.defer(move |file| file.set_len(8192)));
    let mut context = Context::from_waker(&alarm);
    assert!(alarmed.as_mut().poll(&mut context).is_pending());
    let mut append = pin!(file.defer(move |file| file.append(&[7; 10])));
    assert!(poll(append.as_mut(), &bell).is_pending());
    let tick = std::panic::AssertUnwindSafe(|| cache.tick());
    std::panic::catch_unwind(tick).unwrap_err();
    assert!(matches!(alarmed.poll(&mut context), Poll::Ready(Ok(()))));
    let end = poll(append.as_mut(), &bell);
    assert!(matches!(end, Poll::Ready(Ok(8192))), "{end:?}");
    assert_eq!(bell.rung(), 1);
}

// spec: P29
#[test]
fn a_view_whose_waker_panics_keeps_a_tick_and_a_step_from_no_call() {
    let works: [fn(&Cache); 2] = [Cache::tick, |cache| _ = cache.step()];
    for work in works {
        let cache = memory(64);
        let file = open(&cache, &patterned(65_536), &options(4096));
        let bell = Arc::new(Bell::default());
        let alarm = Waker::from(std::sync::Arc::new(Alarm));
        let mut alarmed = pin!(file.ready(0..10));
        let mut context = Context::from_waker(&alarm);
        assert!(alarmed.as_mut().poll(&mut context).is_pending());
        let mut append = pin!(file.defer(move |file| file.append(&[7; 10])));
        assert!(poll(append.as_mut(), &bell).is_pending());
        let work = std::panic::AssertUnwindSafe(|| work(&cache));
        std::panic::catch_unwind(work).unwrap_err();
        assert!(matches!(alarmed.poll(&mut context), Poll::Ready(Ok(_))));
        assert!(matches!(poll(append.as_mut(), &bell), Poll::Ready(Ok(_))));
    }
}

// spec: P20, P29
#[test]
fn a_view_whose_store_panics_comes_to_an_end() {
    let cache = memory(64);
    let odd = open(&cache, &Arc::new(Odd(None)), &FileOptions::new());
    let bell = Arc::new(Bell::default());
    let mut bad = pin!(odd.ready(0..10));
    assert!(poll(bad.as_mut(), &bell).is_pending());
    let tick = std::panic::AssertUnwindSafe(|| cache.tick());
    std::panic::catch_unwind(tick).unwrap_err();
    assert_eq!(bell.rung(), 1);
    let end = poll(bad.as_mut(), &bell);
    assert!(
        matches!(end, Poll::Ready(Err(FileError::Store { .. }))),
        "{end:?}"
    );
}

// spec: P29
#[test]
fn only_one_thread_makes_calls_at_a_time() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
    // This write waits for the rest of its block.
    let mut write = pin!(file.defer(move |file| file.write_at(&[9; 10], 0)));
    let mut sync = pin!(file.defer(|file| file.sync_all()));
    assert!(poll(write.as_mut(), &bell).is_pending());
    assert!(poll(sync.as_mut(), &bell).is_pending());
    let ticking = {
        let cache = cache.clone();
        thread::spawn(move || cache.tick())
    };
    store.wait_hanging(1);
    cache.tick();
    assert!(
        poll(sync.as_mut(), &bell).is_pending(),
        "the write is to be synced"
    );
    store.release(Release::Proceed);
    ticking.join().unwrap();
    cache.tick();
    assert!(matches!(poll(write.as_mut(), &bell), Poll::Ready(Ok(()))));
    assert!(matches!(poll(sync.as_mut(), &bell), Poll::Ready(Ok(()))));
    assert_eq!(stored(&store)[..10], [9; 10]);
}

// spec: P29
#[test]
fn a_call_that_was_queued_while_another_was_made_comes_after_it() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let bell = Arc::new(Bell::default());
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
    let mut read = pin!(file.defer_shared(move |file| file.read_to_vec(0..10)));
    assert!(poll(read.as_mut(), &bell).is_pending());
    let ticking = {
        let cache = cache.clone();
        thread::spawn(move || cache.tick())
    };
    store.wait_hanging(1);
    let mut cut = pin!(file.defer(move |file| file.set_len(100)));
    assert!(poll(cut.as_mut(), &bell).is_pending());
    cache.tick();
    assert!(poll(cut.as_mut(), &bell).is_pending(), "after the read");
    store.release(Release::Proceed);
    ticking.join().unwrap();
    cache.tick();
    assert!(matches!(poll(cut.as_mut(), &bell), Poll::Ready(Ok(()))));
}

// spec: P29
#[test]
fn a_thread_that_is_ending_can_tick_and_leaves_calls_to_others() {
    struct Ticks(Option<Arc<Cache>>);
    impl Drop for Ticks {
        fn drop(&mut self) {
            self.0.iter().for_each(|cache| cache.tick());
        }
    }
    std::thread_local! {
        static AT_THE_END: RefCell<Ticks> = const { RefCell::new(Ticks(None)) };
    }
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    let bell = Arc::new(Bell::default());
    let mut cut = pin!(file.defer(move |file| file.set_len(100)));
    let (begun, ticked) = mpsc::channel();
    let (end, ending) = mpsc::channel();
    let ticking = {
        let cache = cache.clone();
        std::thread::spawn(move || {
            // This value is created before the thread's other locals, so it is dropped after them.
            AT_THE_END.with_borrow_mut(|last| last.0 = Some(cache.clone()));
            cache.tick();
            begun.send(()).unwrap();
            ending.recv().unwrap();
        })
    };
    ticked.recv().unwrap();
    assert!(poll(cut.as_mut(), &bell).is_pending());
    end.send(()).unwrap();
    ticking.join().unwrap();
    // The ending thread does not know any more whether it is in a call to a store.
    assert!(poll(cut.as_mut(), &bell).is_pending());
    cache.tick();
    assert!(matches!(poll(cut.as_mut(), &bell), Poll::Ready(Ok(()))));
    assert_eq!((file.len(), bell.rung()), (100, 1));
}

// spec: R9
#[test]
fn a_job_for_which_no_thread_could_be_started_gets_one_from_a_tick() {
    let cache = memory(64);
    cache.begin_service();
    let file = open(&cache, &patterned(4096), &options(4096));
    let (done, over) = mpsc::channel();
    // The other threads of the memory hang.
    let (begun, begins) = mpsc::channel();
    let (let_go, hangs) = mpsc::channel::<()>();
    let hanging = cache.task_lane(0, crate::group::GroupId::ROOT, 1);
    cache.push(
        &hanging,
        Turn::Shared,
        Box::new(move || {
            begun.send(()).unwrap();
            let _ = hangs.recv();
        }),
    );
    begins.recv().unwrap();
    let job = Box::new(move || done.send(()).unwrap());
    core(&file).store_calls.push_without_thread(job);
    assert!(over.recv_timeout(Duration::from_millis(50)).is_err());
    cache.tick();
    over.recv_timeout(Duration::from_secs(20))
        .expect("a thread can be started by now");
    drop(let_go);
}
