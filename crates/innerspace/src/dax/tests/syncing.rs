//! Sync: which stores are durable once it has returned.

use super::super::HoleWrites;
use super::super::extents::faulty::Faulty;
use super::super::grab::Wanted;
use super::*;
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;

/// Returns the content of the file's page after a power cut.
fn after_power_cut(extents: &impl ExtentMap, image: &[u8], page: u64) -> Vec<u8> {
    match extents.lookup(page, 1).unwrap().at {
        None => vec![0; PAGE_SIZE],
        Some(block) => image[(block * PAGE) as usize..][..PAGE_SIZE].to_vec(),
    }
}

fn power_file(pool: &Arc<Pool>, pages: u64) -> (DaxDevice, Arc<ScatteredMap>, DaxFile) {
    let device = DaxDevice::with_power_cut(pages * PAGE).unwrap();
    let extents = Arc::new(ScatteredMap::new(&device));
    let file = file_over(pool, &device, extents.clone(), pages, DaxSetup::default());
    (device, extents, file)
}

/// Writes and syncs. Returns, for each sync, the steps until it returned and the writes it covered.
fn run(file: &DaxFile, device: &DaxDevice) -> Vec<(u64, Vec<(u64, u8)>)> {
    let mut now = vec![(0, 0u8), (1, 0), (2, 0), (3, 0)];
    let mut syncs = Vec::new();
    for (round, pages) in [&[0u64, 1][..], &[0], &[2, 3, 0], &[1]].iter().enumerate() {
        for page in *pages {
            let byte = round as u8 + 1;
            file.write_at(&vec![byte; PAGE_SIZE], page * PAGE).unwrap();
            now[*page as usize].1 = byte;
        }
        file.sync_all().unwrap();
        syncs.push((device.steps(), now.clone()));
    }
    syncs
}

// spec: D11
#[test]
fn a_power_cut_at_any_step_loses_nothing_synced() {
    let pool = pool(64);
    let (device, _, file) = power_file(&pool, 8);
    run(&file, &device);
    let all = device.steps();
    drop(file);
    assert!(all > 4, "nothing was flushed");
    for cut in (0..=all).step_by(if cfg!(miri) { 50 } else { 3 }) {
        let (device, extents, file) = power_file(&pool, 8);
        device.cut_power_after(cut);
        let syncs = run(&file, &device);
        for image in [device.durable_image(), device.torn_image(cut)] {
            let Some((_, synced)) = syncs.iter().rev().find(|(steps, _)| *steps <= cut) else {
                continue;
            };
            for (page, byte) in synced {
                let left = after_power_cut(&*extents, &image, *page);
                // A later write may have reached the medium already, in whole lines.
                assert!(
                    left.iter().all(|found| found >= byte),
                    "cut after {cut} steps: page {page} lost what was synced"
                );
            }
        }
    }
}

// spec: D12
#[test]
fn a_sync_of_the_middle_of_a_large_block_flushes_all_of_it() {
    let pool = pool(64);
    let device = DaxDevice::with_power_cut(4 * LARGE * PAGE).unwrap();
    let extents = Arc::new(ScatteredMap::new(&device));
    let setup = DaxSetup {
        hole_writes: HoleWrites::Large,
        ..DaxSetup::default()
    };
    let file = file_over(&pool, &device, extents.clone(), LARGE, setup);
    let large = file
        .core()
        .fault(
            5,
            crate::cache::FaultKind::Write,
            super::super::Reach::Leaf,
            0,
        )
        .unwrap();
    assert!(large.is_large());
    drop(large);
    for page in [0, 5, 511] {
        file.write_at(&[7; 100], page * PAGE).unwrap();
    }
    assert_eq!(file.stats().dirty.0, LARGE);
    file.sync_range(200 * PAGE..200 * PAGE + 1).unwrap();
    assert_eq!(
        (file.stats().dirty.0, file.stats().flushed),
        (0, LARGE * PAGE)
    );
    let image = device.durable_image();
    for page in [0, 5, 511] {
        assert_eq!(after_power_cut(&*extents, &image, page)[..100], [7; 100]);
    }
}

