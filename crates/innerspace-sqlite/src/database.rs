//! A database file in the memory's cache, shared by the process's connections.
//!
//! **The file always has what SQLite has written.** A write goes to the file first, and then to the
//! cache, so that the cache never has anything that the file lacks: its blocks can be dropped at
//! any moment, a killed process loses nothing, and a full disk is an error of the very write. The
//! cache considers its blocks dirty for a while; [`Cached`], its store, has nothing to do when they
//! are written.
//!
//! **When the cache may be trusted** is the subject of
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
    FileOpener, Memory, PagedFile, View,
    file::{FileAccess, FileError},
};

use crate::branch::{Branch, Branches};
use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::gate::Gate;
use crate::history::{History, UNIT};
use crate::index::{HeapIndex, Progress};
use crate::locks::Table;

/// Opens a file next to a database: to read it, or, if the second argument says so, to write it. To
/// be written, it is made if there is none, and its name is durable.
pub(crate) type Beside = Arc<dyn Fn(&str, bool) -> io::Result<Arc<dyn Store>> + Send + Sync>;

/// A database file that is open in this process.
pub(crate) struct Database {
    pub(crate) name: String,
    /// `None` for a branch: its bytes are in other files of the memory already.
    cached: Option<PagedFile>,
    /// Where missing blocks are read from.
    reads: Arc<dyn Store>,
    /// Set when blocks could not be dropped from the cache. From then on nothing is read from it.
    is_bypassed: AtomicBool,
    seen: Mutex<Seen>,
    /// For a database over stores: its locks, and the shared memory of its WAL.
    pub(crate) table: Arc<Table>,
    pub(crate) index: Arc<HeapIndex>,
    pub(crate) memory: Memory,
    /// How files are opened that are in the memory, and paid for like the database.
    pub(crate) spill: FileOpener,
    pub(crate) beside: Beside,
    /// The branch that the database is, if it is one.
    pub(crate) of_branch: Option<Arc<Branch>>,
    pub(crate) gate: Gate,
    history: Mutex<History>,
    pub(crate) branches: Branches,
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
        // If the file is shorter, zeros stay here, which never equal a database's counters.
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
    /// Opens a database in the cache. `reads` is where missing blocks are read from. `beside` opens
    /// the journal or the WAL, given the end of its name.
    pub(crate) fn open(
        memory: &Memory,
        spill: FileOpener,
        name: &str,
        reads: Arc<dyn Store>,
        beside: Beside,
    ) -> Outcome<Database> {
        let options = spill.clone().name(name).access(FileAccess::ReadWrite);
        let cached = options.open_store(Cached {
            reads: reads.clone(),
        });
        let cached = cached.map_err(|error| Failure::open(&error))?;
        Ok(Database::over(
            name,
            Some(cached),
            reads,
            (memory, spill),
            beside,
        ))
    }

    /// Makes the database of a branch, whose store has all its bytes.
    pub(crate) fn branch(name: &str, branch: Arc<Branch>, root: &Database) -> Database {
        let nothing: Beside = Arc::new(|_, _| Err(io::ErrorKind::NotFound.into()));
        let pays = (&root.memory, root.spill.clone());
        Database {
            of_branch: Some(branch.clone()),
            ..Database::over(name, None, branch, pays, nothing)
        }
    }

    fn over(
        name: &str,
        cached: Option<PagedFile>,
        reads: Arc<dyn Store>,
        (memory, spill): (&Memory, FileOpener),
        beside: Beside,
    ) -> Database {
        Database {
            memory: memory.clone(),
            spill,
            beside,
            of_branch: None,
            name: name.to_owned(),
            cached,
            reads,
            is_bypassed: AtomicBool::new(false),
            seen: Mutex::default(),
            table: Arc::default(),
            index: Arc::default(),
            gate: Gate::default(),
            history: Mutex::default(),
            branches: Branches::default(),
        }
    }

