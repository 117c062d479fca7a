//! One side of the demonstration of tenants, in a process of its own, so that its memory can be
//! measured: the library with one limit, or ordinary SQLite with a page cache for each connection.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use innerspace::PageCount;
use innerspace::group::GroupStats;
use innerspace_sqlite::{Options, Vfs};
use rusqlite::Connection;

use super::allow_files_for;
use super::database::{self, balance, balance_of};
use super::tenants::{ROWS, hot_row, path};
use crate::child::Child;
use crate::data::Random;
use crate::kernel;
use crate::stations::{Failure, Result};

/// The queries for each database and each of the two measurements.
const QUERIES: u64 = 20;

/// The most queries of a measurement that waits for the noisy tenant's scan.
const MOST_QUERIES: usize = 10_000_000;

/// The group of the noisy tenant.
const NOISY: &str = "noisy";
const OTHERS: &str = "others";

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Side {
    /// One memory with a limit.
    Innerspace,
    /// SQLite's own VFS and its page caches as they come.
    Sqlite,
}

#[derive(Debug, Args)]
pub(crate) struct ContenderArguments {
    side: Side,
    /// The limit in bytes
    limit: u64,
    databases: u64,
    folder: PathBuf,
}

/// Latencies in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Latency {
    median: u64,
    /// 99 of 100 queries took no longer.
    most: u64,
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        write!(
            f,
            "{:.1} us, {:.1} us",
            micros(self.median),
            micros(self.most)
        )
    }
}

/// The result of a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) before: Latency,
    pub(super) beside: Latency,
    pub(super) queries: u64,
    pub(super) wrong: u64,
    /// Growth of the process's peak memory, in bytes; `None` if the system does not report it.
    pub(super) grown: Option<u64>,
    /// Bytes of the databases in the kernel's cache at the end; `None` likewise.
    pub(super) kernel_cached: Option<u64>,
    /// The greatest usage that the library counted, in bytes. These are 0 for ordinary SQLite.
    pub(super) counted: u64,
    pub(super) noisy_max: u64,
    pub(super) noisy_peak: u64,
    /// Bytes evicted during the scans.
    pub(super) noisy_evicted: u64,
    pub(super) others_evicted: u64,
}

impl Side {
    /// Runs a side in a new process.
    pub(super) fn run(self, folder: &Path, limit: u64, databases: u64) -> Result<Run> {
        let side = self.to_possible_value().expect("none is skipped");
        let mut command = Child::command("tenants")?;
        command.args([
            side.get_name(),
            &limit.to_string(),
            &databases.to_string(),
            "--",
        ]);
        command.arg(folder);
        let output = Child::output(command)?;
        let name = side.get_name();
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{name} failed ({}): {}", output.status, text.trim()).into());
        }
        Run::parse(&String::from_utf8(output.stdout)?)
            .ok_or_else(|| format!("{name} did not say how it did").into())
    }
}

impl Run {
    /// Returns the line that the process prints.
    fn to_line(self) -> String {
        let [grown, left] =
            [self.grown, self.kernel_cached].map(|bytes| bytes.map_or(-1, u64::cast_signed));
        let (before, beside) = (self.before, self.beside);
        format!(
            "{} {} {} {} {} {} {grown} {left} {} {} {} {} {}",
            before.median,
            before.most,
            beside.median,
            beside.most,
            self.queries,
            self.wrong,
            self.counted,
            self.noisy_max,
            self.noisy_peak,
            self.noisy_evicted,
            self.others_evicted
        )
    }

    fn parse(line: &str) -> Option<Run> {
        let words = line.split_whitespace();
        let fields: Vec<i64> = words.map_while(|word| word.parse().ok()).collect();
        let number = |at: usize| u64::try_from(*fields.get(at)?).ok();
        let latency = |at: usize| {
            Some(Latency {
                median: number(at)?,
                most: number(at + 1)?,
            })
        };
        if fields.len() != 13 {
            return None;
        }
        Some(Run {
            before: latency(0)?,
            beside: latency(2)?,
            queries: number(4)?,
            wrong: number(5)?,
            grown: number(6),
            kernel_cached: number(7),
            counted: number(8)?,
            noisy_max: number(9)?,
            noisy_peak: number(10)?,
            noisy_evicted: number(11)?,
            others_evicted: number(12)?,
        })
    }
}

/// The connections of a side.
struct Tenants {
    noisy: Option<Connection>,
    /// The others, from number 1 on.
    others: Vec<Connection>,
    vfs: Option<Vfs>,
    random: Random,
    queries: u64,
    wrong: u64,
}

