//! A database file in the memory's cache, shared by the process's connections.
//!
//! **The file always has what SQLite has written.** A write goes to the file first, and then to the
//! cache, so that the cache never has anything that the file lacks: its blocks can be dropped at
//! any moment, a killed process loses nothing, and a full disk is an error of the very write. The
//! cache believes its blocks to be dirty for a while; [`Cached`], its store, has nothing to do when
//! they are written.
//!
//! **When the cache may be believed** is the subject of
//! [docs/protocols/sqlite.md](../../../docs/protocols/sqlite.md). [`Seen`] is what it says.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use innerspace::store::{
    Accepted, Batch, Limits, Store, SyncWhat, read_exact_or_eof, write_all_at,
};
use innerspace::{
    FileOpener, PagedFile, View,
    file::{FileAccess, FileError},
};

use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::index::{HeapIndex, Progress};
use crate::locks::Table;

/// A database file that is open in this process.
pub(crate) struct Database {
    pub(crate) name: String,
    cached: PagedFile,
    /// Set when blocks could not be dropped from the cache. From then on nothing is read from it.
    is_bypassed: AtomicBool,
    seen: Mutex<Seen>,
    /// For a database over stores: its locks, and the shared memory of its WAL.
    pub(crate) table: Arc<Table>,
    pub(crate) index: Arc<HeapIndex>,
}

/// The state of the file when the cache was last known to agree with it.
#[derive(Debug, Default)]
struct Seen {
    header: Option<Header>,
    progress: Option<Progress>,
    /// The connections of this process that may copy the WAL to the database, of which there can be
    /// one. Nobody else can change the file meanwhile.
    checkpoints: u32,
}

/// What tells one state of the file from another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// Bytes 24 to 40: the change counter, and what SQLite compares with it.
    counters: [u8; 16],
    len: u64,
    modified: (i64, i64),
}

impl Header {
    /// Reads the file's present state, past the cache.
    fn of(file: &File) -> io::Result<Header> {
        let mut counters = [0; 16];
        // A file that is shorter has zeros there, which never equal those of a database.
        let _ = FileExt::read_at(file, &mut counters, 24)?;
        let metadata = file.metadata()?;
        Ok(Header {
            counters,
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        })
    }
}

/// Which file of the file system it is.
pub(crate) fn identity(metadata: &Metadata) -> [u64; 2] {
    [metadata.dev(), metadata.ino()]
}

impl Database {
    /// Opens a database in the cache. `reads` is where missing blocks are read from.
    pub(crate) fn open(
        options: FileOpener,
        name: &str,
        reads: Arc<dyn Store>,
    ) -> Outcome<Database> {
        let options = options.name(name).access(FileAccess::ReadWrite);
        let cached = options.open_store(Cached { reads });
        let cached = cached.map_err(|error| Failure::open(&error))?;
        Ok(Database {
            name: name.to_owned(),
            cached,
            is_bypassed: AtomicBool::new(false),
            seen: Mutex::default(),
            table: Arc::default(),
            index: Arc::default(),
        })
    }

