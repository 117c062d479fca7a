//! Table T2: the page fault test. One anonymous mapping is split among 1, 3, 5, 7 or 8 workers; each writes one byte to each
//! page of its part.
//!
//! The figure is CPU time of all workers for each fault: its inverse is the harmonic mean of faults per CPU second.
//! The frames are recycled on both sides. Several workers are to take little more than one, whose rival is the kernel. The
//! old way of charging is in table `groups`, row "take and give back a charged page", contender "charged last".

use std::error::Error;

use innerspace::{MIB, Map, Space};

use crate::access::{Clock, together};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Rows, Unit, memory};
use crate::host::{PAGE, Region};
use crate::report::Table;
use crate::translation::HostPages;

/// Pages of the mapping: 64 MiB.
const PAGES: u64 = 16_384;
const WORKERS: [u64; 5] = [1, 3, 5, 7, 8];

const KERNEL: &str = "kernel";
const ONE: &str = "innerspace, one worker";

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let pages = plan.pages(PAGES);
    let bytes = pages * PAGE as u64;
    let space = memory(bytes + bytes / 8 + 16 * MIB)?.space()?;
    let mut rows = Rows::new(plan, only);
    for workers in WORKERS {
        rows.add(row(&space, pages, workers))?;
    }
    Ok(Table {
        name: "page fault test (T2)".into(),
        rows: rows.measured,
    })
}

fn row(space: &Space, pages: u64, workers: u64) -> Row<'_> {
    let each = pages / workers;
    let mut contenders = vec![
        Contender::new(KERNEL, move || kernel(each, workers)),
        Contender::new("innerspace", move || ours(space, each, workers)),
    ];
    let (baseline, budget) = match workers {
        1 => (KERNEL, Budget::Faster(8.0)),
        _ => {
            contenders.push(Contender::new(ONE, move || ours(space, pages, 1)));
            (ONE, Budget::Faster(0.9))
        }
    };
    Row {
        name: format!("write faults, {workers} workers, CPU time a fault"),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline,
        budget,
    }
}

fn ours(space: &Space, each: u64, workers: u64) -> Outcome {
    let bytes = each * workers * PAGE as u64;
    let at = space.map(Map::anonymous(bytes))?;
    let work = |worker: u64| {
        let mut accessor = space.accessor();
        move || {
            for page in worker * each..(worker + 1) * each {
                let stored = accessor.store(at + page * PAGE as u64, 1_u8);
                stored.map_err(|fault| fault.to_string())?;
            }
            Ok(())
        }
    };
    let sample = together(Clock::Cpu, each, (0..workers).map(work).collect());
    space.unmap(at, bytes)?;
    sample
}

fn kernel(each: u64, workers: u64) -> Outcome {
    let mut region = Region::anonymous((each * workers) as usize * PAGE, HostPages::Base)?;
    let parts = region.bytes_mut().chunks_mut(each as usize * PAGE);
    let work = |part| {
        move || {
            let part: &mut [u8] = part;
            for page in part.chunks_mut(PAGE) {
                page[0] = 1;
            }
            std::hint::black_box(part);
            Ok(())
        }
    };
    together(Clock::Cpu, each, parts.map(work).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs() {
        let table = table(Plan::smoke(), "").unwrap();
        assert_eq!(table.rows.len(), WORKERS.len());
        for row in &table.rows {
            assert!(row.ratio().is_some() && row.met().is_some(), "{}", row.name);
        }
    }
}
