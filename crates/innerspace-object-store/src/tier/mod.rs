//! A cache on local disk, in front of any store: [`Tier`] is the folder, [`TieredStore`] a store
//! behind it.
//!
//! | file | contents |
//! |---|---|
//! | `disk.rs` | the two files of the folder: what a record says, and when a chunk is trusted |
//! | `table.rs` | in memory: which chunk is in which slot, and which slot is given up next |
//! | `buffers.rs` | a bounded stock of aligned memory |
//! | `store.rs` | [`TieredStore`]: a read by the tier, or past it |
//!
//! `docs/protocols/object-storage.md` explains the order of the writes, and why a torn chunk is
//! found.
//!
//! Locking: the mutex of the table is innermost; no file is read or written under it. A thread
//! waits for a chunk that another one fetches, and then has claimed none itself.

mod buffers;
mod disk;
mod store;
mod table;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use innerspace::store::{FileOpenError, Store};

use buffers::Buffers;
use disk::{Disk, Record};
use table::{Key, Table};

pub use store::TieredStore;

/// The pause after a failure of the disk. It doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A folder on local disk that caches chunks of other stores, up to a fixed size. Clones are the
/// same one.
///
/// It has two files, whose sizes are set when it is opened and never grow: the limit holds for
/// bytes and for inodes. What it has is used again after a restart, if the store's
/// [`version`](Store::version) says that the store is the same.
///
/// One process may have a folder open; a second one is refused ([`TierError::InUse`]).
///
/// A disk that is full or fails costs speed only: reads go past the tier, and
/// [`TierStats::write_errors`] or [`TierStats::read_errors`] counts them. Nothing is synced to the
/// disk. A chunk that a crash has left torn is found by its checksum and dropped.
///
/// ```
/// use innerspace::{MIB, Memory, store::FileStore};
/// use innerspace_object_store::Tier;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let slow = folder.path().join("slow.bin");
/// # std::fs::write(&slow, vec![7; 100_000])?;
/// let tier = Tier::open(folder.path().join("tier"), 16 * MIB)?;
/// let memory = Memory::with_limit(4 * MIB)?;
/// let file = memory.file_options().open_store(tier.store(FileStore::open(&slow)?)?)?;
/// assert_eq!(file.view(50_000..50_001)?[..], [7]);
/// assert_eq!(tier.stats().hits, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Tier(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    chunk: usize,
    disk: Disk,
    state: Mutex<State>,
    /// Notified when a chunk was fetched, or could not be.
    fetched: Condvar,
    buffers: Buffers,
    counters: Counters,
    /// A number that belongs to no other tier of this machine, now or before, for stores without a
    /// version.
    salt: u64,
    /// The number of stores that were given the salt.
    salted: AtomicU64,
}

#[derive(Debug)]
struct State {
    table: Table,
    /// After a failure, the tier takes nothing in until then.
    paused: Option<Instant>,
    pause: Duration,
}

/// What a tier has done since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TierStats {
    /// Chunks that were read from the disk.
    pub hits: u64,
    /// Chunks that had to be read from the store behind.
    pub misses: u64,
    /// Bytes that reads took from the disk.
    pub bytes_from_disk: u64,
    /// Bytes that reads took from the store behind, with the rest of their chunks.
    pub bytes_from_store: u64,
    /// Chunks that were written to the disk.
    pub written: u64,
    /// Chunks that were given up for others.
    pub evicted: u64,
    /// Chunks whose bytes were not those that their record promised: torn by a crash, or damaged.
    pub dropped: u64,
    /// Chunks that could not be written.
    pub write_errors: u64,
    /// Chunks that could not be read.
    pub read_errors: u64,
    /// Reads that went past the tier.
    pub bypassed: u64,
    /// Chunks that are in the tier now.
    pub chunks: u64,
    /// Chunks that were found in the folder when it was opened.
    pub chunks_found: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    bytes_from_disk: AtomicU64,
    bytes_from_store: AtomicU64,
    written: AtomicU64,
    evicted: AtomicU64,
    dropped: AtomicU64,
    write_errors: AtomicU64,
    read_errors: AtomicU64,
    bypassed: AtomicU64,
    chunks_found: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Why a tier cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// Another process has the folder open, or this process has it open already.
    #[error("{}: the tier is in use by {holder}; close it there, or choose another folder", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// What has it open.
        holder: String,
    },
    /// The size is too small for one chunk, or too large for the tier's numbers.
    #[error(
        "{}: a tier of {size} bytes is too {}; with chunks of {chunk} bytes it has at least {least} \
         and at most {most}",
        folder.display(), if size < least { "small" } else { "large" }
    )]
    Size {
        /// The folder.
        folder: PathBuf,
        /// The size that was wanted, in bytes.
        size: u64,
        /// The size of a chunk, in bytes.
        chunk: u64,
        /// The least size, in bytes.
        least: u64,
        /// The greatest size, in bytes.
        most: u64,
    },
    /// A chunk's size that is not a power of two from 4 KiB to 4 MiB.
    #[error("a chunk of {chunk} bytes: use a power of two from 4 KiB to 4 MiB")]
    Chunk {
        /// The size that was wanted, in bytes.
        chunk: usize,
    },
    /// The folder or its files cannot be made, read or written.
    #[error("{}: cannot open the tier: {problem}; {}", folder.display(), remedy(*kind))]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What went wrong.
        problem: String,
        /// Its kind.
        kind: io::ErrorKind,
    },
}

