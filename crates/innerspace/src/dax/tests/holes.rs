//! Faults of loads from holes: which of the following pages are mapped together with the wanted
//! one.

use super::*;
use crate::sync::failpoint;

/// Returns the pages that a load at `page` locks, in a mapping of all 16 pages.
fn load(file: &DaxFile, page: u64) -> DaxPages {
    let reach = Reach::Pages { end: 16 };
    let core = file.core();
    core.fault(page, FaultKind::Read, reach, 0).unwrap()
}

/// Returns the pages that have an entry.
fn known(file: &DaxFile) -> Vec<u64> {
    let core = file.core();
    let known = |page: &u64| core.entries.peek(*page).is_some();
    (0..16).filter(known).collect()
}

// spec: D1
#[test]
fn a_load_from_a_hole_has_the_holes_up_to_the_next_block() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 16);
    file.write_at(&[1; PAGE_SIZE], 5 * PAGE).unwrap();
    file.sync_all().unwrap();
    // First the block has an entry; then only the extent map says that there is a block.
    for forgotten in [false, true] {
        if forgotten {
            file.invalidate(..).unwrap();
            assert_eq!(known(&file), [0; 0]);
        }
        let loaded = load(&file, 2);
        assert_eq!((loaded.pages(), loaded.host(4)), (2..5, None));
        drop(loaded);
        let of_block: &[u64] = if forgotten { &[] } else { &[5] };
        assert_eq!(known(&file), [&[2, 3, 4], of_block].concat());
        // The load is from the hole after the block.
        let loaded = load(&file, 6);
        assert_eq!(loaded.pages(), 6..16);
        drop(loaded);
        // Entries that exist are found again; a block is found without others.
        assert_eq!(load(&file, 3).pages(), 3..5);
        let loaded = load(&file, 5);
        assert_eq!(loaded.pages(), 5..6);
        assert!(loaded.host(5).is_some());
    }
    assert_eq!(file.stats().allocated.0, 1);
}

#[test]
fn a_load_from_a_hole_stops_at_an_entry_that_somebody_has() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 16);
    drop(load(&file, 0));
    let other = file
        .core()
        .lock_page(7, FaultKind::Write, Wait::Yes)
        .unwrap();
    assert_eq!(load(&file, 3).pages(), 3..7);
    drop(other);
    assert_eq!(load(&file, 3).pages(), 3..16);
}

/// Returns the pages that a load at page 2 locks when `cut` begins while the holes after that page
/// are locked. `begun` says whether the cut has begun.
fn beside(
    file: &DaxFile,
    cut: impl FnOnce(&DaxFile) + Send + 'static,
    begun: fn(&DaxCore) -> bool,
) -> Range<u64> {
    let (sent, cutting) = std::sync::mpsc::channel();
    let other = file.clone();
    let there = failpoint::on("HolesLocked", move || {
        let theirs = other.clone();
        let cut = std::thread::spawn(move || cut(&theirs));
        until(|| begun(other.core()));
        sent.send(cut).unwrap();
    });
    let loaded = load(file, 2);
    drop(there);
    let pages = loaded.pages();
    drop(loaded);
    cutting.recv().unwrap().join().unwrap();
    pages
}

// spec: D16
#[test]
fn no_hole_is_shown_that_is_being_punched_or_was_cut_off() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 16);
    // The punch waits for the entries that the load has locked.
    let punch = |file: &DaxFile| file.punch(3 * PAGE..9 * PAGE).unwrap();
    let is_cut = |core: &DaxCore| core.is_being_cut(&(3..9));
    assert_eq!(beside(&file, punch, is_cut), 2..3);
    // The load leaves no entry locked, and punched pages have no entry.
    assert_eq!(known(&file), [2]);
    assert_eq!(load(&file, 2).pages(), 2..16);
    let shorten = |file: &DaxFile| file.set_len(4 * PAGE).unwrap();
    let is_short = |core: &DaxCore| core.size() == 4 * PAGE;
    assert_eq!(beside(&file, shorten, is_short), 2..4);
    assert_eq!(known(&file), [2, 3]);
    drop(file);
    assert_nothing_left(&pool);
}
