//! The lookup of a block: [`FileCore::lookup`] finds it, and [`FileCore::find_lock`] also locks it.
//! The flags ([`Get`]) say how it is locked, and how a missing block is made.
//!
//! A lookup walks the index in a section, takes a reference to the frame that it finds, and reads
//! the slot again. If the word is still the same, the frame was this block when the reference was
//! taken, and the reference keeps it so (I10). A copying read guesses the frame first, and the
//! frame's tag proves the guess (`frame::tag`). The block may be evicted or moved between the
//! lookup and the locking, so [`FileCore::find_lock`] checks the index once more under the lock
//! (P5).

use std::hint::cold_path;
use std::ops::BitOr;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::errors::FileError;
use crate::cache::index::Word;
use crate::cache::index::spare_nodes::SpareNodes;
use crate::cache::lookup::block::{AfterUse, BlockRef, INDEX_AND_USER, Locked, NewBlock};
use crate::cache::wait::Wait;
use crate::frame::{Dropped, FlagSet, HeldOf, Hold, Uses};
use crate::reclaim::{AllocMode, Evictable, PoolFrame, Refault, Retired};
use crate::sync::atomic::Ordering;
use crate::sync::{Backoff, failpoint, interleave, raw};
use crate::units::{FrameId, PAGE_SIZE, PageCount};

/// The flags of a lookup: what it does with a block that it finds, or that is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Get(u16);

impl Get {
    /// No flag.
    pub(crate) const NONE: Get = Get(0);
    /// Mark the block accessed; a new block is made with REFERENCED set, unless DONTCACHE is given.
    pub(crate) const ACCESSED: Get = Get(1 << 0);
    /// The caller will make the block dirty, so a refault does not activate it.
    pub(crate) const WRITE: Get = Get(1 << 1);
    /// Never sleep.
    pub(crate) const NOWAIT: Get = Get(1 << 2);
    /// Allocate without starting I/O.
    pub(crate) const NOIO: Get = Get(1 << 3);
    /// Wait until no write of the block is under way.
    pub(crate) const STABLE: Get = Get(1 << 4);
    /// Evict a new block after use unless it was also used in another way.
    pub(crate) const DONTCACHE: Get = Get(1 << 5);
    /// Mark a new block as read ahead of its first use.
    pub(crate) const AHEAD: Get = Get(1 << 6);
    /// Make a block to be read only if the store is known to have data there. Never ask the store.
    pub(crate) const KNOWN: Get = Get(1 << 7);

    /// Whether all flags of `other` are set.
    #[inline]
    pub(crate) fn has(self, other: Get) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns those flags of `other` that are also set in `self`.
    pub(crate) fn of(self, other: Get) -> Get {
        Get(self.0 & other.0)
    }

    /// Returns [`Get::NOWAIT`] if the caller may not wait, and no flag otherwise.
    pub(crate) fn waiting(wait: Wait) -> Get {
        match wait {
            Wait::Yes => Get::NONE,
            Wait::No => Get::NOWAIT,
        }
    }

    fn alloc_mode(self) -> AllocMode {
        if self.has(Get::NOWAIT) {
            AllocMode::NoWait
        } else if self.has(Get::NOIO) {
            AllocMode::NoIo
        } else {
            AllocMode::Wait
        }
    }
}

impl BitOr for Get {
    type Output = Get;

    fn bitor(self, other: Get) -> Get {
        Get(self.0 | other.0)
    }
}

/// The assumption about the store under which a new block is made. Until the block is in the index,
/// another thread may make the assumption false.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Basis {
    /// Nothing: the block is filled from the store afterwards, or overwritten as a whole.
    Nothing,
    /// The store has no bytes at or after this offset.
    StoredUpTo(u64),
    /// The store has a hole where the block is, as of this hole epoch of the file.
    Hole {
        /// The epoch, read before the store was called.
        epoch: u64,
    },
}

/// The length at which a copy begins to displace the lookaside table from the processor's cache.
const MUCH: usize = PAGE_SIZE / 4;

