//! Regions whose end moves, and locks that fail, while other threads change the mappings.

use std::io;
use std::sync::Arc;

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    Accessor, MIB, Map, Memory, PAGE_SIZE, Space, Threads, VirtAddr,
    space::{FaultKind, Protection, Region, SpaceError, SpaceOptions},
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory_of(limit: u64) -> Memory {
    Memory::builder(limit)
        .threads(Threads::None)
        .build()
        .unwrap()
}

#[test]
fn what_a_region_gets_is_zeros() {
    let space = memory_of(4 * MIB).create_space().unwrap();
    let heap = space.create_region(64 * PAGE).unwrap();
    heap.set_len(2 * PAGE).unwrap();
    let mut a = space.accessor().unwrap();
    let second = heap.start() + PAGE;
    a.store(second, 7_u64).unwrap();
    space.protect(second, PAGE, Protection::NONE).unwrap();
    assert_eq!(heap.len(), PAGE, "as its page says");
    heap.set_len(2 * PAGE).unwrap();
    assert_eq!(a.load::<u64>(second), Ok(0), "what is added is zeros");
}

/// A mapping that a program makes where it has unmapped the reserve of a region does not belong to
/// the region.
#[test]
fn a_region_does_not_take_what_is_mapped_where_its_reserve_was() {
    let space = memory_of(4 * MIB).create_space().unwrap();
    let heap = space.create_region(64 * PAGE).unwrap();
    heap.set_len(8 * PAGE).unwrap();
    space.unmap(heap.start() + 32 * PAGE, 32 * PAGE).unwrap();
    let other = space
        .map(Map::anonymous(4 * PAGE).at(heap.start() + 40 * PAGE))
        .unwrap();
    let mut a = space.accessor().unwrap();
    a.store(other, 7_u64).unwrap();
    assert_eq!(heap.len(), 8 * PAGE);
    heap.set_len(4 * PAGE).unwrap();
    assert_eq!(a.load::<u64>(other), Ok(7));
}

/// A file that fails to be read. During the read, another thread unmaps a part of the range that is
/// being locked.
#[derive(Default)]
struct UnmapsWhenRead {
    space: std::sync::Mutex<Option<(innerspace::Space, innerspace::VirtAddr)>>,
}

impl Store for UnmapsWhenRead {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * PAGE)
    }
    fn read_at(&self, buffer: &mut [u8], _: u64) -> io::Result<usize> {
        let Some((space, at)) = self.space.lock().unwrap().take() else {
            buffer.fill(1);
            return Ok(buffer.len());
        };
        let unmap = move || space.unmap(at, PAGE).unwrap();
        std::thread::spawn(unmap).join().unwrap();
        Err(io::Error::other("broken"))
    }
}

#[test]
fn a_lock_that_fails_beside_an_unmap_locks_nothing() {
    let memory = memory_of(8 * MIB);
    let store = Arc::new(UnmapsWhenRead::default());
    let file = memory.file_options().open_store(store.clone()).unwrap();
    let space = memory.create_space().unwrap();
    // The mapping is elsewhere, so that the unmap does not touch the pages being read.
    let hole = space.map(Map::anonymous(PAGE)).unwrap();
    let at = space.map(Map::file(&file).at(hole + PAGE)).unwrap();
    *store.space.lock().unwrap() = Some((space.clone(), at + 63 * PAGE));
    space.lock(at, 64 * PAGE).unwrap_err();
    space.validate();
    let locked: Vec<_> = space
        .stats()
        .mappings
        .into_iter()
        .filter(|mapping| mapping.locked)
        .collect();
    assert_eq!(locked, [], "nothing is locked that was not before");
}

#[test]
fn a_region_does_not_grow_over_what_is_mapped_behind_its_reserve() {
    let memory = memory_of(4 * MIB);
    let space = memory.create_space().unwrap();
    let file = memory
        .file_options()
        .open_store(MemoryStore::from_bytes(&[5; 16 << 10]))
        .unwrap();
    let heap = space.create_region(64 * PAGE).unwrap();
    heap.set_len(8 * PAGE).unwrap();
    space.unmap(heap.start() + 32 * PAGE, 32 * PAGE).unwrap();
    let other = space
        .map(
            Map::file(&file)
                .private()
                .writable()
                .at(heap.start() + 32 * PAGE),
        )
        .unwrap();
    let mut a = space.accessor().unwrap();
    a.store(other, 7_u8).unwrap();
    heap.set_len(34 * PAGE).unwrap_err();
    assert_eq!(a.load::<u8>(other), Ok(7), "somebody else's page");
}

#[test]
fn a_region_that_cannot_grow_keeps_what_it_was_protected_from() {
    let memory = memory_of(4 * MIB);
    let space = memory.create_space().unwrap();
    let file = memory
        .file_options()
        .open_store(MemoryStore::from_bytes(&[5; 16 << 10]))
        .unwrap();
    let heap = space.create_region(64 * PAGE).unwrap();
    heap.set_len(8 * PAGE).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(heap.start() + 7 * PAGE, 3_u8).unwrap();
    space
        .protect(heap.start() + 4 * PAGE, 4 * PAGE, Protection::NONE)
        .unwrap();
    space.unmap(heap.start() + 32 * PAGE, 32 * PAGE).unwrap();
    space
        .map(Map::file(&file).shared().at(heap.start() + 32 * PAGE))
        .unwrap();
    heap.set_len(34 * PAGE).unwrap_err();
    space
        .protect(heap.start() + 4 * PAGE, 4 * PAGE, Protection::READ_WRITE)
        .unwrap();
    assert_eq!(a.load::<u8>(heap.start() + 7 * PAGE), Ok(3));
}

