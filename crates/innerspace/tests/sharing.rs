//! Spaces that share pages: forks over many generations, protections, holes that are filled,
//! sessions of several threads.

use std::sync::{Arc, Barrier, mpsc};

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    MIB, Map, Memory, PAGE_SIZE, PagedFile, Threads, VirtAddr, file::FileAccess, space::Protection,
};

const PAGE: u64 = PAGE_SIZE as u64;

fn writable(memory: &Memory, store: &Arc<MemoryStore>) -> PagedFile {
    memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .open_store(store.clone())
        .unwrap()
}

#[test]
fn a_chain_of_forks_that_is_cut_leaves_nobody_writing_to_shared_pages() {
    let memory = Memory::with_limit(16 * MIB).unwrap();
    let mut spaces = vec![memory.create_space().unwrap()];
    let at = spaces[0].map(Map::anonymous(64 * PAGE)).unwrap();
    spaces[0].accessor().unwrap().store(at, 1u64).unwrap();
    for generation in 1..=8u64 {
        let child = spaces.last().unwrap().fork().unwrap();
        child
            .accessor()
            .unwrap()
            .store(at + generation * PAGE, generation)
            .unwrap();
        spaces.push(child);
    }
    let parent = spaces.last().unwrap();
    parent
        .accessor()
        .unwrap()
        .store(at + 20 * PAGE, 100u64)
        .unwrap();
    let child = parent.fork().unwrap();
    child
        .accessor()
        .unwrap()
        .store(at + 21 * PAGE, 5u64)
        .unwrap();
    parent
        .accessor()
        .unwrap()
        .store(at + 20 * PAGE, 200u64)
        .unwrap();
    assert_eq!(
        child.accessor().unwrap().load::<u64>(at + 20 * PAGE),
        Ok(100)
    );
}

#[test]
fn an_ancestor_that_is_alone_again_does_not_write_to_what_a_descendant_reads() {
    let memory = Memory::with_limit(16 * MIB).unwrap();
    let mut spaces = vec![memory.create_space().unwrap()];
    let at = spaces[0].map(Map::anonymous(64 * PAGE)).unwrap();
    spaces[0].accessor().unwrap().store(at, 1u64).unwrap();
    for generation in 1..=9u64 {
        let child = spaces.last().unwrap().fork().unwrap();
        child
            .accessor()
            .unwrap()
            .store(at + generation * PAGE, generation)
            .unwrap();
        spaces.push(child);
    }
    let last = spaces.pop().unwrap();
    let first = spaces.remove(0);
    drop(spaces);
    first.accessor().unwrap().store(at, 200u64).unwrap();
    assert_eq!(last.accessor().unwrap().load::<u64>(at), Ok(1));
}

#[test]
fn a_fork_that_copies_its_leaf_sees_a_hole_that_is_filled_meanwhile() {
    let memory = Memory::with_limit(64 * MIB).unwrap();
    for round in 0..400 {
        let file = writable(&memory, &Arc::new(MemoryStore::with_len(MIB)));
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file).shared().writable()).unwrap();
        let mut a = space.accessor().unwrap();
        for page in 0..256 {
            a.load::<u8>(at + page * PAGE).unwrap();
        }
        let child = space.fork().unwrap();
        file.write_at(&[1], 255 * PAGE).unwrap();
        let go = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut c = child.accessor().unwrap();
                go.wait();
                for _ in 0..(round % 64) * 40 {
                    std::hint::spin_loop();
                }
                c.store(at + 255 * PAGE, 1u8).unwrap();
            });
            go.wait();
            for page in 0..8 {
                file.write_at(&[7], page * PAGE).unwrap();
            }
        });
        let mut c = child.accessor().unwrap();
        for page in 0..8 {
            assert_eq!(
                c.load::<u8>(at + page * PAGE),
                Ok(7),
                "round {round}, page {page}"
            );
        }
    }
}

