//! Stores that use a space while a change of the space waits for memory, and so for these stores.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex};

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    Accessor, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr,
    file::FileAccess,
    space::{AtFork, Device, DeviceError, FaultKind, Protection, SpaceError},
};

const PAGE: u64 = PAGE_SIZE as u64;
/// The address of a page to fetch from.
const CODE: VirtAddr = VirtAddr(1 << 40);

/// A store that uses a space whenever it is written to, and notes the answers.
#[derive(Default)]
struct Meddling {
    bytes: MemoryStore,
    space: Mutex<Option<(Space, Accessor)>>,
    told: Mutex<Vec<FaultKind>>,
}

impl Store for Meddling {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.bytes.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if let Some((space, a)) = &mut *self.space.lock().unwrap() {
            // An access waits for no change elsewhere. Another change would wait for ever if it
            // were not refused.
            let kind = a.load::<u8>(VirtAddr(0)).unwrap_err().kind();
            if kind == FaultKind::Reentered {
                let refused = space.map(Map::anonymous(PAGE)).unwrap_err();
                assert!(matches!(refused, SpaceError::Reentered { .. }), "{refused}");
            }
            // The page is present, so the access alone would not be refused.
            let watched = a.watch_code(CODE);
            assert_eq!(watched.unwrap_err().kind(), FaultKind::Reentered);
            self.told.lock().unwrap().push(kind);
        }
        self.bytes.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.set_len(len)
    }

    fn writable(&self) -> bool {
        true
    }
}

/// A space in a group of its own, and a file of that group whose store uses the space when it is
/// written to.
struct Crowded {
    memory: Memory,
    space: Space,
    file: PagedFile,
    store: Arc<Meddling>,
}

impl Crowded {
    fn new() -> Crowded {
        let options = Memory::builder(4 * MIB).threads(Threads::None);
        let memory = options.build().unwrap();
        let group = memory.create_group("crowded", 2 * MIB).unwrap();
        let space = memory.create_space_in(&group).unwrap();
        let store = Arc::new(Meddling::default());
        let options = memory
            .file_options()
            .access(FileAccess::ReadWrite)
            .group(&group);
        let file = options.open_store(store.clone()).unwrap();
        Crowded {
            memory,
            space,
            file,
            store,
        }
    }

    /// Makes `change` in the space when the only memory is `room` pages, and pages of dirty blocks.
    /// Some of these must be written for the change while it keeps others out of the space.
    fn told_during(self, room: u64, change: impl FnOnce(&Space)) {
        let Crowded {
            memory,
            space,
            file,
            store,
        } = self;
        file.write_at(&[7; 64 * PAGE_SIZE], 0).unwrap();
        let executable = Protection::READ | Protection::EXECUTE;
        let code = Map::anonymous(PAGE).at(CODE).protection(executable);
        space.map(code).unwrap();
        let mut a = space.accessor().unwrap();
        a.fetch::<u8>(CODE).unwrap();
        *store.space.lock().unwrap() = Some((space.clone(), a));
        let group = space.group();
        group.set_max(group.usage() + room * PAGE).unwrap();
        change(&space);
        let told = std::mem::take(&mut *store.told.lock().unwrap());
        assert!(!told.is_empty(), "nothing had to be written");
        assert!(
            told.iter().all(|kind| *kind == FaultKind::Reentered),
            "{told:?}"
        );
        let own = store.space.lock().unwrap().take();
        drop(own);
        space.validate();
        memory.validate();
    }
}

#[test]
fn a_fork_that_copies_pinned_pages() {
    const PINNED: u64 = 40;
    let crowded = Crowded::new();
    let at = crowded.space.map(Map::anonymous(PINNED * PAGE)).unwrap();
    let pin = crowded.space.pin(at, PINNED * PAGE, AtFork::Copy).unwrap();
    // The child's root is allocated before other threads are kept out.
    crowded.told_during(1, |space| drop(space.fork().unwrap()));
    drop(pin);
}

#[test]
fn mappings_whose_nodes_are_charged() {
    let crowded = Crowded::new();
    crowded.told_during(0, |space| {
        for place in 1..1000 {
            let at = VirtAddr(place << 20);
            space.map(Map::anonymous(PAGE).at(at)).unwrap();
        }
    });
}

#[test]
fn an_unmap_that_copies_a_shared_table() {
    let crowded = Crowded::new();
    let at = crowded.space.map(Map::anonymous(16 * PAGE)).unwrap();
    crowded.space.accessor().unwrap().store(at, 1_u64).unwrap();
    let child = crowded.space.fork().unwrap();
    crowded.told_during(0, |space| space.unmap(at, PAGE).unwrap());
    assert_eq!(child.accessor().unwrap().load::<u64>(at), Ok(1));
}

#[test]
fn a_take_that_notes_what_it_watches() {
    let crowded = Crowded::new();
    let at = crowded.space.map(Map::anonymous(PAGE)).unwrap();
    crowded.told_during(0, |space| {
        let named = space.take_dirty(at, PAGE).unwrap();
        assert_eq!(named, [at..at + PAGE]);
    });
}

/// A device that uses a space in each load, and notes how that is refused.
#[derive(Default)]
struct Prying {
    space: Mutex<Option<Accessor>>,
    told: Mutex<Vec<Option<FaultKind>>>,
}

impl Device for Prying {
    fn load(&self, _: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.fill(0);
        if let Some(a) = &mut *self.space.lock().unwrap() {
            let loaded = a.load::<u8>(CODE);
            self.told
                .lock()
                .unwrap()
                .push(loaded.err().map(|fault| fault.kind()));
        }
        Ok(())
    }

    fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// A value that does some work when it is dropped.
struct AtEnd(RefCell<Option<Box<dyn FnOnce()>>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

thread_local! {
    static AT_END: AtEnd = const { AtEnd(RefCell::new(None)) };
}

#[test]
fn a_device_that_comes_back_at_the_end_of_a_thread_is_refused_too() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let space = memory.create_space().unwrap();
    let device = Arc::new(Prying::default());
    let at = space.map(Map::device(device.clone(), PAGE)).unwrap();
    space.map(Map::anonymous(PAGE).at(CODE)).unwrap();
    *device.space.lock().unwrap() = Some(space.accessor().unwrap());
    let mut a = space.accessor().unwrap();
    let thread = std::thread::spawn(move || {
        // Created before the thread uses the library, so dropped after the library's own thread
        // locals.
        AT_END.with(|_| ());
        a.load::<u8>(at).unwrap();
        let work = Box::new(move || {
            a.load::<u8>(at).unwrap();
        });
        AT_END.with(|end| end.0.replace(Some(work)));
    });
    thread.join().unwrap();
    let told = std::mem::take(&mut *device.told.lock().unwrap());
    assert_eq!(told, [Some(FaultKind::Reentered); 2]);
    *device.space.lock().unwrap() = None;
}
