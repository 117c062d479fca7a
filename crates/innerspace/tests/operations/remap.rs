//! Mappings that move and grow.

use super::*;

// spec: V15
#[test]
fn a_mapping_grows_in_place_moves_and_shrinks_with_its_bytes() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let mut a = space.accessor().unwrap();
    space.map(Map::anonymous(4 * PAGE).at(at(1000))).unwrap();
    number(&mut a, 1000, 4);
    // The mapping grows in place, since there is room after it.
    assert_eq!(
        space
            .remap(at(1000), 4 * PAGE, 6 * PAGE, Remap::InPlace)
            .unwrap(),
        at(1000)
    );
    assert_eq!(shape(&space), [(1000, 6, "rw".into())]);
    assert_eq!(
        (a.load::<u64>(at(1003)), a.load::<u64>(at(1005))),
        (Ok(1003 + 1000), Ok(0))
    );
    // Without room, growing is refused, or the mapping moves.
    space
        .map(
            Map::anonymous(PAGE)
                .at(at(1006))
                .protection(Protection::READ),
        )
        .unwrap();
    let refused = space.remap(at(1000), 6 * PAGE, 8 * PAGE, Remap::InPlace);
    assert!(matches!(refused, Err(SpaceError::NoRoom { .. })));
    assert_eq!(
        shape(&space),
        [(1000, 6, "rw".into()), (1006, 1, "r-".into())]
    );
    let moved = space
        .remap(at(1000), 6 * PAGE, 8 * PAGE, Remap::MayMove)
        .unwrap();
    assert_ne!(moved, at(1000));
    assert_eq!(kind(a.load::<u64>(at(1000))), Some(FaultKind::NotMapped));
    for page in 0..4 {
        assert_eq!(a.load::<u64>(moved + page * PAGE), Ok(page + 2000));
    }
    assert_eq!(a.load::<u64>(moved + 7 * PAGE), Ok(0));
    assert_eq!(space.stats().pages.own.0, 4, "moved, not copied");
    // The mapping shrinks in place.
    assert_eq!(
        space
            .remap(moved, 8 * PAGE, 2 * PAGE, Remap::InPlace)
            .unwrap(),
        moved
    );
    assert_eq!(
        kind(a.load::<u64>(moved + 2 * PAGE)),
        Some(FaultKind::NotMapped)
    );
    assert_eq!(a.load::<u64>(moved + PAGE), Ok(2001));
    space.validate();
}

// spec: V15
#[test]
fn a_fixed_target_replaces_what_was_there_and_may_not_overlap() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let mut a = space.accessor().unwrap();
    space.map(Map::anonymous(4 * PAGE).at(at(1000))).unwrap();
    space
        .map(
            Map::anonymous(8 * PAGE)
                .at(at(2000))
                .protection(Protection::READ_WRITE),
        )
        .unwrap();
    number(&mut a, 1000, 4);
    number(&mut a, 2000, 8);
    for target in [998, 1003] {
        let refused = space.remap(at(1000), 4 * PAGE, 4 * PAGE, Remap::Replacing(at(target)));
        assert!(
            matches!(refused, Err(SpaceError::Overlaps { .. })),
            "{refused:?}"
        );
    }
    let refused = space.remap(at(1002), 4 * PAGE, 4 * PAGE, Remap::Replacing(at(3000)));
    assert!(matches!(refused, Err(SpaceError::NotMapped { .. })));
    assert_eq!(a.load::<u64>(at(1003)), Ok(2003), "nothing is changed");
    let moved = space.remap(at(1000), 4 * PAGE, 3 * PAGE, Remap::Replacing(at(2002)));
    assert_eq!(moved.unwrap(), at(2002));
    assert_eq!(
        shape(&space),
        [(2000, 8, "rw".into())],
        "it merges where it arrives"
    );
    let seen: Vec<u64> = (2000..2008)
        .map(|page| a.load::<u64>(at(page)).unwrap())
        .collect();
    assert_eq!(seen, [3000, 3001, 2000, 2001, 2002, 3005, 3006, 3007]);
    assert_eq!(
        kind(a.load::<u64>(at(1003))),
        Some(FaultKind::NotMapped),
        "cut off and unmapped"
    );
    memory.validate();
}

