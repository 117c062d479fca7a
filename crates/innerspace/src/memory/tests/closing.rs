//! The last reference to a file is dropped where the file cannot be closed: in a call to its own
//! store, or while another file is locked.

use std::io;
use std::sync::{Arc, Mutex};

use crate::cache::{FileAccess, PagedFile};
use crate::dax::{DaxDevice, DaxFile};
use crate::memory::{Memory, Threads};
use crate::reclaim::Retired;
use crate::store::{MemoryStore, Store, write_all_at};
use crate::units::{MIB, PAGE_SIZE, VirtAddr};
use crate::{Map, Space};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory(limit: u64) -> Memory {
    let options = Memory::builder(limit).threads(Threads::None);
    options.build().unwrap()
}

fn open(memory: &Memory, store: impl Store + 'static) -> PagedFile {
    let options = memory.file_options().access(FileAccess::ReadWrite);
    options.open_store(store).unwrap()
}

type Work = Box<dyn FnOnce() + Send>;

/// A store that does some work in the first call that writes.
struct WorksInWrite {
    bytes: Arc<MemoryStore>,
    work: Arc<Mutex<Option<Work>>>,
}

impl Store for WorksInWrite {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.bytes.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let work = self.work.lock().unwrap().take();
        if let Some(work) = work {
            work();
        }
        self.bytes.write_at(buf, offset)
    }

    fn writable(&self) -> bool {
        true
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.set_len(len)
    }
}

/// Drops the last handle in a call to the file's store, which then calls `else_`.
fn closed_after_the_call(else_: impl FnOnce(&Memory) + Send + 'static) {
    let memory = memory(4 * MIB);
    let (bytes, work) = (Arc::new(MemoryStore::new()), Arc::default());
    let store = WorksInWrite {
        bytes: bytes.clone(),
        work: Arc::clone(&work),
    };
    let file = open(&memory, store);
    file.write_at(&[1; 100], 0).unwrap();
    file.write_at(&[2; 100], PAGE).unwrap();
    let inside = memory.clone();
    *work.lock().unwrap() = Some(Box::new(move || {
        drop(file);
        else_(&inside);
    }));
    // A tick writes the file, and so calls the store, which drops the last handle.
    while work.lock().unwrap().is_some() {
        memory.tick();
    }
    memory.tick();
    assert!(memory.take_errors().is_empty());
    assert_eq!(bytes.len().unwrap(), PAGE + 100);
    memory.validate();
    assert!(memory.0.cache.files().is_empty(), "it is closed");
}

#[test]
fn a_file_that_goes_in_its_own_call_is_closed_after_it_though_that_goes_on_to_work_and_wait() {
    closed_after_the_call(|_| {});
    closed_after_the_call(|memory| memory.tick());
    closed_after_the_call(|memory| drop(memory.create_space().unwrap()));
    closed_after_the_call(|memory| drop(open(memory, MemoryStore::new())));
}

/// A store over another file.
struct Over(PagedFile);

impl Store for Over {
    fn uses_files(&self) -> bool {
        true
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset).map_err(io::Error::other)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset).map_err(io::Error::other)?;
        Ok(buf.len())
    }

    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn who_needs_memory_with_a_file_locked_closes_none_that_is_stored_in_it() {
    const BLOCKS: u64 = 128;
    for free in 1..24 {
        let memory = memory(MIB);
        let bytes = MemoryStore::new();
        bytes.set_len(BLOCKS * PAGE).unwrap();
        write_all_at(&bytes, &vec![3; (BLOCKS * PAGE) as usize], 0).unwrap();
        let below = open(&memory, bytes);
        let above = open(&memory, Over(below.clone()));
        // Private memory takes all pages but a few.
        let space = memory.create_space().unwrap();
        let at = space.map(Map::anonymous(2 * MIB)).unwrap();
        let mut accessor = space.accessor().unwrap();
        let mut page = at;
        while accessor.store(page, 1_u64).is_ok() {
            page += PAGE;
        }
        space.unmap(at, free * PAGE).unwrap();
        memory.0.pool.flush_retired();
        let written = above.write_at(&[9; PAGE_SIZE], 5 * PAGE);
        // The last reference waits for a grace period, like a mapping's.
        let inner = above.inner().clone();
        drop(above);
        let last = Retired::Call(Box::new(move |_| drop(inner)));
        memory.0.pool.retire(last);
        let _ = below.prefetch(0..64 * PAGE); // as much as memory allows
        drop((accessor, space));
        memory.tick();
        let mut found = [0];
        below.read_at(&mut found, 5 * PAGE).unwrap();
        assert_eq!(found[0] == 9, written.is_ok(), "{free} pages free");
        assert!(memory.take_errors().is_empty());
    }
}

