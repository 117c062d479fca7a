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
//! `sample` makes the file if none is given. A given file is only read. The tour changes only files
//! in its temporary folder, which is removed at the end, also after Ctrl-C.

pub(crate) mod fork;
mod limit;
pub(crate) mod no_signal;
mod nothing_lost;
pub(crate) mod rivals;
mod same_bytes;
mod sample;
mod tenants;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use innerspace::{ByteSize, Memory, MemoryError};

use crate::child::Child;
use crate::interrupt::{temporary_folder, wait_if_interrupted};
use crate::report::{Findings, Report};
use crate::size;
use crate::stations::{Failure, Result, Station, run_all, sum};

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

const STATIONS: [Station<Tour>; 6] = [
    Station {
        name: "same bytes",
        claim: "A mapping shows what the file holds, and private stores leave the file alone.",
        show: |tour| same_bytes::show(tour),
    },
    Station {
        name: "limit",
        claim: "Everything counts against one limit; the kernel's page cache keeps nothing.",
        show: |tour| limit::show(tour),
    },
    Station {
        name: "no signal",
        claim: "A file cut short while it is mapped is an error with file and offset.",
        show: |tour| no_signal::show(tour),
    },
    Station {
        name: "tenants",
        claim: "A scan in one group evicts nothing of another.",
        show: |tour| tenants::show(tour),
    },
    Station {
        name: "fork",
        claim: "1,000 forks of a space, each keeping its own bytes, in microseconds each.",
        show: |tour| fork::show(tour),
    },
    Station {
        name: "nothing lost",
        claim: "Updates survive a store that fails: they stay, and the next sync writes them.",
        show: |tour| nothing_lost::show(tour),
    },
];

/// Runs all stations. Returns an error unless all are verified.
pub(crate) fn run(arguments: &TourArguments) -> Result<(), Failure> {
    let outcome = run_stations(arguments);
    wait_if_interrupted();
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
    let folder = temporary_folder("innerspace-tour-").map_err(Failure::Run)?;
    let report = Report::new();
    let mut tour = Tour::prepare(arguments, name, folder.path(), report)?;
    let verified = run_all(report, &STATIONS, &mut tour)?;
    if verified < STATIONS.len() && tour.has_changed() {
        report.changed(&tour.name)?;
    }
    sum(report, verified, STATIONS.len())
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
            let bar = tour.report.bytes_bar("making a sample", tour.size);
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

    /// Opens the file in the ordinary way.
    fn plain_file(&self) -> io::Result<File> {
        File::open(&self.file)
    }
}
