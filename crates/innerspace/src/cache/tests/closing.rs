//! Drops of the last handle: which blocks are written then, and which are lost.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::panicking::{Panicking, Times};
use super::*;
use crate::cache::FileError;
use crate::cache::core::validate::validate;
use crate::group::GroupId;
use crate::reclaim::Owner;
use crate::store::faulty::{Failure, Fault, OperationKind, Release, Rule};
use crate::sync::{Mutex, failpoint, thread};

// spec: P16, P30
#[test]
fn the_last_drop_writes_and_a_failure_then_is_kept() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        let clone = file.clone();
        file.write_at(&[1; 100], 0).unwrap();
        drop(file);
        assert_eq!(
            store.inner().to_vec(),
            pattern(0..2 * size),
            "a handle is left"
        );
        drop(clone);
        assert_eq!(store.inner().to_vec()[..100], [1; 100]);
        let file = open(&cache, &store, &options(size));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hear = heard.clone();
        cache.set_error_hook(std::sync::Arc::new(move |error: &FileError| {
            hear.lock().push(error.to_string());
        }));
        file.write_at(&[2; 100], size).unwrap();
        store.add(fail(OperationKind::Write).forever());
        drop(file);
        assert!(heard.lock().is_empty(), "not in the thread that drops");
        cache.tick();
        let errors = cache.take_errors();
        assert_eq!(*heard.lock(), [errors[0].to_string()]);
        assert_eq!(errors.len(), 1);
        assert!(
            matches!(errors[0], FileError::Store { offset, .. } if offset == size),
            "{}",
            errors[0]
        );
        assert_empty(&cache);
    }
}

#[test]
fn a_file_that_loses_several_blocks_says_so_once() {
    let lost = |failing: &[u64]| {
        let cache = memory(64);
        let store = patterned(9 * 4096);
        let file = open(&cache, &store, &options(4096));
        for block in [1, 3, 5, 7] {
            file.write_at(&[2; 100], block * 4096).unwrap();
        }
        for block in failing {
            let rule = fail(OperationKind::Write).within(block * 4096..(block + 1) * 4096);
            store.add(rule.forever());
        }
        drop(file);
        assert_empty(&cache);
        let offset = |error: &FileError| match error {
            FileError::Store { offset, .. } => offset / 4096,
            other => panic!("{other}"),
        };
        cache.take_errors().iter().map(offset).collect::<Vec<_>>()
    };
    assert!(lost(&[]).is_empty());
    // This does the same, but a write of later blocks succeeds.
    assert_eq!(lost(&[1]), [1]);
    assert_eq!(lost(&[1, 3, 5]), [5]);
    assert_eq!(lost(&[1, 3, 5, 7]), [7]);
}

// spec: P30
#[test]
fn of_losses_that_nobody_hears_of_the_oldest_are_counted() {
    let cache = memory(64);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hear = heard.clone();
    cache.set_error_hook(std::sync::Arc::new(move |error: &FileError| {
        hear.lock().push(error.to_string());
    }));
    let lose = |count| {
        for offset in 0..count {
            let store = patterned(100_000);
            store.add(fail(OperationKind::Write).forever());
            let file = open(&cache, &store, &options(4096));
            file.write_at(&[2; 1], offset).unwrap();
            drop(file);
        }
    };
    let counted = || {
        let totals = cache.pool.totals();
        (totals.error_untaken, totals.error_untold)
    };
    lose(64);
    assert_eq!(counted(), (0, 0));
    lose(3);
    assert_eq!(counted(), (3, 3));
    cache.tick();
    assert_eq!(heard.lock().len(), 64);
    lose(2);
    assert_eq!(counted(), (5, 3));
    let errors = cache.take_errors();
    assert_eq!(errors.len(), 64);
    cache.tick();
    let heard = heard.lock();
    assert_eq!(heard.len(), 66);
    assert!(
        errors
            .iter()
            .map(ToString::to_string)
            .eq(heard[2..].iter().cloned())
    );
}

/// Begins a write in the background, which hangs. The returned closure makes the write fail, and
/// waits for its end.
fn hanging_write(core: &Arc<FileCore>, store: &Arc<Faulty>) -> impl FnOnce() + 'static {
    let flush = hanging_flush(core, store);
    let store = store.clone();
    move || {
        store.release(Release::Fail(Failure::Io));
        flush.join().unwrap();
    }
}

