//! Rounds of reclaim: when to try again, when to wait for another thread, when to give up.

use std::time::Duration;

use super::cluster::Shrunk;
use super::passes;
use crate::frame::{FlagSet, WaitResult, deadline};
use crate::group::{GroupId, Holders, Reclaimer};
use crate::reclaim::check;
use crate::reclaim::owners::Io;
use crate::reclaim::pool::Pool;
use crate::reclaim::scope::StoreScope;
use crate::sync::thread;
use crate::units::PageCount;

/// The most rounds that one request makes, even if each frees something. They suffice for several
/// threads that share a group of few blocks, where each thread takes some of the room that the
/// others have made.
const ROUNDS: u32 = 64;

/// How many rounds may free nothing because other threads had isolated the frames. A round is not
/// counted if a block that could not be evicted has come free, because there is something to evict
/// now. If that block could not be written, the round is counted.
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

/// The result of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// Something was freed: this many pages of the group, and perhaps pages of other groups.
    Made(PageCount),
    /// Nothing was freed, but another thread was at work, or a block came free. The caller tries
    /// again.
    Perhaps,
    /// Nothing was freed, and there is nothing to wait for.
    None,
}

/// How a wait for memory ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waited {
    /// A block that could not be evicted was unlocked or written, and may be evictable now.
    BlockCameFree,
    /// Other threads may have freed something.
    Perhaps,
    /// No other thread is about to free anything.
    InVain,
}

impl Waited {
    fn perhaps(others: bool) -> Waited {
        match others {
            true => Waited::Perhaps,
            false => Waited::InVain,
        }
    }
}

impl Pool {
    /// Frees about `target` pages charged to `group` or below it, or all that can be freed if those
    /// are fewer. No section is open.
    pub(crate) fn shrink(&self, group: GroupId, target: PageCount, io: Io) -> Shrunk {
        let _working = self.progress.begin();
        passes::shrink(self, group, target, io)
    }

    /// Makes one round. Frees frames that wait for a grace period, or else about `target` pages of
    /// `group`. If nothing was freed, waits for threads that may free something.
    pub(crate) fn make_room(
        &self,
        group: GroupId,
        target: PageCount,
        io: Io,
        rounds: &mut Rounds,
    ) -> Room {
        if rounds.left == 0 {
            return Room::None;
        }
        rounds.left -= 1;
        let (finished, flushes) = (self.progress.finished(), self.background.flushes());
        let shrunk = {
            let _working = self.progress.begin();
            // Frames that wait for a grace period cost nothing but this wait.
            let before = self.groups.usage(group).0;
            if self.run_retired() > 0 {
                let freed = before.saturating_sub(self.groups.usage(group).0);
                return Room::Made(PageCount(freed));
            }
            passes::shrink(self, group, target, io)
        };
        if shrunk.freed.0 > 0 {
            return Room::Made(shrunk.freed);
        }
        if rounds.vain == 0 {
            return Room::None;
        }
        if self.retired.held() > 0 {
            // A session may hold all frames that could be freed. It gives them back at its next
            // access.
            thread::sleep(SESSION_WAIT);
            rounds.vain -= 1;
            return Room::Perhaps;
        }
        // The end of this thread's own work is counted too, hence `+ 1`.
        match self.wait_for_memory(finished + 1, flushes, io, &shrunk) {
            Waited::BlockCameFree => {}
            Waited::Perhaps => rounds.vain -= 1,
            Waited::InVain => return Room::None,
        }
        Room::Perhaps
    }

    /// Waits for threads that may free something.
    fn wait_for_memory(&self, finished: u64, flushes: u64, io: Io, shrunk: &Shrunk) -> Waited {
        if io == Io::Forbidden || StoreScope::is_any_open() {
            // The caller may hold a block that other threads need, or the one that reclaim met. So
            // it yields, but does not wait.
            thread::yield_now();
            return Waited::perhaps(self.progress.finished() != finished);
        }
        if let Some((id, bit)) = shrunk.waits_for
            && self.frames.meta(id).hold.try_get_cached()
        {
            let end = self.frames.lock_of(id).wait(bit, deadline(OTHERS_WAIT));
            // A block whose write failed still cannot be evicted. It does not count as come free,
            // or it would be tried again and again, by a store that may take long to fail.
            let flags = self.frames.meta(id).flags.load();
            let failed = flags.contains(FlagSet::DIRTY | FlagSet::ERROR);
            self.put(id);
            return match end {
                WaitResult::Cleared if !failed => Waited::BlockCameFree,
                _ => Waited::Perhaps,
            };
        }
        // Waits for a flush that the background was requested to do.
        if shrunk.dirty.0 > 0 && self.background.wait_for_flush(flushes, OTHERS_WAIT) {
            return Waited::Perhaps;
        }
        if self.progress.wait_for_others(finished, Some(OTHERS_WAIT)) {
            return Waited::Perhaps;
        }
        if shrunk.referenced {
            thread::yield_now();
        }
        Waited::perhaps(shrunk.referenced)
    }
}

impl Pool {
    /// Frees `pages` of `group` and those below it, and returns how many. `io` says which stores
    /// may be called.
    pub(crate) fn reclaim_for(&self, group: GroupId, pages: PageCount, io: Io) -> PageCount {
        if self.foreign_maker().is_some() {
            return PageCount(0);
        }
        let (mut rounds, mut freed) = (Rounds::new(), PageCount(0));
        while freed < pages {
            let left = PageCount(pages.0 - freed.0);
            match self.make_room(group, left, io, &mut rounds) {
                Room::Made(more) => {
                    freed.0 += more.0;
                    if more.0 > 0 {
                        // Something was freed, so this call does not wait for more.
                        rounds.vain = 0;
                    }
                }
                Room::Perhaps => {}
                Room::None => break,
            }
        }
        freed
    }
}

impl Reclaimer for Pool {
    fn reclaim(&self, group: GroupId, pages: PageCount, payer: Option<GroupId>) -> PageCount {
        self.reclaim_for(group, pages, payer.map_or(Io::Forbidden, Io::Of))
    }

    fn holders(&self, group: GroupId) -> Holders {
        check::count_holders(self, group)
    }
}
