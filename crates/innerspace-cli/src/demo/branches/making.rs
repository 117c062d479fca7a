//! Station 1: the branches are made while another connection reads the database; compared with
//! fork(2) and with a copy of the file.

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use innerspace::{ByteSize, GIB, Grouped};

use super::{Branch, Demo, IN_WAL, WAL_BALANCE};
use crate::child::Child;
use crate::demo::database;
use crate::kernel;
use crate::report::Findings;
use crate::stations::Result;

/// The number of forks of a process: few, because each takes so long.
const PROCESSES: u32 = 20;

/// The most memory of the process that is forked.
const MOST_RESIDENT: u64 = GIB;

pub(super) fn show(demo: &mut Demo) -> Result<Findings> {
    let mut findings = Findings::default();
    let reader = Reader::start(demo)?;
    let made = make_and_open(demo);
    let read = reader.stop()?;
    let (mut making, mut opening) = made?;
    let late = check_last_transaction(demo)?;

    let longest = micros(making.iter().max().copied());
    findings.here(format!(
        "{} branches of {}: {} each, {longest} at most; {} to open one",
        Grouped(demo.count),
        ByteSize(demo.len),
        median(&mut making),
        median(&mut opening)
    ));
    findings.here(format!(
        "the database was live: another connection read {} accounts meanwhile",
        Grouped(read)
    ));
    findings.here(format!(
        "{} of them have the last transaction, which is only in the WAL",
        Grouped(demo.count - late)
    ));
    if late > 0 {
        findings.fail(format!("{late} branches lack the last transaction"));
    }
    findings.kernel(fork(demo)?);
    findings.kernel(copy(demo)?);
    Ok(findings)
}

/// Makes the branches and opens them. Returns how long each took.
fn make_and_open(demo: &mut Demo) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut making, mut opening) = (Vec::new(), Vec::new());
    let bar = demo.report.count_bar("making branches", demo.count);
    for number in 1..=demo.count {
        let name = format!("b{number}");
        let start = Instant::now();
        match number == demo.failing() {
            true => demo.vfs.branch_in(&demo.path, &name, demo.disk.clone())?,
            false => demo.vfs.branch(&demo.path, &name)?,
        }
        let made = Instant::now();
        let path = demo.vfs.branch_path(&demo.path, &name)?;
        let connection = database::open(&path, demo.vfs.name())?;
        opening.push(made.elapsed());
        making.push(made - start);
        demo.branches.push(Branch {
            number,
            name,
            connection,
        });
        bar.set_position(number);
    }
    bar.finish_and_clear();
    Ok((making, opening))
}

/// Returns the number of branches that lack the parent's last transaction.
fn check_last_transaction(demo: &Demo) -> Result<u64> {
    let mut late = 0;
    for branch in &demo.branches {
        let id = 1 + branch.number % IN_WAL;
        late += u64::from(database::balance_of(&branch.connection, id)? != WAL_BALANCE);
    }
    Ok(late)
}

/// A thread that reads the parent through a connection of its own.
struct Reader {
    stop: Arc<AtomicBool>,
    read: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<Result<(), String>>,
}

impl Reader {
    fn start(demo: &Demo) -> Result<Reader> {
        let connection = database::open(&demo.path, demo.vfs.name())?;
        let (stop, read) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, count) = (stop.clone(), read.clone());
        let rows = demo.rows;
        let thread = std::thread::spawn(move || {
            // At least once, however soon it is stopped.
            for round in 0_u64.. {
                let id = IN_WAL + 1 + round * 7919 % (rows - IN_WAL);
                let found = database::balance_of(&connection, id);
                let found = found.map_err(|error| error.to_string())?;
                if found != database::balance(super::SEED, id) {
                    return Err(format!("account {id} of the parent has changed to {found}"));
                }
                count.fetch_add(1, Ordering::Relaxed);
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                // The branches are timed, and the machine may have a single processor.
                std::thread::sleep(Duration::from_micros(500));
            }
            Ok(())
        });
        Ok(Reader { stop, read, thread })
    }

    /// Returns how many accounts it has read.
    fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join().map_err(|_| "the reader panicked")?;
        ended?;
        Ok(self.read.load(Ordering::Relaxed))
    }
}

/// Returns the median, because a few times may include delays by other programs.
fn median(times: &mut [Duration]) -> String {
    times.sort_unstable();
    micros(times.get(times.len() / 2).copied())
}

fn micros(time: Option<Duration>) -> String {
    format!("{:.1} us", time.unwrap_or_default().as_secs_f64() * 1e6)
}

/// Measures fork(2) of a process with as much in memory as the database has.
fn fork(demo: &Demo) -> Result<String> {
    let spinner = demo.report.spinner("forking processes");
    let mut command = Child::command("forks")?;
    let resident = demo.len.min(MOST_RESIDENT);
    command.args([resident.to_string(), PROCESSES.to_string()]);
    let output = Child::output(command)?;
    spinner.finish_and_clear();
    let text = match output.status.success() {
        true => output.stdout,
        false => output.stderr,
    };
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Measures a copy of the file, as cp(1) makes one, and shows what it lacks.
fn copy(demo: &Demo) -> Result<String> {
    let spinner = demo.report.spinner("copying the file");
    let copy = demo.folder.join("copy.db");
    let start = Instant::now();
    fs::copy(&demo.path, &copy)?;
    let took = start.elapsed();
    let connection = database::open(&copy, "unix")?;
    let has_it = database::balance_of(&connection, 1)? == WAL_BALANCE;
    connection.close().map_err(|(_, error)| error)?;
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(demo.folder.join(format!("copy.db{end}")));
    }
    let left = database::kernel_cached(&demo.path);
    // What the copy left there does not count as a finding about the library.
    kernel::drop_cache(&File::open(&demo.path)?)?;
    spinner.finish_and_clear();
    let lacks = match has_it {
        true => "has",
        false => "lacks",
    };
    let left = left.map_or("the file".to_owned(), |left| ByteSize(left).to_string());
    Ok(format!(
        "cp of {}: {:.1} ms each; it {lacks} the last transaction, and left {left} in the cache",
        ByteSize(demo.len),
        took.as_secs_f64() * 1e3
    ))
}
