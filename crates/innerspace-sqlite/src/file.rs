//! What SQLite does with an open file, in terms of Rust.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use innerspace::store::Store;

use crate::error::{Failure, Outcome};
use crate::ffi::raw;

/// A file control that is answered here.
#[derive(Debug)]
pub(crate) enum Control<'a> {
    /// The lock that the connection has.
    LockState(&'a mut c_int),
    /// The database is about to be this long.
    SizeHint(i64),
    /// The database grows and shrinks in steps of this size.
    ChunkSize(c_int),
    /// Sets or asks whether the WAL stays when the last connection closes; negative: asks.
    PersistWal(&'a mut c_int),
    /// Sets or asks whether a write leaves the bytes next to it undamaged; negative: asks.
    PowersafeOverwrite(&'a mut c_int),
    /// Sets or asks how much of the file is read without a copy; negative: asks.
    MmapSize(&'a mut i64),
    /// Whether the file was renamed, deleted or replaced.
    HasMoved(&'a mut c_int),
    /// Whether another process reads the WAL.
    ExternalReader(&'a mut c_int),
}

/// What is done with the branches of a database.
#[derive(Clone)]
pub(crate) enum BranchCall<'a> {
    /// Makes a branch. The store, if there is one, is where its own pages are.
    Begin(&'a str, Option<Arc<dyn Store>>),
    /// Returns the pages that a branch has changed.
    Changes(&'a str),
    /// Ends a branch.
    Discard(&'a str),
    /// Checks that a branch can be written back, and lets no other connection write until the end.
    BeginCommit(&'a str),
    /// Returns whether it is enough to write back the pages that a branch has changed, and whether
    /// they go to a WAL.
    PrepareCommit(&'a str),
    /// Notes that the last transaction, which SQLite itself made, has changed nothing.
    NoteTouch(&'a str),
    /// Writes the pages that a branch has changed. SQLite has begun an exclusive transaction.
    WriteBack(&'a str),
    /// Ends a commit.
    EndCommit,
    /// Returns the name of the database.
    Name,
    /// Returns the counters of the memory.
    Stats,
}

/// The answer to a [`BranchCall`].
#[derive(Debug)]
pub(crate) enum BranchAnswer {
    Done,
    /// Page numbers.
    Pages(BTreeSet<u32>),
    /// A text for people.
    Text(String),
    /// The file name by which SQLite opens the branch, or the database.
    Path(String),
    /// The database has a WAL, and this `user_version`.
    Wal(i32),
    /// Only all pages can be written back.
    Impossible,
}

/// A mapped region of a WAL's index.
#[derive(Debug)]
pub(crate) struct Region {
    /// `None` if there is no such region yet.
    pub(crate) start: Option<NonNull<u8>>,
    /// Whether it may only be read.
    pub(crate) is_read_only: bool,
}

/// An open file. The methods are those of `sqlite3_io_methods`; one thread at a time makes them.
pub(crate) trait OpenFile: Send {
    /// Reads as much as the file has.
    fn read(&mut self, buf: &mut [u8], at: u64) -> Outcome<usize>;
    fn write(&mut self, bytes: &[u8], at: u64) -> Outcome;
    fn truncate(&mut self, len: u64) -> Outcome;
    /// `flags` are those of `xSync`.
    fn sync(&mut self, flags: c_int) -> Outcome;
    fn len(&mut self) -> Outcome<u64>;

    fn lock(&mut self, _level: c_int) -> Outcome {
        Ok(())
    }

    fn unlock(&mut self, _level: c_int) -> Outcome {
        Ok(())
    }

    fn is_reserved(&mut self) -> Outcome<bool> {
        Ok(false)
    }

    /// Makes, examines or ends a branch of the database.
    fn branch(&mut self, _call: BranchCall<'_>) -> Outcome<BranchAnswer> {
        Err(Failure::new(raw::MISUSE, "no database file"))
    }

    /// Answers a control; `false` if it has no meaning for the file.
    fn control(&mut self, _control: Control<'_>) -> Outcome<bool> {
        Ok(false)
    }

    fn sector_size(&self) -> c_int {
        SECTOR_SIZE
    }

    fn characteristics(&self) -> c_int {
        raw::IOCAP_POWERSAFE_OVERWRITE | raw::IOCAP_SUBPAGE_READ
    }

    fn shm_map(&mut self, _region: usize, _bytes: usize, _extend: bool) -> Outcome<Region> {
        Err(Failure::new(raw::IOERR_SHMMAP, "no database file"))
    }

    fn shm_lock(&mut self, _first: u8, _count: u8, _flags: c_int) -> Outcome {
        Err(Failure::new(raw::IOERR_SHMLOCK, "no database file"))
    }

    fn shm_barrier(&mut self) {}

    fn shm_unmap(&mut self, _delete: bool) -> Outcome {
        Ok(())
    }

    /// Returns a pointer to bytes of the file that stay as they are until `unfetch`. `None` where
    /// SQLite has to read them.
    fn fetch(&mut self, _at: u64, _len: usize) -> Outcome<Option<NonNull<u8>>> {
        Ok(None)
    }

    fn unfetch(&mut self, _pointer: Option<NonNull<u8>>) {}
}

/// The sector size that SQLite's own VFS reports.
pub(crate) const SECTOR_SIZE: c_int = 4096;
