//! The rows: the work of each, its contenders and its aims.

use serde::{Deserialize, Serialize};

use super::MIB;
use super::contenders::BATCH;
use crate::host::PAGE;

/// The number of threads in the rows of batches.
pub(super) const BATCH_THREADS: u64 = 8;

/// A way to access a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Contender {
    /// A cached file with default options.
    Calls,
    /// The same file, scanned by `read_at` of 64 KiB in a loop.
    ReadAt,
    /// A cached file mapped in a space.
    Mapping,
    /// Futures of a cached file, all on one thread.
    Futures,
    /// The kernel's calls that copy: pread, and pwrite for writes.
    Pread,
    /// A shared mapping by the kernel.
    Mmap,
    /// A bare loop with O_DIRECT: the limit of the disk itself.
    IoUring,
}

impl Contender {
    pub(super) fn name(self) -> &'static str {
        match self {
            Contender::Calls => "calls",
            Contender::ReadAt => "read_at",
            Contender::Mapping => "mapping",
            Contender::Futures => "futures",
            Contender::Pread => "pread",
            Contender::Mmap => "mmap",
            Contender::IoUring => "io_uring",
        }
    }

    /// Whether this is one of the library's ways to access a file.
    pub(super) fn is_ours(self) -> bool {
        matches!(
            self,
            Contender::Calls | Contender::ReadAt | Contender::Mapping | Contender::Futures
        )
    }

    /// Whether this contender uses the kernel's page cache, so that a memory cgroup has to hold it
    /// to the limit.
    pub(super) fn takes_page_cache(self) -> bool {
        matches!(self, Contender::Pread | Contender::Mmap)
    }
}

/// How the places of the reads are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Spread {
    Uniform,
    /// Eight of ten reads go to a fifth of the file.
    Skewed,
}

/// The work of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Work {
    Scan { threads: u64 },
    Random { at_once: u64, reads: u64 },
    Batches { spread: Spread, operations: u64 },
    Mixed { operations: u64 },
    Append { bytes: u64 },
    Load { bytes: u64 },
}

impl Work {
    /// Returns the length of the new file that the row writes, if it writes one.
    pub(super) fn new_file(self) -> Option<u64> {
        match self {
            Work::Append { bytes } | Work::Load { bytes } => Some(bytes),
            _ => None,
        }
    }

    /// Returns the number of operations, if the row's rate is given in operations.
    pub(super) fn operations(self) -> Option<u64> {
        match self {
            Work::Random { reads, .. } => Some(reads),
            Work::Batches { operations, .. } | Work::Mixed { operations } => Some(operations),
            Work::Scan { .. } | Work::Append { .. } | Work::Load { .. } => None,
        }
    }
}

/// The aims of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aims {
    /// At least 0.9 of the best other contender's rate, with at most 1.2 times pread's CPU time.
    Scan,
    /// At least 0.95 of io_uring's rate, with at most pread's CPU time.
    Random,
    /// At least 1.3 times mmap's rate.
    Skewed,
    None,
}

/// One row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) work: Work,
    /// The number of bytes of the file that are read or written.
    pub(super) bytes: u64,
    pub(super) contenders: &'static [Contender],
    pub(super) aims: Aims,
}

/// Returns all rows for a file of `size` bytes and a limit, each with one in `divisor` of its
/// operations.
pub(super) fn all(size: u64, limit: u64, divisor: u64) -> Vec<Row> {
    use Contender::{Calls, Futures, IoUring, Mapping, Mmap, Pread, ReadAt};
    let mut rows = Vec::new();
    let mut add = |name: String, work, bytes, contenders, aims| {
        rows.push(Row {
            name,
            work,
            bytes,
            contenders,
            aims,
        });
    };
    let scanners: &[_] = &[Calls, ReadAt, Mapping, Pread, Mmap, IoUring];
    for (name, threads) in [("scan", 1), ("scan by two threads", 2)] {
        let work = Work::Scan { threads };
        add(name.into(), work, size, scanners, Aims::Scan);
    }
    let pages = size / PAGE as u64;
    // There are more pages than the limit has room for, so that some are evicted.
    let evicting = limit / PAGE as u64 * 5 / 4;
    let reads = |at_once: u64| {
        let least = if at_once < 8 { 40_000 } else { 60_000 };
        let reads = (evicting.max(least) / divisor).min(pages);
        Work::Random { at_once, reads }
    };
    for threads in [1, 2, 8, 32] {
        let name = match threads {
            1 => "random 4 KiB, 1 thread".to_owned(),
            _ => format!("random 4 KiB, {threads} threads"),
        };
        let contenders = &[Calls, Pread, Mmap, IoUring];
        add(name, reads(threads), size, contenders, Aims::Random);
    }
    // pread has a thread for each read.
    for (name, at_once) in [("32", 32), ("1,000", 1000)] {
        let name = format!("random 4 KiB, {name} futures");
        let contenders = &[Futures, Pread, IoUring];
        add(name, reads(at_once), size, contenders, Aims::Random);
    }
    let readers: &[_] = &[Calls, Pread, Mmap, IoUring];
    let operations = (2_000 / divisor).next_multiple_of(BATCH_THREADS);
    for (name, spread, aims) in [
        ("uniform", Spread::Uniform, Aims::None),
        ("80 % to 20 %", Spread::Skewed, Aims::Skewed),
    ] {
        let name = format!("{BATCH} reads of 16 KiB, {name}");
        let work = Work::Batches { spread, operations };
        add(name, work, 2 * limit, readers, aims);
    }
    let work = Work::Mixed {
        operations: 60_000 / divisor,
    };
    let name = "70/30 of 256 bytes, then a sync".into();
    let contenders = &[Calls, Pread, Mmap];
    add(name, work, 2 * limit, contenders, Aims::None);
    let writers: &[_] = &[Calls, Pread, IoUring];
    let bytes = (size / 2).min(1024 * MIB).next_multiple_of(MIB);
    let work = Work::Append { bytes };
    add(
        "append, a sync each 16 MiB".into(),
        work,
        bytes,
        writers,
        Aims::None,
    );
    let work = Work::Load { bytes };
    add(
        "load by 1 MiB, then a sync".into(),
        work,
        bytes,
        writers,
        Aims::None,
    );
    rows
}
