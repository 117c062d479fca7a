//! How each contender does the work of each row.
//!
//! Files are opened, rings set up and threads started before the clock starts. Every read is
//! checked when it is made; `written` checks the writes afterwards.
//!
//! Every contender reads the number of each page. pread, `read_at` and a mapping of the library
//! copy the page first, as their interface requires; views, mmap and the bare loop do not.
//!
//! - mmap gets the advice that was measured to be best for each row, while the library runs with
//!   default options. A scan by one thread took 0.56 s with MADV_SEQUENTIAL and 0.95 s without. A
//!   scan by two threads took 1.4 s with it and 0.7 to 1.0 s without, so these have no advice.
//!   Random reads have MADV_RANDOM, since otherwise the kernel reads the pages around each one.
//! - In scans the bare loop transfers 1 MiB at a time, with 8 transfers in flight. On the disk for
//!   which this was tuned (4.1 GB/s), 1 MiB x 4, 2 MiB x 8, 4 MiB x 4 and 256 KiB x 32 were within
//!   3 % of it on average, which is less than the disk varies; the last took 1.5 times the CPU
//!   time. In other rows the loop has as many reads in flight as the other contenders have threads
//!   or futures, and it writes as it scans. It has no cache, so a row that reads a page twice goes
//!   to the disk twice.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use innerspace::{Map, Memory, PagedFile, VirtAddr};

use super::child::{Taken, Task, timed, timed_threads};
use super::file::{PIECE, Random, check, check_number, filler, number};
use super::in_flight::{self, Ring};
use super::rows::{BATCH_THREADS, Contender, Spread, Work};
use super::written::{APPENDED, LOADED, Step, piece, steps};
use super::{Fallible, MIB};
use crate::host::{PAGE, Region};

/// The bytes of one call in the scans that copy.
const COPIED: usize = 64 << 10;
/// The bytes of each transfer of the bare loop in scans and rows of writes, and the number of
/// transfers in flight for each thread.
const DIRECT: usize = 1 << 20;
const DIRECT_DEPTH: usize = 8;
/// One operation of the rows of batches: the number of reads, made one after the other, and the
/// bytes of each.
pub(super) const BATCH: u64 = 16;
const BATCH_READ: usize = 16 << 10;
/// The bytes between two syncs in the row that appends.
const APPEND_SYNC: u64 = 16 * MIB;

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

/// Returns the range that a thread scans, in whole mebibytes.
fn part(bytes: u64, threads: u64, thread: u64) -> Range<u64> {
    let each = (bytes / threads).next_multiple_of(MIB);
    (each * thread).min(bytes)..(each * (thread + 1)).min(bytes)
}

/// Returns how many pages are read at a time in a row of random reads, and which pages.
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

/// Reads random pages on several threads, with a call for each page. Each thread creates its own
/// `reader`.
fn random_reads<R: FnMut(u64, usize) -> Fallible>(
    task: &Task,
    reader: impl Fn() -> R + Sync,
) -> Fallible<Taken> {
    let (threads, pages) = random(task)?;
    let each = pages.len().div_ceil(threads as usize);
    timed_threads(threads, |thread| {
        let mut read = reader();
        let pages = pages.chunks(each).nth(thread as usize).unwrap_or_default();
        pages
            .iter()
            .try_for_each(|page| read(page * PAGE as u64, PAGE))
    })
}

/// Returns the offsets that a thread reads in a row of batches.
fn batch_offsets(
    task: &Task,
    spread: Spread,
    operations: u64,
    thread: u64,
) -> impl Iterator<Item = u64> {
    let places = task.bytes / BATCH_READ as u64;
    // Multiplying by a prime scatters the hot fifth over the file.
    let scatter = move |place: u64| place.wrapping_mul(2_654_435_761) % places;
    let hot = (places / 5).max(1);
    let mut random = Random::new(task.seed ^ (thread << 32));
    (0..operations / BATCH_THREADS * BATCH).map(move |_| {
        let place = match spread {
            Spread::Skewed if random.below(10) < 8 => random.below(hot),
            Spread::Skewed | Spread::Uniform => random.below(places),
        };
        scatter(place) * BATCH_READ as u64
    })
}

/// Does operations that consist of several larger reads.
fn batches<R: FnMut(u64, usize) -> Fallible>(
    task: &Task,
    spread: Spread,
    operations: u64,
    reader: impl Fn() -> R + Sync,
) -> Fallible<Taken> {
    timed_threads(BATCH_THREADS, |thread| {
        let mut read = reader();
        batch_offsets(task, spread, operations, thread).try_for_each(|at| read(at, BATCH_READ))
    })
}