/// Locks the entry of page 0 and runs `other` until it waits for the entry; then calls `change`.
fn with_page_locked(
    file: &DaxFile,
    other: impl FnOnce() + Send,
    change: impl FnOnce(super::super::entries::Locked<'_>),
) {
    let entries = &file.core().entries;
    let locked = entries.lock(0, Wanted::Present).unwrap().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(other);
        until(|| entries.waits.len() == 1);
        change(locked);
        other.join().unwrap();
    });
}

// spec: D20
#[test]
fn a_sync_sees_an_entry_that_it_had_to_wait_for() {
    let pool = pool(64);
    let (device, extents, file) = power_file(&pool, 8);
    file.write_at(&[1; PAGE_SIZE], 0).unwrap();
    with_page_locked(&file, || file.sync_all().unwrap(), |locked| drop(locked));
    assert_eq!(file.stats().dirty.0, 0, "the page was passed over");
    let image = device.durable_image();
    assert_eq!(after_power_cut(&*extents, &image, 0), [1; PAGE_SIZE]);
}

// spec: D14
#[test]
fn a_sync_passes_over_what_was_punched_while_it_waited() {
    let pool = pool(64);
    let (device, _, file) = power_file(&pool, 8);
    file.write_at(&[1; PAGE_SIZE], 0).unwrap();
    let before = device.steps();
    with_page_locked(&file, || file.sync_all().unwrap(), |locked| locked.remove());
    assert_eq!(
        device.steps(),
        before,
        "a page that is not there was flushed"
    );
}

// spec: D13
#[test]
fn a_second_sync_returns_after_the_flush_that_it_relies_on() {
    let pool = pool(64);
    let (device, extents, file) = power_file(&pool, 8);
    file.write_at(&[1; PAGE_SIZE], 0).unwrap();
    let second = || {
        file.sync_all().unwrap();
        let image = device.durable_image();
        assert_eq!(after_power_cut(&*extents, &image, 0), [1; PAGE_SIZE]);
    };
    let started = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let first = || file.sync_all().unwrap();
        with_page_locked(&file, first, |locked| {
            // The first sync has taken the dirty range and waits for the entry.
            scope.spawn(|| {
                started.wait();
                second();
            });
            started.wait();
            for _ in 0..1_000 {
                std::thread::yield_now();
            }
            drop(locked);
        });
    });
}

// spec: D11
#[test]
fn what_is_written_again_is_dirty_again() {
    let pool = pool(64);
    let (_, _, file) = power_file(&pool, 8);
    for _ in 0..3 {
        file.write_at(&[1; 10], 3 * PAGE).unwrap();
        assert_eq!(file.stats().dirty.0, 1);
        file.sync_all().unwrap();
        assert_eq!(file.stats().dirty.0, 0);
        let flushed = file.stats().flushed;
        file.sync_all().unwrap();
        assert_eq!(file.stats().flushed, flushed, "nothing was dirty");
    }
}

// spec: D11
#[test]
fn what_is_stored_through_a_pin_that_ends_during_a_sync_is_in_the_next() {
    let pool = pool(64);
    let (device, extents, file) = power_file(&pool, 8);
    file.write_at(&[1; 2 * PAGE_SIZE], 0).unwrap();
    let pin = file.pin(PAGE..2 * PAGE).unwrap();
    let flushed = failpoint::on("Flushed", {
        let (device, extents) = (device.clone(), extents.clone());
        move || {
            // This stores by the address, as foreign code would.
            let block = extents.lookup(1, 1).unwrap().at.unwrap();
            device.write(block * PAGE, &[2; PAGE_SIZE]);
            drop(pin);
        }
    });
    file.sync_all().unwrap();
    drop(flushed);
    assert_eq!(file.stats().dirty.0, 1, "the page that was pinned");
    file.sync_all().unwrap();
    let image = device.durable_image();
    let durable = |page| after_power_cut(&*extents, &image, page);
    assert_eq!([0, 1].map(durable), [[1; PAGE_SIZE], [2; PAGE_SIZE]]);
    assert_eq!(file.stats().dirty.0, 0);
}

