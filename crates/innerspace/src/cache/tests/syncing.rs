//! Concurrent syncs, syncs that fail, and syncs of a part of a file. Blocks in doubt after a failed
//! sync: [`doubt`](super::doubt).

use std::sync::mpsc;

use super::panicking::{Panicking, Times};
use super::*;
use crate::cache::core::validate::validate;
use crate::cache::dirty::index::WriteReason;
use crate::cache::dirty::marks::rules;
use crate::cache::dirty::sync::sync_store;
use crate::cache::dirty::sync_file::wait_written;
use crate::cache::lookup::get::Get;
use crate::cache::map::evict::Evicting;
use crate::cache::read::fill::Miss;
use crate::cache::read::read_ahead::Stream;
use crate::cache::{FileError, StoreAction};
use crate::reclaim::{AllocMode, Owner};
use crate::store::SyncWhat;
use crate::store::faulty::{Failure, Fault, OperationKind, Release, Rule};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{failpoint, thread};
use crate::units::MIB;

/// Has the store take the next `writes` writes, and drop them.
pub(super) fn lose(store: &Faulty, writes: u64) {
    let rule = Rule::new(Fault::Lose).on(&[OperationKind::Write]);
    store.add(rule.times(writes));
}

pub(super) fn fail_sync() -> Rule {
    Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::Sync])
}

pub(super) fn count(store: &Faulty, kind: OperationKind) -> usize {
    let log = store.log();
    log.iter().filter(|record| record.kind == kind).count()
}

pub(super) fn is_failed_sync(error: &FileError) -> bool {
    matches!(
        error,
        FileError::Store {
            action: StoreAction::Sync,
            ..
        }
    )
}

