//! Branches: each has the parent as of its moment, whatever the parent and the others do.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use innerspace::Memory;
use innerspace::store::faulty::{Failure, Fault, OperationKind, Rule};
use innerspace::store::{FaultyStore, MemoryStore};
use innerspace_sqlite::BranchError;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::common::{
    self, child, create, open, open_unix, role, set_journal, transact, verify, vfs,
};
use crate::disks::{PowerDisk, register};

fn open_branch(path: &Path, name: &str) -> Connection {
    let connection = common::try_open(path, "innerspace", &format!("&branch={name}")).unwrap();
    connection.pragma_update(None, "cache_size", 10).unwrap();
    connection
}

fn call(connection: &Connection, function: &str, name: &str) -> rusqlite::Result<String> {
    let sql = format!("SELECT innerspace_{function}(?)");
    connection.query_row(&sql, [name], |row| row.get(0))
}

fn parent(mode: &str, path: &Path) -> Connection {
    let connection = open(path);
    set_journal(&connection, mode);
    connection
        .pragma_update(None, "wal_autocheckpoint", 20)
        .unwrap();
    create(&connection);
    connection
}

#[test]
fn each_branch_has_the_parent_as_of_its_moment() {
    for mode in ["DELETE", "PERSIST", "WAL"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let connection = parent(mode, &path);
        let mut branches = Vec::new();
        for n in 1..=30 {
            assert_eq!(transact(&connection, "parent").unwrap(), n);
            let name = format!("b{n}");
            match n % 2 {
                0 => assert_eq!(call(&connection, "branch", &name).unwrap(), name),
                _ => vfs().branch(&path, &name).unwrap(),
            }
            // Some are opened at once, and some when the parent has moved on.
            let opened = (n % 3 == 0).then(|| open_branch(&path, &name));
            branches.push((n, name, opened));
        }
        connection
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .unwrap();
        for n in 31..=90 {
            assert_eq!(transact(&connection, "parent").unwrap(), n);
        }
        let branches = branches.into_iter().map(|(n, name, opened)| {
            let branch = opened.unwrap_or_else(|| open_branch(&path, &name));
            assert_eq!(verify(&branch), n, "{mode}, {name}");
            (n, name, branch)
        });
        let branches: Vec<_> = branches.collect();
        for (n, name, branch) in &branches {
            for more in 1..=n % 4 {
                assert_eq!(transact(branch, name).unwrap(), n + more);
            }
            transact(&connection, "parent").unwrap();
        }
        for (n, name, branch) in &branches {
            assert_eq!(verify(branch), n + n % 4, "{mode}, {name}");
            let pages = call(&connection, "diff", name).unwrap();
            assert_eq!(pages.is_empty(), n % 4 == 0, "{name}: {pages}");
        }
        assert_eq!(verify(&connection), 120);
        assert_eq!(vfs().branches(&path).len(), 30);

        let busy = vfs().discard_branch(&path, "b1");
        assert!(matches!(busy, Err(BranchError::Busy { .. })), "{busy:?}");
        for (_, name, branch) in branches {
            drop(branch);
            call(&connection, "discard", &name).unwrap();
        }
        assert!(vfs().branches(&path).is_empty());
        drop(connection);
        assert_eq!(verify(&open_unix(&path)), 120);
    }
}

/// A copy of the file alone would lose what is in the WAL.
#[test]
fn a_branch_has_what_is_only_in_the_wal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let connection = parent("WAL", &path);
    connection
        .pragma_update(None, "wal_autocheckpoint", 0)
        .unwrap();
    connection
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    for _ in 0..25 {
        transact(&connection, "parent").unwrap();
    }
    call(&connection, "branch", "with_wal").unwrap();
    for _ in 0..25 {
        transact(&connection, "parent").unwrap();
    }
    // The WAL starts over, and its frames are gone.
    connection
        .execute_batch("PRAGMA wal_checkpoint(RESTART)")
        .unwrap();
    for _ in 0..25 {
        transact(&connection, "parent").unwrap();
    }
    let branch = open_branch(&path, "with_wal");
    assert_eq!(verify(&branch), 25);
    for _ in 0..100 {
        transact(&branch, "branch").unwrap();
    }
    branch.execute_batch("VACUUM").unwrap();
    assert_eq!((verify(&branch), verify(&connection)), (125, 75));
}

