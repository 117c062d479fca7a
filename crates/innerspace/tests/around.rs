//! Pages that a load maps around its own, and that are taken away like any others.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    Accessor, KIB, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr,
    file::FileAccess,
    space::{Advice, FaultKind, PageStats, Protection},
};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory() -> Memory {
    let options = Memory::builder(8 * MIB).threads(Threads::None);
    options.build().unwrap()
}

/// Creates a store whose page n is full of n + 1.
fn numbers(pages: u64) -> MemoryStore {
    let bytes: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE) as u8 + 1).collect();
    MemoryStore::from_bytes(&bytes)
}

/// Creates a file of such a store, with all of it cached.
fn cached(memory: &Memory, pages: u64, block: u64) -> PagedFile {
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options
        .block_size(block)
        .open_store(numbers(pages))
        .unwrap();
    let mut byte = [0];
    for page in 0..pages {
        file.read_at(&mut byte, page * PAGE).unwrap();
    }
    file
}

fn pages(space: &Space) -> PageStats {
    space.validate();
    space.stats().pages
}

fn around(memory: &Memory) -> u64 {
    memory.stats().totals.pgmap_around
}

/// Loads by an accessor that remembers no translation.
fn load(space: &Space, at: VirtAddr) -> Result<u8, FaultKind> {
    load_by(&mut space.accessor().unwrap(), at)
}

fn load_by(accessor: &mut Accessor, at: VirtAddr) -> Result<u8, FaultKind> {
    accessor.load::<u8>(at).map_err(|fault| fault.kind())
}

/// Maps all of a file, and loads one page in its middle.
fn with_neighbours(memory: &Memory, file: &PagedFile) -> (Space, VirtAddr) {
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(file).shared().writable()).unwrap();
    assert_eq!(load(&space, at + 20 * PAGE), Ok(21));
    (space, at)
}

#[test]
fn a_load_maps_the_cached_pages_around_it_and_uses_its_own_alone() {
    let memory = memory();
    let file = cached(&memory, 40, PAGE);
    let (space, at) = with_neighbours(&memory, &file);
    let now = pages(&space);
    assert_eq!((now.file.0, now.referenced.0, now.writable.0), (16, 1, 0));
    assert_eq!(around(&memory), 15);
    let reads = file.stats().store_reads;
    for page in 16..32 {
        assert_eq!(load(&space, at + page * PAGE), Ok(page as u8 + 1));
    }
    let now = pages(&space);
    assert_eq!((now.file.0, now.referenced.0), (16, 16));
    assert_eq!((around(&memory), file.stats().store_reads), (15, reads));
    // The marks of use are cleared, and the mappings stay.
    space.advise(at, 40 * PAGE, Advice::Cold).unwrap();
    assert_eq!(load(&space, at + 17 * PAGE), Ok(18));
    let now = pages(&space);
    assert_eq!((now.file.0, now.referenced.0), (16, 1));
}

#[test]
fn no_page_is_mapped_beyond_the_mapping_its_protection_the_leaf_or_the_file() {
    let memory = memory();
    let file = cached(&memory, 40, PAGE);
    let space = memory.create_space().unwrap();
    let part = space
        .map(Map::file(&file).range(18 * PAGE..23 * PAGE))
        .unwrap();
    assert_eq!(load(&space, part + PAGE), Ok(20));
    assert_eq!(pages(&space).file.0, 5, "the mapping");
    space.unmap(part, 5 * PAGE).unwrap();

    let at = VirtAddr(16 * MIB);
    space.map(Map::file(&file).at(at)).unwrap();
    space
        .protect(at + 4 * PAGE, PAGE, Protection::NONE)
        .unwrap();
    assert_eq!(load(&space, at + 2 * PAGE), Ok(3));
    assert_eq!(pages(&space).file.0, 4, "up to what is forbidden");
    assert_eq!(load(&space, at + 4 * PAGE), Err(FaultKind::Forbidden));
    space.unmap(at, 40 * PAGE).unwrap();

    // The window ends with the leaf, wherever in the file that is.
    let at = VirtAddr(18 * MIB - 3 * PAGE);
    space.map(Map::file(&file).at(at)).unwrap();
    assert_eq!(load(&space, at), Ok(1));
    assert_eq!(pages(&space).file.0, 3, "the leaf");
    assert_eq!(load(&space, at + 3 * PAGE), Ok(4));
    assert_eq!(pages(&space).file.0, 3 + 16);
    space.unmap(at, 40 * PAGE).unwrap();

    for block in [PAGE, 64 * KIB] {
        let file = cached(&memory, 5, block);
        let at = space.map(Map::file(&file).range(..8 * PAGE)).unwrap();
        assert_eq!(load(&space, at + 2 * PAGE), Ok(3));
        assert_eq!(pages(&space).file.0, 5, "the file, in blocks of {block}");
        assert_eq!(load(&space, at + 5 * PAGE), Err(FaultKind::PastEnd));
        space.unmap(at, 8 * PAGE).unwrap();
    }
}

