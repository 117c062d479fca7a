//! How fast objects are read: at random, in order, and a second time with a tier.

use std::error::Error;
use std::fs::File;
use std::future::Future;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use innerspace::file::Reading;
use innerspace::store::Store;
use innerspace::{MIB, Memory, PagedFile};
use innerspace_object_store::object_store::path::Path as Key;
use innerspace_object_store::object_store::{ObjectStore, ObjectStoreExt};
use innerspace_object_store::{ObjectStoreFile, Tier};
use innerspace_test_s3::S3Server;
use tokio::runtime::Runtime;

use super::{check, put};
use crate::disk::Fallible;
use crate::disk::file::{Random, drop_of_file};
use crate::harness::{Budget, Contender, Plan, Row, Rows, Seeds, Unit, wall_time};
use crate::host::{PAGE, Region};
use crate::translation::HostPages;

/// The object that is read, in bytes and pages.
const LEN: u64 = 256 * MIB;
const PAGES: u64 = LEN / PAGE as u64;
const KEY: &str = "object";
/// The readers of a random row.
const TASKS: usize = 64;
/// The bare client's requests in flight. They take an eighth of the row's memory in all, which is
/// what the library has in flight.
const IN_FLIGHT: u64 = 8;

const OURS: &str = "innerspace";
const BARE: &str = "bare client";

/// Adds the rows.
pub(super) fn rows(
    plan: Plan,
    server: &S3Server,
    folder: &Path,
    rows: &mut Rows,
) -> Result<(), Box<dyn Error>> {
    let at_random = format!("random reads of 4 KiB, {TASKS} tasks");
    let scans = [64, 256].map(|limit| (format!("scan, limit {limit} MiB"), limit * MIB));
    let tiers = [
        "second run with a tier, scan",
        "second run with a tier, random reads of 4 KiB",
    ];
    let remote = [&at_random, &scans[0].0, &scans[1].0];
    if !remote.iter().any(|name| rows.wants(name)) && !tiers.iter().any(|name| rows.wants(name)) {
        return Ok(());
    }
    put(server, KEY, 0, LEN);
    let bench = Bench {
        server,
        client: server.client(),
        runtime: tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?,
    };
    rows.add_with(&at_random, || Ok(bench.random(at_random.clone(), plan)))?;
    for (name, limit) in scans {
        rows.add_with(&name, || Ok(bench.scans(name.clone(), limit)))?;
    }
    if tiers.iter().any(|name| rows.wants(name)) {
        let local = Local::fill(&bench, folder)?;
        rows.add_with(tiers[0], || Ok(local.scans(&bench, tiers[0])))?;
        rows.add_with(tiers[1], || Ok(local.random(&bench, tiers[1], plan)))?;
    }
    Ok(())
}

/// Returns a source of random pages, `reads` at a time, and different ones for each turn.
fn places(reads: u64, turn: u64) -> impl FnMut() -> Vec<u64> {
    let mut seeds = Seeds::default();
    move || Random::new(seeds.next().wrapping_mul(turn)).distinct(reads, PAGES)
}

struct Bench<'a> {
    server: &'a S3Server,
    client: Arc<dyn ObjectStore>,
    runtime: Runtime,
}

fn told(error: Box<dyn Error + Send + Sync>) -> Box<dyn Error> {
    error
}

/// Scans a file, and checks it.
fn scan(file: &PagedFile) -> Result<(), Box<dyn Error>> {
    file.set_reading(Reading::Sequential);
    let (mut at, mut outcome) = (0, Ok(()));
    file.scan(.., |piece| {
        if outcome.is_ok() {
            outcome = check(0, at, piece);
        }
        at += piece.len() as u64;
    })?;
    outcome.map_err(told)?;
    match at {
        LEN => Ok(()),
        at => Err(format!("a scan ended at {at}").into()),
    }
}

