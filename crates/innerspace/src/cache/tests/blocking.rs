//! The `try_` forms and the futures.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::cache::{FileError, Ready};
use crate::store::faulty::{Failure, Fault, OperationKind, Release, Rule};
use crate::sync::thread;

/// Counts wake-ups.
#[derive(Default)]
pub(super) struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Bell {
    pub(super) fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

pub(super) fn poll<F: Future>(future: std::pin::Pin<&mut F>, bell: &Arc<Bell>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(bell.clone())))
}

// spec: P29
#[test]
fn what_would_block_says_so_and_the_future_gets_it_from_a_tick() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    assert!(file.try_view(0..4096).unwrap_err().would_block());
    assert!(file.try_read_at(&mut [0; 10], 0).unwrap_err().would_block());
    assert!(file.try_write_at(&[0; 10], 0).unwrap_err().would_block());
    assert_eq!(file.stats().filled, 0);
    let bell = Arc::new(Bell::default());
    let mut ready = pin!(file.ready(0..4096));
    assert!(poll(ready.as_mut(), &bell).is_pending());
    assert!(poll(ready.as_mut(), &bell).is_pending());
    cache.tick();
    assert!(bell.rung() >= 1);
    let Poll::Ready(view) = poll(ready.as_mut(), &bell) else {
        panic!("filled by the tick")
    };
    assert_eq!(*view.unwrap(), *pattern(0..4096));
    assert_eq!(*file.try_view(0..4096).unwrap(), *pattern(0..4096));
    assert_eq!(file.try_read_at(&mut [0; 10], 4000).unwrap(), 10);
    file.try_write_at(&[7; 10], 4000).unwrap();
    assert_eq!(file.view(4000..4010).unwrap()[..], [7; 10]);
    // A range over several blocks, and errors.
    let mut ready = pin!(file.ready(4090..8200));
    assert!(poll(ready.as_mut(), &bell).is_pending());
    cache.tick();
    let Poll::Ready(view) = poll(ready.as_mut(), &bell) else {
        panic!("filled by the tick")
    };
    assert_eq!(view.unwrap().len(), 4110);
    let mut outside = pin!(file.ready(0..100_000));
    assert!(matches!(
        poll(outside.as_mut(), &bell),
        Poll::Ready(Err(FileError::PastEnd { .. }))
    ));
    assert_eq!(core(&file).ready.len(), 0);
}

// spec: P29
#[test]
fn a_view_that_needs_a_copy_waits_for_no_eviction_to_make_room_for_it() {
    let cache = memory(256);
    let group = cache.root.create_child("tenant", 16 * 4096).unwrap();
    let file = open(&cache, &patterned(1 << 20), &options(4096).group(&group));
    // The blocks read last are cached, and the group is full of pages that could be evicted.
    let read = |block: u64| file.read_exact_at(&mut [0; 10], block * 4096).unwrap();
    (0..64).for_each(read);
    (0..16)
        .take_while(|_| group.usage() < 16 * 4096)
        .for_each(read);
    let across = 63 * 4096 - 10..63 * 4096 + 10;
    let evicted = file.stats().evicted;
    let error = file.try_view(across.clone()).unwrap_err();
    assert!(error.would_block(), "{error}");
    assert_eq!(file.stats().evicted, evicted);
    assert_eq!(*file.view(across.clone()).unwrap(), *pattern(across));
}

