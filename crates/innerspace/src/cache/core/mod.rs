//! The state of one cached file, in components, and the small steps of which every operation is
//! made up.
//!
//! - `locks`: the locks that an operation may sleep on
//! - `store_handle`, `store_probe`, `store_version`: the store; the calls to it before a file is
//!   opened on it; whether another process has changed it
//! - `ready_list`: futures that wait for bytes
//! - `gate`: calls to the store, and what a thread may do with the file during such a call
//! - `handle`, `closing`: the state of one handle; the progress of the file's closing
//! - `counters`, `validate`: event counters; a recount of all counters for tests

pub(crate) mod closing;
pub(crate) mod counters;
pub(crate) mod gate;
pub(crate) mod handle;
pub(crate) mod locks;
pub(crate) mod ready_list;
pub(crate) mod store_handle;
pub(crate) mod store_probe;
pub(crate) mod store_version;
#[cfg(any(test, feature = "test-util"))]
#[path = "tests/validate.rs"]
pub(crate) mod validate;

use std::io;
use std::ops::Range;

use crate::cache::core::closing::Closing;
use crate::cache::core::counters::FileCounters;
use crate::cache::core::locks::FileLocks;
use crate::cache::core::ready_list::ReadyList;
use crate::cache::core::store_handle::{FileStore, StoreHandle};
use crate::cache::core::store_probe::{FileIdentity, MAX_SIZE, StoreProbe};
use crate::cache::core::store_version::StoreVersion;
use crate::cache::dirty::index::DirtyIndex;
use crate::cache::dirty::state::WriteState;
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::index::{Guarded, Index, NODE_WORDS, Nodes};
use crate::cache::map::mappers::{MapperId, MapperList, Mappers, Revoke};
use crate::cache::read::holes::{Extents, VisibleHoles};
use crate::cache::read::read_ahead::Stream;
use crate::cache::service::Cache;
use crate::exec::{InFlight, Job, Lane};
use crate::frame::{Dropped, Frames, TAGGED_BYTES, Tag, Tags};
use crate::group::LimitError;
use crate::reclaim::{AllocMode, Owner, OwnerId, Pool, PoolFrame};
use crate::store::{FileAccess, StoreError};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, OnceLock, Rank, Weak, raw};
use crate::units::{FrameId, PAGE_SHIFT, PageCount, zeros};

/// One cached file. Handles, mappings and futures keep it alive, and reclaim does so briefly. It is
/// closed when the last handle and mapping are dropped ([`FileInner`](crate::cache::FileInner)).
pub(crate) struct FileCore {
    pub(crate) me: Weak<FileCore>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) id: FileIdentity,
    pub(crate) store: FileStore,
    pub(crate) version: StoreVersion,
    pub(crate) blocks: Blocks,
    pub(crate) writes: WriteState,
    pub(crate) locks: FileLocks,
    pub(crate) mappers: MapperList,
    /// The reads in flight: see [`requests`](crate::cache::read::requests).
    pub(crate) requests: InFlight<Box<dyn Job>>,
    /// The lane of the jobs that call the store.
    pub(crate) store_calls: Lane,
    pub(crate) ready: ReadyList,
    /// The read-ahead state of mappings, which have no handle.
    pub(crate) stream: Stream,
    pub(crate) counters: FileCounters,
    pub(crate) closing: Closing,
    /// Values that are dropped with the file: its entry in the table of open files, and the charge
    /// for its heap memory.
    ending: OnceLock<Box<dyn Send + Sync>>,
}

/// A file's blocks, its length, and its known holes.
pub(crate) struct Blocks {
    /// The blocks, and under the same mutex the dirty index: a block that a write makes enters both
    /// in one step.
    pub(crate) index: Index<DirtyIndex>,
    /// The file's length in bytes. Writes and appends raise it under the mutex of `index`. Every
    /// other change is made with `invalidate` held exclusively.
    pub(crate) size: AtomicU64,
    /// The length of the store. Nothing at or beyond it is read. It changes when the store is
    /// resized, written, or asked for its length again.
    pub(crate) stored: AtomicU64,
    /// Advances, under the mutex of `index`, whenever something may have stopped being a hole: see
    /// [`hole_still`](crate::cache::map::fault::hole_still).
    pub(crate) hole_epoch: AtomicU64,
    /// A range that covers all holes that may be mapped.
    pub(crate) visible_holes: VisibleHoles,
    /// The known holes of the store. An innermost lock.
    pub(crate) extents: Mutex<Extents>,
    /// Whether the last block has old bytes past the end of the file that could not be cleared: the
    /// block was viewed, and there was no memory to move it. They are cleared before the file
    /// grows, or before a mapping shows them.
    pub(crate) tail_left: AtomicBool,
    /// The errors of blocks that could not be filled, kept while waiters still hold these blocks
    /// (P20). An innermost lock.
    pub(crate) fill_errors: Mutex<Vec<(FrameId, FileError)>>,
    /// The number of [`BlockReader`](crate::cache::BlockReader)s. Each holds a block at most once.
    pub(crate) block_readers: AtomicU64,
}

