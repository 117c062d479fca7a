//! What a dropped fork leaves behind: no charged pages, and no stale code.

use std::sync::Arc;

use innerspace::store::MemoryStore;
use innerspace::{
    MIB, Map, Memory, PAGE_SIZE, Threads, VirtAddr, file::FileAccess, space::Protection,
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory_of(limit: u64) -> Memory {
    Memory::builder(limit)
        .threads(Threads::None)
        .build()
        .unwrap()
}

enum Sharer {
    None,
    Fork,
}

/// Returns how many anonymous pages are in use after 256 were stored to and dropped again.
fn left_after_dropping(
    sharer: Sharer,
    drop_them: impl Fn(&innerspace::Space, innerspace::VirtAddr),
) -> u64 {
    let memory = memory_of(16 * MIB);
    let space = memory.create_space().unwrap();
    // There is another mapping in the 2 MiB, so that they are not unmapped as a whole.
    let at = space.map(Map::anonymous(2 * MIB).writable()).unwrap();
    space.unmap(at + MIB, MIB).unwrap();
    let mut a = space.accessor().unwrap();
    a.fill(at, 1, MIB as usize).unwrap();
    if let Sharer::Fork = sharer {
        let child = space.fork().unwrap();
        a.store(at, 2_u8).unwrap(); // copies the leaf: 255 pages are borrowed
        drop(child);
    }
    for _ in 0..4 {
        memory.tick();
    }
    drop_them(&space, at);
    for _ in 0..4 {
        memory.tick();
    }
    space.validate();
    memory.validate();
    memory.stats().parts.anonymous / PAGE
}

#[test]
fn borrowed_pages_that_are_dropped_after_the_fork_has_ended_are_given_back() {
    let zap = |space: &innerspace::Space, at| space.discard(at, MIB).unwrap();
    let alone = left_after_dropping(Sharer::None, zap);
    let forked = left_after_dropping(Sharer::Fork, zap);
    assert_eq!(
        forked, alone,
        "pages after DontNeed, with and without a fork that is gone"
    );
}

#[test]
fn borrowed_pages_that_are_unmapped_after_the_fork_has_ended_are_given_back() {
    let unmap = |space: &innerspace::Space, at| space.unmap(at, MIB).unwrap();
    let alone = left_after_dropping(Sharer::None, unmap);
    let forked = left_after_dropping(Sharer::Fork, unmap);
    assert_eq!(
        forked, alone,
        "pages after unmap, with and without a fork that is gone"
    );
}

/// Each fork keeps the leaf that the space had when the fork was made. The space's leaf borrows
/// from the leaf of the second fork, and that one from the leaf of the first.
#[test]
fn pages_that_are_dropped_before_two_forks_end_are_given_back_with_the_second() {
    enum First {
        Older,
        Younger,
    }
    for (first, what) in [
        (First::Older, "the older fork ends first"),
        (First::Younger, "the younger fork ends first"),
    ] {
        let left = left_after_dropping(Sharer::None, |space, at| {
            let mut a = space.accessor().unwrap();
            let older = space.fork().unwrap();
            a.store(at, 2_u8).unwrap();
            let younger = space.fork().unwrap();
            a.store(at + PAGE, 3_u8).unwrap();
            space.unmap(at + 2 * PAGE, MIB - 3 * PAGE).unwrap();
            match first {
                First::Older => drop((older, younger)),
                First::Younger => drop((younger, older)),
            }
            assert_eq!(a.load::<u8>(at + MIB - PAGE), Ok(1), "{what}");
        });
        assert_eq!(left, 3, "pages after unmap and two forks: {what}");
    }
}

/// Two leaves have lost their other users, and the second of them has the page: it is taken over,
/// not copied.
#[test]
fn a_store_takes_over_a_page_that_two_ended_forks_have_left() {
    let memory = memory_of(16 * MIB);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(2 * MIB).writable()).unwrap();
    let mut a = space.accessor().unwrap();
    a.fill(at, 1, 4 * PAGE_SIZE).unwrap();
    let older = space.fork().unwrap();
    a.store(at, 2_u8).unwrap();
    let younger = space.fork().unwrap();
    a.store(at + PAGE, 3_u8).unwrap();
    drop((older, younger));
    (0..4).for_each(|_| memory.tick());
    a.store(at + 2 * PAGE, 4_u8).unwrap();
    (0..4).for_each(|_| memory.tick());
    assert_eq!(memory.stats().parts.anonymous / PAGE, 4);
    let seen = [0, 1, 2, 3].map(|page| a.load::<u8>(at + page * PAGE));
    assert_eq!(seen, [2, 3, 4, 1].map(Ok));
    space.validate();
    memory.validate();
}

