//! What can be done to mappings, case by case, through the public API.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use innerspace::store::MemoryStore;
use innerspace::{
    Accessor, AddressWidth, Advice, FaultKind, FileAccess, GroupError, KIB, MIB, Map, Memory,
    MemoryOptions, PAGE_SIZE, PagedFile, Protection, Remap, Space, SpaceError, SpaceOptions,
    Threads, VirtAddr,
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory() -> Memory {
    let options = MemoryOptions::new(8 * MIB).threads(Threads::None);
    options.build().unwrap()
}

/// A file whose page n is full of n + 1.
fn numbered(memory: &Memory, pages: u64) -> (PagedFile, Arc<MemoryStore>) {
    let bytes: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE) as u8 + 1).collect();
    let store = Arc::new(MemoryStore::from_bytes(&bytes));
    let options = memory.options().access(FileAccess::ReadWrite);
    (options.open_store(store.clone()).unwrap(), store)
}

fn kind<T>(result: Result<T, innerspace::Fault>) -> Option<FaultKind> {
    result.err().map(|fault| fault.kind())
}

/// Start and length in pages, and protection.
fn shape(space: &Space) -> Vec<(u64, u64, String)> {
    space.validate();
    let mappings = space.stats().mappings;
    let row = |m: &innerspace::MappingInfo| {
        (
            m.start / PAGE,
            (m.end - m.start) / PAGE,
            m.protection.clone(),
        )
    };
    mappings.iter().map(row).collect()
}

fn at(page: u64) -> VirtAddr {
    VirtAddr(page * PAGE)
}

/// Stores its number in each page of a range.
fn number(a: &mut Accessor, from: u64, pages: u64) {
    for page in from..from + pages {
        a.store(at(page), page + 1000).unwrap();
    }
}