impl Blocks {
    fn new(len: u64, tags: Tags) -> Blocks {
        Blocks {
            index: Index::ranked(Rank::Dirty, tags),
            size: AtomicU64::new(len),
            stored: AtomicU64::new(len),
            hole_epoch: AtomicU64::new(0),
            visible_holes: VisibleHoles::default(),
            extents: Mutex::default(),
            tail_left: AtomicBool::new(false),
            fill_errors: Mutex::default(),
            block_readers: AtomicU64::new(0),
        }
    }
}

impl FileCore {
    /// Creates a file with nothing cached. Does not call the store.
    pub(crate) fn new(cache: &Arc<Cache>, asked: StoreProbe) -> Arc<FileCore> {
        let pool = cache.pool.clone();
        let (id, len) = (asked.id, asked.len);
        let order = id.order;
        let tags_of = |owner: OwnerId| match order {
            0 if len <= TAGGED_BYTES => Tags::of_file(owner.0),
            _ => Tags::none(),
        };
        let payer = id.group.id().0.into();
        let number = cache.next_file();
        let core = Arc::new_cyclic(|me: &Weak<FileCore>| {
            let owner = pool.owners.register(me.clone() as Weak<dyn Owner>);
            FileCore {
                me: me.clone(),
                cache: cache.clone(),
                pool,
                blocks: Blocks::new(len, tags_of(owner)),
                id: FileIdentity {
                    number,
                    owner,
                    ..id
                },
                version: StoreVersion::new(asked.version, cache.pool.background.now()),
                writes: WriteState::default(),
                locks: FileLocks::default(),
                mappers: MapperList::default(),
                requests: InFlight::new(),
                store_calls: cache.workers.lane(payer, asked.store.at_a_time),
                store: asked.store,
                ready: ReadyList::default(),
                stream: Stream::default(),
                counters: FileCounters::default(),
                closing: Closing::default(),
                ending: OnceLock::new(),
            }
        });
        cache.add_file(&core);
        core
    }

    /// Keeps `ending` until the file is dropped.
    pub(crate) fn keep(&self, ending: Box<dyn Send + Sync>) {
        let _once = self.ending.set(ending);
    }

    // --- sizes and numbers