/// Begins a write in the background, which fails when this thread is about to wait for it.
/// `meanwhile` is called after that.
fn beside_a_failing_write(
    file: &PagedFile,
    store: &Arc<Faulty>,
    meanwhile: impl FnOnce() + 'static,
) -> failpoint::Armed {
    file.write_at(&[1; 100], 0).unwrap();
    let failed = hanging_write(core(file), store);
    failpoint::on("OwnWritten", move || {
        failed();
        meanwhile();
    })
}

// spec: P16
#[test]
fn the_last_drop_tries_again_what_others_failed_to_write() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        let there = beside_a_failing_write(&file, &store, || {});
        drop(file);
        drop(there);
        assert_eq!(store.inner().to_vec()[..100], [1; 100]);
        assert!(cache.take_errors().is_empty(), "nothing is lost");
        assert_empty(&cache);
    }
}

// spec: P16, P30
#[test]
fn the_last_drop_outlasts_the_failures_of_others() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        let others = core(&file).clone();
        let again = Rc::new(RefCell::new(None));
        let there = beside_a_failing_write(&file, &store, || {});
        // The close is about to try again, but another thread writes, and fails again.
        let begun = failpoint::on("OthersWritten", {
            let (store, others, again) = (store.clone(), others.clone(), again.clone());
            move || {
                let write = hanging_write(&others, &store);
                *again.borrow_mut() = Some(failpoint::on("OwnWritten", write));
            }
        });
        let last = failpoint::on("Closing", move || {
            assert_eq!(others.dirty_blocks(), 1);
            // The close must not rely on these attempts.
            let failures = others.writes.errors.count();
            for _ in 0..3 {
                assert_eq!(others.flush(&EVERYTHING).0, 0);
            }
            assert_eq!(others.writes.errors.count(), failures, "none is tried");
        });
        drop(file);
        drop((there, begun, again.take(), last));
        assert_eq!(store.inner().to_vec()[..100], [1; 100]);
        assert!(cache.take_errors().is_empty(), "nothing is lost");
        assert_empty(&cache);
    }
}

// spec: P16, P18
#[test]
fn a_sync_tries_again_what_others_failed_to_write() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        let there = beside_a_failing_write(&file, &store, {
            let (file, store) = (file.clone(), store.clone());
            move || {
                store.add(fail(OperationKind::Write));
                file.sync_all().unwrap_err();
                assert_eq!(core(&file).dirty_blocks(), 1);
            }
        });
        let _ = file.sync_all();
        drop(there);
        assert_eq!(core(&file).dirty_blocks(), 0);
        assert_eq!(store.inner().to_vec()[..100], [1; 100]);
        validate(core(&file));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_not_closed_and_keeps_its_data() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        let clone = file.clone();
        file.write_at(&[1; 100], 0).unwrap();
        clone.close().unwrap();
        assert_eq!(store.inner().to_vec()[..100], [1; 100], "a handle is left");
        file.write_at(&[2; 100], size).unwrap();
        store.add(fail(OperationKind::Write).forever());
        let refused = file.close().unwrap_err();
        assert!(refused.error().to_string().contains("write"), "{refused}");
        let file = refused.into_file();
        assert_eq!(file.view(size..size + 1).unwrap()[..], [2]);
        store.heal();
        file.close().unwrap();
        assert_eq!(store.inner().to_vec()[size as usize..][..100], [2; 100]);
        assert!(cache.take_errors().is_empty());
    }
}

// spec: P16, P27
#[test]
fn a_file_that_is_being_closed_is_waited_for_and_then_opened_afresh() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let identity = store.identity().expect("a memory store knows itself");
        let file = open(&cache, &store, &options(size));
        file.write_at(&[1; 100], 0).unwrap();
        let view = file.view(0..100).unwrap();
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
        let closer = thread::spawn(move || drop(file));
        store.wait_hanging(1);
        let opener = {
            let (cache, store) = (cache.clone(), store.clone());
            thread::spawn(move || {
                cache.wait_closed(identity);
                open(&cache, &store, &options(size))
                    .view(0..100)
                    .unwrap()
                    .to_vec()
            })
        };
        store.release(Release::Proceed);
        assert_eq!(
            opener.join().unwrap(),
            [1; 100],
            "what the old file wrote last"
        );
        closer.join().unwrap();
        cache.wait_closed(identity);
        assert_eq!(
            Arc::strong_count(&store),
            1,
            "a view keeps the memory, not the store"
        );
        assert_eq!(*view, [1; 100]);
        drop(view);
        assert_empty(&cache);
    }
}

