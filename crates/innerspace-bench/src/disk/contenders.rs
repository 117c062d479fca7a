//! What each contender does in each row. What it needs is opened first, which is not in the
//! figures; every read is checked.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use innerspace::{Map, Memory, PagedFile, VirtAddr};

use super::child::{Taken, Task, timed};
use super::file::{PIECE, Random, check, check_number, filler, number};
use super::rows::{Contender, Spread, Work};
use super::{Fallible, in_flight};
use crate::host::{PAGE, Region};

/// Bytes of one read of the scans.
const PREAD: usize = 64 << 10;
const DIRECT: usize = 1 << 20;
/// Reads of io_uring in flight, for each thread of a scan.
const IN_FLIGHT: usize = 4;
/// The operation of the rows of batches: so many reads of so many bytes, on so many threads.
pub(super) const BATCH: u64 = 16;
const BATCH_READ: usize = 16 << 10;
const BATCH_THREADS: u64 = 8;
/// What is written by one call.
const APPEND: usize = 64 << 10;
const APPEND_SYNC: u64 = 16 << 20;
const WRITE: usize = 1 << 20;

/// Runs the task.
pub(super) fn run(task: &Task) -> Fallible<Taken> {
    match task.contender {
        Contender::Calls => calls(task),
        Contender::ReadAt => read_at(task),
        Contender::Mapping => mapping(task),
        Contender::Futures => {
            let (memory, file) = open_paged(task)?;
            let (at_once, pages) = random(task)?;
            let taken = timed(|| in_flight::by_futures(&file, &pages, at_once as usize));
            drop((file, memory));
            taken
        }
        Contender::Pread => pread(task),
        Contender::Mmap => mmap(task),
        Contender::IoUring => io_uring(task),
    }
}

/// Has each of the threads do its part; the first failure.
fn on_threads(threads: u64, part: impl Fn(u64) -> Fallible + Sync) -> Fallible {
    let part = &part;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || part(number)))
            .collect();
        let mut outcome = Ok(());
        for thread in threads {
            let end = thread.join();
            outcome = outcome.and(end.unwrap_or_else(|_| Err("a thread panicked".into())));
        }
        outcome
    })
}

/// Bytes of a thread's part of a scan: whole mebibytes, the last thread's also what is left.
fn part(bytes: u64, threads: u64, thread: u64) -> std::ops::Range<u64> {
    let each = (bytes / threads).next_multiple_of(1 << 20);
    (each * thread).min(bytes)..(each * (thread + 1)).min(bytes)
}

/// The pages of a row of random reads, and how many are read at once.
fn random(task: &Task) -> Fallible<(u64, Vec<u64>)> {
    match task.work {
        Work::Random { at_once, reads } => {
            let pages = Random::new(task.seed).distinct(reads, task.bytes / PAGE as u64);
            Ok((at_once, pages))
        }
        work => Err(no_part(task.contender, work)),
    }
}

fn no_part(contender: Contender, work: Work) -> Box<dyn std::error::Error + Send + Sync> {
    format!("{contender:?} has no part in {work:?}").into()
}

/// Random reads by threads that make a call for each. `read` has its own buffer.
fn random_reads<R: FnMut(u64, usize) -> Fallible>(
    task: &Task,
    reader: impl Fn() -> R + Sync,
) -> Fallible<Taken> {
    let (threads, pages) = random(task)?;
    let each = pages.len().div_ceil(threads as usize);
    timed(|| {
        on_threads(threads, |thread| {
            let mut read = reader();
            let pages = pages.chunks(each).nth(thread as usize).unwrap_or_default();
            pages
                .iter()
                .try_for_each(|page| read(page * PAGE as u64, PAGE))
        })
    })
}

/// Operations of several larger reads each.
fn batches<R: FnMut(u64, usize) -> Fallible>(
    task: &Task,
    spread: Spread,
    operations: u64,
    reader: impl Fn() -> R + Sync,
) -> Fallible<Taken> {
    let places = task.bytes / BATCH_READ as u64;
    // The hot fifth lies all over the file: times a prime, each place is another one.
    let scatter = |place: u64| place.wrapping_mul(2_654_435_761) % places;
    let hot = (places / 5).max(1);
    timed(|| {
        on_threads(BATCH_THREADS, |thread| {
            let mut read = reader();
            let mut random = Random::new(task.seed ^ (thread << 32));
            let own = operations / BATCH_THREADS;
            for _ in 0..own * BATCH {
                let place = match spread {
                    Spread::Skewed if random.below(10) < 8 => random.below(hot),
                    Spread::Skewed | Spread::Uniform => random.below(places),
                };
                read(scatter(place) * BATCH_READ as u64, BATCH_READ)?;
            }
            Ok(())
        })
    })
}

/// One step of the row of reads and writes.
enum Step<'a> {
    Read { at: u64 },
    Write { at: u64, bytes: &'a [u8] },
}

