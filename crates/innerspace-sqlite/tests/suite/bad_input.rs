//! Bad input, and disks that are full or fail: SQLite's ordinary error, and a line in its log that
//! says what to do.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use innerspace::Memory;
use innerspace::store::faulty::{Failure, Fault, OperationKind, Rule};
use innerspace_sqlite::{Options, RegisterError};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::common::{self, child, create, is_logged, open, role, transact, try_open, verify};
use crate::disks::{PowerDisk, register};

fn code<T: std::fmt::Debug>(result: rusqlite::Result<T>) -> ErrorCode {
    result.unwrap_err().sqlite_error_code().unwrap()
}

#[test]
fn options_are_checked() {
    common::vfs();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let refused = [
        ("&limits=1MiB", "unknown option \"limits\""),
        ("&limit=much", "limit=much is no size"),
        ("&limit=1MiB", "leave `limit` out"),
        ("&block=5000", "block size 5000"),
        ("&block=1GiB", "block size"),
        ("&group=", "has no name"),
        ("&group_limit=1MiB", "name it by group="),
        ("&group=small&group_limit=1", "group=small"),
    ];
    for (options, reason) in refused {
        assert_eq!(
            code(try_open(&path, "innerspace", options)),
            ErrorCode::CannotOpen,
            "{options}"
        );
        assert!(is_logged(&["(14)", reason]), "{reason}");
    }
    let first = try_open(
        &path,
        "innerspace",
        "&block=16KiB&group=one&group_limit=512KiB",
    )
    .unwrap();
    create(&first);
    for (options, reason) in [
        ("&block=4KiB", "is open with block=16384"),
        ("&group=two", "is open in group \"one\""),
        ("&group=one&group_limit=1MiB", "has another limit"),
    ] {
        assert_eq!(
            code(try_open(&path, "innerspace", options)),
            ErrorCode::CannotOpen,
            "{options}"
        );
        assert!(is_logged(&["(14)", reason]), "{reason}");
    }
    assert!(try_open(&path, "innerspace", "&group=one&group_limit=512KiB").is_ok());
}

#[test]
fn what_is_no_database_is_refused() {
    common::vfs();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text.db");
    std::fs::write(&path, "This is a text, and no database.\n".repeat(1000)).unwrap();
    let connection = try_open(&path, "innerspace", "").unwrap();
    let read = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
    assert_eq!(code(read), ErrorCode::NotADatabase);
    assert!(is_logged(&["(26)", "text.db", "check the name"]));
    drop(connection);

    assert_eq!(
        code(try_open(folder.path(), "innerspace", "")),
        ErrorCode::CannotOpen
    );
    assert!(is_logged(&["(14)", "cannot open", "name a file in it"]));
    let missing = folder.path().join("missing/data.db");
    assert_eq!(
        code(try_open(&missing, "innerspace", "")),
        ErrorCode::CannotOpen
    );
    assert!(is_logged(&["missing/data.db", "check the folder"]));
    let missing = folder.path().join("missing.db");
    assert_eq!(
        code(try_open(&missing, "innerspace", "&mode=ro")),
        ErrorCode::CannotOpen
    );
}

/// The same codes as by SQLite's own VFS, wherever that meets the same.
#[test]
fn codes_are_those_of_sqlites_own_vfs() {
    common::vfs();
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.db");
    std::fs::write(&text, "no database").unwrap();
    let whole = folder.path().join("whole.db");
    create(&open(&whole));
    let cut = folder.path().join("cut.db");
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2 + 100]).unwrap();
    let socket = folder.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(folder.path().join("nowhere/x"), &link).unwrap();
    let long = folder.path().join("x".repeat(300));
    let missing = folder.path().join("missing.db");
    for (path, options) in [
        (&text, ""),
        (&cut, ""),
        (&folder.path().to_owned(), ""),
        (&folder.path().join("missing/data.db"), ""),
        (&missing, "&mode=ro"),
        (&missing, "&mode=rw"),
        (&whole.join("data.db"), ""),
        (&socket, ""),
        (&link, ""),
        (&long, ""),
        (&whole, "&mode=ro"),
    ] {
        let code_by = |vfs| {
            let used = try_open(path, vfs, options).and_then(|connection| {
                connection.query_row("PRAGMA integrity_check", [], |_| Ok(()))?;
                connection.execute_batch("CREATE TABLE other(x)")
            });
            extended(used)
        };
        assert_eq!(code_by("innerspace"), code_by("unix"), "{path:?} {options}");
    }
}

