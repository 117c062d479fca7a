//! Misses on a disk with cold caches: the library compared with pread, mmap and a bare io_uring
//! loop.
//!
//! | file | content |
//! |---|---|
//! | `rows` | the work of each row, its contenders and its aims |
//! | `contenders` | how each contender does the work |
//! | `in_flight` | a minimal executor for futures; the bare io_uring loop |
//! | `child` | one contender's run, in a process and a memory cgroup of its own |
//! | `file` | the file, the disk below it, and the dropping of caches |
//! | `written` | the content that rows of writes write, and its check |
//! | `figures` | medians, ratios and aims |
//!
//! Contenders take turns, each with all caches cold, and each round begins with another one. A
//! cache of the host below a virtual disk cannot be dropped: the disk may be faster for a page that
//! an earlier contender has read.
//!
//! Wall and CPU time are those of the work alone: files are opened and threads started before. CPU
//! time is that of the process, without the kernel's threads for writeback and reclaim. Every page
//! has its number, and every read is checked; writes are read back and compared afterwards. The
//! rows of random pages read no page twice. An aim that is missed is printed, and does not fail the
//! command.

pub(crate) mod child;
mod contenders;
mod figures;
pub(crate) mod file;
mod in_flight;
mod rows;
mod written;

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
use self::rows::{Contender, Row, Work};
use self::written::{Marks, check_new, steps};
use crate::report::Machine;

pub(crate) type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const MIB: u64 = 1 << 20;
/// A contender whose first run took longer than this is not run again.
const LONG_SECONDS: f64 = 10.0;
/// With `--quick`, one in this many of the operations is done.
const QUICK: u64 = 8;
/// The greatest length of the file.
const LARGEST: u64 = 8 << 40;

#[derive(Debug, Args)]
pub(crate) struct DiskArguments {
    /// A folder on the disk to measure [default: target below the current folder, if
    /// that is on a disk, or else the folder for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Length of the file, in whole MiB, and at least twice the limit [default: 2GiB, or
    /// 256MiB with --quick]
    #[arg(long, value_name = "BYTES", value_parser = mebibytes)]
    size: Option<u64>,
    /// Memory that each contender may take, in whole MiB
    #[arg(long, value_name = "BYTES", value_parser = mebibytes, default_value = "128MiB")]
    limit: u64,
    /// Measure only rows whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// One round with an eighth of the operations, too few for much eviction
    #[arg(long)]
    quick: bool,
}

