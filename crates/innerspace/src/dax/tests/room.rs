//! The room that a host provides, or refuses, for stores to pages that have blocks.

use std::cell::{Cell, RefCell};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use super::reminding::{create, create_guarded, cut, path_in};
use super::*;
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::sys::file::{self as sys, disk_dir};
use crate::sys::shared::faulty::{Answered, Call, answer};

/// Creates a file of this many clean pages, all bytes of which are 7.
fn clean(path: &Path, pages: usize) -> DaxFile {
    let file = create(path, DaxSetup::default());
    file.write_at(&vec![7; pages * PAGE_SIZE], 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 0);
    file
}

/// Makes a host where a store to the page at `refused` would raise a signal, and that answers a
/// request for a block with `why`.
fn without_room(refused: usize, mut why: impl FnMut() -> Result<()> + 'static) -> Answered {
    answer(move |call, bytes| match call {
        Call::Room if bytes.contains(&refused) => Err(Error::from_raw_os_error(libc::EFAULT)),
        Call::Allocate => why(),
        _ => Ok(()),
    })
}

#[test]
fn a_store_that_is_refused_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = clean(&path, 2);
    let refused = |why: Option<ErrorKind>| {
        let _host = without_room(PAGE_SIZE, move || why.map_or(Ok(()), |why| Err(why.into())));
        let reach = Reach::Pages { end: 2 };
        let fault = file.core().fault(1, FaultKind::Write, reach, 0);
        let (fault, call) = (fault.unwrap_err(), file.write_at(&[1], PAGE).unwrap_err());
        assert_eq!(fault.to_string(), call.to_string());
        assert_eq!(file.stats().dirty.0, 0);
        (call.kind(), call.to_string())
    };
    let (kind, text) = refused(None);
    assert_eq!(kind, ErrorKind::StorageFull);
    assert!(text.contains("data.bin: allocate at 4,096"), "{text}");
    for why in [ErrorKind::ReadOnlyFilesystem, ErrorKind::QuotaExceeded] {
        assert_eq!(refused(Some(why)).0, why);
    }
    // A host that cannot say why has no room.
    let (kind, _) = refused(Some(ErrorKind::Unsupported));
    assert_eq!(kind, ErrorKind::StorageFull);
    cut(&path, PAGE);
    assert_eq!(refused(None).0, ErrorKind::UnexpectedEof);
}

#[test]
fn a_long_store_has_the_pages_before_the_one_that_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = clean(&path_in(&folder), 8);
    let _host = without_room(3 * PAGE_SIZE, || Ok(()));
    let reach = Reach::Pages { end: 8 };
    let locked = file.core().fault(0, FaultKind::Write, reach, 7).unwrap();
    assert_eq!(locked.pages(), 0..3);
}

#[test]
fn a_file_is_shortened_without_room() {
    for why in [None, Some(ErrorKind::QuotaExceeded)] {
        let folder = tempfile::tempdir().unwrap();
        let file = clean(&path_in(&folder), 2);
        let full = without_room(0, move || why.map_or(Ok(()), |why| Err(why.into())));
        file.set_len(10).unwrap();
        drop(full);
        file.set_len(PAGE).unwrap();
        let mut bytes = [1; PAGE_SIZE];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(
            (&bytes[..10], &bytes[10..]),
            (&[7; 10][..], &[0; PAGE_SIZE - 10][..])
        );
    }
}

