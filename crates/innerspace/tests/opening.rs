//! One store is one file: what a second open of the same store in one memory returns.

#![cfg(not(target_family = "wasm"))]

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use innerspace::store::{self, FileLock, Identity, MemoryStore, Store};
use innerspace::{
    KIB, MIB, Memory, OpenError, PAGE_SIZE, PagedFile, Threads,
    dax::{DaxDevice, DaxError},
    file::{FileAccess, WriteOrder},
};

fn refused(opened: Result<PagedFile, OpenError>) -> String {
    match opened {
        Err(error @ (OpenError::OpenOtherwise { .. } | OpenError::NotEmptied { .. })) => {
            error.to_string()
        }
        Err(error) => panic!("{error}"),
        Ok(file) => panic!("{file:?}"),
    }
}

// spec: P27
#[test]
fn a_second_open_of_a_path_is_the_same_file() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, vec![1; 20_000]).unwrap();
    let first = memory.open_rw(&path).unwrap();
    first.write_at(&[2; 100], 5_000).unwrap();
    // The file may be opened by any name and for any access: the unwritten data is there, in one
    // cache.
    let other_name = folder.path().join("link.bin");
    std::fs::hard_link(&path, &other_name).unwrap();
    for again in [memory.open(&path), memory.open_rw(&other_name)] {
        let again = again.unwrap();
        assert_eq!(again.view(5_000..5_100).unwrap()[..], [2; 100]);
        assert_eq!(
            again.view(0..10).unwrap().as_ptr(),
            first.view(0..10).unwrap().as_ptr()
        );
        again.write_at(&[3], 0).unwrap();
        assert_eq!(first.view(0..1).unwrap()[..], [3]);
    }
    assert_eq!(memory.stats().files.len(), 1);
    // It may not be opened with other options, and is not emptied.
    let larger = memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .block_size(64 * KIB);
    let name = path.display();
    assert_eq!(
        refused(larger.open(&path)),
        format!(
            "{name}: is open already with another block size; close it first, or open it the same way"
        )
    );
    refused(memory.create(&path));
    assert_eq!(first.len(), 20_000);
    drop(first);
    let reader = memory.open(&path).unwrap();
    assert_eq!(
        reader.view(5_000..5_100).unwrap()[..],
        [2; 100],
        "written by the last drop"
    );
    assert!(refused(memory.open_rw(&path)).contains("is open already read-only"));
    drop(reader);
    assert_eq!(memory.create(&path).unwrap().len(), 0);
}

#[test]
fn a_file_that_is_opened_or_made_keeps_what_it_holds() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    let open = || memory.file_options().open_or_create(&path);
    let made = open().unwrap();
    assert!(made.is_empty());
    made.write_at(b"kept", 0).unwrap();
    // While the file is open, and afterwards.
    assert_eq!(open().unwrap().view(..).unwrap()[..], *b"kept");
    drop(made);
    assert_eq!(open().unwrap().view(..).unwrap()[..], *b"kept");
    let reader = memory.open(&path).unwrap();
    assert!(refused(open()).contains("is open already read-only"));
    drop(reader);
}

#[test]
fn why_a_file_cannot_be_opened_is_an_io_error_of_the_nearest_kind() {
    use io::ErrorKind::{InvalidInput, NotFound, ResourceBusy};
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (path, nowhere) = (
        folder.path().join("data.bin"),
        folder.path().join("no/file"),
    );
    let missing = memory.open(&path);
    let no_folder = memory.create(&nowhere);
    let _file = memory.create(&path).unwrap();
    let others = Memory::with_limit(4 * MIB).unwrap();
    for (opened, kind) in [
        (missing, NotFound),
        (no_folder, NotFound),
        (
            memory.file_options().block_size(5000).open(&path),
            InvalidInput,
        ),
        (
            memory.file_options().group(others.root_group()).open(&path),
            InvalidInput,
        ),
        (
            memory.file_options().block_size(64 * KIB).open(&path),
            ResourceBusy,
        ),
        (memory.create(&path), ResourceBusy),
        (others.open_rw(&path), ResourceBusy),
    ] {
        let error = opened.unwrap_err();
        let text = error.to_string();
        let error = io::Error::from(error);
        assert_eq!((error.kind(), error.to_string()), (kind, text));
    }
}

// spec: P27
#[test]
fn a_store_that_knows_itself_is_one_file_and_others_are_not() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let store = Arc::new(MemoryStore::with_len(8192));
    let open = || {
        let options = memory.file_options().access(FileAccess::ReadWrite);
        options.open_store(store.clone()).unwrap()
    };
    let (first, second) = (open(), open());
    first.write_at(&[1; 10], 0).unwrap();
    assert_eq!(second.view(0..10).unwrap()[..], [1; 10]);
    let other = memory
        .file_options()
        .open_store(MemoryStore::with_len(8192))
        .unwrap();
    assert_eq!(other.view(0..10).unwrap()[..], [0; 10]);
    assert_eq!(memory.stats().files.len(), 2);
}

