//! Views of resident pages while other pages are evicted, and while uses are sampled.

use std::cell::RefCell;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use innerspace::store::MemoryStore;
use innerspace::{MIB, Memory, MemoryBuilder, PagedFile, Threads};

use crate::harness::{
    Budget, Contender, Outcome, Plan, Row, Rows, Seeds, Unit, thread_time, xorshift,
};
use crate::host::PAGE;

/// The number of pages that are viewed. All of them stay resident.
const HOT: u64 = 8192;

/// The number of pages evicted each second.
const RATE: u64 = 10_000;

pub(super) fn measure(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    eviction(plan, rows)?;
    sampling(plan, rows)
}

fn options() -> MemoryBuilder {
    Memory::builder(96 * MIB).threads(Threads::None)
}

/// Opens a file whose pages are all resident and were used often.
fn hot_file(memory: &Memory) -> Result<PagedFile, Box<dyn Error>> {
    let store = MemoryStore::from_bytes(&vec![1; HOT as usize * PAGE]);
    let file = memory.file_options().open_store(store)?;
    for _ in 0..3 {
        for page in 0..HOT {
            file.view(page * PAGE as u64..page * PAGE as u64 + 8)?;
        }
    }
    Ok(file)
}

fn views(file: &PagedFile, count: u64, mut seed: u64) -> Outcome {
    thread_time(count, || {
        let mut sum = 0u64;
        for _ in 0..count {
            let at = xorshift(&mut seed) % HOT * PAGE as u64;
            sum += u64::from(file.view(at..at + PAGE as u64)?[0]);
        }
        if sum != count {
            return Err("other bytes than were stored".into());
        }
        Ok(sum)
    })
}

/// Brings in and evicts ten thousand pages each second on another thread, in steps of ten
/// milliseconds.
fn evict_behind(memory: &Memory, stream: &PagedFile, stop: &AtomicBool) -> u64 {
    let (mut page, mut evicted) = (0, 0);
    let pages = stream.len() / PAGE as u64;
    let mut next = Instant::now();
    loop {
        for _ in 0..RATE / 100 {
            let mut byte = [0];
            page = (page + 7919) % pages;
            let read = stream.read_at(&mut byte, page * PAGE as u64);
            if read.is_err() {
                return evicted;
            }
        }
        evicted += memory.reclaim(RATE / 100 * PAGE as u64) / PAGE as u64;
        if stop.load(Ordering::Relaxed) {
            return evicted;
        }
        next += Duration::from_millis(10);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn eviction(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let memory = options().build()?;
    let file = hot_file(&memory)?;
    let stream = MemoryStore::from_bytes(&vec![1; 65_536 * PAGE]);
    let stream = memory.file_options().open_store(stream)?;
    let count = plan.operations(4_000_000);
    let seeds = RefCell::new(Seeds::default());
    let seed = || seeds.borrow_mut().next();
    let beside = || {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let evicting = scope.spawn(|| evict_behind(&memory, &stream, &stop));
            let sample = views(&file, count, seed());
            stop.store(true, Ordering::Relaxed);
            match evicting.join() {
                Ok(evicted) if evicted > 0 => sample,
                _ => Err("nothing was evicted".into()),
            }
        })
    };
    rows.add(Row {
        name: "views while 10,000 pages a second are evicted".into(),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("nothing evicted", || views(&file, count, seed())),
            Contender::new("innerspace", beside),
        ],
        subject: "innerspace",
        baseline: "nothing evicted",
        budget: Budget::Ratio(1.03),
    })
}

fn sampling(plan: Plan, rows: &mut Rows) -> Result<(), Box<dyn Error>> {
    let (plain, sampled) = (options().build()?, options().sample_misses().build()?);
    let (of_plain, of_sampled) = (hot_file(&plain)?, hot_file(&sampled)?);
    // The views cover one whole stretch of sampling. After it there is a pause of 400 times its
    // length, which would be longer than a run.
    let mut viewed = 0;
    while viewed < 4_000_000 {
        viewed += views(&of_sampled, 1_000_000, 77)?.operations;
    }
    let count = plan.operations(4_000_000);
    let seeds = RefCell::new(Seeds::default());
    let seed = || seeds.borrow_mut().next();
    rows.add(Row {
        name: "views between two stretches of sampling".into(),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("not sampled", || views(&of_plain, count, seed())),
            Contender::new("innerspace", || views(&of_sampled, count, seed())),
        ],
        subject: "innerspace",
        baseline: "not sampled",
        budget: Budget::Ratio(1.01),
    })
}
