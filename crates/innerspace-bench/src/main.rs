//! Benchmarks: figures are compared only within one run, in which the contenders take turns, by the
//! CPU time of one thread.
//!
//! `harness` measures, `report` prints, and each table is a module that returns rows. A benchmark
//! never asserts a time: a missed budget is printed and written to the JSON, and the exit code
//! stays 0.

mod access;
mod dd;
mod direct;
#[cfg(target_os = "linux")]
mod disk;
#[cfg(all(target_os = "linux", feature = "engines"))]
mod engines;
mod fork_table;
mod groups;
mod harness;
mod hit_ratio;
mod host;
mod memory;
mod page_fault;
mod page_lock;
#[cfg(all(target_os = "linux", feature = "remote"))]
mod remote;
mod report;
mod translation;
mod vma_cache;

use std::error::Error;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use crate::harness::Plan;
use crate::report::Report;
use crate::translation::HostPages;

/// Counts only for the table `memory`.
#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const MORE: &str = "BENCHMARKS.md says what T1 to T5 are";

#[derive(Debug, Parser)]
#[command(version, about = "Benchmarks of Innerspace beside its rivals", after_help = MORE)]
struct Arguments {
    #[command(subcommand)]
    table: TableArguments,
}

#[derive(Debug, Subcommand)]
enum TableArguments {
    /// Loads, views, copies, faults, misses and threads, beside the raw pointer, the kernel and
    /// quick_cache
    Access {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// T1: a file a tenth of memory written and discarded, old way and new, beside tmpfs and the
    /// disk's file system
    Dd {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// T4: a hole read through a mapping, old way and new, beside tmpfs; direct access beside
    /// memory
    Direct {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// T3: the page lock, old ways and new, beside bare atomics and the kernel
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
    VmaCache {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// What `perf script` prints of a program's mappings and faults, as a trace for T5: see
    /// traces/record.sh
    ReduceTrace,
    /// Forks and copy-on-write, beside fork(2)
    Fork {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// Charging, at every depth and on two threads, and what runs beside hits
    Groups {
        #[command(flatten)]
        common: CommonArguments,
    },
    /// Heap of each object that can be made in numbers, beside what its group is charged for it
    Memory {
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
    /// The way to a disk with cold caches: calls, mappings and futures beside pread, mmap and
    /// io_uring
    #[cfg(target_os = "linux")]
    Disk {
        #[command(flatten)]
        disk: disk::DiskArguments,
    },
    /// One contender's run of `disk`
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    DiskChild { task: String },
    /// redb and tantivy on the library beside their own files and mappings, at equal memory
    #[cfg(all(target_os = "linux", feature = "engines"))]
    Engines {
        /// A folder on the disk to measure [default: target below the current folder, if
        /// that is on a disk, or else the folder for temporary files]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        #[command(flatten)]
        common: CommonArguments,
    },
    /// One contender's run of `engines`
    #[cfg(all(target_os = "linux", feature = "engines"))]
    #[command(hide = true)]
    EnginesChild { task: String },
    /// Object storage with 20 ms added to each request, beside the bare client; a tier on local
    /// disk; the memory of 100 files that are read at once
    #[cfg(all(target_os = "linux", feature = "remote"))]
    Remote {
        /// A folder on the disk to measure [default: target below the current folder, if
        /// that is on a disk, or else the folder for temporary files]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        #[command(flatten)]
        common: CommonArguments,
    },
    /// One contender's run of `remote`
    #[cfg(all(target_os = "linux", feature = "remote"))]
    #[command(hide = true)]
    RemoteChild { task: String },
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
    #[arg(long, conflicts_with = "rounds")]
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

impl TableArguments {
    /// Returns where the figures go as JSON, and which rows are selected.
    fn outputs(&self) -> (Option<&Path>, &str) {
        match self {
            TableArguments::Access { common }
            | TableArguments::PageFault { common }
            | TableArguments::Fork { common }
            | TableArguments::Translation { common, .. }
            | TableArguments::Dd { common }
            | TableArguments::Direct { common }
            | TableArguments::PageLock { common }
            | TableArguments::VmaCache { common }
            | TableArguments::Memory { common }
            | TableArguments::Groups { common } => (common.json.as_deref(), &common.only),
            TableArguments::ReduceTrace => (None, ""),
            TableArguments::HitRatio { json, only, .. } => (json.as_deref(), only),
            #[cfg(target_os = "linux")]
            TableArguments::Disk { .. } | TableArguments::DiskChild { .. } => (None, ""),
            #[cfg(all(target_os = "linux", feature = "engines"))]
            TableArguments::Engines { common, .. } => (common.json.as_deref(), &common.only),
            #[cfg(all(target_os = "linux", feature = "engines"))]
            TableArguments::EnginesChild { .. } => (None, ""),
            #[cfg(all(target_os = "linux", feature = "remote"))]
            TableArguments::Remote { common, .. } => (common.json.as_deref(), &common.only),
            #[cfg(all(target_os = "linux", feature = "remote"))]
            TableArguments::RemoteChild { .. } => (None, ""),
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    #[cfg(target_os = "linux")]
    if let TableArguments::Disk { disk } = &arguments.table {
        return run_disk(disk);
    }
    let (json, only) = arguments.table.outputs();
    // A file that cannot be written is an error before any measurement.
    let json = json.map(JsonFile::open).transpose()?;
    let (text, report) = measure(&arguments.table)?;
    if let Some(report) = &report
        && report.is_empty()
    {
        return Err(format!("no row has a name that contains {only:?}").into());
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Nobody reads the text. The figures are written all the same.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        printed => printed.map_err(|error| format!("cannot print: {error}"))?,
    }
    match (json, report) {
        (Some(json), Some(report)) => json.write(&report),
        _ => Ok(()),
    }
}

/// Measures on a disk, which takes minutes, and so prints each row as soon as it is measured.
#[cfg(target_os = "linux")]
fn run_disk(arguments: &disk::DiskArguments) -> Result<(), Box<dyn Error>> {
    let json = arguments.json.as_deref().map(JsonFile::open).transpose()?;
    let report = disk::run(arguments).map_err(|error| -> Box<dyn Error> { error })?;
    if let Some(json) = json {
        json.write(&report)?;
    }
    report.outcome()
}

/// Measures a table. Returns the text to print, and the figures, if there are any.
fn measure(table: &TableArguments) -> Result<(String, Option<Report>), Box<dyn Error>> {
    let table = match table {
        TableArguments::Access { common } => access::table(common.plan(), &common.only)?,
        TableArguments::Dd { common } => dd::table(common.plan(), &common.only)?,
        TableArguments::Direct { common } => direct::table(common.plan(), &common.only)?,
        TableArguments::PageLock { common } => page_lock::table(common.plan(), &common.only)?,
        TableArguments::PageFault { common } => page_fault::table(common.plan(), &common.only)?,
        TableArguments::VmaCache { common } => vma_cache::table(common.plan(), &common.only)?,
        TableArguments::ReduceTrace => {
            return Ok((vma_cache::reduce(std::io::stdin().lock())?, None));
        }
        TableArguments::Fork { common } => fork_table::table(common.plan(), &common.only)?,
        TableArguments::Groups { common } => groups::table(common.plan(), &common.only)?,
        TableArguments::Memory { common } => memory::table(common.plan(), &common.only)?,
        TableArguments::HitRatio { quick, only, .. } => {
            let table = hit_ratio::table(only, if *quick { 8 } else { 1 })?;
            return Ok((table.to_string(), Some(Report::new(vec![table.rows()]))));
        }
        #[cfg(target_os = "linux")]
        TableArguments::Disk { .. } => unreachable!("prints by itself"),
        #[cfg(target_os = "linux")]
        TableArguments::DiskChild { task } => return Ok((disk::run_child(task)?, None)),
        #[cfg(all(target_os = "linux", feature = "engines"))]
        TableArguments::Engines { dir, common } => {
            engines::table(common.plan(), &common.only, dir.as_deref())?
        }
        #[cfg(all(target_os = "linux", feature = "engines"))]
        TableArguments::EnginesChild { task } => return Ok((engines::run_child(task)?, None)),
        #[cfg(all(target_os = "linux", feature = "remote"))]
        TableArguments::Remote { dir, common } => {
            remote::table(common.plan(), &common.only, dir.as_deref())?
        }
        #[cfg(all(target_os = "linux", feature = "remote"))]
        TableArguments::RemoteChild { task } => return Ok((remote::run_child(task)?, None)),
        TableArguments::Translation { common, huge_pages } => {
            let pages = if *huge_pages {
                HostPages::Huge
            } else {
                HostPages::Base
            };
            translation::table(common.plan(), &common.only, pages)?
        }
    };
    let report = Report::new(vec![table]);
    Ok((report.to_string(), Some(report)))
}

/// The file for the figures. It keeps its old contents until the figures are complete.
struct JsonFile<'a> {
    path: &'a Path,
    file: File,
}

impl JsonFile<'_> {
    fn open(path: &Path) -> Result<JsonFile<'_>, Box<dyn Error>> {
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| format!("{path:?}: {error}"))?;
        Ok(JsonFile { path, file })
    }

    fn write(self, report: &impl Serialize) -> Result<(), Box<dyn Error>> {
        let mut text = serde_json::to_vec_pretty(report)?;
        text.push(b'\n');
        let mut file = self.file;
        // A pipe or a terminal cannot be truncated, and has no old contents.
        let cut = match file.metadata() {
            Ok(metadata) if metadata.is_file() => file.set_len(0),
            _ => Ok(()),
        };
        cut.and_then(|()| file.write_all(&text))
            .map_err(|error| format!("{:?}: {error}", self.path).into())
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "innerspace-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
