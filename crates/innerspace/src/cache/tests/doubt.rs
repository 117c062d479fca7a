//! Blocks that the store has accepted and a failed sync may have dropped.

use super::panicking::{Panicking, Times};
use super::syncing::{count, fail_sync, is_failed_sync, lose, written};
use super::*;
use crate::cache::core::validate::validate;
use crate::cache::dirty::sync::{sync_before_eviction, sync_store, take_doubted_back};
use crate::cache::lookup::get::Get;
use crate::cache::wait::Wait;
use crate::frame::FlagSet;
use crate::group::GroupId;
use crate::reclaim::{AllocMode, Owner};
use crate::store::SyncWhat;
use crate::store::faulty::{OperationKind, Release};
use crate::sync::{failpoint, thread};

// spec: P18
#[test]
fn what_a_failed_sync_may_have_dropped_is_written_again() {
    for size in SIZES {
        let cache = memory(4_096);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&[1; 100], 0).unwrap();
        file.write_at(&[2; 100], 2 * size).unwrap();
        lose(&store, 2);
        store.add(fail_sync());
        let error = file.sync_all().unwrap_err();
        assert!(is_failed_sync(&error), "{error}");
        assert_eq!(
            store.inner().to_vec(),
            pattern(0..4 * size),
            "accepted, and lost"
        );
        assert_eq!(core(&file).dirty_blocks(), 2, "dirty again");
        validate(core(&file));
        file.sync_all().unwrap();
        let stored = store.inner().to_vec();
        assert_eq!((stored[0], stored[2 * size as usize]), (1, 2));
        // A block that a successful sync has covered is no longer in doubt.
        file.write_at(&[3; 100], 0).unwrap();
        lose(&store, 1);
        store.add(fail_sync());
        file.sync_data().unwrap_err();
        assert_eq!(core(&file).dirty_blocks(), 1);
        file.sync_data().unwrap();
        assert_eq!(store.inner().to_vec()[0], 3);
        validate(core(&file));
        drop(file);
        assert_empty(&cache);
    }
}

// spec: P18
#[test]
fn what_no_sync_has_covered_is_not_evicted() {
    let cache = memory(64);
    let (store, other_store) = (patterned(20 * 4096), patterned(1 << 20));
    let file = open(&cache, &store, &options(4096));
    let other = open(&cache, &other_store, &options(4096));
    file.write_at(&[7; 20 * 4096], 0).unwrap();
    lose(&store, u64::MAX);
    core(&file).flush(&EVERYTHING);
    assert_eq!(core(&file).dirty_blocks(), 0, "clean, as the store says");
    assert_eq!(file.evict(..).unwrap().0, 0, "it is the only copy");
    store.add(fail_sync().forever());
    // The scan reads five times as many bytes as the memory holds.
    other.scan(.., |_| {}).unwrap();
    let block = cache.pool.alloc(GroupId::ROOT, 5, AllocMode::Wait);
    drop(block.unwrap());
    assert_eq!(file.stats().cached.0, 20);
    assert_eq!(file.view(..).unwrap()[..], [7; 20 * 4096]);
    cache.validate();
    store.heal();
    assert!(
        is_failed_sync(&file.sync_all().unwrap_err()),
        "what reclaim met"
    );
    assert_eq!(
        store.inner().to_vec(),
        [7; 20 * 4096],
        "and yet it is there now"
    );
    file.sync_all().unwrap();
    assert_eq!(file.evict(..).unwrap().0, 20);
}

// spec: P18
#[test]
fn a_write_on_the_way_while_a_sync_fails_is_in_doubt_too() {
    for size in SIZES {
        let (_cache, store, file) = written(size);
        let flush = hanging_flush(core(&file), &store);
        store.add(fail_sync());
        sync_store(core(&file), SyncWhat::All).unwrap();
        store.release(Release::Proceed);
        flush.join().unwrap();
        assert_eq!(core(&file).dirty_blocks(), 1, "it may be lost");
        validate(core(&file));
        let error = file.sync_all().unwrap_err();
        assert!(is_failed_sync(&error), "{error}");
        file.sync_all().unwrap();
        assert_eq!(count(&store, OperationKind::Write), 2);
        assert_eq!(core(&file).dirty_blocks(), 0);
    }
}

