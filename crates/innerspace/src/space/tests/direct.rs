//! Direct access files in spaces: holes, blocks, copies, cuts, sync.

use std::sync::Barrier;

use super::*;
use crate::dax::{DaxDevice, DaxFile, DaxSetup, HoleWrites};

pub(super) const LARGE: u64 = 2 * crate::MIB;

pub(super) fn device(bytes: u64) -> DaxDevice {
    DaxDevice::memory(bytes).unwrap()
}

/// A file of so many bytes, all of it a hole.
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
    let file = DaxFile::on_device(pool, &pool.root_group(), device, "data.bin", setup).unwrap();
    file.set_len(bytes).unwrap();
    file
}

pub(super) fn shared(file: &DaxFile) -> Map {
    Map::direct(file).shared().writable()
}

/// At the end of a test: all is given back, and the zero frame is what it was. The common leaf of zeros stays.
fn assert_all_given_back(pool: &Arc<Pool>) {
    pool.flush_retired();
    pool.flush_retired();
    let leaf = u64::from(pool.zero_leaf.get().is_some());
    assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(leaf));
    pool.validate();
}

// spec: D1, D23
#[test]
fn a_hole_of_a_gib_read_by_mapping_takes_no_memory() {
    let pool = pool(512);
    let device = device(PAGE);
    let file = hole(&pool, &device, 1 << 30);
    let space = space(&pool);
    let at = space.map(Map::direct(&file)).unwrap();
    let mut a = space.accessor();
    let before = pool.groups.usage(GroupId::ROOT);
    let mut sum = 0;
    for page in 0..(1 << 30) / PAGE {
        sum += a.load::<u64>(at + page * PAGE).unwrap();
    }
    assert_eq!(sum, 0);
    let stats = space.stats();
    assert_eq!(
        (stats.pages.resident, stats.pages.direct, stats.pages.dirty),
        (0, 0, 0)
    );
    assert_eq!(
        stats.pages.zero,
        (1 << 30) / PAGE,
        "every translation is the zero frame"
    );
    // One upper node of the file, the leaf of zeros, and nodes of the page table above the leaves.
    let used = pool.groups.usage(GroupId::ROOT).0 - before.0;
    assert!(used <= 8, "{used} pages for an aligned hole");
    assert_eq!(device.free_pages(), 1);
    assert_eq!(file.stats().large_faults, 512);
    pool.validate();
    space.validate();
    drop((a, space, file));
    assert_all_given_back(&pool);
}

// spec: D1
#[test]
fn a_hole_at_odd_addresses_costs_tables_alone() {
    let pool = pool(4096);
    let device = device(PAGE);
    let file = hole(&pool, &device, 64 * crate::MIB);
    let space = space(&pool);
    let at = VirtAddr(0x1_0000_3000);
    space.map(Map::direct(&file).at(at)).unwrap();
    let mut a = space.accessor();
    let before = pool.groups.usage(GroupId::ROOT);
    let pages = 64 * crate::MIB / PAGE;
    for page in 0..pages {
        assert_eq!(a.load::<u64>(at + page * PAGE), Ok(0));
    }
    let used = (pool.groups.usage(GroupId::ROOT).0 - before.0) * PAGE;
    assert!(
        used <= 20 * pages,
        "{used} bytes of tables for {pages} pages"
    );
    assert_eq!(
        (space.stats().pages.resident, space.stats().pages.zero),
        (0, pages)
    );
    // One fault maps many.
    assert!(file.stats().faults <= pages / 12, "{}", file.stats());
    drop((a, space, file));
    assert_all_given_back(&pool);
}

