//! Tests of changes to a file, and to its path, while the file is being opened.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::cache::{FileAccess, PagedFile};
use crate::memory::{Memory, OpenError, Threads};
use crate::reclaim::Retired;
use crate::store::{self, CacheMode, FileStore, hook};
use crate::units::MIB;

const LEN: u64 = 10_000;

fn memory_and_file() -> (Memory, tempfile::TempDir, PathBuf) {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    fs::write(&path, vec![1; LEN as usize]).unwrap();
    (memory, folder, path)
}

/// Opens a file in the middle of the next open on this thread, as another thread would. Returns the
/// file it got.
fn meanwhile(
    open: impl FnOnce() -> Result<PagedFile, OpenError> + 'static,
) -> Rc<RefCell<Option<PagedFile>>> {
    let opened = Rc::new(RefCell::new(None));
    let other = opened.clone();
    hook::when_opened(move |_| {
        other.replace(Some(open().unwrap()));
    });
    opened
}

/// Replaces the next file that is opened on this thread by a file of these bytes.
fn replace(path: &Path, bytes: &'static [u8], times: u32) {
    let path = path.to_owned();
    hook::when_opened(move |_| {
        let new = path.with_extension("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(&new, &path).unwrap();
        if times > 1 {
            replace(&path, bytes, times - 1);
        }
    });
}

#[test]
fn a_direct_file_that_grew_while_it_was_opened_is_not_cut() {
    for access in [FileAccess::ReadOnly, FileAccess::ReadWrite] {
        let (memory, _folder, path) = memory_and_file();
        let grown = path.clone();
        hook::when_opened(move |_| {
            let mut file = File::options().append(true).open(grown).unwrap();
            file.write_all(&[2; 5000]).unwrap();
        });
        let options = memory.dax_options().access(access);
        let file = options.open(&path).unwrap();
        assert_eq!(file.len(), LEN + 5000);
        if access == FileAccess::ReadWrite {
            file.write_at(b"x", 0).unwrap();
            file.sync_all().unwrap();
        }
        let mut byte = [0];
        file.read_exact_at(&mut byte, LEN + 4999).unwrap();
        assert_eq!(byte, [2]);
        drop(file);
        assert_eq!(fs::metadata(&path).unwrap().len(), LEN + 5000);
    }
}

#[test]
fn a_file_that_is_opened_by_another_thread_meanwhile_is_not_emptied() {
    let (memory, _folder, path) = memory_and_file();
    let (other, name) = (memory.clone(), path.clone());
    let opened = meanwhile(move || other.open(name));
    let error = memory.create(&path).unwrap_err();
    assert!(matches!(error, OpenError::NotEmptied { .. }), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), LEN);
    let reader = opened.take().unwrap();
    assert_eq!(reader.view(0..10).unwrap()[..], [1; 10]);
}

// spec: P27
#[test]
fn two_threads_that_open_a_path_for_writing_at_once_get_one_file() {
    let (memory, _folder, path) = memory_and_file();
    let (other, name) = (memory.clone(), path.clone());
    let opened = meanwhile(move || other.open_rw(name));
    let second = memory.open_rw(&path).unwrap();
    let first = opened.take().unwrap();
    first.write_at(&[7], 0).unwrap();
    assert_eq!(second.view(0..1).unwrap()[..], [7]);
    assert_eq!(memory.stats().files.len(), 1);
}

#[test]
fn a_file_that_was_replaced_before_it_was_locked_is_not_the_one_that_is_opened() {
    let (memory, folder, path) = memory_and_file();
    let old = folder.path().join("old.bin");
    fs::hard_link(&path, &old).unwrap();

    replace(&path, b"second", 1);
    let store = FileStore::open_rw(&path).unwrap();
    store::write_all_at(&store, b"S", 0).unwrap();
    drop(store);
    assert_eq!(fs::read(&path).unwrap(), b"Second");

    replace(&path, b"third", 3);
    let file = memory.open_rw(&path).unwrap();
    file.write_at(b"T", 0).unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"Third");

    replace(&path, b"fourth", 1);
    let file = memory.open_dax_rw(&path).unwrap();
    assert_eq!(file.len(), 6);
    file.write_at(b"F", 0).unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"Fourth");

    let fourth = folder.path().join("fourth.bin");
    fs::hard_link(&path, &fourth).unwrap();
    replace(&path, b"fifth", 1);
    drop(FileStore::create(&path).unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"");
    assert_eq!(fs::read(&fourth).unwrap(), b"Fourth");
    assert_eq!(fs::read(&old).unwrap(), vec![1; LEN as usize]);

    replace(&path, b"always", u32::MAX);
    let error = FileStore::open_rw(&path).unwrap_err();
    let text = "cannot lock it: it was replaced by another file each time";
    assert!(error.to_string().ends_with(text), "{error}");
    hook::when_opened(|_| {});
    drop(FileStore::open_rw(&path).unwrap());
}

