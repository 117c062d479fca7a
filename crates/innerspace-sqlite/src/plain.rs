//! Journals and WALs: read and written as SQLite says, with nothing of ours in between.
//!
//! They are not cached. SQLite reads a journal only to roll back. A WAL is read more often, but its
//! frames go to the database soon, and what another process appends must be seen at once. What the
//! kernel's page cache keeps of them belongs to the system.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;

use innerspace::store::{Store, SyncWhat, read_exact_or_eof, write_all_at};

use crate::database::Database;
use crate::disk;
use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::file::OpenFile;

/// A journal, a super-journal or a WAL.
pub(crate) struct PlainFile {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) name: String,
    /// The path of a file that was made just now: its first sync makes its name durable, too.
    pub(crate) new: Option<PathBuf>,
    /// The database of a WAL, whose branches may need what is about to be overwritten.
    pub(crate) database: Option<Arc<Database>>,
}

impl PlainFile {
    fn failure(&self, code: c_int, what: &str, error: &std::io::Error) -> Failure {
        Failure::io(code, what, &self.name, error)
    }
}

impl PlainFile {
    fn before_loss(&self) {
        if let Some(database) = &self.database {
            database.keep_wal();
        }
    }
}

impl OpenFile for PlainFile {
    fn read(&mut self, buf: &mut [u8], at: u64) -> Outcome<usize> {
        read_exact_or_eof(&*self.store, buf, at)
            .map_err(|error| self.failure(raw::IOERR_READ, "cannot read", &error))
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> Outcome {
        // A WAL starts over by a new header.
        if at == 0 {
            self.before_loss();
        }
        write_all_at(&*self.store, bytes, at)
            .map_err(|error| self.failure(raw::IOERR_WRITE, "cannot write", &error))
    }

    fn truncate(&mut self, len: u64) -> Outcome {
        self.before_loss();
        self.store
            .set_len(len)
            .map_err(|error| self.failure(raw::IOERR_TRUNCATE, "cannot truncate", &error))
    }

    fn sync(&mut self, flags: c_int) -> Outcome {
        self.store
            .sync(sync_what(flags))
            .map_err(|error| self.failure(raw::IOERR_FSYNC, "cannot sync", &error))?;
        if let Some(path) = &self.new {
            // A failure is ignored, as in SQLite's own VFS: not every system can open a folder.
            let _ = disk::sync_folder(path);
            self.new = None;
        }
        Ok(())
    }

    fn len(&mut self) -> Outcome<u64> {
        self.store
            .len()
            .map_err(|error| self.failure(raw::IOERR_FSTAT, "cannot examine", &error))
    }
}

/// Returns what SQLite wants to be durable: the bytes, and what is needed to read them back, or
/// everything if `PRAGMA fullfsync` asks for that.
pub(crate) fn sync_what(flags: c_int) -> SyncWhat {
    let is_full = flags & 0xf == raw::SYNC_FULL && flags & raw::SYNC_DATAONLY == 0;
    match is_full {
        true => SyncWhat::All,
        false => SyncWhat::Data,
    }
}