#[test]
fn a_sync_of_a_part_leaves_the_rest_dirty() {
    let pool = pool(64);
    let (_, _, file) = power_file(&pool, 8);
    file.write_at(&[1; 8 * PAGE_SIZE], 0).unwrap();
    file.sync_range(2 * PAGE..4 * PAGE).unwrap();
    assert_eq!(file.stats().dirty.0, 6);
    file.sync_range(3 * PAGE..).unwrap();
    assert_eq!(file.stats().dirty.0, 2);
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 0);
}

// spec: D11
#[test]
fn a_long_store_over_the_end_of_a_range_is_synced() {
    let pool = pool(64);
    let (_, _, file) = power_file(&pool, 2 * LARGE);
    file.write_at(&[1; 20 * PAGE_SIZE], 505 * PAGE).unwrap();
    file.sync_all().unwrap();
    let store = |page| {
        let reach = Reach::Pages { end: 520 };
        let locked = file.core().fault(page, FaultKind::Write, reach, 8);
        locked.unwrap().pages()
    };
    assert_eq!(store(511), 511..512);
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 0);
    assert_eq!(store(512), 512..520);
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 0);
}

// spec: D22
#[test]
fn a_failed_allocation_is_reported_and_leaves_the_entry_free() {
    let pool = pool(64);
    let device = device(8);
    let extents = Arc::new(Faulty::new(&device));
    let file = file_over(&pool, &device, extents.clone(), 8, DaxSetup::default());
    extents.plan(|plan| plan.fail_allocate = Some((0, std::io::ErrorKind::StorageFull)));
    let error = file.write_at(&[1; 10], 5000).unwrap_err();
    assert!(
        error.to_string().starts_with("data.bin: allocate at 4,096"),
        "{error}"
    );
    assert_eq!((file.stats().present.0, file.stats().dirty.0), (0, 0));
    file.write_at(&[1; 10], 5000).unwrap();
    let calls = extents.calls();
    assert_eq!((calls.allocated, calls.freed), (1, 0));
}

/// Creates a file on a device whose host forgets failed writes, with an extent map that can fail
/// syncs.
fn forgetful_file(pool: &Arc<Pool>, pages: u64) -> (DaxDevice, Arc<Faulty>, DaxFile) {
    let device = DaxDevice::with_forgetful_host(pages * PAGE).unwrap();
    let extents = Arc::new(Faulty::new(&device));
    let file = file_over(pool, &device, extents.clone(), pages, DaxSetup::default());
    (device, extents, file)
}

// spec: D11
#[test]
fn what_a_host_failed_to_write_is_written_by_the_next_sync() {
    let pool = pool(64);
    let (device, extents, file) = forgetful_file(&pool, 8);
    let on_medium = |page| after_power_cut(&*extents, &device.medium_image(), page)[0];
    file.write_at(&[1; 3 * PAGE_SIZE], 0).unwrap();
    device.fail_syncs(1);
    let error = file.sync_range(..PAGE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data.bin: sync at 0 failed: a write was lost"
    );
    assert_eq!((file.stats().dirty.0, file.stats().flushed), (3, 0));
    // All pages are written again, including those that the failed sync did not cover: the host may
    // have forgotten any of them.
    file.sync_range(PAGE..).unwrap();
    assert_eq!([0, 1, 2].map(on_medium), [0, 1, 1]);
    file.sync_all().unwrap();
    assert_eq!([0, 1, 2].map(on_medium), [1; 3]);
    assert_eq!(file.stats().dirty.0, 0);
}

// spec: D11
#[test]
fn what_was_cleaned_before_the_host_failed_is_written_again() {
    let pool = pool(64);
    let (device, extents, file) = forgetful_file(&pool, 8);
    file.write_at(&[1; PAGE_SIZE], 0).unwrap();
    extents.plan(|plan| plan.fail_sync = Some(std::io::ErrorKind::TimedOut));
    for _ in 0..2 {
        let error = file.sync_all().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(file.stats().dirty.0, 1);
    }
    extents.plan(|plan| plan.fail_sync = None);
    file.write_at(&[2; PAGE_SIZE], PAGE).unwrap();
    file.sync_all().unwrap();
    let image = device.medium_image();
    let first = |page| after_power_cut(&*extents, &image, page)[0];
    assert_eq!([0, 1].map(first), [1, 2]);
    assert_eq!(file.stats().dirty.0, 0);
}

