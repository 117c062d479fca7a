//! The `try_` forms of a file's calls: what would have to wait is an error instead
//! ([`FileError::would_block`]).
//!
//! They sleep for nobody: no call of the store, lock of a block or of the file, full group, write
//! back under way or access through a mapping. Nor do they have others do what is missing: for that
//! there are futures, [`PagedFile::ready`] for bytes and [`PagedFile::later`] for calls, which may
//! also be waited for in place, for a while. Where nothing else is said, a form that would block
//! has changed nothing.

use std::ops::{Range, RangeBounds};

use super::core::FileCore;
use super::errors::FileError;
use super::file::PagedFile;
use super::owner::Evicting;
use super::view::{View, Wait};
use crate::store::SyncWhat;
use crate::units::PageCount;

impl FileCore {
    pub(super) fn would_block(&self, offset: u64) -> FileError {
        FileError::WouldBlock {
            file: self.name.clone(),
            offset,
        }
    }

    pub(super) fn would_block_in(&self, block: u64) -> FileError {
        self.would_block(block.saturating_mul(self.block_bytes()))
    }
}

/// Forms that never wait. What would have to is an error for which [`FileError::would_block`]
/// holds; each says what to wait for then.
impl PagedFile {
    /// Like [`PagedFile::view`], but never waits. What would block is had by [`PagedFile::ready`].
    ///
    /// # Errors
    /// As [`PagedFile::view`], and [`FileError::WouldBlock`].
    pub fn try_view(&self, range: impl RangeBounds<u64>) -> Result<View, FileError> {
        self.handle().view(self.bytes(range)?, Wait::No)
    }

    /// Like [`PagedFile::read_at`], but never waits. What would block is there when
    /// [`PagedFile::ready`] is done.
    ///
    /// # Errors
    /// As [`PagedFile::read_at`], and [`FileError::WouldBlock`]; `buf` may be partly filled then.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, FileError> {
        self.handle().read_at(buf, offset, Wait::No)
    }

    /// Like [`PagedFile::read_exact_at`], but never waits. What would block is there when
    /// [`PagedFile::ready`] is done.
    ///
    /// # Errors
    /// As [`PagedFile::read_exact_at`], and [`FileError::WouldBlock`]; `buf` may be partly filled
    /// then.
    pub fn try_read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), FileError> {
        let got = self.try_read_at(buf, offset)?;
        self.check_whole(got, buf, offset)
    }

    /// Like [`PagedFile::write_at`], but never waits: writes inside one cached block, or nothing.
    /// What would block is for [`LaterCalls::write_at`](super::LaterCalls::write_at).
    ///
    /// # Errors
    /// As [`PagedFile::write_at`], and [`FileError::WouldBlock`].
    pub fn try_write_at(&self, bytes: &[u8], offset: u64) -> Result<(), FileError> {
        self.core().try_write_at(bytes, offset)
    }

    /// Like [`PagedFile::append`], but never waits: writes into one block
    /// ([`PagedFile::block_size`]), the last one, if that is cached and has room for all of it, or
    /// a new one, if the file ends with a block; or nothing. What would block is for
    /// [`LaterCalls::append`](super::LaterCalls::append).
    ///
    /// # Errors
    /// As [`PagedFile::append`], and [`FileError::WouldBlock`].
    pub fn try_append(&self, bytes: &[u8]) -> Result<u64, FileError> {
        self.core().try_append(bytes)
    }

    /// Whether all data is durable, as after [`PagedFile::sync_data`]: it succeeds where that would
    /// have nothing to do. It would block while something is unwritten or being written, or was
    /// written and not synced since, by whoever; and before the first sync of a file, for nobody
    /// knows what came before it was opened. Nothing is written for it:
    /// [`LaterCalls::sync_data`](super::LaterCalls::sync_data) is for that.
    ///
    /// # Errors
    /// As [`PagedFile::sync_data`], which tell this handle of a failed write as well, and
    /// [`FileError::WouldBlock`].
    pub fn try_sync_data(&self) -> Result<(), FileError> {
        self.try_sync(0..self.core().end_block(), SyncWhat::Data)
    }

    /// The same of [`PagedFile::sync_all`]. What would block is for
    /// [`LaterCalls::sync_all`](super::LaterCalls::sync_all).
    ///
    /// # Errors
    /// As [`PagedFile::try_sync_data`].
    pub fn try_sync_all(&self) -> Result<(), FileError> {
        self.try_sync(0..self.core().end_block(), SyncWhat::All)
    }

    /// The same of [`PagedFile::sync_range`]: what is unwritten elsewhere does not matter, what was
    /// written and not synced does. What would block is for
    /// [`LaterCalls::sync_range`](super::LaterCalls::sync_range).
    ///
    /// # Errors
    /// As [`PagedFile::try_sync_data`].
    pub fn try_sync_range(&self, range: impl RangeBounds<u64>) -> Result<(), FileError> {
        let blocks = self.core().blocks_of(self.bytes(range)?);
        self.try_sync(blocks, SyncWhat::Data)
    }

    fn try_sync(&self, blocks: Range<u64>, what: SyncWhat) -> Result<(), FileError> {
        let outcome = self.core().try_sync_blocks(blocks, what);
        self.handle().check_errors()?;
        outcome
    }

    /// Like [`PagedFile::evict`], but never waits: blocks that are mapped stay, for it would wait
    /// until no access uses them. What is left so is no error, and goes by
    /// [`LaterCalls::evict`](super::LaterCalls::evict).
    ///
    /// # Errors
    /// [`FileError::BadRange`].
    pub fn try_evict(&self, range: impl RangeBounds<u64>) -> Result<PageCount, FileError> {
        self.core().check_process()?;
        let blocks = self.core().blocks_of(self.bytes(range)?);
        Ok(self.core().evict_range(blocks, Evicting::Unmapped))
    }
}