/// Creates a file with one block that the store has lost, and that is in doubt.
fn doubted_file(cache: &Arc<Cache>, faulty: &Arc<Faulty>) -> PagedFile {
    let times = Times {
        syncs: 1,
        ..Times::default()
    };
    let store = Panicking::new(faulty, times);
    let file = open(cache, &store, &options(4096));
    file.write_at(&[1; 100], 4096).unwrap();
    lose(faulty, 1);
    let sync = std::panic::AssertUnwindSafe(|| file.sync_all());
    std::panic::catch_unwind(sync).unwrap_err();
    assert_eq!(core(&file).dirty_blocks(), 0, "nobody has taken it back");
    file
}

// spec: P18
#[test]
fn an_invalidation_keeps_what_is_in_doubt() {
    let cache = memory(64);
    let faulty = patterned(4 * 4096);
    let file = doubted_file(&cache, &faulty);
    assert_eq!(file.invalidate(..).unwrap().0, 0);
    assert_eq!(file.view(4096..4196).unwrap()[..], [1; 100]);
    let _ = file.sync_all();
    assert_eq!(faulty.inner().to_vec()[4096], 1);
    validate(core(&file));
    // Another sync has failed, and the blocks that it leaves in doubt are not dirty yet.
    file.write_at(&[2; 100], 4096).unwrap();
    core(&file).flush(&EVERYTHING);
    faulty.add(fail_sync());
    let there = failpoint::on("SyncFailed", {
        let file = file.clone();
        move || assert_eq!(file.invalidate(..).unwrap().0, 0)
    });
    sync_store(core(&file), SyncWhat::All).unwrap();
    drop(there);
    assert_eq!(core(&file).dirty_blocks(), 1);
    validate(core(&file));
}

// spec: P18
#[test]
fn an_invalidation_keeps_what_a_sync_for_eviction_has_left_in_doubt() {
    for size in SIZES {
        let (_cache, store, file) = written(size);
        lose(&store, 1);
        core(&file).flush(&EVERYTHING);
        store.add(fail_sync());
        // The sync does not wait for the lock, so the block stays in doubt.
        let locked = core(&file).find_lock(1, Get::NONE).unwrap().unwrap();
        sync_before_eviction(core(&file), &[locked.frame()], true);
        drop(locked);
        assert_eq!(store.inner().to_vec()[size as usize], byte_at(size), "lost");
        assert_eq!(core(&file).dirty_blocks(), 0);
        assert_eq!(file.invalidate(..).unwrap().0, 0);
        assert_eq!(file.view(size..size + 100).unwrap()[..], [1; 100]);
        assert_eq!(core(&file).dirty_blocks(), 1, "it is to be written");
        validate(core(&file));
        assert!(is_failed_sync(&file.sync_all().unwrap_err()));
        assert_eq!(store.inner().to_vec()[size as usize], 1);
    }
}

// spec: P18
#[test]
fn an_invalidation_keeps_what_was_written_since_its_sync() {
    for size in SIZES {
        let (_cache, store, file) = written(size);
        let flush = hanging_flush(core(&file), &store);
        let invalidator = {
            let file = file.clone();
            thread::spawn(move || file.invalidate(..))
        };
        {
            let held = core(&file).lookup(1).unwrap();
            while !held.meta().flags.load().contains(FlagSet::WAITERS) {
                thread::yield_now();
            }
        }
        store.release(Release::Proceed);
        flush.join().unwrap();
        assert_eq!(invalidator.join().unwrap().unwrap().0, 0);
        store.add(fail_sync());
        file.sync_all().unwrap_err();
        assert_eq!(core(&file).dirty_blocks(), 1, "it may be lost");
        validate(core(&file));
    }
}

