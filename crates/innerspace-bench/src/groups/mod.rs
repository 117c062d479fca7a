//! The cost of groups: charges at every depth and on two threads, in both orders, faults of a space
//! deep in the tree, eviction during hits, and sampling.
//!
//! From outside the library, no charge can be made without a fault. So the rows of charges alone
//! measure prototypes: the library's way, with a stock for each thread, and the old ways.

mod beside_hits;
mod charging;

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use innerspace::{MIB, Map};

use self::charging::{Charging, Frames};
use crate::access::{Clock, together};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Rows, Unit, memory, thread_time};
use crate::host::PAGE;
use crate::report::Table;

/// The number of pages charged before they are given back.
const RUN: u64 = 4096;
/// The limit of the root of the prototypes, in pages.
const LIMIT: u64 = 1 << 16;
/// The number of pages of the mapping that takes the faults.
const PAGES: u64 = 256;

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let mut rows = Rows::new(plan, only);
    for depth in [1, 4, 8] {
        charges(plan, depth, &mut rows)?;
    }
    orders(plan, &mut rows)?;
    for clock in [Clock::Wall, Clock::Cpu] {
        two_threads(plan, clock, &mut rows)?;
    }
    depths(plan, &mut rows)?;
    beside_hits::measure(plan, &mut rows)?;
    Ok(Table {
        name: "groups".into(),
        rows: rows.measured,
    })
}

fn timed(plan: Plan, per_run: u64, work: impl Fn(u64) -> Option<()>) -> Outcome {
    let runs = plan.operations(200);
    thread_time(runs * per_run, || {
        (0..runs)
            .try_for_each(|_| work(per_run))
            .ok_or_else(|| "a limit was met".into())
    })
}

fn charges(plan: Plan, depth: usize, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let charging = Charging::new(depth, LIMIT);
    let stock = charging.stock();
    let counter = AtomicU64::new(0);
    rows.add(Row {
        name: format!("charge a page, {depth} levels below the root"),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("one atomic addition", || {
                timed(plan, RUN, |times| {
                    (0..times).for_each(|_| {
                        counter.fetch_add(1, Ordering::AcqRel);
                    });
                    Some(())
                })
            }),
            Contender::new("every level", || {
                timed(plan, RUN, |times| charging.charge_every_level(times))
            }),
            Contender::new(STOCK, || timed(plan, RUN, |times| stock.charge(times))),
        ],
        subject: STOCK,
        baseline: "one atomic addition",
        budget: Budget::Absolute(5.0),
    })
}

const STOCK: &str = "from stock";

fn orders(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let charging = Charging::new(4, LIMIT);
    let frames = Frames::new(charging.stock());
    rows.add(Row {
        name: "take and give back a charged page".into(),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("charged last", || {
                timed(plan, RUN, |times| frames.charge_last(times))
            }),
            Contender::new("charged first", || {
                timed(plan, RUN, |times| frames.charge_first(times))
            }),
        ],
        subject: "charged first",
        baseline: "charged last",
        budget: Budget::None,
    })
}

fn two_threads(plan: Plan, clock: Clock, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let charging = Charging::new(4, LIMIT);
    let runs = plan.operations(400);
    let on = |threads: usize| {
        let charging = &charging;
        move || {
            let worker = || {
                move || {
                    let stock = charging.stock();
                    (0..runs)
                        .try_for_each(|_| stock.charge(RUN))
                        .ok_or_else(|| "a limit was met".to_owned())
                }
            };
            together(clock, runs * RUN, (0..threads).map(|_| worker()).collect())
        }
    };
    let (what, budget) = match clock {
        Clock::Wall => ("wall time", Budget::Faster(1.8)),
        Clock::Cpu => ("CPU time of all threads", Budget::Ratio(2.0 / 1.8)),
    };
    rows.add(Row {
        name: format!("two threads, charges of one group, {what}"),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("from stock, one thread", on(1)),
            Contender::new(STOCK, on(2)),
        ],
        subject: STOCK,
        baseline: "from stock, one thread",
        budget,
    })
}

/// Measures faults of a space whose group is deep in the tree, compared with those of a space in
/// the root.
fn depths(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let memory = memory(16 * MIB)?;
    let mut groups = vec![memory.root_group().clone()];
    for level in 1..=8 {
        let group = groups[level - 1].create_child(&format!("level-{level}"), 8 * MIB)?;
        groups.push(group);
    }
    let bytes = PAGES * PAGE as u64;
    let times = plan.operations(400);
    let mut contenders = Vec::new();
    for (name, group) in [("in the root", &groups[0]), ("innerspace", &groups[8])] {
        let space = memory.create_space_in(group)?;
        let at = space.map(Map::anonymous(bytes).writable())?;
        contenders.push(Contender::new(name, move || {
            let mut accessor = space.accessor().unwrap();
            thread_time(times * PAGES, || {
                for _ in 0..times {
                    for page in 0..PAGES {
                        accessor.store(at + page * PAGE as u64, 1_u8)?;
                    }
                    space.discard(at, bytes)?;
                }
                Ok(())
            })
        }));
    }
    rows.add(Row {
        name: "fault in and drop a page, 8 levels below the root".into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "in the root",
        budget: Budget::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs() {
        let table = table(Plan::smoke(), "").unwrap();
        assert_eq!(table.rows.len(), 9);
        for row in &table.rows {
            assert!(row.ratio().is_some(), "{}", row.name);
        }
    }
}
