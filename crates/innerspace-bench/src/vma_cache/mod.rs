//! Table T5: the cache of mappings that a fault looks at before the tree.
//!
//! Each row replays the lookups and changes of one workload through prototypes of three schemes: no
//! cache, one mapping for the whole space (the old way), and four slots for each thread, as in the
//! library. The row's name contains the hit rates; a lookup counts when it is called, before any
//! check. The figure is the time of a lookup, without the changes.
//!
//! `ebizzy` 0.3 draws its random numbers from a state that is always zero, so the published runs
//! used one chunk and one key. "Faithful" does the same; "random" really draws. Both keep the
//! memory of their copies mapped, as the allocator's arenas do, and take the faults on it again
//! each time; "mapped" maps and unmaps each copy. Threads take turns after each fault, as they
//! would do on as many processors.
//!
//! The recorded programs (`traces/`) are a compiler run, a git command and two others. Their figure
//! is the time of an event, which includes changes of the mappings: these cost the same in every
//! scheme. The published figures are for a whole build (88.09 %), a boot (73.45 %) and data mining
//! (91.15 %), on a machine with 80 threads; the compiler run is closest to them.

mod replay;
mod traces;

use std::error::Error;
use std::io::Read;

use flate2::read::GzDecoder;

use self::replay::{Replay, Scheme};
pub(crate) use self::traces::reduce;
use crate::harness::{
    Budget, Contender, Outcome, Plan, Row, Rows, Sample, Seeds, Unit, thread_time, xorshift,
};
use crate::host::PAGE;
use crate::report::Table;

const SCHEMES: [(&str, Scheme); 3] = [
    ("no cache", Scheme::None),
    ("one per space", Scheme::OnePerSpace),
    ("four per thread", Scheme::PerThread),
];

/// The number of pages of a chunk: ebizzy's 256 KiB records.
const CHUNK: u64 = 64;
const CHUNKS: u64 = 10;

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let mut rows = Rows::new(plan, only);
    for threads in [2, 8, 80] {
        for choice in [Choice::Faithful, Choice::Random, Choice::Mapped] {
            rows.add(ebizzy(plan, threads, choice))?;
        }
    }
    for mappings in [16, 1_000, 50_000] {
        rows.add(anywhere(plan, mappings))?;
    }
    for (name, trace) in TRACES {
        rows.add(recorded(plan, name, trace)?)?;
    }
    Ok(Table {
        name: "VMA cache (T5)".into(),
        rows: rows.measured,
    })
}

/// The recorded programs; see `traces/README.md`.
const TRACES: [(&str, &[u8]); 4] = [
    ("gcc", include_bytes!("../../traces/gcc.gz")),
    ("rustc", include_bytes!("../../traces/rustc.gz")),
    ("git log", include_bytes!("../../traces/git.gz")),
    ("python", include_bytes!("../../traces/python.gz")),
];

/// How a thread chooses its chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    /// Always the same, as the published runs did.
    Faithful,
    Random,
    /// At random, with each copy in a mapping of its own.
    Mapped,
}

const fn address(page: u64) -> u64 {
    0x7f00_0000_0000 + page * PAGE as u64
}

/// Returns where thread `thread` keeps its copies.
fn own(thread: u64) -> u64 {
    (1 + thread) * 4 * CHUNK * CHUNKS
}

/// Replays ebizzy: a thread maps memory, copies a chunk to it, searches the copy for a key, and
/// unmaps it.
fn run_ebizzy(
    replay: &mut Replay,
    threads: u64,
    choice: Choice,
    faults: u64,
    seed: u64,
) -> Outcome {
    // Maps the chunks, and some mappings of other kinds between the memory of the threads.
    for chunk in 0..CHUNKS {
        let start = chunk * 2 * CHUNK;
        let kind = chunk as usize % 2;
        replay.map(address(start), address(start + CHUNK), kind);
    }
    let mut random = seed;
    let mut draw = |end: u64| match choice {
        Choice::Faithful => 0,
        Choice::Random | Choice::Mapped => xorshift(&mut random) % end,
    };
    let mut sum = Sample {
        operations: 0,
        total: 0,
    };
    while sum.operations < faults {
        let mapped = choice == Choice::Mapped;
        if mapped || sum.operations == 0 {
            for thread in 0..threads {
                let start = own(thread);
                let kind = thread as usize % 2;
                replay.map(address(start), address(start + CHUNK), kind);
            }
        }
        // Reading the clock takes as long as many lookups.
        let of_all = 2 * CHUNK * threads;
        let rounds = if mapped { 1 } else { faults.div_ceil(of_all) };
        let one = thread_time(rounds * of_all, || {
            let mut chunks = vec![0; threads as usize];
            for _ in 0..rounds {
                chunks.fill_with(|| address(draw(CHUNKS) * 2 * CHUNK));
                copy_chunks(replay, &chunks)?;
            }
            Ok(())
        })?;
        sum.operations += one.operations;
        sum.total += one.total;
        if mapped {
            for thread in 0..threads {
                let start = own(thread);
                replay.unmap(address(start), address(start + CHUNK));
            }
        }
    }
    Ok(sum)
}

