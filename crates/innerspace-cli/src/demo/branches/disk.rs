//! Station 4: the disk of one branch fails. That branch has "disk I/O error", and the others go on;
//! with SQLite's own mmap a file that can no longer be read ends the process.

use std::fs::File;
use std::path::Path;

use innerspace::Grouped;
use innerspace::store::faulty::{Failure, Fault, OperationKind, Rule};
use rusqlite::Connection;

use super::{Branch, Demo, SEED};
use crate::child::Child;
use crate::demo::database::{self, PAGE, balance_of};
use crate::kernel;
use crate::report::Findings;
use crate::stations::Result;

/// The accounts of the database that is mapped by mmap.
const MAPPED_ROWS: u64 = 256;

/// Adds one to the first of a branch's own accounts.
fn add_one(demo: &Demo, branch: &Branch) -> rusqlite::Result<usize> {
    let id = demo.own_rows(branch.number).next();
    let update = "UPDATE account SET balance = balance + 1 WHERE id = ?1";
    branch.connection.prepare_cached(update)?.execute([id])
}

/// Whether the first of a branch's own accounts has what it was given, and this many more.
fn has(demo: &Demo, branch: &Branch, more: i64) -> Result<bool> {
    let id = demo.own_rows(branch.number).next().unwrap_or_default();
    let own = demo.own_balance(branch.number);
    Ok(balance_of(&branch.connection, id)? == own + more)
}

pub(super) fn show(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let number = demo.failing();
    demo.disk.add(
        Rule::new(Fault::Fail(Failure::Io))
            .on(&[OperationKind::Write, OperationKind::Sync])
            .forever(),
    );
    let failing = demo.branch(number)?;
    match add_one(demo, failing) {
        Err(error) => {
            findings.here(format!("branch {number}: {error}"));
            if error.sqlite_error_code() != Some(rusqlite::ErrorCode::SystemIoFailure) {
                findings.fail("this is not SQLite's error for a failing disk");
            }
        }
        Ok(_) => findings.fail(format!("branch {number} wrote to a disk that fails")),
    }
    let bar = demo.report.count_bar("the others go on", demo.count);
    let mut went_on = 0;
    for branch in demo
        .branches
        .iter()
        .filter(|branch| branch.number != number)
    {
        add_one(demo, branch)?;
        went_on += u64::from(has(demo, branch, 1)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    findings.here(format!(
        "{} of the {} others updated a row meanwhile",
        Grouped(went_on),
        Grouped(demo.count - 1)
    ));
    if went_on != demo.count - 1 {
        findings.fail("others did not go on");
    }
    demo.disk.heal();
    let failing = demo.branch(number)?;
    let kept = has(demo, failing, 0)?;
    add_one(demo, failing)?;
    match kept && has(demo, failing, 1)? {
        true => findings.here(format!(
            "with the disk repaired, branch {number} has what it had before, and writes again"
        )),
        false => findings.fail(format!("branch {number} lost what it had")),
    }
    findings.sqlite(map(demo)?);
    Ok(findings)
}

/// Has another process use SQLite's own mmap on a file that can no longer be read.
fn map(demo: &Demo) -> Result<String> {
    let path = demo.folder.join("mapped.db");
    database::make(&path, MAPPED_ROWS, SEED, "DELETE", |_| ())?;
    let mut command = Child::command("sqlite-mmap")?;
    command.arg("--").arg(&path);
    let output = Child::output(command)?;
    let did =
        "a process that reads pages it can no longer get (the file is cut), by PRAGMA mmap_size";
    let text = String::from_utf8_lossy(&output.stderr);
    Ok(match kernel::signal_of(output.status) {
        Some(signal) => format!("{did}: {signal}"),
        None => format!("{did}: {}, {}", output.status, text.trim()),
    })
}

/// Runs in a process of its own: reads, through SQLite's own mmap, what is no longer in the file,
/// and does not survive that.
pub(crate) fn map_and_cut_short(path: &Path) -> Result<()> {
    kernel::leave_no_core();
    let database = Connection::open(path)?;
    database.pragma_update(None, "mmap_size", MAPPED_ROWS * PAGE * 2)?;
    database.execute_batch("BEGIN")?;
    balance_of(&database, 1)?;
    File::options()
        .write(true)
        .open(path)?
        .set_len(MAPPED_ROWS / 2 * PAGE)?;
    let balance = balance_of(&database, MAPPED_ROWS)?;
    Err(format!("read the balance {balance} past the end of the file").into())
}
