//! Tests of opening files: refusals, and locks that keep others out.
#![cfg(not(miri))]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use super::file::file_with;
use super::*;
use crate::sys::file::disk_dir;

#[test]
fn two_names_of_one_file_have_one_identity() {
    let (dir, path) = file_with(b"abc");
    let link = dir.path().join("link.bin");
    std::fs::hard_link(&path, &link).unwrap();
    let other = dir.path().join("other.bin");
    std::fs::write(&other, b"abc").unwrap();
    let open = |path| FileStore::open(path).unwrap().identity();
    if cfg!(unix) {
        assert!(open(&path).is_some());
        assert_ne!(open(&path), open(&other));
    }
    assert_eq!(open(&path), open(&link));
    assert_eq!(FileStore::identify(&link).unwrap(), open(&path));
    assert_ne!(open(&path), MemoryStore::new().identity());
}

/// The name has bytes that are not text, a line end, and a sequence that clears a terminal.
#[test]
#[cfg(unix)]
fn an_odd_name_is_shown_in_one_line_of_plain_text() {
    use std::os::unix::ffi::OsStrExt;
    let dir = disk_dir();
    let path = dir
        .path()
        .join(std::ffi::OsStr::from_bytes(b"\xff a\nb\x1b[2Jc"));
    let text = format!("{}/\u{fffd} a\\nb\\u{{1b}}[2Jc", dir.path().display());
    let missing = FileStore::open(&path).unwrap_err();
    assert_eq!(missing.to_string(), format!("{text}: no such file"));
    let store = FileStore::create(&path).unwrap();
    assert_eq!(store.name(), path.to_string_lossy(), "as it was given");
    assert_eq!(crate::store::shown_name(&store.name()), text);
}

#[test]
#[cfg(target_os = "linux")]
fn a_child_of_fork_leaves_its_parent_the_lock() {
    let (_dir, path) = file_with(b"abc");
    let opened = Opened::begin(&path, FileAccess::ReadWrite, Create::Never).unwrap();
    // The child does no more than this, because it may neither allocate nor free.
    let mut file = Some(opened.lock_any().unwrap().file);
    assert!(crate::sys::process::tests::in_child(|| {
        file.take();
        true
    }));
    let other = FileStore::open_rw(&path);
    assert!(
        matches!(other, Err(FileOpenError::InUse { .. })),
        "{other:?}"
    );
    drop(file);
    FileStore::open_rw(&path).unwrap();
}

#[test]
fn each_thing_that_cannot_be_opened_has_its_own_error() {
    let (dir, path) = file_with(b"abc");
    let text = |result: Result<FileStore, FileOpenError>| {
        let error = io::Error::from(result.unwrap_err());
        (
            error.kind(),
            error
                .to_string()
                .replace(&dir.path().display().to_string(), "DIR"),
        )
    };
    let missing = dir.path().join("missing.bin");
    let no_folder = dir.path().join("nowhere/data.bin");
    assert_eq!(
        text(FileStore::open(&missing)),
        (
            io::ErrorKind::NotFound,
            "DIR/missing.bin: no such file".to_owned()
        )
    );
    assert_eq!(
        text(FileStore::create(&no_folder)),
        (
            io::ErrorKind::NotFound,
            "DIR/nowhere/data.bin: the folder to make it in does not exist".to_owned()
        )
    );
    for access in [FileAccess::ReadOnly, FileAccess::ReadWrite] {
        let (kind, message) = text(FileOptions::new().access(access).open(dir.path()));
        assert_eq!(kind, io::ErrorKind::IsADirectory);
        assert_eq!(message, "DIR: is a directory, not a file");
    }
    assert_eq!(
        text(FileOptions::new().create_new(&path)),
        (
            io::ErrorKind::AlreadyExists,
            "DIR/data.bin: exists already".to_owned()
        )
    );
    assert!(!missing.exists());
    assert_eq!(std::fs::read(&path).unwrap(), b"abc");
}

