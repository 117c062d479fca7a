//! Rounds of reclaim: when to try again, when to wait for another thread, when to give up.

use std::time::{Duration, Instant};

use super::pool::Pool;
use super::shrink::{Io, Shrunk};
use crate::frame::{FlagSet, WaitResult};
use crate::group::GroupId;
use crate::sync::{Condvar, Mutex, WaitEnd, thread};
use crate::units::PageCount;

/// Rounds one request makes at most, whatever they bring: enough where several threads share a
/// group of few blocks, and each takes some of what the others have made room with.
const ROUNDS: u32 = 64;

/// Rounds that brought nothing, but may have because others had the frames in their hands. Where a
/// block that was in the way came free, there is something to evict now: that is none of these,
/// unless it could not be written.
const VAIN_ROUNDS: u32 = 3;

/// How long one round waits for other threads that are freeing memory: a store may hang.
const OTHERS_WAIT: Duration = Duration::from_millis(500);

/// Who is freeing memory right now, or looks at pages (`aging`): a request that finds nothing to
/// free waits for them before it fails, because the frames they have isolated are on no list.
#[derive(Default)]
pub(super) struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Tickets of the threads that may be about to free something.
    working: Vec<u64>,
    /// Tickets given out.
    started: u64,
    /// Tickets given back.
    finished: u64,
}

/// Counts the calling thread among those who free memory, until dropped.
#[must_use = "dropping it says that the work is done"]
pub(super) struct Working<'a> {
    progress: &'a Progress,
    ticket: u64,
}

impl Progress {
    pub(super) fn begin(&self) -> Working<'_> {
        let mut state = self.state.lock();
        let ticket = state.started;
        state.started += 1;
        state.working.push(ticket);
        Working {
            progress: self,
            ticket,
        }
    }

    /// How often somebody was done.
    fn finished(&self) -> u64 {
        self.state.lock().finished
    }

    /// Waits until all who are freeing memory now are done; who begins later is not waited for.
    /// False when nobody is at work, and nobody was since the count of the finished was `finished`.
    /// The caller is not one of them.
    fn wait_for_others(&self, finished: u64) -> bool {
        let deadline = Instant::now() + OTHERS_WAIT;
        let mut state = self.state.lock();
        let now = state.started;
        let others = state.finished != finished || !state.working.is_empty();
        while state.working.iter().any(|ticket| *ticket < now) {
            let left = deadline.saturating_duration_since(Instant::now());
            let (woken, end) = self.changed.wait_timeout(state, left);
            state = woken;
            if end == WaitEnd::TimedOut {
                break;
            }
        }
        others
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.progress.state.lock();
        state.working.retain(|ticket| *ticket != self.ticket);
        state.finished += 1;
        self.progress.changed.notify_all();
    }
}

/// What is left of a request's patience.
pub(super) struct Rounds {
    left: u32,
    vain: u32,
}

impl Rounds {
    pub(super) fn new() -> Rounds {
        Rounds {
            left: ROUNDS,
            vain: VAIN_ROUNDS,
        }
    }

    /// Something was freed: nobody is waited for any more.
    pub(super) fn wait_no_more(&mut self) {
        self.vain = 0;
    }
}

/// What a round brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// Something was freed: so many pages of the group, of others perhaps.
    Made(PageCount),
    /// Nothing, but another thread was at work, or a block came free: try the request again.
    Perhaps,
    /// Nothing, and there is nothing to wait for.
    None,
}

/// How a wait for memory ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waited {
    /// A block that could not go was unlocked, or written, and can go as far as is known.
    BlockCameFree,
    /// Others may have freed something.
    Perhaps,
    /// There is nobody who may.
    ForNobody,
}

impl Pool {
    /// One round: frees what waits for a grace period or else about `target` pages of `group`; if
    /// that brings nothing, waits for those who may free something.
    pub(super) fn make_room(
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
        let finished = self.progress.finished();
        let shrunk = {
            let _working = self.progress.begin();
            // What waits for a grace period is free but for the waiting.
            let before = self.groups.usage(group).0;
            if self.run_retired() > 0 {
                let freed = before.saturating_sub(self.groups.usage(group).0);
                return Room::Made(PageCount(freed));
            }
            self.shrink_working(group, target, io)
        };
        if shrunk.freed.0 > 0 {
            return Room::Made(shrunk.freed);
        }
        if rounds.vain == 0 {
            return Room::None;
        }
        // Our own end of work is counted too.
        match self.wait_for_memory(finished + 1, io, &shrunk) {
            Waited::BlockCameFree => {}
            Waited::Perhaps => rounds.vain -= 1,
            Waited::ForNobody => return Room::None,
        }
        Room::Perhaps
    }

    /// Waits for those who may free something.
    fn wait_for_memory(&self, finished: u64, io: Io, shrunk: &Shrunk) -> Waited {
        let perhaps = |others| match others {
            true => Waited::Perhaps,
            false => Waited::ForNobody,
        };
        if io == Io::Forbidden || Pool::in_any_store_scope() {
            // The caller may hold a block that the others want, or that was found: give way, but do
            // not wait.
            thread::yield_now();
            return perhaps(self.progress.finished() != finished);
        }
        if let Some((id, bit)) = shrunk.waits_for
            && self.frames.meta(id).hold.try_get_cached()
        {
            let end = self.frames.wait_timeout(id, bit, OTHERS_WAIT);
            // Such a block can go no more than before, and is tried again and again: a store may
            // take its time to fail.
            let flags = self.frames.meta(id).flags.load();
            let failed = flags.contains(FlagSet::DIRTY | FlagSet::ERROR);
            self.put(id);
            return match end {
                WaitResult::Cleared if !failed => Waited::BlockCameFree,
                _ => Waited::Perhaps,
            };
        }
        if self.progress.wait_for_others(finished) {
            return Waited::Perhaps;
        }
        if shrunk.referenced {
            thread::yield_now();
        }
        perhaps(shrunk.referenced)
    }
}
