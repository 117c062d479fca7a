//! Table T3: the page lock.
//!
//! There are three kinds of rows. The first is locking and unlocking alone, compared with two bare
//! atomic operations, the least that is possible. The second is one lock contended by two threads,
//! with bounded unfairness and in strict order. The third is short-lived spaces that map the same
//! files, where each fault takes and releases the lock of a block. The library's own lock cannot be
//! reached from outside, so the first two measure prototypes of the library's form and of two old
//! ones: to clear the lock bit and then test the waiters bit in the byte that was just changed, and
//! to clear it and then search the wait queue in any case.

mod forms;

use std::error::Error;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use innerspace::store::MemoryStore;
use innerspace::{MIB, Map, Memory, PagedFile};

use self::forms::{Locks, Unlock};
use crate::access::{Clock, together};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Rows, Unit, memory, thread_time};
use crate::host::{PAGE, Region, memory_file};
use crate::report::Table;

const WAYS: [(&str, Unlock); 3] = [
    ("one operation", Unlock::OneOperation),
    ("clear, then test", Unlock::ClearThenTest),
    ("clear, then look at the queue", Unlock::ClearThenLook),
];

/// The number of locks that are used in turn: as many cache lines as fit in the first-level cache.
const LOCKS: usize = 256;

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    let mut rows = Rows::new(plan, only);
    rows.add(bench_pair(plan))?;
    rows.add(bench_spaces(plan)?)?;
    rows.add(bench_contended(plan))?;
    Ok(Table {
        name: "page lock (T3)".into(),
        rows: rows.measured,
    })
}

/// A byte on a cache line of its own, as the flags of a frame are.
#[repr(align(64))]
struct Line(AtomicU8);

fn bench_pair(plan: Plan) -> Row<'static> {
    let count = plan.operations(4_000_000);
    let lines: Vec<Line> = (0..LOCKS).map(|_| Line(AtomicU8::new(0))).collect();
    let bare = Contender::new("two bare RMWs", move || {
        let bytes: Vec<&AtomicU8> = lines.iter().map(|line| &line.0).collect();
        thread_time(count, || {
            for byte in bytes.iter().cycle().take(count as usize) {
                let taken = byte.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
                taken.map_err(|seen| format!("the byte was {seen}"))?;
                byte.fetch_and(!1, Ordering::Release);
            }
            Ok(())
        })
    });
    let of = |(name, way): (&'static str, Unlock)| {
        let locks = Locks::new(LOCKS, way, 5);
        Contender::new(name, move || {
            thread_time(count, || {
                for lock in (0..LOCKS).cycle().take(count as usize) {
                    locks.lock(lock);
                    locks.unlock(lock);
                }
                Ok(())
            })
        })
    };
    Row {
        name: "lock and unlock, nobody waits".into(),
        unit: Unit::Nanoseconds,
        contenders: std::iter::once(bare).chain(WAYS.map(of)).collect(),
        subject: "one operation",
        baseline: "two bare RMWs",
        budget: Budget::Ratio(1.1),
    }
}

/// The number of files that every space maps, and the number of pages in each.
const FILES: usize = 4;
const FILE_PAGES: u64 = 256;

/// Creates a space, maps all files, loads from each page, `pages` loads in all, and drops the
/// space.
fn space_once(memory: &Memory, files: &[PagedFile]) -> Result<u64, Box<dyn Error>> {
    let space = memory.create_space()?;
    let mut accessor = space.accessor().unwrap();
    let mut sum = 0u64;
    for file in files {
        let at = space.map(Map::file(file))?;
        for page in 0..FILE_PAGES {
            sum = accessor
                .load::<u64>(at + page * PAGE as u64)?
                .wrapping_add(sum);
        }
    }
    Ok(sum)
}

const KERNEL: &str = "kernel: mmap of memfds, munmap";

/// Makes the same mappings and loads in the process's own address space.
fn kernel_once(files: &[File], bytes: usize) -> io::Result<u64> {
    let mut regions = Vec::with_capacity(FILES);
    let mut sum = 0u64;
    for file in files {
        let region = Region::shared(file, bytes)?;
        sum = region.read_every(PAGE).wrapping_add(sum);
        regions.push(region);
    }
    Ok(sum)
}

fn bench_spaces(plan: Plan) -> Result<Row<'static>, Box<dyn Error>> {
    let times = plan.operations(200);
    let pages = times * FILES as u64 * FILE_PAGES;
    let bytes = FILE_PAGES as usize * PAGE;
    let memory = memory(32 * MIB)?;
    let open = |_| {
        let store = MemoryStore::from_bytes(&vec![1; bytes]);
        memory.file_options().open_store(store)
    };
    let files = (0..FILES).map(open).collect::<Result<Vec<_>, _>>()?;
    let ours = Contender::new("innerspace", move || {
        thread_time(pages, || {
            let mut sum = 0u64;
            for _ in 0..times {
                sum = space_once(&memory, &files)?.wrapping_add(sum);
            }
            Ok(sum)
        })
    });
    let open = |_| {
        let file = memory_file()?;
        file.set_len(bytes as u64)?;
        Ok(file)
    };
    let files = (0..FILES).map(open).collect::<io::Result<Vec<File>>>()?;
    let kernel = Contender::new(KERNEL, move || {
        thread_time(pages, || {
            let mut sum = 0u64;
            for _ in 0..times {
                sum = kernel_once(&files, bytes)?.wrapping_add(sum);
            }
            Ok(sum)
        })
    });
    Ok(Row {
        name: "short-lived spaces over the same files, fault and unmap, each page".into(),
        unit: Unit::Nanoseconds,
        contenders: vec![ours, kernel],
        subject: "innerspace",
        baseline: KERNEL,
        budget: Budget::None,
    })
}

/// Has two threads take one lock for a moment, again and again. Returns the wall time of both.
fn fight(locks: &Locks, count: u64) -> Outcome {
    let holds = || {
        || {
            for _ in 0..count {
                locks.lock(0);
                std::hint::black_box(locks);
                locks.unlock(0);
            }
            Ok(())
        }
    };
    together(Clock::Wall, count, vec![holds(), holds()])
}

// spec: L8
fn bench_contended(plan: Plan) -> Row<'static> {
    let count = plan.operations(100_000);
    let of = |(name, patience): (&'static str, u32)| {
        let locks = Locks::new(1, Unlock::OneOperation, patience);
        Contender::new(name, move || fight(&locks, count))
    };
    Row {
        name: "one lock, two threads, short holds, wall time".into(),
        unit: Unit::Nanoseconds,
        contenders: [
            // This is the library's own value.
            ("passed five times at most", 5),
            ("strict order", 0),
        ]
        .map(of)
        .into(),
        subject: "passed five times at most",
        baseline: "strict order",
        budget: Budget::Ratio(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs() {
        for row in &table(Plan::smoke(), "").unwrap().rows {
            assert!(row.ratio().is_some(), "{}", row.name);
        }
    }
}
