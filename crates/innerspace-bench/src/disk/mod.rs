//! The library's way to a disk beside its rivals', with cold caches.
//!
//! | file | what is in it |
//! |---|---|
//! | `rows` | what is done in each row, by whom, and what is aimed at |
//! | `contenders` | how each contender does it |
//! | `in_flight` | a small executor; io_uring without anything around it |
//! | `child` | one contender's run, in a process and a memory cgroup of its own |
//! | `file` | the file, the disk below it, and caches that are let go of |
//! | `figures` | medians, ratios and aims |
//!
//! Contenders take turns, each with all caches cold, and each round begins with another one. A
//! cache of the host's below a virtual disk cannot be dropped: what one contender has read, the next
//! may read faster.
//!
//! Wall and CPU time are of the work alone: the memory is made and the files are opened before. CPU
//! time is that of the whole process, without the kernel's own threads. Every page tells its number,
//! and every read is checked. In the rows of random pages no page is read twice. Except by the
//! scans, the kernel's mapping is read with MADV_RANDOM, for else it would read a lot around each
//! page that nobody asked for. An aim that is missed is printed, and no more.

mod child;
mod contenders;
mod figures;
mod file;
mod in_flight;
mod rows;

use std::error::Error;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use innerspace::Memory;
use innerspace::store::kernel_cached_pages;
use serde::Serialize;

pub(crate) use self::child::run as run_child;
use self::child::{MemoryGroup, Task};
use self::figures::{Measured, Run, Runs};
use self::file::{Dropped, OwnFile};
use self::rows::{Contender, Row};
use crate::report::Machine;

type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const MIB: u64 = 1 << 20;
/// A contender whose first run took longer is not run again.
const LONG_SECONDS: f64 = 10.0;
/// --quick takes one of so many operations.
const QUICK: u64 = 8;

#[derive(Debug, Args)]
pub(crate) struct DiskArguments {
    /// A folder on the disk to measure [default: target below the current folder, if
    /// that is on a disk, or else the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Length of the file, at least twice the limit [default: 2GiB, or 256MiB with --quick]
    #[arg(long, value_name = "BYTES", value_parser = mebibytes)]
    size: Option<u64>,
    /// Memory that each contender may take
    #[arg(long, value_name = "BYTES", value_parser = mebibytes, default_value = "128MiB")]
    limit: u64,
    /// Measure only rows whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Write the figures as JSON, too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// One round of an eighth of the operations
    #[arg(long)]
    quick: bool,
}

/// A number of bytes, in whole mebibytes.
fn mebibytes(text: &str) -> Result<u64, String> {
    let told = || format!("{text:?} is no size: give it as 64MiB or 2GiB, in whole mebibytes");
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = match unit.trim() {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => MIB,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(told()),
    };
    let number: u64 = number.parse().map_err(|_| told())?;
    let bytes = number.checked_mul(unit).ok_or_else(told)?;
    if bytes == 0 || !bytes.is_multiple_of(MIB) || bytes > 8 << 40 {
        return Err(told());
    }
    Ok(bytes)
}

