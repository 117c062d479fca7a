//! Guards on one block of a file: held, locked, or newly made.

use std::fmt;
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::errors::FileError;
use crate::frame::{Bit, Dropped, Filling, FlagSet, HoldState, Kind, Meta, ReadEnd};
use crate::reclaim::PoolFrame;
use crate::sync::failpoint;
use crate::units::{FrameId, PAGE_SHIFT, PAGE_SIZE};

/// A reference to a block that is, or recently was, in its file's index.
#[derive(Debug)]
pub(crate) struct BlockRef<'f> {
    pub(crate) file: &'f FileCore,
    pub(crate) frame: FrameId,
    pub(crate) block: u64,
    pub(crate) after: AfterUse,
}

/// Whether a block is evicted when its reference is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AfterUse {
    /// The block stays cached.
    Keep,
    /// The block is evicted unless it was also used in another way (DONTCACHE).
    DropUnlessWanted,
}

impl<'f> BlockRef<'f> {
    /// Takes over a reference that the caller has taken.
    pub(crate) fn new(file: &'f FileCore, frame: FrameId, block: u64) -> BlockRef<'f> {
        BlockRef {
            file,
            frame,
            block,
            after: AfterUse::Keep,
        }
    }

    /// Returns the metadata of the block's first frame.
    pub(crate) fn meta(&self) -> &'f Meta {
        self.file.frames().meta(self.frame)
    }

    /// Whether the block's frames hold its bytes.
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.meta().flags.load().contains(FlagSet::UPTODATE)
    }

    /// Whether the block is locked by the operation that made it, and has no bytes yet.
    pub(crate) fn is_being_filled(&self) -> bool {
        let flags = self.meta().flags.load();
        flags.contains(FlagSet::LOCKED)
            && !flags.contains(FlagSet::UPTODATE)
            && !flags.contains(FlagSet::ERROR)
    }

    /// Returns the frame and the block's number. The caller takes over the reference.
    pub(crate) fn into_parts(self) -> (FrameId, u64) {
        debug_assert_eq!(self.after, AfterUse::Keep, "nobody would evict it");
        let parts = (self.frame, self.block);
        std::mem::forget(self);
        parts
    }

    /// Marks the block to be evicted after this use, unless it was also used in another way.
    pub(crate) fn drop_after_use(mut self) -> BlockRef<'f> {
        self.after = AfterUse::DropUnlessWanted;
        self
    }

    /// Lets the block stay cached after this use.
    pub(crate) fn keep_after_use(mut self) -> BlockRef<'f> {
        self.after = AfterUse::Keep;
        self
    }

    /// Waits until `bit` of the block is clear.
    pub(crate) fn wait(&self, bit: Bit) {
        self.file.frames().lock_of(self.frame).wait(bit, None);
    }
}

impl Drop for BlockRef<'_> {
    fn drop(&mut self) {
        self.file.put(self.frame);
        if self.after == AfterUse::DropUnlessWanted {
            self.file.drop_unless_wanted(self.frame, self.block);
        }
    }
}

/// A locked block that is up to date and in its file's index: no other thread removes, moves or
/// replaces it. Dropping this unlocks the block.
#[derive(Debug)]
pub(crate) struct Locked<'f> {
    /// `None` once the guard was consumed, and no longer has the lock.
    held: Option<BlockRef<'f>>,
}

impl<'f> Locked<'f> {
    /// Takes over the lock of a block, which the caller has acquired.
    pub(crate) fn new(held: BlockRef<'f>) -> Locked<'f> {
        debug_assert!(
            held.meta()
                .flags
                .load()
                .contains(FlagSet::LOCKED | FlagSet::UPTODATE)
        );
        Locked { held: Some(held) }
    }

    fn held(&self) -> &BlockRef<'f> {
        self.held
            .as_ref()
            .expect("taken by those who consume the guard alone")
    }

    /// Returns the block's first frame, which has the block's hold word and flags.
    pub(crate) fn frame(&self) -> FrameId {
        self.held().frame
    }

    /// Returns the metadata of the block's first frame.
    pub(crate) fn meta(&self) -> &'f Meta {
        self.held().meta()
    }

    /// Returns the block's number in its file.
    pub(crate) fn block(&self) -> u64 {
        self.held().block
    }

    /// Whether no write of the block is under way.
    pub(crate) fn is_stable(&self) -> bool {
        !self.meta().flags.load().contains(FlagSet::WRITEBACK)
    }

    /// Waits until no write of the block is under way.
    pub(crate) fn wait_stable(&self) {
        if !self.is_stable() {
            self.held().wait(Bit::Writeback);
        }
    }

    /// Notes that a call has changed bytes of the block in place, so that code translated from them
    /// is stale. Only mapped pages matter: a page that is not mapped now can be mapped only by a
    /// later read-modify-write of the hold word, and then shows the new bytes.
    #[inline]
    pub(crate) fn written_in_place(&self, inside: &Range<usize>) {
        if self.meta().hold.load().mapped() > 0 {
            let file = self.held().file;
            let first = file.pages_in(self.block()).start;
            let past_last = inside.end.div_ceil(PAGE_SIZE) as u64;
            let pages = first + (inside.start >> PAGE_SHIFT) as u64..first + past_last;
            let _section = file.pool.domain.reader();
            file.pool.watched.stored(file.address(), pages);
        }
    }

    /// Takes the block's reference from the guard. The guard then does nothing when it is dropped.
    fn take(&mut self) -> BlockRef<'f> {
        self.held
            .take()
            .expect("taken by those who consume the guard alone")
    }

    /// Unlocks the block and returns its reference.
    pub(crate) fn unlock(mut self) -> BlockRef<'f> {
        let held = self.take();
        held.file.frames().lock_of(held.frame).unlock();
        held
    }

    /// Unlocks a frozen block. Freezing has already dropped the guard's reference.
    pub(crate) fn unlock_frozen(self) {
        std::mem::forget(self.unlock());
    }

    /// Returns the frame and the block's number, for a guard of another type that takes over the
    /// lock and the reference.
    pub(crate) fn into_parts(mut self) -> (FrameId, u64) {
        self.take().into_parts()
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            held.file.frames().lock_of(held.frame).unlock();
        }
    }
}

