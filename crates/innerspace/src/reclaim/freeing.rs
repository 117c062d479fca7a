//! Freeing many frames at once: one change of the books and one turn at the magazine for a run of
//! them.

use super::lru::Place;
use super::pool::Pool;
use crate::frame::{Dropped, Kind, LOAD};
use crate::group::GroupId;
use crate::stats::Event;
use crate::units::{FrameId, PageCount};

/// Frames of a run: as many as a full magazine gives away at once, so that neighbours stay together
/// there.
const RUN: usize = LOAD;

impl Pool {
    /// Frees cached pages that were evicted together: their holds are 0, and they are on no list.
    ///
    /// They go past the magazines. A store fills frames that lie in a row in one piece, and a
    /// device takes a request of one piece at more than twice the speed of one of 256 pieces; a
    /// stream's pages were read in a row and are evicted in a row.
    pub(crate) fn free_evicted(&self, ids: &mut [FrameId]) {
        let group_of = |id: &FrameId| self.frames.meta(*id).group();
        for run in ids.chunk_by_mut(|one, next| group_of(one) == group_of(next)) {
            let group = GroupId(group_of(&run[0]));
            for id in &*run {
                let meta = self.frames.meta(*id);
                debug_assert_eq!(
                    (meta.kind(), Place::load(meta)),
                    (Kind::Cached, Place::None)
                );
                self.frames.end_single(*id);
            }
            let pages = run.len() as u64;
            self.frames.give_ended_to_lists(run);
            self.groups.uncharge(group, PageCount(pages));
            self.counters.add(Event::PgFree, pages);
        }
    }
}

/// References of owners that are dropped one after the other; what they were the last of is freed
/// in runs. Nothing is left over when this is dropped. What is in a run is in nobody's hands, its
/// life is over, and it is still charged.
#[must_use = "frames are freed when this is dropped"]
pub(crate) struct Freeing<'p> {
    pool: &'p Pool,
    /// Who pays for those of the run.
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

    /// Drops a reference that the caller has as an owner, of a frame in no file; frees the block if
    /// it was the last hold.
    #[inline]
    pub(crate) fn put(&mut self, id: FrameId) {
        let meta = self.pool.frames.meta(id);
        if meta.hold.put_owner() != Dropped::Last {
            return;
        }
        if meta.order() > 0 || meta.kind() != Kind::Anonymous || Place::load(meta) != Place::None {
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

    /// Back to the arena, and then off the group's account, so that a charge that succeeds finds a
    /// frame.
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
