//! Add-batches: a new frame waits with fourteen others before the list lock is taken for all of them.

use super::lru::{LockedLists, Lru, Place, list_by_flags};
use crate::frame::{Frames, Meta};
use crate::group::GroupId;
use crate::stats::thread_number;
use crate::sync::{Mutex, MutexGuard, Rank};
use crate::units::FrameId;

/// Batches of one pool; a thread uses the one of its number. Two threads may share one: its mutex keeps them right.
pub(super) const BATCHES: usize = 16;

/// Frames of a full batch.
pub(super) const BATCH_LEN: usize = 15;

/// Frames on their way to a list. A frame in a batch says so (`Place::Batch`), under the batch's mutex.
#[repr(align(128))]
pub(super) struct Batch {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    ids: [u32; BATCH_LEN],
    len: usize,
}

/// The number of the calling thread's batch.
#[inline]
pub(super) fn own_batch() -> u8 {
    (thread_number() % BATCHES) as u8
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch {
            entries: Mutex::ranked(Rank::Batch, Entries::default()),
        }
    }

    /// Takes a frame out; false when it is not in this batch any more.
    pub(super) fn remove(&self, meta: &Meta, number: u8, id: FrameId) -> bool {
        let mut entries = self.entries.lock();
        if Place::load(meta) != Place::Batch(number) {
            return false;
        }
        let len = entries.len;
        let at = entries.ids[..len].iter().position(|entry| *entry == id.0);
        let at = at.expect("a frame is in the batch that its place names");
        entries.ids.copy_within(at + 1..len, at);
        entries.len -= 1;
        Place::None.store(meta);
        true
    }

    /// Runs `change` on a frame with the batch locked, if the frame is still in it.
    pub(super) fn with(&self, meta: &Meta, number: u8, change: impl FnOnce()) -> bool {
        let _entries = self.entries.lock();
        let here = Place::load(meta) == Place::Batch(number);
        if here {
            change();
        }
        here
    }

    /// The frames waiting, for `validate`.
    pub(super) fn waiting(&self) -> Vec<FrameId> {
        let entries = self.entries.lock();
        entries.ids[..entries.len]
            .iter()
            .map(|id| FrameId(*id))
            .collect()
    }
}

impl Lru {
    /// Adds a frame that is in no place to a batch; a full batch is drained.
    pub(super) fn add(&self, frames: &Frames, id: FrameId, number: u8) {
        let meta = frames.meta(id);
        let mut entries = self.batches[usize::from(number)].entries.lock();
        assert_eq!(
            Place::load(meta),
            Place::None,
            "{id:?} is added to the LRU twice"
        );
        let len = entries.len;
        entries.ids[len] = id.0;
        entries.len += 1;
        Place::Batch(number).store(meta);
        if entries.len == BATCH_LEN {
            self.aging_due.set(meta.group());
            self.drain_locked(frames, &mut entries);
        }
    }

    /// Adds frames of one group that are in no place, the newest last: at once, and what is in the batch before them.
    pub(super) fn add_run(&self, frames: &Frames, ids: &[FrameId], number: u8) {
        let metas = frames.metas();
        let Some(first) = ids.first() else {
            return;
        };
        let group = metas[first.index()].group();
        let mut entries = self.batches[usize::from(number)].entries.lock();
        self.drain_locked(frames, &mut entries);
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
        for batch in &self.batches {
            self.drain_locked(frames, &mut batch.entries.lock());
        }
    }

    fn drain_locked(&self, frames: &Frames, entries: &mut MutexGuard<'_, Entries>) {
        let metas = frames.metas();
        let mut kept: Option<(u16, LockedLists<'_>)> = None;
        let len = std::mem::take(&mut entries.len);
        for id in entries.ids[..len].iter().map(|id| FrameId(*id)) {
            let meta = &metas[id.index()];
            let group = meta.group();
            if kept.as_ref().is_none_or(|(of, _)| *of != group) {
                // One list lock at a time: released before the next is taken.
                drop(kept.take());
                kept = Some((group, self.group(GroupId(group)).lock()));
            }
            if let Some((_, locked)) = &mut kept {
                locked.insert(metas, id, list_by_flags(meta));
            }
        }
    }
}