    /// Returns the file's length in bytes.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        // Acquire pairs with the Release in `set_size`: a thread that sees the new size also sees
        // the bytes that were written before it was set.
        self.blocks.size.load(Ordering::Acquire)
    }

    /// Sets the file's length. If the file becomes too long for tags, ends the tagging of its
    /// blocks. Release pairs with the Acquire in `size`.
    #[inline]
    pub(crate) fn set_size(&self, size: u64) {
        if size > TAGGED_BYTES {
            self.blocks.index.tags().end();
        }
        self.blocks.size.store(size, Ordering::Release);
    }

    /// Whether the file's frames come from `pool`.
    pub(crate) fn is_in(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Returns the name as it appears in messages.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.id.name
    }

    /// Returns whether the file is open read-only, or for reading and writing.
    pub(crate) fn access(&self) -> FileAccess {
        self.id.access
    }

    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        &self.pool.frames
    }

    /// Returns log2 of the block size in bytes.
    #[inline]
    pub(crate) fn block_shift(&self) -> u32 {
        PAGE_SHIFT + u32::from(self.id.order)
    }

    /// Returns the block size in bytes.
    #[inline]
    pub(crate) fn block_bytes(&self) -> u64 {
        1 << self.block_shift()
    }

    /// Converts an offset in the file to an offset in the block that contains it.
    #[inline]
    pub(crate) fn inside_block(&self, offset: u64) -> u64 {
        offset & (self.block_bytes() - 1)
    }

    /// Returns the number of bytes from `offset` to the end of its block.
    pub(crate) fn left_in_block(&self, offset: u64) -> usize {
        (self.block_bytes() - self.inside_block(offset)) as usize
    }

    /// Returns the number of pages in a block.
    pub(crate) fn block_pages(&self) -> u64 {
        1 << self.id.order
    }

    /// Returns the file's pages in a range of blocks.
    pub(crate) fn pages_of(&self, blocks: Range<u64>) -> Range<u64> {
        blocks.start << self.id.order..blocks.end.saturating_mul(self.block_pages())
    }

    /// Returns the blocks that a byte range touches.
    pub(crate) fn blocks_of(&self, bytes: Range<u64>) -> Range<u64> {
        if bytes.is_empty() {
            return 0..0;
        }
        bytes.start >> self.block_shift()..((bytes.end - 1) >> self.block_shift()) + 1
    }

    /// Returns the blocks that contain at least one of these pages of the file.
    pub(crate) fn blocks_of_pages(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start >> self.id.order..pages.end.div_ceil(self.block_pages())
    }

    /// Returns the pages of a block.
    pub(crate) fn pages_in(&self, block: u64) -> Range<u64> {
        self.pages_of(block..block + 1)
    }

    /// Returns the first page past the end of the file. A page before it stays in the file while
    /// its block is locked: a cut shortens the file before it locks the blocks. If the last block
    /// has old bytes past the end (`tail_left`), the page in which the file ends also counts as
    /// past the end.
    pub(crate) fn end_page(&self) -> u64 {
        let size = self.size();
        match self.blocks.tail_left.load(Ordering::Acquire) {
            true => size >> PAGE_SHIFT,
            false => size.div_ceil(1 << PAGE_SHIFT),
        }
    }

    /// Returns one more than the largest block number that a file can have.
    pub(crate) fn end_block(&self) -> u64 {
        (MAX_SIZE >> self.block_shift()) + 1
    }

    /// Returns the lowest limit of the groups that pay for the file, in bytes; `u64::MAX` if none
    /// has a limit.
    pub(crate) fn nearest_limit(&self) -> u64 {
        let limits = self.id.groups.iter();
        let limits = limits.filter_map(|group| self.pool.groups.max(*group));
        limits.min().map_or(u64::MAX, PageCount::bytes)
    }

    /// Allocates the frames of one block, charged to the file's group.
    #[inline(always)]
    pub(crate) fn alloc(&self, mode: AllocMode) -> Result<PoolFrame<'_>, LimitError> {
        self.pool.alloc(self.id.group.id(), self.id.order, mode)
    }

    /// Returns the file's store, or an error if the file is closed.
    pub(crate) fn store(&self) -> Result<Arc<StoreHandle>, FileError> {
        self.store.get().ok_or_else(|| self.closed())
    }

    // --- errors

    /// Returns a heap buffer of `len` zeros. If there is no memory, the error names this file.
    pub(crate) fn zeros(&self, len: u64) -> Result<Vec<u8>, FileError> {
        let file = || self.id.name.clone();
        zeros(len).ok_or_else(|| FileError::NoMemory { file: file(), len })
    }

    pub(crate) fn past_end(&self, offset: u64, len: u64, size: u64) -> FileError {
        FileError::PastEnd {
            file: self.id.name.clone(),
            offset,
            len,
            size,
        }
    }

    /// Turns a failure of a call to the store into an error that names this file and the call's
    /// range. The error names the call too, unless the store reports that it was cut, was changed,
    /// or read too few bytes.
    pub(crate) fn store_error(
        &self,
        action: StoreAction,
        offset: u64,
        len: u64,
        error: io::Error,
    ) -> FileError {
        let file = self.id.name.clone();
        match error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<StoreError>())
        {
            Some(StoreError::Shrank {
                now, was, since, ..
            }) => FileError::Shrank {
                file,
                offset,
                len,
                now: *now,
                was: *was,
                since: *since,
            },
            Some(StoreError::ShortRead { got, len: size, .. }) => FileError::Short {
                file,
                offset,
                len,
                got: *got,
                size: *size,
            },
            Some(StoreError::Changed) => FileError::Changed { file, offset, len },
            _ => FileError::Store {
                file,
                action,
                offset,
                len,
                source: Arc::new(error),
            },
        }
    }

    // --- references

    /// Drops a reference to a block, and frees the block if nothing else holds it.
    #[inline]
    pub(crate) fn put(&self, frame: FrameId) {
        if self.frames().meta(frame).hold.put() == Dropped::Last {
            self.put_last(frame);
        }
    }

    #[cold]
    fn put_last(&self, frame: FrameId) {
        self.pool.free(frame);
    }

    // --- mappings

    /// Registers a mapper of the file.
    pub(crate) fn add_mapper(&self, mapper: Weak<dyn Mappers>) -> MapperId {
        let id = self.mappers.add(mapper);
        // Locks and unlocks the mutex of the dirty index. An operation that puts a block into the
        // index looks for mappers before it releases that mutex. So either the operation sees this
        // mapper, or the faults of this mapper see the block. See `FileCore::end_hole`.
        drop(self.dirty());
        id
    }

    /// Whether some mapping has locked a page of the block in memory.
    pub(crate) fn is_locked_in_memory(&self, block: u64) -> bool {
        self.mappers.has_locked(self.pages_in(block))
    }

    /// Revokes translations of the blocks, as `how` says. The caller waits for a grace period
    /// afterwards.
    pub(crate) fn revoke(&self, blocks: Range<u64>, how: Revoke) {
        self.mappers.revoke(self.pages_of(blocks), how);
    }

    /// Waits until no access uses a translation of the file that was revoked before this call.
    pub(crate) fn grace(&self) {
        let domain = &self.pool.domain;
        domain.synchronize_with(|owner| self.mappers.has_owner(owner));
    }

    /// Revokes translations of the blocks, as `how` says, and waits until no access uses them (I6).
    /// Does nothing if the file has no mapper.
    pub(crate) fn revoke_and_wait(&self, blocks: Range<u64>, how: Revoke) {
        if !self.mappers.is_empty() {
            self.revoke(blocks, how);
            self.grace();
        }
    }

    // --- dirty state

    /// Locks the mutex that guards both the index and the dirty index. Returns the dirty index.
    #[inline]
    #[track_caller]
    pub(crate) fn dirty(&self) -> MutexGuard<'_, Guarded<DirtyIndex>> {
        self.blocks.index.lock()
    }

    /// Whether some block is dirty, being written, or not yet synced. If none is, removes the file
    /// from the list of files with such blocks. A file enters and leaves that list under its index
    /// mutex.
    pub(crate) fn has_unwritten_blocks(&self) -> bool {
        let mut dirty = self.dirty();
        let counts = dirty.counts();
        let has_unwritten = counts.dirty + counts.behind > 0;
        if !has_unwritten && dirty.set_listed(false) {
            self.cache.list_unwritten(self, false);
        }
        has_unwritten
    }

    /// Returns the number of dirty blocks. A block that is being written counts only if it is dirty
    /// again.
    pub(crate) fn dirty_blocks(&self) -> u64 {
        self.dirty().counts().dirty
    }

    /// Whether a write of some block is under way.
    pub(crate) fn is_writing(&self) -> bool {
        self.dirty().writing() > 0
    }

    /// Whether closing has begun, which follows the drop of the last handle and mapping.
    pub(crate) fn is_closed(&self) -> bool {
        self.ready.is_closed()
    }

    /// Returns the error for a writer if there are dirty blocks and the store keeps failing to take
    /// them: the last attempt wrote none.
    pub(crate) fn unwritten_error(&self) -> Option<FileError> {
        let blocks = self.dirty_blocks();
        if blocks == 0 || !self.writes.backoff.is_on() {
            return None;
        }
        Some(FileError::Unwritten {
            file: self.id.name.clone(),
            dirty: blocks << self.block_shift(),
            source: Arc::new(self.writes.errors.latest()?),
        })
    }

    /// Makes the file at least `end` bytes long. The caller has stored the bytes, and holds the
    /// lock of the block in which they end.
    pub(crate) fn grow_to(&self, end: u64) {
        if self.blocks.size.load(Ordering::Relaxed) < end {
            let _alone = self.dirty();
            self.grow_locked(end);
        }
    }

    /// Like [`FileCore::grow_to`], with the mutex of the index held. The caller ensures that no
    /// thread cuts the file meanwhile: it holds `invalidate`, or has seen under the mutex that no
    /// thread holds it exclusively.
    #[inline]
    pub(crate) fn grow_locked(&self, end: u64) {
        if self.blocks.size.load(Ordering::Relaxed) < end {
            self.set_size(end);
        }
    }
}