// spec: D2, D3, D9
#[test]
fn a_store_over_a_hole_is_seen_by_everybody_and_the_zero_frame_is_not_written() {
    for len in [16 * PAGE, 4 * LARGE] {
        let pool = pool(512);
        let device = device(64 * PAGE);
        let file = hole(&pool, &device, len);
        let (one, two) = (space(&pool), space(&pool));
        let (at, there) = (
            one.map(shared(&file)).unwrap(),
            two.map(Map::direct(&file)).unwrap(),
        );
        let (mut a, mut b, mut c) = (one.accessor(), two.accessor(), one.accessor());
        for page in 0..len / PAGE {
            assert_eq!(a.load::<u64>(at + page * PAGE), Ok(0));
            assert_eq!(b.load::<u64>(there + page * PAGE), Ok(0));
            assert_eq!(c.load::<u64>(at + page * PAGE), Ok(0));
        }
        let fork = one.fork().unwrap();
        let mut d = fork.accessor();
        assert_eq!(d.load::<u64>(at + 5 * PAGE), Ok(0));
        a.store(at + 5 * PAGE + 8, 77_u64).unwrap();
        for (name, seen) in [
            ("the same space", c.load::<u64>(at + 5 * PAGE + 8)),
            ("another space", b.load(there + 5 * PAGE + 8)),
            ("a fork", d.load(at + 5 * PAGE + 8)),
        ] {
            assert_eq!(seen, Ok(77), "{name}");
        }
        assert_eq!(
            b.load::<u64>(there + 6 * PAGE),
            Ok(0),
            "its neighbour is a hole"
        );
        pool.validate();
        let stats = one.stats().pages;
        assert_eq!((stats.resident, stats.direct, stats.dirty), (0, 1, 1));
        assert_eq!((file.stats().present, file.stats().dirty), (1, 1));
        let downgrades = u64::from(len > LARGE);
        assert_eq!(file.stats().downgrades, downgrades);
        one.validate();
        two.validate();
        fork.validate();
        drop((a, b, c, d, one, two, fork, file));
        assert_eq!(device.free_pages(), 64);
        assert_all_given_back(&pool);
    }
}