// spec: P16, P29
#[test]
fn a_future_is_woken_by_fill_error_truncate_and_drop() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(16 * size);
        let file = open(&cache, &store, &options(size));
        let bell = Arc::new(Bell::default());

        let mut ready = pin!(file.ready(0..10));
        assert!(poll(ready.as_mut(), &bell).is_pending());
        file.view(0..10).unwrap();
        assert_eq!(bell.rung(), 1, "somebody else filled it");
        assert!(matches!(poll(ready.as_mut(), &bell), Poll::Ready(Ok(_))));

        let mut ready = pin!(file.ready(2 * size..2 * size + 10));
        assert!(poll(ready.as_mut(), &bell).is_pending());
        store.add(Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::Read]));
        cache.tick();
        assert_eq!(bell.rung(), 2);
        let end = poll(ready.as_mut(), &bell);
        assert!(
            matches!(end, Poll::Ready(Err(FileError::Store { .. }))),
            "{end:?}"
        );

        let mut ready = pin!(file.ready(4 * size..4 * size + 10));
        assert!(poll(ready.as_mut(), &bell).is_pending());
        file.set_len(3 * size).unwrap();
        assert_eq!(bell.rung(), 3);
        let end = poll(ready.as_mut(), &bell);
        assert!(
            matches!(end, Poll::Ready(Err(FileError::PastEnd { .. }))),
            "{end:?}"
        );

        let mut ready = pin!(file.ready(size..(size + 10)));
        assert!(poll(ready.as_mut(), &bell).is_pending());
        drop(file);
        assert_eq!(bell.rung(), 4);
        let end = poll(ready.as_mut(), &bell);
        assert!(
            matches!(end, Poll::Ready(Err(FileError::Closed { .. }))),
            "{end:?}"
        );
    }
}

/// A store whose reads poll a future for bytes of another file of the same memory.
#[derive(Debug)]
struct Above(crate::sync::Mutex<Ready>);

impl Store for Above {
    fn len(&self) -> std::io::Result<u64> {
        Ok(4096)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> std::io::Result<usize> {
        let mut below = self.0.lock();
        match poll(pin!(&mut *below), &Arc::new(Bell::default())) {
            Poll::Ready(view) => buf[..10].copy_from_slice(&view?),
            Poll::Pending => panic!("who waits for it here waits for itself"),
        }
        Ok(buf.len())
    }
}

// spec: P29
#[test]
fn a_future_that_is_polled_by_who_serves_futures_is_ready_at_once() {
    let cache = memory(64);
    let bell = Arc::new(Bell::default());
    for polled_before in [false, true] {
        let below = open(&cache, &patterned(65_536), &options(4096));
        let store = Arc::new(Above(crate::sync::Mutex::new(below.ready(0..10))));
        let above = open(&cache, &store, &FileOptions::new());
        let mut ready = pin!(above.ready(0..10));
        assert!(poll(ready.as_mut(), &bell).is_pending());
        if polled_before {
            // The turn of this future would come after the turn of the file above.
            assert!(poll(pin!(&mut *store.0.lock()), &bell).is_pending());
        }
        cache.tick();
        let Poll::Ready(Ok(view)) = poll(ready.as_mut(), &bell) else {
            panic!("read by the tick");
        };
        assert_eq!(view[..], pattern(0..10));
        assert_eq!(core(&below).ready.len(), 0);
    }
}

// spec: P16, P29
#[test]
fn a_dropped_future_leaves_nothing() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let file = open(&cache, &patterned(16 * size), &options(size));
        let bell = Arc::new(Bell::default());
        {
            let mut ready = pin!(file.ready(0..10));
            assert!(poll(ready.as_mut(), &bell).is_pending());
            assert_eq!(core(&file).ready.len(), 1);
        }
        assert_eq!(core(&file).ready.len(), 0);
        cache.tick();
        assert_eq!(
            (bell.rung(), file.stats().filled),
            (0, 0),
            "nobody wants it any more"
        );
        drop(file);
        assert_empty(&cache);
    }
}

// spec: N6, P29
#[test]
fn a_future_of_more_bytes_than_any_memory_has_looks_at_few_blocks() {
    let cache = memory(64);
    let store = MemoryStore::new();
    store.set_len(1 << 50).unwrap();
    let file = open(&cache, &Arc::new(store), &options(4096));
    let bell = Arc::new(Bell::default());
    let mut ready = pin!(file.ready(..));
    assert!(poll(ready.as_mut(), &bell).is_pending());
    cache.tick();
    assert!(bell.rung() > 0);
    let Poll::Ready(Err(error)) = poll(ready.as_mut(), &bell) else {
        panic!("it does not fit")
    };
    assert!(matches!(error, FileError::ViewTooLarge { .. }), "{error}");
}