// spec: V15
#[test]
fn a_mapping_grows_in_place_moves_and_shrinks_with_its_bytes() {
    let memory = memory();
    let space = memory.space().unwrap();
    let mut a = space.accessor();
    space.map(Map::anonymous(4 * PAGE).at(at(1000))).unwrap();
    number(&mut a, 1000, 4);
    // In place, with room behind it.
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
    // No room: refused, or moved.
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
    assert_eq!(space.stats().pages.own, 4, "moved, not copied");
    // Shrinks in place.
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
    let space = memory.space().unwrap();
    let mut a = space.accessor();
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

/// Pages that a fork shares move on one side alone.
// spec: V15
#[test]
fn pages_shared_with_a_fork_move_without_it() {
    let memory = memory();
    let space = memory.space().unwrap();
    let mut a = space.accessor();
    // Across a leaf's end, to a place that lies otherwise in its leaf.
    space.map(Map::anonymous(8 * PAGE).at(at(508))).unwrap();
    number(&mut a, 508, 8);
    let fork = space.fork().unwrap();
    a.store(at(509), 1u64).unwrap();
    let moved = space
        .remap(at(508), 8 * PAGE, 8 * PAGE, Remap::Replacing(at(1021)))
        .unwrap();
    let mut f = fork.accessor();
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

// spec: V16
#[test]
fn each_protection_refuses_its_accesses_and_changes_nothing() {
    let memory = memory();
    let space = memory.space().unwrap();
    let mut a = space.accessor();
    space.map(Map::anonymous(PAGE).at(at(100))).unwrap();
    a.store(at(100), 5u64).unwrap();
    let forbidden = Some(FaultKind::Forbidden);
    let x = Protection::EXECUTE;
    for (protection, load, store, fetch) in [
        (Protection::NONE, forbidden, forbidden, forbidden),
        (Protection::READ, None, forbidden, forbidden),
        (Protection::READ_WRITE, None, None, forbidden),
        (x, forbidden, forbidden, None),
        (Protection::READ | x, None, forbidden, None),
        (Protection::READ_WRITE | x, None, None, None),
    ] {
        for round in 0..2 {
            space.protect(at(100), PAGE, protection).unwrap();
            assert_eq!(
                kind(a.load::<u64>(at(100))),
                load,
                "load, {protection}, {round}"
            );
            assert_eq!(
                kind(a.fetch::<u64>(at(100))),
                fetch,
                "fetch, {protection}, {round}"
            );
            assert_eq!(
                kind(a.compare_exchange(at(100), 5u64, 5, SeqCst, SeqCst)),
                store,
                "{protection}, {round}"
            );
            assert_eq!(
                kind(a.store(at(100), 5u64)),
                store,
                "store, {protection}, {round}"
            );
            space.validate();
        }
    }
    space.protect(at(100), PAGE, Protection::READ).unwrap();
    assert_eq!(a.load::<u64>(at(100)), Ok(5));
    let unmapped = Some(FaultKind::NotMapped);
    assert_eq!(kind(a.load::<u64>(at(101))), unmapped);
    assert_eq!(kind(a.fetch::<u64>(at(101))), unmapped);
}

// spec: V17
#[test]
fn a_store_to_a_private_file_mapping_is_seen_there_alone() {
    let memory = memory();
    let (file, store) = numbered(&memory, 4);
    let space = memory.space().unwrap();
    let other = memory.space().unwrap();
    let private = space.map(Map::file(&file).private().writable()).unwrap();
    let again = space.map(Map::file(&file).private().writable()).unwrap();
    let elsewhere = other.map(Map::file(&file).shared()).unwrap();
    let (mut a, mut b) = (space.accessor(), other.accessor());
    assert_eq!(a.load::<u8>(private + PAGE), Ok(2));
    a.store(private + PAGE, 77u8).unwrap();
    assert_eq!(a.load::<u8>(private + PAGE), Ok(77));
    assert_eq!(
        a.load::<u8>(private + PAGE + 1),
        Ok(2),
        "the rest of the page is copied"
    );
    assert_eq!(a.load::<u8>(again + PAGE), Ok(2));
    assert_eq!(b.load::<u8>(elsewhere + PAGE), Ok(2));
    file.sync_all().unwrap();
    assert_eq!(file.view(PAGE..PAGE + 1).unwrap()[0], 2);
    assert_eq!(store.to_vec()[PAGE_SIZE], 2);
    // What is copied stays when the file changes; what is not shows the change.
    file.write_at(&[9; 2 * PAGE_SIZE], PAGE).unwrap();
    assert_eq!(
        (
            a.load::<u8>(private + PAGE),
            a.load::<u8>(private + 2 * PAGE)
        ),
        (Ok(77), Ok(9))
    );
}

// spec: V18
#[test]
fn a_store_to_a_shared_file_mapping_is_seen_at_once_and_stored_at_sync() {
    let memory = memory();
    let (file, store) = numbered(&memory, 4);
    let (space, other) = (memory.space().unwrap(), memory.space().unwrap());
    let here = space.map(Map::file(&file).shared().writable()).unwrap();
    let there = other.map(Map::file(&file).shared()).unwrap();
    let (mut a, mut b) = (space.accessor(), other.accessor());
    assert_eq!(b.load::<u8>(there + 2 * PAGE), Ok(3));
    a.store(here + 2 * PAGE, 99u8).unwrap();
    assert_eq!(b.load::<u8>(there + 2 * PAGE), Ok(99));
    let mut byte = [0];
    file.read_exact_at(&mut byte, 2 * PAGE).unwrap();
    assert_eq!(byte, [99]);
    assert_eq!(store.to_vec()[2 * PAGE_SIZE], 3, "not written yet");
    space.sync(here + 2 * PAGE, PAGE).unwrap();
    assert_eq!(store.to_vec()[2 * PAGE_SIZE], 99);
    let refused = space.sync(here + 3 * PAGE, 2 * PAGE);
    assert!(matches!(refused, Err(SpaceError::NotMapped { .. })));
}

// spec: V19
#[test]
fn advice_drops_reads_ahead_ages_and_evicts() {
    let memory = memory();
    let (file, store) = numbered(&memory, 8);
    let space = memory.space().unwrap();
    let own = space.map(Map::anonymous(4 * PAGE)).unwrap();
    let private = space.map(Map::file(&file).private().writable()).unwrap();
    let shared = space.map(Map::file(&file).shared().writable()).unwrap();
    let mut a = space.accessor();
    // DONTNEED: zeros again, the file again, and what is shared stays.
    a.store(own + PAGE, 5u64).unwrap();
    a.store(private, 50u8).unwrap();
    a.store(shared + PAGE, 51u8).unwrap();
    space.advise(own, 4 * PAGE, Advice::DontNeed).unwrap();
    space.advise(private, 8 * PAGE, Advice::DontNeed).unwrap();
    space.advise(shared, 8 * PAGE, Advice::DontNeed).unwrap();
    assert_eq!(space.stats().pages.resident, 0);
    assert_eq!(a.load::<u64>(own + PAGE), Ok(0));
    assert_eq!(a.load::<u8>(private), Ok(1));
    assert_eq!(a.load::<u8>(shared + PAGE), Ok(51));
    // WILLNEED: no fault reads the store afterwards.
    file.sync_all().unwrap();
    file.evict(..).unwrap();
    space.advise(shared, 8 * PAGE, Advice::WillNeed).unwrap();
    let before = memory.stats().totals.pgmajfault;
    (0..8).for_each(|page| assert!(a.load::<u8>(shared + page * PAGE).is_ok()));
    assert_eq!(memory.stats().totals.pgmajfault, before);
    // COLD: present, and not used.
    assert_eq!(space.mapping_at(shared).unwrap().pages.referenced, 8);
    space.advise(shared, 8 * PAGE, Advice::Cold).unwrap();
    let pages = space.mapping_at(shared).unwrap().pages;
    assert_eq!((pages.referenced, pages.file), (0, 8));
    // PAGEOUT: written, and gone from memory.
    a.store(shared + 3 * PAGE, 52u8).unwrap();
    space.advise(shared, 8 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.mapping_at(shared).unwrap().pages.file, 0);
    assert_eq!(store.to_vec()[3 * PAGE_SIZE], 52);
    assert_eq!(a.load::<u8>(shared + 3 * PAGE), Ok(52));
    let refused = space.advise(own, 64 * MIB, Advice::DontNeed);
    assert!(matches!(refused, Err(SpaceError::NotMapped { .. })));
    space.validate();
    memory.validate();
}

// spec: V20
#[test]
fn populated_and_locked_pages_are_there_and_stay() {
    let memory = memory();
    let (file, _store) = numbered(&memory, 16);
    let space = memory.space().unwrap();
    let own = space.map(Map::anonymous(8 * PAGE).populated()).unwrap();
    assert_eq!(space.mapping_at(own).unwrap().pages.own, 8);
    let shown = space.map(Map::file(&file).shared()).unwrap();
    space.populate(shown, 4 * PAGE).unwrap();
    assert_eq!(space.mapping_at(shown).unwrap().pages.file, 4);
    space.lock(shown, 8 * PAGE).unwrap();
    assert_eq!(space.mapping_at(shown).unwrap().pages.file, 8);
    while memory.reclaim(8 * MIB) > 0 {}
    assert_eq!(
        space.mapping_at(shown).unwrap().pages.file,
        8,
        "reclaim has to leave them"
    );
    let refused = space.advise(shown, PAGE, Advice::DontNeed);
    assert!(matches!(refused, Err(SpaceError::Locked { .. })));
    space.unlock(shown, 8 * PAGE).unwrap();
    while memory.reclaim(8 * MIB) > 0 {}
    assert_eq!(space.mapping_at(shown).unwrap().pages.file, 0);
    space.validate();
}

// spec: V20
#[test]
fn more_than_the_group_may_hold_is_not_locked() {
    let memory = memory();
    let group = memory.group("small", 32 * PAGE).unwrap();
    let space = memory.space_in(&group).unwrap();
    let own = space.map(Map::anonymous(64 * PAGE)).unwrap();
    space.lock(own, 2 * PAGE).unwrap();
    let refused = space.lock(own, 64 * PAGE).unwrap_err();
    assert!(refused.to_string().contains("small"), "{refused}");
    assert!(matches!(refused, SpaceError::Access { .. }));
    // Those before are still locked, and no others.
    assert!(space.advise(own, PAGE, Advice::DontNeed).is_err());
    space
        .advise(own + 2 * PAGE, 62 * PAGE, Advice::DontNeed)
        .unwrap();
    assert_eq!(
        shape(&space).iter().map(|row| row.1).collect::<Vec<_>>(),
        [2, 62]
    );
    let refused = space.map(Map::anonymous(64 * PAGE).populated());
    assert!(refused.is_err());
    assert_eq!(shape(&space).len(), 2, "nothing stays mapped");
}

// spec: V21
#[test]
fn a_narrow_space_wraps_and_refuses_by_its_width() {
    let memory = memory();
    let narrow = SpaceOptions::new().width(AddressWidth::Bits32);
    let space = memory.space_with(&narrow).unwrap();
    let mut a = space.accessor();
    let last = VirtAddr((1 << 32) - PAGE);
    space.map(Map::anonymous(PAGE).at(last)).unwrap();
    space
        .map(Map::anonymous(PAGE).at(VirtAddr(0)).with_null())
        .unwrap();
    let end = VirtAddr((1 << 32) - 4);
    a.store(end, 0x1122_3344_5566_7788u64).unwrap();
    assert_eq!(a.load::<u64>(end), Ok(0x1122_3344_5566_7788));
    assert_eq!(
        a.load::<u32>(VirtAddr(0)),
        Ok(0x1122_3344),
        "it goes on at 0"
    );
    let mut bytes = [0; 8];
    a.read(end, &mut bytes).unwrap();
    assert_eq!(bytes, 0x1122_3344_5566_7788u64.to_le_bytes());
    assert_eq!(
        kind(a.load::<u8>(VirtAddr(1 << 32))),
        Some(FaultKind::NotMapped)
    );
    for refused in [
        space.map(Map::anonymous(PAGE).at(VirtAddr(1 << 32))),
        space.map(Map::anonymous(2 * PAGE).at(last)),
        space.map(Map::anonymous((4 << 30) + PAGE)),
    ] {
        assert!(
            matches!(refused, Err(SpaceError::OutOfRange { .. })),
            "{refused:?}"
        );
    }
    let chosen = space.map(Map::anonymous(MIB)).unwrap();
    assert!(chosen.0 + MIB < 1 << 32);
    let fork = space.fork().unwrap();
    assert_eq!(fork.accessor().load::<u64>(end), Ok(0x1122_3344_5566_7788));
    // A wide one does not wrap.
    let wide = memory.space().unwrap();
    let last = VirtAddr((1 << 48) - PAGE);
    wide.map(Map::anonymous(PAGE).at(last)).unwrap();
    let mut a = wide.accessor();
    let fault = a.store(last + (PAGE - 4), 1u64).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotMapped);
    assert_eq!(a.load::<u32>(last + (PAGE - 4)), Ok(0));
    assert!(matches!(
        wide.map(Map::anonymous(2 * PAGE).at(last)),
        Err(SpaceError::OutOfRange { .. })
    ));
}

#[test]
fn page_0_is_mapped_on_request_alone() {
    let memory = memory();
    let space = memory.space().unwrap();
    let refused = space.map(Map::anonymous(2 * PAGE).at(VirtAddr(0)));
    assert!(matches!(refused, Err(SpaceError::NullPage { .. })));
    assert_eq!(space.map(Map::anonymous(PAGE).at(at(1))).unwrap(), at(1));
    space
        .map(Map::anonymous(PAGE).at(VirtAddr(0)).with_null())
        .unwrap();
    assert_eq!(shape(&space), [(0, 2, "rw".into())]);
}

// spec: V24
#[test]
fn what_spans_two_mappings_is_done_wholly_or_counted() {
    let memory = memory();
    let space = memory.space().unwrap();
    let mut a = space.accessor();
    space.map(Map::anonymous(2 * PAGE).at(at(100))).unwrap();
    space
        .map(
            Map::anonymous(PAGE)
                .at(at(102))
                .protection(Protection::READ),
        )
        .unwrap();
    // Two pages of one mapping, and two mappings.
    let inside = at(101) + (PAGE - 3);
    a.store(VirtAddr(101 * PAGE - 3), 0x0102_0304_0506_0708u64)
        .unwrap();
    assert_eq!(
        a.load::<u64>(VirtAddr(101 * PAGE - 3)),
        Ok(0x0102_0304_0506_0708)
    );
    assert_eq!(a.load::<u64>(inside), Ok(0));
    let fault = a.store(inside, u64::MAX).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::Forbidden, at(102))
    );
    assert_eq!(
        a.load::<u32>(VirtAddr(102 * PAGE - 4)),
        Ok(0),
        "not in part"
    );
    // The end of the last mapping.
    let fault = a.load::<u64>(VirtAddr(103 * PAGE - 4)).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, at(103))
    );
    // A buffer: everything before the failing address is done.
    let fault = a.write(at(101), &[7; 3 * PAGE_SIZE]).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::Forbidden, at(102))
    );
    assert_eq!(a.load::<u8>(VirtAddr(102 * PAGE - 1)), Ok(7));
    let mut buffer = [1; 2 * PAGE_SIZE];
    let fault = a.read(at(102), &mut buffer).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, at(103))
    );
    assert_eq!((buffer[PAGE_SIZE - 1], buffer[PAGE_SIZE]), (0, 1));
}

