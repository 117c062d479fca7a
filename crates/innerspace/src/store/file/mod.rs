//! [`FileStore`]: a regular file, of which nothing stays in the kernel's page cache.
//!
//! The library caches the file itself, under a limit; a second copy in the kernel would make the
//! limit a lie. [`CacheMode`] names the means, [`FileStore::cache_mode`] says which is in force.
//!
//! | file | contents |
//! |---|---|
//! | `open.rs` | options, the advisory lock, the engine that works, [`OpenError`] |
//! | `opened.rs` | opening step by step: which file it is, locked, emptied last |
//! | `engine.rs` | one read or write by each cache mode, and which is fastest |
//! | `direct.rs` | direct I/O, and what of it is not aligned |
//! | `in_flight.rs` | which reads can go by io_uring(7), and what their completions mean |
//! | `long.rs` | long writes past the page cache, beside short ones through it |
//! | `watch.rs` | noticing a shrink or a change from outside |
//!
//! **Locks between processes.** A writable open takes an exclusive advisory lock (flock) before it
//! changes anything, and keeps it until the store is dropped. A read-only open takes none: a shared
//! lock would let any reader keep the owner of the file out for as long as it likes, could not be
//! had on a read-only medium everywhere, and would promise a stillness that programs without locks
//! do not keep. Readers are told by [`Store::version`] when the file changes under them.
//!
//! **What a sync means.** Only [`Store::sync`] makes data durable. When it fails, the kernel may
//! have dropped the bytes of earlier writes and will not report that again; with
//! [`CacheMode::Direct`] alone a write that returned has been accepted by the device.
//!
//! Locking: `watch`, direct I/O's unaligned edges and the note of what was written through the page
//! cache have a mutex each, all of them leaves. Reads take none.

mod direct;
mod engine;
#[cfg(all(
    feature = "io-uring",
    target_os = "linux",
    not(any(loom, shuttle, miri, portable))
))]
mod flights;
#[cfg(all(
    feature = "io-uring",
    target_os = "linux",
    not(any(loom, shuttle, miri, portable))
))]
mod in_flight;
mod long;
mod open;
mod opened;
mod watch;

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;

#[cfg(all(
    target_os = "linux",
    feature = "io-uring",
    not(any(loom, shuttle, miri, portable))
))]
use super::{Batch, Operation};
use super::{Identity, Limits, Own, Store, StoreError, SyncWhat, Version, shown_name, write_zeros};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sys::file as sys;
use crate::units::PageCount;
use engine::Engine;
use watch::Watch;

#[cfg(all(
    feature = "io-uring",
    target_os = "linux",
    not(any(loom, shuttle, miri, portable))
))]
pub(crate) use flights::Flights;
pub use open::{Access, CacheMode, Create, FileOptions, Holder, OpenError};
#[cfg(all(test, unix, not(loom), not(shuttle), not(miri)))]
pub(crate) use opened::hook;
pub(crate) use opened::{Emptying, Locked, LockedFile, Locking, Opened};

/// The request size that a disk is busy with for longer than the call takes.
const PREFERRED_SIZE: usize = 1 << 20;

/// A path in messages: see [`shown_name`].
pub(crate) fn shown(path: &Path) -> String {
    shown_name(&path.to_string_lossy()).into_owned()
}

/// By what means several reads of a file are under way at once.
///
/// A read that somebody waits for is a system call of the thread that wants it, with either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileEngine {
    /// By io_uring(7), which needs no thread for each: on Linux with the feature `io-uring`, where
    /// reads are in mode [`CacheMode::Direct`] and the kernel has it and lets us.
    IoUring,
    /// By system calls, each in a thread.
    Calls,
}

impl fmt::Display for FileEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileEngine::IoUring => "io-uring",
            FileEngine::Calls => "calls",
        })
    }
}

/// A regular file as a store. Dropping it unlocks the file; it does not sync.
#[derive(Debug)]
pub struct FileStore {
    /// Holds the lock when writable; used for everything but direct transfers.
    file: LockedFile,
    engine: Engine,
    access: Access,
    identity: Option<Identity>,
    /// The path as given.
    name: String,
    state: Arc<FileState>,
}

/// What reads in flight share with their store, which may be dropped before they complete.
#[derive(Debug)]
struct FileState {
    watch: Watch,
    /// The kernel has refused a read by io_uring(7). It says nothing about other memory: `Relaxed`.
    fell_back: AtomicBool,
}

impl FileState {
    /// Has all reads go by calls from now on: a ring has refused one.
    #[cfg_attr(
        not(all(
            feature = "io-uring",
            target_os = "linux",
            not(any(loom, shuttle, miri, portable))
        )),
        allow(dead_code, reason = "the ring falls back")
    )]
    fn fall_back(&self) {
        self.fell_back.store(true, Ordering::Relaxed);
    }
}

