//! Direct-access files in spaces: writes over holes, large blocks, copies, the end of a file.
//! Holes, and sync with cuts, are in files of their own.

mod holes;
mod syncing;

use std::sync::Barrier;

use super::*;
use crate::dax::{DaxDevice, DaxFile, DaxSetup, HoleWrites};

pub(super) const LARGE: u64 = 2 * crate::MIB;

pub(super) fn device(bytes: u64) -> DaxDevice {
    DaxDevice::memory(bytes).unwrap()
}

/// Creates a file of this many bytes that is one hole.
pub(super) fn hole(pool: &Arc<Pool>, device: &DaxDevice, bytes: u64) -> DaxFile {
    hole_with(pool, device, bytes, HoleWrites::OnePage)
}

pub(super) fn hole_with(
    pool: &Arc<Pool>,
    device: &DaxDevice,
    bytes: u64,
    hole_writes: HoleWrites,
) -> DaxFile {
    let setup = DaxSetup {
        hole_writes,
        ..DaxSetup::default()
    };
    let file = DaxFile::on_device(
        &Cache::new(pool),
        &pool.root_group(),
        device,
        "data.bin",
        setup,
    )
    .unwrap();
    file.set_len(bytes).unwrap();
    file
}

pub(super) fn shared(file: &DaxFile) -> Map {
    Map::dax(file).shared().writable()
}

/// Checks, at the end of a test, that all memory is given back and that the zero frame is
/// unchanged. The leaf of zeros stays.
fn assert_all_given_back(pool: &Arc<Pool>) {
    pool.flush_retired();
    pool.flush_retired();
    let leaf = u64::from(pool.zero_leaf.get().is_some());
    assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(leaf));
    pool.validate();
}

/// The page's entry is not made yet, or is a hole that a store would have to fill.
// spec: P29
#[test]
fn a_direct_file_that_would_have_to_wait_ends_a_try_form_as_one_that_would_block() {
    let pool = pool(256);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, 4 * PAGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    let load = a.try_load::<u64>(at).unwrap_err();
    let store = a.try_store(at, 1_u64).unwrap_err();
    assert_eq!(
        (load.kind(), store.kind()),
        (FaultKind::WouldBlock, FaultKind::WouldBlock)
    );
    assert!(
        a.explain(store).cause().is_none(),
        "waiting is all that is missing"
    );
    assert_eq!(a.load::<u64>(at), Ok(0));
    let store = a.try_store(at, 1_u64).unwrap_err();
    assert_eq!(store.kind(), FaultKind::WouldBlock);
    a.store(at, 0_u64).unwrap();
    assert_eq!(a.try_store(at, 1_u64), Ok(()));
    // What waiting does not mend is no such fault.
    let past = space.map(shared(&file).range(0..8 * PAGE)).unwrap() + 5 * PAGE;
    assert_eq!(
        a.try_load::<u64>(past).unwrap_err().kind(),
        FaultKind::PastEnd
    );
}

/// The accessors make no further access; the space tells their caches that the mapping is gone.
#[test]
fn a_file_that_only_an_accessor_remembers_is_closed_when_it_is_unmapped() {
    let pool = pool(512);
    let device = device(64 * PAGE);
    for parts in [1, 3] {
        let file = hole(&pool, &device, 16 * PAGE);
        let space = space(&pool);
        let at = space.map(shared(&file)).unwrap();
        let mut accessors = [space.accessor().unwrap(), space.accessor().unwrap()];
        for page in 0..16 {
            let a = &mut accessors[page as usize / 8];
            a.store(at + page * PAGE, page).unwrap();
        }
        drop(file);
        assert_eq!(device.free_pages().0, 48);
        // Unmaps the file as a whole, or its middle first, which leaves two mappings.
        match parts {
            1 => space.unmap(at, 16 * PAGE).unwrap(),
            _ => {
                space.unmap(at + 5 * PAGE, PAGE).unwrap();
                accessors[0].store(at, 1_u64).unwrap();
                assert_eq!(device.free_pages().0, 48);
                space.unmap(at, 5 * PAGE).unwrap();
                assert_eq!(device.free_pages().0, 48);
                space.unmap(at + 6 * PAGE, 10 * PAGE).unwrap();
            }
        }
        pool.flush_retired();
        assert_eq!(
            device.free_pages().0,
            64,
            "{parts} unmaps: the file is open"
        );
        accessors[0].store(at, 1_u64).unwrap_err();
        drop((accessors, space));
    }
    assert_all_given_back(&pool);
}

