//! A branch is written back whole or not at all, wherever the power is cut and whatever fails; and
//! only the pages that it has changed are written.

use innerspace::Memory;
use innerspace::store::faulty::{Failure, Fault, OperationKind, Rule, Unsynced};
use rusqlite::Connection;

use crate::common::{create, is_logged, open_unix, set_journal, transact, verify};
use crate::disks::{PowerDisk, cut_at_each, register};

const BEFORE: i64 = 3;
const IN_BRANCH: i64 = 4;

fn open(path: &str, vfs: &str) -> rusqlite::Result<Connection> {
    let flags = rusqlite::OpenFlags::default();
    let connection = Connection::open_with_flags_and_vfs(path, flags, vfs)?;
    connection.execute_batch("PRAGMA cache_size = 10")?;
    Ok(connection)
}

fn call(connection: &Connection, function: &str, name: &str) -> rusqlite::Result<String> {
    let sql = format!("SELECT innerspace_{function}(?)");
    connection.query_row(&sql, [name], |row| row.get(0))
}

/// Makes a database with the workload, and with a table that branches drop.
fn base(vfs: &str, mode: &str, settings: &str, memory: &Memory) -> PowerDisk {
    let disk = PowerDisk::default();
    register(vfs, &disk, memory);
    let connection = open("data.db", vfs).unwrap();
    connection.execute_batch(settings).unwrap();
    set_journal(&connection, mode);
    create(&connection);
    let dropped = "CREATE TABLE dropped(x); INSERT INTO dropped VALUES (zeroblob(30000))";
    connection.execute_batch(dropped).unwrap();
    for _ in 0..BEFORE {
        transact(&connection, "parent").unwrap();
    }
    // With the WAL of an open database.
    let copy = disk.copy();
    drop(connection);
    match mode {
        "WAL" => copy,
        _ => disk,
    }
}

/// Makes a branch that has changed. `end` is what it does last: it makes the database longer, or
/// shorter.
fn change(connection: &Connection, vfs: &str, end: &str) -> Connection {
    call(connection, "branch", "b").unwrap();
    let branch = open("data.db/branch:b", vfs).unwrap();
    for _ in 0..IN_BRANCH {
        transact(&branch, "branch").unwrap();
    }
    branch.execute_batch(end).unwrap();
    branch
}

const LONGER: &str = "CREATE TABLE more(x); INSERT INTO more VALUES (zeroblob(20000))";
const SHORTER: &str = "DROP TABLE dropped; VACUUM";

/// Writes a branch back with a power cut before the `n`th change. Returns whether it got so far.
fn cut(
    vfs: &str,
    base: &PowerDisk,
    settings: &str,
    end: &str,
    n: u64,
    unsynced: Unsynced,
    memory: &Memory,
) -> bool {
    let disk = base.copy();
    let vfs = format!("{vfs} {n} {unsynced:?}");
    register(&vfs, &disk, memory);
    let connection = open("data.db", &vfs).unwrap();
    connection.execute_batch(settings).unwrap();
    let branch = change(&connection, &vfs, end);
    disk.cut_at(n, unsynced);
    let done = call(&connection, "commit", "b");
    let was_off = disk.power_on();
    drop(branch);
    call(&connection, "discard", "b").unwrap();
    drop(connection);
    // A new process would know no more than this.
    let after = PowerDisk::copy(&disk);
    let vfs = format!("{vfs} after");
    register(&vfs, &after, memory);
    let connection = open("data.db", &vfs).unwrap();
    let last = verify(&connection);
    let is_whole = match done {
        Ok(_) => last == BEFORE + IN_BRANCH,
        Err(_) => last == BEFORE || last == BEFORE + IN_BRANCH,
    };
    assert!(
        is_whole,
        "cut at {n}, {unsynced:?}: {done:?}, and there are {last}"
    );
    assert_eq!(transact(&connection, "after").unwrap(), last + 1);
    assert_eq!(verify(&connection), last + 1);
    was_off
}

fn cut_everywhere(mode: &str, settings: &str) {
    let memory = Memory::with_limit(2 << 20).unwrap();
    for end in [LONGER, SHORTER] {
        let vfs = format!("commit {mode} {end}");
        let base = base(&vfs, mode, settings, &memory);
        let n = cut_at_each(|n, fate| cut(&vfs, &base, settings, end, n, fate, &memory));
        assert!(n > 10, "{mode}, {end}: a commit makes changes: {n}");
    }
}

#[test]
fn a_commit_with_a_rollback_journal_survives_power_cuts() {
    cut_everywhere(
        "DELETE",
        "PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA",
    );
}

#[test]
fn a_commit_with_a_journal_that_stays_survives_power_cuts() {
    cut_everywhere(
        "PERSIST",
        "PRAGMA journal_mode = PERSIST; PRAGMA synchronous = FULL",
    );
}

#[test]
fn a_commit_with_a_wal_survives_power_cuts() {
    cut_everywhere("WAL", "PRAGMA synchronous = FULL");
}

