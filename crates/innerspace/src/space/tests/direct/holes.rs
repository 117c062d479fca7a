//! Holes: the zero frame, the leaf of zeros, and replacing that leaf.

use super::*;

// spec: D1, D23
#[test]
fn a_hole_of_a_gib_read_by_mapping_takes_no_memory() {
    let pool = pool(512);
    let device = device(PAGE);
    let file = hole(&pool, &device, 1 << 30);
    let space = space(&pool);
    let at = space.map(Map::dax(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    let before = pool.groups.usage(GroupId::ROOT);
    let mut sum = 0;
    for page in 0..(1 << 30) / PAGE {
        sum += a.load::<u64>(at + page * PAGE).unwrap();
    }
    assert_eq!(sum, 0);
    let stats = space.stats();
    assert_eq!(
        (
            stats.pages.resident.0,
            stats.pages.direct.0,
            stats.pages.dirty.0
        ),
        (0, 0, 0)
    );
    assert_eq!(
        stats.pages.zero.0,
        (1 << 30) / PAGE,
        "every translation is the zero frame"
    );
    // In use: one upper node of the file, the leaf of zeros, and nodes of the page table above the
    // leaves.
    let used = pool.groups.usage(GroupId::ROOT).0 - before.0;
    assert!(used <= 8, "{used} pages for an aligned hole");
    assert_eq!(device.free_pages().0, 1);
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
    space.map(Map::dax(&file).at(at)).unwrap();
    let mut a = space.accessor().unwrap();
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
        (space.stats().pages.resident.0, space.stats().pages.zero.0),
        (0, pages)
    );
    // Each fault maps many pages.
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
            two.map(Map::dax(&file)).unwrap(),
        );
        let (mut a, mut b, mut c) = (
            one.accessor().unwrap(),
            two.accessor().unwrap(),
            one.accessor().unwrap(),
        );
        for page in 0..len / PAGE {
            assert_eq!(a.load::<u64>(at + page * PAGE), Ok(0));
            assert_eq!(b.load::<u64>(there + page * PAGE), Ok(0));
            assert_eq!(c.load::<u64>(at + page * PAGE), Ok(0));
        }
        let fork = one.fork().unwrap();
        let mut d = fork.accessor().unwrap();
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
        assert_eq!((stats.resident.0, stats.direct.0, stats.dirty.0), (0, 1, 1));
        assert_eq!((file.stats().present.0, file.stats().dirty.0), (1, 1));
        let downgrades = u64::from(len > LARGE);
        assert_eq!(file.stats().downgrades, downgrades);
        one.validate();
        two.validate();
        fork.validate();
        drop((a, b, c, d, one, two, fork, file));
        assert_eq!(device.free_pages().0, 64);
        assert_all_given_back(&pool);
    }
}

