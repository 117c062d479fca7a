//! The share of requests that find their page: the library's two policies compared with LRU and the
//! optimum, on the same traces.
//!
//! - `traces`: zipf, a scan mixed with a hot set, a loop slightly larger than memory, and a
//!   recorded trace
//! - `rivals`: LRU and Belady's optimum, computed
//!
//! The policies are not simulated: each trace is read through a file of a `Memory`, and the pages
//! that had to be read are counted. The computed rivals get as many pages as the library had for
//! data. Blocks are scattered over the file, so that read-ahead cannot guess them.

mod rivals;
mod traces;

use std::error::Error;
use std::fmt;

use innerspace::store::Store;
use innerspace::{EvictionPolicy, Memory, Threads};

use self::traces::Trace;
use crate::harness::{Budget, Figures, Measured, Unit};
use crate::host::PAGE;
use crate::report::Table;

/// A store whose pages are zeros.
struct Zeros(u64);

impl Store for Zeros {
    fn len(&self) -> std::io::Result<u64> {
        Ok(self.0)
    }

    fn read_at(&self, buffer: &mut [u8], _offset: u64) -> std::io::Result<usize> {
        buffer.fill(0);
        Ok(buffer.len())
    }
}

/// The shares of requests that found their page, in hundredths.
#[derive(Debug)]
pub(crate) struct HitRatios {
    trace: &'static str,
    requests: u64,
    blocks: u64,
    /// The number of pages that each contender had.
    pages: u64,
    lru: f64,
    two_lists: f64,
    s3_fifo: f64,
    optimum: f64,
}

#[derive(Debug)]
pub(crate) struct HitRatioTable(pub(crate) Vec<HitRatios>);

/// Runs every trace whose name contains `only`. A `shrink` above 1 makes the traces shorter.
pub(crate) fn table(only: &str, shrink: u64) -> Result<HitRatioTable, Box<dyn Error>> {
    let traces = traces::all(shrink);
    let wanted = traces.into_iter().filter(|trace| trace.name.contains(only));
    wanted
        .map(|trace| measure(&trace))
        .collect::<Result<_, _>>()
        .map(HitRatioTable)
}

fn measure(trace: &Trace) -> Result<HitRatios, Box<dyn Error>> {
    let two_lists = through_library(trace, EvictionPolicy::TwoLists)?;
    let s3_fifo = through_library(trace, EvictionPolicy::S3Fifo)?;
    let pages = two_lists.pages.max(s3_fifo.pages);
    let requests = trace.blocks.len() as u64;
    let percent = |hits: u64| hits as f64 * 100.0 / requests as f64;
    Ok(HitRatios {
        trace: trace.name,
        requests,
        blocks: trace.distinct(),
        pages,
        lru: percent(rivals::lru(&trace.blocks, pages as usize)),
        two_lists: percent(two_lists.hits),
        s3_fifo: percent(s3_fifo.hits),
        optimum: percent(rivals::optimum(&trace.blocks, pages as usize)),
    })
}

struct Run {
    hits: u64,
    /// The most pages of data that the memory had at a time.
    pages: u64,
}

/// Reads the trace through a file, in a memory about as large as the trace specifies.
fn through_library(trace: &Trace, policy: EvictionPolicy) -> Result<Run, Box<dyn Error>> {
    let distinct = trace.distinct();
    // The sum of the frames with their metadata and words in the lookaside table, the reserve,
    // index nodes, and the fixed needs of a memory.
    let bytes = (trace.pages + trace.pages / 32 + 64 + 44) * (PAGE as u64 + 64 + 8) + 64 * 1024;
    let memory: Memory = Memory::builder(bytes)
        .threads(Threads::None)
        .policy(policy)
        .build()?;
    let blocks = distinct.next_power_of_two() * 2;
    let file = memory
        .file_options()
        .open_store(Zeros(blocks * PAGE as u64))?;
    let mut most = 0;
    let mut byte = [0];
    for (count, block) in trace.blocks.iter().enumerate() {
        // Multiplication by an odd number permutes the numbers below a power of two.
        let place = u64::from(*block).wrapping_mul(0x9e37_79b1) & (blocks - 1);
        // A new handle knows no earlier read, so that no read is taken for part of a stride.
        file.clone().read_at(&mut byte, place * PAGE as u64)?;
        if count % 4096 == 0 {
            most = most.max(file.stats().cached.0);
        }
    }
    let stats = file.stats();
    if stats.read_ahead * 100 > stats.filled {
        return Err(format!("{} pages were read ahead", stats.read_ahead).into());
    }
    Ok(Run {
        // The few pages that happened to be read ahead count as misses.
        hits: trace.blocks.len() as u64 - stats.filled,
        pages: most,
    })
}

