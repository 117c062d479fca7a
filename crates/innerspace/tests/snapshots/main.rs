//! Snapshots and forks, with files, groups and eviction.

use innerspace::store::Store;
use innerspace::{
    MIB, Map, Memory, PagedFile, Threads, VirtAddr,
    file::FileAccess,
    group::LimitError,
    space::{
        AddressWidth, AtFork, FaultKind, Protection, Snapshot, SnapshotFileError, SpaceError,
        SpaceOptions,
    },
};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

mod saved;

const PAGE: u64 = 4096;

/// A store in memory that counts how many pages were read and written.
#[derive(Default)]
struct Counted {
    bytes: Mutex<Vec<u8>>,
    read: AtomicU64,
    written: AtomicU64,
}

struct Handle(Arc<Counted>);

impl Store for Handle {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.bytes.lock().unwrap().len() as u64)
    }

    fn writable(&self) -> bool {
        true
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.0.bytes.lock().unwrap();
        let from = &bytes[offset as usize..];
        let len = from.len().min(buf.len());
        buf[..len].copy_from_slice(&from[..len]);
        self.0.read.fetch_add(len as u64 / PAGE, Ordering::Relaxed);
        Ok(len)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut bytes = self.0.bytes.lock().unwrap();
        bytes[offset as usize..offset as usize + buf.len()].copy_from_slice(buf);
        self.0
            .written
            .fetch_add(buf.len() as u64 / PAGE, Ordering::Relaxed);
        Ok(buf.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.bytes.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }
}

fn memory(limit: u64) -> Memory {
    Memory::builder(limit)
        .threads(Threads::None)
        .build()
        .unwrap()
}

/// Creates a file of this many pages of this byte, whose store counts.
fn counted(memory: &Memory, pages: u64, byte: u8) -> (Arc<Counted>, PagedFile) {
    let store = Arc::new(Counted {
        bytes: Mutex::new(vec![byte; (pages * PAGE) as usize]),
        ..Counted::default()
    });
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.open_store(Handle(store.clone())).unwrap();
    (store, file)
}

// spec: F10
#[test]
fn a_page_that_a_hundred_forks_share_is_written_once_and_read_once() {
    let memory = memory(8 * MIB);
    let (store, file) = counted(&memory, 16, 1);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    for page in 0..16 {
        a.store(at + page * PAGE, page + 100).unwrap();
    }
    let forks: Vec<_> = (0..100).map(|_| space.fork().unwrap()).collect();
    let snapshot = space.freeze().unwrap();
    for fork in &forks {
        assert_eq!(fork.accessor().unwrap().load::<u64>(at + 3 * PAGE), Ok(103));
    }
    store.read.store(0, Ordering::Relaxed);
    while memory.reclaim(MIB) > 0 {}
    assert_eq!(store.written.load(Ordering::Relaxed), 16, "pages written");
    assert_eq!(
        space.stats().pages.file.0,
        0,
        "every translation was taken away"
    );
    for fork in &forks {
        let mut a = fork.accessor().unwrap();
        for page in 0..16 {
            assert_eq!(a.load::<u64>(at + page * PAGE), Ok(page + 100));
        }
    }
    assert_eq!(snapshot.accessor().unwrap().load::<u64>(at), Ok(100));
    assert_eq!(store.read.load(Ordering::Relaxed), 16, "pages read");
    drop((a, forks, snapshot, space));
    drop(file);
    memory.validate();
}

/// This holds however the program got the fork.
// spec: F7
#[test]
fn every_fork_of_a_snapshot_can_be_restored_to_it() {
    let memory = memory(4 * MIB);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    space.accessor().unwrap().store(at, 1u64).unwrap();
    let snapshot = space.freeze().unwrap();
    let forks = [
        snapshot.fork().unwrap(),
        snapshot.accessor().unwrap().space().fork().unwrap(),
    ];
    for fork in forks {
        let mut a = fork.accessor().unwrap();
        a.store(at, 2u64).unwrap();
        fork.restore(&snapshot).unwrap();
        assert_eq!(a.load::<u64>(at), Ok(1));
    }
}

#[test]
fn restoring_brings_back_a_file_page_that_a_store_had_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.bin");
    std::fs::write(&path, vec![7; 8 * PAGE as usize]).unwrap();
    let memory = memory(4 * MIB);
    let file = memory.open(&path).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).private().writable()).unwrap();
    let snapshot = space.freeze().unwrap();
    let mut a = space.accessor().unwrap();
    for turn in 0..12u64 {
        a.store(at + PAGE, turn).unwrap();
        assert_eq!(a.load::<u64>(at + PAGE), Ok(turn));
        space.restore(&snapshot).unwrap();
        assert_eq!(a.load::<u8>(at + PAGE), Ok(7), "turn {turn}");
    }
    space.unmap(at, 8 * PAGE).unwrap();
    drop(file);
    space.restore(&snapshot).unwrap();
    assert_eq!(a.load::<u8>(at + PAGE), Ok(7), "the file is mapped again");
    drop((a, space, snapshot));
    memory.validate();
}

