//! Tests of calls that must not wait.

use super::super::DaxStats;
use super::super::core::HoleWrites;
use super::super::entry::{Content, Entry, Size};
use super::super::grab::Wanted;
use super::*;

#[track_caller]
fn assert_would_block<T: std::fmt::Debug>(got: Result<T, DaxError>, at: u64) {
    match got {
        Err(DaxError::WouldBlock { offset, .. }) => assert_eq!(offset, at),
        other => panic!("{other:?}"),
    }
}

// spec: P29
#[test]
fn a_read_asks_nobody_and_meets_no_cut() {
    let pool = pool(64);
    let device = device(8);
    let file = file(&pool, &device, 600);
    file.write_at(&[7; 100], PAGE - 50).unwrap();
    let mut buf = [1; 200];
    assert_eq!(file.try_read_at(&mut buf, PAGE - 100).unwrap(), 200);
    let expected: Vec<u8> = [[0; 50], [7; 50], [7; 50], [0; 50]].concat();
    assert_eq!(buf[..], expected);
    assert_eq!(file.try_read_at(&mut buf, 600 * PAGE - 3).unwrap(), 3);
    assert_eq!(file.try_read_at(&mut buf, 600 * PAGE).unwrap(), 0);
    let short = file.try_read_exact_at(&mut buf, 600 * PAGE - 3);
    assert!(matches!(short, Err(DaxError::PastEnd { .. })), "{short:?}");
    // A read ignores entries that others have locked.
    let held = file.core().entries.lock(1, Wanted::Cover).unwrap();
    file.try_read_exact_at(&mut buf, PAGE).unwrap();
    drop(held);
    let cut = file.core().layout.write();
    assert_would_block(file.try_read_at(&mut buf, 5), 5);
    assert_would_block(file.try_read_exact_at(&mut buf, PAGE), PAGE);
    drop(cut);
    file.try_read_exact_at(&mut buf, PAGE).unwrap();
}

/// Returns the file's statistics, and the entries of these pages.
fn known(file: &DaxFile, pages: Range<u64>) -> (DaxStats, Vec<Option<Entry>>) {
    let entries = pages.map(|page| file.core().entries.peek(page));
    (file.stats(), entries.collect())
}

// spec: P29
#[test]
fn a_write_has_the_pages_before_one_that_somebody_has() {
    let pool = pool(64);
    let device = device(32);
    let file = file(&pool, &device, 600);
    let bytes: Vec<u8> = (0..20 * PAGE_SIZE)
        .map(|at| (at / PAGE_SIZE) as u8 | 64)
        .collect();
    assert_eq!(file.core().try_write_at(&[], 5).unwrap(), 0);
    assert_eq!(
        file.core().try_write_at(&bytes, 5).unwrap(),
        bytes.len(),
        "a hole"
    );
    file.sync_all().unwrap();
    assert_eq!(
        file.core().try_write_at(&bytes[1..], 6).unwrap(),
        bytes.len() - 1,
        "blocks"
    );
    let mut back = vec![0; bytes.len()];
    file.try_read_exact_at(&mut back, 5).unwrap();
    assert!(back == bytes);
    assert_eq!((file.stats().present.0, file.stats().dirty.0), (21, 21));
    for held in [2, 18] {
        let other = file.core().entries.lock(held, Wanted::Cover).unwrap();
        let before = known(&file, held..held + 3);
        let done = file.core().try_write_at(&[1; 20 * PAGE_SIZE], 5).unwrap();
        assert_eq!(done as u64, held * PAGE - 5);
        assert_would_block(
            file.core().try_write_at(&[1; 20], held * PAGE + 9),
            held * PAGE,
        );
        assert_eq!(known(&file, held..held + 3), before);
        assert_eq!(file.core().entries.waits.len(), 0, "nobody is in a queue");
        drop(other);
        file.try_read_exact_at(&mut back, 5).unwrap();
        assert!(back[..done].iter().all(|byte| *byte == 1) && back[done..] == bytes[done..]);
        assert_eq!(file.core().try_write_at(&bytes, 5).unwrap(), bytes.len());
    }
    drop(file);
    assert_eq!(device.free_pages().0, 32);
    assert_nothing_left(&pool);
}