#[test]
fn each_handle_hears_of_a_failed_sync_once() {
    let pool = pool(64);
    let (device, _, file) = forgetful_file(&pool, 8);
    let (other, clone) = (DaxFile::new(file.core().clone()), file.clone());
    file.write_at(&[1; 10], 0).unwrap();
    device.fail_syncs(1);
    file.sync_all().unwrap_err();
    clone.sync_all().unwrap();
    let later = DaxFile::new(file.core().clone());
    let error = other.sync_all().unwrap_err();
    assert!(error.to_string().ends_with("a write was lost"), "{error}");
    other.sync_all().unwrap();
    later.sync_all().unwrap();
}

#[test]
fn pages_of_one_range_are_one_request_to_the_host() {
    let pool = pool(64);
    let device = DaxDevice::with_forgetful_host(LARGE * PAGE).unwrap();
    let extents = Faulty::new(&device);
    let file = file_over(&pool, &device, extents, LARGE, DaxSetup::default());
    for page in (0..LARGE).step_by(7) {
        file.write_at(&[1; 10], page * PAGE).unwrap();
    }
    file.sync_all().unwrap();
    assert_eq!((device.host_syncs(), file.stats().dirty.0), (1, 0));
}

/// A sync is not over before its pages are known to be durable: pages that it has cleaned may
/// become dirty again.
// spec: D15
#[test]
fn an_invalidation_beside_a_sync_keeps_what_that_makes_dirty_again() {
    let pool = pool(64);
    let pages = LARGE + 50;
    let (_, extents, file) = forgetful_file(&pool, pages);
    file.write_at(&vec![1; (pages * PAGE) as usize], 0).unwrap();
    extents.plan(|plan| plan.fail_sync = Some(std::io::ErrorKind::TimedOut));
    let beside = std::rc::Rc::new(std::cell::RefCell::new(None));
    // The pages of the first range are clean once those of the second have been flushed.
    let first = failpoint::on("Flushed", {
        let (file, beside) = (file.clone(), beside.clone());
        move || {
            let invalidate = move || {
                let other = file.clone();
                let other = std::thread::spawn(move || other.invalidate(..).unwrap());
                // The call waits for the sync. If it wrongly does not, this loop gives it time to
                // finish.
                for _ in 0..1000 {
                    if other.is_finished() || file.stats().present.0 < pages {
                        break;
                    }
                    std::thread::yield_now();
                }
                other
            };
            let other = std::rc::Rc::new(std::cell::Cell::new(None));
            let into = other.clone();
            let second = failpoint::on("Flushed", move || into.set(Some(invalidate())));
            *beside.borrow_mut() = Some((second, other));
        }
    });
    file.sync_all().unwrap_err();
    drop(first);
    let (second, other) = beside.take().expect("two ranges");
    drop(second);
    other.take().expect("begun above").join().unwrap();
    assert_eq!(
        (file.stats().present.0, file.stats().dirty.0),
        (pages, pages)
    );
}

// spec: D17
#[test]
fn a_large_fault_that_waited_looks_at_the_end_again() {
    let pool = pool(64);
    let device = device(8);
    let file = file(&pool, &device, 2 * LARGE);
    let entries = &file.core().entries;
    let held = entries.lock(LARGE, Wanted::Large).unwrap().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let fault = file
                .core()
                .fault(LARGE + 7, FaultKind::Read, Reach::Leaf, 0);
            fault.unwrap().is_large()
        });
        until(|| entries.waits.len() == 1);
        // This is what a cut does, which then removes the entry.
        let end = (LARGE + 100) * PAGE;
        file.core().size.store(end, Ordering::SeqCst);
        held.remove();
        assert!(!waiter.join().unwrap(), "it goes on behind the end");
    });
    file.core().size.store(2 * LARGE * PAGE, Ordering::SeqCst);
}
