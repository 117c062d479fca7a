//! The tour: six stations. Each is a claim with its evidence, and with the kernel's result in the
//! same case.
//!
//! | file | claim |
//! |---|---|
//! | `same_bytes` | a mapping has the bytes of the file |
//! | `limit` | everything counts against the limit; the contenders are in `rivals` |
//! | `no_signal` | a file cut short is an error |
//! | `tenants` | a scan of one group evicts nothing of another |
//! | `fork` | a thousand spaces, each with its own bytes |
//! | `nothing_lost` | updates survive a failing store |
//!
//! `sample` makes the file if none is given; `report` prints. A given file is only read. The tour
//! changes only files in its temporary folder, which is removed at the end, also after Ctrl-C.
//!
//! A station returns [`Findings`]: the evidence, and everything that was not as claimed. A station
//! that returns an error counts as not verified; the other stations still run.

mod fork;
mod limit;
mod no_signal;
mod nothing_lost;
mod report;
mod rivals;
mod same_bytes;
mod sample;
mod tenants;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use innerspace::{ByteSize, Memory, MemoryError};

use self::report::{Findings, Report};
use crate::size;

/// Any error in a station: it becomes one line of the report.
type Error = Box<dyn std::error::Error>;
type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, Args)]
pub(crate) struct TourArguments {
    /// Any file you can read; it is neither written nor copied. Without one, a sample is made in a
    /// temporary folder
    file: Option<PathBuf>,
    /// Size of the sample
    #[arg(long, default_value = "256MiB", value_parser = size::parse, conflicts_with = "file")]
    size: u64,
    /// How much memory the library may use
    #[arg(long, default_value = "16MiB", value_parser = size::parse)]
    limit: u64,
}

/// The reason why the exit code is not 0.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An argument cannot be used.
    Arguments(String),
    /// A cause outside the tour prevents it.
    Run(Error),
    /// A claim does not hold; the report says which.
    NotVerified,
    /// Nobody reads the report.
    OutputClosed,
}

/// The processes that the tour starts of itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Child {
    /// Station 2: one contender
    Contender(rivals::ContenderArguments),
    /// Station 3: mmap of a file that is cut short
    CutShort { file: PathBuf },
    /// Station 5: fork(2)
    Forks { resident: usize, count: u32 },
}

impl Child {
    pub(crate) fn run(&self) -> Result<()> {
        std::thread::spawn(end_with_parent);
        match self {
            Child::Contender(arguments) => rivals::contend(arguments),
            Child::CutShort { file } => no_signal::map_and_cut_short(file),
            Child::Forks { resident, count } => fork::fork_processes(*resident, *count),
        }
    }

    /// Creates a command that runs this program again.
    fn command(name: &str) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["child", name]);
        Ok(command)
    }

    /// Runs such a command until it ends or this process does. The command's input is open as long
    /// as this process lives.
    fn output(mut command: Command) -> io::Result<Output> {
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let _open = child.stdin.take();
        child.wait_with_output()
    }
}

/// Makes this process end as soon as the one that started it has ended, in whatever way.
fn end_with_parent() {
    let _nothing = io::copy(&mut io::stdin(), &mut io::sink());
    std::process::exit(1);
}

/// The state that the stations share.
struct Tour {
    file: PathBuf,
    /// The file's name in the report.
    name: String,
    /// The file's length in bytes.
    size: u64,
    /// When the file was last written to before the tour; `None` if the system does not report it.
    modified: Option<SystemTime>,
    limit: u64,
    /// The folder for files that the tour changes.
    folder: PathBuf,
    report: Report,
}

/// A claim and the function that verifies it.
struct Station {
    name: &'static str,
    claim: &'static str,
    show: fn(&Tour) -> Result<Findings>,
}

const STATIONS: [Station; 6] = [
    Station {
        name: "same bytes",
        claim: "A mapping shows what the file holds, and private stores leave the file alone.",
        show: same_bytes::show,
    },
    Station {
        name: "limit",
        claim: "Everything counts against one limit; the kernel's page cache keeps nothing.",
        show: limit::show,
    },
    Station {
        name: "no signal",
        claim: "A file cut short while it is mapped is an error with file and offset.",
        show: no_signal::show,
    },
    Station {
        name: "tenants",
        claim: "A scan in one group evicts nothing of another.",
        show: tenants::show,
    },
    Station {
        name: "fork",
        claim: "1,000 forks of a space, each keeping its own bytes, in microseconds each.",
        show: fork::show,
    },
    Station {
        name: "nothing lost",
        claim: "Updates survive a store that fails: they stay, and the next sync writes them.",
        show: nothing_lost::show,
    },
];