// spec: V26
#[test]
fn a_full_group_fails_the_access_and_leaves_the_space_usable() -> Result<(), GroupError> {
    let memory = memory();
    let group = memory.group("small", 24 * PAGE)?;
    let space = memory.space_in(&group).unwrap();
    let own = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor();
    let stored = (0..64)
        .take_while(|page| a.store(own + page * PAGE, *page).is_ok())
        .count() as u64;
    assert!((4..24).contains(&stored), "{stored}");
    for _ in 0..3 {
        let fault = a.store(own + stored * PAGE, 1u64).unwrap_err();
        assert!(fault.is_limit(), "{fault}");
        assert!(a.explain(fault).to_string().contains("small"));
    }
    (0..stored).for_each(|page| assert_eq!(a.load::<u64>(own + page * PAGE), Ok(page)));
    assert_eq!(
        a.load::<u64>(own + 63 * PAGE),
        Ok(0),
        "the zero page costs nothing"
    );
    space.unmap(own, 2 * PAGE).unwrap();
    a.store(own + stored * PAGE, 1u64).unwrap();
    space.validate();
    Ok(())
}

/// Two threads use a page that is mapped in many spaces, while it is evicted again and again.
// spec: V23
#[test]
fn an_evicted_page_loses_every_translation_first() {
    let memory = memory();
    let (file, _store) = numbered(&memory, 4);
    let origin = memory.space().unwrap();
    let shown = origin.map(Map::file(&file).shared()).unwrap();
    let mut spaces = vec![origin];
    // Forks share the table, others have their own.
    for _ in 0..4 {
        spaces.push(spaces[0].fork().unwrap());
        let other = memory.space().unwrap();
        other.map(Map::file(&file).shared().at(shown)).unwrap();
        spaces.push(other);
    }
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let users: Vec<_> = spaces
        .iter()
        .take(4)
        .map(|space| {
            let (mut a, stop) = (space.accessor(), stop.clone());
            std::thread::spawn(move || {
                let mut rounds = 0u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) || rounds == 0 {
                    for page in 0..4 {
                        let got = a.load::<u64>(shown + page * PAGE);
                        assert_eq!(
                            got,
                            Ok((page + 1) * 0x0101_0101_0101_0101),
                            "another's bytes"
                        );
                    }
                    rounds += 1;
                }
            })
        })
        .collect();
    // The frames are used for something else at once.
    let other = memory.space().unwrap();
    let scratch = other.map(Map::anonymous(16 * PAGE)).unwrap();
    let mut b = other.accessor();
    let mut evicted = 0;
    for round in 0..300 {
        spaces
            .iter()
            .for_each(|space| assert!(space.accessor().load::<u8>(shown).is_ok()));
        evicted += file.evict(..).unwrap().0;
        for page in 0..16 {
            b.store(scratch + page * PAGE, u64::MAX - round).unwrap();
        }
        other.advise(scratch, 16 * PAGE, Advice::DontNeed).unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    users.into_iter().for_each(|user| user.join().unwrap());
    assert!(evicted > 0);
    file.evict(..).unwrap();
    for space in &spaces {
        assert_eq!(space.stats().pages.file, 0);
        space.validate();
    }
    memory.validate();
}

