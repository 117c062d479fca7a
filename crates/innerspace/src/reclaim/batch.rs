//! Add-batches: a new frame waits with fifteen others before the list lock is taken for all of
//! them.
//!
//! A thread has the batch of its number, to which it alone adds, with plain stores; threads beyond
//! those share a few, each with a mutex. `sync::pending` has the protocol: the mark is
//! `Place::Batch`, and the lock under which it is changed back is that of the lists of the frame's
//! group. So a frame is taken out of a batch, or changed there, as it would be on a list; its
//! number stays behind, and means nothing.
//!
//! A frame that was freed may wait again, for another group, while somebody drains for its number's
//! sake: that is told by `frame::listing`.

use super::lru::{Kept, Lru, Place, list_by_flags};
use crate::frame::{Frames, Meta};
use crate::group::GroupId;
use crate::stats::thread_number;
use crate::sync::owned::OWNED;
use crate::sync::pending::{Pending, Room};
use crate::sync::{Mutex, MutexGuard, Rank};
use crate::units::FrameId;

/// Batches that all further threads share.
const SHARED: usize = 4;

/// Batches of one pool.
pub(super) const BATCHES: usize = OWNED + SHARED;

/// Frames of a full batch.
pub(super) const BATCH_LEN: usize = 16;

/// Frames on their way to a list, on a line of their own with its neighbour.
#[repr(align(128))]
pub(super) struct Batch {
    frames: Pending<BATCH_LEN>,
    /// Of one that threads share: held by who adds.
    adding: Mutex<()>,
}

/// The number of the calling thread's batch.
#[inline]
pub(super) fn own_batch() -> u8 {
    match thread_number() {
        own if own < OWNED => own as u8,
        many => (OWNED + many % SHARED) as u8,
    }
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch {
            frames: Pending::new(),
            adding: Mutex::ranked(Rank::Batch, ()),
        }
    }

    /// Who adds to the batch with this number is alone until the result is dropped.
    #[inline(always)]
    fn begin(&self, number: u8) -> Option<MutexGuard<'_, ()>> {
        (usize::from(number) >= OWNED).then(|| self.adding.lock())
    }

    /// The frames that may wait here, for `validate`.
    pub(super) fn waiting(&self) -> impl Iterator<Item = FrameId> {
        self.frames.iter().map(FrameId)
    }
}

/// Puts frames that wait on their lists.
struct Filling<'l> {
    metas: &'l [Meta],
    kept: Kept<'l>,
}

impl<'l> Filling<'l> {
    fn new(lru: &'l Lru, frames: &'l Frames) -> Filling<'l> {
        Filling {
            metas: frames.metas(),
            kept: Kept::new(lru),
        }
    }

    /// Puts a frame on its list if it waits in the batch with this number.
    #[inline(always)]
    fn list(&mut self, id: FrameId, number: u8) {
        let meta = &self.metas[id.index()];
        let seen = meta.lru.load();
        if Place::of(seen) == Place::Batch(number)
            && let Some(locked) = self.kept.lock_at(meta, seen)
        {
            locked.insert(self.metas, id, list_by_flags(meta));
        }
    }
}

impl Lru {
    /// Adds a frame that is in no place to a batch; a full batch is drained.
    #[inline]
    pub(super) fn add(&self, frames: &Frames, id: FrameId, number: u8) {
        let meta = frames.meta(id);
        assert_eq!(
            Place::load(meta),
            Place::None,
            "{id:?} is added to the LRU twice"
        );
        match usize::from(number) < OWNED {
            true => self.add_alone(frames, id, number),
            false => self.add_to_shared(frames, id, number),
        }
    }

    #[cold]
    #[inline(never)]
    fn add_to_shared(&self, frames: &Frames, id: FrameId, number: u8) {
        let _alone = self.batches[usize::from(number)].begin(number);
        self.add_alone(frames, id, number);
    }

    #[inline(always)]
    fn add_alone(&self, frames: &Frames, id: FrameId, number: u8) {
        let meta = frames.meta(id);
        let batch = &self.batches[usize::from(number)].frames;
        let room = batch.add(id.0, || Place::Batch(number).store(meta));
        if room == Room::None {
            self.aging_due.set(meta.group());
            self.drain_own(frames, number);
        }
    }

    /// Adds frames of one group that are in no place, the newest last: at once, and what is in the
    /// batch before them.
    pub(super) fn add_run(&self, frames: &Frames, ids: &[FrameId], number: u8) {
        let metas = frames.metas();
        let Some(first) = ids.first() else {
            return;
        };
        let group = metas[first.index()].group();
        let _alone = self.batches[usize::from(number)].begin(number);
        self.drain_own(frames, number);
        self.aging_due.set(group);
        let mut lists = self.group(GroupId(group)).lock();
        for id in ids {
            let meta = &metas[id.index()];
            assert_eq!(
                (Place::load(meta), meta.group()),
                (Place::None, group),
                "{id:?} is added to the LRU twice, or to another's"
            );
            lists.insert(metas, *id, list_by_flags(meta));
        }
    }

    /// Moves the frames of every batch to their lists.
    pub(super) fn drain_batches(&self, frames: &Frames) {
        let mut seen = self.seen.lock();
        let mut filling = Filling::new(self, frames);
        for (number, (batch, seen)) in (0..).zip(self.batches.iter().zip(&mut *seen)) {
            let list = |id| filling.list(FrameId(id), number);
            batch.frames.drain(seen, list);
        }
    }

    /// Moves the frames of the caller's batch to their lists.
    #[cold]
    #[inline(never)]
    fn drain_own(&self, frames: &Frames, number: u8) {
        let mut filling = Filling::new(self, frames);
        let batch = &self.batches[usize::from(number)].frames;
        batch.drain_own(|id| filling.list(FrameId(id), number));
    }
}
