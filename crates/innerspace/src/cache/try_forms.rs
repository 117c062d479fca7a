//! The other forms of the calls on a file: `try_` forms, which never wait, and `defer`, which makes
//! a call in the background.
//!
//! A `try_` form is the call itself with [`Wait::No`]. Where the call would sleep (for a call to
//! the store, a lock of a block or of the file, a full group, a writeback under way, an access
//! through a mapping), the form returns an error instead ([`FileError::would_block`]). Apart from
//! read-ahead, it starts no work in the background: [`PagedFile::ready`] does that for bytes, and
//! [`PagedFile::defer`] for calls. Unless its documentation says otherwise, a form that would block
//! has changed nothing.

use std::ops::{Range, RangeBounds};

use crate::cache::dirty::sync_file::try_sync_blocks;
use crate::cache::errors::FileError;
use crate::cache::file::handle::PagedFile;
use crate::cache::map::evict::Evicting;
use crate::cache::read::view::View;
use crate::cache::task::{Task, call_and_drop};
use crate::cache::wait::Wait;
use crate::cache::write::append::try_append;
use crate::cache::write::write_at::try_write_at;
use crate::exec::Turn;
use crate::group::LimitError;
use crate::store::SyncWhat;
use crate::units::PageCount;

/// Calls in the background.
impl PagedFile {
    /// Runs `call` once in the background, with this handle: see [`Task`].
    ///
    /// Use this for calls that may wait, where waiting is not allowed. Calls on one file are made
    /// in the order in which their tasks were first polled. Ranges are evaluated when the call is
    /// made: an open end is the end of the file at that time.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, file::FileAccess, store::MemoryStore};
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     use std::task::{Context, Poll, Wake, Waker};
    /// #     struct Thread(std::thread::Thread);
    /// #     impl Wake for Thread {
    /// #         fn wake(self: std::sync::Arc<Self>) { self.0.unpark() }
    /// #     }
    /// #     let waker = Waker::from(std::sync::Arc::new(Thread(std::thread::current())));
    /// #     let mut future = std::pin::pin!(future);
    /// #     loop {
    /// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
    /// #             Poll::Ready(result) => return result,
    /// #             Poll::Pending => std::thread::park(),
    /// #         }
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = Memory::with_limit(4 * MIB)?;
    /// let options = memory.file_options().access(FileAccess::ReadWrite);
    /// let file = options.open_store(MemoryStore::new())?;
    /// let written = async {
    ///     file.defer(|file| {
    ///         file.write_at(b"hello", 0)?;
    ///         file.sync_all()
    ///     })
    ///     .await?;
    ///     file.defer_shared(|file| file.read_to_vec(..)).await
    /// };
    /// assert_eq!(block_on(written)?, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn defer<T: Send + 'static, E: From<LimitError> + Send + 'static>(
        &self,
        call: impl FnOnce(&PagedFile) -> Result<T, E> + Send + 'static,
    ) -> Task<T, E> {
        self.task(Turn::Alone, call)
    }

    /// Like [`PagedFile::defer`], for calls that only read. Consecutive shared calls run
    /// concurrently, as many as the store serves at a time
    /// ([`Limits::requests`](crate::store::Limits::requests)).
    pub fn defer_shared<T: Send + 'static, E: From<LimitError> + Send + 'static>(
        &self,
        call: impl FnOnce(&PagedFile) -> Result<T, E> + Send + 'static,
    ) -> Task<T, E> {
        self.task(Turn::Shared, call)
    }

    fn task<T, E: From<LimitError>>(
        &self,
        turn: Turn,
        call: impl FnOnce(&PagedFile) -> Result<T, E> + Send + 'static,
    ) -> Task<T, E> {
        let file = self.same_handle();
        let core = self.core();
        let about = (core.address(), &core.id.group);
        let turn = (turn, core.store.at_a_time);
        Task::new(&core.cache, about, turn, move || call_and_drop(file, call))
    }
}