// spec: P29
#[test]
fn a_write_makes_no_file_longer_and_meets_no_cut() {
    let pool = pool(64);
    let device = device(8);
    let file = file(&pool, &device, 0);
    file.set_len(PAGE + 100).unwrap();
    assert_eq!(file.core().try_write_at(&[7; 200], PAGE).unwrap(), 100);
    for at in [PAGE + 100, PAGE + 101, 50 * PAGE] {
        assert_would_block(file.core().try_write_at(&[7], at), at);
    }
    assert_eq!((file.len(), file.stats().present.0), (PAGE + 100, 1));
    let layout = file.core().layout.write();
    assert_would_block(file.core().try_write_at(&[7; 9], 5), 5);
    assert_eq!(file.core().try_write_at(&[], 5).unwrap(), 0);
    assert_eq!(file.core().try_write_at(&[], MAX_SIZE + 1).unwrap(), 0);
    drop(layout);
    let long = file.core().try_write_at(&[7; 9], MAX_SIZE - 8);
    assert!(matches!(long, Err(DaxError::TooLong { .. })), "{long:?}");
    file.set_len(16 * PAGE).unwrap();
    assert_eq!(
        file.core().try_write_at(&[8; 16 * PAGE_SIZE], 0).unwrap(),
        8 * PAGE_SIZE
    );
    let full = file.core().try_write_at(&[8], 8 * PAGE);
    assert!(matches!(full, Err(DaxError::DeviceFull { .. })), "{full:?}");
}

// spec: D4, P29
#[test]
fn a_hole_that_a_mapping_may_show_is_not_written() {
    let pool = pool(64);
    let device = device(4 * LARGE);
    let file = file(&pool, &device, 2 * LARGE);
    let core = file.core();
    let show = |page, reach| drop(core.fault(page, FaultKind::Read, reach, 0).unwrap());
    show(3, Reach::Pages { end: 4 });
    show(LARGE + 7, Reach::Leaf);
    assert_eq!(file.stats().zero.0, 1 + LARGE);
    let before = known(&file, LARGE..LARGE + 1);
    assert_eq!(
        file.core().try_write_at(&[7; 5 * PAGE_SIZE], PAGE).unwrap(),
        2 * PAGE_SIZE
    );
    assert_would_block(file.core().try_write_at(&[7], 3 * PAGE), 3 * PAGE);
    for len in [1, LARGE as usize * PAGE_SIZE] {
        assert_would_block(
            file.core().try_write_at(&vec![7; len], LARGE * PAGE),
            LARGE * PAGE,
        );
    }
    assert_eq!(core.entries.peek(3).unwrap().content(), Content::Zero);
    assert_eq!(known(&file, LARGE..LARGE + 1).1, before.1);
    assert_eq!((file.stats().present.0, file.stats().downgrades), (2, 0));
    file.write_at(&[7], 3 * PAGE).unwrap();
    assert_eq!(file.core().try_write_at(&[8], 3 * PAGE).unwrap(), 1);
}

// spec: D9
#[test]
fn a_large_hole_becomes_one_block_where_that_was_chosen() {
    const BYTES: usize = LARGE as usize * PAGE_SIZE;
    let pool = pool(64);
    let device = device(4 * LARGE);
    let setup = DaxSetup {
        hole_writes: HoleWrites::Large,
        ..DaxSetup::default()
    };
    let root = pool.root_group();
    let file = DaxFile::on_device(&Cache::new(&pool), &root, &device, "data.bin", setup).unwrap();
    file.set_len(2 * LARGE * PAGE).unwrap();
    assert_eq!(
        file.core().try_write_at(&vec![7; BYTES + 9], 0).unwrap(),
        BYTES + 9
    );
    let entry = |page| file.core().entries.peek(page).unwrap();
    assert_eq!(
        (entry(0).size(), entry(LARGE).size()),
        (Size::Large, Size::Small)
    );
    let held = file.core().entries.lock(9, Wanted::Cover).unwrap();
    for len in [9, BYTES] {
        assert_would_block(file.core().try_write_at(&vec![8; len], 0), 0);
    }
    drop(held);
    file.sync_all().unwrap();
    assert_eq!(file.core().try_write_at(&vec![8; BYTES], 0).unwrap(), BYTES);
    assert!(entry(0).is_dirty() && entry(0).size() == Size::Large);
}

// spec: P6
#[test]
fn memory_that_would_have_to_be_waited_for_is_not_had() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 4 * LARGE);
    file.write_at(&[7], 0).unwrap();
    pool.flush_retired();
    let mut all = Vec::new();
    while let Ok(frame) = pool.alloc(GroupId::ROOT, 0, crate::reclaim::AllocMode::Wait) {
        all.push(frame);
    }
    let before = known(&file, LARGE..LARGE + 1);
    assert_eq!(
        file.core().try_write_at(&[8; PAGE_SIZE + 1], 0).unwrap(),
        PAGE_SIZE + 1
    );
    let refused = file.core().try_write_at(&[8], LARGE * PAGE).unwrap_err();
    assert!(refused.would_block(), "{refused}");
    assert!(matches!(refused, DaxError::Limit(_)), "{refused}");
    assert_eq!(known(&file, LARGE..LARGE + 1).1, before.1);
    drop(all);
    assert_eq!(file.core().try_write_at(&[8], LARGE * PAGE).unwrap(), 1);
    drop(file);
    assert_nothing_left(&pool);
}

