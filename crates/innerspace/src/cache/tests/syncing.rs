//! Syncs that fail, after the store has accepted what it then lost; syncs at once; syncs of a part.

use super::panicking::{Panicking, Times};
use super::*;
use crate::cache::midway::{self, Point};
use crate::cache::owner::Evicting;
use crate::cache::syncs::NoIo;
use crate::cache::writeback::LockMode;
use crate::cache::{FileError, StoreAction};
use crate::frame::FlagSet;
use crate::reclaim::Owner;
use crate::store::SyncWhat;
use crate::store::faulty::{Failure, Fault, OperationKind, Release, Rule};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread;
use crate::units::MIB;

/// The store takes the next `writes` writes, and drops them.
fn lose(store: &Faulty, writes: u64) {
    let rule = Rule::new(Fault::Lose).on(&[OperationKind::Write]);
    store.add(rule.times(writes));
}

fn fail_sync() -> Rule {
    Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::Sync])
}

fn count(store: &Faulty, kind: OperationKind) -> usize {
    let log = store.log();
    log.iter().filter(|record| record.kind == kind).count()
}

fn is_failed_sync(error: &FileError) -> bool {
    matches!(
        error,
        FileError::Store {
            action: StoreAction::Sync,
            ..
        }
    )
}

/// A file of four blocks, a hundred bytes of the second written.
fn written(size: u64) -> (Arc<Cache>, Arc<Faulty>, PagedFile) {
    let cache = memory_of(64, size);
    let store = patterned(4 * size);
    let file = open(&cache, &store, &options(size));
    file.write_at(&[1; 100], size).unwrap();
    (cache, store, file)
}

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
        core(&file).validate();
        file.sync_all().unwrap();
        let stored = store.inner().to_vec();
        assert_eq!((stored[0], stored[2 * size as usize]), (1, 2));
        // What a good sync has covered is in doubt no more.
        file.write_at(&[3; 100], 0).unwrap();
        lose(&store, 1);
        store.add(fail_sync());
        file.sync_data().unwrap_err();
        assert_eq!(core(&file).dirty_blocks(), 1);
        file.sync_data().unwrap();
        assert_eq!(store.inner().to_vec()[0], 3);
        core(&file).validate();
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
    // Five times the memory goes by.
    other.scan(.., |_| {}).unwrap();
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
        core(&file).sync_store(SyncWhat::All).unwrap();
        store.release(Release::Proceed);
        flush.join().unwrap();
        assert_eq!(core(&file).dirty_blocks(), 1, "it may be lost");
        core(&file).validate();
        let error = file.sync_all().unwrap_err();
        assert!(is_failed_sync(&error), "{error}");
        file.sync_all().unwrap();
        assert_eq!(count(&store, OperationKind::Write), 2);
        assert_eq!(core(&file).dirty_blocks(), 0);
    }
}

// spec: P18
#[test]
fn a_sync_that_waited_for_one_that_failed_hears_of_it() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Sync]));
        let (send, waits) = std::sync::mpsc::channel::<thread::JoinHandle<_>>();
        let failing = {
            let core = core(&file).clone();
            thread::spawn(move || {
                let there = midway::then(Point::SyncFailed, move || {
                    let end: Result<(), FileError> = waits.recv().unwrap().join().unwrap();
                    let error = end.expect_err("what it has written is lost");
                    assert!(is_failed_sync(&error), "{error}");
                });
                core.sync_store(SyncWhat::All).unwrap();
                drop(there);
            })
        };
        store.wait_hanging(1);
        file.write_at(&[1; 100], size).unwrap();
        lose(&store, 1);
        let waiting = {
            let file = file.clone();
            thread::spawn(move || file.sync_all())
        };
        while core(&file).syncs.waiting() < 1 {
            thread::yield_now();
        }
        send.send(waiting).unwrap();
        store.release(Release::Fail(Failure::Io));
        failing.join().unwrap();
        assert_eq!(core(&file).dirty_blocks(), 1, "dirty again");
        let _ = file.sync_all();
        assert_eq!(store.inner().to_vec()[size as usize], 1);
        core(&file).validate();
    }
}