#[test]
fn what_is_deferred_after_the_last_of_the_memory_is_done_by_who_misses_syncs_or_closes() {
    let memory = memory(4 * MIB);
    let file = open(&memory, MemoryStore::from_bytes(&[1; 64 * PAGE_SIZE]));
    let cache = memory.0.cache.clone();
    let root = memory.0.root.id();
    let done_by = |work: &dyn Fn()| {
        let done = Arc::new(Mutex::new(false));
        let theirs = done.clone();
        cache.defer(root, None, move || *theirs.lock().unwrap() = true);
        assert!(!*done.lock().unwrap());
        work();
        *done.lock().unwrap()
    };
    let miss = || drop(file.view(0..10).unwrap());
    assert!(!done_by(&miss), "the memory may be ticked");
    drop(memory);
    assert!(!done_by(&miss), "a hit does nothing");
    assert!(done_by(&|| drop(file.view(40 * PAGE..41 * PAGE).unwrap())));
    assert!(done_by(&|| file.sync_data().unwrap()));
    let last = Mutex::new(Some(file));
    assert!(done_by(&|| drop(last.lock().unwrap().take())));
}

#[test]
fn the_last_file_leaves_nothing_charged_when_the_memory_went_before_it() {
    let memory = memory(4 * MIB);
    let group = memory.create_group("files", 2 * MIB).unwrap();
    let options = memory.file_options().group(&group);
    let options = options.access(FileAccess::ReadWrite);
    let open = || options.clone().open_store(MemoryStore::new()).unwrap();
    let files = [open(), open()];
    let mapped = memory.create_space_with(&crate::space::SpaceOptions::new().group(&group));
    let mapped = mapped.unwrap();
    for (file, number) in files.iter().zip(1..) {
        // The offsets make the index deep enough for nodes, in which readers may be.
        file.write_at(&[number; 100], 0).unwrap();
        file.write_at(&[number; 100], 1 << 30).unwrap();
        mapped.map(Map::file(file)).unwrap();
    }
    drop((memory, options));
    let [first, second] = files;
    drop(first);
    drop(mapped);
    let left = group.usage();
    drop(second);
    assert!(left > 0, "the second file's");
    assert_eq!(group.usage(), 0);
}

type End = Box<dyn FnOnce() -> Option<Space>>;

fn map(memory: &Memory, file: &DaxFile) -> (Space, VirtAddr) {
    let space = memory.create_space().unwrap();
    let at = space.map(Map::dax(file)).unwrap();
    (space, at)
}

#[test]
fn the_last_direct_file_leaves_nothing_charged_when_the_memory_went_before_it() {
    let left_by = |end_of: fn(&Memory, DaxFile) -> End| {
        let memory = memory(4 * MIB);
        let group = memory.create_group("files", 2 * MIB).unwrap();
        let device = DaxDevice::memory(MIB).unwrap();
        let options = memory.dax_options().group(&group);
        let file = options.create_on(&device, "data.bin").unwrap();
        // The file has entries, in whose nodes readers may be.
        file.write_at(&[1; 100], 0).unwrap();
        let end = end_of(&memory, file);
        drop(memory);
        assert!(group.usage() > 0);
        let _other = end();
        group.usage()
    };
    let called = left_by(|_, file| {
        Box::new(move || {
            drop(file);
            None
        })
    });
    let pinned = left_by(|_, file| {
        let pin = file.pin(0..100).unwrap();
        drop(file);
        Box::new(move || {
            drop(pin);
            None
        })
    });
    let mapped = left_by(|memory, file| {
        let (space, _) = map(memory, &file);
        drop(file);
        Box::new(move || {
            drop(space);
            None
        })
    });
    let unmapped = left_by(|memory, file| {
        let (space, at) = map(memory, &file);
        drop(file);
        Box::new(move || {
            space.unmap(at, PAGE).unwrap();
            Some(space)
        })
    });
    assert_eq!((called, pinned, mapped, unmapped), (0, 0, 0, 0));
}

#[test]
fn a_file_that_the_end_of_the_memory_closes_leaves_nothing_charged() {
    let memory = memory(4 * MIB);
    let group = memory.create_group("files", 2 * MIB).unwrap();
    let options = memory.file_options().group(&group);
    let options = options.access(FileAccess::ReadWrite);
    let file = options.open_store(MemoryStore::new()).unwrap();
    // The offsets make the index deep enough for nodes, in which readers may be.
    file.write_at(&[1; 100], 0).unwrap();
    file.write_at(&[1; 100], 1 << 30).unwrap();
    // The last reference waits for a grace period, like a mapping's.
    let inner = file.inner().clone();
    drop(file);
    let last = Retired::Call(Box::new(move |_| drop(inner)));
    memory.0.pool.retire(last);
    assert!(group.usage() > 0);
    drop(memory);
    assert_eq!(group.usage(), 0);
}
