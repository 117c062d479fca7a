//! The handle on a cached file, and how long the file stays open.
//!
//! ```text
//!  PagedFile ──> FileInner ──> FileCore <── Handle <── Ready
//!  Space's mappings ──^            ^── reclaim (weak)
//!  View ┄┄> Pool
//! ```
//!
//! The file is open as long as a [`FileInner`] lives. Dropping the last one closes it: unwritten
//! data is written, blocks are freed, the store is dropped. Futures keep only the [`FileCore`]. A
//! view keeps nothing alive while the file has the viewed block. When the file loses the block, or
//! ends, the view keeps the block and the memory (`frame::ViewOwner`).

use std::fmt;
use std::ops::{ControlFlow, Range, RangeBounds};

use crate::cache::core::FileCore;
use crate::cache::core::handle::Handle;
use crate::cache::core::store_probe::StoreProbe;
use crate::cache::dirty::index::WriteOrder;
use crate::cache::dirty::sync_file::{restamp_mappings, sync_blocks};
use crate::cache::errors::FileError;
use crate::cache::file::closing::close_once;
use crate::cache::file::inner::FileInner;
use crate::cache::file::options::FileOptions;
use crate::cache::file::stats::FileStats;
use crate::cache::map::evict::Evicting;
use crate::cache::read::copy::prefetch;
use crate::cache::read::read_ahead::Reading;
use crate::cache::read::view::View;
use crate::cache::service::Cache;
use crate::cache::truncate;
use crate::cache::wait::Wait;
use crate::cache::write::append::append;
use crate::cache::write::write_at::{End, write_at};
use crate::group::Group;
use crate::store::{FileAccess, Store, SyncWhat};
use crate::sync::Arc;
use crate::sync::panics::Panics;
use crate::units::{PageCount, start_and_end};

/// The heap bytes of an open file besides its fixed-size structures. The file's identity, and the
/// list of its mappers if it has any, are only partly counted here.
const OTHER_BYTES: usize = 720;

/// A cached file: reads, writes and views, with a hard limit on its memory, and errors as values.
///
/// Each clone is a handle of its own on the same file. Each handle reports the latest failed write
/// once. (If the file's group has no memory for another handle, the clone shares the original's.)
/// All operations may be called from many threads. A read that overlaps a write of another thread
/// may see part of the write. So may a view over several blocks, since each block is viewed
/// separately. A [`View`] inside one block never does.
///
/// When the last handle (or mapping) is dropped, unwritten data is written back, but not made
/// durable: use [`PagedFile::sync_all`] for that. The call that drops it (the drop of a handle,
/// accessor or space, or an unmap) returns when the data is written, and waits only for the stores
/// of the files that it closes. If a handle is dropped in a call to a store, the work may be left
/// to a thread of the memory. The drop of the last [`Memory`](crate::Memory) waits for that thread.
///
/// ```
/// use innerspace::{MIB, Memory, file::FileError};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("table.db");
/// let memory = Memory::with_limit(4 * MIB)?;
/// let file = memory.create(&path)?;                  // open, open_rw, or file_options()
/// file.write_at(b"hello", 8192)?;                    // in the cache; zeros before it
/// assert_eq!(file.append(b", world")?, 8197);
/// file.sync_all()?;                                  // in the file, durably
///
/// let mut page = [0; 4096];
/// assert_eq!(file.read_at(&mut page, 8192)?, 12);    // less than asked for at the end
/// let view = file.view(8192..8197)?;                 // no copy inside one block
/// file.set_len(0)?;
/// assert_eq!(view[..], *b"hello");                   // a view stays as it is
/// assert!(matches!(file.view(0..1), Err(FileError::PastEnd { .. })));
/// # Ok(()) }
/// ```
pub struct PagedFile {
    /// `None` only once `drop` has taken it.
    inner: Option<Arc<FileInner>>,
    handle: Arc<Handle>,
}

impl fmt::Debug for PagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagedFile")
            .field("name", &self.name())
            .field("len", &self.len())
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}

impl Clone for PagedFile {
    fn clone(&self) -> PagedFile {
        PagedFile {
            inner: Some(self.inner().clone()),
            handle: Handle::another(&self.handle),
        }
    }
}