// spec: P18
#[test]
fn a_store_that_panics_has_failed() {
    for (writes, syncs) in [(1, 0), (0, 1)] {
        let cache = memory(64);
        let faulty = patterned(4 * 4096);
        let times = Times {
            writes,
            syncs,
            ..Times::default()
        };
        let store = Panicking::new(&faulty, times);
        let file = open(&cache, &store, &options(4096));
        let (other, later) = (file.clone(), file.clone());
        file.write_at(&[1; 100], 4096).unwrap();
        if syncs > 0 {
            lose(&faulty, 1);
        }
        let sync = std::panic::AssertUnwindSafe(|| file.sync_all());
        std::panic::catch_unwind(sync).unwrap_err();
        core(&file).validate();
        assert_eq!(file.evict(..).unwrap().0, 0, "{times:?}: the only copy");
        // Whoever waited for that write or that sync has nothing to rely on.
        let error = other.sync_all().unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        let _ = later.sync_all();
        later.sync_all().unwrap();
        assert_eq!(faulty.inner().to_vec()[4096], 1);
        core(&file).validate();
    }
}

#[test]
fn a_cut_that_panics_has_changed_the_store() {
    let cache = memory(64);
    let times = Times {
        cuts: 1,
        ..Times::default()
    };
    let file = open(
        &cache,
        &Panicking::new(&patterned(2 * 4096), times),
        &options(4096),
    );
    file.sync_all().unwrap();
    file.try_sync_all().unwrap();
    let cut = std::panic::AssertUnwindSafe(|| file.set_len(4096));
    std::panic::catch_unwind(cut).unwrap_err();
    let error = file.try_sync_all().unwrap_err();
    assert!(matches!(error, FileError::WouldBlock { .. }), "{error}");
    file.sync_all().unwrap();
    file.try_sync_all().unwrap();
}

/// A file with one block that the store has lost, and that is in doubt.
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
    core(&file).validate();
    // Another sync has failed, and what it leaves in doubt is not dirty yet.
    file.write_at(&[2; 100], 4096).unwrap();
    core(&file).flush(&EVERYTHING);
    faulty.add(fail_sync());
    let there = midway::then(Point::SyncFailed, {
        let file = file.clone();
        move || assert_eq!(file.invalidate(..).unwrap().0, 0)
    });
    core(&file).sync_store(SyncWhat::All).unwrap();
    drop(there);
    assert_eq!(core(&file).dirty_blocks(), 1);
    core(&file).validate();
}

// spec: P18
#[test]
fn an_invalidation_keeps_what_a_sync_for_eviction_has_left_in_doubt() {
    for size in SIZES {
        let (_cache, store, file) = written(size);
        lose(&store, 1);
        core(&file).flush(&EVERYTHING);
        store.add(fail_sync());
        // The sync waits for nobody's lock: the block stays as it is.
        let locked = core(&file).find_lock(1).unwrap().unwrap();
        core(&file).sync_before_eviction(&[locked.frame()]);
        drop(locked);
        assert_eq!(store.inner().to_vec()[size as usize], byte_at(size), "lost");
        assert_eq!(core(&file).dirty_blocks(), 0);
        assert_eq!(file.invalidate(..).unwrap().0, 0);
        assert_eq!(file.view(size..size + 100).unwrap()[..], [1; 100]);
        assert_eq!(core(&file).dirty_blocks(), 1, "it is to be written");
        core(&file).validate();
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
        core(&file).validate();
    }
}

// spec: P18
#[test]
fn doubt_that_somebody_else_has_ended_makes_nothing_dirty() {
    let cache = memory(64);
    let faulty = patterned(4 * 4096);
    let file = doubted_file(&cache, &faulty);
    let there = midway::then(Point::DoubtListed, {
        let file = file.clone();
        move || {
            let _ = file.sync_all();
        }
    });
    core(&file).take_doubted_back(LockMode::Sleep);
    drop(there);
    assert_eq!(faulty.inner().to_vec()[4096], 1);
    assert_eq!(core(&file).dirty_blocks(), 0, "written, and synced");
    core(&file).validate();
}

