//! Stations 5 to 7: the parent and branches pass SQLite's own check; the parent writes on; the
//! limit held.

use innerspace::{ByteSize, Grouped, KIB, MIB};

use super::{Demo, IN_WAL, OWN_ROWS, WAL_BALANCE};
use crate::demo::database::{balance_of, integrity, kernel_cached};
use crate::kernel;
use crate::report::Findings;
use crate::stations::Result;

/// The branches that SQLite checks.
const CHECKED: u64 = 10;

/// The most memory of a connection of SQLite: its page cache of ten pages, its schema, its
/// statements and its lookaside buffer.
const CONNECTION: u64 = 192 * KIB;

/// The most by which a process grows besides: code that is read in, stacks, buffers.
const PROCESS: u64 = 8 * MIB;

/// Bytes of the file that may enter the kernel's cache because other programs read it.
const STRAY: u64 = 256 * KIB;

pub(super) fn show_integrity(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let checked = CHECKED.min(demo.count);
    let bar = demo.report.count_bar("SQLite checks", checked + 1);
    let mut check = |name: &str, connection| -> Result<()> {
        let result = integrity(connection)?;
        if result != "ok" {
            findings.fail(format!("integrity_check of {name}: {result}"));
        }
        bar.inc(1);
        Ok(())
    };
    check("the parent", &demo.parent)?;
    for number in 0..checked {
        let branch = demo.branch(1 + number * demo.count / checked)?;
        check(&format!("branch {}", branch.number), &branch.connection)?;
    }
    bar.finish_and_clear();
    findings.here(format!(
        "integrity_check of the parent and of {checked} branches: ok"
    ));
    demo.check_same(&mut findings)?;
    Ok(findings)
}

pub(super) fn show_live(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let spinner = demo.report.spinner("the parent writes");
    // The rows of the WAL's transaction, and the first own row of every branch.
    let first_rows = (1..=demo.count).filter_map(|number| demo.own_rows(number).next());
    let rows: Vec<u64> = (1..=IN_WAL).chain(first_rows).collect();
    let transaction = demo.parent.unchecked_transaction()?;
    for id in &rows {
        let update = "UPDATE account SET balance = 0 WHERE id = ?1";
        transaction.prepare_cached(update)?.execute([id])?;
    }
    transaction.commit()?;
    demo.parent
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    spinner.finish_and_clear();
    let mut disturbed = 0;
    for branch in &demo.branches {
        let common = balance_of(&branch.connection, 1 + branch.number % IN_WAL)?;
        let mut own = demo.own_rows(branch.number);
        let id = own.next().unwrap_or_default();
        let of_parent = balance_of(&demo.parent, id)?;
        let own = balance_of(&branch.connection, id)?;
        let is_right =
            common == WAL_BALANCE && own == demo.own_balance(branch.number) + 1 && of_parent == 0;
        disturbed += u64::from(!is_right);
    }
    findings.here(format!(
        "the parent changed {} rows and wrote its WAL back to the file",
        Grouped(rows.len() as u64)
    ));
    findings.here(format!(
        "{} of {} branches still have what they had",
        Grouped(demo.count - disturbed),
        Grouped(demo.count)
    ));
    if disturbed > 0 {
        findings.fail(format!("{disturbed} branches saw what the parent wrote"));
    }
    let name = &demo.branch(1)?.name;
    match demo.vfs.commit_branch(&demo.path, name) {
        Ok(()) => findings.fail("a branch was written back over what the parent wrote"),
        Err(error) => findings.here(format!("to write branch 1 back now: {error}")),
    }
    Ok(findings)
}

pub(super) fn show_limit(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let (counted, limit) = (demo.vfs.memory().stats().peak, demo.limit);
    findings.here(format!(
        "counted by the library: {} at the peak, of {}: blocks of the parent, {} pages of \
         branches, what the parent saved for them, journals",
        ByteSize(counted),
        ByteSize(limit),
        Grouped(demo.count * (OWN_ROWS + 1))
    ));
    if counted > limit {
        findings.fail("the count is over the limit");
    }
    if let (Some(before), Some(peak)) = (demo.resident_before, kernel::peak_resident()) {
        let grown = peak.saturating_sub(before);
        let outside = grown.saturating_sub(counted);
        findings.here(format!(
            "the process: {} at its peak (VmHWM), {} of it outside the limit, for {} connections \
             of SQLite: {} each",
            ByteSize(peak),
            ByteSize(outside),
            Grouped(demo.count),
            ByteSize(outside / demo.count)
        ));
        if outside > demo.count * CONNECTION + PROCESS {
            findings.fail("that is more than connections need");
        }
    }
    let now = kernel_cached(&demo.path);
    if let Some(left) = demo.kernel_cached.max(now) {
        let wal = kernel_cached(&demo.wal()).unwrap_or(0);
        findings.here(format!(
            "in the kernel's cache: {} of the database, {} of its WAL",
            ByteSize(left),
            ByteSize(wal)
        ));
        if left > STRAY {
            findings.fail("the kernel's cache has kept pages of the database");
        }
    }
    Ok(findings)
}