#[test]
fn an_accessor_counts_itself_on_a_file_once_for_all_its_slots() {
    let pool = pool(512);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, 16 * PAGE);
    let space = space(&pool);
    let [one, two] = [(); 2].map(|()| space.map(shared(&file)).unwrap());
    // Each mapping has a slot of its own, by the number of its first page.
    let slot = |at: VirtAddr| at.0 / PAGE % 4;
    let two = two + u64::from(slot(one) == slot(two)) * PAGE;
    let before = Arc::strong_count(file.core());
    let mut accessors = [space.accessor().unwrap(), space.accessor().unwrap()];
    for (number, a) in (0..).zip(&mut accessors) {
        a.store(one + 8 * number * PAGE, 1_u8).unwrap();
        a.store(two + (8 * number + 4) * PAGE, 1_u8).unwrap();
    }
    assert_eq!(Arc::strong_count(file.core()), before + 2);
    let misses = space.stats().lookups.misses;
    assert_eq!(misses, 4, "two slots of each");
}

// spec: D4
#[test]
fn a_write_by_call_is_seen_where_the_hole_was_mapped() {
    for len in [16 * PAGE, 2 * LARGE] {
        let pool = pool(512);
        let device = device(64 * PAGE);
        let file = hole(&pool, &device, len);
        let space = space(&pool);
        let at = space.map(Map::dax(&file)).unwrap();
        let mut a = space.accessor().unwrap();
        assert_eq!(a.load::<u64>(at + 3 * PAGE), Ok(0));
        file.write_at(&[9; 8], 3 * PAGE).unwrap();
        assert_eq!(a.load::<u64>(at + 3 * PAGE), Ok(0x0909_0909_0909_0909));
        pool.validate();
        drop((a, space, file));
        assert_all_given_back(&pool);
    }
}

// spec: D4
#[test]
fn a_reader_of_a_hole_sees_what_was_written_before_it_asked() {
    let pool = pool(512);
    let device = device(1024 * PAGE);
    for len in [512 * PAGE - PAGE, LARGE] {
        let file = hole(&pool, &device, len);
        let space = space(&pool);
        let at = space.map(Map::dax(&file)).unwrap();
        let written = crate::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for page in 0..500 {
                    file.write_at(&[1; 8], page * PAGE).unwrap();
                    written.store(page + 1, crate::sync::atomic::Ordering::Release);
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut a = space.accessor().unwrap();
                    loop {
                        let done = written.load(crate::sync::atomic::Ordering::Acquire);
                        for page in done.saturating_sub(2)..done {
                            let seen = a.load::<u64>(at + page * PAGE).unwrap();
                            assert_eq!(seen, 0x0101_0101_0101_0101, "page {page} of {done}");
                        }
                        // These pages are holes that are about to be written.
                        for page in done..(done + 3).min(500) {
                            a.load::<u64>(at + page * PAGE).unwrap();
                        }
                        if done == 500 {
                            break;
                        }
                    }
                });
            }
        });
        pool.validate();
        drop((space, file));
    }
    assert_all_given_back(&pool);
}

// spec: D5
#[test]
fn two_write_faults_on_one_hole_keep_both_stores() {
    let pool = pool(512);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, 16 * PAGE);
    let (one, two) = (space(&pool), space(&pool));
    let (at, there) = (
        one.map(shared(&file)).unwrap(),
        two.map(shared(&file)).unwrap(),
    );
    let (mut a, mut b) = (one.accessor().unwrap(), two.accessor().unwrap());
    for page in 0..16 {
        a.store(at + page * PAGE, 1_u64).unwrap();
        b.store(there + page * PAGE + 8, 2_u64).unwrap();
    }
    for page in 0..16 {
        let seen = (
            a.load::<u64>(at + page * PAGE),
            a.load::<u64>(at + page * PAGE + 8),
        );
        assert_eq!(seen, (Ok(1), Ok(2)), "page {page}");
    }
    assert_eq!(device.free_pages().0, 48);
}

// spec: D5
#[test]
fn many_threads_store_to_the_same_holes() {
    let pool = pool(512);
    let device = device(256 * PAGE);
    let file = hole(&pool, &device, LARGE);
    const PAGES: u64 = 200;
    let start = Barrier::new(4);
    let spaces: Vec<Space> = (0..2).map(|_| space(&pool)).collect();
    let maps: Vec<VirtAddr> = spaces
        .iter()
        .map(|s| s.map(shared(&file)).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (space, at) = (&spaces[thread as usize % 2], maps[thread as usize % 2]);
            let start = &start;
            scope.spawn(move || {
                let mut a = space.accessor().unwrap();
                start.wait();
                for page in 0..PAGES {
                    if thread % 2 == 0 {
                        a.load::<u64>(at + page * PAGE).unwrap();
                    }
                    a.store(at + page * PAGE + thread * 8, thread + 1).unwrap();
                }
            });
        }
    });
    let mut bytes = [0; 32];
    for page in 0..PAGES {
        file.read_exact_at(&mut bytes, page * PAGE).unwrap();
        for thread in 0..4 {
            assert_eq!(
                bytes[thread * 8],
                thread as u8 + 1,
                "page {page}, thread {thread}"
            );
        }
    }
    assert_eq!(device.free_pages().0, 256 - PAGES);
    pool.validate();
}

