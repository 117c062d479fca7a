//! Tests of reads and writes: holes, full devices, the file's end, large blocks.

use std::collections::BTreeMap;

use super::super::entry::{Content, Size};
use super::super::extents::faulty::{Faulty, Misplace};
use super::super::{DaxError, HoleWrites, Reach};
use super::*;
use crate::cache::{FaultKind, Mappers, Revoke};
use crate::group::Group;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::failpoint;

#[test]
fn bytes_come_back_and_holes_are_zeros_that_cost_nothing() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 1 << 20);
    let mut bytes = vec![1; 3 * PAGE_SIZE];
    assert_eq!(
        file.read_at(&mut bytes, 77 * PAGE + 5).unwrap(),
        bytes.len()
    );
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert_eq!((device.free_pages().0, file.stats().tables.0), (16, 0));
    file.write_at(b"over a page's end", 9 * PAGE - 6).unwrap();
    assert_eq!(device.free_pages().0, 14);
    let mut word = [1; 19];
    file.read_exact_at(&mut word, 9 * PAGE - 7).unwrap();
    assert_eq!(&word, b"\0over a page's end\0");
    let end = file.len();
    assert_eq!(file.read_at(&mut bytes, end - 10).unwrap(), 10);
    assert_eq!(file.read_at(&mut bytes, end).unwrap(), 0);
    let error = file.read_exact_at(&mut bytes, end - 10).unwrap_err();
    assert!(matches!(error, DaxError::PastEnd { .. }), "{error}");
    drop(file);
    assert_eq!(device.free_pages().0, 16);
    assert_nothing_left(&pool);
}

#[test]
fn appends_of_several_threads_come_whole_one_after_the_other() {
    let pool = pool(64);
    let device = device(64);
    let file = file(&pool, &device, 0);
    let mut places: Vec<(u64, u8)> = std::thread::scope(|scope| {
        let append = |byte: u8| {
            let one = || (file.append(&[byte; PAGE_SIZE - 100]).unwrap(), byte);
            (0..8).map(|_| one()).collect::<Vec<_>>()
        };
        let threads = [1, 2, 3].map(|byte| scope.spawn(move || append(byte)));
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    places.sort_unstable();
    assert_eq!(file.len(), 24 * (PAGE - 100));
    for (number, (place, byte)) in places.into_iter().enumerate() {
        assert_eq!(place, number as u64 * (PAGE - 100));
        let mut bytes = [0; PAGE_SIZE - 100];
        file.read_exact_at(&mut bytes, place).unwrap();
        assert_eq!(bytes, [byte; PAGE_SIZE - 100]);
    }
}

#[test]
fn a_range_that_ends_before_it_starts_is_refused_by_every_call_that_takes_one() {
    let pool = pool(64);
    let file = file(&pool, &device(16), 4 * PAGE);
    #[expect(clippy::reversed_empty_ranges)]
    let bad = 2 * PAGE..PAGE;
    let errors = [
        file.read_to_vec(bad.clone()).unwrap_err(),
        file.punch(bad.clone()).unwrap_err(),
        file.sync_range(bad.clone()).unwrap_err(),
        file.pin(bad).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, DaxError::BadRange { .. }), "{error}");
    }
}

#[test]
fn a_full_device_is_an_error_and_what_was_written_stays() {
    let pool = pool(64);
    let device = device(4);
    let file = file(&pool, &device, 0);
    let bytes: Vec<u8> = (0..6 * PAGE_SIZE).map(|at| at as u8 | 1).collect();
    let error = file.write_at(&bytes, 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data.bin: no block for offset 16,384: the device of 16.0 KiB is full"
    );
    assert_eq!((file.len(), file.stats().present.0), (4 * PAGE, 4));
    let mut back = vec![0; 4 * PAGE_SIZE];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, bytes[..4 * PAGE_SIZE]);
    // A page that was given back can be written to.
    file.punch(PAGE..2 * PAGE).unwrap();
    file.write_at(&bytes[..PAGE_SIZE], file.len()).unwrap();
    file.sync_all().unwrap();
}

