//! Temporary files: in the memory, under its limit; on disk only once they have to make room.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use innerspace::file::FileAccess;
use innerspace::store::{Accepted, Store};
use innerspace::{FileOpener, Memory, PagedFile};

use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::file::OpenFile;

/// A file without a name, which is gone when it is closed.
pub(crate) struct TemporaryFile {
    file: PagedFile,
    /// Nobody reads it once it is closed.
    is_private: bool,
}

/// Opens a file that is in the memory, and on disk only as far as there is no room.
pub(crate) fn spill(options: &FileOpener, name: &str) -> Outcome<PagedFile> {
    let options = options.clone().access(FileAccess::ReadWrite).name(name);
    let file = options.open_store(Spill::default());
    file.map_err(|error| Failure::open(&error))
}

impl TemporaryFile {
    pub(crate) fn new(memory: &Memory) -> Outcome<TemporaryFile> {
        Ok(TemporaryFile {
            file: spill(&memory.file_options(), "temporary file")?,
            is_private: true,
        })
    }

    /// A file that others read after this handle is closed.
    pub(crate) fn shared(file: PagedFile) -> TemporaryFile {
        TemporaryFile {
            file,
            is_private: false,
        }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Nobody reads it again, so it need not be written. A failure leaves bytes to be written to
        // a file without a name, and nothing worse.
        if self.is_private {
            let _ = self.file.set_len(0);
        }
    }
}

impl OpenFile for TemporaryFile {
    fn read(&mut self, buf: &mut [u8], at: u64) -> Outcome<usize> {
        let read = self.file.read_at(buf, at);
        read.map_err(|error| Failure::file(raw::IOERR_READ, &error))
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> Outcome {
        let written = self.file.write_at(bytes, at);
        written.map_err(|error| Failure::file(raw::IOERR_WRITE, &error))
    }

    fn truncate(&mut self, len: u64) -> Outcome {
        let set = self.file.set_len(len);
        set.map_err(|error| Failure::file(raw::IOERR_TRUNCATE, &error))
    }

    fn sync(&mut self, _flags: c_int) -> Outcome {
        Ok(())
    }

    fn len(&mut self) -> Outcome<u64> {
        Ok(self.file.len())
    }
}

/// The place for blocks that do not fit in the memory: a file without a name, made when the first
/// block comes.
#[derive(Debug, Default)]
pub(crate) struct Spill(Mutex<Spilled>);

#[derive(Debug, Default)]
struct Spilled {
    len: u64,
    file: Option<File>,
}

impl Spill {
    fn lock(&self) -> MutexGuard<'_, Spilled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Spill {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let spilled = self.lock();
        let rest = spilled.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let read = match &spilled.file {
            Some(file) => file.read_at(&mut buf[..rest], offset)?,
            None => 0,
        };
        // What was never written reads as zeros.
        buf[read..rest].fill(0);
        Ok(rest)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut spilled = self.lock();
        let file = match spilled.file.take() {
            Some(file) => file,
            None => unnamed()?,
        };
        let written = file.write_at(buf, offset);
        spilled.file = Some(file);
        let written = written?;
        spilled.len = spilled.len.max(offset + written as u64);
        Ok(written)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut spilled = self.lock();
        if let Some(file) = spilled.file.as_ref().filter(|_| len < spilled.len) {
            file.set_len(len)?;
        }
        spilled.len = len;
        Ok(())
    }

    fn accepted(&self) -> Accepted {
        Accepted::Kept
    }

    fn writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        "temporary file".to_owned()
    }
}

/// Opens a file without a name in the first folder that has room for one, in SQLite's order.
fn unnamed() -> io::Result<File> {
    let named = ["SQLITE_TMPDIR", "TMPDIR"].map(std::env::var_os);
    let named = named.into_iter().flatten().map(PathBuf::from);
    let usual = ["/var/tmp", "/usr/tmp", "/tmp", "."].map(PathBuf::from);
    let mut failed = io::ErrorKind::NotFound.into();
    for folder in named.chain(usual) {
        // Not every file system can make a file without a name: then the file has one for a moment.
        match tempfile::tempfile_in(&folder) {
            Ok(file) => return Ok(file),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
