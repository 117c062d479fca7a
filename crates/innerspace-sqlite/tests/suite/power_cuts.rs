//! The power is cut before each change of a workload, in turn. Afterwards the database is whole,
//! and has every committed transaction.

use innerspace::Memory;
use innerspace::store::faulty::Unsynced;
use rusqlite::Connection;

use crate::common::{create, set_journal, transact, verify};
use crate::disks::{PowerDisk, cut_at_each, register};

const TRANSACTIONS: i64 = 4;

fn open(vfs: &str, settings: &str) -> rusqlite::Result<Connection> {
    let flags = rusqlite::OpenFlags::default();
    let connection = Connection::open_with_flags_and_vfs("data.db", flags, vfs)?;
    connection.execute_batch("PRAGMA cache_size = 10")?;
    connection.execute_batch(settings)?;
    Ok(connection)
}

/// Makes the workload with a power cut before the `n`th change. Returns whether it got so far.
fn cut(
    vfs: &str,
    base: &PowerDisk,
    settings: &str,
    n: u64,
    unsynced: Unsynced,
    memory: &Memory,
) -> bool {
    let disk = base.copy();
    let vfs = format!("{vfs} {n} {unsynced:?}");
    register(&vfs, &disk, memory);
    let mut committed = 0;
    if let Ok(connection) = open(&vfs, settings) {
        disk.cut_at(n, unsynced);
        while committed < TRANSACTIONS {
            match transact(&connection, "test") {
                Ok(number) => committed = number,
                Err(_) => break,
            }
        }
    }
    let was_off = disk.power_on();
    let connection = open(&vfs, settings).unwrap();
    let last = verify(&connection);
    assert!(
        (committed..=committed + 1).contains(&last),
        "cut at {n}, {unsynced:?}: {committed} were committed, and there are {last}"
    );
    // The database works on.
    assert_eq!(transact(&connection, "after").unwrap(), last + 1);
    assert_eq!(verify(&connection), last + 1);
    was_off
}

fn cut_everywhere(mode: &str, settings: &str) {
    let memory = Memory::with_limit(2 << 20).unwrap();
    let vfs = format!("power {mode} {settings}");
    let base = PowerDisk::default();
    register(&vfs, &base, &memory);
    let connection = open(&vfs, settings).unwrap();
    set_journal(&connection, mode);
    create(&connection);
    // The base has the WAL of an open database too.
    let start = base.copy();
    drop(connection);
    let start = match mode {
        "WAL" => start,
        _ => base,
    };
    let n = cut_at_each(|n, fate| cut(&vfs, &start, settings, n, fate, &memory));
    assert!(n > 20, "the workload makes changes: {n}");
}

#[test]
fn delete_mode_survives_power_cuts() {
    // EXTRA: a deleted journal must not come back, or the last transaction would be undone.
    cut_everywhere(
        "DELETE",
        "PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA",
    );
}

#[test]
fn truncate_mode_survives_power_cuts() {
    cut_everywhere(
        "TRUNCATE",
        "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = FULL",
    );
}

#[test]
fn persist_mode_survives_power_cuts() {
    cut_everywhere(
        "PERSIST",
        "PRAGMA journal_mode = PERSIST; PRAGMA synchronous = FULL",
    );
}

#[test]
fn wal_mode_survives_power_cuts() {
    cut_everywhere(
        "WAL",
        "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 5",
    );
}