// spec: P27
#[test]
fn a_second_open_does_not_promise_an_order_that_the_file_has_not() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let store = Arc::new(MemoryStore::with_len(8192));
    let open = |order| {
        let options = memory.file_options().access(FileAccess::ReadWrite);
        options.write_order(order).open_store(store.clone())
    };
    for (first, others) in [
        (
            WriteOrder::Background,
            [WriteOrder::OnSync, WriteOrder::Ordered],
        ),
        (WriteOrder::OnSync, [WriteOrder::Ordered; 2]),
        (WriteOrder::Ordered, [WriteOrder::OnSync; 2]),
    ] {
        let file = open(first).unwrap();
        for other in others {
            assert!(refused(open(other)).contains("is open already with another write order"));
        }
        // An open that requests no order takes the one that the file has.
        for order in [first, WriteOrder::Background] {
            assert_eq!(open(order).unwrap().write_order(), first);
        }
        drop(file);
    }
}

#[test]
fn a_store_that_takes_no_writes_is_not_opened_for_them() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let refused = options.open_store(Busy::new(&Arc::default())).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "store: its store takes no writes (Store::writable); open it read-only"
    );
    let file = memory
        .file_options()
        .open_store(Busy::new(&Arc::default()))
        .unwrap();
    assert_eq!(
        format!("{file:?}"),
        "PagedFile { name: \"store\", len: 0, access: ReadOnly, .. }"
    );
}

type Work = Box<dyn FnOnce() + Send + Sync>;

/// A store that makes other calls when it is first asked for its length, and when it is dropped.
struct Busy {
    bytes: Arc<MemoryStore>,
    when_asked: Mutex<Option<Work>>,
    when_dropped: Option<Work>,
}

impl Busy {
    fn new(bytes: &Arc<MemoryStore>) -> Busy {
        Busy {
            bytes: bytes.clone(),
            when_asked: Mutex::default(),
            when_dropped: None,
        }
    }

    fn when_asked(self, work: impl FnOnce() + Send + Sync + 'static) -> Busy {
        *self.when_asked.lock().unwrap() = Some(Box::new(work));
        self
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(work) = self.when_dropped.take() {
            work();
        }
    }
}

impl Store for Busy {
    fn len(&self) -> io::Result<u64> {
        let len = self.bytes.len();
        let work = self.when_asked.lock().unwrap().take();
        if let Some(work) = work {
            work();
        }
        len
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.bytes.read_at(buf, offset)
    }

    fn identity(&self) -> Option<Identity> {
        self.bytes.identity()
    }
}

fn another(memory: &Memory) -> PagedFile {
    let options = memory.file_options().access(FileAccess::ReadWrite);
    options.open_store(MemoryStore::new()).unwrap()
}

// spec: P27
#[test]
fn a_store_may_open_others_when_it_is_asked_or_is_not_to_be_opened() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let bytes = Arc::new(MemoryStore::with_len(100));
    let inner = memory.clone();
    let store = Busy::new(&bytes).when_asked(move || drop(another(&inner)));
    assert_eq!(memory.file_options().open_store(store).unwrap().len(), 100);
    let inner = memory.clone();
    let mut store = Busy::new(&bytes);
    store.when_dropped = Some(Box::new(move || drop(another(&inner))));
    let options = memory.file_options().access(FileAccess::ReadWrite);
    options.open_store(store).unwrap_err();
}

// spec: P27
#[test]
fn a_store_that_is_opened_while_it_is_asked_is_one_file() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let bytes = Arc::new(MemoryStore::with_len(100));
    let writer = Arc::new(Mutex::new(None));
    let (other, same, slot) = (memory.clone(), bytes.clone(), writer.clone());
    let store = Busy::new(&bytes).when_asked(move || {
        let options = other.file_options().access(FileAccess::ReadWrite);
        let file = options.open_store(same).unwrap();
        file.write_at(&[7; 1000], 0).unwrap();
        *slot.lock().unwrap() = Some(file);
    });
    let file = memory.file_options().open_store(store).unwrap();
    assert_eq!(memory.stats().files.len(), 1);
    assert_eq!(file.view(..).unwrap()[..], [7; 1000]);
}

