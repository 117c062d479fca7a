//! Rounds of reclaim: when to try again, when to wait for another thread, when to give up.

use std::time::Duration;

use super::cluster::Shrunk;
use super::passes;
use crate::frame::{Bit, FlagSet, deadline};
use crate::group::{Charge, GroupId, Holders, LimitError, Reclaimer};
use crate::reclaim::check;
use crate::reclaim::owners::{Io, OwnerId};
use crate::reclaim::pool::Pool;
use crate::reclaim::scope::StoreScope;
use crate::sync::{WaitEnd, thread};
use crate::units::PageCount;

/// The most rounds that one request makes, even if each frees something. They suffice for several
/// threads that share a group of few blocks, where each thread takes some of the room that the
/// others have made.
const ROUNDS: u32 = 64;

/// The most rounds that may free nothing, as when other threads have isolated the frames. A round
/// is not counted if its wait ended because a block was unlocked or written: there is something to
/// evict now. It is counted if writing that block failed.
const VAIN_ROUNDS: u32 = 3;

/// How long one round waits for a session that keeps memory from being freed.
const SESSION_WAIT: Duration = Duration::from_millis(1);

/// How long one round waits for other threads that are freeing memory. The bound is for stores that
/// hang.
const OTHERS_WAIT: Duration = Duration::from_millis(500);

/// The rounds that a request has left.
pub(crate) struct Rounds {
    left: u32,
    vain: u32,
}

impl Rounds {
    pub(crate) fn new() -> Rounds {
        Rounds {
            left: ROUNDS,
            vain: VAIN_ROUNDS,
        }
    }
}

/// How a wait for memory ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waited {
    /// A block that could not be evicted was unlocked or written, and may be evictable now.
    BlockCameFree,
    /// Other threads may have freed something.
    Perhaps,
}

impl Pool {
    /// Frees about `target` pages charged to `group` or below it, or all that can be freed if those
    /// are fewer. No section is open.
    pub(crate) fn shrink(&self, group: GroupId, target: PageCount, io: Io) -> Shrunk {
        let _working = self.progress.begin();
        passes::shrink(self, group, target, io)
    }

    /// Makes one round. Frees frames that wait for a grace period, or else about `target` pages of
    /// `group`. If nothing was freed, gives up a queued read, or waits for threads that may free
    /// something.
    ///
    /// Returns how many pages of the group were freed. If none were, pages of other groups may have
    /// been freed, or another thread may have freed some: the caller tries again. Returns `None` if
    /// nothing was freed and there is nothing to wait for, or if no round is left in `rounds`.
    pub(crate) fn make_room(
        &self,
        group: GroupId,
        target: PageCount,
        io: Io,
        rounds: &mut Rounds,
    ) -> Option<PageCount> {
        rounds.left = rounds.left.checked_sub(1)?;
        let (finished, flushes) = (self.progress.finished(), self.background.flushes());
        let shrunk = {
            let _working = self.progress.begin();
            // Freeing frames that wait for a grace period costs nothing but that wait, so it is
            // tried first.
            let before = self.groups.usage(group).0;
            if self.run_retired() > 0 {
                let freed = before.saturating_sub(self.groups.usage(group).0);
                return Some(PageCount(freed));
            }
            passes::shrink(self, group, target, io)
        };
        if shrunk.freed.0 > 0 {
            return Some(shrunk.freed);
        }
        if self.give_up_read(io, &shrunk) {
            return Some(PageCount(0));
        }
        let vain = rounds.vain.checked_sub(1)?;
        // `finished` was read before this thread's own work, whose end is counted too: hence `+ 1`.
        if self.wait_for_memory(finished + 1, flushes, io, &shrunk)? == Waited::Perhaps {
            rounds.vain = vain;
        }
        Some(PageCount(0))
    }

    /// Gives up the read of the block that the request would wait for, if no thread will make that
    /// read soon. Returns whether the read was given up. Only reads into blocks of the request's
    /// own group are given up, since the blocks of others may be protected; and none for a request
    /// of read-ahead, which may call no store.
    fn give_up_read(&self, io: Io, shrunk: &Shrunk) -> bool {
        let Some((id, Bit::Locked)) = shrunk.waits_for else {
            return false;
        };
        // The frame may be in another block by now, whose read can be repeated as well.
        let meta = self.frames.meta(id);
        let owner = self.owners.get(OwnerId(meta.owner()));
        io == Io::Of(GroupId(meta.group()))
            && owner.is_some_and(|owner| owner.give_up_read(meta.index()))
    }

    /// Waits for threads that may free something. Returns `None` if nothing suggests that another
    /// round would free more.
    fn wait_for_memory(
        &self,
        finished: u64,
        flushes: u64,
        io: Io,
        shrunk: &Shrunk,
    ) -> Option<Waited> {
        if self.retired.held() > 0 {
            // A session may hold all frames that could be freed. It gives them back at its next
            // access.
            thread::sleep(SESSION_WAIT);
            return Some(Waited::Perhaps);
        }
        if io == Io::Forbidden || StoreScope::is_any_open() {
            // The caller may hold a block that other threads need, or the very block that reclaim
            // could not evict. So it yields, but does not wait.
            thread::yield_now();
            return (self.progress.finished() != finished).then_some(Waited::Perhaps);
        }
        if let Some((id, bit)) = shrunk.waits_for
            && self.frames.meta(id).hold.try_get_cached()
        {
            let end = self.frames.lock_of(id).wait(bit, deadline(OTHERS_WAIT));
            // A block whose write failed still cannot be evicted. It does not count as having come
            // free: otherwise it would be tried again and again, and the store may take a long time
            // to fail each time.
            let flags = self.frames.meta(id).flags.load();
            let failed = flags.contains(FlagSet::DIRTY | FlagSet::ERROR);
            self.put(id);
            return match end {
                WaitEnd::Woken if !failed => Some(Waited::BlockCameFree),
                _ => Some(Waited::Perhaps),
            };
        }
        // Waits for a flush that was requested of the background, or else for other threads.
        if (shrunk.dirty.0 > 0 && self.background.wait_for_flush(flushes, OTHERS_WAIT))
            || self.progress.wait_for_others(finished, Some(OTHERS_WAIT))
        {
            return Some(Waited::Perhaps);
        }
        shrunk.referenced.then(|| {
            thread::yield_now();
            Waited::Perhaps
        })
    }

    /// Frees about `pages` pages of `group` and the groups below it. Returns how many were freed.
    /// `io` says which stores may be called.
    pub(crate) fn reclaim_for(&self, group: GroupId, pages: PageCount, io: Io) -> PageCount {
        if self.foreign_maker().is_some() {
            return PageCount(0);
        }
        let (mut rounds, mut freed) = (Rounds::new(), PageCount(0));
        while freed < pages {
            let left = PageCount(pages.0 - freed.0);
            let Some(more) = self.make_room(group, left, io, &mut rounds) else {
                break;
            };
            freed.0 += more.0;
            if more.0 > 0 {
                // Something was freed, so this call does not wait for more.
                rounds.vain = 0;
            }
        }
        freed
    }
}

impl Reclaimer for Pool {
    fn reclaim(&self, group: GroupId, pages: PageCount, payer: Option<GroupId>) -> PageCount {
        self.reclaim_for(group, pages, payer.map_or(Io::Forbidden, Io::Of))
    }

    fn charge_without_waiting(
        &self,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, LimitError> {
        self.charge_nowait(group, pages)
    }

    fn holders(&self, group: GroupId) -> Holders {
        check::count_holders(self, group)
    }
}