#[test]
fn a_region_moves_its_end() {
    let memory = memory();
    let space = memory.space().unwrap();
    let mut heap = space.region(16 * PAGE).unwrap();
    let mut a = space.accessor();
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

/// Refused with the right error, and nothing is changed.
#[test]
fn nonsense_is_refused() {
    let memory = memory();
    let space = memory.space().unwrap();
    space.map(Map::anonymous(4 * PAGE).at(at(100))).unwrap();
    let before = shape(&space);
    let empty = |error: Option<SpaceError>| matches!(error, Some(SpaceError::Empty { .. }));
    let unaligned = |error: Option<SpaceError>| matches!(error, Some(SpaceError::Unaligned { .. }));
    let outside = |error: Option<SpaceError>| matches!(error, Some(SpaceError::OutOfRange { .. }));
    let not_mapped =
        |error: Option<SpaceError>| matches!(error, Some(SpaceError::NotMapped { .. }));
    let odd = VirtAddr(100 * PAGE + 1);
    let all = |at: VirtAddr, len: u64| {
        [
            space.advise(at, len, Advice::DontNeed).err(),
            space.sync(at, len).err(),
            space.populate(at, len).err(),
            space.lock(at, len).err(),
            space.unlock(at, len).err(),
            space.remap(at, len, PAGE, Remap::MayMove).err(),
            space.protect(at, len, Protection::NONE).err(),
        ]
    };
    assert!(all(at(100), 0).into_iter().all(empty));
    assert!(all(odd, PAGE).into_iter().all(unaligned));
    assert!(all(at(100), u64::MAX).into_iter().all(outside));
    assert!(all(VirtAddr(1 << 48), PAGE).into_iter().all(outside));
    assert!(all(at(99), PAGE).into_iter().all(not_mapped));
    let partly = [
        space.advise(at(102), 4 * PAGE, Advice::DontNeed).err(),
        space.lock(at(102), 4 * PAGE).err(),
        space
            .remap(at(102), 4 * PAGE, 8 * PAGE, Remap::MayMove)
            .err(),
    ];
    assert!(partly.into_iter().all(not_mapped));
    assert!(empty(space.remap(at(100), PAGE, 0, Remap::MayMove).err()));
    assert!(unaligned(
        space
            .remap(at(100), PAGE, PAGE, Remap::Replacing(odd))
            .err()
    ));
    assert!(outside(
        space
            .remap(at(100), PAGE, 1 << 48, Remap::Replacing(at(200)))
            .err()
    ));
    assert_eq!(shape(&space), before);
}

/// What is used again and again stays, while ten times the memory is read past it.
// spec: A12
#[test]
fn a_hot_set_stays_under_a_mapped_stream() {
    let memory = memory();
    let (hot, _store) = numbered(&memory, 200);
    let stream_pages = 10 * 8 * MIB / PAGE;
    let store = Arc::new(MemoryStore::with_len(stream_pages * PAGE));
    // Holes would cost no memory.
    for page in 0..stream_pages {
        innerspace::store::Store::write_at(&*store, &[1], page * PAGE).unwrap();
    }
    let stream = memory.options().open_store(store).unwrap();
    let space = memory.space().unwrap();
    let (hot_at, stream_at) = (
        space.map(Map::file(&hot)).unwrap(),
        space.map(Map::file(&stream)).unwrap(),
    );
    let mut a = space.accessor();
    let mut least = 200;
    for page in 0..stream_pages {
        assert_eq!(a.load::<u8>(stream_at + page * PAGE), Ok(1));
        if page % 256 == 0 {
            let resident = space.mapping_at(hot_at).unwrap().pages.file;
            least = if page > 1024 {
                least.min(resident)
            } else {
                least
            };
            (0..200).for_each(|page| assert!(a.load::<u8>(hot_at + page * PAGE).is_ok()));
        }
    }
    assert!(
        memory.stats().totals.pgsteal > stream_pages / 2,
        "nothing was evicted"
    );
    assert!(least >= 190, "of 200 pages in use, {least} were left");
}

#[test]
fn bytes_go_from_space_to_space_up_to_the_first_fault() {
    let memory = memory();
    let (file, _store) = numbered(&memory, 4);
    let (from, to) = (memory.space().unwrap(), memory.space().unwrap());
    let source = from.map(Map::file(&file).at(at(50))).unwrap();
    let target = to.map(Map::anonymous(4 * PAGE)).unwrap();
    let (mut f, mut t) = (from.accessor(), to.accessor());
    f.prefetch(source + 100, 3 * PAGE).unwrap();
    let before = memory.stats().totals.pgmajfault;
    t.copy_from(target + 5, &mut f, source + 100, 3 * PAGE_SIZE)
        .unwrap();
    assert_eq!(
        memory.stats().totals.pgmajfault,
        before,
        "it was read ahead"
    );
    let mut want = vec![0; 3 * PAGE_SIZE];
    let mut got = want.clone();
    f.read(source + 100, &mut want).unwrap();
    t.read(target + 5, &mut got).unwrap();
    assert!(want == got && want[0] == 1 && want[3 * PAGE_SIZE - 1] == 4);
    let fault = t
        .copy_from(target, &mut f, source + 2 * PAGE, 3 * PAGE_SIZE)
        .unwrap_err();
    assert_eq!(
        (fault.access(), fault.address()),
        (innerspace::AccessKind::Load, at(54))
    );
    assert_eq!(
        t.load::<u8>(target + (2 * PAGE - 1)),
        Ok(4),
        "everything before it"
    );
    let fault = t
        .copy_from(target + 3 * PAGE, &mut f, source, 2 * PAGE_SIZE)
        .unwrap_err();
    assert_eq!(fault.access(), innerspace::AccessKind::Store);
    assert_eq!(fault.address(), target + 4 * PAGE);
}