// spec: D4
#[test]
fn a_write_by_call_is_seen_where_the_hole_was_mapped() {
    for len in [16 * PAGE, 2 * LARGE] {
        let pool = pool(512);
        let device = device(64 * PAGE);
        let file = hole(&pool, &device, len);
        let space = space(&pool);
        let at = space.map(Map::direct(&file)).unwrap();
        let mut a = space.accessor();
        assert_eq!(a.load::<u64>(at + 3 * PAGE), Ok(0));
        file.write_all_at(&[9; 8], 3 * PAGE).unwrap();
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
        let at = space.map(Map::direct(&file)).unwrap();
        let written = crate::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for page in 0..500 {
                    file.write_all_at(&[1; 8], page * PAGE).unwrap();
                    written.store(page + 1, crate::sync::atomic::Ordering::Release);
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut a = space.accessor();
                    loop {
                        let done = written.load(crate::sync::atomic::Ordering::Acquire);
                        for page in done.saturating_sub(2)..done {
                            let seen = a.load::<u64>(at + page * PAGE).unwrap();
                            assert_eq!(seen, 0x0101_0101_0101_0101, "page {page} of {done}");
                        }
                        // Holes that are about to be written.
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
    let (mut a, mut b) = (one.accessor(), two.accessor());
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
    assert_eq!(device.free_pages(), 48);
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
                let mut a = space.accessor();
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
    assert_eq!(device.free_pages(), 256 - PAGES);
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
    let mut a = space.accessor();
    assert_eq!(a.load::<u64>(at + 9 * PAGE), Ok(0));
    a.store(at + 9 * PAGE, 5_u64).unwrap();
    let faults = file.stats().faults;
    for page in 0..512 {
        a.store(at + page * PAGE + 8, page).unwrap();
    }
    let stats = file.stats();
    assert_eq!(stats.faults, faults, "the whole block was mapped at once");
    assert_eq!(
        (stats.present, stats.dirty, stats.downgrades),
        (512, 512, 0)
    );
    file.sync_all().unwrap();
    assert_eq!((file.stats().dirty, space.stats().pages.dirty), (0, 0));
    a.store(at + 100 * PAGE, 6_u64).unwrap();
    assert_eq!(file.stats().dirty, 512);
    // A write by call to one page leaves it large.
    file.write_all_at(&[1; 8], 7 * PAGE).unwrap();
    assert_eq!(file.stats().present, 512);
    assert_eq!(a.load::<u64>(at + 9 * PAGE + 8), Ok(9));
    drop((a, space, file));
    assert_eq!(device.free_pages(), 4 * 512);
    assert_all_given_back(&pool);
}

// spec: D10
#[test]
fn a_private_mapping_copies_and_leaves_the_file_alone() {
    let pool = pool(512);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, LARGE);
    file.write_all_at(&[3; PAGE_SIZE], 0).unwrap();
    let space = space(&pool);
    let at = space.map(Map::direct(&file).private().writable()).unwrap();
    let mut a = space.accessor();
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
    assert_eq!((pages.own, pages.dirty, device.free_pages()), (2, 0, 63));
    // What is not copied shows the file as it is now.
    file.write_all_at(&[4; 8], PAGE).unwrap();
    assert_eq!(a.load::<u8>(at + PAGE), Ok(4));
    pool.validate();
    space.validate();
    drop((a, space, file));
    assert_all_given_back(&pool);
}

// spec: D11
#[test]
fn a_store_after_a_sync_faults_again_and_is_dirty_again() {
    let pool = pool(512);
    let device = DaxDevice::with_power_cut(64 * PAGE).unwrap();
    let file = hole(&pool, &device, 16 * PAGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor();
    let durable = |value: u64| {
        let image = device.durable_image();
        let words = image.chunks_exact(8);
        let mut words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        words.any(|word| word == value)
    };
    for value in [0x1111_u64, 0x2222, 0x3333] {
        a.store(at + 3 * PAGE, value).unwrap();
        assert_eq!((file.stats().dirty, space.stats().pages.dirty), (1, 1));
        assert!(!durable(value), "a store is not durable before a sync");
        space.sync(at, 16 * PAGE).unwrap();
        assert_eq!((file.stats().dirty, space.stats().pages.dirty), (0, 0));
        assert!(durable(value), "what was synced");
    }
}

// spec: D11
#[test]
fn a_store_beside_a_sync_is_synced_or_dirty() {
    let pool = pool(512);
    let device = DaxDevice::with_power_cut(16 * PAGE).unwrap();
    let file = hole(&pool, &device, 4 * PAGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    const STORES: u64 = 3_000;
    let done = crate::sync::atomic::AtomicU64::new(0);
    let done = &done;
    std::thread::scope(|scope| {
        let stores = scope.spawn(move || {
            let mut a = space.accessor();
            for value in 1..=STORES {
                a.store(at + (value % 4) * PAGE, value).unwrap();
                done.store(value, crate::sync::atomic::Ordering::Release);
            }
        });
        while !stores.is_finished() {
            let before = done.load(crate::sync::atomic::Ordering::Acquire);
            file.sync_all().unwrap();
            let image = device.durable_image();
            let words = image.chunks_exact(8);
            let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            assert!(
                words.max().unwrap() >= before,
                "a store before the sync is lost"
            );
        }
    });
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty, 0);
}

// spec: D17
#[test]
fn an_access_past_the_end_is_an_error_with_the_place() {
    let pool = pool(512);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, LARGE);
    let space = space(&pool);
    let at = space.map(shared(&file).range(0..2 * LARGE)).unwrap();
    let mut a = space.accessor();
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
    assert_eq!(device.free_pages(), 64);
}

// spec: D16
#[test]
fn a_block_that_was_punched_out_is_never_written_again() {
    let pool = pool(512);
    let device = device(16 * PAGE);
    let (file, other) = (
        hole(&pool, &device, 4 * PAGE),
        hole(&pool, &device, 16 * PAGE),
    );
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let stop = crate::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (space, stop) = (&space, &stop);
            scope.spawn(move || {
                let mut a = space.accessor();
                while stop.load(crate::sync::atomic::Ordering::Relaxed) == 0 {
                    for page in 0..4 {
                        a.store(at + page * PAGE + 8 * thread, u64::MAX).unwrap();
                    }
                }
            });
        }
        for round in 0..300_u64 {
            file.punch(0..4 * PAGE).unwrap();
            // Blocks that were the first file's a moment ago.
            let bytes = [round as u8 | 1; PAGE_SIZE];
            for page in 0..12 {
                other.write_all_at(&bytes, page * PAGE).unwrap();
            }
            let mut back = [0; PAGE_SIZE];
            for page in 0..12 {
                other.read_exact_at(&mut back, page * PAGE).unwrap();
                assert!(
                    back == bytes,
                    "round {round}, page {page}: another file's store"
                );
            }
            other.punch(0..16 * PAGE).unwrap();
        }
        stop.store(1, crate::sync::atomic::Ordering::Relaxed);
    });
    drop((space, file, other));
    assert_eq!(device.free_pages(), 16);
    assert_all_given_back(&pool);
}

