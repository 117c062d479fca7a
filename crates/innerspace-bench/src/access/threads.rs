//! The hit paths on two threads, compared with one.
//!
//! Wall time is what the budget is for, and needs two idle cores. CPU time for each operation is
//! measured as well: it shows even on a busy machine whether the threads obstruct each other. Twice
//! the work in 1 / 1.8 of the time is 1.11 times the CPU time for each operation.

use std::error::Error;
use std::sync::Barrier;
use std::time::Instant;

use innerspace::{Accessor, PagedFile};

use super::loads::{InSession, independent};
use super::{Resident, WhenWanted, views};
use crate::harness::{
    Budget, Contender, Outcome, Plan, Row, Rows, Sample, Unit, thread_nanoseconds,
};
use crate::host::stay_on_processor;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Clock {
    Wall,
    Cpu,
}

/// Runs all workers at the same time, each on a thread and a processor of its own. Each worker does
/// `count` operations.
pub(crate) fn together<W>(clock: Clock, count: u64, workers: Vec<W>) -> Outcome
where
    W: FnOnce() -> Result<(), String> + Send,
{
    let barrier = Barrier::new(workers.len());
    let operations = count * workers.len() as u64;
    let times = std::thread::scope(|scope| {
        let start = |(number, work): (usize, W)| {
            let barrier = &barrier;
            scope.spawn(move || {
                let stays = stay_on_processor(number);
                barrier.wait();
                stays.map_err(|error| format!("a thread cannot be kept in its place: {error}"))?;
                let (wall, cpu) = (Instant::now(), thread_nanoseconds());
                work()?;
                Ok((wall, Instant::now(), thread_nanoseconds() - cpu))
            })
        };
        let threads: Vec<_> = workers.into_iter().enumerate().map(start).collect();
        let joined = threads.into_iter().map(|thread| {
            let result: Result<_, String> = thread.join().map_err(|_| "a thread panicked")?;
            result
        });
        joined.collect::<Result<Vec<_>, String>>()
    })?;
    let total = match clock {
        Clock::Cpu => times.iter().map(|(_, _, cpu)| cpu).sum(),
        Clock::Wall => {
            let first = times.iter().map(|(start, ..)| *start).min();
            let last = times.iter().map(|(_, end, _)| *end).max();
            let (Some(first), Some(last)) = (first, last) else {
                return Err("no threads".into());
            };
            (last - first).as_nanos() as u64
        }
    };
    Ok(Sample { operations, total })
}

pub(super) fn measure(
    plan: Plan,
    resident: &WhenWanted,
    rows: &mut Rows,
) -> Result<(), Box<dyn Error>> {
    type Make = for<'a> fn(Plan, &'a Resident, Clock, usize) -> Contender<'a>;
    let hits: [(_, Make); 2] = [
        ("random loads in a session", loads),
        ("views of random pages", file_views),
    ];
    for clock in [Clock::Wall, Clock::Cpu] {
        for (what, contender) in hits {
            let (by, budget) = match clock {
                Clock::Wall => ("wall time", Budget::Faster(1.8)),
                Clock::Cpu => ("CPU time of all threads", Budget::Ratio(2.0 / 1.8)),
            };
            let name = format!("two threads, {what}, {by}");
            rows.add_with(&name, || {
                let resident = resident.get()?;
                let contenders = [1, 2].map(|threads| contender(plan, resident, clock, threads));
                Ok(row(&name, contenders.into(), budget))
            })?;
        }
    }
    Ok(())
}

fn row<'a>(name: &str, contenders: Vec<Contender<'a>>, budget: Budget) -> Row<'a> {
    Row {
        name: name.into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "innerspace, one thread",
        budget,
    }
}

fn name(threads: usize) -> &'static str {
    match threads {
        1 => "innerspace, one thread",
        _ => "innerspace",
    }
}

fn loads(plan: Plan, resident: &Resident, clock: Clock, threads: usize) -> Contender<'_> {
    let count = plan.operations(1_600_000);
    let mut accessors: Vec<Accessor> = (0..threads)
        .map(|_| resident.space.accessor().unwrap())
        .collect();
    Contender::new(name(threads), move || {
        let workers = accessors.iter_mut().map(|accessor| {
            let seed = resident.seed();
            let (at, bytes) = (resident.at, resident.bytes);
            move || {
                let sum = accessor
                    .session(|session| independent(InSession(session, at), bytes, count, seed));
                let sum = sum.map_err(|e| e.to_string())?;
                std::hint::black_box(sum);
                Ok(())
            }
        });
        together(clock, count, workers.collect())
    })
}

/// Takes views on several threads. Each has a handle of its own, because views count on their
/// handle.
fn file_views(plan: Plan, resident: &Resident, clock: Clock, threads: usize) -> Contender<'_> {
    let count = plan.operations(400_000);
    let files: Vec<PagedFile> = (0..threads).map(|_| resident.file.clone()).collect();
    Contender::new(name(threads), move || {
        let workers = files.iter().map(|file| {
            let seed = resident.seed();
            let bytes = resident.bytes;
            move || {
                let sum = views::views(bytes, file, count, seed).map_err(|e| e.to_string())?;
                std::hint::black_box(sum);
                Ok(())
            }
        });
        together(clock, count, workers.collect())
    })
}