/// To the program, its group is full of pages that it has given back.
#[test]
fn a_group_has_room_for_what_was_unmapped() {
    let memory = memory_of(16 * MIB);
    let group = memory.create_group("small", 400 * PAGE).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let mut a = space.accessor().unwrap();
    let at = space.map(Map::anonymous(2 * MIB).writable()).unwrap();
    a.fill(at, 1, MIB as usize).unwrap();
    let child = space.fork().unwrap();
    a.store(at, 2_u8).unwrap();
    drop(child);
    space.unmap(at, MIB).unwrap();
    memory.tick();
    // The other half of the 2 MiB stays mapped.
    let other = space.map(Map::anonymous(2 * MIB).writable()).unwrap();
    let filled = a.fill(other, 3, MIB as usize);
    assert!(filled.is_ok(), "{}", a.explain(filled.unwrap_err()));
}

/// The last pages that a leaf borrows are moved elsewhere, and the leaf borrows no page any more.
#[test]
fn tables_that_nothing_is_borrowed_from_any_more_are_given_back_after_a_remap() {
    use innerspace::space::Remap;
    let tables = |forked: bool| {
        let memory = memory_of(16 * MIB);
        let space = memory.create_space().unwrap();
        let at = space.map(Map::anonymous(4 * MIB).writable()).unwrap();
        // The second half of the first leaf stays, and belongs to neither mapping.
        let (first, second) = (VirtAddr(at.0.next_multiple_of(2 * MIB)), 2 * MIB);
        let mut a = space.accessor().unwrap();
        a.store(first + second - PAGE, 9_u8).unwrap();
        a.fill(first, 1, 8 * PAGE_SIZE).unwrap();
        let child = forked.then(|| space.fork().unwrap());
        a.store(first + second - PAGE, 2_u8).unwrap();
        let to = space.map(Map::anonymous(8 * PAGE)).unwrap();
        space
            .remap(first, 8 * PAGE, 8 * PAGE, Remap::Replacing(to))
            .unwrap();
        assert_eq!(a.load::<u8>(to + 7 * PAGE), Ok(1));
        drop(child);
        (0..4).for_each(|_| memory.tick());
        space.validate();
        memory.validate();
        let parts = memory.stats().parts;
        (parts.anonymous / PAGE, parts.tables / PAGE)
    };
    assert_eq!(tables(true), tables(false), "anonymous pages and tables");
}

/// A page of a file is watched in two spaces that share the leaf, and is taken away. Then the file
/// is written to.
#[test]
fn code_of_a_file_is_stale_in_each_space_that_shares_the_leaf() {
    let evicted = |file: &innerspace::PagedFile| {
        file.evict(..).unwrap();
        file.write_at(b"other", 0).unwrap();
    };
    let cut = |file: &innerspace::PagedFile| file.set_len(0).unwrap();
    let punched = |file: &innerspace::PagedFile| file.punch(0..PAGE).unwrap();
    for (what, change) in [
        ("evicted", &evicted as &dyn Fn(&innerspace::PagedFile)),
        ("cut", &cut),
        ("punched", &punched),
    ] {
        let memory = memory_of(8 * MIB);
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let file = options
            .open_store(Arc::new(MemoryStore::from_bytes(&[7; 4 * PAGE_SIZE])))
            .unwrap();
        let parent = memory.create_space().unwrap();
        let code = Map::file(&file).protection(Protection::READ | Protection::EXECUTE);
        let at = parent.map(code).unwrap();
        let mut p = parent.accessor().unwrap();
        assert_eq!(p.fetch::<u8>(at), Ok(7));
        let child = parent.fork().unwrap();
        let mut c = child.accessor().unwrap();
        let (by_parent, by_child) = (p.watch_code(at).unwrap(), c.watch_code(at).unwrap());
        assert!(by_parent.is_current() && by_child.is_current());
        change(&file);
        assert!(!by_parent.is_current(), "{what}: the parent's");
        assert!(
            !by_child.is_current(),
            "{what}: the child's; its first byte is {:?}",
            c.fetch::<u8>(at)
        );
    }
}

/// A page of a file is watched. A store next to it copies the leaf without the file's page, and the
/// fork that kept the old leaf ends. So no space maps the page when the file is written to.
#[test]
fn code_of_a_file_is_stale_after_a_write_though_its_leaf_was_copied() {
    let memory = memory_of(8 * MIB);
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options
        .open_store(Arc::new(MemoryStore::from_bytes(&[7; 4 * PAGE_SIZE])))
        .unwrap();
    let space = memory.create_space().unwrap();
    let data = space.map(Map::anonymous(16 * PAGE)).unwrap();
    let code = Map::file(&file).protection(Protection::READ | Protection::EXECUTE);
    let at = space.map(code.at(data + 16 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(data, 1_u8).unwrap();
    let watched = a.watch_code(at).unwrap();
    assert_eq!(a.fetch::<u8>(at), Ok(7)); // the code made of this is current
    let child = space.fork().unwrap();
    a.store(data, 2_u8).unwrap();
    drop(child);
    memory.tick();
    file.write_at(b"other", 0).unwrap();
    assert!(
        !watched.is_current(),
        "the first byte is {:?}",
        a.fetch::<u8>(at)
    );
}
