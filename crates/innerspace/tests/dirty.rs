//! Compares the pages that were stored to since they were last taken with plain sets and with
//! copies of the bytes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use innerspace::store::MemoryStore;
use innerspace::{
    Accessor, KIB, MIB, MINIMUM_LIMIT, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr,
    dax::{DaxDevice, HoleWrites},
    file::FileAccess,
    space::{Device, DeviceError, Protection, Snapshot, SpaceError},
};
use proptest::prelude::*;

const PAGE: u64 = PAGE_SIZE as u64;
const LEAF: u64 = 512 * PAGE;

fn memory(limit: u64) -> Memory {
    let options = Memory::builder(limit).threads(Threads::None);
    options.build().unwrap()
}

fn pages_of(named: &[Range<VirtAddr>]) -> BTreeSet<u64> {
    let ranges = named.iter().map(|range| range.start.0..range.end.0);
    ranges.flat_map(|range| range.step_by(PAGE_SIZE)).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Store(usize, u64),
    /// A store to the last bytes of a page and the first ones of the next.
    StoreAcross(usize, u64),
    Load(usize),
    Unmap(usize),
    Map(usize),
    Drop(usize),
    Protect(usize, bool),
    Move(usize, usize),
    Fork(usize, u64),
    ForgetForks,
    Freeze,
    Restore,
    Clean,
    Take(usize, usize),
}

/// Pages 0..8 are in two adjacent leaves and in two that are further away; 8..12 map a file.
const PLACES: usize = 12;
const OF_FILE: usize = 8;

fn place(page: usize) -> VirtAddr {
    let base = VirtAddr(0x4000_0000);
    match page {
        0..4 => base + (LEAF - 2 * PAGE) + page as u64 * PAGE,
        4..8 => base + page as u64 * LEAF,
        _ => base + 100 * LEAF + (page - OF_FILE) as u64 * PAGE,
    }
}

fn op() -> impl Strategy<Value = Op> {
    let page = 0..PLACES;
    let anonymous = 0..OF_FILE;
    prop_oneof![
        12 => (page.clone(), 1..9u64).prop_map(|(page, value)| Op::Store(page, value)),
        1 => (0..3usize, 1..9u64).prop_map(|(page, value)| Op::StoreAcross(page, value)),
        2 => page.clone().prop_map(Op::Load),
        1 => anonymous.clone().prop_map(Op::Unmap),
        1 => anonymous.clone().prop_map(Op::Map),
        1 => anonymous.clone().prop_map(Op::Drop),
        2 => (page.clone(), any::<bool>()).prop_map(|(page, write)| Op::Protect(page, write)),
        1 => (anonymous.clone(), anonymous.clone()).prop_map(|(from, to)| Op::Move(from, to)),
        2 => (anonymous, 10..19u64).prop_map(|(page, value)| Op::Fork(page, value)),
        1 => Just(Op::ForgetForks),
        1 => Just(Op::Freeze),
        2 => Just(Op::Restore),
        2 => Just(Op::Clean),
        8 => (page.clone(), page).prop_map(|(a, b)| Op::Take(a.min(b), a.max(b) + 1)),
    ]
}

struct World {
    space: Space,
    accessor: Accessor,
    file: PagedFile,
    forks: Vec<Space>,
    snapshot: Option<Snapshot>,
    /// The pages that have to be named. `allowed` has those that may be named.
    required: BTreeSet<usize>,
    allowed: BTreeSet<usize>,
    /// A copy that is kept up to date by the named pages alone.
    copy: [Option<[u64; 2]>; PLACES],
}

impl World {
    fn new(memory: &Memory) -> World {
        let store = Arc::new(MemoryStore::with_len(4 * PAGE));
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let file = options.open_store(store).unwrap();
        let space = memory.create_space().unwrap();
        for page in 0..OF_FILE {
            space.map(Map::anonymous(PAGE).at(place(page))).unwrap();
        }
        let shown = Map::file(&file).shared().writable().at(place(OF_FILE));
        space.map(shown).unwrap();
        World {
            accessor: space.accessor().unwrap(),
            space,
            file,
            forks: Vec::new(),
            snapshot: None,
            required: (0..PLACES).collect(),
            allowed: (0..PLACES).collect(),
            copy: [None; PLACES],
        }
    }

    fn changed(&mut self, page: usize) {
        self.required.insert(page);
        self.allowed.insert(page);
    }