/// Each write fails in turn, as on a full disk. The parent is what it was, the branch has all that
/// it had, and once there is room it is written back.
#[test]
fn a_commit_that_fails_can_be_tried_again() {
    let memory = Memory::with_limit(2 << 20).unwrap();
    for mode in ["DELETE", "PERSIST", "WAL"] {
        for end in [LONGER, SHORTER] {
            let vfs = format!("full {mode} {end}");
            let base = base(&vfs, mode, "", &memory);
            let mut failures = 0;
            for (name, n) in ["data.db", "data.db-journal", "data.db-wal"]
                .into_iter()
                .flat_map(|name| (1..=40).map(move |n| (name, n)))
            {
                let disk = base.copy();
                let vfs = format!("{vfs} {name} {n}");
                register(&vfs, &disk, &memory);
                let connection = open("data.db", &vfs).unwrap();
                set_journal(&connection, mode);
                // With PERSIST the journal stays.
                transact(&connection, "parent").unwrap();
                let branch = change(&connection, &vfs, end);
                let Some(file) = disk.file(name) else {
                    drop(branch);
                    call(&connection, "discard", "b").unwrap();
                    continue;
                };
                file.add(
                    Rule::new(Fault::Fail(Failure::NoSpace))
                        .on(&[OperationKind::Write])
                        .nth(n),
                );
                let done = call(&connection, "commit", "b");
                file.heal();
                let before = BEFORE + 1;
                if let Err(error) = &done {
                    failures += 1;
                    assert_eq!(verify(&connection), before, "{vfs}: {error}");
                    assert_eq!(verify(&branch), before + IN_BRANCH, "{vfs}");
                    assert!(is_logged(&[
                        "branch \"b\" was not written back",
                        "try again"
                    ]));
                    let again = call(&connection, "commit", "b");
                    assert!(again.is_ok(), "{vfs}: {error}, and then {again:?}");
                }
                assert_eq!(verify(&connection), before + IN_BRANCH, "{vfs}");
                drop(branch);
                call(&connection, "discard", "b").unwrap();
            }
            assert!(failures > 5, "{mode}, {end}: {failures} failed");
        }
    }
}

/// A large database: what is written is as much as the branch has changed.
#[test]
fn a_commit_writes_the_pages_that_were_changed() {
    let memory = Memory::with_limit(2 << 20).unwrap();
    for mode in ["DELETE", "WAL"] {
        let vfs = format!("few {mode}");
        let disk = PowerDisk::default();
        register(&vfs, &disk, &memory);
        let connection = open("data.db", &vfs).unwrap();
        set_journal(&connection, mode);
        create(&connection);
        let large = "CREATE TABLE large(x); INSERT INTO large VALUES (zeroblob(3000000))";
        connection.execute_batch(large).unwrap();
        connection
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .unwrap();
        call(&connection, "branch", "b").unwrap();
        let branch = open("data.db/branch:b", &vfs).unwrap();
        transact(&branch, "branch").unwrap();
        let changed = call(&connection, "diff", "b").unwrap().split(',').count() as u64;
        let before = disk.changes();
        call(&connection, "commit", "b").unwrap();
        let changes = disk.changes() - before;
        // Each page once, and once in the journal; syncs, headers, and cuts besides.
        let most = 2 * changed + 12;
        assert!(
            changes <= most,
            "{mode}: {changes} changes for {changed} pages"
        );
        assert_eq!(verify(&connection), 1);
        drop(branch);
        call(&connection, "discard", "b").unwrap();
    }
}

/// Connections that were there before see what was written back: on this VFS, and on SQLite's own
/// in the same state of the file.
#[test]
fn what_is_written_back_is_seen_by_all() {
    for mode in ["DELETE", "TRUNCATE", "WAL"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let connection = crate::common::open(&path);
        set_journal(&connection, mode);
        create(&connection);
        let other = crate::common::open(&path);
        assert_eq!(verify(&other), 0);
        for round in 1..=20 {
            call(&connection, "branch", "b").unwrap();
            let uri = crate::common::try_open(&path, "innerspace", "&branch=b").unwrap();
            assert_eq!(transact(&uri, "branch").unwrap(), 2 * round - 1);
            // A reader of a WAL keeps its snapshot.
            if mode == "WAL" {
                other.execute_batch("BEGIN").unwrap();
                assert_eq!(verify(&other), 2 * round - 2);
            }
            call(&connection, "commit", "b").unwrap();
            if mode == "WAL" {
                assert_eq!(verify(&other), 2 * round - 2);
                other.execute_batch("COMMIT").unwrap();
            }
            assert_eq!(
                (verify(&connection), verify(&other)),
                (2 * round - 1, 2 * round - 1)
            );
            drop(uri);
            call(&connection, "discard", "b").unwrap();
            assert_eq!(transact(&other, "parent").unwrap(), 2 * round);
        }
        drop((connection, other));
        assert_eq!(verify(&open_unix(&path)), 40);
    }
}