// spec: D15
#[test]
fn a_full_memory_takes_no_mapped_entry_away() {
    let pool = pool(96);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, 16 * PAGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let anonymous = space.map(Map::anonymous(1024 * PAGE)).unwrap();
    let mut a = space.accessor();
    for page in 0..16 {
        a.store(at + page * PAGE, page).unwrap();
    }
    let full = (0..1024).find_map(|page| a.store(anonymous + page * PAGE, 1_u64).err());
    assert_eq!(
        full.expect("96 frames are not enough").kind(),
        FaultKind::Limit
    );
    let faults = file.stats().faults;
    for page in 0..16 {
        assert_eq!(a.load::<u64>(at + page * PAGE), Ok(page));
    }
    assert_eq!((file.stats().faults, file.stats().dirty), (faults, 16));
}

#[test]
fn protections_unmaps_and_forks_part_from_the_leaf_of_zeros() {
    let pool = pool(512);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, 4 * LARGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor();
    let read_all = |a: &mut Accessor| {
        let pages = (0..4).map(|range| a.load::<u64>(at + range * LARGE + 77 * PAGE));
        pages.collect::<Result<Vec<u64>, _>>()
    };
    assert_eq!(read_all(&mut a), Ok(vec![0; 4]));
    let fork = space.fork().unwrap();
    let mut b = fork.accessor();
    assert_eq!(read_all(&mut b), Ok(vec![0; 4]));
    space
        .protect(at + 77 * PAGE, PAGE, Protection::NONE)
        .unwrap();
    assert_eq!(
        a.load::<u64>(at + 77 * PAGE).unwrap_err().kind(),
        FaultKind::Forbidden
    );
    assert_eq!(a.load::<u64>(at + 78 * PAGE), Ok(0));
    assert_eq!(b.load::<u64>(at + 77 * PAGE), Ok(0));
    space.unmap(at + LARGE + 50 * PAGE, 50 * PAGE).unwrap();
    assert_eq!(
        a.load::<u64>(at + LARGE + 77 * PAGE).unwrap_err().kind(),
        FaultKind::NotMapped
    );
    assert_eq!(b.load::<u64>(at + LARGE + 77 * PAGE), Ok(0));
    fork.protect(at, 4 * LARGE, Protection::READ | Protection::EXECUTE)
        .unwrap();
    assert_eq!(b.fetch::<u32>(at + 3 * LARGE), Ok(0));
    assert_eq!(
        a.fetch::<u32>(at + 3 * LARGE).unwrap_err().kind(),
        FaultKind::Forbidden
    );
    let frozen = space.freeze().unwrap();
    a.store(at + 2 * LARGE, 9_u64).unwrap();
    assert_eq!(b.load::<u64>(at + 2 * LARGE), Ok(9));
    space.restore(&frozen).unwrap();
    assert_eq!(
        a.load::<u64>(at + 2 * LARGE),
        Ok(9),
        "the file keeps what was stored to it"
    );
    space.validate();
    fork.validate();
    pool.validate();
    drop((a, b, space, fork, frozen, file));
    assert_all_given_back(&pool);
}