// spec: P27
#[test]
fn a_store_that_was_open_while_it_was_asked_is_asked_again() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let bytes = Arc::new(MemoryStore::with_len(100));
    let (other, same) = (memory.clone(), bytes.clone());
    let store = Busy::new(&bytes).when_asked(move || {
        let options = other.file_options().access(FileAccess::ReadWrite);
        let file = options.open_store(same).unwrap();
        file.write_at(&[7; 1000], 0).unwrap();
        drop(file);
        // The table has no entry left of the file.
        drop(another(&other));
    });
    let file = memory.file_options().open_store(store).unwrap();
    assert_eq!(file.view(..).unwrap()[..], [7; 1000]);
}

/// A store whose writes report that they have begun, and wait to be released.
struct Slow(Arc<MemoryStore>, mpsc::SyncSender<()>);

impl Store for Slow {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.1.send(()).unwrap();
        self.1.send(()).unwrap();
        self.0.write_at(buf, offset)
    }

    fn writable(&self) -> bool {
        true
    }

    fn identity(&self) -> Option<Identity> {
        self.0.identity()
    }
}

// spec: P27
#[test]
fn who_opens_a_store_waits_for_its_last_drop_though_others_open_others() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let bytes = Arc::new(MemoryStore::with_len(100));
    let (begins, began) = mpsc::sync_channel(0);
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.open_store(Slow(bytes.clone(), begins)).unwrap();
    file.write_at(&[7; 1000], 0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(file));
        began.recv().unwrap();
        // When a file is entered in the table, those that are gone are removed.
        drop(another(&memory));
        let again = scope.spawn(|| memory.file_options().open_store(bytes.clone()).unwrap());
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        began.recv().unwrap();
        assert_eq!(again.join().unwrap().len(), 1000);
    });
}

#[test]
fn a_file_that_a_group_of_another_memory_was_to_pay_for_is_not_opened() {
    let [memory, other] = [(); 2].map(|()| Memory::with_limit(4 * MIB).unwrap());
    let foreign = other.create_group("tenant", MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, [1; 5_000]).unwrap();
    let cached = || memory.file_options().group(&foreign);
    for opened in [
        cached().open_store(MemoryStore::new()),
        cached().open(&path),
        cached().create(&path),
    ] {
        assert!(matches!(opened, Err(OpenError::OtherMemorysGroup)));
    }
    let direct = || memory.dax_options().group(&foreign);
    let device = DaxDevice::memory(MIB).unwrap();
    for opened in [
        direct().create_on(&device, "data.bin"),
        direct().open(&path),
        direct().create(&path),
    ] {
        assert!(matches!(opened, Err(DaxError::OtherMemorysGroup)));
    }
    assert_eq!(std::fs::read(&path).unwrap(), [1; 5_000], "not emptied");
    memory.validate();
}

/// A store call made in the background keeps the file's lock for a moment after the last handle is
/// dropped.
#[test]
fn a_file_that_is_closed_beside_the_background_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, vec![0; 10 * PAGE_SIZE]).unwrap();
    let options = Memory::builder(4 * MIB).threads(Threads::None);
    let memory = options.build().unwrap();
    let busy = AtomicUsize::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (memory, path, busy) = (&memory, &path, &busy);
            scope.spawn(move || {
                let opened = (0..400).try_for_each(|_| {
                    let file = memory.open_rw(path)?;
                    file.write_at(&[1], thread * PAGE_SIZE as u64).unwrap();
                    Ok::<(), OpenError>(())
                });
                busy.fetch_sub(1, Ordering::Relaxed);
                opened.unwrap();
            });
        }
        scope.spawn(|| {
            while busy.load(Ordering::Relaxed) > 0 {
                memory.tick();
                memory.reclaim(MIB);
            }
        });
    });
    memory.validate();
}

#[test]
fn a_file_that_must_be_new_is_made_once() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cached, direct) = (folder.path().join("cached"), folder.path().join("direct"));
    let file = memory.file_options().create_new(&cached).unwrap();
    file.write_at(b"new", 0).unwrap();
    file.close().unwrap();
    assert_eq!(std::fs::read(&cached).unwrap(), b"new");
    let error = memory.file_options().create_new(&cached).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");

    let file = memory.dax_options().create_new(&direct).unwrap();
    file.write_at(b"new", 0).unwrap();
    drop(file);
    let error = memory.dax_options().create_new(&direct).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
    let file = memory.dax_options().open_or_create(&direct).unwrap();
    assert_eq!(file.read_to_vec(..).unwrap(), b"new");
}