/// Returns the content of a file.
fn contents(file: &DaxFile) -> Vec<u8> {
    let mut bytes = vec![1; file.len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_punch_that_is_refused_changes_nothing() {
    let (first, last) = (10, 3 * PAGE_SIZE + 50);
    for refused in [0, 3 * PAGE_SIZE] {
        let folder = tempfile::tempdir().unwrap();
        let file = clean(&path_in(&folder), 4);
        let mut expected = contents(&file);
        let full = without_room(refused, || Ok(()));
        let error = file.punch(first as u64..last as u64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(contents(&file) == expected, "refused at {refused}");
        drop(full);
        file.punch(first as u64..last as u64).unwrap();
        expected[first..last].fill(0);
        assert!(contents(&file) == expected);
    }
}

/// A way to lengthen a file from less than two pages to four.
type Grow = fn(&DaxFile) -> std::result::Result<(), DaxError>;

/// Makes a host that has no room for the next `times` calls of this kind.
fn refusing(call: Call, times: u32) -> Answered {
    let left = Cell::new(times);
    answer(move |asked, _| {
        if asked != call || left.get() == 0 {
            return Ok(());
        }
        left.set(left.get() - 1);
        Err(ErrorKind::StorageFull.into())
    })
}

#[test]
fn a_file_that_cannot_grow_stays_as_long_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = clean(&path, 2);
    file.set_len(PAGE + 100).unwrap();
    file.sync_all().unwrap();
    let expected = contents(&file);
    let ways: [Grow; 2] = [
        |file| file.set_len(4 * PAGE),
        |file| file.write_at(&[0], 4 * PAGE - 1),
    ];
    for grow in ways {
        for call in [Call::Room, Call::SetLen] {
            let full = refusing(call, 1);
            let error = grow(&file).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{call:?}");
            drop(full);
            assert_eq!(file.len(), PAGE + 100);
            assert_eq!(path.metadata().unwrap().len(), PAGE + 100, "{call:?}");
            assert!(contents(&file) == expected);
            file.sync_all().unwrap();
        }
    }
    let mut longer = expected.clone();
    longer.resize(4 * PAGE_SIZE, 0);
    for grow in ways {
        grow(&file).unwrap();
        assert!(contents(&file) == longer);
        file.set_len(PAGE + 100).unwrap();
        assert!(contents(&file) == expected);
    }
}

#[test]
fn bytes_stored_past_the_end_do_not_come_back_when_the_file_grows() {
    let memory = tempfile::tempdir_in("/dev/shm").ok();
    let folders = [Some(disk_dir()), memory].into_iter().flatten();
    let over_host = folders.map(|folder| clean(&path_in(&folder), 2));
    let on_device = file(&pool(64), &device(16), 0);
    on_device.write_at(&[7; 2 * PAGE_SIZE], 0).unwrap();
    for file in over_host.chain([on_device]) {
        let ways: [Grow; 2] = [
            |file| file.set_len(2 * PAGE + 1),
            |file| file.write_at(&[0], 2 * PAGE),
        ];
        for grow in ways {
            file.set_len(PAGE + 100).unwrap();
            // A mapping of the last page allows stores to the whole page.
            let reach = Reach::Pages { end: 2 };
            let page = file.core().fault(1, FaultKind::Write, reach, 0).unwrap();
            assert!(page.is_dirty());
            let block = file.core().look_up_extent(1, 1, PAGE).unwrap().at.unwrap();
            file.device().write(block * PAGE + 50, &[9; 500]);
            drop(page);
            grow(&file).unwrap();
            let mut expected = [&[7; PAGE_SIZE + 50][..], &[9; 50]].concat();
            expected.resize(2 * PAGE_SIZE + 1, 0);
            assert!(contents(&file) == expected);
            file.write_at(&[7; 50], PAGE + 50).unwrap();
        }
    }
}

/// Otherwise a store there would be one past the end of the host's file, which raises a signal.
#[test]
fn what_another_process_cut_is_found_missing_after_a_cut_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = clean(&path, 8);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|other| other.set_len(4 * PAGE))
        .unwrap();
    let host = refusing(Call::SetLen, 1);
    file.set_len(2 * PAGE).unwrap_err();
    drop(host);
    assert_eq!(file.len(), 8 * PAGE);
    let read = file.read_at(&mut [0], 6 * PAGE).unwrap_err();
    let write = file.write_at(&[1], 6 * PAGE).unwrap_err();
    for error in [read, write] {
        let text = error.to_string();
        assert!(text.contains("now ends at 16,384"), "{text}");
    }
}

