//! Table T2: the page fault test. One anonymous mapping is split among 1, 3, 5, 7 or 8 workers;
//! each writes one byte to each page of its part.
//!
//! The figure is the CPU time of all workers for each fault; its inverse is the harmonic mean of
//! faults per CPU second. Frames are recycled on both sides. With several workers a fault should
//! take little more than with one, for which the kernel is the baseline. The old way of charging is
//! in table `groups`, row "take and give back a charged page", contender "charged last".
//!
//! There are two variants. In the first, the workers share a mebibyte, which they fault in and give
//! back again and again, so that frames come back while they are in the processor's cache. In the
//! second, they go once through 64 MiB, which are in no cache. The figure leaves out giving back,
//! but includes its effect on the other workers. It also leaves out the clock, which is read twice
//! in a round: with 8 workers a round is 32 pages, and one reading takes as long as three of their
//! faults. Where frames are in no cache, memory is the limit: contenders that only clear as many
//! pages show how much memory bandwidth several workers get.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use innerspace::{MIB, Map, Space};

use crate::access::{Clock, together};
use crate::harness::{
    Budget, Contender, Outcome, Plan, Row, Rows, Sample, Unit, memory, thread_nanoseconds,
};
use crate::host::{PAGE, Region, discard};
use crate::report::Table;
use crate::translation::HostPages;

/// The number of pages that all workers together fault in: 64 MiB.
const PAGES: u64 = 16_384;
/// The number of pages of the mapping whose frames come back warm: 1 MiB.
const WARM: u64 = 256;
/// How many times the pages of the cold variant are faulted in warm. The first round of each worker
/// is cold and does not count.
const WARM_ROUNDS: u64 = 8;
const WORKERS: [u64; 5] = [1, 3, 5, 7, 8];

const KERNEL: &str = "kernel";
const ONE: &str = "innerspace, one worker";
/// The contender that only clears pages: the limit set by memory.
const CLEAR: &str = "clear pages";
const CLEAR_ONE: &str = "clear pages, one worker";

/// The work of each worker.
#[derive(Clone, Copy)]
struct Work {
    workers: u64,
    /// The number of pages of each worker's part of the mapping.
    pages: u64,
    /// How many times each worker faults these pages in and gives them back.
    times: u64,
}

impl Work {
    fn warm(pages: u64, workers: u64) -> Work {
        let part = (WARM / workers).min(pages);
        Work {
            workers,
            pages: part,
            times: (WARM_ROUNDS * pages / workers).div_ceil(part),
        }
    }

    fn once(pages: u64, workers: u64) -> Work {
        Work {
            workers,
            pages: pages / workers,
            times: 1,
        }
    }

    fn part(self) -> u64 {
        self.pages * PAGE as u64
    }

    fn bytes(self) -> u64 {
        self.workers * self.part()
    }

    /// Lets each worker take its steps `times` times, and adds up the time of the faults.
    fn measure<W>(self, workers: impl Iterator<Item = W>) -> Outcome
    where
        W: FnMut(Step) -> Result<(), String> + Send,
    {
        let total = AtomicU64::new(0);
        let clock = clock_cost();
        let run = |mut step: W| {
            let total = &total;
            move || {
                for _ in 0..self.times {
                    let start = thread_nanoseconds();
                    step(Step::Fault)?;
                    let took = thread_nanoseconds() - start;
                    total.fetch_add(took.saturating_sub(clock), Ordering::Relaxed);
                    step(Step::GiveBack)?;
                }
                Ok(())
            }
        };
        let each = self.pages * self.times;
        let sample = together(Clock::Cpu, each, workers.map(run).collect())?;
        Ok(Sample {
            total: total.into_inner(),
            ..sample
        })
    }
}

/// Returns the time between two consecutive readings of the clock: the median of many.
fn clock_cost() -> u64 {
    let mut apart: Vec<u64> = (0..101)
        .map(|_| {
            let start = thread_nanoseconds();
            thread_nanoseconds() - start
        })
        .collect();
    apart.sort_unstable();
    apart[apart.len() / 2]
}