// spec: D17
#[test]
fn past_the_end_is_an_error_and_a_large_entry_there_falls_back() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, LARGE + 100);
    let fault = |page, reach| file.core().fault(page, FaultKind::Read, reach, 0);
    assert!(fault(3, Reach::Leaf).unwrap().is_large());
    let small = fault(LARGE + 3, Reach::Leaf).unwrap();
    assert!(!small.is_large() && small.pages().end <= LARGE + 100);
    drop(small);
    for reach in [Reach::Leaf, Reach::Pages { end: 2 * LARGE }] {
        let error = fault(LARGE + 100, reach).unwrap_err();
        assert_eq!(
            error.to_string(),
            "data.bin: wanted 4096 bytes at 2,506,752 but the file ends at 2,506,752"
        );
    }
    assert_eq!(file.stats().fallbacks, 2);
    // A range that is one byte short is not mapped as a whole.
    file.set_len(2 * LARGE * PAGE - 1).unwrap();
    assert!(!fault(LARGE + 3, Reach::Leaf).unwrap().is_large());
}

// spec: D18, D22
#[test]
fn extents_that_are_short_unaligned_or_misplaced_fall_back() {
    let pool = pool(64);
    let device = device(4 * LARGE);
    let large = DaxSetup {
        hole_writes: HoleWrites::Large,
        ..DaxSetup::default()
    };
    let extents = Arc::new(Faulty::new(&device));
    let file = file_over(&pool, &device, extents.clone(), 4 * LARGE, large);
    let fault = |page, kind| file.core().fault(page, kind, Reach::Leaf, 0).unwrap();
    // The run does not begin at a multiple of 2 MiB on the device.
    extents.map.place_at(0, 100..100 + LARGE);
    assert!(!fault(7, FaultKind::Read).is_large());
    // The run ends before the range does.
    extents.map.place_at(LARGE, 2 * LARGE..2 * LARGE + 300);
    assert!(!fault(LARGE + 7, FaultKind::Write).is_large());
    // The extent map's answer is too short.
    extents.plan(|plan| plan.short = Some(511));
    assert!(!fault(2 * LARGE, FaultKind::Read).is_large());
    extents.plan(|plan| plan.short = None);
    // A new block in a wrong place is given back, and the fault maps one page instead.
    extents.plan(|plan| plan.misplace_large = Misplace::Unaligned);
    assert!(!fault(3 * LARGE + 7, FaultKind::Write).is_large());
    assert_eq!(extents.calls().freed, 1);
    assert_eq!(file.stats().fallbacks, 4);
    file.write_at(&[5; 100], (3 * LARGE + 7) * PAGE).unwrap();
    let mut bytes = [0; 100];
    file.read_exact_at(&mut bytes, (3 * LARGE + 7) * PAGE)
        .unwrap();
    assert_eq!(bytes, [5; 100]);
}

