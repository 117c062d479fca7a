//! Benchmarks: every figure is a ratio inside one run, contenders interleaved, CPU time of one thread.
//!
//! `harness` measures, `report` prints, and each table is a module that returns rows. A benchmark
//! never asserts a time: a missed budget is printed and written to the JSON, and the exit code
//! stays 0.

mod access;
#[cfg(feature = "tables")]
mod dd;
#[cfg(feature = "tables")]
mod direct;
mod fork_table;
#[cfg(feature = "tables")]
mod groups;
mod harness;
mod hit_ratio;
mod host;
mod page_fault;
#[cfg(feature = "tables")]
mod page_lock;
mod report;
mod translation;
#[cfg(feature = "tables")]
mod vma_cache;
#[cfg(feature = "tables")]
mod vma_traces;

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::harness::Plan;
use crate::report::Report;
use crate::translation::HostPages;

#[derive(Debug, Parser)]
#[command(version, about = "Benchmarks of Innerspace beside its rivals")]
struct Arguments {
    #[command(subcommand)]
    table: TableArguments,
}

#[derive(Debug, Subcommand)]
enum TableArguments {
    /// Loads, views, copies, faults, misses and threads, beside the raw pointer, the kernel and quick_cache
    Access {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// T1: a file a tenth of memory written and discarded, old way and new, beside tmpfs and the disk's file system
    #[cfg(feature = "tables")]
    Dd {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// T4: a hole read through a mapping, old way and new, beside tmpfs; direct access beside memory
    #[cfg(feature = "tables")]
    Direct {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// T3: the page lock, old ways and new, beside bare atomics and the kernel
    #[cfg(feature = "tables")]
    PageLock {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// T2: the page fault test at 1 to 8 workers, beside the kernel
    PageFault {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// T5: the cache of mappings, old way and new, on ebizzy and on the tree alone
    #[cfg(feature = "tables")]
    VmaCache {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// What `perf script` prints of a program's mappings and faults, as a trace for T5: see traces/record.sh
    #[cfg(feature = "tables")]
    ReduceTrace,
    /// Forks and copy-on-write, beside fork(2)
    Fork {
        #[command(flatten)]
        common: CommonArguments,
    },
    #[cfg(feature = "tables")]
    /// Charging, at every depth and on two threads, and what runs beside hits
    Groups {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// Requests that find their page: both policies beside LRU and the optimum
    HitRatio {
        /// Write the figures as JSON, too
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Traces an eighth as long
        #[arg(long)]
        quick: bool,
        /// Only traces whose names contain this
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
    },
    /// The forms a software TLB may take: prototypes that do not use the library
    Translation {
        #[command(flatten)]
        common: CommonArguments,
        /// Advise the kernel to back the mapping with huge pages
        #[arg(long)]
        huge_pages: bool,
    },
}

#[derive(Debug, Args)]
struct CommonArguments {
    /// Write the figures as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How often each contender is measured
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Five rounds of an eighth of the operations
    #[arg(long)]
    quick: bool,
    /// Measure only rows whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

impl CommonArguments {
    fn plan(&self) -> Plan {
        if self.quick {
            Plan::quick()
        } else {
            Plan::full(self.rounds)
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let (common, table) = match &arguments.table {
        TableArguments::Access { common } => (common, access::table(common.plan(), &common.only)?),
        #[cfg(feature = "tables")]
        TableArguments::Dd { common } => (common, dd::table(common.plan(), &common.only)?),
        #[cfg(feature = "tables")]
        TableArguments::Direct { common } => (common, direct::table(common.plan(), &common.only)?),
        #[cfg(feature = "tables")]
        TableArguments::PageLock { common } => {
            (common, page_lock::table(common.plan(), &common.only)?)
        }
        TableArguments::PageFault { common } => {
            (common, page_fault::table(common.plan(), &common.only)?)
        }
        #[cfg(feature = "tables")]
        TableArguments::VmaCache { common } => {
            (common, vma_cache::table(common.plan(), &common.only)?)
        }
        #[cfg(feature = "tables")]
        TableArguments::ReduceTrace => {
            print!("{}", vma_traces::reduce(std::io::stdin().lock())?);
            return Ok(());
        }
        TableArguments::Fork { common } => {
            (common, fork_table::table(common.plan(), &common.only)?)
        }
        #[cfg(feature = "tables")]
        TableArguments::Groups { common } => (common, groups::table(common.plan(), &common.only)?),
        TableArguments::HitRatio { json, quick, only } => {
            let table = hit_ratio::table(only, if *quick { 8 } else { 1 })?;
            print!("{table}");
            return write_json(json.as_deref(), &Report::new(vec![table.rows()]));
        }
        TableArguments::Translation { common, huge_pages } => {
            let pages = if *huge_pages {
                HostPages::Huge
            } else {
                HostPages::Base
            };
            (
                common,
                translation::table(common.plan(), &common.only, pages)?,
            )
        }
    };
    let report = Report::new(vec![table]);
    print!("{report}");
    write_json(common.json.as_deref(), &report)
}

fn write_json(path: Option<&Path>, report: &Report) -> Result<(), Box<dyn Error>> {
    let Some(path) = path else {
        return Ok(());
    };
    let file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut writer = BufWriter::new(file);
    serde_json::to_writer_pretty(&mut writer, report)?;
    writer.write_all(b"\n")?;
    writer.flush()?;
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("innerspace-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