fn extended<T: std::fmt::Debug>(result: rusqlite::Result<T>) -> i32 {
    result.unwrap_err().sqlite_error().unwrap().extended_code
}

#[test]
fn a_folder_that_is_read_only_can_be_read() {
    let test = "bad_input::a_folder_that_is_read_only_can_be_read";
    if let Some((_, folder)) = role() {
        common::vfs();
        let connection = try_open(&folder.join("data.db"), "innerspace", "").unwrap();
        assert_eq!(verify(&connection), 3);
        assert_eq!(code(transact(&connection, "test")), ErrorCode::ReadOnly);
        assert!(is_logged(&[
            "(8)",
            "data.db can only be read",
            "permissions"
        ]));
        // The file may be written, and its journal cannot be made.
        for name in ["written.db", "wal.db"] {
            let write = |vfs| {
                let connection = try_open(&folder.join(name), vfs, "").unwrap();
                extended(transact(&connection, "test"))
            };
            assert_eq!(write("innerspace"), write("unix"), "{name}");
        }
        assert!(is_logged(&["(1544)", "written.db-journal", "folder"]));
        assert!(is_logged(&["(1544)", "wal.db-wal", "folder"]));
        let new = try_open(&folder.join("new.db"), "innerspace", "");
        assert_eq!(code(new), ErrorCode::CannotOpen);
        assert!(is_logged(&["new.db", "check the permissions"]));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let connection = open(&path);
    create(&connection);
    for _ in 0..3 {
        transact(&connection, "test").unwrap();
    }
    drop(connection);
    for (name, mode) in [("written.db", "DELETE"), ("wal.db", "WAL")] {
        let connection = open(&folder.path().join(name));
        common::set_journal(&connection, mode);
        create(&connection);
    }
    let set = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&path, 0o444);
    for name in ["written.db", "wal.db"] {
        set(&folder.path().join(name), 0o666);
    }
    set(folder.path(), 0o555);
    let mut command = child(test, "read", folder.path());
    if is_root() {
        // Permissions do not bind root, so the child is somebody else.
        command.uid(65_534).gid(65_534);
    }
    let status = command.status();
    set(folder.path(), 0o755);
    match status {
        Ok(status) => assert!(status.success()),
        // The test's binary is where that somebody may not go.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[test]
fn a_memory_that_is_too_small_is_refused() {
    let error = Options::new()
        .name("tiny")
        .limit(4096)
        .register()
        .unwrap_err();
    assert!(matches!(error, RegisterError::Memory(_)), "{error}");
    common::vfs();
    let error = Options::new().register().unwrap_err();
    assert!(matches!(error, RegisterError::NameTaken { .. }), "{error}");
    assert!(error.to_string().contains("choose another name"));
}

/// The smallest memory there is: blocks that find no room are read past it.
#[test]
fn the_smallest_memory_works() {
    common::collect_log();
    let smallest = innerspace::MINIMUM_LIMIT;
    Options::new()
        .name("smallest")
        .limit(smallest)
        .register()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    for mode in ["DELETE", "WAL"] {
        let path = folder.path().join(mode);
        let connection = try_open(&path, "smallest", "").unwrap();
        common::set_journal(&connection, mode);
        connection
            .execute_batch("PRAGMA cache_size = 10; PRAGMA mmap_size = 1000000")
            .unwrap();
        create(&connection);
        for n in 1..=40 {
            assert_eq!(transact(&connection, "test").unwrap(), n);
        }
        assert_eq!(verify(&connection), 40);
    }
}

/// The disk is full at each write of a transaction in turn. The transaction fails as a whole, and
/// once there is room the database works on.
#[test]
fn a_full_disk_is_an_error_of_the_transaction() {
    for mode in ["DELETE", "WAL"] {
        let memory = Memory::with_limit(2 << 20).unwrap();
        let disk = PowerDisk::default();
        let vfs = format!("full {mode}");
        register(&vfs, &disk, &memory);
        let flags = OpenFlags::default();
        let connection =
            Connection::open_with_flags_and_vfs("data.db", flags, vfs.as_str()).unwrap();
        connection.execute_batch("PRAGMA cache_size = 10").unwrap();
        common::set_journal(&connection, mode);
        create(&connection);
        let mut last = 0;
        let mut failed = 0;
        for n in 1..30 {
            let names = ["data.db", "data.db-journal", "data.db-wal"];
            for file in names.iter().filter_map(|name| disk.file(name)) {
                let full = Rule::new(Fault::Fail(Failure::NoSpace));
                file.add(full.on(&[OperationKind::Write]).nth(n).forever());
            }
            match transact(&connection, "test") {
                Ok(number) => last = number,
                Err(error) => {
                    failed += 1;
                    assert_eq!(
                        error.sqlite_error_code(),
                        Some(ErrorCode::DiskFull),
                        "{error}"
                    );
                    assert!(is_logged(&[
                        "(13)",
                        "cannot write",
                        "make room on the disk"
                    ]));
                }
            }
            names
                .iter()
                .filter_map(|name| disk.file(name))
                .for_each(|file| file.heal());
            assert_eq!(verify(&connection), last);
        }
        assert!(failed > 0);
        assert_eq!(transact(&connection, "test").unwrap(), last + 1);
    }
}

#[test]
fn a_failing_disk_is_an_error_of_the_call() {
    let memory = Memory::with_limit(2 << 20).unwrap();
    let disk = PowerDisk::default();
    register("failing", &disk, &memory);
    let flags = OpenFlags::default();
    let open = || Connection::open_with_flags_and_vfs("data.db", flags, "failing").unwrap();
    let connection = open();
    create(&connection);
    transact(&connection, "test").unwrap();
    let file = disk.file("data.db").unwrap();
    file.add(Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::Sync]));
    let synced = transact(&connection, "test");
    assert_eq!(extended(synced), rusqlite::ffi::SQLITE_IOERR_FSYNC);
    assert!(is_logged(&["cannot sync data.db", "input/output error"]));
    assert_eq!(verify(&connection), 1);
    drop(connection);

    file.add(
        Rule::new(Fault::Fail(Failure::Io))
            .on(&[OperationKind::Read])
            .within(4096..u64::MAX)
            .forever(),
    );
    let connection = open();
    let read = connection.query_row("SELECT sum(balance) FROM accounts", [], |_| Ok(()));
    assert_eq!(extended(read), rusqlite::ffi::SQLITE_IOERR_READ);
    assert!(is_logged(&[
        "(266)",
        "cannot read data.db",
        "input/output error"
    ]));
    file.heal();
    assert_eq!(verify(&connection), 1);

    // Each other call that a store can fail.
    let shorten = "CREATE TABLE b AS SELECT zeroblob(100000); DROP TABLE b; VACUUM";
    for (failing, failure, sql, code) in [
        (
            OperationKind::Write,
            Failure::Io,
            "CREATE TABLE a(x)",
            rusqlite::ffi::SQLITE_IOERR_WRITE,
        ),
        (
            OperationKind::Write,
            Failure::NoSpace,
            "CREATE TABLE a(x)",
            rusqlite::ffi::SQLITE_FULL,
        ),
        (
            OperationKind::SetLen,
            Failure::Io,
            shorten,
            rusqlite::ffi::SQLITE_IOERR_TRUNCATE,
        ),
        (
            OperationKind::Len,
            Failure::Io,
            "CREATE TABLE a(x)",
            rusqlite::ffi::SQLITE_IOERR_FSTAT,
        ),
    ] {
        file.add(Rule::new(Fault::Fail(failure)).on(&[failing]).forever());
        let done = open().execute_batch(sql);
        assert_eq!(extended(done), code, "{failing:?}");
        assert!(is_logged(&[&format!("({code})"), "data.db"]), "{failing:?}");
        file.heal();
        assert_eq!(verify(&open()), 1, "{failing:?}");
    }
}
