//! Punched ranges that a failed sync may have brought back.

use super::panicking::{Panicking, Times};
use super::syncing::{count, fail_sync, is_failed_sync};
use super::*;
use crate::cache::core::validate::validate;
use crate::cache::dirty::flush::write_some;
use crate::cache::dirty::sync::sync_store;
use crate::cache::{FileError, StoreAction};
use crate::reclaim::Owner;
use crate::sync::failpoint;

/// Returns a rule: the next sync fails, and writes accepted since the last successful one are gone.
fn forget() -> Rule {
    Rule::new(Fault::Forget(Failure::Io))
}

/// Creates a file of eight blocks of a pattern, in which the punch of the third to the sixth is
/// lost.
fn lost(size: u64) -> (Arc<Cache>, Arc<Faulty>, PagedFile) {
    let cache = memory_of(64, size);
    let store = patterned(8 * size);
    let file = open(&cache, &store, &options(size));
    file.punch(2 * size..6 * size).unwrap();
    store.add(forget());
    assert!(is_failed_sync(&file.sync_all().unwrap_err()));
    assert!(store.inner().to_vec() == pattern(0..8 * size), "forgotten");
    (cache, store, file)
}

fn punched(size: u64) -> Vec<u8> {
    let mut bytes = pattern(0..8 * size);
    bytes[2 * size as usize..6 * size as usize].fill(0);
    bytes
}

// spec: P16, P18
#[test]
fn what_a_failed_sync_has_brought_back_is_punched_again() {
    for size in SIZES {
        let (cache, store, file) = lost(size);
        assert!(contents(&file) == punched(size), "it is never read");
        assert!(file.try_sync_all().unwrap_err().would_block());
        validate(core(&file));
        file.sync_all().unwrap();
        assert!(store.inner().to_vec() == punched(size));
        assert_eq!(store.unsynced_sectors(), 0);
        file.try_sync_all().unwrap();
        file.sync_all().unwrap();
        assert_eq!(count(&store, OperationKind::Punch), 2, "and no more");
        drop(file);
        assert_empty(&cache);
    }
}

// spec: P18
#[test]
fn zeros_that_were_written_for_a_punch_are_written_again() {
    let cache = memory(64);
    let faulty = patterned(8 * 4096);
    // This store has no punch of its own.
    let store = Panicking::new(&faulty, Times::default());
    let file = open(&cache, &store, &options(4096));
    file.punch(2 * 4096..6 * 4096).unwrap();
    faulty.add(forget());
    file.sync_all().unwrap_err();
    assert!(faulty.inner().to_vec() == pattern(0..8 * 4096));
    assert!(contents(&file) == punched(4096));
    file.sync_data().unwrap();
    assert!(faulty.inner().to_vec() == punched(4096));
}

// spec: P18
#[test]
fn what_was_written_since_is_not_punched() {
    for size in SIZES {
        // The write comes before or after the sync that fails, and is dirty or accepted by the
        // store.
        for (before, flushed) in [(true, false), (true, true), (false, false), (false, true)] {
            let cache = memory_of(64, size);
            let store = patterned(8 * size);
            let file = open(&cache, &store, &options(size));
            let write = || {
                file.write_at(&[7; 100], 3 * size + 10).unwrap();
                file.write_at(&[8; 100], 5 * size + 10).unwrap();
                if flushed {
                    core(&file).flush(&EVERYTHING);
                }
            };
            file.punch(2 * size..6 * size).unwrap();
            if before {
                write();
            }
            store.add(forget());
            sync_store(core(&file), crate::store::SyncWhat::All).unwrap();
            if !before {
                write();
            }
            let mut expected = punched(size);
            expected[3 * size as usize + 10..][..100].fill(7);
            expected[5 * size as usize + 10..][..100].fill(8);
            assert!(contents(&file) == expected);
            validate(core(&file));
            file.sync_all().unwrap_err();
            assert!(contents(&file) == expected);
            assert!(store.inner().to_vec() == expected, "{before} {flushed}");
            validate(core(&file));
            file.sync_all().unwrap();
            file.evict(..).unwrap();
            assert!(contents(&file) == expected);
        }
    }
}

// spec: P18
#[test]
fn a_write_that_failed_over_a_punch_is_punched_when_it_is_given_up() {
    let cache = memory(64);
    let store = patterned(8 * 4096);
    let file = open(&cache, &store, &options(4096));
    file.punch(2 * 4096..6 * 4096).unwrap();
    file.write_at(&[7; 4096], 3 * 4096).unwrap();
    store.add(Rule::new(Fault::Tear {
        sectors: 2,
        then: crate::store::faulty::AfterTear::Fail,
    }));
    core(&file).flush(&EVERYTHING);
    assert_eq!(store.inner().to_vec()[3 * 4096], 7, "a part of it");
    file.discard().unwrap();
    assert!(contents(&file) == punched(4096));
    let _ = file.sync_all();
    assert!(store.inner().to_vec() == punched(4096));
}

// spec: P16, P18
#[test]
fn what_is_cut_off_is_not_punched_again() {
    for size in SIZES {
        let (_cache, store, file) = lost(size);
        file.set_len(4 * size).unwrap();
        validate(core(&file));
        file.write_at(&vec![9; size as usize], 5 * size).unwrap();
        core(&file).flush(&EVERYTHING);
        file.sync_all().unwrap();
        let mut expected = punched(size);
        expected.truncate(4 * size as usize);
        expected.resize(5 * size as usize, 0);
        expected.resize(6 * size as usize, 9);
        assert!(contents(&file) == expected);
        assert!(store.inner().to_vec() == expected);
    }
}