#[test]
fn a_branch_of_a_branch_has_its_parent_as_of_its_moment() {
    for mode in ["DELETE", "WAL"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let connection = parent(mode, &path);
        for _ in 0..10 {
            transact(&connection, "parent").unwrap();
        }
        call(&connection, "branch", "one").unwrap();
        let one = open_branch(&path, "one");
        for _ in 0..10 {
            transact(&one, "one").unwrap();
            transact(&connection, "parent").unwrap();
        }
        call(&one, "branch", "two").unwrap();
        for _ in 0..10 {
            transact(&one, "one").unwrap();
            transact(&connection, "parent").unwrap();
        }
        let two = open_branch(&path, "two");
        assert_eq!(
            (verify(&connection), verify(&one), verify(&two)),
            (30, 30, 20)
        );
        transact(&two, "two").unwrap();
        let count = "SELECT count(*) FROM log WHERE source = ?";
        let of = |branch: &Connection, source| {
            branch.query_row(count, [source], |row| row.get::<_, i64>(0))
        };
        assert_eq!(
            (of(&two, "one"), of(&two, "two"), of(&two, "parent")),
            (Ok(10), Ok(1), Ok(10))
        );
        assert_eq!((of(&one, "one"), of(&one, "two")), (Ok(20), Ok(0)));
        // A branch that has branches stays.
        drop(one);
        assert!(call(&connection, "discard", "one").is_err());
        drop(two);
        call(&connection, "discard", "two").unwrap();
        call(&connection, "discard", "one").unwrap();
    }
}

#[test]
fn a_branch_is_written_back_unless_the_parent_has_moved_on() {
    for mode in ["DELETE", "WAL"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let connection = parent(mode, &path);
        for _ in 0..10 {
            transact(&connection, "parent").unwrap();
        }
        for name in ["kept", "late", "by_rust"] {
            call(&connection, "branch", name).unwrap();
            let branch = open_branch(&path, name);
            for _ in 0..5 {
                transact(&branch, name).unwrap();
            }
        }
        call(&connection, "commit", "kept").unwrap();
        assert_eq!(verify(&connection), 15, "{mode}");
        let refused = call(&connection, "commit", "late").unwrap_err();
        assert!(refused.to_string().contains("has moved on"), "{refused}");
        assert_eq!(verify(&open_branch(&path, "late")), 15);
        let refused = vfs().commit_branch(&path, "by_rust");
        assert!(
            matches!(refused, Err(BranchError::Refused { .. })),
            "{refused:?}"
        );
        assert_eq!(transact(&connection, "parent").unwrap(), 16);

        call(&connection, "branch", "next").unwrap();
        let next = open_branch(&path, "next");
        transact(&next, "next").unwrap();
        vfs().commit_branch(&path, "next").unwrap();
        assert_eq!(verify(&connection), 17);
        // A checkpoint is no change.
        call(&connection, "branch", "after").unwrap();
        connection
            .execute_batch("PRAGMA wal_checkpoint(PASSIVE)")
            .unwrap();
        transact(&open_branch(&path, "after"), "after").unwrap();
        vfs().commit_branch(&path, "after").unwrap();
        assert_eq!(verify(&connection), 18);
        drop(next);
        for name in vfs().branches(&path) {
            call(&connection, "discard", &name).unwrap();
        }
        drop(connection);
        assert_eq!(verify(&open_unix(&path)), 18);
    }
}