    /// Returns the first and the last word of a page, if it is mapped.
    fn bytes(&mut self, page: usize) -> Option<[u64; 2]> {
        let last = PAGE - 8;
        let words = [0, last].map(|at| self.accessor.load(place(page) + at).ok());
        Some([words[0]?, words[1]?])
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Store(page, value) => {
                if self.accessor.store(place(page), value).is_ok() {
                    self.changed(page);
                }
            }
            Op::StoreAcross(page, value) => {
                let at = place(page) + (PAGE - 4);
                if self.accessor.store(at, value).is_ok() {
                    self.changed(page);
                    self.changed(page + 1);
                } else {
                    // The fault may have made one of the two pages writable.
                    self.allowed.extend([page, page + 1]);
                }
            }
            Op::Load(page) => drop(self.accessor.load::<u64>(place(page))),
            Op::Unmap(page) => {
                self.space.unmap(place(page), PAGE).unwrap();
                self.changed(page);
            }
            Op::Map(page) => {
                let fresh = Map::anonymous(PAGE).replacing(place(page));
                self.space.map(fresh).unwrap();
                self.changed(page);
            }
            Op::Drop(page) => {
                if self.space.discard(place(page), PAGE).is_ok() {
                    self.changed(page);
                }
            }
            Op::Protect(page, write) => {
                let protection = match write {
                    true => Protection::READ_WRITE,
                    false => Protection::READ,
                };
                let _unmapped = self.space.protect(place(page), PAGE, protection);
            }
            Op::Move(from, to) => {
                let target = innerspace::space::Remap::Replacing(place(to));
                if self.space.remap(place(from), PAGE, PAGE, target).is_ok() {
                    self.changed(from);
                    self.changed(to);
                }
            }
            Op::Fork(page, value) => {
                let child = self.space.fork().unwrap();
                let _forbidden = child.accessor().unwrap().store(place(page), value);
                self.forks.push(child);
            }
            Op::ForgetForks => self.forks.clear(),
            Op::Freeze => self.snapshot = Some(self.space.freeze().unwrap()),
            Op::Restore => {
                if let Some(snapshot) = &self.snapshot {
                    self.space.restore(snapshot).unwrap();
                    // A page that differs has to be named; the comparison with the copy shows
                    // whether it was.
                    self.allowed.extend(0..PLACES);
                }
            }
            Op::Clean => {
                self.file.sync_all().unwrap();
                self.file.evict(0..4 * PAGE).unwrap();
            }
            Op::Take(from, to) => self.take(from..to),
        }
    }

    fn take(&mut self, places: Range<usize>) {
        let (start, end) = (place(places.start), place(places.end - 1) + PAGE);
        let named = self.space.take_dirty(start, end.0 - start.0).unwrap();
        let mut named = pages_of(&named);
        for page in places {
            let was_named = named.remove(&place(page).0);
            let (required, allowed) = (self.required.remove(&page), self.allowed.remove(&page));
            let now = self.bytes(page);
            if now.is_some() {
                assert!(was_named || !required, "page {page} is not named");
                assert!(!was_named || allowed, "page {page} was not stored to");
            } else {
                assert!(!was_named, "page {page} is not mapped");
                self.copy[page] = None;
            }
            if was_named {
                self.copy[page] = now;
            }
            assert_eq!(self.copy[page], now, "page {page}");
        }
        assert!(named.is_empty(), "named and not mapped: {named:x?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_taken_is_what_was_stored_to(ops in prop::collection::vec(op(), 1..150)) {
        let memory = memory(16 * MIB);
        let mut world = World::new(&memory);
        for op in &ops {
            world.apply(op);
        }
        world.take(0..PLACES);
        world.space.validate();
        drop(world);
        memory.validate();
        memory.validate(); // of entries that the first flush retired
        prop_assert_eq!(memory.root_group().usage(), 0);
    }
}

#[test]
fn a_copy_made_beside_a_writer_is_whole_in_the_end() {
    const PAGES: u64 = 64;
    let memory = memory(16 * MIB);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(PAGES * PAGE)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let (mut a, stop) = (space.accessor().unwrap(), stop.clone());
            std::thread::spawn(move || {
                let mut random = writer + 1;
                while !stop.load(Ordering::Relaxed) {
                    a.session(|a| {
                        for _ in 0..200 {
                            random ^= random << 13;
                            random ^= random >> 7;
                            random ^= random << 17;
                            let page = (random >> 32) % PAGES;
                            a.store(at + page * PAGE + writer * 8, random).unwrap();
                        }
                    });
                }
            })
        })
        .collect();
    let mut copy = vec![[0_u64; 2]; PAGES as usize];
    let mut reader = space.accessor().unwrap();
    let mut refresh = || {
        let named = space.take_dirty(at, PAGES * PAGE).unwrap();
        for page in pages_of(&named) {
            let words = [0, 8].map(|word| reader.load(VirtAddr(page) + word).unwrap());
            copy[((page - at.0) / PAGE) as usize] = words;
        }
        named.len()
    };
    for _ in 0..300 {
        refresh();
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
    refresh();
    assert_eq!(refresh(), 0, "nobody stores any more");
    for page in 0..PAGES {
        let words = [0, 8].map(|word| reader.load(at + page * PAGE + word).unwrap());
        assert_eq!(copy[page as usize], words, "page {page}");
    }
}