#[test]
fn a_region_with_locked_pages_grows_over_what_it_was_protected_from() {
    let memory = memory_of(4 * MIB);
    let space = memory.create_space().unwrap();
    let heap = space.create_region(64 * PAGE).unwrap();
    heap.set_len(2 * PAGE).unwrap();
    space.lock(heap.start(), 2 * PAGE).unwrap();
    space
        .protect(heap.start() + PAGE, PAGE, Protection::NONE)
        .unwrap();
    heap.set_len(2 * PAGE).unwrap();
}

/// Creates a space in a group of its own, with this many mappings of one page of a file each, and a
/// region.
fn space_with_mappings(memory: &Memory, mappings: u64) -> (Space, Region) {
    let group = memory.root_group().create_child("full", 64 * PAGE).unwrap();
    let options = SpaceOptions::new().group(&group);
    let space = memory.create_space_with(&options).unwrap();
    let file = memory
        .file_options()
        .open_store(MemoryStore::with_len(PAGE))
        .unwrap();
    for number in 0..mappings {
        let apart = VirtAddr((16 + 2 * number) * PAGE);
        space.map(Map::file(&file).at(apart)).unwrap();
    }
    let heap = space.create_region(128 * PAGE).unwrap();
    (space, heap)
}

/// Uses up the group's memory until the result is dropped.
fn fill(space: &Space) -> Accessor {
    let filler = space.map(Map::anonymous(128 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let full = (0..128).any(|page| a.store(filler + page * PAGE, 1_u8).is_err());
    assert!(full);
    a
}

/// The nodes of the mappings take an unknown number of pages. With one of these numbers of
/// mappings, undoing finds no page for its own nodes.
#[test]
fn a_lock_that_fails_in_a_full_group_locks_nothing() {
    let mut came_to_pages = 0;
    for mappings in 0..96 {
        let memory = memory_of(4 * MIB);
        let (space, heap) = space_with_mappings(&memory, mappings);
        heap.set_len(96 * PAGE).unwrap();
        for page in [16, 48, 80] {
            let part = heap.start() + page * PAGE;
            space.protect(part, PAGE, Protection::READ).unwrap();
        }
        // The snapshot keeps the nodes that a change replaces.
        let _snapshot = space.freeze().unwrap();
        // The room of one accessor is left, which lets the lock reach its pages.
        drop(fill(&space));
        let error = space.lock(heap.start() + 8 * PAGE, 80 * PAGE).unwrap_err();
        came_to_pages += u32::from(matches!(error, SpaceError::Access { .. }));
        let stats = space.stats();
        let locked = stats.mappings.iter().find(|mapping| mapping.locked);
        assert_eq!(locked, None, "beside {mappings} mappings");
        space.validate();
    }
    assert!(came_to_pages > 0, "no lock came to its pages");
}

/// There are three forms: grown into the reserve, in a table that a fork shares, and in place of a
/// range that is protected from every access.
#[test]
fn a_region_that_cannot_grow_in_a_full_group_is_as_it_was() {
    for kept in [0, 4] {
        let memory = memory_of(4 * MIB);
        let (space, heap) = space_with_mappings(&memory, 0);
        heap.set_len(8 * PAGE).unwrap();
        let mut a = space.accessor().unwrap();
        (0..8).for_each(|page| a.store(heap.start() + page * PAGE, page + 1).unwrap());
        let rest = heap.start() + kept * PAGE;
        if kept > 0 {
            space
                .protect(rest, (8 - kept) * PAGE, Protection::NONE)
                .unwrap();
        }
        let len = heap.len();
        let child = space.fork().unwrap();
        let full = fill(&child);
        let shape = |space: &Space| {
            let mappings = space.stats().mappings.into_iter();
            let shape = mappings.map(|it| (it.start, it.end, it.protection, it.pages.resident.0));
            shape.collect::<Vec<_>>()
        };
        let before = shape(&space);
        let refused = heap.set_len(64 * PAGE).unwrap_err();
        assert!(matches!(refused, SpaceError::Limit(_)), "{refused}");
        assert_eq!((heap.len(), shape(&space)), (len, before));
        let beyond = a.store(heap.start() + 8 * PAGE, 1_u8).unwrap_err();
        assert_eq!(beyond.kind(), FaultKind::Forbidden);
        if kept > 0 {
            assert!(a.load::<u64>(rest).is_err());
            drop(full);
            drop(child);
            space
                .protect(rest, (8 - kept) * PAGE, Protection::READ_WRITE)
                .unwrap();
        }
        for page in 0..8 {
            assert_eq!(a.load::<u64>(heap.start() + page * PAGE), Ok(page + 1));
        }
        space.validate();
    }
}
