//! The state of one cached file, in components, and the small steps of which every operation is
//! made.

pub(crate) mod closing;
pub(crate) mod counters;
pub(crate) mod gate;
pub(crate) mod handle;
pub(crate) mod locks;
pub(crate) mod ready_list;
pub(crate) mod requests;
pub(crate) mod store_handle;
pub(crate) mod store_probe;
pub(crate) mod store_version;
mod validate;
mod version_check;

use std::io;
use std::ops::Range;

use crate::cache::core::closing::Closing;
use crate::cache::core::counters::FileCounters;
use crate::cache::core::locks::FileLocks;
use crate::cache::core::ready_list::ReadyList;
use crate::cache::core::requests::Requests;
use crate::cache::core::store_handle::{FileStore, StoreHandle};
use crate::cache::core::store_probe::{MAX_SIZE, StoreProbe};
use crate::cache::core::store_version::StoreVersion;
use crate::cache::dirty::index::{Dirty, DirtyIndex, WriteOrder, WriteReason, WriteRules};
use crate::cache::dirty::state::WriteState;
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::file::options::{FileAccess, FileOptions};
use crate::cache::index::{Guarded, Index, Nodes};
use crate::cache::map::mappers::{MapperId, MapperList, Mappers, Revoke};
use crate::cache::read::holes::{Extents, VisibleHoles};
use crate::cache::read::read_ahead::Stream;
use crate::cache::service::Cache;
use crate::frame::{Dropped, FlagSet, FrameOffset, Frames, TAGGED_BYTES, Tag, Tags};
use crate::group::{Group, GroupId};
use crate::reclaim::{Owner, OwnerId, Pool};
use crate::stats::Event;
use crate::store::{Accepted, Identity, StoreError};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, OnceLock, Rank, Weak};
use crate::units::{FrameId, PAGE_SHIFT, PageCount};

/// One cached file. Kept alive by handles, mappings, views and reclaim; closed when the last handle
/// and mapping go ([`FileInner`](crate::cache::FileInner)).
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
    pub(crate) requests: Requests,
    pub(crate) ready: ReadyList,
    /// Read-ahead of mappings, which have no handle.
    pub(crate) stream: Stream,
    pub(crate) counters: FileCounters,
    pub(crate) closing: Closing,
    /// What ends with the file: its place in the table of open files, the charge for its heap.
    ending: OnceLock<Box<dyn Send + Sync>>,
}

/// The properties of a file that never change.
pub(crate) struct FileIdentity {
    /// Its place among the cache's files.
    pub(crate) number: u64,
    /// The number frames carry.
    pub(crate) owner: OwnerId,
    /// The name as it was given.
    pub(crate) own_name: Arc<str>,
    /// The same in messages.
    pub(crate) name: Arc<str>,
    /// The store's own name for itself.
    pub(crate) identity: Option<Identity>,
    /// Keeps the group; pays for blocks and index nodes.
    pub(crate) group: Group,
    /// Whether other groups may open it, too.
    pub(crate) shared: bool,
    /// The group and those above it, for the dirty limits.
    pub(crate) groups: Vec<GroupId>,
    /// log2 of the pages in a block.
    pub(crate) order: u8,
    /// log2 of the bytes in a block.
    block_shift: u32,
    /// The last byte in a block.
    last_in_block: u64,
    pub(crate) access: FileAccess,
    pub(crate) write_order: WriteOrder,
    /// Whether accepted writes have to be kept until a sync.
    pub(crate) accepted: Accepted,
}