impl HitRatioTable {
    /// Returns the shares as rows of a report. Each was counted once, so least, most and median are
    /// equal.
    pub(crate) fn rows(&self) -> Table {
        Table {
            name: "hit ratio".into(),
            rows: self.0.iter().map(HitRatios::row).collect(),
        }
    }
}

impl HitRatios {
    fn row(&self) -> Measured {
        let shares = [
            ("LRU", self.lru),
            (TWO_LISTS, self.two_lists),
            ("S3-FIFO", self.s3_fifo),
            (OPTIMUM, self.optimum),
        ];
        Measured {
            name: format!(
                "{}: {} requests of {} blocks, {} pages",
                self.trace, self.requests, self.blocks, self.pages
            ),
            unit: Unit::Percent,
            contenders: shares
                .map(|(name, share)| (name.into(), Figures::once(share)))
                .into(),
            subject: TWO_LISTS,
            baseline: OPTIMUM,
            budget: Budget::None,
        }
    }
}

const TWO_LISTS: &str = "two lists";
const OPTIMUM: &str = "optimum";

impl fmt::Display for HitRatioTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:28} {:>9} {:>7} {:>6} {:>7} {:>10} {:>8} {:>8}",
            "hit ratio, %", "requests", "blocks", "pages", "LRU", "two lists", "S3-FIFO", "optimum"
        )?;
        for row in &self.0 {
            writeln!(
                f,
                "{:28} {:>9} {:>7} {:>6} {:>7.2} {:>10.2} {:>8.2} {:>8.2}",
                row.trace,
                row.requests,
                row.blocks,
                row.pages,
                row.lru,
                row.two_lists,
                row.s3_fifo,
                row.optimum
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trace_runs_and_nothing_beats_the_optimum() {
        let table = table("", 4).unwrap();
        assert_eq!(table.0.len(), 4);
        for row in &table.0 {
            for ratio in [row.lru, row.two_lists, row.s3_fifo] {
                assert!((0.0..=row.optimum).contains(&ratio), "{row:?}");
            }
        }
        // The policies are made for this: a loop slightly larger than memory, where LRU finds no
        // page.
        let of_loop = table
            .0
            .iter()
            .find(|row| row.trace.starts_with("loop"))
            .unwrap();
        assert_eq!(of_loop.lru, 0.0);
        // Whether pages stay depends on a few pages more or less, so one of several sizes is
        // enough.
        let traces = traces::all(4);
        let mut of_loop = traces
            .into_iter()
            .find(|trace| trace.name.starts_with("loop"))
            .unwrap();
        let mut hits = Vec::new();
        for _ in 0..16 {
            let run = through_library(&of_loop, EvictionPolicy::TwoLists).unwrap();
            hits.push(run.hits * 100 / of_loop.blocks.len() as u64);
            of_loop.pages -= 2;
        }
        assert!(hits.iter().any(|percent| *percent > 5), "{hits:?}");
        let rows = table.rows().rows;
        assert_eq!(rows.len(), table.0.len());
        for (row, of) in rows.iter().zip(&table.0) {
            assert_eq!(row.figures("LRU").unwrap().median, of.lru);
            assert_eq!(row.ratio(), Some(of.two_lists / of.optimum), "{}", row.name);
        }
    }
}