#[test]
#[cfg(unix)]
fn a_file_that_is_given_open_is_checked_and_used() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, b"as it was").unwrap();
    let readable = || std::fs::File::open(&path).unwrap();
    let kind = |file, access| {
        let opened = memory.file_options().access(access).open_file(file);
        opened.unwrap_err().kind()
    };
    // The descriptor has to permit the access for which the file is opened.
    assert_eq!(
        kind(readable(), FileAccess::ReadWrite),
        io::ErrorKind::PermissionDenied
    );
    let write_only = std::fs::File::options().write(true).open(&path).unwrap();
    assert_eq!(
        kind(write_only, FileAccess::ReadOnly),
        io::ErrorKind::PermissionDenied
    );
    let mut options = std::fs::File::options();
    let appending = options.read(true).append(true).open(&path).unwrap();
    assert_eq!(
        kind(appending, FileAccess::ReadWrite),
        io::ErrorKind::InvalidInput
    );
    let folder_itself = std::fs::File::open(folder.path()).unwrap();
    assert_eq!(
        kind(folder_itself, FileAccess::ReadOnly),
        io::ErrorKind::IsADirectory
    );

    // The descriptor stands for its file, whatever the name leads to by now, and for the same file
    // as an open by path.
    let mut both = std::fs::File::options();
    let given = both.read(true).write(true).open(&path).unwrap();
    let moved = folder.path().join("moved.bin");
    std::fs::rename(&path, &moved).unwrap();
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.clone().open_file(given).unwrap();
    file.write_at(b"now it is", 0).unwrap();
    let same = memory.open(&moved).unwrap();
    assert_eq!(same.read_to_vec(..).unwrap(), b"now it is");
    drop(same);
    file.close().unwrap();
    assert_eq!(std::fs::read(&moved).unwrap(), b"now it is");

    // This file has no name.
    let unnamed = tempfile::tempfile().unwrap();
    let file = options.open_file(unnamed.try_clone().unwrap()).unwrap();
    file.write_at(&[7; 100_000], 50_000).unwrap();
    file.sync_all().unwrap();
    file.invalidate(..).unwrap();
    assert_eq!(file.read_to_vec(149_998..).unwrap(), [7, 7]);
    drop(file);
    assert_eq!(unnamed.metadata().unwrap().len(), 150_000);
    let direct = memory.dax_options().open_file(unnamed).unwrap();
    assert_eq!(direct.read_to_vec(149_998..).unwrap(), [7, 7]);
}

#[test]
#[cfg(target_os = "linux")]
fn the_lock_is_the_one_that_was_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    std::fs::write(&path, b"as it was").unwrap();
    // There are two memories, as in two programs.
    let open = |memory: &Memory, access, lock| {
        let options = memory.file_options().access(access).lock(lock);
        options.open(&path)
    };
    let memories = [(); 2].map(|()| Memory::with_limit(4 * MIB).unwrap());
    let [first, second] = &memories;
    let (reads, writes) = (FileAccess::ReadOnly, FileAccess::ReadWrite);
    for (one, other, may) in [
        ((writes, FileLock::Auto), (writes, FileLock::Auto), false),
        ((writes, FileLock::Auto), (reads, FileLock::Auto), true),
        ((writes, FileLock::Auto), (reads, FileLock::Shared), false),
        ((reads, FileLock::Shared), (reads, FileLock::Shared), true),
        ((reads, FileLock::Shared), (writes, FileLock::Auto), false),
        (
            (reads, FileLock::Exclusive),
            (reads, FileLock::Shared),
            false,
        ),
        ((writes, FileLock::None), (writes, FileLock::Auto), true),
        ((writes, FileLock::Auto), (writes, FileLock::None), true),
    ] {
        let held = open(first, one.0, one.1).unwrap();
        match (open(second, other.0, other.1), may) {
            (Ok(_), true) => {}
            (Err(error), false) => {
                let in_use = matches!(error, OpenError::Path(store::FileOpenError::InUse { .. }));
                assert!(in_use, "{error}");
                let text = error.to_string();
                let holders = ["another handle of this process", "some process: "];
                assert!(
                    holders.iter().any(|holder| text.contains(holder))
                        && text.contains("data.bin is in use by ")
                        && text.ends_with("; close it there first"),
                    "{text}"
                );
                // The remedy is to close the file there.
                drop(held);
                open(second, other.0, other.1).unwrap();
            }
            (opened, _) => panic!("{one:?}, {other:?}: {opened:?}"),
        }
    }
}

#[test]
fn a_direct_file_is_read_and_written_from_a_position() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let device = DaxDevice::memory(MIB).unwrap();
    let file = memory.create_dax_on(&device, "data.bin").unwrap();
    let mut cursor = file.cursor();
    cursor.write_all(b"hello, world").unwrap();
    cursor.flush().unwrap();
    assert_eq!(cursor.seek(SeekFrom::End(-5)).unwrap(), 7);
    let mut text = String::new();
    cursor.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), cursor.position()), ("world", 12));
    assert_eq!(cursor.file().len(), 12);
    let error = cursor.write_all(&vec![1; 2 * MIB as usize]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
}
