//! The heap bytes of each kind of object that a tenant can make in large numbers, compared with the
//! bytes that its group is charged.

mod dropping;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use innerspace::store::Store;
use innerspace::{
    DaxFile, Group, MIB, Map, Memory, PagedFile, Task, Threads,
    dax::{DaxDevice, DaxError},
    file::FileError,
    space::{AtFork, Device, DeviceError, SpaceError},
};

use crate::harness::{Budget, Contender, Outcome, Plan, Row, Rows, Sample, Unit};
use crate::host::PAGE;
use crate::report::Table;

/// The number of objects of each kind that are measured. As many exist before.
const MANY: usize = 4_000;

/// Whether the heap is counted, which is for this table and `remote` only.
static IS_COUNTING: AtomicBool = AtomicBool::new(false);
/// The bytes on the heap since counting began.
static BYTES: AtomicU64 = AtomicU64::new(0);
/// The most of them at any time.
static PEAK: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, which counts when it is told to.
pub(crate) struct Counting;

fn count(bytes: usize) {
    if IS_COUNTING.load(Ordering::Relaxed) {
        let bytes = bytes as u64;
        let now = BYTES
            .fetch_add(bytes, Ordering::Relaxed)
            .wrapping_add(bytes);
        // What was there before counting began may be freed meanwhile.
        PEAK.fetch_max(now.cast_signed().max(0) as u64, Ordering::Relaxed);
    }
}

/// Does some work, and returns the most bytes that were on the heap meanwhile, beyond those from
/// before.
#[cfg(all(target_os = "linux", feature = "remote"))]
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    IS_COUNTING.store(true, Ordering::Relaxed);
    let done = work();
    IS_COUNTING.store(false, Ordering::Relaxed);
    (done, PEAK.load(Ordering::Relaxed))
}

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the allocator's rules.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(layout.size().wrapping_neg());
        // SAFETY: the caller keeps the allocator's rules.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Measures the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str) -> Result<Table, Box<dyn Error>> {
    IS_COUNTING.store(true, Ordering::Relaxed);
    let mut rows = Rows::new(plan, only);
    let memory = Memory::builder(256 * MIB).threads(Threads::None).build()?;
    let group = memory.create_group("tenant", 192 * MIB)?;
    files(&memory, &group, &mut rows)?;
    spaces(&memory, &group, &mut rows)?;
    groups(&mut rows)?;
    row(&mut rows, &group, "watch", |_| Ok(group.watch()?))?;
    IS_COUNTING.store(false, Ordering::Relaxed);
    dropping::rows(plan, &mut rows)?;
    Ok(Table {
        name: "Heap of each object (charged beside what the allocator gave), and its end".into(),
        rows: rows.measured,
    })
}

/// A store of zeros.
struct Zeros;

impl Store for Zeros {
    fn len(&self) -> io::Result<u64> {
        Ok(MIB)
    }

    fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }
}

/// A device without any function.
struct Nothing;

impl Device for Nothing {
    fn load(&self, _: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.fill(0);
        Ok(())
    }

    fn store(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
}

fn files(memory: &Memory, group: &Group, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let open = || memory.file_options().group(group).open_store(Zeros);
    row(rows, group, "file", |_| Ok(open()?))?;
    let file = open()?;
    row(rows, group, "file handle", |_| Ok(file.clone()))?;
    row(rows, group, "block reader", |_| Ok(file.block_reader()))?;
    row(rows, group, "future of a call", |_| {
        let task: Task<(), FileError> = file.defer(PagedFile::sync_all);
        Ok(begin(task))
    })?;
    row(rows, group, "future of bytes", |_| {
        Ok(begin(file.ready(..8)))
    })?;
    let device = DaxDevice::memory(MIB)?;
    let direct = || {
        memory
            .dax_options()
            .group(group)
            .create_on(&device, "direct")
    };
    row(rows, group, "direct file", |_| Ok(direct()?))?;
    let file = direct()?;
    file.set_len(MIB)?;
    row(rows, group, "pin of a direct file", |_| Ok(file.pin(0..8)?))?;
    row(rows, group, "future of a direct file", |_| {
        let task: Task<(), DaxError> = file.defer(DaxFile::sync_all);
        Ok(begin(task))
    })
}

fn spaces(memory: &Memory, group: &Group, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let space = memory.create_space_in(group)?;
    let at = space.map(Map::anonymous(MIB))?;
    space.accessor()?.store(at, 1_u64)?;
    row(rows, group, "pin", |_| {
        Ok(space.pin(at, 8, AtFork::Copy)?)
    })?;
    row(rows, group, "future of a space", |_| {
        let task: Task<(), SpaceError> = space.defer(move |space| space.sync(at, PAGE as u64));
        Ok(begin(task))
    })?;
    row(rows, group, "accessor", |_| Ok(space.accessor()?))?;
    let own = || Ok(((), group.clone()));
    // The root of its table is a page, which is charged in addition to the heap.
    let page = PAGE as u64;
    row_in(rows, own, "fork", page, |_, _| Ok(space.fork()?))?;
    space.map(Map::device(Nothing, page))?;
    row_in(rows, own, "snapshot", page, |_, _| Ok(space.freeze()?))
}

/// Groups in a memory of their own each time: places of the table of groups are used again.
fn groups(rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let parent = || -> Result<(Memory, Group), Box<dyn Error>> {
        let memory = Memory::builder(64 * MIB).threads(Threads::None).build()?;
        let group = memory.create_group("tenant", 32 * MIB)?;
        Ok((memory, group))
    };
    row_in(rows, parent, "group", 0, |(_, group), number| {
        Ok(group.create_child_unlimited(&number.to_string())?)
    })
}

/// Polls a future once, which queues it.
fn begin<F: Future + Unpin>(mut future: F) -> F {
    let _pending = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
    future
}

/// Measures one kind of object.
fn row<T>(
    rows: &mut Rows,
    group: &Group,
    name: &str,
    make: impl Fn(usize) -> Result<T, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let own = || Ok(((), group.clone()));
    row_in(rows, own, name, 0, |_, number| make(number))
}

/// Measures one kind of object, made below `parent` and its group. The bytes of frames that each
/// is charged are left out.
fn row_in<P, T>(
    rows: &mut Rows,
    parent: impl Fn() -> Result<(P, Group), Box<dyn Error>>,
    name: &str,
    frames: u64,
    make: impl Fn(&(P, Group), usize) -> Result<T, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let charged = Cell::new(0);
    let measure = || -> Result<u64, Box<dyn Error>> {
        let parent = parent()?;
        let (_, group) = &parent;
        let mut kept = Vec::with_capacity(2 * MANY);
        // Tables that all objects share have their full size by then.
        for number in 0..MANY / 2 {
            kept.push(make(&parent, number)?);
        }
        let before = (BYTES.load(Ordering::Relaxed), group.usage());
        for number in MANY / 2..MANY {
            kept.push(make(&parent, number)?);
        }
        let more = group.usage().wrapping_sub(before.1);
        charged.set(more.saturating_sub(frames * (MANY - MANY / 2) as u64));
        Ok(BYTES.load(Ordering::Relaxed).wrapping_sub(before.0))
    };
    let sample = |total| -> Outcome {
        let operations = MANY as u64 / 2;
        Ok(Sample { operations, total })
    };
    rows.add(Row {
        name: name.into(),
        unit: Unit::Bytes,
        contenders: vec![
            Contender::new("on the heap", || sample(measure()?)),
            Contender::new("charged", || {
                measure()?;
                sample(charged.get())
            }),
        ],
        subject: "on the heap",
        baseline: "charged",
        budget: Budget::Within(0.1),
    })
}