/// What a reader of the figures has to know.
const METHOD: &str = "CPU time is that of the contender's process. Workers of the kernel, such as \
those of io_uring, are not in it; SQPOLL is not used.";

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_interrupt(_signal: libc::c_int) {
    // Relaxed: nothing else is told by it.
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From here on an interrupt ends the run between two contenders, so that the files are removed.
fn catch_interrupts() {
    let handler = note_interrupt as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores to an atomic and does nothing else.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

fn interrupted() -> Fallible {
    // Relaxed: as in `note_interrupt`.
    match INTERRUPTED.load(Ordering::Relaxed) {
        true => Err("interrupted; the files are removed".into()),
        false => Ok(()),
    }
}

/// What the JSON holds.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    table: &'static str,
    size: u64,
    limit: u64,
    rounds: u64,
    notes: Vec<String>,
    rows: Vec<Measured>,
    #[serde(skip)]
    failures: usize,
}

impl Report {
    /// Runs that failed fail the command, after all the others were measured.
    pub(crate) fn outcome(&self) -> Result<(), Box<dyn Error>> {
        match self.failures {
            0 => Ok(()),
            1 => Err("a contender failed: see its line".into()),
            many => Err(format!("{many} contenders failed: see their lines").into()),
        }
    }
}

/// Measures the rows, and prints each as soon as it is known.
pub(crate) fn run(arguments: &DiskArguments) -> Fallible<Report> {
    let default = if arguments.quick { 256 } else { 2048 };
    let size = arguments.size.unwrap_or(default * MIB);
    let (limit, only) = (arguments.limit, &arguments.only);
    if size < 2 * limit {
        let (size, limit) = (size / MIB, limit / MIB);
        return Err(
            format!("--size ({size} MiB) must be at least twice --limit ({limit} MiB)").into(),
        );
    }
    let divisor = if arguments.quick { QUICK } else { 1 };
    let mut rows = rows::all(size, limit, divisor);
    rows.retain(|row| row.name.contains(only.as_str()));
    if rows.is_empty() {
        return Err(format!("no row has a name that contains {only:?}").into());
    }
    let folder = arguments.dir.clone().unwrap_or_else(file::default_folder);
    // A limit that no memory can have is found out before anything is written.
    drop(Memory::with_limit(limit).map_err(|error| format!("--limit: {error}"))?);
    let beside = rows.iter().filter_map(|row| row.work.new_file()).max();
    file::check_folder(&folder, size + beside.unwrap_or(0))?;
    catch_interrupts();
    let file = OwnFile::named(&folder, "disk");
    file.write(size)?;
    let mut report = Report {
        machine: Machine::this(),
        table: "disk",
        size,
        limit,
        rounds: if arguments.quick { 1 } else { 3 },
        notes: vec![METHOD.to_owned()],
        rows: Vec::new(),
        failures: 0,
    };
    let dropped = file::drop_caches(&file.path)?;
    if dropped == Dropped::FileOnly {
        report.notes.push(
            "may not write /proc/sys/vm/drop_caches: only the file's own pages are let go of"
                .into(),
        );
    }
    print(&heading(&report, &folder))?;
    for row in &rows {
        let measured = measure(row, &report, &file, &folder)?;
        print(&measured.to_string())?;
        report.failures += measured.failures();
        report.rows.push(measured);
    }
    Ok(report)
}

fn heading(report: &Report, folder: &Path) -> String {
    let mut text = format!(
        "{}: a file of {} MiB, a limit of {} MiB, {}, caches cold\n",
        folder.display(),
        report.size / MIB,
        report.limit / MIB,
        match report.rounds {
            1 => "one round".to_owned(),
            many => format!("medians of {many} rounds"),
        }
    );
    for note in &report.notes {
        text.push_str(note);
        text.push('\n');
    }
    text
}

/// Nobody needs to read the text: the figures are written all the same.
fn print(text: &str) -> Fallible {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed.map_err(|error| format!("cannot print: {error}").into()),
    }
}

fn measure(row: &Row, report: &Report, file: &OwnFile, folder: &Path) -> Fallible<Measured> {
    let runs = |&contender| Runs {
        contender,
        runs: Vec::new(),
        failure: None,
        unlimited: None,
    };
    let mut all: Vec<Runs> = row.contenders.iter().map(runs).collect();
    for round in 0..report.rounds {
        for turn in 0..all.len() {
            // Each round begins with another contender, so that none always comes first.
            let place = (turn + round as usize) % all.len();
            let of = &mut all[place];
            let long = |run: &Run| run.taken.wall_seconds > LONG_SECONDS;
            if of.failure.is_some() || of.runs.first().is_some_and(long) {
                continue;
            }
            interrupted()?;
            file::drop_caches(&file.path)?;
            let run = run_once(row, of.contender, round, report.limit, file, folder);
            // What an interrupt has ended is no failure of the contender's.
            interrupted()?;
            match run {
                Ok(run) => {
                    of.unlimited = of.unlimited.take().or(run.taken.unlimited.clone());
                    of.runs.push(run);
                }
                Err(error) => of.failure = Some(error.to_string()),
            }
        }
    }
    Ok(Measured::new(row, all))
}

fn run_once(
    row: &Row,
    contender: Contender,
    round: u64,
    limit: u64,
    file: &OwnFile,
    folder: &Path,
) -> Fallible<Run> {
    let new = row.work.new_file();
    let new = new.map(|bytes| (OwnFile::named(folder, "written"), bytes));
    let target = new.as_ref().map_or(file, |(new, _)| new);
    let group = match contender.takes_page_cache() {
        true => MemoryGroup::new(limit),
        false => None,
    };
    let task = Task {
        contender,
        work: row.work,
        path: target.path.clone(),
        bytes: row.bytes,
        limit,
        seed: round + 1,
        group: group.as_ref().map(|group| group.path.clone()),
    };
    let mut taken = task.start()?;
    if contender.takes_page_cache() && group.is_none() {
        taken.unlimited = Some("no memory cgroup can be made".into());
    }
    let cached = kernel_cached_pages(&target.path);
    if let Some((new, bytes)) = &new {
        new.check(*bytes)?;
    }
    Ok(Run {
        taken,
        kernel_cached_pages: cached.ok().map(|pages| pages.0),
    })
}
