//! Writable branches of one live database: seven stations.
//!
//! | file | claim |
//! |---|---|
//! | `making` | a branch takes microseconds, and has every committed transaction |
//! | `answers` | each branch has its own answer, and the parent's file stays; the pages it changed |
//! | `disk` | a branch whose disk fails is alone with it |
//! | `whole` | the parent and branches are sound; the parent writes on; the limit held |

mod answers;
mod disk;
mod making;
mod whole;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use innerspace::store::{FaultyStore, FileStore};
use innerspace::{ByteSize, GIB, Grouped, Memory, MemoryError};
use innerspace_sqlite::{Options, Vfs};
use rusqlite::Connection;

pub(crate) use self::disk::map_and_cut_short;
use super::{allow_files_for, database};
use crate::data::Checksum;
use crate::interrupt::temporary_folder;
use crate::report::{Findings, Report};
use crate::stations::{Failure, Result, Station, run_all, sum};
use crate::{kernel, size};

#[derive(Debug, Args)]
pub(crate) struct BranchesArguments {
    /// Size of the database
    #[arg(long, default_value = "1GiB", value_parser = size::parse)]
    size: u64,
    /// How much memory the library may use
    #[arg(long, default_value = "64MiB", value_parser = size::parse)]
    limit: u64,
    /// The number of branches
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    branches: u64,
}

/// The accounts that each branch updates: its own, which no other branch touches.
const OWN_ROWS: u64 = 3;

/// The accounts that were changed by the parent's last transaction before the branches. It is only
/// in the WAL.
const IN_WAL: u64 = 100;

/// The balance that this transaction gave them.
const WAL_BALANCE: i64 = -7;

/// The seed of the database.
const SEED: u64 = 1;

/// A branch, with its connection.
struct Branch {
    number: u64,
    name: String,
    connection: Connection,
}

/// The state that the stations share.
struct Demo {
    report: Report,
    folder: PathBuf,
    path: PathBuf,
    /// The length of the database in bytes.
    len: u64,
    rows: u64,
    limit: u64,
    count: u64,
    vfs: Vfs,
    /// The parent is open all the time.
    parent: Connection,
    branches: Vec<Branch>,
    /// The disk of one of the branches.
    disk: Arc<FaultyStore<FileStore>>,
    /// The bytes of the database and of its WAL before the first branch.
    before: [Checksum; 2],
    /// The most of the file that was seen in the kernel's cache; `None` if the system does not
    /// report it.
    kernel_cached: Option<u64>,
    /// The process's peak memory before the library had any.
    resident_before: Option<u64>,
}

const STATIONS: [Station<Demo>; 7] = [
    Station {
        name: "branches",
        claim: "A branch of a live database takes microseconds, and has every committed transaction.",
        show: making::show,
    },
    Station {
        name: "answers",
        claim: "Each branch updates its own rows and has its own answer; the parent is untouched.",
        show: answers::show,
    },
    Station {
        name: "difference",
        claim: "A branch knows the pages that it has changed.",
        show: answers::show_difference,
    },
    Station {
        name: "failing disk",
        claim: "If the disk of one branch fails, that branch has an error, and the others go on.",
        show: disk::show,
    },
    Station {
        name: "sound",
        claim: "The parent and its branches pass SQLite's own check; no byte of the file differs.",
        show: whole::show_integrity,
    },
    Station {
        name: "live",
        claim: "The parent writes on, and no branch sees it.",
        show: whole::show_live,
    },
    Station {
        name: "limit",
        claim: "All of it counts against one limit; the kernel's cache keeps nothing of the database.",
        show: whole::show_limit,
    },
];

/// Runs all stations. Returns an error unless all are verified.
pub(super) fn run(arguments: &BranchesArguments) -> Result<(), Failure> {
    // Wrong arguments are reported before any file is written.
    let memory = Memory::with_limit(arguments.limit).map_err(|error| match error {
        MemoryError::System { .. } => Failure::Run(error.into()),
        wrong => Failure::Arguments(wrong.to_string()),
    })?;
    drop(memory);
    let rows = arguments.size / database::PAGE;
    let needed = IN_WAL + OWN_ROWS * arguments.branches;
    if rows < needed {
        return Err(Failure::Arguments(format!(
            "{} branches with {OWN_ROWS} pages each need --size {} or more",
            arguments.branches,
            ByteSize(needed * database::PAGE)
        )));
    }
    allow_files_for(arguments.branches, "branches")?;
    let folder = temporary_folder("innerspace-demo-").map_err(Failure::Run)?;
    let report = Report::new();
    let mut demo = Demo::prepare(arguments, rows, folder.path(), report)?;
    let verified = run_all(report, &STATIONS, &mut demo)?;
    sum(report, verified, STATIONS.len())
}