/// Reads and writes pieces, seven reads to three writes, and syncs.
fn mixed(
    task: &Task,
    operations: u64,
    mut read: impl FnMut(u64) -> Fallible,
    mut write: impl FnMut(u64, &[u8]) -> Fallible,
    sync: impl FnOnce() -> Fallible,
) -> Fallible<Taken> {
    let mut bytes = filler(PIECE);
    timed(|| {
        for step in steps(task.seed, task.mark, task.bytes, operations) {
            match step {
                Step::Read { at } => read(at)?,
                Step::Write { at, mark } => {
                    piece(&mut bytes, at, mark);
                    write(at, &bytes)?;
                }
            }
        }
        sync()
    })
}

/// Writes a file from its beginning to its end, with `size` bytes in each call.
fn write_all(
    bytes: u64,
    size: usize,
    mut write: impl FnMut(&[u8], u64) -> Fallible,
    last_sync: impl FnOnce() -> Fallible,
) -> Fallible<Taken> {
    let mut chunk = filler(size);
    timed(|| {
        for at in (0..bytes).step_by(size) {
            number(&mut chunk, at);
            write(&chunk, at)?;
        }
        last_sync()
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
        Work::Scan { threads } => timed_threads(threads, |thread| {
            let range = part(task.bytes, threads, thread);
            let (mut at, mut checked) = (range.start, Ok(()));
            handles[thread as usize].scan(range.clone(), |bytes| {
                if checked.is_ok() {
                    checked = check(bytes, at);
                }
                at += bytes.len() as u64;
            })?;
            checked?;
            ends_at(at, range.end)
        }),
        Work::Random { .. } => random_reads(task, || view),
        Work::Batches { spread, operations } => batches(task, spread, operations, || view),
        Work::Mixed { operations } => mixed(
            task,
            operations,
            |at| view(at, PIECE),
            |at, bytes| Ok(file.write_at(bytes, at)?),
            || Ok(file.sync_data()?),
        ),
        Work::Append { bytes } => write_all(
            bytes,
            APPENDED,
            |chunk, at| {
                let end = file.append(chunk)? + chunk.len() as u64;
                ends_at(end, at + chunk.len() as u64)?;
                if end.is_multiple_of(APPEND_SYNC) {
                    file.sync_data()?;
                }
                Ok(())
            },
            || Ok(file.sync_data()?),
        ),
        Work::Load { bytes } => write_all(
            bytes,
            LOADED,
            |chunk, at| Ok(file.write_at(chunk, at)?),
            || Ok(file.sync_all()?),
        ),
    }
}

/// Returns the handles to read through: in a scan one for each thread, since read-ahead belongs to
/// the handle; otherwise a single one.
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
    timed_threads(threads, |thread| {
        let mut buffer = vec![0; COPIED];
        for at in part(task.bytes, threads, thread).step_by(COPIED) {
            handles[thread as usize].read_exact_at(&mut buffer, at)?;
            check(&buffer, at)?;
        }
        Ok(())
    })
}