/// Creates a file with unwritten bytes over a store that panics in this many writes, and then
/// perhaps when it is dropped.
fn panicking_file(cache: &Arc<Cache>, store: &Arc<Faulty>, writes: u32, drops: u32) -> PagedFile {
    let times = Times {
        writes,
        drops,
        ..Times::default()
    };
    let file = open(cache, &Panicking::new(store, times), &options(4096));
    file.write_at(&[7; 100], 0).unwrap();
    file
}

/// Checks that nothing is left of a file whose store panicked, and that its data was written, or
/// reported as lost.
fn assert_closed(cache: &Cache, store: &Faulty, is_lost: bool) {
    assert!(cache.files().is_empty());
    cache.wait_closed(store.identity().unwrap());
    assert_eq!(cache.dirty_pages(GroupId::ROOT).0, 0);
    let errors = cache.take_errors();
    assert_eq!(errors.len(), usize::from(is_lost), "{errors:?}");
    for error in errors {
        assert!(error.to_string().contains("the store panicked"), "{error}");
    }
    assert_eq!(store.inner().to_vec()[..100] == [7; 100], !is_lost);
}

// spec: P16, P30
#[test]
fn a_store_that_panics_is_closed_nevertheless() {
    for (writes, drops) in [(1, 0), (u32::MAX, 0), (0, 1), (1, 1), (u32::MAX, 1)] {
        let cache = memory(64);
        let store = patterned(4 * 4096);
        let file = panicking_file(&cache, &store, writes, drops);
        let waiting = file.ready(4096..4106);
        let panicked = catch_unwind(AssertUnwindSafe(|| drop(file)));
        assert!(panicked.is_err(), "it goes on when all is done");
        assert_closed(&cache, &store, writes == u32::MAX);
        drop(waiting);
        assert_empty(&cache);
    }
}

// spec: P16, P30
#[test]
fn a_file_is_closed_on_the_way_out_of_a_panic_whatever_its_store_does() {
    for (writes, drops) in [(0, 0), (1, 0), (u32::MAX, 1)] {
        let cache = memory(64);
        let store = patterned(4 * 4096);
        let file = panicking_file(&cache, &store, writes, drops);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _file = file;
            panic!("of the caller's");
        }));
        let panic = panicked.unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"of the caller's"));
        assert_closed(&cache, &store, writes == u32::MAX);
        assert_empty(&cache);
    }
}

// The number of a closed file is not reused as long as a handle can look for blocks by it.
#[test]
fn a_handle_that_outlives_its_file_sees_no_other_file() {
    let ones = Arc::new(MemoryStore::from_bytes(&[1; 4 * 4096]));
    let twos = Arc::new(MemoryStore::from_bytes(&[2; 4 * 4096]));
    let cache = memory(64);
    let file = open(&cache, &ones, &options(4096));
    // A future for a view holds such a handle.
    let handle = file.handle().clone();
    drop(file);
    let other = open(&cache, &twos, &options(4096));
    for _ in 0..2 {
        drop(other.view(0..4096).unwrap());
    }
    let seen = handle.view(0..4096, crate::cache::Wait::No);
    assert!(seen.is_err(), "bytes of another file");
    let seen = handle.read_at(&mut [0], 0, crate::cache::Wait::No);
    assert!(seen.is_err(), "bytes of another file");
    drop((handle, other));
    assert_empty(&cache);
}

// A block that entered a file after it was emptied would stay for ever.
#[test]
fn a_request_that_is_served_beside_a_close_fills_nothing() {
    let cache = memory(64);
    let file = open(&cache, &patterned(4 * 4096), &options(4096));
    file.view(4096..4097).unwrap();
    let mut future = std::pin::pin!(file.ready(0..10));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    let there = failpoint::on("BlocksGone", {
        let cache = cache.clone();
        move || {
            thread::spawn(move || cache.tick()).join().unwrap();
        }
    });
    drop(file);
    drop(there);
    assert!(cache.files().is_empty());
    let std::task::Poll::Ready(Err(error)) = future.as_mut().poll(&mut context) else {
        panic!("the file is closed");
    };
    assert!(matches!(error, FileError::Closed { .. }), "{error}");
}