impl Bench<'_> {
    /// Opens the object with requests so small that a memory of this limit has several in flight,
    /// as `innerspace cat` does.
    fn open(&self, limit: u64) -> Result<ObjectStoreFile, Box<dyn Error>> {
        let options = ObjectStoreFile::options().preferred_size((limit / 64) as usize);
        Ok(options.open_on(self.server.client(), &Key::from(KEY))?)
    }

    /// Makes a memory with the object in it.
    fn file(&self, limit: u64) -> Result<PagedFile, Box<dyn Error>> {
        file_of(limit, self.open(limit)?)
    }

    /// Reads these pages from [`TASKS`] tasks, each of which takes the next page that no task has
    /// taken.
    fn by_tasks<R>(
        &self,
        pages: Vec<u64>,
        read: impl Fn(u64) -> R + Clone + Send + 'static,
    ) -> Result<(), Box<dyn Error>>
    where
        R: Future<Output = Fallible> + Send,
    {
        let pages = Arc::new(pages);
        let next = Arc::new(AtomicU64::new(0));
        let task = || {
            let (pages, next, read) = (pages.clone(), next.clone(), read.clone());
            self.runtime.spawn(async move {
                while let Some(page) = pages.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    read(page * PAGE as u64).await?;
                }
                Ok(())
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(|_| task()).collect();
        self.runtime.block_on(async {
            for task in tasks {
                task.await?.map_err(told)?;
            }
            Ok(())
        })
    }

    /// Reads pages of a file as futures.
    fn by_futures(&self, file: &PagedFile, pages: Vec<u64>) -> Result<(), Box<dyn Error>> {
        let file = file.clone();
        self.by_tasks(pages, move |at| {
            let ready = file.ready(at..at + PAGE as u64);
            async move { check(0, at, &ready.await?) }
        })
    }

    fn random(&self, name: String, plan: Plan) -> Row<'_> {
        let reads = plan.operations(1000);
        let [mut alone, mut bare, mut ours] = [1, 2, 3].map(|turn| places(reads, turn));
        Row {
            name,
            unit: Unit::Nanoseconds,
            contenders: vec![
                Contender::new("one after the other", move || {
                    let file = self.file(64 * MIB)?;
                    let pages = alone();
                    wall_time(reads, || {
                        for page in pages {
                            let at = page * PAGE as u64;
                            check(0, at, &file.view(at..at + PAGE as u64)?).map_err(told)?;
                        }
                        Ok(())
                    })
                }),
                Contender::new(BARE, move || {
                    let (pages, client) = (bare(), self.client.clone());
                    wall_time(reads, || {
                        self.by_tasks(pages, move |at| {
                            let client = client.clone();
                            async move {
                                let range = at..at + PAGE as u64;
                                check(0, at, &client.get_range(&Key::from(KEY), range).await?)
                            }
                        })
                    })
                }),
                Contender::new(OURS, move || {
                    let file = self.file(64 * MIB)?;
                    let pages = ours();
                    wall_time(reads, || self.by_futures(&file, pages))
                }),
            ],
            subject: OURS,
            baseline: "one after the other",
            budget: Budget::Faster(50.0),
        }
    }

    fn scans(&self, name: String, limit: u64) -> Row<'_> {
        let part = limit / 8 / IN_FLIGHT;
        Row {
            name,
            unit: Unit::Nanoseconds,
            contenders: vec![
                Contender::new(BARE, move || {
                    let client = &self.client;
                    let parts =
                        stream::iter((0..LEN).step_by(part as usize)).map(|at| async move {
                            let bytes = client.get_range(&Key::from(KEY), at..at + part).await?;
                            check(0, at, &bytes)
                        });
                    wall_time(PAGES, || {
                        let all = parts
                            .buffered(IN_FLIGHT as usize)
                            .try_for_each(async |()| Ok(()));
                        self.runtime.block_on(all).map_err(told)
                    })
                }),
                Contender::new(OURS, move || {
                    let file = self.file(limit)?;
                    wall_time(PAGES, || scan(&file))
                }),
            ],
            subject: OURS,
            baseline: BARE,
            // A speed of 0.9.
            budget: Budget::Ratio(1.0 / 0.9),
        }
    }
}

fn file_of(limit: u64, store: impl Store) -> Result<PagedFile, Box<dyn Error>> {
    // The file keeps its memory.
    Ok(Memory::with_limit(limit)?
        .file_options()
        .open_store(store)?)
}

/// The object's bytes on the local disk, as a tier and as a plain file.
struct Local<'a> {
    folder: &'a Path,
}

