//! Stores and devices that panic in the middle of operations: no memory leaks, no lock stays held,
//! no work is forgotten.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use innerspace::store::{MemoryStore, Store};
use innerspace::{MIB, Map, Memory, PAGE_SIZE, Threads, file::FileAccess};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory_of(limit: u64) -> Memory {
    Memory::builder(limit)
        .threads(Threads::None)
        .build()
        .unwrap()
}

#[derive(Default)]
struct Panicking {
    bytes: MemoryStore,
    panics: AtomicBool,
}

impl Store for Panicking {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.panics.load(Ordering::Relaxed) {
            panic!("the store panics");
        }
        self.bytes.read_at(buffer, offset)
    }
}

/// A store panics in a fault that has already replaced a shared leaf.
#[test]
fn a_panic_of_a_store_in_a_fault_that_has_copied_a_leaf_leaks_nothing() {
    let left = |panics: bool| {
        let memory = memory_of(16 * MIB);
        let store = Arc::new(Panicking {
            bytes: MemoryStore::from_bytes(&[7; 16 * PAGE_SIZE]),
            ..Panicking::default()
        });
        let file = memory.file_options().open_store(store.clone()).unwrap();
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file).private().writable()).unwrap();
        let mut a = space.accessor().unwrap();
        for page in 0..4 {
            a.store(at + page * PAGE, page).unwrap();
        }
        // Blocks that were read ahead land, and are evicted.
        memory.tick();
        file.evict(..).unwrap();
        let child = space.fork().unwrap();
        store.panics.store(panics, Ordering::Relaxed);
        let stored = catch_unwind(AssertUnwindSafe(|| a.store(at + 12 * PAGE, 1_u8)));
        assert_eq!(stored.is_err(), panics);
        store.panics.store(false, Ordering::Relaxed);
        drop(a);
        drop(child);
        drop(space);
        drop(file);
        for _ in 0..4 {
            memory.tick();
        }
        memory.validate();
        let parts = memory.stats().parts;
        (parts.anonymous / PAGE, parts.tables / PAGE)
    };
    assert_eq!(left(true), left(false), "anonymous pages and tables");
}

/// A store that panics in a write if told to.
#[derive(Default)]
struct PanicsWritten {
    bytes: MemoryStore,
    panics: AtomicBool,
}

