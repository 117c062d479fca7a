//! What the tests share: the VFS, a workload with an invariant, and the log of SQLite.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use innerspace_sqlite::{Options, Vfs};
use rusqlite::{Connection, OpenFlags};

/// The limit of the VFS `innerspace` of the tests: small, so that blocks come and go.
pub(crate) const LIMIT: u64 = 2 << 20;

/// The VFS `innerspace`, with [`LIMIT`].
pub(crate) fn vfs() -> &'static Vfs {
    static VFS: OnceLock<Vfs> = OnceLock::new();
    VFS.get_or_init(|| {
        collect_log();
        Options::new().limit(LIMIT).register().unwrap()
    })
}

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Collects SQLite's log. It has to be called before any connection.
pub(crate) fn collect_log() {
    fn note(code: i32, text: &str) {
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        log.push(format!("({code}) {text}"));
    }
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: no connection is open yet.
        unsafe { rusqlite::trace::config_log(Some(note)) }.unwrap();
    });
}

/// Whether the log has a line with all these parts.
pub(crate) fn is_logged(parts: &[&str]) -> bool {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    log.iter()
        .any(|line| parts.iter().all(|part| line.contains(part)))
}

/// Opens a database by a VFS, with options of a URI.
pub(crate) fn try_open(path: &Path, vfs: &str, options: &str) -> rusqlite::Result<Connection> {
    let uri = format!("file:{}?vfs={vfs}{options}", path.display());
    let connection = Connection::open_with_flags(uri, OpenFlags::default())?;
    connection.busy_timeout(Duration::from_secs(20))?;
    Ok(connection)
}

/// Opens a database by the VFS of the tests. Its own page cache is small, so that the VFS is asked.
pub(crate) fn open(path: &Path) -> Connection {
    vfs();
    let connection = try_open(path, "innerspace", "").unwrap();
    connection.pragma_update(None, "cache_size", 10).unwrap();
    connection
}

/// Opens a database by SQLite's own VFS.
pub(crate) fn open_unix(path: &Path) -> Connection {
    let connection = try_open(path, "unix", "").unwrap();
    connection.pragma_update(None, "cache_size", 10).unwrap();
    connection
}

pub(crate) fn set_journal(connection: &Connection, mode: &str) {
    let set: String = connection
        .query_row(&format!("PRAGMA journal_mode = {mode}"), [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(set, mode.to_lowercase());
}

const ACCOUNTS: i64 = 200;

/// Makes the tables of the workload: accounts whose sum stays the same, and a log of the
/// transactions without gaps.
pub(crate) fn create(connection: &Connection) {
    connection
        .execute_batch(&format!(
            "BEGIN;
             CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance INTEGER, filling BLOB);
             CREATE TABLE log(n INTEGER PRIMARY KEY, source TEXT, payload BLOB);
             CREATE INDEX by_source ON log(source, n);
             WITH RECURSIVE c(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM c WHERE i < {ACCOUNTS})
             INSERT INTO accounts SELECT i, 100, zeroblob(300) FROM c;
             COMMIT;"
        ))
        .unwrap();
}

/// Makes the next transaction of the workload, and returns its number.
pub(crate) fn transact(connection: &Connection, source: &str) -> rusqlite::Result<i64> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let result = (|| {
        let last: Option<i64> =
            connection.query_row("SELECT max(n) FROM log", [], |row| row.get(0))?;
        let next = last.unwrap_or(0) + 1;
        let account = |factor: i64| (next * factor) % ACCOUNTS + 1;
        let mut update =
            connection.prepare_cached("UPDATE accounts SET balance = balance + ? WHERE id = ?")?;
        update.execute([-7, account(31)])?;
        update.execute([7, account(57)])?;
        connection.execute(
            "INSERT INTO log VALUES (?, ?, zeroblob(?))",
            rusqlite::params![next, source, 50 + next * 97 % 3000],
        )?;
        connection.execute_batch("COMMIT")?;
        Ok(next)
    })();
    if result.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    result
}

/// Checks the invariants in one transaction, and returns the number of the last of the workload's.
pub(crate) fn verify(connection: &Connection) -> i64 {
    match connection.is_autocommit() {
        true => {
            connection.execute_batch("BEGIN").unwrap();
            let last = verify_now(connection);
            connection.execute_batch("COMMIT").unwrap();
            last
        }
        false => verify_now(connection),
    }
}

fn verify_now(connection: &Connection) -> i64 {
    let text = |sql: &str| {
        connection
            .query_row(sql, [], |row| row.get::<_, String>(0))
            .unwrap()
    };
    let number = |sql: &str| {
        let value = connection
            .query_row(sql, [], |row| row.get::<_, Option<i64>>(0))
            .unwrap();
        value.unwrap_or(0)
    };
    assert_eq!(text("PRAGMA integrity_check"), "ok");
    assert_eq!(number("SELECT sum(balance) FROM accounts"), 100 * ACCOUNTS);
    let last = number("SELECT max(n) FROM log");
    assert_eq!(
        number("SELECT count(*) FROM log"),
        last,
        "a transaction is missing"
    );
    last
}

/// Runs a test of this binary in a process of its own, in the part that `role` names.
pub(crate) fn child(test: &str, role: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--include-ignored"]);
    command.stdout(Stdio::null());
    command
        .env("INNERSPACE_ROLE", role)
        .env("INNERSPACE_FOLDER", folder);
    command
}

/// The part that this process has in a test, and the test's folder.
pub(crate) fn role() -> Option<(String, std::path::PathBuf)> {
    let role = std::env::var("INNERSPACE_ROLE").ok()?;
    Some((role, std::env::var_os("INNERSPACE_FOLDER")?.into()))
}