#[test]
fn random_calls_agree_with_a_map_of_pages() {
    let pool = pool(128);
    let device = device(64);
    let file = file(&pool, &device, 0);
    let mut model: BTreeMap<u64, [u8; PAGE_SIZE]> = BTreeMap::new();
    let mut len = 0;
    let mut random = 99u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    for step in 0..3_000u32 {
        let (at, count) = (next(40 * PAGE), 1 + next(3 * PAGE));
        match next(6) {
            0 | 1 => {
                let mut bytes: Vec<u8> = (0..count).map(|i| (step as u64 + i) as u8 | 1).collect();
                if step % 2 == 0 && at < len {
                    // There is no other thread, so the call never waits, except for holes that were
                    // looked at.
                    let done = match file.try_write_at(&bytes, at) {
                        Err(DaxError::WouldBlock { offset, .. }) => {
                            offset.saturating_sub(at) as usize
                        }
                        written => written.map(|()| bytes.len()).unwrap(),
                    };
                    let stopped = file.core().entries.peek((at + done as u64) / PAGE);
                    if stopped.is_none_or(|entry| entry.content() != Content::Zero) {
                        assert_eq!(done as u64, count.min(len - at), "step {step}");
                    }
                    bytes.truncate(done);
                } else {
                    file.write_at(&bytes, at).unwrap();
                }
                for (i, byte) in bytes.iter().enumerate() {
                    let place = at + i as u64;
                    model.entry(place / PAGE).or_insert([0; PAGE_SIZE])[(place % PAGE) as usize] =
                        *byte;
                }
                if !bytes.is_empty() {
                    len = len.max(at + bytes.len() as u64);
                }
            }
            2 => {
                file.punch(at..at + count).unwrap();
                for place in at..at + count {
                    if let Some(page) = model.get_mut(&(place / PAGE)) {
                        page[(place % PAGE) as usize] = 0;
                    }
                }
            }
            3 if step % 7 == 0 => {
                file.set_len(at).unwrap();
                for (page, bytes) in &mut model {
                    let kept = at.saturating_sub(page * PAGE).min(PAGE) as usize;
                    bytes[kept..].fill(0);
                }
                len = at;
            }
            4 => file.sync_range(at..at + count).unwrap(),
            _ => {
                let mut bytes = vec![0; count as usize];
                let got = file.read_at(&mut bytes, at).unwrap();
                assert_eq!(got as u64, count.min(len.saturating_sub(at)), "step {step}");
                for (i, byte) in bytes[..got].iter().enumerate() {
                    let place = at + i as u64;
                    let page = model.get(&(place / PAGE));
                    let expected = page.map_or(0, |page| page[(place % PAGE) as usize]);
                    assert_eq!(*byte, expected, "step {step}, byte {place}");
                }
            }
        }
        assert_eq!(file.len(), len, "step {step}");
    }
    drop(file);
    assert_eq!(device.free_pages().0, 64);
    assert_nothing_left(&pool);
}

#[test]
fn a_look_ahead_leaves_nobody_in_a_queue() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 32);
    let core = file.core();
    let fault = |page, end| {
        core.fault(page, FaultKind::Read, Reach::Pages { end }, 0)
            .unwrap()
    };
    let held = fault(6, 7);
    let before = fault(5, 16);
    assert_eq!(before.pages(), 5..6, "it does not wait for its neighbour");
    assert_eq!(core.entries.waits.len(), 0, "nobody sleeps");
    drop((before, held));
    assert_eq!(fault(5, 16).pages(), 5..16);
}

#[test]
fn what_asks_for_nothing_changes_nothing() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 4);
    file.write_at(&[], 1 << 30).unwrap();
    drop(file.pin(5..5).unwrap());
    for page in 1..20 {
        let past = page << 20;
        let reach = Reach::Pages { end: past + 1 };
        file.core()
            .fault(past, FaultKind::Read, reach, 0)
            .unwrap_err();
    }
    assert_eq!(
        (file.len(), device.free_pages().0, file.stats().tables.0),
        (4 * PAGE, 16, 0)
    );
}

/// A mapper that notes the pages that are revoked.
#[derive(Default)]
struct Recorder(std::sync::Mutex<Vec<Range<u64>>>);

impl Mappers for Recorder {
    fn owner(&self) -> u64 {
        0
    }

    fn revoke(&self, pages: Range<u64>, _: Revoke) {
        self.0.lock().unwrap().push(pages);
    }

    fn age(&self, _: Range<u64>, _: &mut dyn FnMut(u64)) {}
}

