//! What groups cost: charging at every depth and on two threads, both orders, eviction behind the
//! hit path, and the sample.
//!
//! Instructions, which a busy machine does not change:
//! `valgrind --tool=callgrind --toggle-collect='*Charging*' innerspace-bench groups --quick --only NAME`.

mod beside_hits;

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use innerspace::MIB;
use innerspace::tables::Charging;

use crate::access::threads::{Clock, together};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Rows, Unit, memory, thread_time};
use crate::report::Table;

/// Charges between two times of giving back.
const RUN: u64 = 4096;
/// What there is for the pages of charges.
const MEMORY: u64 = 256 * MIB;

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
    beside_hits::measure(plan, &mut rows)?;
    Ok(Table {
        name: "groups".into(),
        rows: rows.measured,
    })
}

fn timed(plan: Plan, per_run: u64, work: impl Fn(u64)) -> Outcome {
    let runs = plan.operations(200);
    thread_time(runs * per_run, || {
        (0..runs).for_each(|_| work(per_run));
        Ok(())
    })
}

fn charges(plan: Plan, depth: usize, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let memory = memory(MEMORY)?;
    let charging = Charging::new(&memory, depth);
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
                })
            }),
            Contender::new("every level", || {
                timed(plan, RUN, |times| charging.charge_every_level(times))
            }),
            Contender::new("innerspace", || {
                timed(plan, RUN, |times| charging.charge(times))
            }),
        ],
        subject: "innerspace",
        baseline: "one atomic addition",
        budget: Budget::Absolute(5.0),
    })
}

fn orders(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let memory = memory(MEMORY)?;
    let charging = Charging::new(&memory, 4);
    rows.add(Row {
        name: "take and give back a charged page".into(),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("charged last", || {
                timed(plan, RUN, |times| charging.allocate_charging_last(times))
            }),
            Contender::new("innerspace", || {
                timed(plan, RUN, |times| charging.allocate(times))
            }),
        ],
        subject: "innerspace",
        baseline: "charged last",
        budget: Budget::None,
    })
}

fn two_threads(plan: Plan, clock: Clock, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let memory = memory(MEMORY)?;
    let charging = Charging::new(&memory, 4);
    let runs = plan.operations(400);
    let on = |threads: usize| {
        let charging = &charging;
        move || {
            let worker = || {
                move || {
                    (0..runs).for_each(|_| charging.charge(RUN));
                    Ok(())
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
            Contender::new("innerspace, one thread", on(1)),
            Contender::new("innerspace", on(2)),
        ],
        subject: "innerspace",
        baseline: "innerspace, one thread",
        budget,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs() {
        let table = table(Plan::smoke(), "").unwrap();
        assert_eq!(table.rows.len(), 8);
        for row in &table.rows {
            assert!(row.ratio().is_some(), "{}", row.name);
        }
    }
}