/// Creates a file of four blocks, with a hundred unwritten bytes in the second.
pub(super) fn written(size: u64) -> (Arc<Cache>, Arc<Faulty>, PagedFile) {
    let cache = memory_of(64, size);
    let store = patterned(4 * size);
    let file = open(&cache, &store, &options(size));
    file.write_at(&[1; 100], size).unwrap();
    (cache, store, file)
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
                let there = failpoint::on("SyncFailed", move || {
                    let end: Result<(), FileError> = waits.recv().unwrap().join().unwrap();
                    let error = end.expect_err("what it has written is lost");
                    assert!(is_failed_sync(&error), "{error}");
                });
                sync_store(&core, SyncWhat::All).unwrap();
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
        while core(&file).writes.syncs.waiting() < 1 {
            thread::yield_now();
        }
        send.send(waiting).unwrap();
        store.release(Release::Fail(Failure::Io));
        failing.join().unwrap();
        assert_eq!(core(&file).dirty_blocks(), 1, "dirty again");
        let _ = file.sync_all();
        assert_eq!(store.inner().to_vec()[size as usize], 1);
        validate(core(&file));
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
        validate(core(&file));
        assert_eq!(file.evict(..).unwrap().0, 0, "{times:?}: the only copy");
        // A caller that waited for that write or sync cannot rely on it.
        let error = other.sync_all().unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        let _ = later.sync_all();
        later.sync_all().unwrap();
        assert_eq!(faulty.inner().to_vec()[4096], 1);
        validate(core(&file));
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
    // Read-ahead may not call a store, so it has requested a sync that it needs.
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

// spec: P16, R18
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
            thread::spawn(move || sync_store(&core, what))
        };
        let mut syncs = vec![sync(SyncWhat::All)];
        store.wait_hanging(1);
        syncs.extend([SyncWhat::Data, SyncWhat::All, SyncWhat::Data].map(sync));
        while core(&file).writes.syncs.waiting() < 3 {
            let ended = count(&store, OperationKind::Sync);
            assert!(ended <= 1, "{ended} syncs beside the one that hangs");
            thread::yield_now();
        }
        store.release(Release::Proceed);
        syncs
            .into_iter()
            .for_each(|sync| sync.join().unwrap().unwrap());
        // The syncs are the one that hung, and one or two for the three callers that came too late
        // for it: a sync of Data is not enough for All.
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
        let group = cache.root.create_child("outer", limit * MIB).unwrap();
        let larger = group.create_child("larger", 1 << 30).unwrap();
        let inner = larger.create_child_unlimited("inner").unwrap();
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
        let there = failpoint::on("WriteBeginning", {
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

// spec: P16, P18, R18
#[test]
fn a_sync_waits_for_the_writes_of_others() {
    for size in SIZES {
        let (_cache, store, file) = written(size);
        let flush = hanging_flush(core(&file), &store);
        let passed = Arc::new(AtomicBool::new(false));
        let own = failpoint::on("OwnWritten", {
            let (store, passed) = (store.clone(), passed.clone());
            move || {
                // This gives a wrong sync, one that does not wait, time to become visible.
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
        let others = failpoint::on("OthersWritten", {
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

#[test]
fn a_sync_waits_for_no_write_that_began_after_it() {
    let (_cache, store, file) = written(4096);
    let flush = hanging_flush(core(&file), &store);
    let (tell, told) = mpsc::channel();
    let waiting = {
        let core = core(&file).clone();
        thread::spawn(move || {
            let there = failpoint::on("Awaiting", move || {
                tell.send(()).unwrap();
                // The sync may check again, and must then still wait.
                std::mem::forget(failpoint::on("Awaiting", move || tell.send(()).unwrap()));
            });
            std::mem::forget(there);
            wait_written(&core, 0..u64::MAX);
        })
    };
    told.recv().unwrap();
    file.write_at(&[2; 100], 2 * 4096).unwrap();
    let rules = rules(core(&file), WriteReason::Sync);
    let begun = core(&file).dirty().begin_write_if(2..3, &rules);
    store.release(Release::Proceed);
    flush.join().unwrap();
    let mut waits = false;
    while !waiting.is_finished() && !waits {
        waits = told.try_recv().is_ok();
        thread::yield_now();
    }
    let mut dirty = core(&file).dirty();
    dirty.end_write(2..3);
    dirty.insert(2, begun.expect("it was dirty").1);
    drop(dirty);
    core(&file).writes.write_ended.notify_all();
    waiting.join().unwrap();
    assert!(!waits, "it waits for the one that began since");
    file.sync_all().unwrap();
    validate(core(&file));
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
            thread::spawn(move || sync_store(&core, SyncWhat::All))
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
        validate(core(&file));
    }
}

// spec: P25
#[test]
fn what_is_held_back_counts_against_the_limit_of_the_nearest_group_above() {
    let cache = memory(1024);
    let outer = cache.root.create_child("outer", 64 * 4096).unwrap();
    let inner = outer.create_child_unlimited("inner").unwrap();
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

#[test]
fn what_is_read_ahead_makes_no_room_by_a_sync() {
    let (cache, store, file) = written(4096);
    core(&file).flush(&EVERYTHING);
    let other = open(
        &cache,
        &patterned(16 * 4096),
        &options(4096).name("other.bin"),
    );
    // The index node of this file exists, and its data ranges are known.
    other.view(15 * 4096..16 * 4096).unwrap();
    let pool = &cache.pool;
    let group = pool.root_group();
    let mut taken = Vec::new();
    while let Ok(frame) = pool.alloc(group.id(), 0, AllocMode::NoWait) {
        taken.push(frame);
    }
    drop(taken.pop());
    let stream = Stream::default();
    let fill = || {
        let steady = core(&other).locks.shared();
        let miss = Miss::of(&stream).wanting(5);
        core(&other).fill_absent(1, Get::NONE, &steady, miss, drop)
    };
    fill().unwrap();
    assert!(core(&other).lookup(1).is_some());
    assert_eq!(count(&store, OperationKind::Sync), 0, "with blocks locked");
    drop(taken);
    cache.tick();
    assert_eq!(count(&store, OperationKind::Sync), 1, "it was asked for");
}

// spec: R18, R19
#[test]
fn a_sync_has_several_runs_in_flight_and_wait_for_all() {
    let cache = memory(16_384);
    cache.workers.begin_threads();
    let store = patterned(0);
    let order = crate::cache::WriteOrder::OnSync;
    let file = open(&cache, &store, &options(4096).write_order(order));
    file.write_at(&vec![7; 16 << 20], 0).unwrap();
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]).times(2));
    let sync = {
        let file = file.clone();
        thread::spawn(move || file.sync_all())
    };
    store.wait_hanging(2);
    assert_eq!(count(&store, OperationKind::Sync), 0, "not all is written");
    store.release(Release::Proceed);
    sync.join().unwrap().unwrap();
    let writes = file.stats().store_writes;
    assert!((4..=5).contains(&writes), "{writes} runs of 4 MiB");
    assert_eq!(count(&store, OperationKind::Sync), 1);
    assert!(store.inner().to_vec() == vec![7; 16 << 20]);
    assert_eq!(core(&file).dirty_blocks(), 0);
}

// spec: R18
#[test]
fn a_run_that_fails_beside_others_fails_the_sync_and_stays_dirty() {
    let cache = memory(16_384);
    cache.workers.begin_threads();
    let store = patterned(0);
    let order = crate::cache::WriteOrder::OnSync;
    let file = open(&cache, &store, &options(4096).write_order(order));
    file.write_at(&vec![7; 16 << 20], 0).unwrap();
    let bad = Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::Write]);
    store.add(bad.within(9 * MIB..9 * MIB + 4096).forever());
    let error = file.sync_all().unwrap_err();
    assert!(error.to_string().contains("9,437,184"), "{error}");
    assert_eq!(core(&file).dirty_blocks(), 1, "its neighbours are written");
    store.heal();
    file.sync_all().unwrap();
    assert!(store.inner().to_vec() == vec![7; 16 << 20]);
}
