//! A WAL with several connections and threads of one process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{create, open, set_journal, transact, verify};

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
    let reader = crate::common::try_open(&path, "innerspace", "&mode=ro").unwrap();
    assert_eq!(verify(&reader), 1);
    transact(&writer, "test").unwrap();
    assert_eq!(verify(&reader), 2);
    assert!(reader.execute_batch("DELETE FROM log").is_err());
}
