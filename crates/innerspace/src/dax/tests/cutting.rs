//! Truncate, punch and invalidate; pins, which keep them waiting.

use std::time::Duration;

use super::super::extents::faulty::Faulty;
use super::super::{DaxError, HoleWrites, PinHolder, Reach};
use super::*;
use crate::cache::FaultKind;

#[test]
fn a_shorter_file_loses_its_bytes_and_a_longer_one_gets_zeros() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 0);
    file.write_at(&[7; 5 * PAGE_SIZE], 0).unwrap();
    file.set_len(PAGE + 100).unwrap();
    assert_eq!(device.free_pages().0, 14);
    file.set_len(3 * PAGE).unwrap();
    let mut bytes = vec![1; 3 * PAGE_SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let (kept, zeros) = bytes.split_at(PAGE_SIZE + 100);
    assert!(kept.iter().all(|byte| *byte == 7) && zeros.iter().all(|byte| *byte == 0));
    file.punch(10..PAGE + 50).unwrap();
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[9..11], [7, 0]);
    assert_eq!(bytes[PAGE_SIZE + 49..PAGE_SIZE + 51], [0, 7]);
    assert_eq!(device.free_pages().0, 14, "both pages have bytes left");
    file.punch(0..u64::MAX).unwrap();
    assert_eq!((device.free_pages().0, file.len()), (16, 3 * PAGE));
    let error = file.set_len(u64::MAX).unwrap_err();
    assert!(matches!(error, DaxError::TooLong { .. }), "{error}");
}

// spec: D16
#[test]
fn a_cut_waits_for_pins_and_tells_their_holder_at_once() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 8);
    let pin = file.pin(PAGE + 10..3 * PAGE).unwrap();
    let parts: Vec<usize> = pin.pieces().map(|(_, len)| len).collect();
    assert_eq!(parts.iter().sum::<usize>() as u64, 2 * PAGE - 10);
    let (address, _) = pin.pieces().next().unwrap();
    // SAFETY: the byte is pinned, and no other thread uses it.
    unsafe { address.write_volatile(99) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, PAGE + 10).unwrap();
    assert_eq!(byte, [99]);
    let holder = |error: DaxError| match error {
        DaxError::Busy { holder, .. } => holder,
        other => panic!("{other}"),
    };
    let own = file.punch(0..8 * PAGE).unwrap_err();
    assert_eq!(holder(own), PinHolder::ThisThread);
    // A cut outside the pin does not wait.
    file.punch(4 * PAGE..8 * PAGE).unwrap();
    file.set_len(3 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let other = || file.set_len_within(0, Duration::ZERO).unwrap_err();
        let error = scope.spawn(other).join().unwrap();
        assert_eq!(holder(error), PinHolder::Other);
        assert_eq!(file.len(), 3 * PAGE, "nothing was changed");
        let waiter = scope.spawn(|| file.set_len(0));
        drop(pin);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!((file.len(), device.free_pages().0), (0, 16));
}

/// Another thread's pin begins before this thread's own, and was made before it.
// spec: D16
#[test]
fn the_error_of_a_cut_names_the_pin_of_the_holder_that_it_names() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 8);
    let others = std::thread::scope(|scope| {
        let pin = || file.pin(PAGE..2 * PAGE).unwrap();
        scope.spawn(pin).join().unwrap()
    });
    let later = file.pin(6 * PAGE..7 * PAGE).unwrap();
    let own = file.pin(3 * PAGE + 9..5 * PAGE).unwrap();
    let busy = |error: DaxError| match error {
        DaxError::Busy { range, holder, .. } => (range, holder),
        other => panic!("{other}"),
    };
    let error = file.punch(..).unwrap_err();
    assert_eq!(busy(error), (3 * PAGE..5 * PAGE, PinHolder::ThisThread));
    drop((own, later));
    let error = file.set_len_within(0, Duration::ZERO).unwrap_err();
    assert_eq!(busy(error), (PAGE..2 * PAGE, PinHolder::Other));
    drop(others);
    file.punch(..).unwrap();
}