/// One fault maps the known holes of the aligned 16 pages around it, inside its mapping. A write
/// ends each of these holes separately.
// spec: P23
#[test]
fn a_load_of_a_hole_maps_the_holes_around_it() {
    let memory = Memory::with_limit(64 * MIB).unwrap();
    let file = writable(&memory, &Arc::new(MemoryStore::with_len(100 * PAGE)));
    let space = memory.create_space().unwrap();
    let at = VirtAddr(64 * MIB + 8 * PAGE);
    let map = Map::file(&file).range(..40 * PAGE).shared().writable();
    space.map(map.at(at)).unwrap();
    let private = VirtAddr(128 * MIB);
    let map = Map::file(&file).range(..32 * PAGE).private().writable();
    space.map(map.at(private)).unwrap();
    let mut a = space.accessor().unwrap();
    let mut faults = |pages: std::ops::Range<u64>, at: VirtAddr| {
        let before = memory.stats().totals.pgfault;
        for page in pages {
            assert_eq!(a.load::<u64>(at + page * PAGE), Ok(0), "page {page}");
        }
        memory.stats().totals.pgfault - before
    };
    assert_eq!(faults(3..4, at), 1);
    assert_eq!(faults(3..8, at), 0, "to where the window ends");
    assert_eq!(faults(0..3, at), 1, "the store was asked from page 3 on");
    assert_eq!(faults(8..24, at), 1);
    assert_eq!(faults(24..40, at), 1);
    assert_eq!(faults(0..32, private), 2);
    let mut b = space.accessor().unwrap();
    b.store(private + 5 * PAGE, 1u64).unwrap();
    b.store(at + 6 * PAGE, 2u64).unwrap();
    file.write_at(&3u64.to_le_bytes(), 7 * PAGE).unwrap();
    let loads = [5, 6, 7, 8].map(|page| b.load::<u64>(at + page * PAGE).unwrap());
    assert_eq!(loads, [0, 2, 3, 0]);
    let loads = [5, 6, 7, 8].map(|page| b.load::<u64>(private + page * PAGE).unwrap());
    assert_eq!(loads, [1, 2, 3, 0]);
    space.unmap(at + 16 * PAGE, PAGE).unwrap();
    assert!(b.load::<u64>(at + 16 * PAGE).is_err());
    space.validate();
    memory.validate();
}

#[test]
fn what_only_a_mapping_kept_open_is_written_without_a_service_thread() {
    let memory = Memory::builder(16 * MIB)
        .threads(Threads::None)
        .build()
        .unwrap();
    let store = Arc::new(MemoryStore::with_len(PAGE));
    let file = writable(&memory, &store);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    space.accessor().unwrap().store(at, 7u8).unwrap();
    drop(file);
    drop(space);
    drop(memory);
    let mut byte = [0];
    store.read_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [7]);
    assert_eq!(
        Arc::strong_count(&store),
        1,
        "the memory is gone with its last handle"
    );
}

// spec: A7
#[test]
fn two_threads_fork_with_sessions_open() {
    let memory = Memory::with_limit(16 * MIB).unwrap();
    let start = Arc::new(Barrier::new(2));
    let (done, finished) = mpsc::channel();
    for _ in 0..2 {
        let (memory, start, done) = (memory.clone(), start.clone(), done.clone());
        std::thread::spawn(move || {
            let space = memory.create_space().unwrap();
            let at = space.map(Map::anonymous(PAGE)).unwrap();
            let mut a = space.accessor().unwrap();
            start.wait(); // not in the session: the library does not see this wait
            a.session(|a| {
                a.store(at, 7u64).unwrap();
                for round in 0..200u64 {
                    let child = space.fork().unwrap();
                    a.store(at, round).unwrap();
                    let before = child.accessor().unwrap().load::<u64>(at).unwrap();
                    assert_eq!(before, if round == 0 { 7 } else { round - 1 });
                }
            });
            done.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        finished.recv().unwrap();
    }
}

#[test]
fn protecting_a_forked_range_races_with_the_other_forks_loads() {
    let memory = Memory::with_limit(64 * MIB).unwrap();
    for round in 0..60 {
        let parent = memory.create_space().unwrap();
        let len = 256 * 2 * MIB;
        let at = parent.map(Map::anonymous(len)).unwrap();
        parent.accessor().unwrap().store(at, 1u64).unwrap();
        let child = parent.fork().unwrap();
        let go = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut c = child.accessor().unwrap();
                go.wait();
                for leaf in 0..256 {
                    c.load::<u64>(at + leaf * 2 * MIB).unwrap();
                }
            });
            go.wait();
            for _ in 0..round * 20 {
                std::hint::spin_loop();
            }
            parent.protect(at, len, Protection::NONE).unwrap();
        });
        assert!(parent.accessor().unwrap().load::<u64>(at).is_err());
        assert_eq!(child.accessor().unwrap().load::<u64>(at), Ok(1));
        parent.validate();
        child.validate();
    }
}

