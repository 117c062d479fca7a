//! No charge succeeds beyond a limit: what has to succeed was set aside before.

use std::any::Any;
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use innerspace::store::{MemoryStore, Store, SyncWhat};
use innerspace::{
    Accessor, Group, KIB, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr,
    dax::{DaxDevice, DaxError, HoleWrites},
    file::{FileAccess, FileError},
    group::GroupWatch,
    space::{AtFork, Protection, SpaceError},
};

use crate::victim::Victim;
use crate::world::World;

const PAGE: u64 = PAGE_SIZE as u64;

/// The most objects of one kind that one call hoards.
const MOST: u64 = 3_000;

type Failed = Box<dyn Error>;
type Thing = Box<dyn Any + Send>;

/// What A keeps, and makes more of wherever it is called.
struct Hoard {
    memory: Memory,
    group: Group,
    /// Its store fails to write, so what is dirty stays.
    stuck: PagedFile,
    read: PagedFile,
    space: Space,
    at: VirtAddr,
    device: DaxDevice,
    made: AtomicU64,
    things: Mutex<Vec<Thing>>,
}

/// Zeros, and no writes.
struct Stuck;

impl Store for Stuck {
    fn len(&self) -> io::Result<u64> {
        Ok(256 * MIB)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn writable(&self) -> bool {
        true
    }
}

impl Hoard {
    fn new(memory: &Memory, group: &Group) -> Hoard {
        let open = || {
            let options = memory.file_options().group(group);
            options
                .access(FileAccess::ReadWrite)
                .open_store(Stuck)
                .unwrap()
        };
        let space = memory.create_space_in(group).unwrap();
        let at = space.map(Map::anonymous(256 * MIB)).unwrap();
        Hoard {
            memory: memory.clone(),
            group: group.clone(),
            stuck: open(),
            read: open(),
            space,
            at,
            device: DaxDevice::memory(4 * MIB).unwrap(),
            made: AtomicU64::new(0),
            things: Mutex::default(),
        }
    }

    /// One object more of a kind, which may be kept.
    fn make(&self, kind: u64, number: u64) -> Result<Thing, Failed> {
        let offset = number * PAGE;
        Ok(match kind {
            0 => {
                self.stuck.write_at(&[1; PAGE_SIZE], offset * 2)?;
                Box::new(())
            }
            1 => Box::new(self.read.view(offset..offset + PAGE)?),
            2 => {
                self.space.accessor()?.store(self.at + offset, 1_u8)?;
                Box::new(())
            }
            3 => Box::new(self.space.accessor()?),
            4 => Box::new(self.space.fork()?),
            5 => Box::new(self.space.freeze()?),
            6 => Box::new(self.space.pin(self.at + offset, PAGE, AtFork::Copy)?),
            7 => Box::new(
                self.memory
                    .file_options()
                    .group(&self.group)
                    .open_store(Stuck)?,
            ),
            8 => Box::new(
                self.group
                    .create_child(&format!("of a {number}"), 64 * KIB)?,
            ),
            9 => Box::new(self.space.map(Map::device(Silent, PAGE))?),
            _ => {
                let direct = self.memory.dax_options().group(&self.group);
                let file = direct.create_on(&self.device, "direct")?;
                file.set_len(MIB)?;
                file.write_at(&[1; PAGE_SIZE], 0)?;
                file.write_at(&[1; PAGE_SIZE], 2 * PAGE)?;
                Box::new(file)
            }
        })
    }

    /// Makes of every kind until that is refused.
    fn take(&self) {
        for kind in 0..11 {
            for _ in 0..MOST {
                let number = self.made.fetch_add(1, Ordering::Relaxed) % (64 * KIB);
                match self.make(kind, number) {
                    Ok(thing) => self.things.lock().unwrap().push(thing),
                    Err(_) => break,
                }
            }
        }
    }
}

/// A device that is nothing.
struct Silent;

impl innerspace::space::Device for Silent {
    fn load(&self, _: u64, _: &mut [u8]) -> Result<(), innerspace::space::DeviceError> {
        Ok(())
    }

    fn store(&self, _: u64, _: &[u8]) -> Result<(), innerspace::space::DeviceError> {
        Ok(())
    }
}

/// A store that hoards in each of its calls.
struct Greedy {
    hoard: Arc<Hoard>,
    uses_files: bool,
    calls: Arc<AtomicU64>,
}

impl Greedy {
    fn take(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.hoard.take();
    }
}

impl Store for Greedy {
    fn len(&self) -> io::Result<u64> {
        Ok(MIB)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        self.take();
        buf.fill(0);
        Ok(buf.len())
    }

    fn write_at(&self, buf: &[u8], _: u64) -> io::Result<usize> {
        self.take();
        Ok(buf.len())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        self.take();
        Ok(())
    }