/// Checks that a scan or an append ended at the right byte.
fn ends_at(reached: u64, end: u64) -> Fallible {
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
    let space = memory.create_space()?;
    let mut starts: Vec<VirtAddr> = Vec::new();
    for handle in handles(&file, task) {
        starts.push(space.map(Map::file(&handle).shared())?);
    }
    timed_threads(threads, |thread| {
        let mut accessor = space.accessor().unwrap();
        let mut page = [0; PAGE];
        for at in part(task.bytes, threads, thread).step_by(PAGE) {
            let read = accessor.read(starts[thread as usize] + at, &mut page);
            read.map_err(|fault| fault.to_string())?;
            check(&page, at)?;
        }
        Ok(())
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
    // There is one open file for each thread of a scan, since the kernel's read-ahead belongs to
    // the open file.
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
        Work::Scan { threads } => timed_threads(threads, |thread| {
            let mut read = reader_of(thread, COPIED);
            let mut calls = part(task.bytes, threads, thread).step_by(COPIED);
            calls.try_for_each(|at| read(at, COPIED))
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
                |at| read(at, PIECE),
                |at, bytes| Ok(file.write_all_at(bytes, at)?),
                || Ok(file.sync_data()?),
            )
        }
        Work::Append { bytes } => write_all(
            bytes,
            APPENDED,
            |chunk, at| {
                file.write_all_at(chunk, at)?;
                if (at + chunk.len() as u64).is_multiple_of(APPEND_SYNC) {
                    file.sync_data()?;
                }
                Ok(())
            },
            || Ok(file.sync_data()?),
        ),
        Work::Load { bytes } => write_all(
            bytes,
            LOADED,
            |chunk, at| Ok(file.write_all_at(chunk, at)?),
            || Ok(file.sync_all()?),
        ),
    }
}

/// Loads the number of each page of the range.
fn touch(region: &Region, range: Range<u64>) -> Fallible {
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
        // There is one mapping of an open file for each thread, as for pread.
        let regions: Vec<Region> = (0..threads).map(|_| map()).collect::<Fallible<_>>()?;
        if let [only] = &regions[..] {
            only.expect_sequential();
        }
        return timed_threads(threads, |thread| {
            touch(&regions[thread as usize], part(task.bytes, threads, thread))
        });
    }
    let mut region = map()?;
    region.expect_random();
    if let Work::Mixed { operations } = task.work {
        let region = std::cell::RefCell::new(&mut region);
        return mixed(
            task,
            operations,
            |at| Ok(check(&region.borrow().bytes()[at as usize..][..PIECE], at)?),
            |at, bytes| {
                region.borrow_mut().bytes_mut()[at as usize..][..bytes.len()]
                    .copy_from_slice(bytes);
                Ok(())
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
    let is_new = task.work.new_file().is_some();
    let mut options = OpenOptions::new();
    options.read(true).write(is_new).create_new(is_new);
    let file = options
        .custom_flags(libc::O_DIRECT)
        .open(&task.path)
        .map_err(|error| format!("{:?} with O_DIRECT: {error}", task.path))?;
    let by_one = |depth: usize, len: usize, offsets: &[u64]| {
        let mut ring = Ring::new(depth, len)?;
        timed(|| ring.read(&file, offsets.iter().copied()))
    };
    match task.work {
        Work::Scan { threads } => {
            let ring = |_| Ok(Mutex::new(Ring::new(DIRECT_DEPTH, DIRECT)?));
            let rings: Vec<Mutex<Ring>> = (0..threads).map(ring).collect::<Fallible<_>>()?;
            timed_threads(threads, |thread| {
                let ring = rings[thread as usize].lock();
                let mut ring = ring.unwrap_or_else(PoisonError::into_inner);
                ring.read(&file, part(task.bytes, threads, thread).step_by(DIRECT))
            })
        }
        Work::Random { .. } => {
            let (depth, pages) = random(task)?;
            let offsets: Vec<u64> = pages.iter().map(|page| page * PAGE as u64).collect();
            by_one(depth as usize, PAGE, &offsets)
        }
        Work::Batches { spread, operations } => {
            // These are the reads of all threads, interleaved.
            let offsets = |thread| batch_offsets(task, spread, operations, thread);
            let mut threads: Vec<_> = (0..BATCH_THREADS).map(offsets).collect();
            let reads = operations / BATCH_THREADS * BATCH;
            let turn = |_| threads.iter_mut().filter_map(Iterator::next).collect();
            let offsets: Vec<Vec<u64>> = (0..reads).map(turn).collect();
            by_one(BATCH_THREADS as usize, BATCH_READ, &offsets.concat())
        }
        Work::Append { bytes } => write_direct(&file, bytes, APPENDED, APPEND_SYNC),
        Work::Load { bytes } => write_direct(&file, bytes, LOADED, bytes),
        work @ Work::Mixed { .. } => Err(no_part(task.contender, work)),
    }
}

/// Writes a new file by the bare loop, with a sync after every `synced` bytes. The blocks are
/// allocated first, since writes beyond the end of a file wait for each other.
fn write_direct(file: &File, bytes: u64, pattern: usize, synced: u64) -> Fallible<Taken> {
    let mut ring = Ring::new(DIRECT_DEPTH, DIRECT)?;
    ring.fill(&filler(pattern));
    timed(|| {
        for start in (0..bytes).step_by(synced as usize) {
            let end = (start + synced).min(bytes);
            allocate(file, start..end)?;
            ring.write(file, (start..end).step_by(DIRECT))?;
            file.sync_data()?;
        }
        Ok(file.sync_all()?)
    })
}

fn allocate(file: &File, range: Range<u64>) -> Fallible {
    let (start, len) = (range.start as i64, (range.end - range.start) as i64);
    // SAFETY: a call with a descriptor of ours.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, start, len) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(format!("cannot allocate {len} bytes: {error}").into());
    }
    Ok(())
}