// spec: D9
#[test]
fn the_leaf_of_zeros_is_parted_from_at_two_ends_at_once() {
    let pool = pool(4096);
    let device = device(4096 * PAGE);
    let space = space(&pool);
    const RANGES: u64 = 16;
    for round in 0..40 {
        let file = hole(&pool, &device, LARGE * RANGES);
        let at = space.map(shared(&file)).unwrap();
        let mut a = space.accessor();
        for range in 0..RANGES {
            a.load::<u8>(at + range * LARGE).unwrap();
        }
        let turn = crate::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for range in 0..RANGES {
                    while turn.load(crate::sync::atomic::Ordering::Acquire) <= range {
                        std::thread::yield_now();
                    }
                    file.write_all_at(&[1], range * LARGE + 9 * PAGE).unwrap();
                }
            });
            for range in 0..RANGES {
                turn.store(range + 1, crate::sync::atomic::Ordering::Release);
                a.store(at + range * LARGE, 1_u8).unwrap();
            }
        });
        for range in 0..RANGES {
            assert_eq!(
                a.load::<u8>(at + range * LARGE + 9 * PAGE),
                Ok(1),
                "round {round}"
            );
        }
        space.validate();
        drop(a);
        space.unmap(at, LARGE * RANGES).unwrap();
    }
    let leaf = *pool.zero_leaf.get().unwrap();
    assert_eq!(
        pool.frames.meta(leaf).hold.load().refs(),
        1,
        "nobody counts it"
    );
    drop(space);
    assert_all_given_back(&pool);
}

#[test]
fn forbidding_a_hole_of_a_gib_costs_no_leaves() {
    let pool = pool(512);
    let device = device(PAGE);
    let file = hole(&pool, &device, 1 << 30);
    let space = space(&pool);
    let at = space.map(Map::direct(&file)).unwrap();
    let mut a = space.accessor();
    for range in 0..512 {
        a.load::<u8>(at + range * LARGE).unwrap();
    }
    space.protect(at, 1 << 30, Protection::NONE).unwrap();
    assert!(space.stats().tables <= 4, "{}", space.stats());
    assert_eq!(a.load::<u8>(at).unwrap_err().kind(), FaultKind::Forbidden);
    space.protect(at, 1 << 30, Protection::READ).unwrap();
    assert_eq!(a.load::<u8>(at), Ok(0));
}

#[test]
fn execution_taken_from_one_space_stays_taken_beside_a_fork_that_has_it() {
    let pool = pool(512);
    let space = space(&pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let at = space.map(Map::anonymous(4 * PAGE).protection(all)).unwrap();
    let mut a = space.accessor();
    a.store(at, 7_u64).unwrap();
    let fork = space.fork().unwrap();
    space.protect(at, PAGE, Protection::READ).unwrap();
    assert_eq!(fork.accessor().fetch::<u64>(at), Ok(7));
    assert_eq!(a.load::<u64>(at), Ok(7));
    assert_eq!(a.fetch::<u64>(at).unwrap_err().kind(), FaultKind::Forbidden);
}

// spec: D11
#[test]
fn a_long_store_after_a_sync_takes_one_fault_for_all_its_pages() {
    let pool = pool(256);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, 64 * PAGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor();
    let mut bytes: Vec<u8> = (0..40 * PAGE).map(|i| (i / 7) as u8).collect();
    a.write(at + 100, &bytes).unwrap();
    for round in 1..4u8 {
        file.sync_all().unwrap();
        assert_eq!(file.stats().dirty, 0);
        let before = file.stats().faults;
        bytes.iter_mut().for_each(|byte| *byte ^= round);
        a.write(at + 100, &bytes).unwrap();
        assert_eq!(file.stats().faults - before, 1);
        assert_eq!(file.stats().dirty, 41);
        let mut found = vec![0; bytes.len()];
        file.read_exact_at(&mut found, 100).unwrap();
        assert!(found == bytes, "round {round}");
    }
    // A store of one page makes no other one dirty.
    file.sync_all().unwrap();
    a.store(at + 3 * PAGE, 5u64).unwrap();
    assert_eq!(file.stats().dirty, 1);
    drop(a);
    space.validate();
    drop((space, file));
    assert_all_given_back(&pool);
}
