//! A host file whose sync failed: the host is made to consider its pages changed, even on an old
//! system, and even if another process cuts the file.

use std::cell::{Cell, RefCell};
use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::UNIX_EPOCH;

use super::super::{HoleWrites, OnShrink};
use super::*;
use crate::store::{Create, FileAccess, Opened};
use crate::sys::shared::faulty::{Answered, Call, answer};

pub(super) fn path_in(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("data.bin")
}

pub(super) fn create(path: &Path, setup: DaxSetup) -> DaxFile {
    let opened = Opened::begin(path, FileAccess::ReadWrite, Create::Truncate).unwrap();
    let (pool, locked) = (pool(64), opened.lock_any().unwrap());
    let setup = DaxSetup {
        access: FileAccess::ReadWrite,
        ..setup
    };
    DaxFile::over_host(&Cache::new(&pool), &pool.root_group(), locked, setup).unwrap()
}

pub(super) fn create_guarded(path: &Path) -> DaxFile {
    let on_shrink = OnShrink::Error;
    create(
        path,
        DaxSetup {
            on_shrink,
            ..DaxSetup::default()
        },
    )
}

/// Cuts a file as another process would.
pub(super) fn cut(path: &Path, len: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

fn len(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

/// Tells the syncs of the test's thread whether to fail, and records them.
struct Syncs {
    /// The syncs fail as long as the flag is set.
    fail: Rc<Cell<bool>>,
    /// The bytes of the syncs that did not fail.
    asked: Rc<RefCell<Vec<Range<usize>>>>,
    _answered: Answered,
}

/// Makes syncs fail at first, and answers touches with `touch`.
fn failing_syncs(mut touch: impl FnMut(Range<usize>) -> Result<()> + 'static) -> Syncs {
    let fail = Rc::new(Cell::new(true));
    let asked = Rc::new(RefCell::new(Vec::new()));
    let (fails, seen) = (fail.clone(), asked.clone());
    let _answered = answer(move |call, bytes| match call {
        Call::Touch => touch(bytes),
        Call::Sync if fails.get() => Err(Error::other("a write was lost")),
        Call::Sync => {
            seen.borrow_mut().push(bytes);
            Ok(())
        }
        Call::Room | Call::Allocate | Call::Write | Call::SetLen | Call::Punch => Ok(()),
    });
    Syncs {
        fail,
        asked,
        _answered,
    }
}

#[test]
fn a_guarded_file_is_synced_after_a_failure_on_an_old_system() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = create_guarded(&path);
    file.set_len(3 * PAGE + 10).unwrap();
    for page in 0..4 {
        let at = page * PAGE_SIZE;
        let syncs = failing_syncs(|_| Err(ErrorKind::Unsupported.into()));
        file.write_at(&[7; 10], at as u64).unwrap();
        let times = OpenOptions::new().write(true).open(&path).unwrap();
        times.set_modified(UNIX_EPOCH).unwrap();
        let error = file.sync_all().unwrap_err();
        assert!(error.to_string().ends_with("a write was lost"), "{error}");
        let modified = times.metadata().unwrap().modified().unwrap();
        assert_ne!(modified, UNIX_EPOCH, "page {page} was not written again");
        syncs.fail.set(false);
        file.sync_all().unwrap();
        assert_eq!(
            syncs.asked.borrow().as_slice(),
            std::slice::from_ref(&(at..at + PAGE_SIZE))
        );
        assert_eq!(file.stats().dirty.0, 0);
    }
    let mut bytes = vec![1; 3 * PAGE_SIZE + 10];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let expected = |at: usize| if at % PAGE_SIZE < 10 { 7 } else { 0 };
    assert!(
        bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == expected(at))
    );
    assert_eq!(len(&path), 3 * PAGE + 10);
}

#[test]
fn what_was_cut_off_a_guarded_file_does_not_come_back_on_an_old_system() {
    for left in [0, 10, PAGE, PAGE + 10] {
        let folder = tempfile::tempdir().unwrap();
        let path = path_in(&folder);
        let file = create_guarded(&path);
        file.write_at(&[7; 3 * PAGE_SIZE], 0).unwrap();
        cut(&path, left);
        let syncs = failing_syncs(|_| Err(ErrorKind::Unsupported.into()));
        file.sync_all().unwrap_err();
        assert_eq!(len(&path), left, "it was lengthened");
        syncs.fail.set(false);
        file.sync_all().unwrap();
        assert_eq!(len(&path), left, "it was lengthened");
    }
}

/// Creates a file of one dirty block of 2 MiB.
fn large_block(path: &Path) -> DaxFile {
    let hole_writes = HoleWrites::Large;
    let file = create(
        path,
        DaxSetup {
            hole_writes,
            ..DaxSetup::default()
        },
    );
    file.write_at(&vec![7; LARGE as usize * PAGE_SIZE], 0)
        .unwrap();
    let entry = file.core().entries.peek(0).unwrap();
    assert_eq!(entry.size(), super::super::entry::Size::Large);
    file
}

#[test]
fn pages_before_a_cut_are_reminded_of_though_the_first_try_stopped_before() {
    const END: usize = LARGE as usize * PAGE_SIZE;
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = large_block(&path);
    let tries = Rc::new(RefCell::new(Vec::new()));
    let (seen, cuts) = (tries.clone(), path.clone());
    let syncs = failing_syncs(move |bytes| {
        seen.borrow_mut().push(bytes.end);
        match seen.borrow().len() {
            1 => cut(&cuts, 400 * PAGE + 1),
            2 => cut(&cuts, 300 * PAGE),
            _ => return Ok(()),
        }
        Err(ErrorKind::OutOfMemory.into())
    });
    file.sync_all().unwrap_err();
    assert_eq!(*tries.borrow(), [END, 401 * PAGE_SIZE, 300 * PAGE_SIZE]);
    syncs.fail.set(false);
    file.sync_all().unwrap();
    assert_eq!(tries.borrow().len(), 3, "the host had seen all of it");
    assert_eq!(
        syncs.asked.borrow().as_slice(),
        std::slice::from_ref(&(0..END))
    );
}

#[test]
fn a_cut_hides_no_failure_of_the_pages_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = large_block(&path);
    cut(&path, 400 * PAGE);
    let refuses = Rc::new(Cell::new(true));
    let refused = refuses.clone();
    let syncs = failing_syncs(move |_| match refused.get() {
        true => Err(ErrorKind::OutOfMemory.into()),
        false => Ok(()),
    });
    file.sync_all().unwrap_err();
    syncs.fail.set(false);
    let error = file.sync_all().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(
        syncs.asked.borrow().is_empty(),
        "the host was asked all the same"
    );
    // If no page is left, the host need not be reminded.
    cut(&path, 0);
    file.sync_all().unwrap();
    refuses.set(false);
    file.sync_all().unwrap();
}