/// Set by Ctrl-C and similar signals. The temporary folder is then being removed, and errors caused
/// by that are no findings.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Runs all stations. Returns an error unless all are verified.
pub(crate) fn run(arguments: &TourArguments) -> Result<(), Failure> {
    let outcome = run_stations(arguments);
    while interrupted() {
        std::thread::park(); // until the handler has ended the process
    }
    outcome
}

fn run_stations(arguments: &TourArguments) -> Result<(), Failure> {
    // Wrong arguments are reported before any file is written.
    let memory = Memory::with_limit(arguments.limit).map_err(|error| match error {
        MemoryError::System { .. } => Failure::Run(error.into()),
        wrong => Failure::Arguments(wrong.to_string()),
    })?;
    let mut name = "sample.bin".to_owned();
    if let Some(file) = &arguments.file {
        let file = memory.open(file);
        let file = file.map_err(|error| Failure::Run(error.into()))?;
        file.name().clone_into(&mut name);
    }
    drop(memory);
    let folder = temporary_folder().map_err(Failure::Run)?;
    let report = Report::new();
    let tour = Tour::prepare(arguments, name, folder.path(), report)?;
    let mut verified = 0;
    for (number, station) in STATIONS.iter().enumerate() {
        tour.report.begin(number + 1, STATIONS.len(), station)?;
        match (station.show)(&tour) {
            Ok(findings) => {
                tour.report.end(&findings)?;
                verified += usize::from(findings.holds());
            }
            Err(error) => tour.report.failed(&*error)?,
        }
    }
    if verified < STATIONS.len() && tour.has_changed() {
        tour.report.changed(&tour.name)?;
    }
    tour.report.sum(verified, STATIONS.len())?;
    match verified == STATIONS.len() {
        true => Ok(()),
        false => Err(Failure::NotVerified),
    }
}

/// Makes a folder that is removed when the tour ends, for whatever reason.
fn temporary_folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("innerspace-tour-")
        .tempdir();
    let folder = folder.map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let path = folder.path().to_owned();
    ctrlc::set_handler(move || {
        INTERRUPTED.store(true, Ordering::SeqCst);
        // The tour continues until the process exits, and may be creating a file at this moment.
        while path.exists() && fs::remove_dir_all(&path).is_err() {
            std::thread::yield_now();
        }
        std::process::exit(130);
    })?;
    Ok(folder)
}

impl Tour {
    fn prepare(
        arguments: &TourArguments,
        name: String,
        folder: &Path,
        report: Report,
    ) -> Result<Tour, Failure> {
        let mut tour = Tour {
            file: folder.join("sample.bin"),
            name,
            size: arguments.size,
            modified: None,
            limit: arguments.limit,
            folder: folder.to_owned(),
            report,
        };
        if let Some(file) = &arguments.file {
            tour.file.clone_from(file);
            let metadata = fs::metadata(file).map_err(|error| Failure::Run(error.into()))?;
            tour.size = metadata.len();
            tour.modified = metadata.modified().ok();
        }
        tour.report.open(&tour.name, tour.size, tour.limit)?;
        if arguments.file.is_none() {
            let bar = tour.bytes_bar("making a sample", tour.size);
            sample::make(&tour.file, tour.size, |done| bar.set_position(done)).map_err(
                |error| {
                    let size = ByteSize(tour.size);
                    Failure::Run(
                        format!("cannot make a sample of {size} in {folder:?}: {error}").into(),
                    )
                },
            )?;
            bar.finish_and_clear();
        }
        Ok(tour)
    }

    /// Whether a given file has changed since the start.
    fn has_changed(&self) -> bool {
        let Some(modified) = self.modified else {
            return false;
        };
        !fs::metadata(&self.file).is_ok_and(|now| {
            now.len() == self.size && now.modified().is_ok_and(|time| time == modified)
        })
    }

    /// Writes a file that the tour will change.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        fs::write(path, bytes).map_err(|error| {
            let (size, folder) = (ByteSize(bytes.len() as u64), &self.folder);
            format!("cannot write a file of {size} to {folder:?}: {error}").into()
        })
    }

    /// Creates a progress bar over bytes, which is invisible unless on a terminal.
    fn bytes_bar(&self, doing: &'static str, bytes: u64) -> ProgressBar {
        let bar = self.report.bar(bytes).with_message(doing);
        let style = "  {msg:<24} {wide_bar} {bytes:>10} of {total_bytes}";
        bar.with_style(ProgressStyle::with_template(style).expect("a valid template"))
    }

    /// Creates a spinner for work of unknown length, which is invisible unless on a terminal.
    fn spinner(&self, doing: &'static str) -> ProgressBar {
        let bar = self.report.bar(0).with_message(doing);
        let style = ProgressStyle::with_template("  {spinner} {msg}").expect("a valid template");
        let bar = bar.with_style(style);
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    /// Opens the file in the ordinary way.
    fn plain_file(&self) -> io::Result<File> {
        File::open(&self.file)
    }
}