/// Has each thread read its chunk, and write its copy.
fn copy_chunks(replay: &mut Replay, chunks: &[u64]) -> Result<(), Box<dyn Error>> {
    for page in 0..CHUNK {
        let offset = page * PAGE as u64;
        for (thread, chunk) in chunks.iter().enumerate() {
            replay.find(thread, chunk + offset).ok_or("not mapped")?;
            let copy = address(own(thread as u64)) + offset;
            replay.find(thread, copy).ok_or("not mapped")?;
        }
    }
    Ok(())
}

fn rate(replay: &Replay) -> f64 {
    let found = replay.lookups();
    100.0 * found.hits as f64 / found.calls as f64
}

fn row<'a>(
    name: &str,
    threads: usize,
    budget: Budget,
    mut run: impl FnMut(&mut Replay, u64) -> Outcome + Clone + 'a,
) -> Row<'a> {
    let mut rates = String::new();
    for (scheme, kind) in &SCHEMES[1..] {
        let mut replay = Replay::new(*kind, threads);
        if run(&mut replay, 1).is_ok() {
            rates += &format!("; {scheme} hits {:.2} %", rate(&replay));
        }
    }
    let contender = |(scheme, kind): (&'static str, Scheme)| {
        let mut run = run.clone();
        let mut seeds = Seeds::default();
        Contender::new(scheme, move || {
            let mut replay = Replay::new(kind, threads);
            run(&mut replay, seeds.next())
        })
    };
    Row {
        name: format!("{name}{rates}"),
        unit: Unit::Nanoseconds,
        contenders: SCHEMES.map(contender).into_iter().collect(),
        subject: "four per thread",
        baseline: "no cache",
        budget,
    }
}

fn ebizzy(plan: Plan, threads: u64, choice: Choice) -> Row<'static> {
    let faults = plan.operations(2_000_000);
    let name = format!("ebizzy, {choice:?}, {threads} threads").to_lowercase();
    // The budget is for rows where every lookup finds its slot.
    let budget = match choice {
        Choice::Faithful => Budget::Absolute(2.0),
        Choice::Random | Choice::Mapped => Budget::None,
    };
    row(&name, threads as usize, budget, move |replay, seed| {
        run_ebizzy(replay, threads, choice, faults, seed)
    })
}

/// Measures one thread that looks up random addresses among `mappings` mappings: the cost of the
/// tree alone.
fn anywhere(plan: Plan, mappings: u64) -> Row<'static> {
    let finds = plan.operations(2_000_000);
    let name = format!("at random among {mappings} mappings");
    row(&name, 1, Budget::None, move |replay, seed| {
        for number in 0..mappings {
            replay.map(address(2 * number), address(2 * number + 1), 0);
        }
        let mut random = seed;
        thread_time(finds, || {
            for _ in 0..finds {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let number = (random >> 33) % mappings;
                replay.find(0, address(2 * number)).ok_or("not mapped")?;
            }
            Ok(())
        })
    })
}

fn recorded(plan: Plan, name: &str, trace: &[u8]) -> Result<Row<'static>, Box<dyn Error>> {
    let mut text = String::new();
    GzDecoder::new(trace).read_to_string(&mut text)?;
    let events = traces::parse(&text)?;
    let faults = traces::replay(&events, Scheme::None);
    let mut rates = format!(", {} faults, {} lost", faults.calls, faults.lost);
    for (scheme, kind) in &SCHEMES[1..] {
        let done = traces::replay(&events, *kind);
        rates += &format!(
            "; {scheme} hits {:.2} %",
            100.0 * done.hits as f64 / done.calls as f64
        );
    }
    let rounds = plan.operations(2_000_000).div_ceil(events.len() as u64);
    let contender = |(scheme, kind): (&'static str, Scheme)| {
        let events = events.clone();
        Contender::new(scheme, move || {
            thread_time(rounds * events.len() as u64, || {
                Ok((0..rounds)
                    .map(|_| traces::replay(&events, kind).hits)
                    .sum::<u64>())
            })
        })
    };
    Ok(Row {
        name: format!("recorded, {name}{rates}"),
        unit: Unit::Nanoseconds,
        contenders: SCHEMES.map(contender).into_iter().collect(),
        subject: "four per thread",
        baseline: "no cache",
        budget: Budget::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs() {
        let table = table(Plan::smoke(), "").unwrap();
        assert_eq!(table.rows.len(), 9 + 3 + TRACES.len());
        for row in &table.rows {
            assert!(row.ratio().is_some(), "{}", row.name);
            assert!(row.name.contains("four per thread hits "), "{}", row.name);
        }
        let with_budget = table.rows.iter().filter(|row| row.met().is_some());
        assert_eq!(with_budget.count(), 3);
    }
}
