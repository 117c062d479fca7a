//! The extension, loaded into a process that has no VFS of ours.

use std::path::PathBuf;

use rusqlite::{Connection, LoadExtensionGuard, OpenFlags};

use crate::common::{child, collect_log, create, is_logged, role, transact, try_open, verify};

/// The extension, which cargo puts beside the test.
fn extension() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.with_file_name("libinnerspace_sqlite.so")
}

fn load(connection: &Connection) -> rusqlite::Result<()> {
    // SAFETY: the extension is ours.
    unsafe {
        let _guard = LoadExtensionGuard::new(connection)?;
        connection.load_extension(extension(), None::<&str>)
    }
}

#[test]
fn the_extension_is_loaded_and_used() {
    let test = "extension::the_extension_is_loaded_and_used";
    let Some((_, folder)) = role() else {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            child(test, "load", folder.path())
                .status()
                .unwrap()
                .success()
        );
        return;
    };
    collect_log();
    let path = folder.join("data.db");
    let loader = Connection::open_in_memory().unwrap();
    load(&loader).unwrap();

    // The first database sets the limit for all.
    let bad = try_open(&path, "innerspace", "&limit=4KiB");
    assert!(bad.is_err() && is_logged(&["(14)", "limit=4096", "choose another"]));
    let first = try_open(&path, "innerspace", "&limit=2MiB").unwrap();
    create(&first);
    let other = folder.join("other.db");
    let refused = try_open(&other, "innerspace", "&limit=3MiB");
    assert!(refused.is_err() && is_logged(&["limit=3145728", "one memory", "leave `limit` out"]));
    let second = try_open(
        &other,
        "innerspace",
        "&limit=2MiB&group=tenant&group_limit=512KiB",
    )
    .unwrap();
    create(&second);
    for n in 1..=30 {
        assert_eq!(transact(&first, "test").unwrap(), n);
        assert_eq!(transact(&second, "test").unwrap(), n);
    }
    assert_eq!((verify(&first), verify(&second)), (30, 30));

    // Loaded again, it gives the connection its functions, and leaves the memory as it is.
    let again = Connection::open_in_memory().unwrap();
    load(&again).unwrap();
    let stats: String = again
        .query_row("SELECT innerspace_stats()", [], |row| row.get(0))
        .unwrap();
    assert!(stats.contains("2.0 MiB"), "{stats}");
    assert_eq!(verify(&first), 30);
    drop(loader);
    assert_eq!(verify(&try_open(&path, "innerspace", "").unwrap()), 30);
}

#[test]
fn a_vfs_of_the_same_name_is_not_replaced() {
    crate::common::vfs();
    let connection = Connection::open_in_memory().unwrap();
    let error = load(&connection).unwrap_err();
    assert!(error.to_string().contains("registered already"), "{error}");
    let flags = OpenFlags::default();
    assert!(Connection::open_with_flags_and_vfs(":memory:", flags, "innerspace").is_ok());
}