#[test]
fn a_store_to_what_the_host_forgot_asks_for_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = create(&path_in(&folder), DaxSetup::default());
    file.write_at(&[7; PAGE_SIZE], 0).unwrap();
    let (fails, rooms) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
    let (failing, seen) = (fails.clone(), rooms.clone());
    let _host = answer(move |call, _| match call {
        Call::Sync | Call::Touch if failing.get() => Err(Error::other("a write was lost")),
        Call::Room => {
            seen.set(seen.get() + 1);
            Ok(())
        }
        _ => Ok(()),
    });
    let asks = || {
        let before = rooms.get();
        file.write_at(&[1], 0).unwrap();
        rooms.get() - before
    };
    assert_eq!(asks(), 0, "it is dirty");
    file.sync_all().unwrap_err();
    assert_eq!(file.stats().dirty.0, 1);
    assert_eq!(asks(), 1, "the host was not reminded");
    fails.set(false);
    file.sync_all().unwrap();
    assert_eq!(asks(), 1, "it is clean");
    assert_eq!(asks(), 0, "it is dirty again");
}

/// Otherwise a store to a page that has become a hole could raise a signal.
#[test]
fn a_store_after_a_punch_that_failed_asks_for_room_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = create(&path, DaxSetup::default());
    file.write_at(&[7; 4 * PAGE_SIZE], 0).unwrap();
    let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let host = answer(move |call, bytes| match call {
        Call::Punch => {
            sys::punch(&other, bytes.start as u64, 2 * PAGE).unwrap();
            Err(Error::other("the other pages cannot be freed"))
        }
        _ => Ok(()),
    });
    file.punch(..).unwrap_err();
    drop(host);
    let expected = [[0; 2 * PAGE_SIZE], [7; 2 * PAGE_SIZE]].concat();
    assert!(contents(&file) == expected);
    assert_eq!(file.stats().dirty.0, 4);
    let full = without_room(PAGE_SIZE, || Ok(()));
    let error = file.write_at(&[1], PAGE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    let fault = file
        .core()
        .fault(1, FaultKind::Write, Reach::Pages { end: 2 }, 0);
    assert_eq!(fault.unwrap_err().kind(), ErrorKind::StorageFull);
    drop(full);
    file.sync_all().unwrap();
    assert_eq!(file.core().host_forgot.load(Ordering::SeqCst), 0);
    file.punch(..).unwrap();
    assert!(contents(&file).iter().all(|byte| *byte == 0));
}

#[test]
fn the_host_is_reminded_again_of_what_failed_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let file = create(&path_in(&folder), DaxSetup::default());
    file.write_at(&[7; PAGE_SIZE], 0).unwrap();
    let fails = Rc::new(Cell::new(true));
    let marks = Rc::new(RefCell::new(Vec::new()));
    let (failing, seen, core) = (fails.clone(), marks.clone(), file.core().clone());
    let _host = answer(move |call, _| match call {
        Call::Sync if failing.get() => Err(Error::other("a write was lost")),
        Call::Touch => {
            seen.borrow_mut()
                .push(core.host_forgot.load(Ordering::SeqCst));
            if failing.get() {
                core.host_failed(0, Error::other("another was lost"));
            }
            Ok(())
        }
        _ => Ok(()),
    });
    file.sync_all().unwrap_err();
    assert_eq!(
        *marks.borrow(),
        [1],
        "until it is reminded, it may have forgotten"
    );
    fails.set(false);
    let _ = file.sync_all();
    assert_eq!(marks.borrow().len(), 2, "the second failure was forgotten");
    assert_eq!(file.core().host_forgot.load(Ordering::SeqCst), 0);
}

#[test]
fn a_sync_in_the_midst_of_a_punch_takes_no_room_from_it() {
    let (first, last) = (10, 3 * PAGE_SIZE + 50);
    let folder = tempfile::tempdir().unwrap();
    let file = clean(&path_in(&folder), 4);
    let mut expected = contents(&file);
    let full = Rc::new(Cell::new(false));
    let (is_full, core) = (full.clone(), file.core().clone());
    let _host = answer(move |call, _| match call {
        Call::Room | Call::Allocate if is_full.get() => Err(ErrorKind::StorageFull.into()),
        _ => Ok(()),
    });
    let _there = failpoint::on("Clearable", move || {
        // Another thread could sync here, if it were not kept away.
        let is_kept_away = core.syncing.try_lock().is_none();
        if !is_kept_away {
            core.sync_bytes(0..4 * PAGE).unwrap();
        }
        full.set(true);
    });
    file.punch(first as u64..last as u64).unwrap();
    expected[first..last].fill(0);
    assert!(contents(&file) == expected);
}

