//! The rows: what is done in each, by whom, and what is aimed at.

use serde::{Deserialize, Serialize};

use super::contenders::BATCH;

const MIB: u64 = 1 << 20;

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Contender {
    /// A cached file with default options.
    Calls,
    /// The same file, scanned by `read_at` of 64 KiB in a loop.
    ReadAt,
    /// A cached file mapped in a space.
    Mapping,
    /// A cached file's futures, all on one thread.
    Futures,
    /// The kernel's calls that copy: pread, and pwrite where is written.
    Pread,
    Mmap,
    /// Direct reads by a bare loop.
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

    /// Whether it is the library's.
    pub(super) fn is_ours(self) -> bool {
        matches!(
            self,
            Contender::Calls | Contender::ReadAt | Contender::Mapping | Contender::Futures
        )
    }

    /// Whether it takes the kernel's page cache, which a group has to hold to the limit.
    pub(super) fn takes_page_cache(self) -> bool {
        matches!(self, Contender::Pread | Contender::Mmap)
    }
}

/// Where reads go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Spread {
    Uniform,
    /// Eight of ten to a fifth of the file.
    Skewed,
}

/// What is done.
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
    /// Bytes of a file of its own that it writes.
    pub(super) fn new_file(self) -> Option<u64> {
        match self {
            Work::Append { bytes } | Work::Load { bytes } => Some(bytes),
            _ => None,
        }
    }

    /// Operations, for rows whose rate is told in them.
    pub(super) fn operations(self) -> Option<u64> {
        match self {
            Work::Random { reads, .. } => Some(reads),
            Work::Batches { operations, .. } | Work::Mixed { operations } => Some(operations),
            Work::Scan { .. } | Work::Append { .. } | Work::Load { .. } => None,
        }
    }
}

/// What is aimed at.
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
    /// How much of the file is read or written to.
    pub(super) bytes: u64,
    pub(super) contenders: &'static [Contender],
    pub(super) aims: Aims,
}

/// All rows, for a file of `size` bytes and a limit, with a part of the operations.
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
    let pages = size / 4096;
    let reads = |at_once: u64| Work::Random {
        at_once,
        reads: ((20_000 + 40_000 * at_once.min(32) / 32) / divisor).min(pages),
    };
    for threads in [1, 2, 8, 32] {
        let name = match threads {
            1 => "random 4 KiB, 1 thread".to_owned(),
            _ => format!("random 4 KiB, {threads} threads"),
        };
        let contenders = &[Calls, Pread, Mmap, IoUring];
        add(name, reads(threads), size, contenders, Aims::Random);
    }
    // Pread needs a thread for each read, and so has no part in the row of 1,000.
    let few: &[_] = &[Futures, Pread, IoUring];
    let many: &[_] = &[Futures, IoUring];
    for (name, at_once, contenders) in [("32", 32, few), ("1,000", 1000, many)] {
        let name = format!("random 4 KiB, {name} futures");
        add(name, reads(at_once), size, contenders, Aims::Random);
    }
    let kernels: &[_] = &[Calls, Pread, Mmap];
    let operations = 2_000 / divisor;
    for (name, spread, aims) in [
        ("uniform", Spread::Uniform, Aims::None),
        ("80 % to 20 %", Spread::Skewed, Aims::Skewed),
    ] {
        let name = format!("{BATCH} reads of 16 KiB, {name}");
        let work = Work::Batches { spread, operations };
        add(name, work, 2 * limit, kernels, aims);
    }
    let work = Work::Mixed {
        operations: 60_000 / divisor,
    };
    let name = "70/30 of 256 bytes, then a sync".into();
    add(name, work, 2 * limit, kernels, Aims::None);
    let writers: &[_] = &[Calls, Pread];
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
