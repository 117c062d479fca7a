//! Every journal mode, every level of sync, every lock mode, and what the file is for others.

use crate::common::{create, open, set_journal, transact, verify, vfs};

fn work(mode: &str, settings: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let connection = open(&path);
    set_journal(&connection, mode);
    connection.execute_batch(settings).unwrap();
    create(&connection);
    for n in 1..=120 {
        assert_eq!(transact(&connection, "test").unwrap(), n);
        if n % 40 == 0 {
            // A transaction that is rolled back after its pages went to the file.
            connection
                .execute_batch("BEGIN; UPDATE accounts SET balance = 0, filling = NULL")
                .unwrap();
            match mode {
                "OFF" => connection
                    .execute_batch("ROLLBACK; UPDATE accounts SET balance = 100")
                    .unwrap(),
                _ => connection.execute_batch("ROLLBACK").unwrap(),
            }
        }
    }
    if mode != "OFF" {
        assert_eq!(verify(&connection), 120);
    }
    let other = open(&path);
    assert!(
        other
            .query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0))
            .is_ok()
            || settings.contains("EXCLUSIVE")
    );
    drop(other);
    connection.execute_batch("VACUUM").unwrap();
    drop(connection);
    if mode != "OFF" {
        assert_eq!(verify(&open(&path)), 120);
        // SQLite's own VFS has no connection to the file here, so it may look at it.
        assert_eq!(verify(&crate::common::open_unix(&path)), 120);
    }
    assert!(vfs().memory().root_group().usage() <= crate::common::LIMIT);
}

#[test]
fn all_modes_keep_transactions() {
    for mode in ["DELETE", "TRUNCATE", "PERSIST", "MEMORY", "OFF", "WAL"] {
        work(mode, "");
    }
}

#[test]
fn all_levels_of_sync_keep_transactions() {
    for mode in ["DELETE", "WAL"] {
        for level in ["OFF", "NORMAL", "FULL", "EXTRA"] {
            work(mode, &format!("PRAGMA synchronous = {level}"));
        }
        work(
            mode,
            "PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1",
        );
    }
}

#[test]
fn exclusive_mode_keeps_transactions() {
    for mode in ["DELETE", "TRUNCATE", "WAL"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let connection = open(&path);
        connection
            .execute_batch("PRAGMA locking_mode = EXCLUSIVE")
            .unwrap();
        set_journal(&connection, mode);
        create(&connection);
        for n in 1..=50 {
            assert_eq!(transact(&connection, "test").unwrap(), n);
        }
        drop(connection);
        assert_eq!(verify(&open(&path)), 50);
    }
}

#[test]
fn all_sizes_of_pages_and_blocks_fit_together() {
    vfs();
    for page in [512, 1024, 4096, 8192, 65_536] {
        for block in ["4KiB", "16KiB", "64KiB"] {
            for mode in ["DELETE", "WAL"] {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("data.db");
                let options = format!("&block={block}");
                let connection = crate::common::try_open(&path, "innerspace", &options).unwrap();
                connection.pragma_update(None, "page_size", page).unwrap();
                connection.pragma_update(None, "cache_size", 10).unwrap();
                connection
                    .pragma_update(None, "mmap_size", 1 << 20)
                    .unwrap();
                set_journal(&connection, mode);
                create(&connection);
                for n in 1..=30 {
                    assert_eq!(transact(&connection, "test").unwrap(), n);
                }
                connection
                    .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                    .unwrap();
                assert_eq!(verify(&connection), 30);
            }
        }
    }
}

/// Temporary files: tables, indexes that are sorted, and statements that are undone.
#[test]
fn temporary_files_are_in_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let connection = open(&folder.path().join("data.db"));
    connection
        .execute_batch(
            "PRAGMA temp_store = FILE;
             CREATE TEMP TABLE many AS
             WITH RECURSIVE c(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM c WHERE i < 30000)
             SELECT i, hex(randomblob(60)) AS text FROM c;
             CREATE TABLE sorted AS SELECT * FROM many ORDER BY text;
             CREATE INDEX by_text ON sorted(text);",
        )
        .unwrap();
    let count = |sql| {
        connection
            .query_row(sql, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    assert_eq!(count("SELECT count(*) FROM many"), 30_000);
    assert_eq!(count("SELECT count(DISTINCT text) FROM sorted"), 30_000);
    assert!(vfs().memory().root_group().usage() <= crate::common::LIMIT);
}