// spec: D9
#[test]
fn a_large_block_is_mapped_whole_and_stays_large() {
    let pool = pool(512);
    let device = device(4 * LARGE);
    let file = hole_with(&pool, &device, 2 * LARGE, HoleWrites::Large);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u64>(at + 9 * PAGE), Ok(0));
    a.store(at + 9 * PAGE, 5_u64).unwrap();
    let faults = file.stats().faults;
    for page in 0..512 {
        a.store(at + page * PAGE + 8, page).unwrap();
    }
    let stats = file.stats();
    assert_eq!(stats.faults, faults, "the whole block was mapped at once");
    assert_eq!(
        (stats.present.0, stats.dirty.0, stats.downgrades),
        (512, 512, 0)
    );
    file.sync_all().unwrap();
    assert_eq!((file.stats().dirty.0, space.stats().pages.dirty.0), (0, 0));
    a.store(at + 100 * PAGE, 6_u64).unwrap();
    assert_eq!(file.stats().dirty.0, 512);
    // A write by call to one page leaves the block large.
    file.write_at(&[1; 8], 7 * PAGE).unwrap();
    assert_eq!(file.stats().present.0, 512);
    assert_eq!(a.load::<u64>(at + 9 * PAGE + 8), Ok(9));
    drop((a, space, file));
    assert_eq!(device.free_pages().0, 4 * 512);
    assert_all_given_back(&pool);
}

// spec: D10
#[test]
fn a_private_mapping_copies_and_leaves_the_file_alone() {
    let pool = pool(512);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, LARGE);
    file.write_at(&[3; PAGE_SIZE], 0).unwrap();
    let space = space(&pool);
    let at = space.map(Map::dax(&file).private().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u8>(at), Ok(3));
    assert_eq!(a.load::<u8>(at + 100 * PAGE), Ok(0));
    a.store(at, 9_u8).unwrap();
    a.store(at + 100 * PAGE, 9_u8).unwrap();
    assert_eq!((a.load::<u8>(at), a.load::<u8>(at + 1)), (Ok(9), Ok(3)));
    assert_eq!(
        (
            a.load::<u8>(at + 100 * PAGE),
            a.load::<u8>(at + 100 * PAGE + 1)
        ),
        (Ok(9), Ok(0))
    );
    let mut bytes = [1; 2];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [3, 3]);
    file.read_exact_at(&mut bytes, 100 * PAGE).unwrap();
    assert_eq!(bytes, [0, 0]);
    let pages = space.stats().pages;
    assert_eq!(
        (pages.own.0, pages.dirty.0, device.free_pages().0),
        (2, 0, 63)
    );
    // Pages that are not copied have the present bytes of the file.
    file.write_at(&[4; 8], PAGE).unwrap();
    assert_eq!(a.load::<u8>(at + PAGE), Ok(4));
    pool.validate();
    space.validate();
    drop((a, space, file));
    assert_all_given_back(&pool);
}

// spec: D17
#[test]
fn an_access_past_the_end_is_an_error_with_the_place() {
    let pool = pool(512);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, LARGE);
    let space = space(&pool);
    let at = space.map(shared(&file).range(0..2 * LARGE)).unwrap();
    let mut a = space.accessor().unwrap();
    for page in [0, 511] {
        assert_eq!(a.load::<u64>(at + page * PAGE), Ok(0));
    }
    for result in [
        a.load::<u64>(at + LARGE),
        a.store(at + LARGE, 1_u64).map(|()| 0),
    ] {
        assert_eq!(result.unwrap_err().kind(), FaultKind::PastEnd);
    }
    a.store(at + (LARGE - PAGE), 1_u64).unwrap();
    file.set_len(PAGE).unwrap();
    let fault = a.load::<u64>(at + (LARGE - PAGE)).unwrap_err();
    let text = space.explain(fault).to_string();
    let expected = "data.bin: wanted 4096 bytes at 2,093,056 but the file ends at 4,096";
    assert!(text.ends_with(expected), "{text}");
    assert_eq!(a.load::<u64>(at), Ok(0));
    file.set_len(2 * LARGE).unwrap();
    assert_eq!(
        a.load::<u64>(at + (LARGE - PAGE)),
        Ok(0),
        "what was cut off is gone"
    );
    assert_eq!(device.free_pages().0, 64);
}