/// A file's blocks, its length, and its known holes.
pub(crate) struct Blocks {
    /// The blocks, and under the same mutex which of them are dirty: a new block of a writer enters
    /// both at once.
    pub(crate) index: Index<DirtyIndex>,
    /// The file's length in bytes. Grows under the mutex of `index`; shrinks, and is set by
    /// `set_len`, under `invalidate`, exclusive.
    pub(crate) size: AtomicU64,
    /// The length of the store's bytes: nothing at or after it is read from there. Changes as
    /// `size` does, and after a write.
    pub(crate) stored: AtomicU64,
    /// Moves when something may have stopped being a hole, under the mutex of `index`: see
    /// [`FileCore::hole_still`].
    pub(crate) hole_epoch: AtomicU64,
    /// Which blocks may be mapped as holes.
    pub(crate) visible_holes: VisibleHoles,
    /// The known holes of the store. A leaf lock.
    pub(crate) extents: Mutex<Extents>,
    /// The last block has old bytes past the end of the file, which are viewed: to be cleared
    /// before the file grows.
    pub(crate) tail_left: AtomicBool,
    /// Why blocks that waiters still hold could not be filled (P20). A leaf lock.
    pub(crate) fill_errors: Mutex<Vec<(FrameId, FileError)>>,
    /// Readers that may remember blocks, and hold each once.
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
    /// A file with nothing cached. The store is not called.
    pub(crate) fn new(
        cache: &Arc<Cache>,
        asked: StoreProbe,
        options: &FileOptions,
    ) -> Arc<FileCore> {
        let StoreProbe {
            store,
            own_name,
            name,
            order,
            len,
            identity,
            accepted,
            uses_files,
            limits,
            version,
        } = asked;
        let pool = cache.pool().clone();
        let group = options
            .group
            .clone()
            .unwrap_or_else(|| cache.root_group().clone());
        let groups = pool.groups.path(group.id()).collect();
        let tags_of = |owner: OwnerId| match order {
            0 if len <= TAGGED_BYTES => Tags::of_file(owner.0),
            _ => Tags::none(),
        };
        let payer = group.id().0.into();
        let block_shift = PAGE_SHIFT + u32::from(order);
        let number = cache.next_file();
        let core = Arc::new_cyclic(|me: &Weak<FileCore>| {
            let owner = pool.register_owner(me.clone() as Weak<dyn Owner>);
            FileCore {
                me: me.clone(),
                cache: cache.clone(),
                pool,
                id: FileIdentity {
                    number,
                    owner,
                    own_name,
                    name,
                    identity,
                    group,
                    shared: options.shared,
                    groups,
                    order,
                    block_shift,
                    last_in_block: (1 << block_shift) - 1,
                    access: options.access,
                    write_order: options.write_order,
                    accepted,
                },
                store: FileStore::new(store, uses_files, &limits, block_shift),
                version: StoreVersion::new(version, cache.pool().now()),
                blocks: Blocks::new(len, tags_of(owner)),
                writes: WriteState::default(),
                locks: FileLocks::default(),
                mappers: MapperList::default(),
                requests: Requests::new(cache.workers().lane(payer, limits.requests)),
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

    /// Keeps something until the file ends.
    pub(crate) fn keep(&self, ending: Box<dyn Send + Sync>) {
        let _once = self.ending.set(ending);
    }

    // --- sizes and numbers

    /// The file's length in bytes.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        // Acquire: pairs with the release when the file grew; the bytes were written before.
        self.blocks.size.load(Ordering::Acquire)
    }

    /// The file's length is `size` bytes from now on. Release: pairs with the load in `size`.
    #[inline]
    pub(crate) fn set_size(&self, size: u64) {
        if size > TAGGED_BYTES {
            self.blocks.index.tags().end();
        }
        self.blocks.size.store(size, Ordering::Release);
    }

    /// Whether its frames are those of this memory.
    pub(crate) fn is_in(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// The name in messages.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.id.name
    }

    /// Whether the file may be written.
    pub(crate) fn access(&self) -> FileAccess {
        self.id.access
    }

    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        &self.pool.frames
    }

    /// log2 of the block size in bytes.
    #[inline]
    pub(crate) fn block_shift(&self) -> u32 {
        self.id.block_shift
    }

    /// The block size in bytes.
    #[inline]
    pub(crate) fn block_bytes(&self) -> u64 {
        self.id.last_in_block + 1
    }

    /// The offset in its block of a byte of the file.
    #[inline]
    pub(crate) fn inside_block(&self, offset: u64) -> u64 {
        offset & self.id.last_in_block
    }

    /// The bytes from `offset` to the end of its block.
    pub(crate) fn left_in_block(&self, offset: u64) -> usize {
        (self.block_bytes() - self.inside_block(offset)) as usize
    }

    /// Pages in a block.
    pub(crate) fn block_pages(&self) -> u64 {
        1 << self.id.order
    }

    /// The file's pages in a range of blocks.
    pub(crate) fn pages_of(&self, blocks: Range<u64>) -> Range<u64> {
        blocks.start << self.id.order..blocks.end.saturating_mul(self.block_pages())
    }

    /// The blocks a byte range touches.
    pub(crate) fn blocks_of(&self, bytes: Range<u64>) -> Range<u64> {
        if bytes.is_empty() {
            return 0..0;
        }
        bytes.start >> self.block_shift()..((bytes.end - 1) >> self.block_shift()) + 1
    }

    /// The blocks that some pages of the file are in.
    pub(crate) fn blocks_of_pages(&self, pages: &Range<u64>) -> Range<u64> {
        pages.start >> self.id.order..pages.end.div_ceil(self.block_pages())
    }

    /// The pages of a block.
    pub(crate) fn pages_in(&self, block: u64) -> Range<u64> {
        self.pages_of(block..block + 1)
    }

    /// The first page past the end of the file. A page before it whose block is locked is the
    /// file's until it is unlocked: a cut shortens the file before it locks the blocks.
    pub(crate) fn end_page(&self) -> u64 {
        let size = self.size();
        match self.blocks.tail_left.load(Ordering::Acquire) {
            true => size >> PAGE_SHIFT,
            false => size.div_ceil(1 << PAGE_SHIFT),
        }
    }

    /// The number after that of the last block that a file can have.
    pub(crate) fn end_block(&self) -> u64 {
        (MAX_SIZE >> self.block_shift()) + 1
    }

    /// The lowest limit of the groups that pay for the file, in bytes.
    pub(crate) fn nearest_limit(&self) -> u64 {
        let limits = self.id.groups.iter();
        let limits = limits.filter_map(|group| self.pool.groups.max(*group));
        limits.min().map_or(u64::MAX, PageCount::bytes)
    }

    /// Where the file's bytes are.
    pub(crate) fn store(&self) -> Result<Arc<StoreHandle>, FileError> {
        self.store.get().ok_or_else(|| self.closed())
    }

    // --- errors

    pub(crate) fn past_end(&self, offset: u64, len: u64, size: u64) -> FileError {
        FileError::PastEnd {
            file: self.id.name.clone(),
            offset,
            len,
            size,
        }
    }

    /// Turns a store's failure into an error of this file.
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

    /// Drops a reference on a block, and the block with the last one.
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
        // An operation that puts a block into the index looks for mappers before it releases this
        // mutex: it sees this one, or the faults of this one see the block. See
        // `FileCore::end_hole`.
        drop(self.dirty());
        id
    }

    /// Removes a mapper, whose translations of this file are gone.
    pub(crate) fn remove_mapper(&self, id: MapperId) {
        self.mappers.remove(id);
    }

    /// Whether a mapping keeps a page of the block in memory.
    pub(crate) fn is_locked_in_memory(&self, block: u64) -> bool {
        self.mappers.has_locked(self.pages_in(block))
    }

    /// Takes translations of whole blocks away. A grace period has to follow.
    pub(crate) fn revoke(&self, blocks: Range<u64>, how: Revoke) {
        self.mappers.revoke(self.pages_of(blocks), how);
    }

    /// Takes the right to store to pages away. A caller that needs more than a new fault on the
    /// next store waits for a grace period.
    pub(crate) fn revoke_write(&self, pages: Range<u64>) {
        self.mappers.revoke(pages, Revoke::Write);
    }

    /// Waits until no access uses a translation of the file that was taken away before.
    pub(crate) fn grace(&self) {
        let domain = &self.pool.domain;
        domain.synchronize_with(|owner| self.mappers.has_owner(owner));
    }

    /// Takes all translations of whole blocks away, and waits until none is in use (I6).
    pub(crate) fn revoke_and_wait(&self, blocks: Range<u64>, how: Revoke) {
        if !self.mappers.is_empty() {
            self.revoke(blocks, how);
            self.grace();
        }
    }

    // --- dirty state

    /// The dirty index, locked, and with it the index.
    #[inline]
    #[track_caller]
    pub(crate) fn dirty(&self) -> MutexGuard<'_, Guarded<DirtyIndex>> {
        self.blocks.index.lock()
    }