/// The result of one look at the index.
enum Looked {
    /// The block's frame. The caller owns a reference to it.
    Held(FrameId),
    Absent,
    /// The block is being evicted or moved. A second look may find another frame.
    Leaving,
}

/// A published, locked block with two references that is neither in the index nor on an LRU list.
/// Dropping this frees the block, even if a store panics while memory is reclaimed for index nodes.
struct Unlisted<'f>(&'f FileCore, FrameId);

impl Drop for Unlisted<'_> {
    fn drop(&mut self) {
        let Unlisted(file, frame) = *self;
        // No other thread has found the block through the index, but a lookup that read an old
        // index word may briefly hold a reference.
        let dropped = file.pool.uncache(frame);
        debug_assert_eq!(dropped, Dropped::Held, "our own reference is left");
        file.frames().lock_of(frame).unlock();
        file.put(frame);
    }
}

impl FileCore {
    /// Looks a block up and locks it as the flags say (see [`Get`]), if it is cached. Fails if the
    /// block's fill failed and removed it, or, with [`Get::NOWAIT`], if this would wait.
    pub(crate) fn find_lock(&self, block: u64, get: Get) -> Result<Option<Locked<'_>>, FileError> {
        while let Some(held) = self.lookup(block) {
            let Some(locked) = self.lock_found(held, get)? else {
                continue;
            };
            if get.has(Get::STABLE) {
                if get.has(Get::NOWAIT) && !locked.is_stable() {
                    return Err(self.would_block_in(block));
                }
                locked.wait_stable();
            }
            if get.has(Get::ACCESSED) {
                self.pool.mark_accessed(locked.frame());
            }
            return Ok(Some(locked));
        }
        Ok(None)
    }

    /// Returns the frame in which the block is cached now, if a guess or one look at the index
    /// finds it. The caller then owns a reference to the frame. `len` is the number of bytes that
    /// the caller will copy. `block` was inside the file when the caller read the file's size.
    #[inline(always)]
    pub(crate) fn look_up_once(&self, block: u64, len: usize) -> Option<FrameId> {
        let tag = self.blocks.index.tags().sought(block);
        let frame = match len < MUCH {
            true => self.frames().lookaside.guess(tag),
            false => self.frames().lookaside.guess_in_run(tag),
        };
        let meta = self.frames().meta(frame);
        match meta.try_hold_of(tag, Hold::try_get_cached) {
            HeldOf::Sought => return Some(frame),
            HeldOf::Other => self.put(frame),
            HeldOf::Refused => {}
        }
        cold_path();
        let Looked::Held(found) = self.look_in_index(block) else {
            return None;
        };
        self.note_found(block, found);
        Some(found)
    }

    /// Enters a block's frame, found in the index, in the lookaside table, so that the next lookup
    /// of the block guesses this frame. Does nothing in a file without tags.
    pub(crate) fn note_found(&self, block: u64, frame: FrameId) {
        let tag = self.blocks.index.tags().sought(block);
        if tag.is_somewhere() {
            self.frames().lookaside.note(tag, frame);
        }
    }

    /// Returns a reference to the block that is cached at `block` now, or `None` if there is none.
    pub(crate) fn lookup(&self, block: u64) -> Option<BlockRef<'_>> {
        let mut backoff = Backoff::new();
        loop {
            match self.look_in_index(block) {
                Looked::Held(frame) => return Some(BlockRef::new(self, frame, block)),
                Looked::Absent => return None,
                Looked::Leaving => backoff.snooze(),
            }
        }
    }

    /// Looks the block up in the index, and takes a reference to its frame.
    #[inline(never)]
    fn look_in_index(&self, block: u64) -> Looked {
        let frames = self.frames();
        let section = self.pool.domain.reader();
        let Some(slot) = self.blocks.index.slot(frames, block) else {
            return Looked::Absent;
        };
        let word = slot.load(raw::Ordering::Acquire);
        let Word::Block(frame) = Word::decode(word) else {
            return Looked::Absent;
        };
        interleave();
        failpoint!(WordRead);
        if !frames.meta(frame).hold.try_get_cached() {
            return Looked::Leaving;
        }
        let is_there = slot.load(raw::Ordering::Acquire) == word;
        drop(section);
        if !is_there {
            // The frame may belong to another block by now.
            self.put(frame);
            return Looked::Leaving;
        }
        Looked::Held(frame)
    }

    /// Whether the index has `frame` at `block`. Exact while the caller holds the frame and its
    /// lock.
    pub(crate) fn is_still(&self, block: u64, frame: FrameId) -> bool {
        let _section = self.pool.domain.reader();
        self.blocks.index.load(self.frames(), block) == Word::Block(frame)
    }

    /// Locks a found block. Returns `None` if the block has left the index, or the error of its
    /// fill if that failed. With [`Get::NOWAIT`], fails if the lock is taken.
    fn lock_found<'f>(
        &'f self,
        held: BlockRef<'f>,
        get: Get,
    ) -> Result<Option<Locked<'f>>, FileError> {
        if get.has(Get::NOWAIT) {
            if !self.frames().lock_of(held.frame).try_lock() {
                return Err(self.would_block_in(held.block));
            }
        } else {
            if !held.is_up_to_date() {
                self.wait_made(&held);
            }
            self.frames().lock_of(held.frame).lock();
        }
        if !self.is_still(held.block, held.frame) {
            self.frames().lock_of(held.frame).unlock();
            self.check_fill_error(&held)?;
            return Ok(None);
        }
        Ok(Some(Locked::new(held)))
    }

    /// Waits until the fill of a block has ended. If it failed, returns its error, except where
    /// `check_fill_error` returns none.
    pub(crate) fn wait_filled(&self, held: &BlockRef<'_>) -> Result<(), FileError> {
        self.wait_made(held);
        if held.is_up_to_date() {
            Ok(())
        } else {
            self.check_fill_error(held)
        }
    }

    /// Returns the error if a fill failed and removed this held block. Returns no error if the
    /// files that the store is made of had no memory: the caller then fills the block itself, and
    /// makes room for that. A fill that was given up leaves no error either.
    fn check_fill_error(&self, held: &BlockRef<'_>) -> Result<(), FileError> {
        if held.is_up_to_date() {
            return Ok(());
        }
        let errors = self.blocks.fill_errors.lock();
        match errors.iter().find(|(frame, _)| *frame == held.frame) {
            Some((_, error)) if !self.is_short_below(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Makes a locked block, which the caller fills as a whole. Returns `None` if another thread
    /// made one first.
    pub(crate) fn create(&self, block: u64, get: Get) -> Result<Option<NewBlock<'_>>, FileError> {
        self.create_on(block, get, Basis::Nothing)
    }

    /// Like [`FileCore::create`], but also returns `None` if `basis` is no longer true.
    pub(crate) fn create_on(
        &self,
        block: u64,
        get: Get,
        basis: Basis,
    ) -> Result<Option<NewBlock<'_>>, FileError> {
        let mode = get.alloc_mode();
        let owned = self.alloc(mode)?;
        let mut spares = SpareNodes::new(&self.pool, self.id.group.id());
        self.create_in(block, get, basis, owned, &mut spares)
    }

    /// Like [`FileCore::create_on`], in a frame that is already charged to the file's group. Nodes
    /// that `spares` lacks are allocated as `get` says.
    pub(crate) fn create_in(
        &self,
        block: u64,
        get: Get,
        basis: Basis,
        owned: PoolFrame<'_>,
        spares: &mut SpareNodes<'_>,
    ) -> Result<Option<NewBlock<'_>>, FileError> {
        let referenced = get.has(Get::ACCESSED) && !get.has(Get::DONTCACHE);
        let flags = match referenced {
            true => FlagSet::LOCKED | FlagSet::REFERENCED,
            false => FlagSet::LOCKED,
        };
        let frame = self.publish(owned, block, flags, INDEX_AND_USER);
        if get.has(Get::AHEAD) {
            self.frames().meta(frame).uses.set(Uses::AHEAD);
        }
        if !self.insert(block, frame, get, basis, spares)? {
            return Ok(None);
        }
        let mut held = BlockRef::new(self, frame, block);
        if get.has(Get::DONTCACHE) {
            held.after = AfterUse::DropUnlessWanted;
        }
        Ok(Some(NewBlock::new(held)))
    }

    /// Whether the basis of a new block still holds. Called under the index mutex, just before the
    /// block is inserted. If another block was inserted there, written and evicted in the meantime,
    /// the hole epoch advanced before that block left the index.
    pub(crate) fn holds(&self, basis: Basis) -> bool {
        match basis {
            Basis::Nothing => true,
            Basis::StoredUpTo(end) => self.blocks.stored.load(Ordering::Acquire) <= end,
            Basis::Hole { epoch } => self.blocks.hole_epoch.load(Ordering::SeqCst) == epoch,
        }
    }

    /// Puts a published, locked block with two references (the index's and the caller's) into the
    /// index and on the LRU list. The block is freed instead if another one is there, the basis
    /// does not hold, no node can be allocated, or the file is closed. In the first two cases,
    /// returns false; the last two are errors.
    fn insert(
        &self,
        block: u64,
        frame: FrameId,
        get: Get,
        basis: Basis,
        spares: &mut SpareNodes<'_>,
    ) -> Result<bool, FileError> {
        let unlisted = Unlisted(self, frame);
        let mut shadows = Vec::new();
        loop {
            let mut writer = self.blocks.index.write();
            if self.is_closed() {
                return Err(self.closed());
            }
            if !self.holds(basis) {
                return Ok(false);
            }
            let nodes = spares.nodes();
            let inserted = writer.insert(self.frames(), block, &[frame], nodes, &mut shadows);
            drop(writer);
            match inserted.need_nodes {
                Some(count) => spares.ensure(count, get.alloc_mode())?,
                None if inserted.blocks > 0 => break,
                None => return Ok(false),
            }
        }
        std::mem::forget(unlisted);
        self.note_refault(frame, shadows.pop(), get);
        self.pool.lru_add(frame);
        Ok(true)
    }

    /// Puts a block that comes back soon after its eviction on the active list, unless it is only
    /// to be written (P10), is not to stay, or is read ahead.
    fn note_refault(&self, frame: FrameId, shadow: Option<u64>, get: Get) {
        let Some(evicted_at) = shadow else {
            return;
        };
        let decision = self.count_refault(evicted_at);
        // A block that is read ahead is not used yet.
        let is_use = !get.has(Get::WRITE) && !get.has(Get::DONTCACHE) && !get.has(Get::AHEAD);
        if decision == Refault::Activate && is_use {
            self.frames().meta(frame).flags.set(FlagSet::ACTIVE);
            let pages = PageCount(self.block_pages());
            self.pool.count_active_refault(pages);
        }
    }

    /// Counts the refault of a block, and decides on which LRU list the block belongs.
    pub(crate) fn count_refault(&self, evicted_at: u64) -> Refault {
        count(&self.counters.refaulted, 1);
        let pages = PageCount(self.block_pages());
        self.pool.refault_decision(evicted_at, pages)
    }

    /// Removes a block from the index, and from its LRU list unless it is viewed. The caller holds
    /// the block's lock, and drops the index's reference itself: afterwards by `uncache`, or before
    /// by `freeze`.
    pub(crate) fn unlink(&self, block: u64, frame: FrameId, shadow: Option<u64>) {
        let mut freed = Vec::new();
        self.blocks
            .index
            .write()
            .remove(self.frames(), block, frame, shadow, &mut freed);
        if self.frames().meta(frame).hold.load().views() > 0 {
            // From here on only views keep the block. It stays on a list, so that the error of a
            // full group can report what holds the group's memory.
            self.pool.lru_set(frame, Evictable::No);
        } else {
            self.pool.lru_remove(frame);
        }
        self.retire_nodes(freed);
    }

    /// Retires unlinked nodes, which are freed after a grace period.
    pub(crate) fn retire_nodes(&self, nodes: Vec<FrameId>) {
        for node in nodes {
            let dropped = self.frames().meta(node).hold.put();
            assert_eq!(
                dropped,
                Dropped::Last,
                "an index node is held by its index alone"
            );
            self.pool.retire(Retired::Frame(node));
        }
    }
}