#[cfg(unix)]
#[test]
fn a_fifo_is_refused_without_waiting_for_its_other_end() {
    let dir = disk_dir();
    let fifo = dir.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    for access in [FileAccess::ReadOnly, FileAccess::ReadWrite] {
        let error = FileOptions::new().access(access).open(&fifo).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("/fifo: is a FIFO, not a regular file"),
            "{error}"
        );
    }
    let error = FileStore::open_rw("/dev/null").unwrap_err();
    assert_eq!(
        error.to_string(),
        "/dev/null: is a character device, not a regular file"
    );
}

#[cfg(unix)]
#[test]
fn an_unreadable_file_is_refused_by_name() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, path) = file_with(b"abc");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
    if File::open(&path).is_ok() {
        eprintln!("left out: permissions do not bind this user");
        return;
    }
    let error = FileStore::open(&path).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("data.bin: no permission to read it"),
        "{error}"
    );
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).unwrap();
    let error = FileStore::open_rw(&path).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("data.bin: no permission to write it"),
        "{error}"
    );
}

#[test]
fn a_read_only_store_takes_no_writes() {
    let (_dir, path) = file_with(b"abc");
    let store = FileStore::open(&path).unwrap();
    assert!(!store.writable());
    let results = [
        store.write_at(b"x", 0).map(drop),
        store.write_vectored_at(&[IoSlice::new(b"x")], 0).map(drop),
        store.set_len(0),
        store.punch(0, 1),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::ReadOnly);
        assert_eq!(error.to_string(), "opened read-only");
    }
    assert_eq!(read_all(&store), b"abc");
    assert_eq!(store.name(), path.display().to_string());
}

#[test]
fn a_second_writer_is_refused_and_changes_nothing() {
    let (_dir, path) = file_with(b"abc");
    let store = FileStore::open_rw(&path).unwrap();
    let in_use = |result: Result<FileStore, FileOpenError>| match result.unwrap_err() {
        FileOpenError::InUse { holder, .. } => holder,
        error => panic!("{error}"),
    };
    // An unknown holder is not called another process.
    assert!(!LockHolder::Unknown.to_string().contains("another"));
    let known = if cfg!(target_os = "linux") {
        LockHolder::ThisProcess
    } else {
        LockHolder::Unknown
    };
    let holder = in_use(FileStore::open_rw(&path));
    assert!(holder == known || holder == LockHolder::Unknown);
    in_use(FileStore::create(&path));
    assert_eq!(
        std::fs::read(&path).unwrap(),
        b"abc",
        "create does not empty a file in use"
    );

    let reader = FileStore::open(&path).unwrap();
    store.write_at(b"X", 0).unwrap();
    assert_eq!(read_all(&reader), b"Xbc");
    drop(store);
    FileStore::create(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

/// The other process of the next test, and no test by itself.
#[test]
fn other_process_that_holds_a_lock() {
    let Some(path) = std::env::var_os("INNERSPACE_TEST_LOCK_FILE") else {
        return;
    };
    let _store = FileStore::open_rw(path).unwrap();
    println!("\nlocked");
    io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_file_that_another_process_writes_is_in_use_by_its_pid() {
    let (_dir, path) = file_with(b"abc");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "store::tests::file_opening::other_process_that_holds_a_lock",
            "--nocapture",
        ])
        .env("INNERSPACE_TEST_LOCK_FILE", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap() == "locked"),
        "the child never locked the file"
    );
    let error = FileStore::open_rw(&path).unwrap_err();
    let message = error.to_string();
    let id = child.id();
    let with_pid =
        format!("data.bin is in use by another process (pid {id}); close it there first");
    // The pid is missing in another pid namespace, and where there is no /proc/locks.
    let without = "data.bin is in use by some process: the system does not say which; close it \
                   there first";
    assert!(
        message.ends_with(&with_pid) || message.ends_with(without),
        "{message}"
    );

    writeln!(child.stdin.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    FileStore::open_rw(&path).unwrap();
}