    /// The rules for a writer with this reason, as they are now.
    pub(crate) fn rules(&self, reason: WriteReason) -> WriteRules {
        let released = self.writes.barrier.released();
        WriteRules {
            order: self.id.write_order,
            released,
            reason,
        }
    }

    /// Notes that a block's bytes are newer than the store's. The caller holds the block's lock and
    /// has changed, or is about to let others change, the bytes.
    pub(crate) fn mark_dirty(&self, block: u64, frame: FrameId) {
        let ordered = self.id.write_order == WriteOrder::Ordered;
        let flags = &self.frames().meta(frame).flags;
        if flags.load().contains(FlagSet::DIRTY) && !ordered {
            return;
        }
        self.mark_dirty_as(self.dirty_entry(), block, frame);
    }

    /// The entry of the dirty index for a write that happens now.
    #[inline]
    pub(crate) fn dirty_entry(&self) -> Dirty {
        Dirty {
            since: self.pool.now(),
            barrier: match self.id.write_order {
                WriteOrder::Ordered => self.writes.barrier.current(),
                WriteOrder::Background | WriteOrder::OnSync => 0,
            },
        }
    }

    /// [`FileCore::mark_dirty`] with an entry of the caller's.
    pub(crate) fn mark_dirty_as(&self, entry: Dirty, block: u64, frame: FrameId) {
        let flags = &self.frames().meta(frame).flags;
        let mut dirty = self.dirty();
        if !flags.test_and_set(FlagSet::DIRTY).contains(FlagSet::DIRTY) {
            self.count_dirty(1);
        }
        dirty.insert(block, entry);
    }

