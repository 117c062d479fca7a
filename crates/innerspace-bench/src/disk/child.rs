//! One contender's run, in a process of its own: the counters of the process are then those of the
//! run.
//!
//! The parent starts its own program again as `disk-child TASK`, with the task as JSON. The child
//! joins its memory cgroup, runs the task, and prints one line of JSON: its figures, or its error.
//! The group, of version 1 or 2, holds the kernel's contenders to the limit. An interrupt kills the
//! child.

use std::fs;
use std::io::Read;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::rows::{Contender, Work};
use super::{Fallible, contenders, interrupted};

/// The hidden subcommand.
pub(super) const SUBCOMMAND: &str = "disk-child";

/// The task of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) contender: Contender,
    pub(super) work: Work,
    pub(super) path: PathBuf,
    /// The number of bytes of the file that are read.
    pub(super) bytes: u64,
    /// The limit of the memory.
    pub(super) limit: u64,
    /// The seed that decides the places to read and write, the same for all contenders of a round.
    pub(super) seed: u64,
    /// A number that distinguishes this run's writes from all others.
    pub(super) mark: u64,
    /// The memory cgroup to join.
    pub(super) group: Option<PathBuf>,
}

/// The figures of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) wall_seconds: f64,
    /// User and system time of all threads of the process.
    pub(super) cpu_seconds: f64,
    /// The bytes read from the disk and written to it for the process; `None` if the kernel does
    /// not count them.
    pub(super) read_bytes: Option<u64>,
    pub(super) written_bytes: Option<u64>,
    /// The reason why no memory cgroup held the process to the limit.
    pub(crate) unlimited: Option<String>,
}

/// What a child prints.
pub(crate) type Line<T> = Result<T, String>;

/// Measures `work`.
pub(crate) fn timed(work: impl FnOnce() -> Fallible) -> Fallible<Taken> {
    let (read, written) = (transferred("read_bytes"), transferred("write_bytes"));
    let cpu = cpu_seconds()?;
    let start = Instant::now();
    work()?;
    let wall = start.elapsed();
    let cpu = cpu_seconds()? - cpu;
    let since = |name, before| Some(transferred(name)? - before?);
    Ok(Taken {
        wall_seconds: wall.as_secs_f64(),
        cpu_seconds: cpu,
        read_bytes: since("read_bytes", read),
        written_bytes: since("write_bytes", written),
        unlimited: None,
    })
}

/// Starts a thread for each part, and measures all of them together. Returns the first failure.
pub(super) fn timed_threads(
    threads: u64,
    part: impl Fn(u64) -> Fallible + Sync,
) -> Fallible<Taken> {
    // Threads wait here until all of them exist. If one cannot be started, the others end.
    let may_run = RwLock::new(false);
    let held = may_run.write();
    let mut held = held.unwrap_or_else(PoisonError::into_inner);
    let (part, may_run) = (&part, &may_run);
    std::thread::scope(|scope| {
        let start = |number| {
            std::thread::Builder::new().spawn_scoped(scope, move || {
                let may_run = *may_run.read().unwrap_or_else(PoisonError::into_inner);
                if may_run { part(number) } else { Ok(()) }
            })
        };
        let started: Vec<_> = match (0..threads).map(start).collect() {
            Ok(started) => started,
            Err(error) => {
                drop(held);
                return Err(format!("cannot start {threads} threads: {error}").into());
            }
        };
        timed(|| {
            *held = true;
            drop(held);
            let mut outcome = Ok(());
            for thread in started {
                let end = thread.join();
                outcome = outcome.and(end.unwrap_or_else(|_| Err("a thread panicked".into())));
            }
            outcome
        })
    })
}