#[test]
fn what_happens_in_a_space_is_counted() {
    let memory = Memory::with_limit(16 * MIB).unwrap();
    let store = Arc::new(MemoryStore::from_bytes(&[1; 2 * PAGE_SIZE]));
    let file = writable(&memory, &store);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(4 * MIB)).unwrap();
    let mapped = space.map(Map::file(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    let mut b = space.accessor().unwrap();
    a.load::<u64>(at).unwrap();
    a.load::<u64>(mapped).unwrap();
    a.store(at + PAGE, 1u64).unwrap();
    a.store(at + 3 * MIB, 1u64).unwrap();
    b.load::<u64>(at + PAGE).unwrap();
    let child = space.fork().unwrap();
    // The upper nodes are copied first, then a leaf below them alone.
    a.store(at + PAGE, 2u64).unwrap();
    a.store(at + 3 * MIB, 2u64).unwrap();
    drop(child);
    let totals = memory.stats().totals;
    for (name, count) in [
        ("pgfault", totals.pgfault),
        ("pgmajfault", totals.pgmajfault),
        ("zero_map", totals.zero_map),
        ("cow", totals.cow),
        ("fork", totals.fork),
        ("table_unshare", totals.table_unshare),
        ("mailbox_post", totals.mailbox_post),
        ("mailbox_flush", totals.mailbox_flush),
        ("grace_period", totals.grace_period),
    ] {
        assert!(count > 0, "{name} was not counted");
    }
}

// spec: V18
#[test]
fn a_hole_that_the_store_calls_data_after_a_write_nearby_is_one_no_more_for_who_maps_it() {
    let memory = Memory::with_limit(16 * MIB).unwrap();
    let store = Arc::new(MemoryStore::with_len(4 * PAGE));
    let file = writable(&memory, &store);
    let spaces = [(); 2].map(|()| memory.create_space().unwrap());
    let at = spaces.each_ref().map(|space| {
        let map = Map::file(&file).shared().writable();
        space.map(map).unwrap()
    });
    let [mut writer, mut reader] = spaces.each_ref().map(|space| space.accessor().unwrap());
    assert_eq!(reader.load::<u64>(at[1]), Ok(0));
    writer.store(at[0] + PAGE, 1u64).unwrap();
    file.sync_all().unwrap();
    file.evict(..).unwrap();
    assert_eq!(
        store.next_data(0).unwrap(),
        Some(0),
        "the store tells data from holes page by page: no test of this"
    );
    writer.store(at[0], 7u64).unwrap();
    assert_eq!(reader.load::<u64>(at[1]), Ok(7));
}

thread_local! {
    /// A value that is dropped at its thread's end.
    static KEPT: std::cell::RefCell<Option<Kept>> = const { std::cell::RefCell::new(None) };
}

/// A value that uses its accessor once more when it is dropped, after the other locals.
struct Kept {
    file: PagedFile,
    space: innerspace::Space,
    at: VirtAddr,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, *b"kept");
        self.file.write_at(b"last", 4).unwrap();
        assert_eq!(self.file.view(4..8).unwrap()[..], *b"last");
        let fork = self.space.fork().unwrap();
        let mut a = fork.accessor().unwrap();
        assert_eq!(a.load::<u64>(self.at), Ok(7));
        a.store(self.at, 8_u64).unwrap();
        self.space.unmap(self.at, PAGE).unwrap();
    }
}

#[test]
fn what_the_locals_of_a_thread_keep_works_to_its_end() {
    let memory = Memory::with_limit(16 * MIB).unwrap();
    let store = Arc::new(MemoryStore::new());
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // This is the thread's first local, so it is dropped last.
            KEPT.with_borrow(|kept| assert!(kept.is_none()));
            let file = writable(&memory, &store);
            file.write_at(b"kept", 0).unwrap();
            let space = memory.create_space().unwrap();
            let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
            space.accessor().unwrap().store(at, 7_u64).unwrap();
            KEPT.set(Some(Kept { file, space, at }));
        });
        // The end of the scope alone would not wait for the locals.
        thread.join().unwrap();
    });
    let mut bytes = [0; 8];
    assert_eq!(store.read_at(&mut bytes, 0).unwrap(), 8);
    assert_eq!(bytes, *b"keptlast");
    memory.validate();
}