/// Seven reads to three writes of a piece each. What is written keeps the page's number.
fn mixed(
    task: &Task,
    operations: u64,
    mut step: impl FnMut(Step) -> Fallible,
    sync: impl FnOnce() -> Fallible,
) -> Fallible<Taken> {
    let mut random = Random::new(task.seed);
    let mut piece = filler(PIECE);
    timed(|| {
        for _ in 0..operations {
            let at = random.below(task.bytes / PIECE as u64) * PIECE as u64;
            if random.below(10) < 3 {
                piece[..8].copy_from_slice(&(at / PAGE as u64).to_le_bytes());
                piece[8..16].copy_from_slice(&random.next().to_le_bytes());
                step(Step::Write { at, bytes: &piece })?;
            } else {
                step(Step::Read { at })?;
            }
        }
        sync()
    })
}

/// Writes a file from its beginning on, `size` bytes a call.
fn written(
    bytes: u64,
    size: usize,
    mut write: impl FnMut(&[u8], u64) -> Fallible,
    last: impl FnOnce() -> Fallible,
) -> Fallible<Taken> {
    let mut chunk = filler(size);
    timed(|| {
        for at in (0..bytes).step_by(size) {
            number(&mut chunk, at);
            write(&chunk, at)?;
        }
        last()
    })
}

fn open_paged(task: &Task) -> Fallible<(Memory, PagedFile)> {
    let memory = Memory::with_limit(task.limit)?;
    let file = match task.work {
        Work::Append { .. } | Work::Load { .. } => memory.create(&task.path)?,
        Work::Mixed { .. } => memory.open_rw(&task.path)?,
        _ => memory.open(&task.path)?,
    };
    Ok((memory, file))
}

fn calls(task: &Task) -> Fallible<Taken> {
    let (_memory, file) = open_paged(task)?;
    let handles = handles(&file, task);
    let view =
        |at: u64, len: usize| -> Fallible { Ok(check(&file.view(at..at + len as u64)?, at)?) };
    match task.work {
        Work::Scan { threads } => timed(|| {
            on_threads(threads, |thread| {
                let range = part(task.bytes, threads, thread);
                let (mut at, mut checked) = (range.start, Ok(()));
                handles[thread as usize].scan(range.clone(), |piece| {
                    if checked.is_ok() {
                        checked = check(piece, at);
                    }
                    at += piece.len() as u64;
                })?;
                checked?;
                whole(at, range.end)
            })
        }),
        Work::Random { .. } => random_reads(task, || view),
        Work::Batches { spread, operations } => batches(task, spread, operations, || view),
        Work::Mixed { operations } => mixed(
            task,
            operations,
            |step| match step {
                Step::Read { at } => view(at, PIECE),
                Step::Write { at, bytes } => Ok(file.write_at(bytes, at)?),
            },
            || Ok(file.sync_data()?),
        ),
        Work::Append { bytes } => written(
            bytes,
            APPEND,
            |chunk, at| {
                let end = file.append(chunk)? + chunk.len() as u64;
                whole(end, at + chunk.len() as u64)?;
                if end.is_multiple_of(APPEND_SYNC) {
                    file.sync_data()?;
                }
                Ok(())
            },
            || Ok(file.sync_data()?),
        ),
        Work::Load { bytes } => written(
            bytes,
            WRITE,
            |chunk, at| Ok(file.write_at(chunk, at)?),
            || Ok(file.sync_all()?),
        ),
    }
}

/// A handle for each thread of a scan, since read-ahead belongs to the handle; else one.
fn handles(file: &PagedFile, task: &Task) -> Vec<PagedFile> {
    vec![file.clone(); scanning_threads(task) as usize]
}

fn scanning_threads(task: &Task) -> u64 {
    match task.work {
        Work::Scan { threads } => threads,
        _ => 1,
    }
}

fn read_at(task: &Task) -> Fallible<Taken> {
    let Work::Scan { threads } = task.work else {
        return Err(no_part(task.contender, task.work));
    };
    let (_memory, file) = open_paged(task)?;
    let handles = handles(&file, task);
    timed(|| {
        on_threads(threads, |thread| {
            let mut buffer = vec![0; PREAD];
            for at in part(task.bytes, threads, thread).step_by(PREAD) {
                handles[thread as usize].read_exact_at(&mut buffer, at)?;
                check(&buffer, at)?;
            }
            Ok(())
        })
    })
}

/// Whether a scan came to its end.
fn whole(reached: u64, end: u64) -> Fallible {
    if reached != end {
        return Err(format!("stopped at byte {reached}, not at {end}").into());
    }
    Ok(())
}

fn mapping(task: &Task) -> Fallible<Taken> {
    let Work::Scan { threads } = task.work else {
        return Err(no_part(task.contender, task.work));
    };
    let (memory, file) = open_paged(task)?;
    let space = memory.space()?;
    let mut starts: Vec<VirtAddr> = Vec::new();
    for handle in handles(&file, task) {
        starts.push(space.map(Map::file(&handle).shared())?);
    }
    timed(|| {
        on_threads(threads, |thread| {
            let mut accessor = space.accessor();
            let mut page = [0; PAGE];
            for at in part(task.bytes, threads, thread).step_by(PAGE) {
                let read = accessor.read(starts[thread as usize] + at, &mut page);
                read.map_err(|fault| fault.to_string())?;
                check(&page, at)?;
            }
            Ok(())
        })
    })
}