impl FileStore {
    /// Opens an existing file in the default cache mode.
    ///
    /// # Errors
    /// See [`OpenError`]; a writable open also fails when anyone else has the file open so.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<FileStore, OpenError> {
        FileOptions::new().access(access).open(path)
    }

    /// Makes a file, or empties an existing one once it is locked, and opens it writable.
    ///
    /// # Errors
    /// See [`OpenError`]; a file that is in use keeps its content.
    pub fn create(path: impl AsRef<Path>) -> Result<FileStore, OpenError> {
        FileOptions::new().create(Create::Truncate).open(path)
    }

    /// The identity that a store on `path` would have, without opening it: ask before a writable
    /// open, which a second one in the same process would refuse. `None` where it is unknown.
    pub fn identify(path: impl AsRef<Path>) -> io::Result<Option<Identity>> {
        Ok(identity_of(&std::fs::metadata(path)?))
    }

    /// How the kernel's page cache is kept empty; never [`CacheMode::Auto`], of which this is what
    /// reads are in. Reads that the file system refuses in mode [`CacheMode::Direct`] after all
    /// are in another one from then on.
    pub fn cache_mode(&self) -> CacheMode {
        self.engine.mode()
    }

    /// By what means several reads are under way at once. A store falls back from
    /// [`FileEngine::IoUring`] to [`FileEngine::Calls`] for good where the kernel refuses a read.
    pub fn engine(&self) -> FileEngine {
        match self.reads_in_flight() {
            true => FileEngine::IoUring,
            false => FileEngine::Calls,
        }
    }

    #[cfg(all(
        feature = "io-uring",
        target_os = "linux",
        not(any(loom, shuttle, miri, portable))
    ))]
    fn reads_in_flight(&self) -> bool {
        !self.state.fell_back.load(Ordering::Relaxed)
            && self.engine.direct_reads().is_some()
            && crate::sys::ring::available()
    }

    #[cfg(not(all(
        feature = "io-uring",
        target_os = "linux",
        not(any(loom, shuttle, miri, portable))
    )))]
    fn reads_in_flight(&self) -> bool {
        false
    }

    /// Whether the file was opened for reading alone.
    pub fn access(&self) -> Access {
        self.access
    }

    fn check_writable(&self) -> io::Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(StoreError::ReadOnly.into()),
        }
    }
}

/// The identity of what is in a regular file, however it is opened.
fn identity_of(metadata: &std::fs::Metadata) -> Option<Identity> {
    sys::identity(metadata).map(|numbers| Identity::new("file", numbers))
}

impl Store for FileStore {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_vectored_at(&mut [IoSliceMut::new(buf)], offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let count = self.engine.read_vectored_at(&self.file, bufs, offset)?;
        if count == 0 {
            let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
            if wanted > 0 {
                self.state
                    .watch
                    .check_end(&self.file, offset, wanted as u64)?;
            }
        }
        Ok(count)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_vectored_at(&[IoSlice::new(buf)], offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.check_writable()?;
        let _own = self.state.watch.own_change();
        let count = self.engine.write_vectored_at(&self.file, bufs, offset)?;
        self.state.watch.grew_to(offset + count as u64);
        Ok(count)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let _own = self.state.watch.own_change();
        self.state
            .watch
            .resizing(&self.file, len, || self.file.set_len(len))
    }

    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        self.engine.sync_with(&self.file, |file| match what {
            SyncWhat::Data => file.sync_data(),
            SyncWhat::All => file.sync_all(),
        })
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let len = offset
            .saturating_add(len)
            .min(self.len()?)
            .saturating_sub(offset);
        if len == 0 {
            return Ok(());
        }
        let _own = self.state.watch.own_change();
        match sys::punch(&self.file, offset, len) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                write_zeros(self, offset, len)
            }
            done => done,
        }
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        sys::next_data(&self.file, offset)
    }

    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        Ok(sys::next_hole(&self.file, offset)?.unwrap_or(offset))
    }

    #[cfg(all(
        target_os = "linux",
        feature = "io-uring",
        not(any(loom, shuttle, miri, portable))
    ))]
    fn submit(&self, mut batch: Batch) {
        let mut reads = Vec::new();
        let mut rest = Batch::new();
        let mut flights = None;
        while let Some(mut request) = batch.take() {
            let by_ring = match (self.reads_in_flight(), request.operation()) {
                (true, Operation::Read) => request.by_ring(),
                _ => None,
            };
            let Some(ring) = by_ring else {
                rest.push(request);
                continue;
            };
            match self.transfer_for(request.offset(), request.iovecs()) {
                Ok((transfer, source)) => {
                    reads.push((transfer, request, source));
                    flights = Some(ring);
                }
                Err(_) => rest.push(request),
            }
        }
        if let Some(flights) = flights {
            flights.launch(reads);
        }
        rest.call(self);
    }

    fn fills_as_told(&self, _: Own) -> bool {
        true
    }

    fn identity(&self) -> Option<Identity> {
        self.identity
    }

    fn version(&self) -> io::Result<Option<Version>> {
        self.state.watch.version(&self.file).map(Some)
    }

    fn limits(&self) -> Limits {
        self.engine.limits().prefer(PREFERRED_SIZE)
    }

    fn writable(&self) -> bool {
        self.access == Access::ReadWrite
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// How much of the file at `path` the kernel keeps in its page cache, in pages of 4 KiB. Linux
/// only; on tmpfs and its like this is the file itself.
pub fn kernel_cached_pages(path: impl AsRef<Path>) -> io::Result<PageCount> {
    sys::cached_bytes_of(path.as_ref()).map(PageCount::ceil)
}
