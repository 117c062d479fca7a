//! A WAL with several connections and threads of one process.

use std::sync::atomic::{AtomicBool, Ordering};

use innerspace::Memory;
use innerspace_sqlite::Options;

use crate::common::{collect_log, create, open, set_journal, transact, try_open, verify};

#[test]
fn threads_read_and_write_by_connections_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let first = open(&path);
    set_journal(&first, "WAL");
    first.pragma_update(None, "wal_autocheckpoint", 20).unwrap();
    create(&first);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|number| {
                let path = &path;
                scope.spawn(move || {
                    let connection = open(path);
                    connection
                        .pragma_update(None, "wal_autocheckpoint", 20)
                        .unwrap();
                    for _ in 0..60 {
                        transact(&connection, &format!("writer {number}")).unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let connection = open(&path);
                connection
                    .pragma_update(None, "mmap_size", 8 << 20)
                    .unwrap();
                let mut last = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let now = verify(&connection);
                    assert!(now >= last, "a transaction is gone");
                    last = now;
                }
            });
        }
        // The readers end even if a writer fails.
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(verify(&first), 180);
}

/// A reader's snapshot stays as it is while others write and copy the WAL to the database.
#[test]
fn a_snapshot_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let writer = open(&path);
    set_journal(&writer, "WAL");
    create(&writer);
    for _ in 0..20 {
        transact(&writer, "before").unwrap();
    }
    let reader = open(&path);
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(verify(&reader), 20);
    for _ in 0..20 {
        transact(&writer, "after").unwrap();
        writer
            .execute_batch("PRAGMA wal_checkpoint(PASSIVE)")
            .unwrap();
        assert_eq!(verify(&reader), 20);
    }
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(verify(&reader), 40);
}

#[test]
fn a_read_only_connection_reads_a_wal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let writer = open(&path);
    set_journal(&writer, "WAL");
    create(&writer);
    transact(&writer, "test").unwrap();
    let reader = try_open(&path, "innerspace", "&mode=ro").unwrap();
    assert_eq!(verify(&reader), 1);
    transact(&writer, "test").unwrap();
    assert_eq!(verify(&reader), 2);
    assert!(reader.execute_batch("DELETE FROM log").is_err());
}

/// A process that has the database for itself drops no block, though its checkpoints change the
/// database and its writers start the WAL over.
#[test]
fn a_process_alone_reads_each_block_once() {
    collect_log();
    let memory = Memory::with_limit(16 << 20).unwrap();
    let _vfs = Options::new()
        .name("alone")
        .memory(&memory)
        .register()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let connection = try_open(&folder.path().join("data.db"), "alone", "").unwrap();
    connection.pragma_update(None, "cache_size", 10).unwrap();
    set_journal(&connection, "WAL");
    let autocheckpoint = |pages| {
        connection
            .pragma_update(None, "wal_autocheckpoint", pages)
            .unwrap();
    };
    autocheckpoint(10);
    let table = "CREATE TABLE t(id INTEGER PRIMARY KEY, value INTEGER, filling BLOB);
         WITH RECURSIVE c(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM c WHERE i < 300)
         INSERT INTO t SELECT i, 1, zeroblob(3000) FROM c;";
    connection.execute_batch(table).unwrap();
    // More pages than SQLite's own cache has: a transaction writes some, and then reads others.
    let update = "UPDATE t SET value = -value";
    connection.execute_batch(update).unwrap();
    let counted = || {
        let file = memory.stats().files.swap_remove(0);
        (file.store_reads, file.filled)
    };
    let before = counted();
    for round in 0..30 {
        // With 10, each transaction finds the whole WAL copied, and starts it over.
        autocheckpoint(if round < 20 { 10 } else { 40 });
        connection.execute_batch(update).unwrap();
        let sum = "SELECT sum(value) FROM t";
        let sum = connection.query_row(sum, [], |row| row.get::<_, i64>(0));
        assert_eq!(sum.map(i64::abs), Ok(300));
    }
    assert!(before.1 > 0, "the cache was not used");
    assert_eq!(counted(), before);
}