impl Demo {
    fn prepare(
        arguments: &BranchesArguments,
        rows: u64,
        folder: &Path,
        report: Report,
    ) -> Result<Demo, Failure> {
        let path = folder.join("bank.db");
        let (size, limit) = (ByteSize(arguments.size), ByteSize(arguments.limit));
        let count = arguments.branches;
        report.title(format_args!(
            "bank.db: {size}, {} branches, with a limit of {limit}",
            Grouped(count)
        ))?;
        let bar = report.count_bar("ordinary SQLite writes", rows);
        let made = database::make(&path, rows, SEED, "WAL", |done| bar.set_position(done));
        bar.finish_and_clear();
        made.map_err(|error| cannot_make(arguments.size, folder, &*error))?;
        let run = |path: PathBuf| -> Result<Demo> {
            let len = std::fs::metadata(&path)?.len();
            let resident_before = kernel::peak_resident();
            let vfs = Options::new().limit(arguments.limit).register()?;
            let parent = database::open(&path, vfs.name())?;
            // The last transaction before the branches stays in the WAL.
            parent.pragma_update(None, "wal_autocheckpoint", 0)?;
            parent.execute(
                "UPDATE account SET balance = ?1 WHERE id <= ?2",
                (WAL_BALANCE, IN_WAL),
            )?;
            let disk = FileStore::create(folder.join("disk-of-one-branch"))?;
            let mut demo = Demo {
                report,
                folder: folder.to_owned(),
                path,
                len,
                rows,
                limit: arguments.limit,
                count,
                vfs,
                parent,
                branches: Vec::new(),
                disk: Arc::new(FaultyStore::new(disk)),
                before: [Checksum::new(); 2],
                kernel_cached: None,
                resident_before,
            };
            demo.before = demo.checksums()?;
            Ok(demo)
        };
        run(path).map_err(|error| cannot_make(arguments.size, folder, &*error))
    }

    /// Returns checksums of the database's file and of its WAL.
    fn checksums(&self) -> Result<[Checksum; 2]> {
        let sums = [&self.path, &self.wal()].map(|path| database::checksum(path));
        let [database, wal] = sums;
        Ok([database?, wal?])
    }

    fn wal(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push("-wal");
        name.into()
    }

    /// Adds a finding if a byte of the database differs from what it was before the first branch.
    fn check_same(&mut self, findings: &mut Findings) -> Result<()> {
        // The comparison empties the kernel's cache of the file, so it is looked at first.
        self.kernel_cached = self.kernel_cached.max(database::kernel_cached(&self.path));
        let spinner = self.report.spinner("comparing the file");
        let now = self.checksums()?;
        spinner.finish_and_clear();
        match now == self.before {
            true => findings.here(format!(
                "the file and its WAL are the same bytes as before: checksum {}",
                now[0]
            )),
            false => findings.fail("the bytes of the database's file or WAL have changed"),
        }
        Ok(())
    }

    /// The number of the branch whose disk fails: 500 of 1,000.
    fn failing(&self) -> u64 {
        self.count.div_ceil(2)
    }

    /// Returns the accounts that a branch updates.
    fn own_rows(&self, number: u64) -> impl Iterator<Item = u64> + use<> {
        // Spread over the database, after the rows that the WAL has.
        let (rows, count) = (self.rows, self.count);
        let stride = (rows - IN_WAL) / OWN_ROWS;
        (0..OWN_ROWS)
            .map(move |row| IN_WAL + 1 + row * stride + (number - 1) * (stride / count).max(1))
    }

    fn branch(&self, number: u64) -> Result<&Branch> {
        let branch = self.branches.get(number as usize - 1);
        branch.ok_or_else(|| format!("there is no branch {number}").into())
    }

    /// The balance of a branch's account once the branch has updated it.
    fn own_balance(&self, number: u64) -> i64 {
        (GIB + number).cast_signed()
    }
}

fn cannot_make(size: u64, folder: &Path, error: &dyn std::error::Error) -> Failure {
    let size = ByteSize(size);
    Failure::Run(format!("cannot make a database of {size} in {folder:?}: {error}").into())
}
