//! Two processes on one database: one by this VFS, the other by SQLite's own.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::common::{self, child, create, open, open_unix, role, set_journal, transact, verify};

fn settle(connection: &Connection, settings: &str) {
    connection.execute_batch(settings).unwrap();
    connection
        .execute_batch("PRAGMA wal_autocheckpoint = 15")
        .unwrap();
}

/// Writes until there is nothing left to do. Each transaction reads what the other process has
/// written: its number is the next one.
fn write(role: &str, path: &Path, until: impl Fn(u32) -> bool) -> u32 {
    let connection = match role {
        "unix" => open_unix(path),
        _ => open(path),
    };
    let mmap = if role == "mapped" { 64 << 20 } else { 0 };
    connection.pragma_update(None, "mmap_size", mmap).unwrap();
    settle(&connection, "");
    let mut written = 0;
    let mut last = 0;
    while !until(written) {
        let number = transact(&connection, role).unwrap();
        assert!(number > last);
        last = number;
        written += 1;
        if written % 10 == 0 {
            assert!(verify(&connection) >= last);
        }
        if written % 50 == 0 {
            // A new connection sees the same.
            let another = match role {
                "unix" => open_unix(path),
                _ => open(path),
            };
            assert!(verify(&another) >= last);
        }
    }
    written
}

fn in_turn(test: &str, mode: &str, settings: &str, roles: [&str; 2], work: &str) {
    if let Some((role, folder)) = role() {
        let path = folder.join("data.db");
        let start = Instant::now();
        let written = match std::env::var("INNERSPACE_WORK")
            .unwrap()
            .split_once(' ')
            .unwrap()
        {
            ("seconds", number) => {
                let end = Duration::from_secs(number.parse().unwrap());
                write(&role, &path, |_| start.elapsed() > end)
            }
            (_, number) => {
                let number = number.parse().unwrap();
                write(&role, &path, |written| written == number)
            }
        };
        std::fs::write(folder.join(&role), written.to_string()).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let first = open_unix(&path);
    set_journal(&first, mode);
    settle(&first, settings);
    create(&first);
    drop(first);
    let children = roles.map(|role| {
        let mut command = child(test, role, folder.path());
        command.env("INNERSPACE_WORK", work).spawn().unwrap()
    });
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let last = verify(&open_unix(&path));
    let written = roles.map(|role| {
        let written = std::fs::read_to_string(folder.path().join(role)).unwrap();
        written.parse::<i64>().unwrap()
    });
    assert_eq!(
        last,
        written.iter().sum::<i64>(),
        "a committed transaction is gone"
    );
    let connection = open_unix(&path);
    for (role, written) in roles.iter().zip(written) {
        let count = "SELECT count(*) FROM log WHERE source = ?";
        let count = connection.query_row(count, [role], |row| row.get::<_, i64>(0));
        assert_eq!(count, Ok(written));
        println!("{mode}: {written} transactions by {role}");
    }
}

#[test]
fn a_rollback_journal_is_shared() {
    let test = "processes::a_rollback_journal_is_shared";
    in_turn(test, "DELETE", "", ["unix", "innerspace"], "count 120");
}

#[test]
fn a_rollback_journal_is_shared_without_syncs() {
    let test = "processes::a_rollback_journal_is_shared_without_syncs";
    in_turn(
        test,
        "PERSIST",
        "PRAGMA synchronous = OFF",
        ["unix", "mapped"],
        "count 200",
    );
}

#[test]
fn a_wal_is_shared() {
    let test = "processes::a_wal_is_shared";
    in_turn(test, "WAL", "", ["unix", "innerspace"], "count 200");
}

#[test]
fn a_wal_is_shared_with_pages_in_place() {
    let test = "processes::a_wal_is_shared_with_pages_in_place";
    in_turn(test, "WAL", "", ["unix", "mapped"], "count 200");
}

#[test]
fn a_wal_is_shared_by_two_of_ours() {
    let test = "processes::a_wal_is_shared_by_two_of_ours";
    in_turn(test, "WAL", "", ["innerspace", "mapped"], "count 200");
}

/// The same for a minute each. `cargo test -p innerspace-sqlite -- --ignored minute`
#[test]
#[ignore = "takes two minutes; see CONTRIBUTING.md"]
fn both_for_a_minute() {
    let test = "processes::both_for_a_minute";
    // The children have their mode from the file.
    in_turn(test, "WAL", "", ["unix", "innerspace"], "seconds 60");
    if role().is_none() {
        in_turn(test, "DELETE", "", ["unix", "innerspace"], "seconds 60");
    }
}

/// A cache that another process's change made old is noticed even if the file is as long as before
/// and was changed in the same moment.
#[test]
fn every_change_of_another_process_is_seen() {
    let test = "processes::every_change_of_another_process_is_seen";
    if let Some((_, folder)) = role() {
        let connection = open_unix(&folder.join("data.db"));
        let value = std::env::var("INNERSPACE_WORK").unwrap();
        connection.execute("UPDATE t SET x = ?", [value]).unwrap();
        if folder.join("checkpoint").exists() {
            connection
                .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
                .unwrap();
        }
        return;
    }
    common::vfs();
    for mode in ["DELETE", "WAL"] {
        let folder = tempfile::tempdir().unwrap();
        if mode == "WAL" {
            std::fs::write(folder.path().join("checkpoint"), "").unwrap();
        }
        let connection = open(&folder.path().join("data.db"));
        set_journal(&connection, mode);
        connection
            .execute_batch("CREATE TABLE t(x TEXT); INSERT INTO t VALUES ('0')")
            .unwrap();
        let other = open(&folder.path().join("data.db"));
        for n in 1..=5 {
            let value = n.to_string();
            let mut command = child(test, "unix", folder.path());
            assert!(
                command
                    .env("INNERSPACE_WORK", &value)
                    .status()
                    .unwrap()
                    .success()
            );
            for connection in [&connection, &other] {
                let seen =
                    connection.query_row("SELECT x FROM t", [], |row| row.get::<_, String>(0));
                assert_eq!(seen, Ok(value.clone()), "{mode}");
            }
        }
    }
}