/// Parses a number of bytes, in whole mebibytes: scans, loads and direct transfers need that.
fn mebibytes(text: &str) -> Result<u64, String> {
    let no_size = || format!("{text:?} is no size: give it as 64MiB or 2GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = match unit.trim() {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => MIB,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(no_size()),
    };
    let number: u64 = number.parse().map_err(|_| no_size())?;
    let bytes = number.saturating_mul(unit);
    match bytes {
        0 => Err("nothing can be measured with 0 bytes".into()),
        bytes if bytes > LARGEST => Err(format!("{text:?} is more than 8 TiB")),
        bytes if !bytes.is_multiple_of(MIB) => Err(format!(
            "{text:?} is not a multiple of 1 MiB, the largest read and write of the rows: give \
             {}MiB",
            bytes.div_ceil(MIB)
        )),
        bytes => Ok(bytes),
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_interrupt(_signal: libc::c_int) {
    // Relaxed: no other memory depends on the flag.
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes an interrupt only set the flag from here on, so that the run ends with an error: the child
/// is killed, and the files and the memory cgroup are removed. A signal that is ignored, as with
/// nohup, stays ignored.
pub(crate) fn catch_interrupts() {
    let handler = note_interrupt as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler stores to an atomic and does nothing else.
        unsafe {
            if libc::signal(signal, handler as libc::sighandler_t) == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

/// Returns an error once the run was interrupted.
pub(crate) fn interrupted() -> Fallible {
    // Relaxed: as in `note_interrupt`.
    match INTERRUPTED.load(Ordering::Relaxed) {
        true => Err("interrupted; the files are removed".into()),
        false => Ok(()),
    }
}

/// The figures, as the JSON has them.
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
    /// Returns an error if a run failed. The command fails only after all other runs were measured.
    pub(crate) fn outcome(&self) -> Result<(), Box<dyn Error>> {
        match self.failures {
            0 => Ok(()),
            1 => Err("a contender failed: see its line".into()),
            many => Err(format!("{many} contenders failed: see their lines").into()),
        }
    }
}

/// Measures the rows, and prints each as soon as it is measured.
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
    // A limit that no memory can have is refused before any file is written.
    drop(Memory::with_limit(limit).map_err(|error| format!("--limit: {error}"))?);
    let new_file = rows.iter().filter_map(|row| row.work.new_file()).max();
    let doubts = file::check_folder(&folder, size + new_file.unwrap_or(0))?;
    catch_interrupts();
    let file = OwnFile::named(&folder, "disk");
    file.make(size)?;
    let rounds = if arguments.quick { 1 } else { 3 };
    let mut notes = method(rounds, file::drop_caches(&file.path)?, limit);
    notes.extend(doubts);
    let mut report = Report {
        machine: Machine::this(),
        table: "disk",
        size,
        limit,
        rounds,
        notes,
        rows: Vec::new(),
        failures: 0,
    };
    print(&heading(&report, &folder))?;
    let mut bench = Bench {
        limit,
        rounds,
        folder: &folder,
        file: &file,
        marks: Marks::default(),
        runs: 0,
    };
    for row in &rows {
        let measured = bench.measure(row)?;
        print(&measured.to_string())?;
        report.failures += measured.failures();
        report.rows.push(measured);
    }
    Ok(report)
}

/// Returns the lines that explain the method to the reader of the figures.
fn method(rounds: u64, dropped: Dropped, limit: u64) -> Vec<String> {
    let of = match rounds {
        1 => "One round".to_owned(),
        many => format!("Medians of {many} rounds, and wall time from the fastest to the slowest"),
    };
    let caches = match dropped {
        Dropped::All => "all caches are dropped before each run",
        Dropped::FileOnly => {
            "caches cannot be dropped (/proc/sys/vm/drop_caches is not writable), only the file's \
             own pages: the file system's metadata stays cached"
        }
    };
    let group = match MemoryGroup::new(limit) {
        Some(_) => "pread and mmap are held to the limit by a memory cgroup",
        None => "no memory cgroup can be made, so pread and mmap are not held to the limit",
    };
    vec![
        format!("{of}. Contenders take turns, and each round begins with another; {caches}."),
        format!("Each run is a process of its own; {group}."),
        "CPU time is that of the process, without the kernel's threads for writeback and reclaim. \
         Reads are checked, and writes read back and compared, outside of the measured time."
            .to_owned(),
    ]
}

fn heading(report: &Report, folder: &Path) -> String {
    let mut text = format!(
        "{}: a file of {} MiB, a limit of {} MiB\n",
        folder.display(),
        report.size / MIB,
        report.limit / MIB,
    );
    for note in &report.notes {
        text.push_str(note);
        text.push('\n');
    }
    text
}

/// Prints a text. Continues if nobody reads the text any more: the figures may still be written.
fn print(text: &str) -> Fallible {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed.map_err(|error| format!("cannot print: {error}").into()),
    }
}

/// The state that the rows share.
#[derive(Debug)]
struct Bench<'a> {
    limit: u64,
    rounds: u64,
    folder: &'a Path,
    file: &'a OwnFile,
    /// The writes to the file since it was created.
    marks: Marks,
    /// The number of runs so far.
    runs: u64,
}

impl Bench<'_> {
    fn measure(&mut self, row: &Row) -> Fallible<Measured> {
        let runs = |&contender| Runs {
            contender,
            runs: Vec::new(),
            failure: None,
            unlimited: None,
        };
        let mut all: Vec<Runs> = row.contenders.iter().map(runs).collect();
        for round in 0..self.rounds {
            for turn in 0..all.len() {
                // Each round begins with another contender, so that none always comes first.
                let place = (turn + round as usize) % all.len();
                let of = &mut all[place];
                let long = |run: &Run| run.taken.wall_seconds > LONG_SECONDS;
                if of.failure.is_some() || of.runs.first().is_some_and(long) {
                    continue;
                }
                interrupted()?;
                file::drop_caches(&self.file.path)?;
                let run = self.run_once(row, of.contender, round);
                // An interrupt does not count as a failure of the contender.
                interrupted()?;
                match run {
                    Ok(run) => {
                        of.unlimited = of.unlimited.take().or(run.taken.unlimited.clone());
                        of.runs.push(run);
                    }
                    Err(error) => {
                        of.failure = Some(error.to_string());
                        self.restore(row)?;
                    }
                }
            }
        }
        Ok(Measured::new(row, all))
    }

    fn run_once(&mut self, row: &Row, contender: Contender, round: u64) -> Fallible<Run> {
        self.runs += 1;
        let new = row.work.new_file();
        let new = new.map(|_| OwnFile::named(self.folder, "written"));
        let target = new.as_ref().unwrap_or(self.file);
        let group = match contender.takes_page_cache() {
            true => MemoryGroup::new(self.limit),
            false => None,
        };
        let task = Task {
            contender,
            work: row.work,
            path: target.path.clone(),
            bytes: row.bytes,
            limit: self.limit,
            seed: round + 1,
            mark: self.runs << 32,
            group: group.as_ref().map(|group| group.path.clone()),
        };
        let mut taken = task.start()?;
        if contender.takes_page_cache() && group.is_none() {
            taken.unlimited = Some("no memory cgroup can be made".into());
        }
        let cached = kernel_cached_pages(&target.path);
        if let Work::Mixed { operations } = row.work {
            let steps = steps(task.seed, task.mark, task.bytes, operations);
            self.marks.add(steps);
            self.marks.check(&target.path, task.bytes)?;
        } else if new.is_some() {
            check_new(&target.path, row.work)?;
        }
        Ok(Run {
            taken,
            kernel_cached_pages: cached.ok().map(|pages| pages.0),
        })
    }

    /// Rewrites the file after a run that may have done any part of its writes.
    fn restore(&mut self, row: &Row) -> Fallible {
        if matches!(row.work, Work::Mixed { .. }) {
            self.file.write(row.bytes)?;
            self.marks.clear();
        }
        Ok(())
    }
}