#[test]
fn a_pin_of_no_bytes_keeps_nobody_waiting() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 8);
    file.write_at(&[7; 100], 2 * PAGE).unwrap();
    let pin = file.pin(2 * PAGE + 10..2 * PAGE + 10).unwrap();
    assert_eq!(pin.pieces().count(), 0);
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 0, "nobody can have stored");
    file.punch(0..8 * PAGE).unwrap();
    file.set_len_within(0, Duration::ZERO).unwrap();
}

#[test]
fn a_pinned_page_stays_dirty_through_a_sync() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 8);
    let pin = file.pin(0..PAGE).unwrap();
    file.sync_all().unwrap();
    assert_eq!(
        file.stats().dirty.0,
        1,
        "foreign code may store there at any time"
    );
    drop(pin);
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 0);
}

// spec: D15
#[test]
fn an_invalidation_keeps_what_is_dirty() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 8);
    file.write_at(&[1; 2 * PAGE_SIZE], 0).unwrap();
    file.sync_all().unwrap();
    file.write_at(&[2; 100], PAGE).unwrap();
    drop(
        file.core()
            .fault(5, FaultKind::Read, Reach::Pages { end: 6 }, 0)
            .unwrap(),
    );
    let before = file.stats();
    assert_eq!((before.present.0, before.dirty.0, before.zero.0), (2, 1, 1));
    file.invalidate(..).unwrap();
    let after = file.stats();
    assert_eq!((after.present.0, after.dirty.0, after.zero.0), (1, 1, 0));
    let mut bytes = [0; 2];
    file.read_exact_at(&mut bytes, PAGE - 1).unwrap();
    assert_eq!(bytes, [1, 2]);
}

// spec: D16
#[test]
fn a_pinned_part_of_a_large_block_keeps_it_from_being_cut() {
    let pool = pool(64);
    let device = DaxDevice::with_power_cut(2 * LARGE * PAGE).unwrap();
    let large = DaxSetup {
        hole_writes: HoleWrites::Large,
        ..DaxSetup::default()
    };
    let file = DaxFile::on_device(
        &Cache::new(&pool),
        &pool.root_group(),
        &device,
        "data.bin",
        large,
    )
    .unwrap();
    file.set_len(LARGE * PAGE).unwrap();
    drop(
        file.core()
            .fault(0, FaultKind::Write, Reach::Leaf, 0)
            .unwrap(),
    );
    let pin = file.pin(0..PAGE).unwrap();
    let busy = file.set_len(100 * PAGE).unwrap_err();
    assert!(matches!(busy, DaxError::Busy { .. }), "{busy}");
    let (address, _) = pin.pieces().next().unwrap();
    // SAFETY: the byte is pinned, and no other thread uses it.
    unsafe { address.write_volatile(99) };
    drop(pin);
    file.set_len(100 * PAGE).unwrap();
    file.sync_all().unwrap();
    assert!(
        device.durable_image().contains(&99),
        "what was stored through a pin"
    );
}

// spec: D16
#[test]
fn a_cut_inside_a_pinned_page_waits() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 4);
    let pin = file.pin(0..PAGE).unwrap();
    let cut = file.set_len_within(100, Duration::ZERO);
    assert!(matches!(cut, Err(DaxError::Busy { .. })), "{cut:?}");
    drop(pin);
    file.set_len_within(100, Duration::MAX).unwrap();
}

#[test]
fn a_cut_without_memory_changes_nothing() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 0);
    file.write_at(&[7; 4 * PAGE_SIZE], 0).unwrap();
    file.sync_all().unwrap();
    file.invalidate(..).unwrap();
    pool.flush_retired();
    let mut all = Vec::new();
    while let Ok(frame) = pool.alloc(GroupId::ROOT, 0, crate::reclaim::AllocMode::Wait) {
        all.push(frame);
    }
    let error = file.set_len(PAGE + 100).unwrap_err();
    assert!(matches!(error, DaxError::Limit(_)), "{error}");
    let mut bytes = vec![0; 4 * PAGE_SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "bytes are lost");
    drop(all);
    file.set_len(PAGE + 100).unwrap();
}