// spec: P18
#[test]
fn a_sync_that_cannot_punch_again_fails() {
    let (cache, store, file) = lost(4096);
    file.write_at(&[7; 100], 0).unwrap();
    for _ in 0..2 {
        store.add(fail(OperationKind::Punch));
        let error = file.sync_all().unwrap_err();
        let is_punch = matches!(
            error,
            FileError::Store {
                action: StoreAction::Punch,
                ..
            }
        );
        assert!(is_punch, "{error}");
        assert_eq!(store.inner().to_vec()[0], 7, "what can be written is");
        let mut expected = punched(4096);
        expected[..100].fill(7);
        assert!(contents(&file) == expected);
    }
    // A successful sync for another caller does not make up for it.
    sync_store(core(&file), crate::store::SyncWhat::All).unwrap();
    store.add(fail(OperationKind::Punch).forever());
    drop(file);
    let error = cache.take_errors().pop().expect("it is lost, and said so");
    assert!(error.to_string().contains("punch"), "{error}");
    assert_empty(&cache);
}

// spec: P18
#[test]
fn the_last_drop_punches_again() {
    let (cache, store, file) = lost(4096);
    drop(file);
    assert!(store.inner().to_vec() == punched(4096));
    assert_empty(&cache);
}

// spec: P18
#[test]
fn a_sync_that_fails_beside_a_punch_may_have_undone_it() {
    let cache = memory(64);
    let store = patterned(8 * 4096);
    let file = open(&cache, &store, &options(4096));
    store.add(forget());
    let there = failpoint::on("Punched", {
        let core = core(&file).clone();
        move || sync_store(&core, crate::store::SyncWhat::All).unwrap()
    });
    file.punch(2 * 4096..6 * 4096).unwrap();
    drop(there);
    assert!(store.inner().to_vec() == pattern(0..8 * 4096), "forgotten");
    file.sync_all().unwrap_err();
    assert!(store.inner().to_vec() == punched(4096));
}

// spec: P18
#[test]
fn a_sync_that_began_before_a_punch_does_not_cover_it() {
    let cache = memory(64);
    let store = patterned(8 * 4096);
    let file = open(&cache, &store, &options(4096));
    let there = failpoint::on("Punched", {
        let core = core(&file).clone();
        move || sync_store(&core, crate::store::SyncWhat::All).unwrap()
    });
    file.punch(2 * 4096..6 * 4096).unwrap();
    drop(there);
    store.add(fail_sync());
    file.sync_all().unwrap_err();
    file.sync_all().unwrap();
    assert_eq!(count(&store, OperationKind::Punch), 2, "as far as it knows");
    store.add(fail_sync());
    file.sync_all().unwrap_err();
    file.sync_all().unwrap();
    assert_eq!(count(&store, OperationKind::Punch), 2, "covered");
}

// spec: P18
#[test]
fn an_invalidation_shows_what_others_wrote_where_a_punch_was() {
    let cache = memory(64);
    let store = patterned(8 * 4096);
    let file = open(&cache, &store, &options(4096));
    file.punch(2 * 4096..6 * 4096).unwrap();
    store
        .inner()
        .change_externally(&[5; 4096], 3 * 4096)
        .unwrap();
    file.invalidate(..).unwrap();
    let mut expected = punched(4096);
    expected[3 * 4096..4 * 4096].fill(5);
    assert!(contents(&file) == expected);
    // Bytes that a failed sync has brought back do not count as changes by others.
    file.punch(3 * 4096..4 * 4096).unwrap();
    store.add(forget());
    file.invalidate(..).unwrap();
    assert!(contents(&file) == punched(4096));
    let _ = file.sync_all();
    assert!(store.inner().to_vec() == punched(4096));
}

// spec: P18
#[test]
fn punches_that_lie_apart_are_made_durable_when_there_are_many() {
    let cache = memory(64);
    let store = Arc::new(FaultyStore::new(MemoryStore::with_len(4096 * 2_000)));
    let file = open(&cache, &store, &options(4096));
    let punch = |at: u64| file.punch(2 * at * 4096..(2 * at + 1) * 4096);
    for at in 0..700 {
        punch(at).unwrap();
    }
    assert_eq!(count(&store, OperationKind::Sync), 2);
    store.add(fail_sync().forever());
    let failed = (700..1_000).find(|at| punch(*at).is_err());
    assert!(failed.is_some_and(|at| at < 800), "{failed:?}");
    assert!(is_failed_sync(&punch(999).unwrap_err()));
    validate(core(&file));
    store.heal();
    punch(999).unwrap();
}

// spec: P18
#[test]
fn writes_into_a_lost_punch_part_it_so_often_and_no_more() {
    let cache = memory(2_000);
    let store = Arc::new(FaultyStore::new(MemoryStore::from_bytes(
        &[1; 4096 * 1_200],
    )));
    let file = open(&cache, &store, &options(4096));
    file.punch(..).unwrap();
    store.add(forget());
    sync_store(core(&file), crate::store::SyncWhat::All).unwrap();
    let mut expected = vec![0; 4096 * 1_200];
    for block in (0..1_200).step_by(2) {
        file.write_at(&[7; 100], block * 4096).unwrap();
        expected[block as usize * 4096..][..100].fill(7);
    }
    while write_some(core(&file)) > 0 && core(&file).dirty_blocks() > 0 {}
    sync_store(core(&file), crate::store::SyncWhat::All).unwrap();
    file.evict(..).unwrap();
    assert!(contents(&file) == expected);
    file.sync_all().unwrap_err();
    assert!(store.inner().to_vec() == expected);
    validate(core(&file));
}