fn open_to_write(path: &Path, work: Work) -> Fallible<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if matches!(work, Work::Append { .. } | Work::Load { .. }) {
        options.create_new(true);
    }
    Ok(options.open(path)?)
}

fn pread(task: &Task) -> Fallible<Taken> {
    // A file for each thread of a scan, since the kernel's read-ahead belongs to the open file.
    let mut files = Vec::new();
    for _ in 0..scanning_threads(task) {
        files.push(match task.work {
            Work::Scan { .. } | Work::Random { .. } | Work::Batches { .. } => {
                File::open(&task.path)?
            }
            work => open_to_write(&task.path, work)?,
        });
    }
    let file = &files[0];
    let reader_of = |thread: u64, len: usize| {
        let (file, mut buffer) = (&files[thread as usize], vec![0; len]);
        move |at: u64, len: usize| -> Fallible {
            let buffer = &mut buffer[..len];
            file.read_exact_at(buffer, at)?;
            Ok(check(buffer, at)?)
        }
    };
    let reader = |len: usize| reader_of(0, len);
    match task.work {
        Work::Scan { threads } => timed(|| {
            on_threads(threads, |thread| {
                let mut read = reader_of(thread, PREAD);
                let mut pieces = part(task.bytes, threads, thread).step_by(PREAD);
                pieces.try_for_each(|at| read(at, PREAD))
            })
        }),
        Work::Random { .. } => random_reads(task, || reader(PAGE)),
        Work::Batches { spread, operations } => {
            batches(task, spread, operations, || reader(BATCH_READ))
        }
        Work::Mixed { operations } => {
            let mut read = reader(PIECE);
            mixed(
                task,
                operations,
                |step| match step {
                    Step::Read { at } => read(at, PIECE),
                    Step::Write { at, bytes } => Ok(file.write_all_at(bytes, at)?),
                },
                || Ok(file.sync_data()?),
            )
        }
        Work::Append { bytes } => written(
            bytes,
            APPEND,
            |chunk, at| {
                file.write_all_at(chunk, at)?;
                if (at + chunk.len() as u64).is_multiple_of(APPEND_SYNC) {
                    file.sync_data()?;
                }
                Ok(())
            },
            || Ok(file.sync_data()?),
        ),
        Work::Load { bytes } => written(
            bytes,
            WRITE,
            |chunk, at| Ok(file.write_all_at(chunk, at)?),
            || Ok(file.sync_all()?),
        ),
    }
}

/// Loads the number of each page of the range.
fn touch(region: &Region, range: std::ops::Range<u64>) -> Fallible {
    for at in range.step_by(PAGE) {
        check_number(region.load_checked(at), at)?;
    }
    Ok(())
}

fn mmap(task: &Task) -> Fallible<Taken> {
    let map = || -> Fallible<Region> {
        let file = open_to_write(&task.path, task.work)?;
        Ok(Region::shared(&file, task.bytes as usize)?)
    };
    if let Work::Scan { threads } = task.work {
        // A mapping of an open file for each thread, as `pread` has them.
        let regions: Vec<Region> = (0..threads).map(|_| map()).collect::<Fallible<_>>()?;
        return timed(|| {
            on_threads(threads, |thread| {
                touch(&regions[thread as usize], part(task.bytes, threads, thread))
            })
        });
    }
    let mut region = map()?;
    // Otherwise the kernel reads around each page, which random reads do not need.
    region.expect_random();
    if let Work::Mixed { operations } = task.work {
        let region = std::cell::RefCell::new(&mut region);
        return mixed(
            task,
            operations,
            |step| match step {
                Step::Read { at } => {
                    Ok(check(&region.borrow().bytes()[at as usize..][..PIECE], at)?)
                }
                Step::Write { at, bytes } => {
                    region.borrow_mut().bytes_mut()[at as usize..][..bytes.len()]
                        .copy_from_slice(bytes);
                    Ok(())
                }
            },
            || Ok(region.borrow().sync()?),
        );
    }
    let read = |at: u64, len: usize| touch(&region, at..at + len as u64);
    match task.work {
        Work::Random { .. } => random_reads(task, || read),
        Work::Batches { spread, operations } => batches(task, spread, operations, || read),
        work => Err(no_part(task.contender, work)),
    }
}

fn io_uring(task: &Task) -> Fallible<Taken> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&task.path)?;
    match task.work {
        Work::Scan { threads } => timed(|| {
            on_threads(threads, |thread| {
                let offsets = part(task.bytes, threads, thread).step_by(DIRECT);
                in_flight::by_ring(&file, IN_FLIGHT, DIRECT, offsets)
            })
        }),
        Work::Random { .. } => {
            let (depth, pages) = random(task)?;
            let offsets = pages.iter().map(|page| page * PAGE as u64);
            timed(|| in_flight::by_ring(&file, depth as usize, PAGE, offsets))
        }
        work => Err(no_part(task.contender, work)),
    }
}