#[test]
fn a_take_names_only_its_range_and_leaves_the_rest() {
    let memory = memory(16 * MIB);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(8 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let all = at..at + 8 * PAGE;
    assert_eq!(space.take_dirty(at, 8 * PAGE).unwrap(), [all]);
    for page in [1, 2, 6] {
        a.store(at + page * PAGE, 1_u8).unwrap();
    }
    let taken = space.take_dirty(at + 2 * PAGE, 2 * PAGE).unwrap();
    assert_eq!(taken, [at + 2 * PAGE..at + 3 * PAGE]);
    let taken = space.take_dirty(at, 8 * PAGE).unwrap();
    assert_eq!(
        taken,
        [at + PAGE..at + 2 * PAGE, at + 6 * PAGE..at + 7 * PAGE]
    );
    // A store of the same value is a store. An exchange that is refused may count as one.
    a.store(at, 0_u8).unwrap();
    assert_eq!(space.take_dirty(at, PAGE).unwrap(), [at..at + PAGE]);
}

/// A device whose calls do nothing.
struct Sink;

impl Device for Sink {
    fn load(&self, _offset: u64, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn store(&self, _offset: u64, _bytes: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn devices_and_what_is_not_mapped_are_left_out() {
    let memory = memory(16 * MIB);
    let space = memory.create_space().unwrap();
    let at = VirtAddr(0x1000_0000);
    space.map(Map::anonymous(PAGE).at(at)).unwrap();
    space
        .map(Map::device(Sink, PAGE).at(at + 2 * PAGE))
        .unwrap();
    let page = at..at + PAGE;
    assert_eq!(space.take_dirty(at, 8 * PAGE).unwrap(), [page]);
    space
        .accessor()
        .unwrap()
        .store(at + 2 * PAGE, 1_u8)
        .unwrap();
    assert_eq!(space.take_dirty(at, 8 * PAGE).unwrap(), []);
}

#[test]
fn nonsense_is_refused() {
    let space = memory(16 * MIB).create_space().unwrap();
    let at = VirtAddr(0x1000_0000);
    let refused = |at, len| space.take_dirty(at, len).unwrap_err();
    assert!(matches!(refused(at, 0), SpaceError::Empty { .. }));
    assert!(matches!(
        refused(at + 1, PAGE),
        SpaceError::Unaligned { .. }
    ));
    assert!(matches!(
        refused(at, u64::MAX),
        SpaceError::OutOfRange { .. }
    ));
}

#[test]
fn without_memory_to_note_pages_in_more_is_named() {
    const STORES: u64 = 256;
    const APART: u64 = 512 * KIB;
    let memory = memory(MINIMUM_LIMIT + 16 * MIB);
    let group = memory.create_group("small", 2 * MIB).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let (at, len) = (VirtAddr(0x4000_0000), STORES * APART);
    space.map(Map::anonymous(len).at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    let pages = || (0..STORES).map(|index| at + index * APART);
    pages().for_each(|page| a.store(page, 1_u8).unwrap());
    let whole = space.take_dirty(at, len).unwrap();
    assert_eq!(whole, [at..at + len]);
    group.set_max(group.usage()).unwrap();
    pages().for_each(|page| a.store(page, 2_u8).unwrap());
    let named = space.take_dirty(at, len).unwrap();
    let bytes: u64 = named.iter().map(|range| range.end - range.start).sum();
    assert!(bytes > STORES * PAGE, "there was no room to note each page");
    assert!(bytes < len, "there was room for some");
    for page in pages() {
        assert!(named.iter().any(|range| range.contains(&page)), "{page}");
    }
    assert!(group.usage() <= 2 * MIB + KIB);
}

#[test]
fn pages_of_a_direct_access_file_that_a_store_made_writable_are_named() {
    const LARGE: u64 = 2 * MIB;
    let memory = memory(16 * MIB);
    let device = DaxDevice::memory(4 * LARGE).unwrap();
    let opener = memory.dax_options().hole_writes(HoleWrites::Large);
    let file = opener.create_on(&device, "data.bin").unwrap();
    file.set_len(2 * LARGE).unwrap();
    let space = memory.create_space().unwrap();
    let map = Map::dax(&file).shared().writable();
    let map = map.protection(Protection::READ_WRITE | Protection::EXECUTE);
    let at = space.map(map).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(
        space.take_dirty(at, 2 * LARGE).unwrap(),
        [at..at + 2 * LARGE]
    );
    let code = a.watch_code(at + 5 * PAGE).unwrap();
    let mut copy = vec![0_u8; 2 * LARGE as usize];
    for round in 1..4_u64 {
        // Pages near the first store, in the same block, may be writable without another fault.
        for page in [0, 5, 511, 600] {
            a.store(at + page * PAGE + 8, (round + page) as u8).unwrap();
        }
        assert!(!code.is_current(), "watched code was stored to");
        let named = space.take_dirty(at, 2 * LARGE).unwrap();
        for page in pages_of(&named) {
            let from = (page - at.0) as usize;
            a.read(VirtAddr(page), &mut copy[from..from + PAGE_SIZE])
                .unwrap();
        }
        assert!(a.compare(at, &copy).unwrap().is_eq(), "round {round}");
    }
}