/// A block that was just made: in the index, locked, not up to date. If this is dropped without
/// being finished, the block is removed from the index.
pub(crate) struct NewBlock<'f> {
    /// The block, and the right to change its bytes. `None` once it is finished, has failed, or was
    /// given to a request.
    made: Option<(BlockRef<'f>, Filling<'f>)>,
}

impl<'f> NewBlock<'f> {
    pub(crate) fn new(held: BlockRef<'f>) -> NewBlock<'f> {
        let filling = Filling::adopt(held.file.frames(), held.frame);
        NewBlock {
            made: Some((held, filling)),
        }
    }

    fn held(&self) -> &BlockRef<'f> {
        let made = self.made.as_ref();
        &made.expect("a new block is held until it is finished").0
    }

    fn take(&mut self) -> (BlockRef<'f>, Filling<'f>) {
        let made = self.made.take();
        made.expect("a new block is held until it is finished")
    }

    pub(crate) fn block(&self) -> u64 {
        self.held().block
    }

    pub(crate) fn frame(&self) -> FrameId {
        self.held().frame
    }

    /// Returns the block's bytes. At first they are whatever the frame held before.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.made.as_mut().expect("not finished").1.bytes_mut()
    }

    /// Takes back a block that [`NewBlock::into_frame`] gave to a request.
    pub(crate) fn adopt(file: &'f FileCore, frame: FrameId, block: u64) -> NewBlock<'f> {
        NewBlock::new(BlockRef::new(file, frame, block))
    }

    /// Returns the block's first frame, for a request that takes over the right to change the
    /// block's bytes, and the reference.
    pub(crate) fn into_frame(mut self) -> FrameId {
        let (held, _) = self.take();
        let frame = held.frame;
        std::mem::forget(held);
        frame
    }

    /// Takes another reference to the block. Returns `None` if the reference count is at its limit.
    pub(crate) fn reference(&self) -> Option<BlockRef<'f>> {
        let held = self.held();
        let taken = held.meta().hold.try_get_cached();
        taken.then(|| BlockRef::new(held.file, held.frame, held.block))
    }

    /// Marks the block up to date and unlocks it, so that waiters continue.
    pub(crate) fn finish(self) -> BlockRef<'f> {
        let held = self.finish_unnoted();
        held.file.ready.filled(held.block..held.block + 1);
        held
    }

    /// Like [`NewBlock::finish`], but the caller must notify the futures that wait for the block.
    pub(crate) fn finish_unnoted(mut self) -> BlockRef<'f> {
        let (held, filling) = self.take();
        filling.finish();
        held.file.note_made();
        held
    }

    /// Removes the block, which could not be filled. Its waiters get `error` (P20).
    pub(crate) fn fail(mut self, error: &FileError) {
        self.abandon(Some(error));
    }

    fn abandon(&mut self, error: Option<&FileError>) {
        let Some((mut held, _)) = self.made.take() else {
            return;
        };
        held.after = AfterUse::Keep;
        let (file, frame, block) = (held.file, held.frame, held.block);
        if let Some(error) = error {
            file.blocks.fill_errors.lock().push((frame, error.clone()));
        }
        file.unlink(block, frame, None);
        let dropped = file.pool.uncache(frame);
        debug_assert_eq!(dropped, Dropped::Held, "our own reference is left");
        file.frames().lock_of(frame).end_read(ReadEnd::Failed);
        file.note_made();
        drop(held);
        failpoint!(FillAbandoned);
        file.ready.filled(block..block + 1);
    }
}

impl Drop for NewBlock<'_> {
    fn drop(&mut self) {
        // After a panic of the store, or if the operation gave up, waiters fill the block
        // themselves.
        self.abandon(None);
    }
}

impl fmt::Debug for NewBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewBlock({:?})", self.made.as_ref().map(|made| &made.0))
    }
}

impl FileCore {
    /// Publishes a frame as a block of this file. No lookup finds the block until it is in the
    /// index.
    #[inline(always)]
    pub(crate) fn publish(
        &self,
        mut frame: PoolFrame<'_>,
        block: u64,
        flags: FlagSet,
        hold: HoldState,
    ) -> FrameId {
        // No other thread can reach the frame yet, so plain stores suffice (P2).
        frame.set_flags(flags);
        frame.set_kind(Kind::Cached);
        frame.set_owner(self.id.owner.0);
        frame.set_index(block);
        frame.publish(hold)
    }
}

/// The hold word of a block with two references: the index's and one user's.
pub(crate) const INDEX_AND_USER: HoldState = HoldState::cached(2);