/// A file that only unreachable references keep open (mappings of a space that is gone) is not a
/// reason to refuse an open.
#[test]
fn a_file_that_nobody_can_find_any_more_is_no_reason_to_refuse() {
    let (_, _folder, path) = memory_and_file();
    let memory = Memory::builder(4 * MIB).threads(Threads::None);
    let memory = memory.build().unwrap();
    let left_behind = |file: PagedFile| {
        let inner = file.inner().clone();
        let call = Retired::Call(Box::new(move |_| drop(inner)));
        memory.0.pool.retire(call);
    };
    left_behind(memory.open(&path).unwrap());
    let writable = memory.file_options().access(FileAccess::ReadWrite);
    left_behind(writable.open(&path).unwrap());
    let file = memory.create(&path).unwrap();
    assert!(file.is_empty());
    left_behind(file);
    drop(memory.open_dax_rw(&path).unwrap());
}

#[test]
fn a_file_that_was_replaced_may_be_in_use() {
    let (memory, folder, path) = memory_and_file();
    let old = folder.path().join("old.bin");
    fs::hard_link(&path, &old).unwrap();
    let _user = FileStore::open_rw(&old).unwrap();
    let error = FileStore::open_rw(&path).unwrap_err();
    assert!(
        matches!(error, store::FileOpenError::InUse { .. }),
        "{error}"
    );

    replace(&path, b"second", 1);
    let file = memory.open_rw(&path).unwrap();
    file.write_at(b"S", 0).unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"Second");

    let (gone, _other) = (path.clone(), FileStore::open_rw(&path).unwrap());
    hook::when_opened(move |_| fs::remove_file(gone).unwrap());
    let error = FileStore::open_rw(&path).unwrap_err();
    assert!(error.to_string().ends_with("no such file"), "{error}");
}

#[test]
fn a_create_that_fails_empties_nothing() {
    let (memory, folder, path) = memory_and_file();
    let error = memory
        .file_options()
        .block_size(5000)
        .create(&path)
        .unwrap_err();
    assert!(matches!(error, OpenError::File(_)), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), LEN);
    let capacity = memory.dax_options().capacity(u64::MAX);
    let error = capacity.create(&path).unwrap_err();
    assert!(error.to_string().contains(": map failed: "), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), LEN);

    // Not every mode works on every file system.
    let in_memory = tempfile::tempdir_in("/dev/shm").ok();
    for folder in [Some(folder), in_memory].into_iter().flatten() {
        let path = folder.path().join("modes.bin");
        for mode in [
            CacheMode::DontCache,
            CacheMode::Direct,
            CacheMode::DropAfterUse,
        ] {
            fs::write(&path, b"content").unwrap();
            let options = store::FileOptions::new().cache_mode(mode);
            let left = match options.create(&path) {
                Ok(_) => 0,
                Err(_) => 7,
            };
            assert_eq!(fs::metadata(&path).unwrap().len(), left, "{mode}");
        }
    }
}

#[test]
fn an_open_that_fails_gives_the_lock_back_to_whoever_has_the_description_too() {
    let (memory, _folder, path) = memory_and_file();
    // This acts as a child process that another thread is just starting.
    let inherited = Rc::new(RefCell::new(None));
    let child = inherited.clone();
    hook::when_opened(move |file| {
        child.replace(Some(file.try_clone().unwrap()));
    });
    let options = memory.dax_options().access(FileAccess::ReadWrite);
    options.capacity(u64::MAX).open(&path).unwrap_err();
    assert!(inherited.borrow().is_some());
    drop(FileStore::open_rw(&path).unwrap());
}