#[test]
fn pages_of_large_blocks_are_mapped_with_their_own_block_and_the_next() {
    let memory = memory();
    for block in [8 * KIB, 32 * KIB, 128 * KIB] {
        let file = cached(&memory, 64, block);
        let space = memory.create_space().unwrap();
        // The mapping does not begin where the blocks do.
        let map = Map::file(&file).range(PAGE..);
        let at = space.map(map.at(VirtAddr(MIB))).unwrap();
        assert_eq!(load(&space, at + 20 * PAGE), Ok(22));
        assert_eq!(pages(&space).file.0, 16, "in blocks of {block}");
        for page in 16..32 {
            assert_eq!(load(&space, at + page * PAGE), Ok(page as u8 + 2));
        }
        assert_eq!(file.evict(..).unwrap().0, 64, "no count is left over");
        assert_eq!(pages(&space).file.0, 0);
        drop((space, file));
        memory.validate();
    }
}

#[test]
fn what_is_not_cached_is_left_and_not_read() {
    let memory = memory();
    let file = cached(&memory, 40, PAGE);
    file.evict(18 * PAGE..20 * PAGE).unwrap();
    let reads = file.stats().store_reads;
    let (space, at) = with_neighbours(&memory, &file);
    assert_eq!(pages(&space).file.0, 14);
    assert_eq!(file.stats().store_reads, reads);
    assert_eq!(load(&space, at + 18 * PAGE), Ok(19));
    assert!(file.stats().store_reads > reads);
}

// spec: A5
#[test]
fn a_neighbour_goes_with_its_page_of_the_file() {
    let memory = memory();
    let neighbours = [16, 19, 21, 31];
    let each = |change: &dyn Fn(&PagedFile, u64), after: &dyn Fn(u64) -> Result<u8, FaultKind>| {
        let file = cached(&memory, 40, PAGE);
        let (space, at) = with_neighbours(&memory, &file);
        for page in neighbours {
            change(&file, page);
            assert_eq!(load(&space, at + page * PAGE), after(page), "page {page}");
        }
        space.validate();
        drop((space, file));
        memory.validate();
        assert_eq!(memory.root_group().usage(), 0);
    };
    let old = |page| Ok(page as u8 + 1);
    let bytes = |page| page * PAGE..(page + 1) * PAGE;
    each(&|file, page| file.punch(bytes(page)).unwrap(), &|_| Ok(0));
    each(
        &|file, page| assert_eq!(file.evict(bytes(page)).unwrap().0, 1),
        &old,
    );
    each(
        &|file, page| file.write_at(&[99], page * PAGE).unwrap(),
        &|_| Ok(99),
    );
    each(
        &|file, page| {
            // The page of the file moves to another frame.
            let view = file.view(bytes(page)).unwrap();
            file.write_at(&[77], page * PAGE).unwrap();
            assert_eq!(view[0], page as u8 + 1);
        },
        &|_| Ok(77),
    );
    each(&|file, page| drop(file.invalidate(bytes(page))), &old);
    each(&|file, _| file.set_len(16 * PAGE).unwrap(), &|_| {
        Err(FaultKind::PastEnd)
    });
}