// spec: D4
#[test]
fn new_bytes_are_put_into_a_block_when_nobody_sees_the_hole_any_more() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 8);
    let core = file.core();
    let reach = Reach::Pages { end: 4 };
    drop(core.fault(3, FaultKind::Read, reach, 0).unwrap());
    let recorder: Arc<Recorder> = Arc::default();
    let mapper: Arc<dyn Mappers> = recorder.clone();
    core.mappers.add(Arc::downgrade(&mapper));
    let mut locked = core.lock_page(3, FaultKind::Write, Wait::Yes).unwrap();
    let filled = core.put_block(&mut locked, 3, Wait::Yes, |_| {
        let revoked = recorder.0.lock().unwrap().pop();
        assert_eq!(revoked, Some(3..4), "a mapping shows zeros");
        Err(core.past_end(0, 0))
    });
    assert!(filled.is_err());
    drop(locked);
    let stats = file.stats();
    assert_eq!(
        (stats.zero.0, stats.present.0, stats.allocated.0),
        (1, 0, 0)
    );
    assert_eq!(device.free_pages().0, 16, "a block that was not filled");
}

#[test]
fn the_tree_of_a_scattered_file_is_charged_and_given_back() {
    let pool = pool(512);
    let device = device(4_000);
    let group = pool.root_group().create_child("tenant", 11 * PAGE).unwrap();
    let setup = DaxSetup::default();
    let file = DaxFile::on_device(&Cache::new(&pool), &group, &device, "data.bin", setup).unwrap();
    file.set_len(1 << 30).unwrap();
    // No two of these pages are adjacent on the device.
    let mut written = 0;
    let error = loop {
        match file.write_at(&[1; PAGE_SIZE], written * PAGE) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, DaxError::Limit(_)), "{error}");
    assert!((1_000..3_000).contains(&written), "{written}");
    let stats = file.stats();
    assert_eq!(
        (stats.present.0, 4_000 - device.free_pages().0),
        (written, written)
    );
    // The extent map has a word for each page, in whole pages of words.
    let usage = |group: &Group| group.stats().usage.0;
    assert!(usage(&group) >= stats.tables.0 + written * 8 / PAGE);
    file.punch(0..1 << 30).unwrap();
    file.sync_all().unwrap();
    pool.flush_retired();
    assert!(usage(&group) <= file.stats().tables.0 + 2);
    drop(file);
    pool.flush_retired();
    assert_eq!(usage(&group), 0);
}

/// An extent map without extents that says it takes this many bytes on the heap.
#[derive(Default)]
struct Sized(AtomicU64);

impl ExtentMap for Sized {
    fn lookup(&self, _: u64, most: u64) -> std::io::Result<Extent> {
        Ok(Extent {
            at: None,
            pages: most,
        })
    }

    fn allocate(&self, _: u64, _: u64) -> std::io::Result<u64> {
        Err(std::io::ErrorKind::StorageFull.into())
    }

    fn free(&self, _: Range<u64>) -> std::io::Result<()> {
        Ok(())
    }