    fn sync(&self, _: SyncWhat) -> io::Result<()> {
        self.take();
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        self.take();
        Ok(())
    }

    fn writable(&self) -> bool {
        true
    }

    fn uses_files(&self) -> bool {
        self.uses_files
    }
}

#[track_caller]
fn assert_stayed_under(group: &Group) {
    let stats = group.stats();
    assert!(stats.peak <= stats.max.unwrap(), "{stats}");
}

// spec: N3
#[test]
fn a_store_that_hoards_in_its_own_calls_stays_under_the_limit() {
    for uses_files in [false, true] {
        let world = World::new(16 * MIB, Threads::None);
        let mut victim = Victim::new(&world.memory, &world.b);
        victim.round().unwrap();
        let hoard = Arc::new(Hoard::new(&world.memory, &world.a));
        let calls = Arc::new(AtomicU64::new(0));
        let store = Greedy {
            hoard: Arc::clone(&hoard),
            uses_files,
            calls: Arc::clone(&calls),
        };
        let options = world.memory.file_options().group(&world.a);
        let file = options
            .access(FileAccess::ReadWrite)
            .open_store(store)
            .unwrap();
        let acts: [&dyn Fn() -> Result<(), FileError>; 5] = [
            &|| file.write_at(&[1; PAGE_SIZE], 0),
            &|| file.sync_all(),
            &|| file.read_at(&mut [0; PAGE_SIZE], 64 * PAGE).map(drop),
            &|| file.punch(8 * PAGE..16 * PAGE),
            &|| file.set_len(MIB / 2),
        ];
        for act in acts {
            // A may be refused.
            let _ = act();
            assert_stayed_under(&world.a);
            victim.round().unwrap();
        }
        assert!(calls.load(Ordering::Relaxed) >= 3);
        assert_stayed_under(world.memory.root_group());
        assert_stayed_under(&world.b);
        hoard.things.lock().unwrap().clear();
    }
}

/// A file's bytes in another file.
struct Over(PagedFile);

impl Store for Over {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.0.read_at(buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)?;
        Ok(buf.len())
    }

    fn writable(&self) -> bool {
        true
    }

    fn uses_files(&self) -> bool {
        true
    }
}

/// Takes all that the group has left, until the result is dropped.
fn fill(group: &Group, memory: &Memory) -> (Accessor, Vec<GroupWatch>) {
    let space = memory.create_space_in(group).unwrap();
    let at = space.map(Map::anonymous(64 * MIB)).unwrap();
    let mut a = space.accessor().unwrap();
    let stored = (0..).find(|page| a.store(at + page * PAGE, 1_u8).is_err());
    assert!(stored.is_some());
    // Less than a page is left: for heap.
    let watches = (0..).map_while(|_| group.watch().ok()).collect();
    (a, watches)
}

// spec: N3
#[test]
fn a_file_in_a_file_is_written_in_a_group_that_is_full_to_the_last_page() {
    let world = World::new(4 * MIB, Threads::None);
    let open = |store: Box<dyn Store>| {
        let options = world.memory.file_options().group(&world.a);
        options
            .access(FileAccess::ReadWrite)
            .open_store(store)
            .unwrap()
    };
    let base = open(Box::new(MemoryStore::new()));
    let middle = open(Box::new(Over(base.clone())));
    let top = open(Box::new(Over(middle.clone())));
    for dirty in [1, 30] {
        let bytes = vec![dirty as u8; dirty * PAGE_SIZE];
        top.write_at(&bytes, 0).unwrap();
        let filled = fill(&world.a, &world.memory);
        top.sync_all().unwrap();
        middle.sync_all().unwrap();
        base.sync_all().unwrap();
        drop(filled);
        let mut found = vec![0; dirty * PAGE_SIZE];
        base.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, bytes);
        assert_stayed_under(&world.a);
    }
    world.memory.validate();
}

/// A file of which a page cannot be read: when it is, something is done to the space that shows it,
/// and its group is filled to the last page.
struct Meddles {
    memory: Memory,
    group: Group,
    page: u64,
    space: OnceLock<Space>,
    act: fn(&Memory, &Space) -> Thing,
    kept: Mutex<Vec<Thing>>,
}

impl Store for Meddles {
    fn len(&self) -> io::Result<u64> {
        Ok(8 * MIB)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        buf.fill(1);
        if offset + (buf.len() as u64) <= self.page * PAGE {
            return Ok(buf.len());
        }
        if let (Some(space), Ok(mut kept)) = (self.space.get(), self.kept.try_lock())
            && kept.is_empty()
        {
            // Not from inside the space's own callback.
            let act = || (self.act)(&self.memory, space);
            kept.push(thread::scope(|scope| scope.spawn(act).join().unwrap()));
            kept.push(Box::new(fill(&self.group, &self.memory)));
        }
        Err(io::ErrorKind::StorageFull.into())
    }
}

