//! Tests of faults that must not wait.

use std::sync::atomic::Ordering;

use super::super::core::HoleWrites;
use super::super::entry::Content;
use super::super::grab::Wanted;
use super::*;
use crate::reclaim::AllocMode;

impl DaxCore {
    /// Calls [`DaxRef::try_fault`] for a caller that has the file. Returns `None` if it would
    /// block.
    fn try_fault(self: &Arc<DaxCore>, page: u64, kind: FaultKind) -> Option<DaxPages> {
        let locked = DaxRef::new(self.clone()).try_fault(page, kind);
        if let Err(error) = &locked {
            assert!(error.would_block(), "{error}");
        }
        locked.ok()
    }
}

// spec: P29
#[test]
fn an_entry_that_somebody_has_or_that_is_being_cut_is_not_waited_for() {
    let pool = pool(64);
    let device = device(8);
    let file = file(&pool, &device, 4);
    file.write_at(&[7; 100], PAGE).unwrap();
    let core = file.core();
    assert!(core.try_fault(0, FaultKind::Read).is_none(), "not known");
    let locked = core.try_fault(1, FaultKind::Write).unwrap();
    assert_eq!((locked.pages(), locked.is_dirty()), (1..2, true));
    for kind in [FaultKind::Read, FaultKind::Write] {
        assert!(core.try_fault(1, kind).is_none());
    }
    assert_eq!(core.entries.waits.len(), 0, "nobody is in a queue");
    drop(locked);
    file.sync_all().unwrap();
    let locked = core.try_fault(1, FaultKind::Write).unwrap();
    assert!(locked.is_dirty(), "of memory, nobody has to make room");
    drop(locked);
    assert_eq!(file.stats().dirty.0, 1);
    core.cut.lock().push(1..4);
    core.cuts.fetch_add(1, Ordering::SeqCst);
    assert!(core.try_fault(1, FaultKind::Read).is_none());
    core.cut.lock().clear();
    core.cuts.fetch_sub(1, Ordering::SeqCst);
    assert!(core.try_fault(1, FaultKind::Read).is_some());
    let past = DaxRef::new(core.clone()).try_fault(4, FaultKind::Read);
    assert!(matches!(past, Err(DaxError::PastEnd { .. })), "{past:?}");
    drop(file);
    assert_nothing_left(&pool);
}

#[test]
fn a_large_block_that_was_synced_is_dirty_again_and_is_synced_again() {
    if crate::sys::memory::host_page_size() != PAGE_SIZE {
        return eprintln!("skipped: stores to large blocks take more on hosts of larger pages");
    }
    let pool = pool(64);
    let device = device(2 * LARGE);
    let setup = DaxSetup {
        hole_writes: HoleWrites::Large,
        ..DaxSetup::default()
    };
    let root = pool.root_group();
    let file = DaxFile::on_device(&Cache::new(&pool), &root, &device, "data.bin", setup).unwrap();
    file.set_len(LARGE * PAGE).unwrap();
    let core = file.core();
    drop(core.fault(7, FaultKind::Write, Reach::Leaf, 0).unwrap());
    let dirty = || core.entries.peek(0).unwrap().is_dirty();
    for _ in 0..2 {
        file.sync_all().unwrap();
        assert!(!dirty());
        let locked = core.try_fault(9, FaultKind::Write).unwrap();
        assert!(locked.is_large() && locked.is_dirty());
        drop(locked);
        assert!(dirty());
    }
    let locked = core.entries.lock(9, Wanted::Cover).unwrap();
    assert!(core.try_fault(9, FaultKind::Read).is_none());
    drop(locked);
    let locked = core.try_fault(9, FaultKind::Read).unwrap();
    assert_eq!(locked.pages(), 0..LARGE);
    drop(locked);
    assert!(matches!(
        core.entries.peek(0).unwrap().content(),
        Content::Block(_)
    ));
}

// spec: P6
#[test]
fn what_becomes_dirty_is_paid_for_within_the_limit() {
    const RANGES: u64 = 600;
    let pool = pool(1_024);
    let device = device(RANGES);
    let group = pool
        .root_group()
        .create_child("tenant", 800 * PAGE)
        .unwrap();
    let setup = DaxSetup::default();
    let file = DaxFile::on_device(&Cache::new(&pool), &group, &device, "data.bin", setup).unwrap();
    file.set_len(RANGES * LARGE * PAGE).unwrap();
    for range in 0..RANGES {
        file.write_at(&[7], range * LARGE * PAGE).unwrap();
    }
    file.sync_all().unwrap();
    let mut all = Vec::new();
    while let Ok(frame) = pool.alloc(group.id(), 0, AllocMode::NoWait) {
        all.push(frame);
    }
    let (usage, core) = (|| group.stats().usage.0, file.core());
    let full = usage();
    let store = |range: u64| core.try_fault(range * LARGE, FaultKind::Write);
    let stored = (0..RANGES).filter(|range| store(*range).is_some()).count();
    assert!((1..RANGES as usize).contains(&stored), "{stored}");
    assert_eq!((usage(), file.stats().dirty.0), (full, stored as u64));
    assert_eq!(core.entries.waits.len(), 0);
    // A store to a page that is dirty already needs no more room.
    assert!(store(0).is_some());
    drop(all);
    assert!(store(RANGES - 1).is_some());
}
