//! Frees many frames together: with one uncharge and one access to the magazine for each run of
//! them.

use crate::frame::{Dropped, HALF, Kind};
use crate::group::GroupId;
use crate::reclaim::lists::LruState;
use crate::reclaim::pool::Pool;
use crate::stats::Event;
use crate::units::{FrameId, PageCount};

/// The number of frames in a run: as many as a full magazine passes on at a time, so that
/// neighbours stay together.
const RUN: usize = HALF;

/// Drops owners' references one after the other, and frees the frames in runs. A frame in a run has
/// no hold, is on no list, and is still charged. Dropping this frees the last run.
#[must_use = "frames are freed when this is dropped"]
pub(crate) struct Freeing<'p> {
    pool: &'p Pool,
    /// The group that pays for the frames of the run.
    group: GroupId,
    run: [FrameId; RUN],
    len: usize,
}

impl<'p> Freeing<'p> {
    pub(crate) fn new(pool: &'p Pool) -> Freeing<'p> {
        Freeing {
            pool,
            group: GroupId::ROOT,
            run: [FrameId(0); RUN],
            len: 0,
        }
    }

    /// Drops an owner's reference to a frame that is in no file, and frees the block if that was
    /// the last hold: at once, or with its run.
    #[inline]
    pub(crate) fn put(&mut self, id: FrameId) {
        let meta = self.pool.frames.meta(id);
        if meta.hold.put_owner() != Dropped::Last {
            return;
        }
        if meta.order() > 0
            || meta.kind() != Kind::Anonymous
            || LruState::load(meta) != LruState::None
        {
            return self.pool.free(id);
        }
        self.pool.frames.end_single(id);
        let group = GroupId(meta.group());
        if self.len == RUN || group != self.group {
            self.free_run();
            self.group = group;
        }
        self.run[self.len] = id;
        self.len += 1;
    }

    /// Frees the run: first returns it to the arena, then uncharges the group, so that a charge
    /// that succeeds finds a frame.
    fn free_run(&mut self) {
        let run = &mut self.run[..std::mem::take(&mut self.len)];
        if run.is_empty() {
            return;
        }
        self.pool.frames.give_ended(run);
        let pages = run.len() as u64;
        self.pool.groups.uncharge(self.group, PageCount(pages));
        self.pool.counters.add(Event::PgFree, pages);
    }
}

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.free_run();
    }
}