#[test]
fn bad_calls_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let connection = parent("DELETE", &path);
    call(&connection, "branch", "one").unwrap();
    for (function, name, reason) in [
        ("branch", "one", "there is a branch \"one\" already"),
        ("branch", "", "is no name"),
        ("branch", "a/b", "is no name"),
        ("diff", "two", "there is no branch \"two\""),
        ("discard", "two", "there is no branch \"two\""),
        ("commit", "two", "there is no branch \"two\""),
    ] {
        let error = call(&connection, function, name).unwrap_err();
        assert!(error.to_string().contains(reason), "{function}: {error}");
        assert!(common::is_logged(&[reason]));
    }
    assert!(common::try_open(&path, "innerspace", "&branch=two").is_err());
    assert!(common::is_logged(&[
        "there is no branch \"two\"",
        "innerspace_branch()"
    ]));
    let missing = folder.path().join("missing.db");
    let opened = common::try_open(&missing, "innerspace", "&branch=one").unwrap_err();
    assert_eq!(
        opened.sqlite_error_code(),
        Some(rusqlite::ErrorCode::CannotOpen)
    );
    assert!(common::is_logged(&["(14)", "missing.db", "check the path"]));
    let of_missing = vfs().branch(&missing, "one").unwrap_err().to_string();
    assert!(of_missing.contains("check the folder"), "{of_missing}");
    let memory = Connection::open_in_memory().unwrap();
    assert!(
        call(&memory, "branch", "one")
            .unwrap_err()
            .to_string()
            .contains("not open by the VFS")
    );
    // A transaction is being written: the file is not whole.
    connection
        .execute_batch("BEGIN EXCLUSIVE; DELETE FROM log")
        .unwrap();
    let busy = vfs().branch(&path, "busy");
    assert!(matches!(busy, Err(BranchError::Busy { .. })), "{busy:?}");
    connection.execute_batch("ROLLBACK").unwrap();
    vfs().branch(&path, "busy").unwrap();
}

/// Other processes read the parent, and do not write it as long as it has branches.
#[test]
fn other_processes_read_and_do_not_write() {
    let test = "branches::other_processes_read_and_do_not_write";
    if let Some((role, folder)) = role() {
        let connection = open_unix(&folder.join("data.db"));
        connection.busy_timeout(Duration::from_millis(10)).unwrap();
        verify(&connection);
        let written = transact(&connection, "other");
        assert_eq!(written.is_ok(), role == "may write", "{written:?}");
        return;
    }
    for mode in ["DELETE", "WAL"] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.db");
        let connection = parent(mode, &path);
        let other = |role| assert!(child(test, role, folder.path()).status().unwrap().success());
        other("may write");
        call(&connection, "branch", "one").unwrap();
        other("may not");
        transact(&connection, "parent").unwrap();
        other("may not");
        assert_eq!(verify(&open_branch(&path, "one")), 1);
        call(&connection, "discard", "one").unwrap();
        other("may write");
        assert_eq!(verify(&connection), 3);
    }
}

#[test]
fn a_database_with_branches_keeps_its_kind_of_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let connection = parent("DELETE", &path);
    transact(&connection, "parent").unwrap();
    call(&connection, "branch", "a").unwrap();
    // The lock that keeps other processes out does not hold for writers of a WAL.
    let changed = connection.execute_batch("PRAGMA journal_mode = WAL");
    let busy = changed.and_then(|()| connection.execute_batch("BEGIN IMMEDIATE; COMMIT"));
    let mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete", "{busy:?}");
    assert_eq!(transact(&connection, "parent").unwrap(), 2);
    assert_eq!(verify(&open_branch(&path, "a")), 1);
    // Nor does a branch that has changed to a WAL bring one to its parent.
    call(&connection, "branch", "b").unwrap();
    {
        let branch = open_branch(&path, "b");
        set_journal(&branch, "WAL");
        assert_eq!(transact(&branch, "b").unwrap(), 3);
    }
    let refused = call(&connection, "commit", "b").unwrap_err();
    assert!(refused.to_string().contains("has a WAL"), "{refused}");
    assert_eq!(verify(&connection), 2);
    {
        let branch = open_branch(&path, "b");
        assert_eq!(verify(&branch), 3);
        set_journal(&branch, "DELETE");
    }
    call(&connection, "commit", "b").unwrap();
    assert_eq!(verify(&connection), 3);
    for name in ["a", "b"] {
        call(&connection, "discard", name).unwrap();
    }
    set_journal(&connection, "WAL");
    assert_eq!(transact(&connection, "parent").unwrap(), 4);
}

#[test]
fn a_branch_of_a_branch_is_not_written_back_over_a_commit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let connection = parent("DELETE", &path);
    transact(&connection, "parent").unwrap();
    call(&connection, "branch", "p").unwrap();
    let (first, second) = (open_branch(&path, "p"), open_branch(&path, "p"));
    call(&first, "branch", "b").unwrap();
    // A reader of the parent gives no lock of writers back.
    assert_eq!(verify(&first), 1);
    second.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = call(&first, "commit", "b").unwrap_err();
    assert!(refused.to_string().contains("is writing"), "{refused}");
    second.execute_batch("ROLLBACK").unwrap();
    assert_eq!(transact(&second, "p").unwrap(), 2);
    let refused = call(&first, "commit", "b").unwrap_err();
    assert!(refused.to_string().contains("has moved on"), "{refused}");
    assert_eq!(verify(&first), 2);
}