impl Drop for PagedFile {
    fn drop(&mut self) {
        let Some(last) = self.inner.take().and_then(Arc::into_inner) else {
            return;
        };
        if last.check_process().is_err() {
            return;
        }
        // In a call to the file's own store, the file is closed later (`FileInner::drop`). The same
        // holds if the file's store may use files, and this thread is in a call to another store or
        // has a file locked.
        if !last.in_store_call() && last.may_call_unasked() {
            let mut panics = Panics::default();
            panics.catch(|| close_once(last.core()));
            // Once the memory's last handle is dropped, there may be no other thread to do the
            // deferred work.
            panics.catch(|| last.cache.run_deferred_if_abandoned());
            panics.go_on();
        }
    }
}

impl PagedFile {
    /// The heap bytes of an open file with its first handle, and with its entries in the tables of
    /// files, owners and lanes.
    pub(crate) const HEAP: usize =
        size_of::<FileCore>() + size_of::<FileInner>() + size_of::<Handle>() + OTHER_BYTES;

    /// Opens a store as a file of `cache`. The caller ensures that no other file is open on the
    /// same store (P27).
    pub(crate) fn open(
        cache: &Arc<Cache>,
        store: Arc<dyn Store>,
        options: &FileOptions,
    ) -> Result<PagedFile, FileError> {
        let asked = StoreProbe::new((&cache.pool, &cache.root), store, options)?;
        Ok(PagedFile::over(cache, asked))
    }

    /// Like [`PagedFile::open`], for a store that has been probed. The store is not called, so
    /// locks may be held.
    pub(crate) fn over(cache: &Arc<Cache>, asked: StoreProbe) -> PagedFile {
        let inner = FileInner::new(FileCore::new(cache, asked));
        let handle = inner.first().clone();
        PagedFile {
            inner: Some(Arc::new(inner)),
            handle,
        }
    }

    /// Creates a new handle on an open file, or shares the first one if the group has no memory for
    /// another.
    pub(crate) fn new(inner: &Arc<FileInner>) -> PagedFile {
        let handle = Handle::another(inner.first());
        PagedFile {
            inner: Some(inner.clone()),
            handle,
        }
    }

    /// Returns the state that handles and mappings share.
    pub(crate) fn inner(&self) -> &Arc<FileInner> {
        self.inner.as_ref().expect("taken by `drop` alone")
    }

    /// Returns another reference to the same handle: each failure is reported to only one of the
    /// two.
    pub(crate) fn same_handle(&self) -> PagedFile {
        PagedFile {
            inner: Some(self.inner().clone()),
            handle: self.handle.clone(),
        }
    }

    pub(crate) fn core(&self) -> &FileCore {
        &self.handle.core
    }

    /// Returns this handle's own state.
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Converts `range` to a start and an end. An open end stands for the end of the file, or for
    /// the start if that is larger. Returns an error if the end is before the start.
    #[inline]
    pub(crate) fn bytes(&self, range: impl RangeBounds<u64>) -> Result<Range<u64>, FileError> {
        let (start, end) = start_and_end(&range);
        let end = end.unwrap_or_else(|| self.len().max(start));
        if start > end {
            return Err(FileError::BadRange {
                file: self.core().id.name.clone(),
                start,
                end,
            });
        }
        Ok(start..end)
    }

    /// Returns the name that messages use: [`FileOpener::name`](crate::FileOpener::name), or else
    /// the path that the file was opened by, or the store's own name, with control characters
    /// escaped.
    pub fn name(&self) -> &str {
        &self.core().id.name
    }