    fn heap_bytes(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn set_len(&self, _: u64) -> std::io::Result<()> {
        Ok(())
    }

    fn sync_metadata(&self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_comes_to_the_heap_beside_a_settlement_is_paid_for() {
    let pool = pool(64);
    let device = device(16);
    let sized = Arc::new(Sized::default());
    let file = file_over(&pool, &device, sized.clone(), 16, DaxSetup::default());
    let core = file.core().clone();
    let settle = |pages: u64| {
        sized.0.store(pages * PAGE, Ordering::SeqCst);
        core.settle_heap();
    };
    let paid = || pool.groups.usage(GroupId::ROOT).0;
    settle(10);
    assert_eq!(paid(), 10);
    // While all charges are given back, as many bytes as before are added again; the charge that is
    // read meanwhile is the old one.
    let (other, grown) = (core.clone(), sized.clone());
    let there = failpoint::on("Settled", move || {
        grown.0.store(10 * PAGE, Ordering::SeqCst);
        other.settle_heap();
    });
    settle(0);
    drop(there);
    assert_eq!(paid(), 10);
    core.pay_ahead(Wait::Yes).unwrap();
    assert_eq!(paid(), 12);
    settle(0);
    assert_eq!(paid(), 2, "two pages stay");
}

// spec: D11
#[test]
fn a_long_store_has_the_blocks_it_goes_on_to_and_no_others() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 16);
    file.write_at(&[1; 6 * PAGE_SIZE], 0).unwrap();
    file.write_at(&[1; 4 * PAGE_SIZE], 7 * PAGE).unwrap();
    file.sync_all().unwrap();
    let core = file.core();
    let locked = |page, more| {
        let reach = Reach::Pages { end: 16 };
        let pages = core.fault(page, FaultKind::Write, reach, more).unwrap();
        let locked = pages.pages();
        for page in locked.clone() {
            let mut bytes = [0; PAGE_SIZE];
            pages.copy_to(page, &mut bytes);
            assert_eq!(bytes[0], 1, "page {page} is another block");
        }
        locked
    };
    assert_eq!(locked(0, 0), 0..1);
    assert_eq!(file.stats().dirty.0, 1);
    assert_eq!(locked(1, 2), 1..4);
    assert_eq!(file.stats().dirty.0, 4);
    // The pages end at the hole, which is allocated by a fault of its own.
    assert_eq!(locked(4, 9), 4..6);
    // An entry that another thread has locked is not waited for.
    let held = core.fault(9, FaultKind::Write, Reach::Pages { end: 10 }, 0);
    assert_eq!(locked(7, 9), 7..9);
    drop(held);
    assert_eq!(locked(7, 9), 7..11);
    assert_eq!((file.stats().dirty.0, file.stats().present.0), (10, 10));
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 0);
}

// spec: D9
#[test]
fn a_write_of_all_of_a_large_hole_is_one_block_where_that_was_chosen() {
    const BYTES: u64 = LARGE * PAGE;
    let bytes: Vec<u8> = (0..BYTES + 2 * PAGE)
        .map(|at| (at / PAGE) as u8 | 1)
        .collect();
    for (hole_writes, pages, large) in [
        (HoleWrites::Large, 4 * LARGE, true),
        (HoleWrites::Large, 2 * LARGE, false),
        (HoleWrites::OnePage, 4 * LARGE, false),
    ] {
        let pool = pool(64);
        let device = device(pages);
        // There is little room, and none of it contiguous: two pages of another file are left, far
        // apart.
        let other = file(&pool, &device, LARGE + 1);
        for page in 0..=LARGE {
            other.write_at(&[1], page * PAGE).unwrap();
        }
        other.punch(PAGE..LARGE * PAGE).unwrap();
        let setup = DaxSetup {
            hole_writes,
            ..DaxSetup::default()
        };
        let root = pool.root_group();
        let file =
            DaxFile::on_device(&Cache::new(&pool), &root, &device, "data.bin", setup).unwrap();
        file.set_len(BYTES).unwrap();
        // A mapping has the hole, so its translations are revoked first.
        let shown = file
            .core()
            .fault(7, FaultKind::Read, Reach::Leaf, 0)
            .unwrap();
        assert!(shown.is_large());
        drop(shown);
        file.write_at(&bytes, 0).unwrap();
        let entry = file.core().entries.peek(3).unwrap();
        assert_eq!(
            (entry.size() == Size::Large, entry.is_dirty()),
            (large, true)
        );
        assert_eq!(
            (file.len(), file.stats().present.0),
            (BYTES + 2 * PAGE, 514)
        );
        let mut back = vec![0; bytes.len()];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == bytes);
        // The second write finds the block, or the pages.
        let again: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        file.sync_all().unwrap();
        file.write_at(&again[..BYTES as usize], 0).unwrap();
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back[..BYTES as usize] == again[..BYTES as usize]);
        assert_eq!((file.stats().present.0, file.stats().dirty.0), (514, 512));
        drop(file);
        assert_eq!(device.free_pages().0, pages - 2);
    }
}
