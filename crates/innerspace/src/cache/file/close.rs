//! Closing a handle with [`PagedFile::close`], and the error that gives the file back.

use crate::cache::errors::FileError;
use crate::cache::file::handle::PagedFile;

/// The error of a file that could not be closed, together with the file. Returned by
/// [`PagedFile::close`].
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CloseError {
    file: PagedFile,
    error: FileError,
}

impl CloseError {
    /// Returns the error.
    pub fn error(&self) -> &FileError {
        &self.error
    }

    /// Returns the file, which still has its unwritten data. Close it again, or
    /// [`discard`](PagedFile::discard) the data.
    pub fn into_file(self) -> PagedFile {
        self.file
    }
}

/// Drops the file, and keeps the error.
impl From<CloseError> for FileError {
    fn from(failed: CloseError) -> FileError {
        failed.error
    }
}

/// Drops the file, and keeps the error.
impl From<CloseError> for std::io::Error {
    fn from(failed: CloseError) -> std::io::Error {
        FileError::from(failed).into()
    }
}

impl PagedFile {
    /// Writes the file's unwritten data, and drops this handle. If a write fails, returns the error
    /// with the handle, which still has the data. When the last handle is merely dropped, a failed
    /// write is reported only by [`Memory::take_errors`](crate::Memory::take_errors), and the data
    /// is lost.
    ///
    /// The data is not made durable: [`PagedFile::sync_all`] does that.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("table.db");
    /// let memory = Memory::with_limit(4 * MIB)?;
    /// let file = memory.create(&path)?;
    /// file.write_at(b"hello", 0)?;
    /// file.close()?;
    /// assert_eq!(std::fs::read(&path)?, b"hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`CloseError`]: a write failed, either in this call or earlier and not yet reported to this
    /// handle; or the write order holds data back ([`FileError::Held`]).
    pub fn close(self) -> Result<(), CloseError> {
        match self.sync(0..self.core().end_block(), None) {
            Ok(()) => Ok(()),
            Err(error) => Err(CloseError { file: self, error }),
        }
    }
}