fn limit(error: SpaceError) -> LimitError {
    match error {
        SpaceError::Limit(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_fork_over_its_groups_limit_is_refused_and_both_sides_are_as_they_were() {
    let memory = memory(8 * MIB);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    let snapshot = space.freeze().unwrap();
    let small = memory.create_group("small", 16 * PAGE).unwrap();
    let child = snapshot.fork_in(&small).unwrap();
    let mut of_child = child.accessor().unwrap();
    let mut children = Vec::new();
    let refused = loop {
        match snapshot.fork_in(&small) {
            Ok(child) => children.push(child),
            Err(error) => break limit(error),
        }
    };
    assert!(
        refused.to_string().starts_with("group root/small is full"),
        "{refused}"
    );
    let refused = limit(space.fork_in(&small).unwrap_err());
    assert!(
        refused.to_string().starts_with("group root/small is full"),
        "{refused}"
    );
    assert_eq!(a.load::<u64>(at), Ok(1));
    assert_eq!(of_child.load::<u64>(at), Ok(1));
    // A store of the child needs nodes and a page, for which the group has no room.
    let fault = of_child.store(at, 2u64).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Limit);
    drop(children);
    child.accessor().unwrap().store(at, 2u64).unwrap();
    assert_eq!(a.load::<u64>(at), Ok(1));
    drop((a, child, space, snapshot));
    memory.validate();
}

#[test]
fn many_threads_fork_from_one_snapshot() {
    let memory = memory(32 * MIB);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(MIB)).unwrap();
    space.accessor().unwrap().store(at, 1u64).unwrap();
    let snapshot: Snapshot = space.freeze().unwrap();
    drop(space);
    std::thread::scope(|scope| {
        for worker in 0..3u64 {
            let snapshot = &snapshot;
            scope.spawn(move || {
                for turn in 0..100 {
                    let fork = snapshot.fork().unwrap();
                    let mut a = fork.accessor().unwrap();
                    a.store(at + worker * PAGE, turn + 10).unwrap();
                    fork.restore(snapshot).unwrap();
                    assert_eq!(
                        a.load::<u64>(at + worker * PAGE),
                        Ok(u64::from(worker == 0))
                    );
                }
            });
        }
    });
    drop(snapshot);
    memory.validate();
}

/// Accessors read the pages that a system call writes, whatever is forked meanwhile.
#[cfg(target_os = "linux")]
#[test]
fn a_system_call_reads_into_pinned_pages() {
    use std::io::{Seek, SeekFrom, Write};
    use std::os::fd::AsRawFd;

    let memory = memory(8 * MIB);
    let store = innerspace::store::MemoryStore::from_bytes(&[9; 4 * PAGE as usize]);
    let file = memory.file_options().open_store(Arc::new(store)).unwrap();
    let space = memory.create_space().unwrap();
    // In a private mapping of a file, the copied pages are pinned.
    let at = space.map(Map::file(&file).private().writable()).unwrap();
    let shared = space.map(Map::file(&file)).unwrap();
    let refused = space.pin(shared, PAGE, AtFork::Copy).unwrap_err();
    assert!(matches!(refused, SpaceError::NotPinnable { .. }));
    let pinned = space.pin(at, 3 * PAGE, AtFork::Copy).unwrap();
    let child = space.fork().unwrap();

    let mut host = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..3 * PAGE).map(|byte| (byte % 251) as u8).collect();
    host.write_all(&bytes).unwrap();
    host.seek(SeekFrom::Start(0)).unwrap();
    let pieces: Vec<libc::iovec> = pinned
        .pieces()
        .map(|(base, len)| libc::iovec {
            iov_base: base.as_ptr().cast(),
            iov_len: len,
        })
        .collect();
    // SAFETY: the pieces are pinned, and there is no Rust reference to them.
    let read = unsafe { libc::preadv(host.as_raw_fd(), pieces.as_ptr(), pieces.len() as i32, 0) };
    assert_eq!(read, 3 * PAGE as isize);
    let mut seen = vec![0; 3 * PAGE as usize];
    space.accessor().unwrap().read(at, &mut seen).unwrap();
    assert!(seen == bytes, "read to where the space has the pages");
    child.accessor().unwrap().read(at, &mut seen).unwrap();
    assert!(seen.iter().all(|byte| *byte == 9), "and not into its fork");
    space.accessor().unwrap().read(shared, &mut seen).unwrap();
    assert!(seen.iter().all(|byte| *byte == 9), "nor into the file");
    space.validate();
    child.validate();
}

// spec: F8
#[test]
fn a_page_of_a_file_that_is_shared_no_more_is_named() {
    let memory = memory(4 * MIB);
    let (_, file) = counted(&memory, 8, 7);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    let shared = space.freeze().unwrap();
    assert!(space.changed_since(&shared).unwrap().is_empty());
    let private = Map::file(&file).private().writable();
    let part = private.range(2 * PAGE..4 * PAGE).replacing(at + 2 * PAGE);
    space.map(part).unwrap();
    let expected = [at + 2 * PAGE..at + 4 * PAGE];
    assert_eq!(space.changed_since(&shared).unwrap(), expected);
    let private = space.freeze().unwrap();
    assert_eq!(private.diff(&shared).unwrap(), expected);
    // The bytes become different at the next write.
    file.write_at(&[9; 8], 0).unwrap();
    space.accessor().unwrap().store(at + 2 * PAGE, 1u8).unwrap();
    assert_eq!(file.view(2 * PAGE..2 * PAGE + 1).unwrap()[0], 7);
}
