//! One contender's run as a process of its own, so that what the process took is what the run took.
//!
//! The parent starts its own program again as `disk-child TASK`, the task as JSON. The child joins
//! its memory cgroup, runs the task, and prints one line of JSON: what it took, or what failed. The
//! group, of version 1 or 2, holds the kernel's contenders to the limit.

use std::fs;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::rows::{Contender, Work};
use super::{Fallible, contenders};

/// The hidden subcommand.
pub(super) const SUBCOMMAND: &str = "disk-child";

/// What a child has to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) contender: Contender,
    pub(super) work: Work,
    pub(super) path: PathBuf,
    /// How much of the file is read.
    pub(super) bytes: u64,
    /// Of the memory.
    pub(super) limit: u64,
    pub(super) seed: u64,
    /// The memory cgroup to join.
    pub(super) group: Option<PathBuf>,
}

/// What a run took.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Taken {
    pub(super) wall_seconds: f64,
    /// User and system, of all threads of the process.
    pub(super) cpu_seconds: f64,
    /// Bytes that the process had read from the disk and written to it; none where the kernel does
    /// not count them.
    pub(super) read_bytes: Option<u64>,
    pub(super) written_bytes: Option<u64>,
    /// What kept the process from its memory cgroup.
    pub(super) unlimited: Option<String>,
}

type Line = Result<Taken, String>;

/// Does `work`, and says what it took.
pub(super) fn timed(work: impl FnOnce() -> Fallible) -> Fallible<Taken> {
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

/// A line of /proc/self/io.
fn transferred(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

/// The hidden subcommand: runs the task and returns the line to print.
pub(crate) fn run(task: &str) -> Result<String, Box<dyn std::error::Error>> {
    let task: Task = serde_json::from_str(task)?;
    let joined = match &task.group {
        Some(path) => join(path).map_err(|error| format!("{path:?}: {error}")),
        None => Ok(()),
    };
    let mut line: Line = contenders::run(&task).map_err(|error| error.to_string());
    if let Ok(taken) = &mut line {
        taken.unlimited = joined.err();
    }
    Ok(format!("{}\n", serde_json::to_string(&line)?))
}

impl Task {
    /// Has a child do it.
    pub(super) fn start(&self) -> Fallible<Taken> {
        let output = Command::new(std::env::current_exe()?)
            .arg(SUBCOMMAND)
            .arg(serde_json::to_string(self)?)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(format!("its process ended with {}", output.status).into());
        }
        let line: Line = serde_json::from_slice(&output.stdout)?;
        Ok(line?)
    }
}

/// How long a group whose last process has just ended may be busy yet, in tries of 10 ms.
const TRIES: u32 = 50;

/// A group of the run's own, removed on drop.
#[derive(Debug)]
pub(super) struct MemoryGroup {
    pub(super) path: PathBuf,
}

impl MemoryGroup {
    /// A new group of this limit; `None` where none can be made.
    pub(super) fn new(limit: u64) -> Option<MemoryGroup> {
        let name = format!("innerspace-bench-{}", std::process::id());
        parents()
            .into_iter()
            .find_map(|parent| MemoryGroup::below(&parent, &name, limit))
    }

    fn below(parent: &Path, name: &str, limit: u64) -> Option<MemoryGroup> {
        let path = parent.join(name);
        fs::create_dir(&path).ok()?;
        // From here on it is removed.
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

/// Where a group may be made: below the group of this process first, for outside of it a container
/// may not; in version 2 a group that has processes cannot have limited groups below, but its
/// parent can.
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

/// Has this process join a group, before it makes anything that the group is to pay for.
fn join(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}
