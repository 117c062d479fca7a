//! redb and tantivy on the library, compared with their own way to their files, at equal memory.
//!
//! | file | content |
//! |---|---|
//! | `redb_rows` | inserts, and random reads with cold caches, compared with `FileBackend` |
//! | `tantivy_rows` | queries and merging, compared with `MmapDirectory` |
//!
//! Each run is a process of its own in a memory cgroup, which counts the kernel's page cache. The
//! group's limit is the same for both contenders: the row's memory, and room for the program. With
//! the library, its limit (and redb's cache) make up the row's memory; without it the kernel's page
//! cache may take all that the engine leaves. Wall time is measured. The pages of the files are
//! dropped from the kernel's cache before each run.

mod redb_rows;
mod tantivy_rows;

use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use innerspace::MIB;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::disk::child::{MemoryGroup, Taken, answer, start};
use crate::disk::file::{check_folder, default_folder, drop_of_file};
use crate::disk::{Fallible, catch_interrupts};
use crate::harness::{Budget, Contender, Measured, Outcome, Plan, Row, Sample, Unit};
use crate::report::Table;

/// The hidden subcommand.
const SUBCOMMAND: &str = "engines-child";
/// Bytes that the files of a run may need.
const ROOM: u64 = 4096 * MIB;
/// The contenders' names.
const OURS: &str = "innerspace";
const FILE_BACKEND: &str = "FileBackend";
const MMAP: &str = "MmapDirectory";

/// What a child is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    work: Work,
    /// Whether by the library.
    ours: bool,
    /// The database, or the folder of the index.
    path: PathBuf,
    /// The row's memory.
    memory: u64,
    /// The memory cgroup to join.
    group: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Work {
    Insert { rows: u64 },
    Get { reads: u64, of: u64 },
    ColdQueries { queries: u64, found: u64 },
    WarmQueries { passes: u64, found: u64 },
    Merge { documents: u64 },
}

impl Work {
    fn operations(self) -> u64 {
        match self {
            Work::Insert { rows } => rows,
            Work::Get { reads, .. } => reads,
            Work::ColdQueries { queries, .. } => queries,
            Work::WarmQueries { passes, .. } => passes * tantivy_rows::WARM,
            Work::Merge { documents } => documents,
        }
    }
}

/// The hidden subcommand: runs the task, and returns the line to print.
pub(crate) fn run_child(task: &str) -> Result<String, Box<dyn Error>> {
    let task: Task = serde_json::from_str(task)?;
    answer(task.group.as_deref(), || match task.work {
        Work::Insert { rows } => redb_rows::insert(&task, rows),
        Work::Get { reads, of } => redb_rows::get(&task, reads, of),
        Work::ColdQueries { .. } | Work::WarmQueries { .. } => tantivy_rows::query(&task),
        Work::Merge { documents } => tantivy_rows::merge(&task, documents),
    })
}

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str, dir: Option<&Path>) -> Result<Table, Box<dyn Error>> {
    let folder = dir.map_or_else(default_folder, Path::to_owned);
    let told = |error: Box<dyn Error + Send + Sync>| -> Box<dyn Error> { error };
    check_folder(&folder, ROOM).map_err(told)?;
    catch_interrupts();
    let folder = TempDir::with_prefix_in("innerspace-bench-", folder)?;
    let mut rows = Vec::new();
    redb_rows::rows(plan, only, folder.path(), &mut rows)?;
    tantivy_rows::rows(plan, only, folder.path(), &mut rows)?;
    Ok(Table {
        name: "engines (wall time, for each insert, read, query or document)".into(),
        rows,
    })
}

/// Makes the database or the index of a run in a folder, and returns its path.
type Make<'a> = dyn Fn(&Path) -> Result<PathBuf, Box<dyn Error>> + 'a;

/// One row: the same work by the library and by the engine's own way.
struct Pair<'a> {
    name: String,
    work: Work,
    own_way: &'static str,
    memory: u64,
    /// Room for the program itself.
    program: u64,
    budget: f64,
    /// Makes the database or the index of a run, in a folder that is empty.
    make: &'a Make<'a>,
}

impl Pair<'_> {
    fn measure(self, plan: Plan, folder: &Path) -> Result<Measured, Box<dyn Error>> {
        let contender = |name: &'static str, ours| {
            let pair = &self;
            Contender::new(name, move || pair.run(folder, ours))
        };
        let row = Row {
            name: self.name.clone(),
            unit: Unit::Nanoseconds,
            contenders: vec![contender(self.own_way, false), contender(OURS, true)],
            subject: OURS,
            baseline: self.own_way,
            budget: Budget::Ratio(self.budget),
        };
        row.measure(plan)
    }

    fn run(&self, folder: &Path, ours: bool) -> Outcome {
        let folder = TempDir::new_in(folder)?;
        let path = (self.make)(folder.path())?;
        drop_pages(&path)?;
        let group = MemoryGroup::new(self.memory + self.program)
            .ok_or("no memory cgroup can be made: nothing would be held to the limit")?;
        let task = Task {
            work: self.work,
            ours,
            path,
            memory: self.memory,
            group: Some(group.path.clone()),
        };
        let told = |error: Box<dyn Error + Send + Sync>| -> Box<dyn Error> { error };
        let taken: Taken = start(SUBCOMMAND, &task).map_err(told)?;
        match taken.unlimited {
            Some(reason) => Err(reason.into()),
            None => Ok(Sample {
                operations: self.work.operations(),
                total: (taken.wall_seconds * 1e9) as u64,
            }),
        }
    }
}

/// Makes a file, or each file of a folder, durable, and drops its pages from the kernel's cache.
fn drop_pages(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return fs::read_dir(path)?.try_for_each(|entry| drop_pages(&entry?.path()));
    }
    if path.exists() {
        let file = File::open(path)?;
        file.sync_all()?;
        drop_of_file(&file);
    }
    Ok(())
}

/// Links the files of a folder into another.
fn link_all(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::hard_link(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// A failure of a child's own check.
fn unless(holds: bool, told: impl FnOnce() -> String) -> Fallible {
    match holds {
        true => Ok(()),
        false => Err(told().into()),
    }
}