    /// Returns the length in bytes, unwritten data included.
    pub fn len(&self) -> u64 {
        self.core().size()
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the unit of caching in bytes.
    pub fn block_size(&self) -> u64 {
        self.core().block_bytes()
    }

    /// Returns whether the file is open read-only, or for reading and writing.
    pub fn access(&self) -> FileAccess {
        self.core().id.access
    }

    /// Returns the write order, which says when dirty blocks are written.
    pub fn write_order(&self) -> WriteOrder {
        self.core().id.write_order
    }

    /// Returns the group that pays for the file's blocks.
    pub fn group(&self) -> &Group {
        &self.core().id.group
    }

    /// Returns statistics of the file's contents and events.
    pub fn stats(&self) -> FileStats {
        FileStats::of(self.core())
    }

    /// Returns an immutable view of a range, which must be wholly inside the file: one slice, of
    /// any length that the limit allows. The view consists of the cached blocks themselves, and
    /// keeps them in memory, charged to the file's group. Blocks that are not consecutive in memory
    /// are moved together once, and stay so: the next view of them only takes a reference to each
    /// block. A view over several blocks may contain part of a concurrent write.
    ///
    /// Some views over several blocks are copies, charged by the page: those of at most a page, and
    /// those whose blocks other threads change meanwhile. Where the host limits addresses
    /// (`ulimit -v`, strict overcommit), every view whose blocks are not consecutive is also a
    /// copy, and may have at most 2 MiB.
    ///
    /// If a range is not cached, only the blocks that it touches are read, unless this handle reads
    /// sequentially, and so reads ahead.
    ///
    /// # Errors
    /// [`FileError::PastEnd`], [`FileError::Limit`], [`FileError::ViewTooLarge`], or the store's
    /// error.
    #[inline(always)]
    pub fn view(&self, range: impl RangeBounds<u64>) -> Result<View, FileError> {
        self.handle.view(self.bytes(range)?, Wait::Yes)
    }

    /// Reads up to `buf.len()` bytes at `offset`: fewer at the end of the file, 0 past it.
    ///
    /// # Errors
    /// [`FileError::Limit`], or the store's error.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, FileError> {
        self.handle.read_at(buf, offset, Wait::Yes)
    }

