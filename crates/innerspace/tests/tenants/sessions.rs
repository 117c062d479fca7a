//! A session, a view or a pin of A delays B by no more than a stated bound.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use innerspace::store::MemoryStore;
use innerspace::{
    Group, MIB, Map, Memory, PAGE_SIZE, Space, Threads, VirtAddr,
    file::FileAccess,
    space::{AtFork, Protection, Remap},
};

use crate::world::World;

const PAGE: u64 = PAGE_SIZE as u64;
const PAGES: u64 = 64;

/// A bound that only a failure reaches.
const LONG: Duration = Duration::from_secs(20);

/// A thread of A that is in a session of its own space, between two accesses, until it is told to
/// end.
struct Held {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Held {
    /// Begins a session that has used every page of `len` bytes at `at`.
    fn new(space: &Space, at: VirtAddr, len: u64) -> Held {
        let mut accessor = space.accessor().unwrap();
        let (opened, is_open) = channel();
        let (end, ended) = channel();
        let thread = std::thread::spawn(move || {
            accessor.session(|session| {
                for page in 0..len / PAGE {
                    session.load::<u64>(at + page * PAGE + 64).unwrap();
                }
                opened.send(()).unwrap();
                ended.recv().unwrap();
            });
        });
        is_open.recv().unwrap();
        Held { end, thread }
    }

    fn end(self) {
        self.end.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

/// Runs B's work on a thread of its own, and checks that it ends in time.
fn in_time(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = channel();
    let thread = std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    let ended = is_done.recv_timeout(LONG);
    assert!(ended.is_ok(), "B's work did not end: {what}");
    thread.join().unwrap();
}

/// Makes all kinds of changes of a space, and of files.
fn work(memory: &Memory, group: &Group) {
    let space = memory.create_space_in(group).unwrap();
    let at = space.map(Map::anonymous(PAGES * PAGE)).unwrap();
    let mut b = space.accessor().unwrap();
    let mut store_all = |value: u64| {
        for page in 0..PAGES {
            b.store(at + page * PAGE, value).unwrap();
        }
    };
    store_all(1);
    // These are more copies than are ever retired together, and more than the group holds.
    for round in 0..64 {
        let child = space.fork().unwrap();
        let mut c = child.accessor().unwrap();
        for page in 0..PAGES {
            c.store(at + page * PAGE, round).unwrap();
        }
        store_all(round);
    }
    let snapshot = space.freeze().unwrap();
    store_all(2);
    space.restore(&snapshot).unwrap();
    space.protect(at, PAGE, Protection::READ).unwrap();
    space.discard(at, 8 * PAGE).unwrap();
    drop(space.pin(at + 8 * PAGE, PAGE, AtFork::Refuse).unwrap());
    let options = memory.file_options().group(group);
    let store = MemoryStore::from_bytes(&vec![7; 4 << 20]);
    let file = options
        .access(FileAccess::ReadWrite)
        .open_store(store)
        .unwrap();
    let shared = Map::file(&file).shared().writable();
    let mapped = space.map(shared).unwrap();
    for page in 0..MIB / PAGE {
        b.store(mapped + page * PAGE, page).unwrap();
    }
    file.sync_all().unwrap();
    file.punch(0..MIB / 2).unwrap();
    file.set_len(MIB).unwrap();
    space.remap(mapped, MIB, 2 * MIB, Remap::MayMove).unwrap();
    space.unmap(at, PAGES * PAGE).unwrap();
    drop((b, snapshot, space, file));
}

fn with_session_of_a(threads: Threads) {
    let world = World::new(16 * MIB, threads);
    let space = world.memory.create_space_in(&world.a).unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    // A shares its page table with a fork of its own, and has retired pages itself.
    let child = space.fork().unwrap();
    let mut other = space.accessor().unwrap();
    let half = MIB / PAGE / 2;
    let mut store_all = |mut pages: std::ops::Range<u64>| {
        pages.try_for_each(|page| other.store(at + page * PAGE, 1u64))
    };
    store_all(0..half).unwrap();
    let held = Held::new(&space, at, MIB);
    // Another thread of A retires pages that the session may hold.
    store_all(half..2 * half).unwrap();
    child.fork().unwrap();
    let (memory, b) = (world.memory.clone(), world.b.clone());
    in_time("beside a session", move || work(&memory, &b));
    world.memory.validate();
    held.end();
    drop((other, child, space));
    world.memory.validate();
}

// spec: N7
#[test]
fn a_session_of_a_delays_nothing_of_b() {
    with_session_of_a(Threads::None);
    with_session_of_a(Threads::default());
}
