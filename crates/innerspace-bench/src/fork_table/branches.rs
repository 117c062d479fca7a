//! The memory that many branches of one snapshot take.

use std::error::Error;

use super::Resident;
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Sample, Unit};
use crate::host::PAGE;

/// The number of pages that each branch stores to, all in one leaf.
const CHANGED: u64 = 5;
/// The number of nodes on the way to a leaf, root and leaf included.
const PATH: u64 = 4;

/// Measures the bytes of memory that each branch takes in addition to the pages it changed and the
/// tables that lead to them.
pub(super) fn memory<'a>(plan: Plan, resident: &'a Resident) -> Result<Row<'a>, Box<dyn Error>> {
    let count = plan.operations(10_000);
    let snapshot = resident.space.freeze()?;
    let at = resident.space.stats().mappings[0].start;
    let pages = resident.pages;
    let innerspace = move || -> Outcome {
        let before = resident.memory.stats().usage;
        let mut branches = Vec::new();
        for number in 0..count {
            let branch = snapshot.fork()?;
            let mut accessor = branch.accessor().unwrap();
            for page in 0..CHANGED {
                let page = (number * 7 + page) % 64 % pages;
                accessor.store(at + page * PAGE as u64, number)?;
            }
            branches.push(branch);
        }
        Ok(Sample {
            operations: count,
            total: resident.memory.stats().usage - before,
        })
    };
    let needed = move || {
        Ok(Sample {
            operations: 1,
            total: (CHANGED + PATH) * PAGE as u64,
        })
    };
    Ok(Row {
        name: format!("memory of {count} branches that changed {CHANGED} pages each"),
        unit: Unit::Bytes,
        contenders: vec![
            Contender::new("innerspace", innerspace),
            Contender::new("changed pages and tables", needed),
        ],
        subject: "innerspace",
        baseline: "changed pages and tables",
        budget: Budget::Ratio(1.3),
    })
}