#[test]
fn a_sync_on_the_way_makes_room() {
    let cache = memory(64);
    let (store, other_store) = (patterned(1 << 20), patterned(1 << 20));
    let file = open(&cache, &store, &options(4096));
    let other = open(&cache, &other_store, &options(4096));
    for page in 0..200u64 {
        file.write_at(&[page as u8; 4096], page * 4096).unwrap();
    }
    core(&file).flush(&EVERYTHING);
    other.scan(.., |_| {}).unwrap();
    // Read-ahead may not call a store; it has asked for the sync that it met the need of.
    cache.tick();
    other.scan(.., |_| {}).unwrap();
    assert!(file.stats().cached.0 == 0, "{}", file.stats());
    let syncs = count(&store, OperationKind::Sync);
    assert!(
        (1..20).contains(&syncs),
        "{syncs} syncs, each for all that came before"
    );
    for page in 0..200u64 {
        assert_eq!(
            file.view(page * 4096..page * 4096 + 1).unwrap()[..],
            [page as u8]
        );
    }
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
        // Cut off, punched, given up: not written again.
        doubt(1);
        file.set_len(3 * size).unwrap();
        file.punch(size..2 * size).unwrap();
        store.add(fail_sync());
        file.sync_all().unwrap_err();
        assert_eq!(core(&file).dirty_blocks(), 2);
        file.discard().unwrap();
        core(&file).validate();
        let mut expected = pattern(0..3 * size);
        expected[size as usize..2 * size as usize].fill(0);
        assert_eq!(contents(&file), expected, "as the store has it");
        file.sync_all().unwrap();
        assert_eq!(store.inner().to_vec(), expected);
        // Invalidated: it is synced first, and stays if that fails.
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

// spec: P16
#[test]
fn who_comes_during_a_sync_takes_part_in_the_next() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(8 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&vec![1; size as usize], 0).unwrap();
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Sync]));
        let sync = |what: SyncWhat| {
            let core = core(&file).clone();
            thread::spawn(move || core.sync_store(what))
        };
        let mut syncs = vec![sync(SyncWhat::All)];
        store.wait_hanging(1);
        syncs.extend([SyncWhat::Data, SyncWhat::All, SyncWhat::Data].map(sync));
        while core(&file).syncs.waiting() < 3 {
            thread::yield_now();
        }
        store.release(Release::Proceed);
        syncs
            .into_iter()
            .for_each(|sync| sync.join().unwrap().unwrap());
        // The one that hung, and one or two for the three that came too late for it: one of Data does not do for All.
        let syncs = count(&store, OperationKind::Sync);
        assert!((2..=3).contains(&syncs), "{syncs} syncs");
    }
}

// spec: P16
#[test]
fn a_sync_of_a_range_does_not_wait_for_other_blocks() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(8 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&vec![1; size as usize], 0).unwrap();
        file.write_at(&vec![2; size as usize], 4 * size).unwrap();
        store.add(
            Rule::new(Fault::Hang)
                .on(&[OperationKind::Write])
                .within(0..size),
        );
        let other = {
            let file = file.clone();
            thread::spawn(move || file.sync_range(0..size))
        };
        store.wait_hanging(1);
        file.sync_range(4 * size..5 * size).unwrap();
        assert_eq!(store.hanging(), 1, "the other write is under way still");
        assert_eq!(store.inner().to_vec()[4 * size as usize], 2);
        store.release(Release::Proceed);
        other.join().unwrap().unwrap();
        assert_eq!(store.inner().to_vec()[0], 1);
    }
}

#[test]
fn one_write_of_a_sync_is_a_small_part_of_the_nearest_limit() {
    let cache = memory(40_000);
    for (limit, run) in [(8, 1), (16, 1), (48, 3), (64, 4), (128, 4)] {
        let group = cache.root_group().child("outer", limit * MIB).unwrap();
        let larger = group.child("larger", 1 << 30).unwrap();
        let inner = larger.child_unlimited("inner").unwrap();
        let options = options(4096)
            .group(&inner)
            .write_order(crate::cache::WriteOrder::OnSync);
        let store = patterned(0);
        let file = open(&cache, &store, &options);
        let len = (limit * MIB / 2).min(12 * MIB);
        file.write_at(&vec![7; len as usize], 0).unwrap();
        file.sync_all().unwrap();
        assert!(store.inner().to_vec() == vec![7; len as usize]);
        let writes = file.stats().store_writes;
        assert_eq!(writes, len.div_ceil(run * MIB), "limit of {limit} MiB");
        drop((file, options, inner, larger, group));
    }
    assert_empty(&cache);
}

#[test]
fn a_sync_leaves_what_is_appended_meanwhile() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&[2; 10], 0).unwrap();
        let there = midway::then(Point::Beginning, {
            let file = file.clone();
            move || {
                let appender = thread::spawn(move || file.append(&vec![3; size as usize]));
                appender.join().unwrap().unwrap();
            }
        });
        file.sync_all().unwrap();
        drop(there);
        assert_eq!(
            core(&file).dirty_blocks(),
            1,
            "appended as fast as it is written"
        );
        file.sync_all().unwrap();
        assert_eq!(core(&file).dirty_blocks(), 0);
        assert_eq!(file.len(), 2 * size);
    }
}