impl Store for PanicsWritten {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.bytes.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if self.panics.load(Ordering::Relaxed) {
            panic!("the store panics");
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

/// A store panics while it makes room for the nodes that a change needs.
#[test]
fn a_panic_of_a_store_in_a_change_leaks_nothing() {
    use innerspace::{VirtAddr, space::Remap};
    let left = |panics: bool, change: fn(&innerspace::Space, VirtAddr)| {
        let memory = memory_of(8 * MIB);
        let group = memory.create_group("crowded", 4 * MIB).unwrap();
        let space = memory.create_space_in(&group).unwrap();
        let store = Arc::new(PanicsWritten::default());
        let options = memory
            .file_options()
            .access(FileAccess::ReadWrite)
            .group(&group);
        let file = options.open_store(store.clone()).unwrap();
        file.write_at(&[7; 64 * PAGE_SIZE], 0).unwrap();
        let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
        let mut a = space.accessor().unwrap();
        a.fill(at, 1, 8 * PAGE_SIZE).unwrap();
        let child = space.fork().unwrap();
        group.set_max(group.usage()).unwrap();
        store.panics.store(panics, Ordering::Relaxed);
        let done = catch_unwind(AssertUnwindSafe(|| change(&space, at)));
        store.panics.store(false, Ordering::Relaxed);
        assert_eq!(done.is_err(), panics);
        drop((a, child, space, file));
        for _ in 0..4 {
            memory.tick();
        }
        memory.validate();
        let parts = memory.stats().parts;
        (parts.anonymous / PAGE, parts.tables / PAGE)
    };
    let unmap = |space: &innerspace::Space, at| space.unmap(at, PAGE).unwrap();
    let remap = |space: &innerspace::Space, at: VirtAddr| {
        let to = Remap::Replacing(at + 32 * PAGE);
        space.remap(at, PAGE, PAGE, to).unwrap();
    };
    assert_eq!(left(true, unmap), left(false, unmap), "unmap");
    assert_eq!(left(true, remap), left(false, remap), "remap");
}

/// A file whose mapping failed is closed when its handle is dropped.
#[test]
fn a_panic_of_a_store_in_a_map_keeps_no_file_open() {
    let memory = memory_of(8 * MIB);
    let group = memory.create_group("crowded", 4 * MIB).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let store = Arc::new(PanicsWritten::default());
    let options = memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .group(&group);
    let file = options.open_store(store.clone()).unwrap();
    file.write_at(&[7; 64 * PAGE_SIZE], 0).unwrap();
    let shown = memory
        .file_options()
        .open_store(Arc::new(MemoryStore::from_bytes(&[1; PAGE_SIZE])))
        .unwrap();
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.fill(at, 1, 8 * PAGE_SIZE).unwrap();
    let _child = space.fork().unwrap();
    group.set_max(group.usage()).unwrap();
    store.panics.store(true, Ordering::Relaxed);
    let map = Map::file(&shown).replacing(at);
    let done = catch_unwind(AssertUnwindSafe(|| space.map(map)));
    store.panics.store(false, Ordering::Relaxed);
    assert!(done.is_err());
    drop(shown);
    for _ in 0..4 {
        memory.tick();
    }
    space.validate();
    assert_eq!(memory.stats().files.len(), 1, "files that are open");
}

/// A store that punches the range, and then panics.
struct PunchPanics(MemoryStore);

impl Store for PunchPanics {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(bytes, offset)
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.punch(offset, len)?;
        panic!("the store panics");
    }
    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn what_a_punch_that_panics_has_left_is_what_is_read_before_and_after_eviction() {
    let memory = memory_of(16 * MIB);
    let store = PunchPanics(MemoryStore::from_bytes(&[7; 4 * PAGE_SIZE]));
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.open_store(store).unwrap();
    let read = || {
        let mut bytes = vec![0; 4 * PAGE_SIZE];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    read();
    let punched = catch_unwind(AssertUnwindSafe(|| file.punch(PAGE..2 * PAGE)));
    assert!(punched.is_err());
    let before = read();
    file.evict(..).unwrap();
    assert!(read() == before, "the cache had other bytes than the store");
    memory.validate();
}

/// A store panics when reclaim writes dirty pages. The pages that reclaim had isolated can be
/// evicted later, once the store works.
#[test]
fn what_reclaim_had_in_hand_when_a_store_panicked_can_be_evicted_later() {
    let room = |panics: bool| {
        let memory = memory_of(16 * MIB);
        let group = memory.create_group("crowded", 2 * MIB).unwrap();
        let store = Arc::new(PanicsWritten::default());
        let options = memory
            .file_options()
            .access(FileAccess::ReadWrite)
            .group(&group);
        let file = options.open_store(store.clone()).unwrap();
        let space = memory.create_space_in(&group).unwrap();
        let at = space.map(Map::anonymous(4 * MIB)).unwrap();
        let mut a = space.accessor().unwrap();
        for page in 0..200 {
            file.write_at(&[7; PAGE_SIZE], page * PAGE).unwrap();
        }
        if panics {
            store.panics.store(true, Ordering::Relaxed);
            let filled = catch_unwind(AssertUnwindSafe(|| a.fill(at, 1, 2 * MIB as usize)));
            store.panics.store(false, Ordering::Relaxed);
            assert!(filled.is_err());
        }
        let _told_once = file.sync_all();
        file.sync_all().unwrap();
        // These are all of the group's pages except tables and the like.
        (0..512)
            .take_while(|page| a.store(at + page * PAGE, 1_u8).is_ok())
            .count()
    };
    assert_eq!(room(true), room(false), "pages that can be had");
}

/// Restoring the memory restores a device, even if another device panics.
#[test]
fn a_device_that_panics_keeps_no_other_from_being_restored() {
    use innerspace::space::{Device, DeviceError};
    use std::sync::atomic::AtomicU8;
    struct Register {
        value: AtomicU8,
        panics: bool,
    }
    impl Device for Register {
        fn load(&self, _: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
            bytes.fill(self.value.load(Ordering::Relaxed));
            Ok(())
        }
        fn store(&self, _: u64, bytes: &[u8]) -> Result<(), DeviceError> {
            self.value.store(bytes[0], Ordering::Relaxed);
            Ok(())
        }
        fn snapshot(&self) -> Vec<u8> {
            vec![self.value.load(Ordering::Relaxed)]
        }
        fn restore(&self, state: &[u8]) {
            assert!(!self.panics, "the device panics");
            self.value.store(state[0], Ordering::Relaxed);
        }
    }
    let register = |panics| Register {
        value: AtomicU8::new(1),
        panics,
    };
    let space = memory_of(4 * MIB).create_space().unwrap();
    let memory = space.map(Map::anonymous(PAGE)).unwrap();
    let first = space.map(Map::device(register(true), PAGE)).unwrap();
    let second = space.map(Map::device(register(false), PAGE)).unwrap();
    assert!(first < second);
    let mut a = space.accessor().unwrap();
    let snapshot = space.freeze().unwrap();
    for at in [memory, second] {
        a.store(at, 2_u8).unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| space.restore(&snapshot))).is_err());
    assert_eq!((a.load::<u8>(memory), a.load::<u8>(second)), (Ok(0), Ok(1)));
}