// spec: V2
#[test]
fn a_neighbour_goes_with_its_mapping() {
    let memory = memory();
    let file = cached(&memory, 40, PAGE);
    let (space, at) = with_neighbours(&memory, &file);
    // The accessor has used some of the neighbours, whose words are valid, and remembers their leaf
    // and the mapping.
    let mut a = space.accessor().unwrap();
    for page in 21..25 {
        assert_eq!(load_by(&mut a, at + page * PAGE), Ok(page as u8 + 1));
    }
    let figures = |space: &Space| {
        let now = pages(space);
        (now.file.0, now.referenced.0)
    };
    assert_eq!(figures(&space), (16, 5));

    // One page that was used, and one that was not.
    for page in [21, 25] {
        space.unmap(at + page * PAGE, PAGE).unwrap();
        let gone = Err(FaultKind::NotMapped);
        assert_eq!(load_by(&mut a, at + page * PAGE), gone, "page {page}");
        assert_eq!(load(&space, at + page * PAGE), gone, "page {page}");
    }
    assert_eq!(figures(&space), (14, 4));
    assert_eq!(load_by(&mut a, at + 22 * PAGE), Ok(23));
    for page in [22, 26] {
        space
            .protect(at + page * PAGE, PAGE, Protection::NONE)
            .unwrap();
        let forbidden = Err(FaultKind::Forbidden);
        assert_eq!(load_by(&mut a, at + page * PAGE), forbidden, "page {page}");
        assert_eq!(load(&space, at + page * PAGE), forbidden, "page {page}");
    }
    assert_eq!(figures(&space), (14, 3), "mapped, and used by nobody");

    let child = space.fork().unwrap();
    let mut b = child.accessor().unwrap();
    for page in [23, 24] {
        assert_eq!(load_by(&mut b, at + page * PAGE), Ok(page as u8 + 1));
    }
    for page in [23, 27] {
        child.unmap(at + page * PAGE, PAGE).unwrap();
        let gone = Err(FaultKind::NotMapped);
        assert_eq!(load_by(&mut b, at + page * PAGE), gone, "page {page}");
        assert_eq!(load(&child, at + page * PAGE), gone, "page {page}");
    }
    // The child's own leaf begins without pages of files; the parent's leaf is unchanged.
    assert_eq!((figures(&child).0, figures(&space).0), (0, 14));
    for page in [23, 27] {
        assert_eq!(load_by(&mut a, at + page * PAGE), Ok(page as u8 + 1));
        assert_eq!(load(&space, at + page * PAGE), Ok(page as u8 + 1));
    }
    // A store through the neighbour's word is recorded like any other.
    a.store(at + 24 * PAGE, 200u8).unwrap();
    assert_eq!(file.stats().dirty.0, 1);
    assert_eq!(load(&child, at + 24 * PAGE), Ok(200));
    assert_eq!(load_by(&mut b, at + 24 * PAGE), Ok(200));
    space.discard(at, 8 * PAGE).unwrap();
    drop((a, b, child, space, file));
    memory.validate();
    assert_eq!(memory.root_group().usage(), 0);
}

// spec: V17
#[test]
fn a_neighbour_in_a_private_mapping_is_copied_by_a_store() {
    let memory = memory();
    let file = cached(&memory, 40, PAGE);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).private().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at + 19 * PAGE, 100u8).unwrap();
    assert_eq!(around(&memory), 0, "a store maps its own page");
    let child = space.fork().unwrap();
    assert_eq!(load(&child, at + 20 * PAGE), Ok(21));
    assert_eq!(around(&memory), 14, "but for what was copied");
    a.store(at + 21 * PAGE, 101u8).unwrap();
    let seen = [19, 20, 21].map(|page| load(&child, at + page * PAGE));
    assert_eq!(seen, [Ok(100), Ok(21), Ok(22)]);
    let mut bytes = [0; 1];
    file.read_at(&mut bytes, 21 * PAGE).unwrap();
    assert_eq!(bytes, [22]);
}

/// A store of page numbers that reports a read of page 21, and then waits.
struct Slow {
    numbers: MemoryStore,
    asked: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
}