// spec: P16, P18
#[test]
fn a_sync_waits_for_the_writes_of_others() {
    for size in SIZES {
        let (_cache, store, file) = written(size);
        let flush = hanging_flush(core(&file), &store);
        let passed = Arc::new(AtomicBool::new(false));
        let own = midway::then(Point::OwnWritten, {
            let (store, passed) = (store.clone(), passed.clone());
            move || {
                // For a sync that does not wait, there is time to show it.
                thread::spawn(move || {
                    for _ in 0..1000 {
                        if passed.load(Ordering::Acquire) {
                            break;
                        }
                        thread::yield_now();
                    }
                    store.release(Release::Proceed);
                });
            }
        });
        let others = midway::then(Point::OthersWritten, {
            let core = core(&file).clone();
            move || {
                passed.store(true, Ordering::Release);
                assert!(!core.is_writing(), "the store would sync without it");
            }
        });
        file.sync_all().unwrap();
        drop((own, others));
        flush.join().unwrap();
        let log = store.log();
        let kinds = log.iter().map(|record| record.kind);
        let calls = kinds.filter(|kind| *kind != OperationKind::Len);
        let calls: Vec<_> = calls.collect();
        assert!(
            calls.ends_with(&[OperationKind::Write, OperationKind::Sync]),
            "{calls:?}"
        );
    }
}

// spec: P18, P24
#[test]
fn a_sync_does_not_cover_what_was_written_after_it_began() {
    for size in SIZES {
        let (_cache, store, file) = written(size);
        core(&file).flush(&EVERYTHING);
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Sync]));
        let syncer = {
            let core = core(&file).clone();
            thread::spawn(move || core.sync_store(SyncWhat::All))
        };
        store.wait_hanging(1);
        file.write_at(&[2; 100], 2 * size).unwrap();
        lose(&store, 1);
        core(&file).flush(&EVERYTHING);
        store.release(Release::Proceed);
        syncer.join().unwrap().unwrap();
        let pages = PageCount(size / PAGE as u64);
        assert_eq!(file.evict(size..2 * size).unwrap(), pages, "it is covered");
        assert_eq!(
            core(&file).evict_range(2..3, Evicting::All).0,
            0,
            "the only copy of what the store may lose"
        );
        store.add(fail_sync());
        file.sync_all().unwrap_err();
        assert_eq!(core(&file).dirty_blocks(), 1, "lost, and dirty again");
        let _ = file.sync_all();
        assert_eq!(store.inner().to_vec()[2 * size as usize], 2);
        core(&file).validate();
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
    core(&file).validate();
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
    // Its bytes were in the store before, under a number that is released.
    file.sync_all().unwrap();
    assert_eq!(store.inner().to_vec()[4096], 1);
    core(&file).validate();
}

#[test]
fn who_may_do_no_io_asks_for_a_sync_before_it_evicts() {
    let (cache, store, file) = written(4096);
    core(&file).flush(&EVERYTHING);
    let frame = core(&file).lookup(1).unwrap().frame;
    let no_io = NoIo::begin();
    core(&file).sync_before_eviction(&[frame]);
    assert_eq!(count(&store, OperationKind::Sync), 0);
    drop(no_io);
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
    assert_eq!(core(&file).flush(&EVERYTHING).written.0, 1);
    assert_eq!(faulty.inner().to_vec()[4096], 1);
    core(&file).validate();
}

// spec: P25
#[test]
fn what_is_held_back_counts_against_the_limit_of_the_nearest_group_above() {
    let cache = memory(1024);
    let outer = cache.root_group().child("outer", 64 * 4096).unwrap();
    let inner = outer.child_unlimited("inner").unwrap();
    let on_sync = options(4096)
        .group(&inner)
        .write_order(crate::cache::WriteOrder::OnSync);
    let file = open(&cache, &patterned(0), &on_sync);
    let refused = (0..64u64).map(|page| (page, file.write_at(&[1; 4096], page * 4096)));
    let refused = refused.filter_map(|(page, written)| Some((page, written.err()?)));
    let (page, error) = { refused }.next().expect("the group is full");
    assert!(matches!(error, FileError::Held { .. }), "{error}");
    assert!((20..40).contains(&page), "about half of 64 pages: {page}");
}