/// Pages that a fork shares move on one side only.
// spec: V15
#[test]
fn pages_shared_with_a_fork_move_without_it() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let mut a = space.accessor().unwrap();
    // The range crosses the end of a leaf, and moves to a place with another offset in its leaf.
    space.map(Map::anonymous(8 * PAGE).at(at(508))).unwrap();
    number(&mut a, 508, 8);
    let fork = space.fork().unwrap();
    a.store(at(509), 1u64).unwrap();
    let moved = space
        .remap(at(508), 8 * PAGE, 8 * PAGE, Remap::Replacing(at(1021)))
        .unwrap();
    let mut f = fork.accessor().unwrap();
    for page in 0..8 {
        let now = if page == 1 { 1 } else { page + 1508 };
        assert_eq!(a.load::<u64>(moved + page * PAGE), Ok(now));
        assert_eq!(f.load::<u64>(at(508 + page)), Ok(page + 1508));
        a.store(moved + page * PAGE, 7u64).unwrap();
        assert_eq!(f.load::<u64>(at(508 + page)), Ok(page + 1508));
        f.store(at(508 + page), 8u64).unwrap();
        assert_eq!(a.load::<u64>(moved + page * PAGE), Ok(7));
    }
    assert_eq!(kind(f.load::<u64>(moved)), Some(FaultKind::NotMapped));
    space.validate();
    fork.validate();
    drop((a, f, space, fork));
    memory.validate();
    assert_eq!(memory.root_group().usage(), 0);
}

#[test]
fn a_region_moves_its_end() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let heap = space.create_region(16 * PAGE).unwrap();
    let mut a = space.accessor().unwrap();
    let start = heap.start();
    assert!(heap.is_empty() && a.load::<u8>(start).is_err());
    assert_eq!(heap.set_len(5 * KIB).unwrap(), start + 5 * KIB);
    a.store(start + PAGE, 3u64).unwrap();
    assert_eq!(
        kind(a.load::<u8>(start + 2 * PAGE)),
        Some(FaultKind::Forbidden)
    );
    heap.set_len(PAGE).unwrap();
    heap.set_len(16 * PAGE).unwrap();
    assert_eq!(
        a.load::<u64>(start + PAGE),
        Ok(0),
        "what was cut off is gone"
    );
    assert!(matches!(
        heap.set_len(16 * PAGE + 1),
        Err(SpaceError::NoRoom { .. })
    ));
    assert_eq!(heap.len(), 16 * PAGE);
    space.validate();
}

#[test]
fn a_region_has_the_length_that_its_space_gives_it() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let heap = space.create_region(32 * PAGE).unwrap();
    let mut a = space.accessor().unwrap();
    heap.set_len(10 * PAGE).unwrap();
    let snapshot = space.freeze().unwrap();
    heap.set_len(20 * PAGE - 1).unwrap();
    assert_eq!(heap.len(), 20 * PAGE - 1);
    space.restore(&snapshot).unwrap();
    assert_eq!(heap.len(), 10 * PAGE);
    heap.set_len(30 * PAGE).unwrap();
    for page in 0..30 {
        a.store(heap.start() + page * PAGE, 1_u8).unwrap();
    }
    assert!(a.load::<u8>(heap.start() + 30 * PAGE).is_err());
    // All clones have the same length.
    let same = heap.clone();
    same.set_len(2 * PAGE).unwrap();
    assert_eq!(heap.len(), 2 * PAGE);
    assert!(a.load::<u8>(heap.start() + 9 * PAGE).is_err());
    heap.set_len(10 * PAGE).unwrap();
    assert_eq!(
        (same.len(), a.load::<u8>(heap.start() + 9 * PAGE)),
        (10 * PAGE, Ok(0))
    );
    // A protected page inside the region does not end it.
    space.protect(heap.start(), PAGE, Protection::NONE).unwrap();
    assert_eq!(heap.len(), 10 * PAGE);
    heap.set_len(0).unwrap();
    assert!(same.is_empty());
}

// spec: V15
#[test]
fn no_mapping_of_a_file_comes_to_an_offset_that_no_file_has() {
    const LEN: u64 = 1 << 46;
    let memory = memory();
    let (file, _store) = numbered(&memory, 1);
    let space = memory.create_space().unwrap();
    let first = (i64::MAX as u64 - (1 << 48)) / PAGE * PAGE;
    let [mut here, mut there] = [1, 2].map(|number| VirtAddr(number * LEN));
    let map = Map::file(&file).range(first..first + LEN).at(here);
    space.map(map).unwrap();
    // Each time, the last page of the mapping becomes the first of a mapping of the same length.
    let mut longer = || {
        let moved = space.remap(here + (LEN - PAGE), PAGE, LEN, Remap::Replacing(there))?;
        (here, there) = (moved, here);
        Ok::<VirtAddr, SpaceError>(moved)
    };
    for _ in 0..3 {
        longer().unwrap();
    }
    let refused = longer();
    assert!(matches!(refused, Err(SpaceError::OutOfRange { .. })));
}
