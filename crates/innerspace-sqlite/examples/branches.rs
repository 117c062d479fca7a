//! A thousand branches of one database that is live: what each takes, and what each has.
//!
//! `cargo run --release -p innerspace-sqlite --example branches [MIB [BRANCHES]]`

use std::time::{Duration, Instant};

use innerspace_sqlite::Options;
use rusqlite::{Connection, OpenFlags};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<i64>());
    let mib = arguments.next().transpose()?.unwrap_or(16);
    let count = arguments.next().transpose()?.unwrap_or(1000);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.db");
    let vfs = Options::new().limit(64 << 20).register()?;
    let open = |path: &std::path::Path| -> rusqlite::Result<Connection> {
        let flags = OpenFlags::default();
        let connection = Connection::open_with_flags_and_vfs(path, flags, vfs.name())?;
        connection.pragma_update(None, "cache_size", 10)?;
        Ok(connection)
    };

    let parent = open(&path)?;
    parent.execute_batch(&format!(
        "PRAGMA journal_mode = WAL;
         CREATE TABLE t(id INTEGER PRIMARY KEY, x INTEGER, filling BLOB);
         WITH RECURSIVE c(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM c WHERE i < {mib} * 256)
         INSERT INTO t SELECT i, 0, zeroblob(3500) FROM c;"
    ))?;
    let bytes = std::fs::metadata(&path)?.len();

    let mut times = Vec::new();
    for n in 1..=count {
        // The parent writes on.
        parent.execute("UPDATE t SET x = ?1 WHERE id = 1 + ?1 % 100", [n])?;
        let start = Instant::now();
        vfs.branch(&path, &format!("b{n}"))?;
        times.push(start.elapsed());
    }
    times.sort();
    let mut right = 0;
    for n in 1..=count {
        let branch = open(&vfs.branch_path(&path, &format!("b{n}"))?)?;
        branch.execute("UPDATE t SET x = -x WHERE id = 1 + ?1 % 100", [n])?;
        let x: i64 = branch.query_row("SELECT x FROM t WHERE id = 1 + ?1 % 100", [n], |row| {
            row.get(0)
        })?;
        right += i64::from(x == -n);
    }
    let median = times[times.len() / 2];
    let total: Duration = times.iter().sum();
    println!(
        "a database of {} MiB and {count} branches, with a limit of 64 MiB",
        bytes >> 20
    );
    println!(
        "making a branch: median {median:?}, longest {:?}, all {total:?}",
        times[times.len() - 1]
    );
    println!(
        "{right} of {count} branches have their own value; the memory's peak was {} KiB",
        { vfs.memory().root_group().take_peak() >> 10 }
    );
    assert_eq!(right, count);
    for name in vfs.branches(&path) {
        vfs.discard_branch(&path, &name)?;
    }
    Ok(())
}