    /// Reads exactly `buf.len()` bytes at `offset`.
    ///
    /// # Errors
    /// The errors of [`PagedFile::read_at`], and [`FileError::PastEnd`].
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), FileError> {
        self.read_exact(buf, offset, Wait::Yes)
    }

    /// Returns the bytes of a range, which must be wholly inside the file. The range may have any
    /// length; the memory is on the caller's heap.
    ///
    /// There is no `try_` form: [`PagedFile::try_read_exact_at`] reads into a buffer.
    ///
    /// # Errors
    /// The errors of [`PagedFile::read_exact_at`], and [`FileError::NoMemory`].
    pub fn read_to_vec(&self, range: impl RangeBounds<u64>) -> Result<Vec<u8>, FileError> {
        let Range { start, end } = self.bytes(range)?;
        let len = end - start;
        if end > self.len() {
            return Err(self.core().past_end(start, len, self.len()));
        }
        let mut bytes = self.core().zeros(len)?;
        self.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }

    #[inline]
    pub(crate) fn read_exact(
        &self,
        buf: &mut [u8],
        offset: u64,
        wait: Wait,
    ) -> Result<(), FileError> {
        let got = self.handle.read_at(buf, offset, wait)?;
        if got < buf.len() {
            return Err(self.core().past_end(offset, buf.len() as u64, self.len()));
        }
        Ok(())
    }

    /// Passes the bytes of a range to `each`, in order, in pieces of at most a block. This is the
    /// fastest way to read many bytes.
    ///
    /// There is no `try_` form, since it could not say how far it got. To read without waiting,
    /// take the pieces one by one with [`PagedFile::try_view`].
    ///
    /// # Errors
    /// The errors of [`PagedFile::view`]. Pieces before the failure have been passed to `each`.
    pub fn scan(
        &self,
        range: impl RangeBounds<u64>,
        each: impl FnMut(&[u8]),
    ) -> Result<(), FileError> {
        self.handle.scan_all(self.bytes(range)?, each, Wait::Yes)
    }

    /// Like [`PagedFile::scan`], but ends when `each` breaks, and returns the value that it breaks
    /// with.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use innerspace::{MIB, Memory, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(4 * MIB)?;
    /// let file = memory.file_options().open_store(MemoryStore::from_bytes(b"key=value"))?;
    /// let mut before = 0;
    /// let found = file.scan_until(.., |piece| match piece.iter().position(|byte| *byte == b'=') {
    ///     Some(at) => ControlFlow::Break(before + at),
    ///     None => {
    ///         before += piece.len();
    ///         ControlFlow::Continue(())
    ///     }
    /// })?;
    /// assert_eq!(found, ControlFlow::Break(3));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`PagedFile::scan`].
    pub fn scan_until<B>(
        &self,
        range: impl RangeBounds<u64>,
        each: impl FnMut(&[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, FileError> {
        self.handle.scan(self.bytes(range)?, each, Wait::Yes)
    }

    /// Writes all of `bytes` at `offset`, and makes the file longer where needed. The bytes are in
    /// the cache when this returns; a sync makes them durable.
    ///
    /// # Errors
    /// [`FileError::ReadOnly`], [`FileError::TooLarge`], [`FileError::Limit`], [`FileError::Held`],
    /// [`FileError::Unwritten`], or the store's error if a partly written block had to be read
    /// first. Bytes before the failure may have been written.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), FileError> {
        write_at(self.core(), bytes, offset, End::Moves)
    }

    /// Writes all of `bytes` at the end of the file, and returns their offset. Between the bytes
    /// comes no other append, and no [`PagedFile::set_len`], [`PagedFile::discard`] or
    /// [`PagedFile::invalidate`]. A concurrent write past the end may be made at the same offset.
    ///
    /// # Errors
    /// The errors of [`PagedFile::write_at`].
    pub fn append(&self, bytes: &[u8]) -> Result<u64, FileError> {
        append(self.core(), bytes)
    }

    /// Cuts the file, or lengthens it with zeros. Views keep their bytes.
    ///
    /// There is no `try_` form: `set_len` calls the store.
    ///
    /// # Errors
    /// [`FileError::ReadOnly`], [`FileError::TooLarge`], or the store's error. If the file gets
    /// longer, also [`FileError::Limit`] if its last block is viewed and there is no memory to move
    /// it. Nothing has changed after that error.
    pub fn set_len(&self, len: u64) -> Result<(), FileError> {
        truncate::set_len(self.core(), len)
    }

    /// Makes a range read as zeros, and frees its space in the store as far as the store can. The
    /// length stays. If there are already 256 separate punched ranges that no sync has covered,
    /// these are made durable first.
    ///
    /// There is no `try_` form: a punch calls the store. [`PagedFile::try_write_at`] can clear
    /// parts of blocks.
    ///
    /// # Errors
    /// [`FileError::ReadOnly`], [`FileError::Limit`], or the store's error. After an error, parts
    /// of the range may already be zero.
    pub fn punch(&self, range: impl RangeBounds<u64>) -> Result<(), FileError> {
        truncate::punch(self.core(), self.bytes(range)?)
    }

    /// Writes unwritten data, and makes it durable together with the metadata needed to read it
    /// back (fdatasync).
    ///
    /// # Errors
    /// The latest failed write, through any handle, that was not yet reported to this handle. The
    /// data stays dirty, and the next sync writes it again. [`FileError::Held`] for data that the
    /// write order holds back.
    pub fn sync_data(&self) -> Result<(), FileError> {
        self.sync(0..self.core().end_block(), Some(SyncWhat::Data))
    }

    /// Writes unwritten data, and makes it durable together with everything that the store keeps
    /// about the file (fsync).
    ///
    /// # Errors
    /// The errors of [`PagedFile::sync_data`].
    pub fn sync_all(&self) -> Result<(), FileError> {
        self.sync(0..self.core().end_block(), Some(SyncWhat::All))
    }

    /// Like [`PagedFile::sync_data`], for the blocks of a range: only these are written and waited
    /// for. The sync of the store that follows has no range: it makes everything durable that the
    /// store has accepted, and is waited for in full.
    ///
    /// # Errors
    /// The errors of [`PagedFile::sync_data`].
    pub fn sync_range(&self, range: impl RangeBounds<u64>) -> Result<(), FileError> {
        let blocks = self.core().blocks_of(self.bytes(range)?);
        self.sync(blocks, Some(SyncWhat::Data))
    }

    /// Writes the unwritten blocks among `blocks`. If `what` is given, also syncs the store.
    /// Returns the latest failure that was not yet reported to this handle, or else the error of
    /// this call.
    pub(super) fn sync(&self, blocks: Range<u64>, what: Option<SyncWhat>) -> Result<(), FileError> {
        let outcome = sync_blocks(self.core(), blocks, what);
        self.core().cache.run_deferred_if_abandoned();
        self.handle.check_errors()?;
        outcome
    }

    /// Drops all unwritten data of the file on purpose, so that the file has the bytes of the
    /// store. If the store has older bytes that it may still lose, because no sync has covered
    /// them, the store is synced first. A failure of that sync is reported by the next sync of
    /// every handle.
    ///
    /// There is no `try_` form: a discard asks the store for its length, and waits for an append
    /// that is under way.
    ///
    /// # Errors
    /// [`FileError::ReadOnly`], or the store's error when it is asked for its length.
    pub fn discard(&self) -> Result<(), FileError> {
        truncate::discard(self.core())
    }

    /// Forgets the cached blocks of a range, and takes over the store's length. Use this for stores
    /// that other processes change. Unwritten blocks stay. If the store has taken blocks of the
    /// range that no sync has covered, it is synced first; blocks that it may still lose after that
    /// stay, too. Views keep their bytes. Returns the number of pages forgotten.
    ///
    /// By this call, the caller confirms that it knows of changes by other processes: a file whose
    /// reads failed with [`FileError::ChangedInPlace`] can be read again, and blocks cached outside
    /// the range count as current.
    ///
    /// There is no `try_` form: an invalidation asks the store for its length, and waits for an
    /// append that is under way.
    ///
    /// # Errors
    /// The store's error when it is asked for its version or its length. Also [`FileError::Limit`]
    /// if the store has become longer, the file's last block is viewed, and there is no memory to
    /// move it.
    pub fn invalidate(&self, range: impl RangeBounds<u64>) -> Result<PageCount, FileError> {
        truncate::invalidate(self.core(), self.core().blocks_of(self.bytes(range)?))
    }

    /// Evicts the blocks of a range that can be evicted now: those that are clean and neither
    /// viewed nor in use. If the store may lose unsynced writes, a sync must also have covered
    /// them. Returns the number of pages evicted. If blocks are mapped, waits until no access uses
    /// them.
    ///
    /// # Errors
    /// [`FileError::BadRange`].
    pub fn evict(&self, range: impl RangeBounds<u64>) -> Result<PageCount, FileError> {
        self.core().check_process()?;
        let blocks = self.core().blocks_of(self.bytes(range)?);
        Ok(self.core().evict_range(blocks, Evicting::All))
    }

    /// Declares the order in which this handle will read. Other handles of the file, and mappings
    /// ([`Advice`](crate::space::Advice)), keep their own setting. [`Reading::Normal`], the
    /// default, detects the order.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, file::Reading};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("table.db");
    /// # std::fs::write(&path, vec![7; MIB as usize])?;
    /// let memory = Memory::with_limit(4 * MIB)?;
    /// let lookups = memory.open(&path)?;
    /// lookups.set_reading(Reading::Random);
    /// let scan = lookups.clone();                        // a handle of its own
    /// scan.set_reading(Reading::Sequential);
    /// # Ok(()) }
    /// ```
    pub fn set_reading(&self, reading: Reading) {
        self.handle.stream.set_reading(reading);
    }

    /// Reads a range into the cache ahead of use. This is a hint: blocks that do not fit are
    /// skipped.
    ///
    /// There is no `try_` form: the call does nothing but read.
    ///
    /// # Errors
    /// The store's error.
    pub fn prefetch(&self, range: impl RangeBounds<u64>) -> Result<(), FileError> {
        let bytes = self.bytes(range)?;
        let bytes = bytes.start..bytes.end.min(self.len());
        prefetch(self.core(), self.core().blocks_of(bytes))
    }

    /// Sets the barrier number that writes carry from now on ([`WriteOrder::Ordered`]). The number
    /// never goes down. Blocks written under it stay in memory until [`PagedFile::release_through`]
    /// releases it. Stores through shared mappings carry the number, too.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, file::{FileAccess, WriteOrder}, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(4 * MIB)?;
    /// # let options = memory.file_options().access(FileAccess::ReadWrite);
    /// let ordered = options.clone().write_order(WriteOrder::Ordered);
    /// let pages = ordered.open_store(MemoryStore::new())?;
    /// let log = options.open_store(MemoryStore::new())?;
    /// log.append(b"page 3 is 7")?;
    /// pages.set_barrier(1);
    /// pages.write_at(&[7; 4096], 3 * 4096)?;
    /// assert!(pages.sync_all().is_err(), "not before the log");
    /// log.sync_all()?;
    /// pages.release_through(1);
    /// pages.sync_all()?;
    /// # Ok(()) }
    /// ```
    pub fn set_barrier(&self, number: u64) {
        // SeqCst: see `restamp_mappings`.
        self.core().writes.barrier.raise(number);
        if self.core().id.write_order == WriteOrder::Ordered {
            restamp_mappings(self.core());
        }
    }

    /// Lets blocks with barrier numbers up to `number` be written.
    pub fn release_through(&self, number: u64) {
        self.core().writes.barrier.release_through(number);
    }
}