impl Store for Slow {
    fn len(&self) -> io::Result<u64> {
        self.numbers.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset == 21 * PAGE {
            self.asked.lock().unwrap().send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
        self.numbers.read_at(buf, offset)
    }
}

// spec: V22
#[test]
fn a_neighbour_that_is_being_read_is_not_waited_for() {
    let memory = memory();
    let (asked, was_asked) = channel();
    let (go_on, may_go_on) = channel();
    let store = Slow {
        numbers: numbers(40),
        asked: Mutex::new(asked),
        go_on: Mutex::new(may_go_on),
    };
    let file = memory.file_options().open_store(Arc::new(store)).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    space.advise(at, 40 * PAGE, Advice::Random).unwrap();
    for page in [19, 20, 22] {
        assert_eq!(load(&space, at + page * PAGE), Ok(page as u8 + 1));
    }
    assert_eq!(around(&memory), 0, "read at random");
    space.discard(at, 40 * PAGE).unwrap();
    space.advise(at, 40 * PAGE, Advice::Normal).unwrap();
    let other = space.clone();
    let reading = thread::spawn(move || load(&other, at + 21 * PAGE));
    was_asked.recv().unwrap();
    assert_eq!(load(&space, at + 20 * PAGE), Ok(21));
    assert_eq!(around(&memory), 2);
    go_on.send(()).unwrap();
    assert_eq!(reading.join().unwrap(), Ok(22));
}

#[test]
fn an_invalidation_leaves_other_pages_mapped() {
    let memory = memory();
    let file = cached(&memory, 64, PAGE);
    let (space, _) = with_neighbours(&memory, &file);
    let mapped = pages(&space).file.0;
    file.invalidate(20 * PAGE..21 * PAGE).unwrap();
    assert_eq!(pages(&space).file.0, mapped - 1);
}

#[test]
fn a_hole_that_is_read_at_random_is_mapped_alone() {
    let memory = memory();
    let file = cached(&memory, 1, PAGE);
    file.set_len(64 * PAGE).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    space.advise(at, 32 * PAGE, Advice::Random).unwrap();
    assert_eq!(load(&space, at + 20 * PAGE), Ok(0));
    assert_eq!(pages(&space).zero.0, 1);
    assert_eq!(load(&space, at + 40 * PAGE), Ok(0));
    assert_eq!(pages(&space).zero.0, 17);
}

#[test]
fn advice_says_what_is_read_ahead_and_mapped_around() {
    let memory = memory();
    let file = memory.file_options().open_store(numbers(200)).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    let ahead = || {
        // The request in flight completes.
        memory.tick();
        memory.stats().totals.pgreadahead
    };
    let whole = |advice| space.advise(at, 200 * PAGE, advice).unwrap();

    whole(Advice::Random);
    for page in 0..8 {
        assert_eq!(load(&space, at + page * PAGE), Ok(page as u8 + 1));
    }
    assert_eq!((ahead(), around(&memory)), (0, 0), "at random");
    assert_eq!(pages(&space).file.0, 8);

    space
        .advise(at + 8 * PAGE, 4 * PAGE, Advice::Sequential)
        .unwrap();
    assert_eq!(space.stats().mappings.len(), 3, "advice is a mapping's own");
    assert_eq!(load(&space, at + 8 * PAGE), Ok(9));
    let window = ahead();
    assert!((32..140).contains(&window), "all of a window at once");
    assert_eq!(around(&memory), 3, "as far as the mapping goes");

    whole(Advice::Normal);
    assert_eq!(space.stats().mappings.len(), 1);
    assert_eq!(load(&space, at + 170 * PAGE), Ok(171));
    assert_eq!(ahead(), window, "one miss is no stream");
    for page in 171..174 {
        assert_eq!(load(&space, at + page * PAGE), Ok(page as u8 + 1));
    }
    assert!(ahead() > window);

    let empty = space.advise(at + 200 * PAGE, PAGE, Advice::Random);
    assert!(empty.is_err(), "nothing is mapped there");
    // The advice has no effect on anonymous memory.
    let own = space.map(Map::anonymous(4 * PAGE)).unwrap();
    space.advise(own, 4 * PAGE, Advice::Random).unwrap();
    space.accessor().unwrap().store(own, 1u8).unwrap();
}