fn remedy(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room there, or choose a folder on another local disk"
        }
        _ => "choose a folder on a local disk that you may write",
    }
}

impl From<TierError> for io::Error {
    fn from(error: TierError) -> io::Error {
        let kind = match &error {
            TierError::InUse { .. } => io::ErrorKind::ResourceBusy,
            TierError::Size { .. } | TierError::Chunk { .. } => io::ErrorKind::InvalidInput,
            TierError::Folder { kind, .. } => *kind,
        };
        io::Error::new(kind, error)
    }
}

/// Choices for a tier: [`Tier::options`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct TierOptions {
    chunk: usize,
    buffers: usize,
}

impl Default for TierOptions {
    fn default() -> TierOptions {
        TierOptions {
            chunk: 64 << 10,
            buffers: 16 << 20,
        }
    }
}

impl TierOptions {
    /// Sets the size of a chunk in bytes: a power of two from 4 KiB to 4 MiB. A miss reads whole
    /// chunks from the store behind. The tier's table takes about 72 bytes of memory for each.
    /// Default: 64 KiB. A folder with chunks of another size is emptied.
    pub fn chunk_size(mut self, bytes: usize) -> TierOptions {
        self.chunk = bytes;
        self
    }

    /// Sets how much memory the tier may use for chunks on their way, in bytes; at least one
    /// chunk. Default: 16 MiB.
    pub fn buffers(mut self, bytes: usize) -> TierOptions {
        self.buffers = bytes;
        self
    }

    /// Opens a folder as a tier of `size` bytes, and makes it if it does not exist. If the tier
    /// was larger, what is beyond the new size is dropped.
    ///
    /// # Errors
    /// See [`TierError`].
    pub fn open(self, folder: impl AsRef<Path>, size: u64) -> Result<Tier, TierError> {
        let TierOptions { chunk, buffers } = self;
        let folder = folder.as_ref().to_owned();
        if !chunk.is_power_of_two() || !(4 << 10..=4 << 20).contains(&chunk) {
            return Err(TierError::Chunk { chunk });
        }
        let slots = disk::slots_in(size, chunk).ok_or_else(|| TierError::Size {
            folder: folder.clone(),
            size,
            chunk: chunk as u64,
            least: disk::size_of(1, chunk),
            most: disk::size_of(disk::MOST_SLOTS, chunk),
        })?;
        let mut table = Table::new(slots);
        let disk = Disk::open(&folder, slots, chunk, |slot, record| {
            table.adopt(slot, record);
        });
        let disk = disk.map_err(|error| TierError::of(folder.clone(), error))?;
        let tier = Tier(Arc::new(Inner {
            folder,
            chunk,
            disk,
            fetched: Condvar::new(),
            buffers: Buffers::new(buffers.max(chunk)),
            counters: Counters::default(),
            salt: table::random(),
            salted: AtomicU64::new(0),
            state: Mutex::new(State {
                table,
                paused: None,
                pause: FIRST_PAUSE,
            }),
        }));
        let found = tier.stats().chunks;
        count(&tier.0.counters.chunks_found, found);
        Ok(tier)
    }
}

impl TierError {
    fn of(folder: PathBuf, error: FileOpenError) -> TierError {
        match error {
            FileOpenError::InUse { holder, .. } => TierError::InUse {
                folder,
                holder: holder.to_string(),
            },
            error => TierError::Folder {
                folder,
                kind: error.kind(),
                problem: error.to_string(),
            },
        }
    }
}