/// A space of A's, and its file that meddles from a page on.
fn meddling(
    world: &World,
    page: u64,
    act: fn(&Memory, &Space) -> Thing,
) -> (Space, Arc<Meddles>, PagedFile) {
    let space = world.memory.create_space_in(&world.a).unwrap();
    let store = Arc::new(Meddles {
        memory: world.memory.clone(),
        group: world.a.clone(),
        page,
        space: OnceLock::new(),
        act,
        kept: Mutex::default(),
    });
    let options = world.memory.file_options().group(&world.a);
    let file = options.open_store(store.clone()).unwrap();
    store.space.set(space.clone()).unwrap();
    (space, store, file)
}

// spec: N3
#[test]
fn a_lock_that_fails_is_undone_in_a_group_that_is_full_to_the_last_page() {
    let world = World::new(4 * MIB, Threads::None);
    // Another change, at which charges for nodes that are gone would be given back.
    let (space, store, file) = meddling(&world, 0, |memory, space| {
        memory.reclaim(PAGE);
        let at = space.map(Map::anonymous(PAGE)).unwrap();
        space.unmap(at, PAGE).unwrap();
        memory.reclaim(PAGE);
        Box::new(space.map(Map::anonymous(PAGE)).unwrap())
    });
    let at = VirtAddr(1 << 30);
    space.map(Map::file(&file).range(..PAGE).at(at)).unwrap();
    // Many mappings, so that their nodes are charged for.
    let rest = Map::anonymous(512 * PAGE).protection(Protection::READ);
    space.map(rest.at(at + PAGE)).unwrap();
    for page in (2..512).step_by(2) {
        let protection = Protection::READ | Protection::WRITE;
        space.protect(at + page * PAGE, PAGE, protection).unwrap();
    }
    let error = space.lock(at, 513 * PAGE).unwrap_err();
    assert!(matches!(error, SpaceError::Access { .. }), "{error}");
    assert_eq!(store.kept.lock().unwrap().len(), 2);
    let is_locked = |page| space.mapping_at(at + page * PAGE).unwrap().locked;
    assert!(!(0..513).any(is_locked));
    assert_stayed_under(&world.a);
    store.kept.lock().unwrap().clear();
    space.lock(at + PAGE, PAGE).unwrap();
    world.memory.validate();
}

// spec: N3
#[test]
fn a_mapping_that_is_not_populated_goes_though_a_fork_shares_it_in_a_full_group() {
    let world = World::new(4 * MIB, Threads::None);
    // By then the tables before it are made.
    let page = 1200;
    let (space, store, file) = meddling(&world, page, |_, space| Box::new(space.fork().unwrap()));
    // Neither end of it is one of a leaf's.
    let (at, len) = (VirtAddr(1 << 30) + 100 * PAGE, 1300 * PAGE);
    let map = Map::file(&file).range(..len).private();
    space.map(map.at(at).populated()).unwrap_err();
    assert_eq!(store.kept.lock().unwrap().len(), 2);
    for page in [0, 600, 1299] {
        assert!(space.mapping_at(at + page * PAGE).is_none());
    }
    assert_stayed_under(&world.a);
    store.kept.lock().unwrap().clear();
    world.memory.validate();
}

// spec: N3
#[test]
fn a_punch_that_parts_a_run_is_paid_for_or_refused() {
    let world = World::new(4 * MIB, Threads::None);
    let device = DaxDevice::memory(64 * MIB).unwrap();
    // Each range is one run on the device.
    let direct = world.memory.dax_options().group(&world.a);
    let direct = direct.hole_writes(HoleWrites::Large);
    let file = direct.create_on(&device, "direct").unwrap();
    let large = vec![1; 512 * PAGE_SIZE];
    for range in 0..16 {
        file.write_at(&large, range * 512 * PAGE).unwrap();
    }
    file.sync_all().unwrap();
    assert_eq!(file.stats().present.0, 16 * 512);
    let filled = fill(&world.a, &world.memory);
    let punch = |page: u64| file.punch(page * PAGE..(page + 1) * PAGE);
    // The words of each range take a page.
    let refused = (0..16).find_map(|range| punch(range * 512 + 100).err());
    assert!(matches!(refused, Some(DaxError::Limit(_))), "{refused:?}");
    // What parts nothing is never refused.
    (0..16).for_each(|range| punch(range * 512).unwrap());
    file.set_len(31 * MIB).unwrap();
    assert_stayed_under(&world.a);
    drop(filled);
    (0..15).for_each(|range| punch(range * 512 + 200).unwrap());
    world.memory.validate();
}