    /// Forgets that a block is dirty, or not synced: it is being removed from the file. The caller
    /// holds the block's lock.
    pub(crate) fn forget_dirty(&self, block: u64, frame: FrameId) {
        let flags = &self.frames().meta(frame).flags;
        if self.id.accepted == Accepted::Kept && !flags.load().contains(FlagSet::DIRTY) {
            return;
        }
        let mut dirty = self.dirty();
        if flags
            .test_and_clear(FlagSet::DIRTY)
            .contains(FlagSet::DIRTY)
        {
            self.count_clean(1);
        }
        dirty.remove(block);
        self.count_behind(&mut dirty);
    }

    /// Counts this many more dirty blocks. Under the mutex of the index, as are all changes of
    /// DIRTY.
    #[inline]
    pub(crate) fn count_dirty(&self, blocks: usize) {
        let pages = (blocks as u64) << self.id.order;
        self.cache.count_dirty(&self.id.groups, pages);
        self.pool.counters.add(Event::PgDirtied, pages);
    }

    /// Counts this many dirty blocks less, under the same mutex.
    pub(crate) fn count_clean(&self, blocks: usize) {
        let pages = (blocks as u64) << self.id.order;
        self.cache.count_clean(&self.id.groups, pages);
        self.pool.counters.add(Event::PgCleaned, pages);
    }

    /// Counts the blocks that are not dirty and yet stay, after a change of them.
    pub(crate) fn count_behind(&self, dirty: &mut DirtyIndex) {
        let (now, before) = dirty.recount_behind();
        if now != before {
            let [now, before] = [now, before].map(|blocks| blocks << self.id.order);
            self.cache.count_behind(&self.id.groups, now, before);
        }
    }

    /// Dirty blocks, those being written not counted.
    pub(crate) fn dirty_blocks(&self) -> u64 {
        self.dirty().len() as u64
    }

    /// Whether a write of some block is under way.
    pub(crate) fn is_writing(&self) -> bool {
        self.dirty().writing() > 0
    }
}

impl Drop for FileCore {
    fn drop(&mut self) {
        // If it panicked when it was closed, it is among the files yet.
        self.cache.remove_file(self);
        // Closing removes every block. If it panicked before that, views may still show one, and
        // nothing will notice when they are gone: the memory is never freed, and the number in
        // their tags is never reused.
        if self.blocks.index.counts().blocks > 0 {
            std::mem::forget(self.pool.clone());
        } else {
            // Not earlier: a holder of the file, closed or not, looks blocks up by its number.
            self.pool.unregister_owner(self.id.owner);
        }
    }
}

impl Nodes for Frames {
    #[inline(always)]
    fn words_at(
        &self,
        node: FrameOffset,
    ) -> Option<&[crate::sync::raw::AtomicU64; crate::cache::index::NODE_WORDS]> {
        Frames::words_at(self, node)
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
