//! Table T2: the page fault test. One anonymous mapping is split among 1, 3, 5, 7 or 8 workers; each writes one byte to each
//! page of its part.
//!
//! The figure is CPU time of all workers for each fault: its inverse is the harmonic mean of faults per CPU second.
//! The frames are recycled on both sides. The old way of charging is in table T1's feature, not here.

use std::error::Error;

use innerspace::{MIB, Map, Memory, MemoryOptions, Space, Threads};

use crate::access::{Clock, together};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Rows, Unit};
use crate::host::{PAGE, Region};
use crate::report::Table;
use crate::translation::HostPages;

/// Pages of the mapping: 64 MiB.
const PAGES: u64 = 16_384;
const WORKERS: [u64; 5] = [1, 3, 5, 7, 8];

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let pages = plan.operations(4 * PAGES).min(PAGES);
    let bytes = pages * PAGE as u64;
    let options = MemoryOptions::new(bytes + bytes / 8 + 16 * MIB).threads(Threads::None);
    let memory: Memory = options.build()?;
    let space = memory.space()?;
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
    let contenders = vec![
        Contender::new("kernel", move || kernel(each, workers)),
        Contender::new("innerspace", move || ours(space, each, workers)),
    ];
    Row {
        name: format!("write faults, {workers} workers, CPU time a fault"),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "kernel",
        budget: match workers {
            1 => Budget::Faster(8.0),
            _ => Budget::None,
        },
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