impl Tier {
    /// Returns the default choices.
    pub fn options() -> TierOptions {
        TierOptions::default()
    }

    /// Opens a folder as a tier of `size` bytes, with the default choices.
    ///
    /// # Errors
    /// See [`TierError`].
    pub fn open(folder: impl AsRef<Path>, size: u64) -> Result<Tier, TierError> {
        Tier::options().open(folder, size)
    }

    /// Puts the tier in front of a store.
    ///
    /// # Errors
    /// Those of the store, when it is asked for its length and version.
    pub fn store<S: Store>(&self, store: S) -> io::Result<TieredStore<S>> {
        TieredStore::new(store, self.clone())
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Returns what the tier has done since it was opened.
    pub fn stats(&self) -> TierStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.0.counters;
        TierStats {
            hits: get(&counters.hits),
            misses: get(&counters.misses),
            bytes_from_disk: get(&counters.bytes_from_disk),
            bytes_from_store: get(&counters.bytes_from_store),
            written: get(&counters.written),
            evicted: get(&counters.evicted),
            dropped: get(&counters.dropped),
            write_errors: get(&counters.write_errors),
            read_errors: get(&counters.read_errors),
            bypassed: get(&counters.bypassed),
            chunks: self.0.state().table.len() as u64,
            chunks_found: get(&counters.chunks_found),
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes neighbouring chunks, the first of which is `first`, and then their records; see
    /// `docs/protocols/object-storage.md`. They get slots together, as neighbours where the table
    /// allows it, so that they are read together as well. Failures are counted, and cost nothing
    /// but the chunks' places.
    ///
    /// `padded` has the chunks' `len` bytes and zeros up to the next multiple of 4 KiB.
    fn insert(&self, first: Key, padded: &[u8], len: usize) {
        let chunks = (first.chunk..).zip(padded[..len].chunks(self.chunk));
        let records = chunks.map(|(chunk, bytes)| {
            let key = Key { chunk, ..first };
            Record {
                key,
                len: bytes.len() as u32,
                sum: disk::checksum(&key, bytes),
            }
        });
        let records: Vec<Record> = records.collect();
        let slots = self.take_slots(&records);
        let (mut at, mut is_failing) = (0, false);
        for run in slots.chunk_by(|slot, next| *next == slot + 1) {
            let records = &records[at..at + run.len()];
            let from = at * self.chunk;
            let bytes = &padded[from..padded.len().min(from + run.len() * self.chunk)];
            at += run.len();
            // The disk has failed for the run before.
            let written = !is_failing && self.disk.write(run[0], bytes, records).is_ok();
            let mut state = self.state();
            for (slot, record) in run.iter().zip(records) {
                match written {
                    true => state.table.fill_slot(*slot, *record),
                    false => state.table.free_slot(*slot),
                }
            }
            let counted = match written {
                true => &self.counters.written,
                false => &self.counters.write_errors,
            };
            count(counted, run.len() as u64);
            match written {
                true => state.pause = FIRST_PAUSE,
                false if !is_failing => state.pause_now(),
                false => {}
            }
            is_failing |= !written;
        }
    }

    /// Takes slots for chunks that are to be written: fewer if all others are being written, and
    /// none while the tier takes nothing in.
    fn take_slots(&self, records: &[Record]) -> Vec<u32> {
        let mut state = self.state();
        let wanted = match state.is_paused() {
            true => 0,
            false => records.len(),
        };
        let taken: Vec<_> = std::iter::from_fn(|| state.table.take_slot())
            .take(wanted)
            .collect();
        let evicted = taken.iter().filter(|(_, evicted)| *evicted).count();
        count(&self.counters.evicted, evicted as u64);
        count(
            &self.counters.bypassed,
            (records.len() - taken.len()) as u64,
        );
        taken.into_iter().map(|(slot, _)| slot).collect()
    }

    /// Forgets a chunk that could not be read, or was not what it should be, unless another one
    /// has its place by now.
    fn forget(&self, slot: u32, record: &Record, counter: &AtomicU64) {
        if self.state().table.remove(slot, record) {
            count(counter, 1);
        }
    }
}

impl State {
    fn is_paused(&mut self) -> bool {
        match self.paused {
            Some(until) if Instant::now() < until => true,
            _ => {
                self.paused = None;
                false
            }
        }
    }

    fn pause_now(&mut self) {
        self.paused = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.folder.display().fmt(f)
    }
}
