//! The memory of a process that reads 100 files at once.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::TryStreamExt;
use innerspace::{MIB, Memory};
use innerspace_object_store::object_store::aws::AmazonS3Builder;
use innerspace_object_store::object_store::path::Path as Key;
use innerspace_object_store::object_store::{ObjectStore, ObjectStoreExt};
use innerspace_object_store::{ObjectStoreFile, Tier, install_tls};
use innerspace_test_s3::{BUCKET, S3Server};
use serde::{Deserialize, Serialize};

use super::{check, put};
use crate::disk::Fallible;
use crate::disk::child::{Line, start};
use crate::harness::{Budget, Contender, Outcome, Row, Rows, Sample, Unit};
use crate::memory::peak_of;

/// The hidden subcommand.
const SUBCOMMAND: &str = "remote-child";
const FILES: u64 = 100;
const LEN: u64 = 4 * MIB;
/// The limit of the memory.
const LIMIT: u64 = 32 * MIB;
/// What a program may have beyond the limit for files in object storage, without a tier.
const BEYOND: u64 = 32 * MIB;
/// What this program has without any file: its own pages, libraries and threads.
const PROGRAM: u64 = 8 * MIB;
/// The tasks of the bare client.
const TASKS: usize = 64;

const OURS: &str = "innerspace";
const TIERED: &str = "innerspace with a tier";
const WHOLE: &str = "bare client, 64 tasks, whole objects";
const STREAM: &str = "bare client, 64 tasks, streams";
const NOTHING: &str = "the program alone";

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum Way {
    Ours,
    Tiered,
    Whole,
    Stream,
    Nothing,
}

/// What a child is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    way: Way,
    environment: Vec<(String, String)>,
    tier: PathBuf,
}

/// The most bytes of a child, in all and on the heap.
#[derive(Debug, Serialize, Deserialize)]
struct Peak {
    process: u64,
    heap: u64,
}

/// Adds the rows.
pub(super) fn rows(
    server: &S3Server,
    folder: &Path,
    rows: &mut Rows,
) -> Result<(), Box<dyn Error>> {
    let names = [
        format!(
            "peak of the process, {FILES} files at once, limit {} MiB",
            LIMIT / MIB
        ),
        format!(
            "peak of the heap, {FILES} files at once, limit {} MiB",
            LIMIT / MIB
        ),
    ];
    if !names.iter().any(|name| rows.wants(name)) {
        return Ok(());
    }
    for number in 0..FILES {
        put(server, &key(number), number, LEN);
    }
    let [process, heap] = names;
    rows.add(row(
        server,
        folder,
        process,
        |peak| peak.process,
        LIMIT + BEYOND + PROGRAM,
    ))?;
    // The cached blocks are not a part of the heap.
    rows.add(row(server, folder, heap, |peak| peak.heap, BEYOND))
}

fn row<'a>(
    server: &'a S3Server,
    folder: &'a Path,
    name: String,
    figure: impl Fn(&Peak) -> u64 + Copy + 'a,
    most: u64,
) -> Row<'a> {
    let ways = [
        (NOTHING, Way::Nothing),
        (STREAM, Way::Stream),
        (WHOLE, Way::Whole),
        (TIERED, Way::Tiered),
        (OURS, Way::Ours),
    ];
    let contender = |(name, way): (&'static str, Way)| {
        Contender::new(name, move || -> Outcome {
            let tier = tempfile::TempDir::new_in(folder)?;
            let environment = server.environment();
            let task = Task {
                way,
                environment: environment
                    .into_iter()
                    .map(|(name, value)| (name.into(), value))
                    .collect(),
                tier: tier.path().into(),
            };
            let peak: Peak =
                start(SUBCOMMAND, &task).map_err(|error| -> Box<dyn Error> { error })?;
            Ok(Sample {
                operations: 1,
                total: figure(&peak),
            })
        })
    };
    Row {
        name,
        unit: Unit::Bytes,
        contenders: ways.into_iter().map(contender).collect(),
        subject: OURS,
        baseline: WHOLE,
        budget: Budget::Absolute(most as f64),
    }
}

fn key(number: u64) -> String {
    format!("files/{number}")
}

/// The hidden subcommand: reads the files, and returns the line to print.
pub(crate) fn run_child(task: &str) -> Result<String, Box<dyn Error>> {
    let task: Task = serde_json::from_str(task)?;
    let (done, heap) = peak_of(|| read_all(&task));
    let line: Line<Peak> = match done.and_then(|()| high_water()) {
        Ok(process) => Ok(Peak { process, heap }),
        Err(error) => Err(error.to_string()),
    };
    Ok(format!("{}\n", serde_json::to_string(&line)?))
}

/// Returns the process's peak of memory in bytes.
fn high_water() -> Fallible<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.ok_or("no VmHWM in /proc/self/status")?.parse::<u64>()? << 10)
}

fn read_all(task: &Task) -> Fallible {
    install_tls();
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(BUCKET)
        .with_allow_http(true);
    for (name, value) in &task.environment {
        builder = builder.with_config(name.to_lowercase().parse()?, value);
    }
    let memory = Memory::with_limit(LIMIT)?;
    let client = || -> Fallible<Arc<dyn ObjectStore>> { Ok(Arc::new(builder.clone().build()?)) };
    match task.way {
        Way::Nothing => Ok(()),
        Way::Ours => by_threads(&memory, &client()?, None),
        Way::Tiered => {
            let tier = Tier::open(&task.tier, FILES * LEN / 2)?;
            by_threads(&memory, &client()?, Some(&tier))
        }
        Way::Whole => by_tasks(&client()?, false),
        Way::Stream => by_tasks(&client()?, true),
    }
}

/// Scans each file on a thread of its own.
fn by_threads(memory: &Memory, client: &Arc<dyn ObjectStore>, tier: Option<&Tier>) -> Fallible {
    let one = |number| -> Fallible {
        let key = Key::from(key(number));
        let object = ObjectStoreFile::options().open_on(client.clone(), &key)?;
        let opener = memory.file_options();
        let file = match tier {
            Some(tier) => opener.open_store(tier.store(object)?)?,
            None => opener.open_store(object)?,
        };
        let (mut at, mut outcome) = (0, Ok(()));
        file.scan(.., |piece| {
            if outcome.is_ok() {
                outcome = check(number, at, piece);
            }
            at += piece.len() as u64;
        })?;
        outcome
    };
    let one = &one;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..FILES)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        let mut ends = threads.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

/// Reads the files from tasks, as the bare client's users do.
fn by_tasks(client: &Arc<dyn ObjectStore>, stream: bool) -> Fallible {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let next = Arc::new(AtomicU64::new(0));
    let task = || {
        let (client, next) = (client.clone(), next.clone());
        runtime.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= FILES {
                    return Fallible::Ok(());
                }
                let object = client.get(&Key::from(key(number))).await?;
                if !stream {
                    check(number, 0, &object.bytes().await?)?;
                    continue;
                }
                let (mut pieces, mut len) = (object.into_stream(), 0);
                while let Some(piece) = pieces.try_next().await? {
                    len += piece.len() as u64;
                }
                if len != LEN {
                    return Err(format!("a stream of {len} bytes").into());
                }
            }
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(|_| task()).collect();
    runtime.block_on(async {
        for task in tasks {
            task.await??;
        }
        Ok(())
    })
}