impl Local<'_> {
    fn fill<'a>(bench: &Bench<'_>, folder: &'a Path) -> Result<Local<'a>, Box<dyn Error>> {
        let local = Local { folder };
        scan(&local.tiered(bench)?)?;
        let object = bench.server.folder().join(KEY);
        std::fs::copy(object, folder.join("plain"))?;
        for name in ["plain", "tier/chunks", "tier/records"] {
            let file = File::open(folder.join(name))?;
            file.sync_all()?;
            drop_of_file(&file);
        }
        Ok(local)
    }

    /// Opens the object behind the tier, in a new memory.
    fn tiered(&self, bench: &Bench<'_>) -> Result<PagedFile, Box<dyn Error>> {
        let tier = Tier::open(self.folder.join("tier"), 2 * LEN)?;
        file_of(64 * MIB, tier.store(bench.open(64 * MIB)?)?)
    }

    /// Opens the plain file in a new memory.
    fn plain(&self) -> Result<PagedFile, Box<dyn Error>> {
        let memory = Memory::with_limit(64 * MIB)?;
        Ok(memory.file_options().open(self.folder.join("plain"))?)
    }

    /// Opens the plain file past the kernel's cache.
    fn direct(&self) -> Result<File, Box<dyn Error>> {
        let mut options = File::options();
        let options = options.read(true).custom_flags(libc::O_DIRECT);
        Ok(options.open(self.folder.join("plain"))?)
    }

    fn scans<'b>(&'b self, bench: &'b Bench<'_>, name: &str) -> Row<'b> {
        Row {
            name: name.into(),
            unit: Unit::Nanoseconds,
            contenders: vec![
                Contender::new("plain file", || {
                    let file = self.plain()?;
                    wall_time(PAGES, || scan(&file))
                }),
                Contender::new("O_DIRECT, 4 threads", || {
                    let file = self.direct()?;
                    wall_time(PAGES, || direct_scan(&file))
                }),
                Contender::new(OURS, || {
                    let file = self.tiered(bench)?;
                    let before = bench.server.requests();
                    let sample = wall_time(PAGES, || scan(&file));
                    unasked(bench, before)?;
                    sample
                }),
            ],
            subject: OURS,
            baseline: "plain file",
            budget: Budget::Ratio(1.0 / 0.9),
        }
    }

    fn random<'b>(&'b self, bench: &'b Bench<'_>, name: &str, plan: Plan) -> Row<'b> {
        let reads = plan.operations(8000);
        let [mut plain, mut tiered] = [3, 5].map(|turn| places(reads, turn));
        Row {
            name: name.into(),
            unit: Unit::Nanoseconds,
            contenders: vec![
                Contender::new("plain file", move || {
                    let file = self.plain()?;
                    let pages = plain();
                    wall_time(reads, || bench.by_futures(&file, pages))
                }),
                Contender::new(OURS, move || {
                    let file = self.tiered(bench)?;
                    let pages = tiered();
                    let before = bench.server.requests();
                    let sample = wall_time(reads, || bench.by_futures(&file, pages));
                    unasked(bench, before)?;
                    sample
                }),
            ],
            subject: OURS,
            baseline: "plain file",
            budget: Budget::None,
        }
    }
}

/// Checks that the server was not asked meanwhile.
fn unasked(bench: &Bench<'_>, before: u64) -> Result<(), Box<dyn Error>> {
    match bench.server.requests() - before {
        0 => Ok(()),
        requests => Err(format!("a warm tier made {requests} requests").into()),
    }
}

/// Reads the plain file past the kernel's cache, 1 MiB at a time on each of four threads.
fn direct_scan(file: &File) -> Result<(), Box<dyn Error>> {
    let next = AtomicU64::new(0);
    let part = || -> Fallible {
        let mut buffer = Region::anonymous(MIB as usize, HostPages::Base)?;
        loop {
            let at = next.fetch_add(MIB, Ordering::Relaxed);
            if at >= LEN {
                return Ok(());
            }
            file.read_exact_at(buffer.bytes_mut(), at)?;
            check(0, at, buffer.bytes_mut())?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(part)).collect();
        let mut ends = threads.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.unwrap_or_else(|_| Err("a thread panicked".into())))
            .map_err(told)
    })
}