impl Drop for FileCore {
    fn drop(&mut self) {
        // If the closing panicked, the file is still in the cache's list.
        self.cache.remove_file(self);
        // Closing removes every block. If it panicked before that, some blocks may still be viewed,
        // and nothing will notice when these views end. So if blocks are left, the memory is never
        // freed, and the owner number in the tags of these blocks is never reused.
        if self.blocks.index.counts().blocks > 0 {
            std::mem::forget(self.pool.clone());
        } else {
            // The owner number is freed only here: as long as the file exists, even closed, blocks
            // may be looked up by that number.
            self.pool.owners.unregister(self.id.owner);
        }
    }
}

impl Nodes for Frames {
    #[inline(always)]
    fn words(&self, node: FrameId) -> &[raw::AtomicU64; NODE_WORDS] {
        Frames::words(self, node)
    }

    fn live(&self, node: FrameId) -> u32 {
        self.meta(node).extra.load(Ordering::Relaxed) as u32
    }

    fn set_live(&self, node: FrameId, live: u32) {
        self.meta(node)
            .extra
            .store(u64::from(live), Ordering::Relaxed);
    }

    #[inline]
    fn set_tag(&self, frame: FrameId, tag: Tag) {
        self.meta(frame).set_tag(tag);
    }
}

impl std::fmt::Debug for FileCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileCore")
            .field("name", &self.id.name)
            .field("size", &self.size())
            .field("block_bytes", &self.block_bytes())
            .finish_non_exhaustive()
    }
}