/// Runs in a process of its own: the tenants' work before a noisy neighbour begins, and while it
/// runs.
pub(crate) fn contend(arguments: &ContenderArguments) -> Result<()> {
    allow_files_for(arguments.databases + 1, "databases").map_err(|failure| match failure {
        Failure::Run(error) => error,
        _ => "too many files".into(),
    })?;
    let files = || (0..=arguments.databases).map(|number| path(&arguments.folder, number));
    for path in files() {
        kernel::drop_cache(&File::open(path)?)?;
    }
    let resident = kernel::peak_resident();
    let mut tenants = Tenants::open(arguments)?;
    tenants.warm_up()?;
    let before = tenants.measure(arguments.databases * QUERIES, || true)?;
    let evicted = [NOISY, OTHERS].map(|group| tenants.evicted(group));

    let noisy = tenants.noisy.take().ok_or("there is no noisy tenant")?;
    let (stop, scans) = (AtomicBool::new(false), AtomicU64::new(0));
    let beside = std::thread::scope(|scope| {
        let scanner = scope.spawn(|| scan(noisy, &stop, &scans));
        let has_scanned = || scans.load(Ordering::Relaxed) > 0 || scanner.is_finished();
        let beside = tenants.measure(arguments.databases * QUERIES, has_scanned);
        stop.store(true, Ordering::Relaxed);
        scanner.join().map_err(|_| "the scan panicked")??;
        beside
    })?;

    let evicted_now = [NOISY, OTHERS].map(|group| tenants.evicted(group));
    let cached = files().map(|path| database::kernel_cached(&path));
    let noisy = tenants.group(NOISY);
    let of_noisy = |pages: fn(&GroupStats) -> PageCount| {
        noisy.as_ref().map_or(0, |group| pages(group).bytes())
    };
    let run = Run {
        before,
        beside,
        queries: tenants.queries,
        wrong: tenants.wrong,
        grown: kernel::peak_resident().and_then(|now| Some(now.saturating_sub(resident?))),
        kernel_cached: cached.sum(),
        counted: tenants
            .vfs
            .as_ref()
            .map_or(0, |vfs| vfs.memory().stats().peak),
        noisy_max: of_noisy(|group| group.max.unwrap_or_default()),
        noisy_peak: of_noisy(|group| group.peak),
        noisy_evicted: evicted_now[0] - evicted[0],
        others_evicted: evicted_now[1] - evicted[1],
    };
    println!("{}", run.to_line());
    Ok(())
}

/// Reads the whole of the noisy tenant's database, again and again.
fn scan(noisy: Connection, stop: &AtomicBool, scans: &AtomicU64) -> Result<(), String> {
    let scan = || -> rusqlite::Result<()> {
        let mut query = noisy.prepare("SELECT balance, filling FROM account")?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            row.get_ref(1)?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        scans.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    while !stop.load(Ordering::Relaxed) {
        scan().map_err(|error| error.to_string())?;
    }
    Ok(())
}

impl Tenants {
    fn open(arguments: &ContenderArguments) -> Result<Tenants> {
        let limit = arguments.limit;
        let vfs = match arguments.side {
            Side::Innerspace => Some(Options::new().limit(limit).register()?),
            Side::Sqlite => None,
        };
        // All groups together: the library's own records are a part of the limit, too.
        let root = vfs.as_ref().map(|vfs| vfs.memory().root_group().stats());
        let limit = root
            .and_then(|root| root.max)
            .map_or(limit, PageCount::bytes);
        let open = |number: u64, group: &str, share: u64| {
            let path = path(&arguments.folder, number);
            match &vfs {
                Some(vfs) => {
                    let name = vfs.name();
                    let wishes = format!("vfs={name}&group={group}&group_limit={share}");
                    database::open_uri(&path, &wishes)
                }
                // As it comes: with a page cache of 2 MiB.
                None => Ok(Connection::open(&path)?),
            }
        };
        let noisy = Some(open(0, NOISY, limit / 8)?);
        let others = (1..=arguments.databases).map(|number| open(number, OTHERS, limit / 4 * 3));
        Ok(Tenants {
            noisy,
            others: others.collect::<Result<_>>()?,
            vfs,
            random: Random::new(2),
            queries: 0,
            wrong: 0,
        })
    }

    /// Reads every account once, and then those that are used all the time.
    fn warm_up(&mut self) -> Result<()> {
        let count = self.others.len() as u64;
        for number in 1..=count {
            for id in 1..=ROWS {
                self.check(number, id)?;
            }
        }
        for _ in 0..3 {
            for number in 1..=count {
                self.check(number, hot_row(number))?;
            }
        }
        Ok(())
    }

    /// Reads an account of a tenant, and checks the balance.
    fn check(&mut self, number: u64, id: u64) -> Result<()> {
        let found = balance_of(&self.others[number as usize - 1], id)?;
        self.queries += 1;
        self.wrong += u64::from(found != balance(number, id));
        Ok(())
    }

    /// Measures this many queries of tenants, chosen at random, and goes on until `is_over`.
    fn measure(&mut self, queries: u64, is_over: impl Fn() -> bool) -> Result<Latency> {
        let mut times = Vec::new();
        while (times.len() as u64) < queries || (!is_over() && times.len() < MOST_QUERIES) {
            let number = 1 + self.random.below(self.others.len() as u64);
            let start = Instant::now();
            self.check(number, hot_row(number))?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let nanos = |at: usize| {
            let time: Option<&Duration> = times.get(at);
            time.map_or(0, |time| time.as_nanos() as u64)
        };
        Ok(Latency {
            median: nanos(times.len() / 2),
            most: nanos(times.len() * 99 / 100),
        })
    }

    /// Returns a group's state. `None` for ordinary SQLite.
    fn group(&self, name: &str) -> Option<GroupStats> {
        let groups = self.vfs.as_ref()?.memory().stats().groups;
        groups.into_iter().find(|group| group.name == name)
    }

    /// Returns the bytes that were evicted from a group so far.
    fn evicted(&self, group: &str) -> u64 {
        let group = self.group(group);
        group.map_or(0, |group| group.events.reclaimed.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_comes_back_from_its_line() {
        let latency = |median, most| Latency { median, most };
        let run = Run {
            before: latency(1, 2),
            beside: latency(3, 4),
            queries: 5,
            wrong: 6,
            grown: Some(1 << 40),
            kernel_cached: None,
            counted: 7,
            noisy_max: 8,
            noisy_peak: 9,
            noisy_evicted: 10,
            others_evicted: 11,
        };
        assert_eq!(Run::parse(&run.to_line()), Some(run));
        assert_eq!(Run::parse("1 2 three"), None);
    }
}
