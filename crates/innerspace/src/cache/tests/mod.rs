//! Scenarios of whole files on a small memory.

mod backing_off;
mod blocking;
mod blocks;
mod closing;
mod completions;
mod cutting;
mod doubt;
mod failing;
mod invalidating;
mod long_writes;
mod looking;
mod mapped;
mod mapping;
mod model;
mod ordering;
mod panicking;
mod punched;
mod reading;
mod reclaiming;
mod requests;
#[cfg(all(
    target_os = "linux",
    feature = "io-uring",
    not(any(loom, shuttle, miri, portable))
))]
mod ring;
mod syncing;
mod tasks;
mod try_forms;
mod uncached;
mod waking;
mod windows;
mod writing;

use std::ops::Range;

use super::core::FileCore;
use super::{Cache, FileAccess, FileOptions, PagedFile};
use crate::reclaim::{FlushRequest, Owner, Pool, PoolOptions};
use crate::store::faulty::{Failure, Fault, OperationKind, Rule};
use crate::store::{FaultyStore, MemoryStore, Store};
use crate::sync::{Arc, thread};
use crate::units::{PAGE_SIZE, PageCount};

const PAGE: usize = PAGE_SIZE;

/// Writes all dirty blocks.
const EVERYTHING: FlushRequest = FlushRequest {
    dirtied_by: u64::MAX,
    pages: PageCount(1 << 20),
};

/// The block sizes at which the scenarios run.
const SIZES: [u64; 3] = [4 << 10, 64 << 10, 2 << 20];

/// Creates a memory of `frames` frames.
fn memory(frames: u32) -> Arc<Cache> {
    Cache::new(&Pool::new(&PoolOptions::new(frames)).expect("small arenas can be had"))
}

/// Creates a memory with frames for this many blocks of `size` bytes, and for their index.
fn memory_of(blocks: u64, size: u64) -> Arc<Cache> {
    memory((blocks * size / PAGE as u64) as u32)
}

/// Returns bytes that differ from offset to offset, more or less.
fn pattern(range: Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

fn byte_at(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16)) as u8 | 1
}

/// Reads all bytes of a file, which may be longer than a view can be.
fn contents(file: &PagedFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("it can be read");
    bytes
}

type Faulty = FaultyStore<MemoryStore>;

/// Creates a store with a pattern of `len` bytes, on a device that fails on demand.
fn patterned(len: u64) -> Arc<Faulty> {
    Arc::new(FaultyStore::new(MemoryStore::from_bytes(&pattern(0..len))))
}

fn options(block_size: u64) -> FileOptions {
    FileOptions::new()
        .block_size(block_size)
        .access(FileAccess::ReadWrite)
        .name("data.bin")
}

fn open<S: Store>(cache: &Arc<Cache>, store: &Arc<S>, options: &FileOptions) -> PagedFile {
    let store: Arc<dyn Store> = Arc::clone(store) as Arc<dyn Store>;
    PagedFile::open(cache, store, options).expect("the store can be opened")
}

fn core(file: &PagedFile) -> &Arc<FileCore> {
    file.inner().core()
}

/// Starts a thread that writes the dirty blocks, and whose write hangs in the store.
fn hanging_flush(core: &Arc<FileCore>, store: &Faulty) -> thread::JoinHandle<()> {
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
    let core = core.clone();
    // A store that has failed is called less and less often.
    let failures = core.writes.errors.count();
    let has_failed = move |core: &FileCore| core.writes.errors.count() > failures;
    let flush = move || while core.flush(&EVERYTHING) == PageCount(0) && !has_failed(&core) {};
    let flush = thread::spawn(flush);
    store.wait_hanging(1);
    flush
}

/// Returns a rule by which the next call of this kind fails.
fn fail(kind: OperationKind) -> Rule {
    Rule::new(Fault::Fail(Failure::Io)).on(&[kind])
}

/// Checks that all memory is given back: no page is charged but retired ones, and no frame is
/// missing.
fn assert_empty(cache: &Cache) {
    let pool = &cache.pool;
    pool.flush_retired();
    assert_eq!(pool.totals().usage, 0, "pages are charged still");
    assert_eq!(
        pool.frames.free_frames(),
        pool.frames.total(),
        "frames are missing"
    );
    pool.frames.validate();
    pool.validate();
    cache.validate();
}