/// A worker's action on its part.
#[derive(Clone, Copy)]
enum Step {
    /// Stores a byte to each page.
    Fault,
    GiveBack,
}

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let pages = plan.pages(PAGES);
    let bytes = pages * PAGE as u64;
    let space = memory(bytes + bytes / 8 + 16 * MIB)?.create_space()?;
    let mut rows = Rows::new(plan, only);
    for workers in WORKERS {
        let name = format!("write faults, 1 MiB in all, {workers} workers");
        let work = |workers| Work::warm(pages, workers);
        rows.add(row(&space, name, work, workers, 8.0))?;
    }
    for workers in WORKERS {
        let name = format!("write faults, 64 MiB in all, {workers} workers");
        let work = |workers| Work::once(pages, workers);
        let mut row = row(&space, name, work, workers, 4.0);
        let (all, one) = (work(workers), work(1));
        row.contenders
            .push(Contender::new(CLEAR, move || clear(all)));
        if workers > 1 {
            row.contenders
                .push(Contender::new(CLEAR_ONE, move || clear(one)));
        }
        rows.add(row)?;
    }
    Ok(Table {
        name: "page fault test (T2)".into(),
        rows: rows.measured,
    })
}

/// Creates a row. One worker has to be `faster` times as fast as the kernel; each of several has to
/// be no slower than one.
fn row(
    space: &Space,
    name: String,
    work: impl Fn(u64) -> Work,
    workers: u64,
    faster: f64,
) -> Row<'_> {
    let (all, one) = (work(workers), work(1));
    let mut contenders = vec![
        Contender::new(KERNEL, move || kernel(all)),
        Contender::new("innerspace", move || ours(space, all)),
    ];
    let (baseline, budget) = match workers {
        1 => (KERNEL, Budget::Faster(faster)),
        _ => {
            contenders.push(Contender::new(ONE, move || ours(space, one)));
            (ONE, Budget::Faster(0.9))
        }
    };
    Row {
        name,
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline,
        budget,
    }
}

fn ours(space: &Space, work: Work) -> Outcome {
    let at = space.map(Map::anonymous(work.bytes()))?;
    let worker = |number: u64| {
        let mut accessor = space.accessor().unwrap();
        let part = at + number * work.part();
        move |step| match step {
            Step::Fault => (0..work.pages).try_for_each(|page| {
                let stored = accessor.store(part + page * PAGE as u64, 1_u8);
                stored.map_err(|fault| fault.to_string())
            }),
            Step::GiveBack => {
                let given = space.discard(part, work.part());
                given.map_err(|error| error.to_string())
            }
        }
    };
    let sample = work.measure((0..work.workers).map(worker));
    space.unmap(at, work.bytes())?;
    sample
}

/// Clears pages of a region of huge pages that are already resident.
fn clear(work: Work) -> Outcome {
    let mut region = Region::anonymous(work.bytes() as usize, HostPages::Huge)?;
    region.bytes_mut().fill(1);
    let parts = region.bytes_mut().chunks_mut(work.part() as usize);
    work.measure(parts.map(|part| {
        move |step| {
            if matches!(step, Step::Fault) {
                for page in part.chunks_exact_mut(PAGE) {
                    page.fill(0);
                    black_box(&page[0]);
                }
            }
            Ok(())
        }
    }))
}

fn kernel(work: Work) -> Outcome {
    let mut region = Region::anonymous(work.bytes() as usize, HostPages::Base)?;
    let parts = region.bytes_mut().chunks_mut(work.part() as usize);
    work.measure(parts.map(|part| {
        move |step| match step {
            Step::Fault => {
                for page in part.chunks_mut(PAGE) {
                    page[0] = 1;
                }
                std::hint::black_box(&mut *part);
                Ok(())
            }
            Step::GiveBack => discard(part).map_err(|error| error.to_string()),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs() {
        let table = table(Plan::smoke(), "").unwrap();
        assert_eq!(table.rows.len(), 2 * WORKERS.len());
        for row in &table.rows {
            assert!(row.ratio().is_some() && row.met().is_some(), "{}", row.name);
        }
    }
}