#[test]
fn protections_unmaps_and_forks_part_from_the_leaf_of_zeros() {
    let pool = pool(512);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, 4 * LARGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    let read_all = |a: &mut Accessor| {
        let pages = (0..4).map(|range| a.load::<u64>(at + range * LARGE + 77 * PAGE));
        pages.collect::<Result<Vec<u64>, _>>()
    };
    assert_eq!(read_all(&mut a), Ok(vec![0; 4]));
    let fork = space.fork().unwrap();
    let mut b = fork.accessor().unwrap();
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
        let mut a = space.accessor().unwrap();
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
                    file.write_at(&[1], range * LARGE + 9 * PAGE).unwrap();
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
fn the_leaf_of_zeros_is_charged_to_no_group_that_uses_it() {
    let pool = pool(512);
    let device = device(PAGE);
    let file = hole(&pool, &device, LARGE);
    let group = pool.root_group().create_child("first", 64 * PAGE).unwrap();
    let space = Space::new(&Cache::new(&pool), &group, AddressWidth::Bits48).unwrap();
    let at = space.map(Map::dax(&file)).unwrap();
    assert_eq!(space.accessor().unwrap().load::<u8>(at), Ok(0));
    assert!(pool.zero_leaf.get().is_some());
    pool.validate();
    drop((space, file));
    pool.flush_retired();
    assert_eq!(group.usage(), 0);
    drop(group);
    assert_all_given_back(&pool);
}

#[test]
fn forbidding_a_hole_of_a_gib_costs_no_leaves() {
    let pool = pool(512);
    let device = device(PAGE);
    let file = hole(&pool, &device, 1 << 30);
    let space = space(&pool);
    let at = space.map(Map::dax(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    for range in 0..512 {
        a.load::<u8>(at + range * LARGE).unwrap();
    }
    space.protect(at, 1 << 30, Protection::NONE).unwrap();
    assert!(space.stats().tables.0 <= 4, "{}", space.stats());
    assert_eq!(a.load::<u8>(at).unwrap_err().kind(), FaultKind::Forbidden);
    space.protect(at, 1 << 30, Protection::READ).unwrap();
    assert_eq!(a.load::<u8>(at), Ok(0));
}

#[test]
fn a_fetch_from_a_hole_leaves_a_snapshots_table_as_it_is() {
    let pool = pool(512);
    let device = device(PAGE);
    let file = hole(&pool, &device, 2 * LARGE);
    let space = space(&pool);
    let executable = Protection::READ | Protection::EXECUTE;
    let at = space.map(Map::dax(&file).protection(executable)).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u64>(at), Ok(0));
    let snapshot = space.freeze().unwrap();
    let before = pool.counters.totals().table_unshare;
    let mut frozen = snapshot.accessor().unwrap();
    assert_eq!(frozen.fetch::<u64>(at), Ok(0));
    assert_eq!(frozen.load::<u64>(at + LARGE), Ok(0));
    assert_eq!(frozen.fetch::<u64>(at + LARGE), Ok(0));
    assert_eq!(pool.counters.totals().table_unshare, before);
    assert_eq!(a.fetch::<u64>(at), Ok(0));
    file.write_at(&[9; 8], PAGE).unwrap();
    for a in [&mut a, &mut frozen] {
        assert_eq!(a.load::<u8>(at + PAGE), Ok(9));
        assert_eq!(a.fetch::<u8>(at + PAGE), Ok(9));
        assert_eq!(a.fetch::<u8>(at), Ok(0));
    }
    space.restore(&snapshot).unwrap();
    assert_eq!(a.fetch::<u8>(at + PAGE), Ok(9));
    space.validate();
    snapshot.validate();
    drop((a, frozen, snapshot, space, file));
    assert_all_given_back(&pool);
}

#[test]
fn a_hole_that_becomes_executable_is_fetched_from() {
    let pool = pool(512);
    let device = device(PAGE);
    let file = hole(&pool, &device, 4 * LARGE);
    let parent = space(&pool);
    let at = parent.map(Map::dax(&file)).unwrap();
    let fetched = |space: &Space, at| space.accessor().unwrap().fetch::<u64>(at);
    for large in 0..4 {
        let loaded = parent.accessor().unwrap().load::<u64>(at + large * LARGE);
        assert_eq!(loaded, Ok(0));
    }
    let executable = Protection::READ | Protection::EXECUTE;
    let child = parent.fork().unwrap();
    let snapshot = parent.freeze().unwrap();
    // The child may execute all of the mapping, and the parent one page of it.
    child.protect(at, 4 * LARGE, executable).unwrap();
    parent.protect(at + LARGE, PAGE, executable).unwrap();
    for large in 0..4 {
        assert_eq!(fetched(&child, at + large * LARGE), Ok(0));
    }
    assert_eq!(fetched(&parent, at + LARGE), Ok(0));
    for space in [&parent, &snapshot.fork().unwrap()] {
        let refused = fetched(space, at + LARGE + PAGE).unwrap_err();
        assert_eq!(refused.kind(), FaultKind::Forbidden);
    }
    parent.restore(&snapshot).unwrap();
    parent.protect(at, 2 * LARGE, executable).unwrap();
    assert_eq!(fetched(&parent, at), Ok(0));
    // The child moves the mapping, without the right to execute and with it again.
    child.protect(at, 4 * LARGE, Protection::READ).unwrap();
    assert_eq!(child.accessor().unwrap().load::<u64>(at), Ok(0));
    let moved = child
        .remap(at, 4 * LARGE, 4 * LARGE, Remap::Replacing(at + 64 * LARGE))
        .unwrap();
    assert_eq!(child.accessor().unwrap().load::<u64>(moved + LARGE), Ok(0));
    child.protect(moved, 4 * LARGE, executable).unwrap();
    for large in 0..4 {
        assert_eq!(fetched(&child, moved + large * LARGE), Ok(0));
    }
    for space in [&parent, &child] {
        space.validate();
    }
}

#[test]
fn execution_taken_from_one_space_stays_taken_beside_a_fork_that_has_it() {
    let pool = pool(512);
    let space = space(&pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let at = space.map(Map::anonymous(4 * PAGE).protection(all)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 7_u64).unwrap();
    let fork = space.fork().unwrap();
    space.protect(at, PAGE, Protection::READ).unwrap();
    assert_eq!(fork.accessor().unwrap().fetch::<u64>(at), Ok(7));
    assert_eq!(a.load::<u64>(at), Ok(7));
    assert_eq!(a.fetch::<u64>(at).unwrap_err().kind(), FaultKind::Forbidden);
}