#[test]
fn a_cut_that_fails_leaves_the_file_as_long_as_it_was() {
    let pool = pool(64);
    let device = device(16);
    let extents = Arc::new(Faulty::new(&device));
    let file = file_over(&pool, &device, extents.clone(), 0, DaxSetup::default());
    file.write_at(&[7; 4 * PAGE_SIZE], 0).unwrap();
    extents.plan(|plan| plan.fail_free = Some(std::io::ErrorKind::TimedOut));
    let error = file.set_len(PAGE).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(file.len(), 4 * PAGE);
    let mut bytes = vec![0; 4 * PAGE_SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    extents.plan(|plan| plan.fail_free = None);
    file.set_len(PAGE).unwrap();
    assert_eq!((file.len(), device.free_pages().0), (PAGE, 15));
    drop(file);
    assert_nothing_left(&pool);
}

/// A map that makes a call once, before blocks are freed.
struct Freeing {
    map: ScatteredMap,
    before: std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl ExtentMap for Freeing {
    fn lookup(&self, page: u64, most: u64) -> std::io::Result<Extent> {
        self.map.lookup(page, most)
    }

    fn allocate(&self, page: u64, pages: u64) -> std::io::Result<u64> {
        self.map.allocate(page, pages)
    }

    fn free(&self, pages: Range<u64>) -> std::io::Result<()> {
        let before = self.before.lock().unwrap().take();
        before.into_iter().for_each(|before| before());
        self.map.free(pages)
    }

    fn forget(&self, pages: Range<u64>) {
        self.map.forget(pages);
    }

    fn heap_bytes(&self) -> u64 {
        self.map.heap_bytes()
    }

    fn is_parted_by(&self, pages: &Range<u64>) -> bool {
        self.map.is_parted_by(pages)
    }

    fn set_len(&self, bytes: u64) -> std::io::Result<()> {
        self.map.set_len(bytes)
    }

    fn sync_metadata(&self) -> std::io::Result<()> {
        self.map.sync_metadata()
    }
}

// spec: D16
#[test]
fn a_large_fault_beside_a_punch_has_no_block_that_is_being_freed() {
    let pool = pool(64);
    let device = device(4 * LARGE);
    let extents = Arc::new(Freeing {
        map: ScatteredMap::new(&device),
        before: std::sync::Mutex::new(None),
    });
    let setup = DaxSetup {
        hole_writes: HoleWrites::Large,
        ..DaxSetup::default()
    };
    let file = file_over(&pool, &device, extents.clone(), 2 * LARGE, setup);
    let large = (LARGE * PAGE) as usize;
    file.write_at(&vec![7; large], 0).unwrap();
    file.sync_all().unwrap();
    // No entry exists for which a fault would wait.
    file.invalidate(..).unwrap();
    let (hand_over, fault) = std::sync::mpsc::channel();
    let core = file.core().clone();
    *extents.before.lock().unwrap() = Some(Box::new(move || {
        let fault = std::thread::spawn(move || {
            let fault = core.fault(5, FaultKind::Read, Reach::Leaf, 0);
            fault.unwrap().host(5).is_some()
        });
        // The fault waits for the punch. If it wrongly does not, this loop gives it time to finish.
        for _ in 0..1000 {
            if fault.is_finished() {
                break;
            }
            std::thread::yield_now();
        }
        hand_over.send(fault).unwrap();
    }));
    file.punch(0..LARGE * PAGE).unwrap();
    let fault = fault.recv().unwrap();
    assert!(!fault.join().unwrap(), "it is a hole");
    assert_eq!(device.free_pages().0, 4 * LARGE);
}
