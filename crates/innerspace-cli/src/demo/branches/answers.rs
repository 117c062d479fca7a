//! Stations 2 and 3: each branch updates its own rows and has its own answer, and the parent and
//! its file stay; and which pages a branch has changed.

use std::collections::HashSet;

use innerspace::Grouped;

use super::{Demo, OWN_ROWS, SEED};
use crate::demo::database::{PAGE, balance, balance_of};
use crate::report::Findings;
use crate::stations::Result;

/// The branch whose pages are shown.
const SHOWN: u64 = 17;

/// The most page numbers that are printed.
const MOST_PRINTED: usize = 12;

/// Returns the sum of the balances of a branch's own accounts.
fn answer(demo: &Demo, of: &rusqlite::Connection, number: u64) -> Result<i64> {
    let mut sum = 0;
    for id in demo.own_rows(number) {
        sum += balance_of(of, id)?;
    }
    Ok(sum)
}

pub(super) fn show(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let bar = demo.report.count_bar("branches update rows", demo.count);
    for branch in &demo.branches {
        let transaction = branch.connection.unchecked_transaction()?;
        for id in demo.own_rows(branch.number) {
            let own = demo.own_balance(branch.number);
            let mut update =
                transaction.prepare_cached("UPDATE account SET balance = ?1 WHERE id = ?2")?;
            update.execute((own, id))?;
        }
        transaction.commit()?;
        bar.inc(1);
    }
    bar.finish_and_clear();

    let mut answers = HashSet::new();
    let (mut wrong, mut touched) = (0, 0);
    for branch in &demo.branches {
        let number = branch.number;
        let own = answer(demo, &branch.connection, number)?;
        wrong += u64::from(own != OWN_ROWS.cast_signed() * demo.own_balance(number));
        answers.insert(own);
        let parents = answer(demo, &demo.parent, number)?;
        let untouched: i64 = demo.own_rows(number).map(|id| balance(SEED, id)).sum();
        touched += u64::from(parents != untouched);
        // A neighbour's rows are the parent's in this branch.
        let neighbour = number % demo.count + 1;
        if neighbour != number {
            let seen = answer(demo, &branch.connection, neighbour)?;
            let untouched: i64 = demo.own_rows(neighbour).map(|id| balance(SEED, id)).sum();
            wrong += u64::from(seen != untouched);
        }
    }
    findings.here(format!(
        "{} different answers of {} branches, each with {OWN_ROWS} rows of its own updated",
        Grouped(answers.len() as u64),
        Grouped(demo.count)
    ));
    findings.here(format!("{touched} of these rows are changed in the parent"));
    if answers.len() as u64 != demo.count || wrong > 0 {
        findings.fail(format!("{wrong} wrong answers"));
    }
    if touched > 0 {
        findings.fail("the parent has changed");
    }
    demo.check_same(&mut findings)?;
    Ok(findings)
}

pub(super) fn show_difference(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let number = SHOWN.min(demo.count);
    let branch = demo.branch(number)?;
    let changed = demo.vfs.changed_pages(&demo.path, &branch.name)?;
    let printed = changed.iter().take(MOST_PRINTED);
    let printed: Vec<_> = printed
        .map(|&page| Grouped(page.into()).to_string())
        .collect();
    findings.here(format!(
        "branch {number} has changed {} of {} pages: {}",
        changed.len(),
        Grouped(demo.len / PAGE),
        printed.join(" ")
    ));
    // A page for each row, and the first one, which has a counter of changes.
    if changed.len() as u64 != OWN_ROWS + 1 || changed.first() != Some(&1) {
        findings.fail(format!(
            "it changed {OWN_ROWS} rows on a page each, and the first page"
        ));
    }
    Ok(findings)
}