/// A thousand branches that are alive, with the parent writing all the time.
#[test]
fn a_thousand_branches_live_beside_a_parent_that_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let connection = parent("WAL", &path);
    let mut spent = Duration::ZERO;
    for n in 1..=1000 {
        if n % 10 == 1 {
            transact(&connection, "parent").unwrap();
        }
        let start = Instant::now();
        vfs().branch(&path, &format!("b{n}")).unwrap();
        spent += start.elapsed();
    }
    println!("a branch took {:?} on average", spent / 1000);
    for n in (7..=1000).step_by(90) {
        let name = format!("b{n}");
        let branch = open_branch(&path, &name);
        assert_eq!(verify(&branch), (n + 9) / 10);
        transact(&branch, &name).unwrap();
        assert_eq!(verify(&branch), (n + 9) / 10 + 1);
    }
    assert_eq!(verify(&connection), 100);
    assert!(vfs().memory().root_group().usage() <= common::LIMIT);
    for name in vfs().branches(&path) {
        vfs().discard_branch(&path, &name).unwrap();
    }
}

/// A failing disk of the parent: what is left of its transaction has to be undone by the next
/// connection, which may be another process's. The branches say so, and the parent goes on.
#[test]
fn a_parent_that_cannot_end_its_transaction_loses_its_branches() {
    let memory = Memory::with_limit(2 << 20).unwrap();
    let disk = PowerDisk::default();
    register("losing", &disk, &memory);
    let open = |name: &str| {
        let flags = OpenFlags::default();
        Connection::open_with_flags_and_vfs(name, flags, "losing").unwrap()
    };
    let parent = open("data.db");
    parent.execute_batch("PRAGMA cache_size = 10").unwrap();
    create(&parent);
    transact(&parent, "parent").unwrap();
    call(&parent, "branch", "one").unwrap();
    transact(&parent, "parent").unwrap();
    let branch = open("data.db/branch:one");
    assert_eq!(verify(&branch), 1);

    let file = disk.file("data.db").unwrap();
    file.add(
        Rule::new(Fault::Fail(Failure::Io))
            .on(&[OperationKind::Write])
            .nth(2)
            .forever(),
    );
    transact(&parent, "parent").unwrap_err();
    let lost = branch.query_row("SELECT sum(balance) FROM accounts", [], |_| Ok(()));
    assert_eq!(
        lost.unwrap_err().sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure)
    );
    assert!(common::is_logged(&[
        "the branches of data.db are lost",
        "discard them"
    ]));
    assert!(call(&parent, "branch", "two").is_err());
    file.heal();
    assert_eq!(verify(&parent), 2);
    drop(branch);
    call(&parent, "discard", "one").unwrap();
    call(&parent, "branch", "two").unwrap();
    assert_eq!(verify(&open("data.db/branch:two")), 2);
}

/// The disk of one branch fails: its calls fail, and nobody else's.
#[test]
fn a_branch_with_a_disk_of_its_own_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.db");
    let connection = parent("DELETE", &path);
    transact(&connection, "parent").unwrap();
    let disk = Arc::new(FaultyStore::new(MemoryStore::new()));
    vfs().branch_in(&path, "own", disk.clone()).unwrap();
    vfs().branch(&path, "other").unwrap();
    let (own, other) = (open_branch(&path, "own"), open_branch(&path, "other"));
    assert_eq!(transact(&own, "own").unwrap(), 2);
    assert!(
        disk.inner().to_vec().iter().any(|byte| *byte != 0),
        "a commit writes the branch's pages to its disk"
    );
    disk.add(
        Rule::new(Fault::Fail(Failure::Io))
            .on(&[OperationKind::Write, OperationKind::Sync])
            .forever(),
    );
    let failed = transact(&own, "own").unwrap_err();
    assert_eq!(
        failed.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure),
        "{failed}"
    );
    assert_eq!(transact(&other, "other").unwrap(), 2);
    assert_eq!(transact(&connection, "parent").unwrap(), 2);
    assert_eq!((verify(&other), verify(&connection)), (2, 2));
    disk.heal();
    assert_eq!(verify(&own), 2);
}