// spec: P29
#[test]
fn a_range_is_pinned_whole_or_not_at_all() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 600);
    let core = file.core();
    let pin = file.try_pin(PAGE + 10..3 * PAGE).unwrap();
    let lens: u64 = pin.pieces().map(|(_, len)| len as u64).sum();
    assert_eq!((lens, pin.bytes()), (2 * PAGE - 10, PAGE + 10..3 * PAGE));
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 2, "as long as it is pinned");
    drop(pin);
    drop(
        core.fault(4, FaultKind::Read, Reach::Pages { end: 5 }, 0)
            .unwrap(),
    );
    assert_would_block(file.try_pin(3 * PAGE..6 * PAGE), 4 * PAGE);
    let held = core.entries.lock(2, Wanted::Cover).unwrap();
    assert_would_block(file.try_pin(PAGE..3 * PAGE), 2 * PAGE);
    drop(held);
    let cut = core.layout.write();
    assert_would_block(file.try_pin(PAGE + 1..3 * PAGE), PAGE + 1);
    drop(cut);
    assert_eq!((file.stats().pins, core.entries.waits.len()), (0, 0));
    let past = file.try_pin(0..601 * PAGE);
    assert!(matches!(past, Err(DaxError::PastEnd { .. })), "{past:?}");
    drop(file.try_pin(PAGE..3 * PAGE).unwrap());
}

/// Tests with host files.
#[cfg(all(target_os = "linux", not(miri)))]
mod host {
    use super::super::reminding::{create, create_guarded, path_in};
    use super::*;
    use crate::sys::shared::faulty::answer;

    // spec: P29
    #[test]
    fn what_is_not_known_of_a_host_file_is_not_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = create(&path_in(&folder), DaxSetup::default());
        file.write_at(&[7; 10], 4 * PAGE).unwrap();
        file.sync_all().unwrap();
        file.invalidate(..).unwrap();
        let mut buf = [1; 3 * PAGE_SIZE];
        assert_would_block(file.try_read_at(&mut buf, 5), 5);
        assert_eq!(buf, [1; 3 * PAGE_SIZE]);
        file.read_at(&mut [0], 0).unwrap();
        assert_eq!(file.try_read_at(&mut buf, 5).unwrap(), buf.len());
        assert_eq!(buf, [0; 3 * PAGE_SIZE], "a hole that is known");
        buf.fill(1);
        // The known hole ends there.
        assert_would_block(
            file.try_read_exact_at(&mut buf[..PAGE_SIZE], 4 * PAGE - 9),
            4 * PAGE,
        );
        assert_eq!((buf[8], buf[9]), (0, 1), "what comes before");
        file.read_at(&mut [0], 4 * PAGE).unwrap();
        assert_eq!(file.try_read_at(&mut buf, 4 * PAGE).unwrap(), 10);
        assert_eq!(buf[..10], [7; 10]);
    }

    // spec: P29
    #[test]
    fn a_write_asks_the_host_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = create(&path_in(&folder), DaxSetup::default());
        file.write_at(&[7; 4 * PAGE_SIZE], 0).unwrap();
        file.set_len(LARGE * PAGE).unwrap();
        let _host = answer(|call, bytes| panic!("{call:?} of {bytes:?}"));
        let written = file
            .core()
            .try_write_at(&[8; 6 * PAGE_SIZE], PAGE - 1)
            .unwrap();
        assert_eq!(written, 3 * PAGE_SIZE + 1, "what is dirty");
        assert_would_block(file.core().try_write_at(&[8; 6], 4 * PAGE), 4 * PAGE);
        let all = vec![8; LARGE as usize * PAGE_SIZE];
        assert_eq!(file.core().try_write_at(&all, 0).unwrap(), 4 * PAGE_SIZE);
        drop(_host);
        file.sync_all().unwrap();
        let _host = answer(|call, bytes| panic!("{call:?} of {bytes:?}"));
        assert_would_block(file.core().try_write_at(&[9; 6], PAGE + 5), PAGE);
        assert_would_block(file.try_pin(PAGE..PAGE + 5), PAGE);
        assert_eq!(file.stats().dirty.0, 0);
        let mut byte = [0];
        file.try_read_at(&mut byte, PAGE + 5).unwrap();
        assert_eq!(byte, [8]);
    }

    #[test]
    fn of_a_guarded_file_nothing_is_read_or_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = create_guarded(&path_in(&folder));
        file.write_at(&[7; 10], 0).unwrap();
        assert_would_block(file.try_read_at(&mut [0; 10], 3), 3);
        assert_would_block(file.core().try_write_at(&[0; 10], 3), 3);
        assert_eq!(file.try_read_at(&mut [0; 10], 10).unwrap(), 0, "its end");
        // Such a pin makes no call to the host.
        let _host = answer(|call, bytes| panic!("{call:?} of {bytes:?}"));
        drop(file.try_pin(0..10).unwrap());
    }
}