// spec: P16, P29
#[test]
fn try_forms_do_not_wait_for_a_store_that_hangs() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(16 * size);
        let file = open(&cache, &store, &options(size));
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
        let reader = {
            let file = file.clone();
            thread::spawn(move || file.view(0..10).map(|view| view.len()))
        };
        store.wait_hanging(1);
        assert!(file.try_view(0..10).unwrap_err().would_block());
        assert!(file.try_read_at(&mut [0; 4], 0).unwrap_err().would_block());
        assert!(file.try_write_at(&[0; 4], 0).unwrap_err().would_block());
        let bell = Arc::new(Bell::default());
        let mut ready = pin!(file.ready(0..10));
        assert!(poll(ready.as_mut(), &bell).is_pending());
        store.release(Release::Proceed);
        assert_eq!(reader.join().unwrap().unwrap(), 10);
        assert!(bell.rung() >= 1);
        assert!(matches!(poll(ready.as_mut(), &bell), Poll::Ready(Ok(_))));
    }
}

/// A waker that panics.
pub(super) struct Alarm;

impl Wake for Alarm {
    fn wake(self: std::sync::Arc<Self>) {
        panic!("a waker of somebody else's");
    }
}

#[test]
fn a_waker_that_panics_costs_a_closing_file_nothing() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(16 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&[7; 10], 0).unwrap();
        let mut alarmed = pin!(file.ready(8 * size..8 * size + 10));
        let alarm = Waker::from(std::sync::Arc::new(Alarm));
        let polled = alarmed.as_mut().poll(&mut Context::from_waker(&alarm));
        assert!(polled.is_pending());
        let bell = Arc::new(Bell::default());
        let mut ready = pin!(file.ready(9 * size..9 * size + 10));
        assert!(poll(ready.as_mut(), &bell).is_pending());
        let closed = std::panic::AssertUnwindSafe(|| drop(file));
        assert!(std::panic::catch_unwind(closed).is_err());
        assert_eq!(bell.rung(), 1, "behind the one that panicked");
        let mut stored = [0; 10];
        store.inner().read_at(&mut stored, 0).unwrap();
        assert_eq!(stored, [7; 10]);
        assert!(cache.files().is_empty());
        let again = open(&cache, &store, &options(size));
        assert_eq!(again.view(0..10).unwrap()[..], [7; 10]);
    }
}

#[test]
fn a_waker_that_panics_keeps_a_tick_from_no_other() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    let mut alarmed = pin!(file.ready(0..10));
    let alarm = Waker::from(std::sync::Arc::new(Alarm));
    let polled = alarmed.as_mut().poll(&mut Context::from_waker(&alarm));
    assert!(polled.is_pending());
    let bell = Arc::new(Bell::default());
    let mut ready = pin!(file.ready(8192..8200));
    assert!(poll(ready.as_mut(), &bell).is_pending());
    let tick = std::panic::AssertUnwindSafe(|| cache.tick());
    assert!(std::panic::catch_unwind(tick).is_err());
    assert!(matches!(poll(ready.as_mut(), &bell), Poll::Ready(Ok(_))));
}

// spec: P31
#[test]
fn with_ticks_alone_two_runs_do_the_same() {
    let run = || {
        let cache = memory(64);
        let store = patterned(1 << 20);
        let file = open(&cache, &store, &options(4096));
        let bell = Arc::new(Bell::default());
        for round in 0..120u64 {
            let at = round * 7 % 200 * 4096;
            let mut ready = pin!(file.ready(at..at + 100));
            let _ = poll(ready.as_mut(), &bell);
            file.write_at(&[round as u8; 50], round * 13 % 200 * 4096)
                .unwrap();
            cache.tick();
            let _ = poll(ready.as_mut(), &bell);
        }
        cache.validate();
        (store.log(), file.stats(), bell.rung())
    };
    let (first, second) = (run(), run());
    assert!(first == second, "{}\n{}", first.1, second.1);
}