fn cpu_seconds() -> Fallible<f64> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is to a struct of ours, which the call fills.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the call succeeded, so it has filled the struct.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// Returns the value of a line of /proc/self/io.
fn transferred(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

/// Runs the hidden subcommand: does the task, and returns the line to print.
pub(crate) fn run(task: &str) -> Result<String, Box<dyn std::error::Error>> {
    let task: Task = serde_json::from_str(task)?;
    answer(task.group.as_deref(), || contenders::run(&task))
}

/// Joins a memory cgroup, does the work of a child, and returns the line to print.
pub(crate) fn answer(
    group: Option<&Path>,
    work: impl FnOnce() -> Fallible<Taken>,
) -> Result<String, Box<dyn std::error::Error>> {
    let joined = match group {
        Some(path) => join(path).map_err(|error| format!("{path:?}: {error}")),
        None => Ok(()),
    };
    let mut line: Line<Taken> = work().map_err(|error| error.to_string());
    if let Ok(taken) = &mut line {
        taken.unlimited = joined.err();
    }
    Ok(format!("{}\n", serde_json::to_string(&line)?))
}

impl Task {
    /// Runs the task in a child, which an interrupt kills.
    pub(super) fn start(&self) -> Fallible<Taken> {
        start(SUBCOMMAND, self)
    }
}

/// Starts this program again with a task, and waits for its figures; an interrupt kills it.
pub(crate) fn start<T: DeserializeOwned>(subcommand: &str, task: &impl Serialize) -> Fallible<T> {
    let child = Command::new(std::env::current_exe()?)
        .arg(subcommand)
        .arg(serde_json::to_string(task)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start a process: {error}"))?;
    let mut child = Running(child);
    // The child never waits for its line to be read: a pipe has room for it.
    let status = loop {
        interrupted()?;
        match child.0.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(POLL),
        }
    };
    if !status.success() {
        return Err(format!("its process ended with {status}").into());
    }
    let mut line = Vec::new();
    if let Some(mut output) = child.0.stdout.take() {
        output.read_to_end(&mut line)?;
    }
    let line: Line<T> = serde_json::from_slice(&line)?;
    Ok(line?)
}

/// The time between two looks at a child.
const POLL: Duration = Duration::from_millis(20);

/// A child, which is killed on drop if it still runs.
#[derive(Debug)]
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the child has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many times to try to remove a group, with 10 ms between: it stays busy for a moment after
/// its last process has ended.
const TRIES: u32 = 50;

/// A group of the run, removed on drop.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    pub(crate) path: PathBuf,
}

impl MemoryGroup {
    /// Creates a group of this limit. Returns `None` if none can be created.
    pub(crate) fn new(limit: u64) -> Option<MemoryGroup> {
        let name = format!("innerspace-bench-{}", std::process::id());
        parents()
            .into_iter()
            .find_map(|parent| MemoryGroup::below(&parent, &name, limit))
    }

    fn below(parent: &Path, name: &str, limit: u64) -> Option<MemoryGroup> {
        let path = parent.join(name);
        fs::create_dir(&path).ok()?;
        // From here on, an early return removes the group.
        let group = MemoryGroup { path };
        let limit = limit.to_string();
        let limits = ["memory.limit_in_bytes", "memory.max"];
        let set = |file: &&str| fs::write(group.path.join(file), &limit).is_ok();
        limits.iter().any(set).then_some(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            match fs::remove_dir(&self.path) {
                Err(_) if self.path.exists() => std::thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
    }
}

/// Returns the groups in which one may be created, best first: the group of this process, since a
/// container may create none outside of it; then its parent, since in version 2 a group that has
/// processes cannot have limited groups below it.
fn parents() -> Vec<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut parents = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(own)) = (fields.next(), fields.next()) else {
            continue;
        };
        let own = own.trim_start_matches('/');
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Path::new("/sys/fs/cgroup/memory")
            }
            _ => continue,
        };
        let own = root.join(own);
        parents.push(own.clone());
        parents.extend(
            own.parent()
                .filter(|at| at.starts_with(root))
                .map(Path::to_owned),
        );
        parents.push(root.to_owned());
    }
    parents
}

/// Moves this process to a group, before it takes any memory that the group has to pay for.
fn join(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}