#[test]
fn a_write_that_is_cut_short_leaves_no_room_behind_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = clean(&path, 2);
    let full = without_room(4 * PAGE_SIZE, || Ok(()));
    let error = file.write_at(&[9; 6 * PAGE_SIZE], 2 * PAGE).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    drop(full);
    assert_eq!(file.len(), 4 * PAGE);
    assert_eq!(path.metadata().unwrap().len(), 4 * PAGE);
    let mut expected = vec![7; 2 * PAGE_SIZE];
    expected.resize(4 * PAGE_SIZE, 9);
    assert!(contents(&file) == expected);
}

#[test]
fn a_write_that_is_cut_short_and_cannot_be_cut_back_leaves_the_file_in_order() {
    for refused in [2, 4] {
        let folder = tempfile::tempdir().unwrap();
        let path = path_in(&folder);
        let file = clean(&path, 2);
        let lengths = Cell::new(0);
        let host = answer(move |call, bytes| match call {
            Call::Room if bytes.contains(&(refused * PAGE_SIZE)) => {
                Err(Error::from_raw_os_error(libc::EFAULT))
            }
            Call::SetLen if lengths.replace(lengths.get() + 1) > 0 => Err(ErrorKind::Other.into()),
            _ => Ok(()),
        });
        file.write_at(&[9; 6 * PAGE_SIZE], 2 * PAGE).unwrap_err();
        drop(host);
        assert_eq!(path.metadata().unwrap().len(), 8 * PAGE, "not cut back");
        let mut expected = vec![7; 2 * PAGE_SIZE];
        expected.resize(refused * PAGE_SIZE, 9);
        assert!(contents(&file) == expected, "refused at {refused}");
        file.sync_all().unwrap();
        // The file is as long as if another program had lengthened it.
        file.set_len(6 * PAGE + 1).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 6 * PAGE + 1);
        expected.resize(6 * PAGE_SIZE + 1, 0);
        assert!(contents(&file) == expected);
    }
}

#[test]
fn the_end_of_a_guarded_file_that_another_process_cut_is_not_zeroed() {
    type Change = fn(&DaxFile) -> std::result::Result<(), DaxError>;
    let changes: [Change; 5] = [
        |file| file.set_len(2 * PAGE + 10),
        |file| file.set_len(4 * PAGE),
        |file| file.write_at(&[1], 4 * PAGE),
        |file| file.punch(2 * PAGE + 10..2 * PAGE + 20),
        |file| file.punch(PAGE..2 * PAGE + 20),
    ];
    for change in changes {
        let folder = tempfile::tempdir().unwrap();
        let path = path_in(&folder);
        let file = create_guarded(&path);
        // The pages are dirty, so the host is not asked for room.
        file.write_at(&[7; 2 * PAGE_SIZE + 100], 0).unwrap();
        cut(&path, PAGE);
        let text = change(&file).unwrap_err().to_string();
        assert!(text.contains("now ends at 4,096"), "{text}");
        assert_eq!(path.metadata().unwrap().len(), PAGE, "{text}");
        assert_eq!(file.len(), 2 * PAGE + 100);
    }
}

#[test]
fn the_end_of_a_guarded_file_is_zeroed() {
    let folder = tempfile::tempdir().unwrap();
    let path = path_in(&folder);
    let file = create_guarded(&path);
    file.write_at(&[7; 2 * PAGE_SIZE], 0).unwrap();
    let mut expected = contents(&file);
    file.punch(10..20).unwrap();
    expected[10..20].fill(0);
    file.set_len(PAGE + 100).unwrap();
    assert_eq!(path.metadata().unwrap().len(), PAGE + 100);
    // Another process lengthens the host's file.
    let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    other.write_all_at(&[9; 50], PAGE + 100).unwrap();
    file.write_at(&[1], 3 * PAGE).unwrap();
    expected.truncate(PAGE_SIZE + 100);
    expected.resize(3 * PAGE_SIZE, 0);
    expected.push(1);
    assert!(contents(&file) == expected);
    assert!(std::fs::read(&path).unwrap() == expected);
}