    /// Returns the cached file, if the database is not a branch and the cache may be used.
    pub(crate) fn cached(&self) -> Option<&PagedFile> {
        let is_bypassed = self.is_bypassed.load(Ordering::Acquire);
        self.cached.as_ref().filter(|_| !is_bypassed)
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads bytes as they are, for no connection in particular.
    pub(crate) fn read_now(&self, buf: &mut [u8], at: u64) -> Outcome {
        let read = self.read(&*self.reads, buf, at)?;
        buf[read..].fill(0);
        Ok(())
    }

    /// Returns the file's present length.
    pub(crate) fn len(&self) -> Outcome<u64> {
        let failed = |error| self.failure(raw::IOERR_FSTAT, "cannot examine", &error);
        self.reads.len().map_err(failed)
    }

    /// Reads bytes of one unit as they were when a branch began.
    pub(crate) fn read_as_of(&self, epoch: u64, buf: &mut [u8], at: u64) -> Outcome {
        if self.history().read(epoch, buf, at)? {
            return Ok(());
        }
        self.read_now(buf, at)?;
        // A write may have come meanwhile. It has saved the unit before.
        self.history().read(epoch, buf, at).map(drop)
    }

    /// Saves what a write is about to overwrite, for the branches that are alive. The write has to
    /// be made while the lock that is returned is held, so that no branch begins in between.
    fn keep_old(&self, start: u64, end: u64) -> MutexGuard<'_, History> {
        let mut history = self.history();
        for unit in history.before_write(start..end) {
            let mut old = [0; UNIT as usize];
            let saved = self.read(&*self.reads, &mut old, unit * UNIT);
            let saved = saved.and_then(|_| history.save(&self.spill, unit, &old));
            if let Err(failure) = saved {
                // The database goes on; its branches cannot.
                let reason = format!(
                    "the branches of {} are lost: an old page could not be kept: {}",
                    self.name, failure.reason
                );
                history.lost = Some(reason);
                break;
            }
        }
        history
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads through the cache. Where the cache has no room, it reads from the file. The caller
    /// knows that the cache may be trusted.
    pub(crate) fn read(&self, file: &dyn Store, buf: &mut [u8], at: u64) -> Outcome<usize> {
        if let Some(cached) = self.cached() {
            match cached.read_at(buf, at) {
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

    /// Returns a view of bytes of one block. Returns `None` if they lie in several blocks, or there
    /// is no room.
    pub(crate) fn view(&self, at: u64, len: usize) -> Option<View> {
        let cached = self.cached()?;
        let end = at + len as u64;
        let block = cached.block_size();
        if len == 0 || at / block != (end - 1) / block {
            return None;
        }
        // An error shows again when SQLite reads the page instead.
        cached.view(at..end).ok()
    }

    /// Writes to the file, and then to the cache.
    pub(crate) fn write(&self, file: &dyn Store, bytes: &[u8], at: u64) -> Outcome {
        let end = at + bytes.len() as u64;
        let _history = self.keep_old(at, end);
        if let Err(error) = write_all_at(file, bytes, at) {
            self.forget(at, end);
            return Err(self.failure(raw::IOERR_WRITE, "cannot write", &error));
        }
        if self
            .cached()
            .is_some_and(|cached| cached.write_at(bytes, at).is_err())
        {
            // There is no room. The file has the bytes, so it is enough that the cache has no other
            // bytes.
            self.forget(at, end);
        }
        Ok(())
    }

    pub(crate) fn truncate(&self, file: &dyn Store, len: u64) -> Outcome {
        let old = self.reads.len().unwrap_or(0);
        let _history = self.keep_old(len.min(old), old);
        let cut = file.set_len(len);
        let is_stale = |cached: &PagedFile| cut.is_err() || cached.set_len(len).is_err();
        if self.cached().is_some_and(is_stale) {
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
        let Some(cached) = self.cached() else { return };
        let cleaned = cached.sync_data();
        let dropped = cleaned.and_then(|()| cached.invalidate(start..end));
        if dropped.is_err() {
            self.is_bypassed.store(true, Ordering::Release);
        }
    }

    /// Copies the WAL for the branches that need it, before it starts over or is cut. If that fails
    /// the branches are lost, and the database goes on.
    pub(crate) fn keep_wal(&self) {
        let mut history = self.history();
        let Some(wal) = history.wal.take() else {
            return;
        };
        if let Err(failure) = wal.keep(&self.spill) {
            history.lost = Some(format!(
                "the branches of {} are lost: the WAL could not be kept: {}",
                self.name, failure.reason
            ));
        }
    }

    /// Whether branches of this database, or branch, are alive.
    pub(crate) fn has_branches(&self) -> bool {
        match &self.of_branch {
            Some(branch) => branch.root.branches.are_of(self),
            None => self.branches.are_of(self),
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
            // The note comes before the drop, so what is read from now on is not older than the
            // note.
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

    /// Notes the file's state as an exclusive lock is given up. Without a WAL, what was noted of
    /// one means nothing any more.
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