    pub(crate) fn cached(&self) -> &PagedFile {
        &self.cached
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads through the cache. Where the cache has no room, it reads from the file. The caller
    /// knows that the cache may be believed.
    pub(crate) fn read(&self, file: &dyn Store, buf: &mut [u8], at: u64) -> Outcome<usize> {
        if !self.is_bypassed.load(Ordering::Acquire) {
            match self.cached.read_at(buf, at) {
                Ok(read) if read == buf.len() => return Ok(read),
                Ok(_) => {}
                Err(FileError::Store { source, .. }) => {
                    return Err(self.failure(raw::IOERR_READ, "cannot read", &source));
                }
                Err(_) => {}
            }
        }
        self.read_past(file, buf, at)
    }

    /// Reads from the file.
    pub(crate) fn read_past(&self, file: &dyn Store, buf: &mut [u8], at: u64) -> Outcome<usize> {
        let read = read_exact_or_eof(file, buf, at);
        read.map_err(|error| self.failure(raw::IOERR_READ, "cannot read", &error))
    }

    /// Returns a view of bytes of one block. `None` if they are of several, or there is no room.
    pub(crate) fn view(&self, at: u64, len: usize) -> Option<View> {
        let end = at + len as u64;
        let block = self.cached.block_size();
        let is_inside = len > 0 && at / block == (end - 1) / block;
        if !is_inside || self.is_bypassed.load(Ordering::Acquire) {
            return None;
        }
        // An error shows again when SQLite reads the page instead.
        self.cached.view(at..end).ok()
    }

    /// Writes to the file, and then to the cache.
    pub(crate) fn write(&self, file: &dyn Store, bytes: &[u8], at: u64) -> Outcome {
        let end = at + bytes.len() as u64;
        if let Err(error) = write_all_at(file, bytes, at) {
            self.forget(at, end);
            return Err(self.failure(raw::IOERR_WRITE, "cannot write", &error));
        }
        if self.cached.write_at(bytes, at).is_err() {
            // No room. The file has the bytes, so all that is needed is that the cache has no
            // others.
            self.forget(at, end);
        }
        Ok(())
    }

    pub(crate) fn truncate(&self, file: &dyn Store, len: u64) -> Outcome {
        let cut = file.set_len(len);
        if cut.is_err() || self.cached.set_len(len).is_err() {
            self.forget(0, u64::MAX);
        }
        cut.map_err(|error| self.failure(raw::IOERR_TRUNCATE, "cannot truncate", &error))
    }

    /// Makes the file durable. After a failure the cache forgets all: what the system's own cache
    /// still has of the bytes is not known.
    pub(crate) fn sync(&self, file: &dyn Store, what: SyncWhat) -> Outcome {
        file.sync(what).map_err(|error| {
            self.forget(0, u64::MAX);
            self.failure(raw::IOERR_FSYNC, "cannot sync", &error)
        })
    }

    /// Drops what the cache has of a range. Afterwards it is as long as the file.
    fn forget(&self, start: u64, end: u64) {
        // Only blocks that are not dirty are dropped. Writing them costs nothing here: the file has
        // their bytes.
        let cleaned = self.cached.sync_data();
        let dropped = cleaned.and_then(|()| self.cached.invalidate(start..end));
        if dropped.is_err() {
            self.is_bypassed.store(true, Ordering::Release);
        }
    }

    pub(crate) fn failure(&self, code: i32, what: &str, error: &io::Error) -> Failure {
        Failure::io(code, what, &self.name, error)
    }

    /// Makes the cache agree with the file, for a connection that has just got a shared lock.
    pub(crate) fn check_header(&self, file: &File) -> Outcome {
        let mut seen = self.seen();
        match seen.checkpoints {
            0 => self.compare_header(&mut seen, file),
            _ => Ok(()),
        }
    }

    fn compare_header(&self, seen: &mut Seen, file: &File) -> Outcome {
        let header = Header::of(file);
        let header =
            header.map_err(|error| self.failure(raw::IOERR_READ, "cannot examine", &error))?;
        if seen.header != Some(header) {
            // Noted first, dropped then: what is read from now on is not older than the note.
            seen.header = Some(header);
            self.forget(0, u64::MAX);
        }
        Ok(())
    }

    /// Makes the cache agree with the file, for a connection that has begun to read by a WAL.
    pub(crate) fn check_progress(&self, progress: Option<Progress>) {
        let mut seen = self.seen();
        if seen.checkpoints == 0 {
            self.compare_progress(&mut seen, progress);
        }
    }

    fn compare_progress(&self, seen: &mut Seen, progress: Option<Progress>) {
        let is_same = match (&seen.progress, &progress) {
            (Some(old), Some(new)) => new.is_same(old),
            _ => false,
        };
        if !is_same {
            seen.progress = progress;
            self.forget(0, u64::MAX);
        }
    }

    /// Notes that a connection of this process has the right to copy the WAL to the database, and
    /// makes the cache agree with the file.
    pub(crate) fn begin_checkpoint(&self, file: &File, progress: Option<Progress>) -> Outcome {
        let mut seen = self.seen();
        self.compare_header(&mut seen, file)?;
        self.compare_progress(&mut seen, progress);
        seen.checkpoints += 1;
        Ok(())
    }

    /// Notes the file's state as this process's own change has left it. The caller still has the
    /// lock that keeps all others from changing it.
    pub(crate) fn end_checkpoint(&self, file: &File, progress: Option<Progress>) {
        let mut seen = self.seen();
        seen.checkpoints -= 1;
        seen.header = Header::of(file).ok();
        seen.progress = progress;
    }

    /// Notes the file's state as an exclusive lock is given up. Without a WAL, what was noted of one
    /// means nothing any more.
    pub(crate) fn note_own_change(&self, file: &File, progress: Option<Progress>) {
        let mut seen = self.seen();
        seen.header = Header::of(file).ok();
        seen.progress = progress;
    }

    /// Returns the noted state of the WAL if it is the present one.
    pub(crate) fn agreed(&self, progress: Progress) -> Option<Progress> {
        let seen = self.seen();
        seen.progress.filter(|noted| noted.is_same(&progress))?;
        Some(progress)
    }

    /// Notes that this process's own writer has started the WAL over, which changes nothing in the
    /// database. The caller still has the writer's lock.
    pub(crate) fn note_start_over(&self, before: Progress, after: Progress) {
        let mut seen = self.seen();
        let was_agreed = seen.progress.is_some_and(|noted| noted.is_same(&before));
        if was_agreed && seen.checkpoints == 0 && after.started_over(&before) {
            seen.progress = Some(after);
        }
    }
}

/// The store of the cached file. Reads missing blocks; has nothing to write.
struct Cached {
    reads: Arc<dyn Store>,
}

impl Store for Cached {
    fn len(&self) -> io::Result<u64> {
        self.reads.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.reads.read_at(buf, offset)
    }

    fn read_vectored_at(&self, bufs: &mut [io::IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.reads.read_vectored_at(bufs, offset)
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn write_vectored_at(&self, bufs: &[io::IoSlice<'_>], _offset: u64) -> io::Result<usize> {
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn accepted(&self) -> Accepted {
        Accepted::Kept
    }

    fn limits(&self) -> Limits {
        self.reads.limits()
    }

    fn writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.reads.name()
    }

    fn submit(&self, batch: Batch) {
        self.reads.submit(batch);
    }
}