/// Forms that never wait. Where a call would wait, its `try_` form returns an error for which
/// [`FileError::would_block`] holds. [`PagedFile::defer`] makes the call in the background.
impl PagedFile {
    /// Like [`PagedFile::view`], but never waits. If this would block, use [`PagedFile::ready`] to
    /// wait.
    ///
    /// # Errors
    /// The errors of [`PagedFile::view`], and [`FileError::WouldBlock`].
    pub fn try_view(&self, range: impl RangeBounds<u64>) -> Result<View, FileError> {
        self.handle().view(self.bytes(range)?, Wait::No)
    }

    /// Like [`PagedFile::read_at`], but never waits. If this would block, use [`PagedFile::ready`]
    /// to wait.
    ///
    /// # Errors
    /// The errors of [`PagedFile::read_at`], and [`FileError::WouldBlock`], in which case `buf` may
    /// be partly filled.
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, FileError> {
        self.handle().read_at(buf, offset, Wait::No)
    }

    /// Like [`PagedFile::read_exact_at`], but never waits. If this would block, use
    /// [`PagedFile::ready`] to wait.
    ///
    /// # Errors
    /// The errors of [`PagedFile::read_exact_at`], and [`FileError::WouldBlock`], in which case
    /// `buf` may be partly filled.
    pub fn try_read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), FileError> {
        self.read_exact(buf, offset, Wait::No)
    }

    /// Like [`PagedFile::write_at`], but never waits: it writes into one cached block, or writes
    /// nothing.
    ///
    /// # Errors
    /// The errors of [`PagedFile::write_at`], and [`FileError::WouldBlock`].
    pub fn try_write_at(&self, bytes: &[u8], offset: u64) -> Result<(), FileError> {
        try_write_at(self.core(), bytes, offset)
    }

    /// Like [`PagedFile::append`], but never waits: it writes into one block
    /// ([`PagedFile::block_size`]), or writes nothing. The block is the last one, if it is cached
    /// and has room for all bytes, or a new one, if the file ends at the end of a block.
    ///
    /// # Errors
    /// The errors of [`PagedFile::append`], and [`FileError::WouldBlock`].
    pub fn try_append(&self, bytes: &[u8]) -> Result<u64, FileError> {
        try_append(self.core(), bytes)
    }

    /// Checks that all data is durable, as after [`PagedFile::sync_data`]. Succeeds if that call
    /// would have nothing to do. Never writes. The check would block while data is unwritten or
    /// being written, or was written through any handle and not synced since. It would also block
    /// before the first sync of a file, because nobody knows what was written before the file was
    /// opened.
    ///
    /// # Errors
    /// The errors of [`PagedFile::sync_data`], which also report a failed write to this handle, and
    /// [`FileError::WouldBlock`].
    pub fn try_sync_data(&self) -> Result<(), FileError> {
        self.try_sync(0..self.core().end_block(), SyncWhat::Data)
    }

    /// Like [`PagedFile::try_sync_data`], for [`PagedFile::sync_all`].
    ///
    /// # Errors
    /// The errors of [`PagedFile::try_sync_data`].
    pub fn try_sync_all(&self) -> Result<(), FileError> {
        self.try_sync(0..self.core().end_block(), SyncWhat::All)
    }

    /// Like [`PagedFile::try_sync_data`], for [`PagedFile::sync_range`]. Unwritten data outside the
    /// range does not matter, but data anywhere that was written and not synced does.
    ///
    /// # Errors
    /// The errors of [`PagedFile::try_sync_data`].
    pub fn try_sync_range(&self, range: impl RangeBounds<u64>) -> Result<(), FileError> {
        let blocks = self.core().blocks_of(self.bytes(range)?);
        self.try_sync(blocks, SyncWhat::Data)
    }

    fn try_sync(&self, blocks: Range<u64>, what: SyncWhat) -> Result<(), FileError> {
        let outcome = try_sync_blocks(self.core(), blocks, what);
        self.handle().check_errors()?;
        outcome
    }

    /// Like [`PagedFile::evict`], but never waits. Mapped blocks stay, which is not an error.
    ///
    /// # Errors
    /// [`FileError::BadRange`].
    pub fn try_evict(&self, range: impl RangeBounds<u64>) -> Result<PageCount, FileError> {
        self.core().check_process()?;
        let blocks = self.core().blocks_of(self.bytes(range)?);
        Ok(self.core().evict_range(blocks, Evicting::Unmapped))
    }
}