// spec: P18
#[test]
fn doubt_that_somebody_else_has_ended_makes_nothing_dirty() {
    let cache = memory(64);
    let faulty = patterned(4 * 4096);
    let file = doubted_file(&cache, &faulty);
    let there = failpoint::on("DoubtListed", {
        let file = file.clone();
        move || {
            let _ = file.sync_all();
        }
    });
    take_doubted_back(core(&file), Wait::Yes);
    drop(there);
    assert_eq!(faulty.inner().to_vec()[4096], 1);
    assert_eq!(core(&file).dirty_blocks(), 0, "written, and synced");
    validate(core(&file));
}

// spec: P16, P18
#[test]
fn doubt_ends_with_the_block() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(5 * size);
        let file = open(&cache, &store, &options(size));
        let doubt = |byte: u8| {
            file.write_at(&vec![byte; 5 * size as usize], 0).unwrap();
            lose(&store, 5);
            core(&file).flush(&EVERYTHING);
        };
        // Blocks that were cut off, punched or discarded are not written again.
        doubt(1);
        file.set_len(3 * size).unwrap();
        file.punch(size..2 * size).unwrap();
        store.add(fail_sync());
        file.sync_all().unwrap_err();
        assert_eq!(core(&file).dirty_blocks(), 2);
        file.discard().unwrap();
        validate(core(&file));
        let mut expected = pattern(0..3 * size);
        expected[size as usize..2 * size as usize].fill(0);
        assert_eq!(contents(&file), expected, "as the store has it");
        file.sync_all().unwrap();
        assert_eq!(store.inner().to_vec(), expected);
        // An invalidated block is first synced, and stays if that fails.
        doubt(2);
        store.add(fail_sync());
        assert_eq!(file.invalidate(..).unwrap().0, 0);
        assert_eq!(contents(&file), vec![2; 5 * size as usize]);
        drop(file);
        assert_eq!(
            store.inner().to_vec(),
            vec![2; 5 * size as usize],
            "the last drop writes it"
        );
        assert_empty(&cache);
    }
}

// spec: P30
#[test]
fn a_discard_gives_up_what_is_in_doubt() {
    let cache = memory(64);
    let faulty = patterned(4 * 4096);
    let file = doubted_file(&cache, &faulty);
    file.discard().unwrap();
    assert!(
        contents(&file) == pattern(0..4 * 4096),
        "as the store has it"
    );
    let _ = file.sync_all();
    assert!(faulty.inner().to_vec() == pattern(0..4 * 4096));
    validate(core(&file));
}

// spec: P25
#[test]
fn what_a_failed_sync_has_left_in_doubt_is_held_back_by_no_later_barrier() {
    let cache = memory(64);
    let store = patterned(4 * 4096);
    let ordered = options(4096).write_order(crate::cache::WriteOrder::Ordered);
    let file = open(&cache, &store, &ordered);
    file.set_barrier(1);
    file.write_at(&[1; 100], 4096).unwrap();
    file.release_through(1);
    file.set_barrier(9);
    lose(&store, 1);
    store.add(fail_sync());
    file.sync_all().unwrap_err();
    assert_eq!(core(&file).dirty_blocks(), 1, "dirty again");
    // These bytes were in the store before, with a number that is released.
    file.sync_all().unwrap();
    assert_eq!(store.inner().to_vec()[4096], 1);
    validate(core(&file));
}

#[test]
fn who_may_do_no_io_asks_for_a_sync_before_it_evicts() {
    let (cache, store, file) = written(4096);
    core(&file).flush(&EVERYTHING);
    let frame = core(&file).lookup(1).unwrap().frame;
    assert!(!sync_before_eviction(core(&file), &[frame], false));
    assert_eq!(count(&store, OperationKind::Sync), 0);
    cache.tick();
    assert_eq!(count(&store, OperationKind::Sync), 1);
    assert_eq!(file.evict(..).unwrap().0, 1);
}

// spec: P18
#[test]
fn the_flusher_writes_what_is_in_doubt() {
    let cache = memory(64);
    let faulty = patterned(4 * 4096);
    let file = doubted_file(&cache, &faulty);
    assert_eq!(core(&file).flush(&EVERYTHING).0, 1);
    assert_eq!(faulty.inner().to_vec()[4096], 1);
    validate(core(&file));
}
