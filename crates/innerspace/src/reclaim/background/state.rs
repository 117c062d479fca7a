//! The state of the background work: watermarks, clock, requests for work, and the sleep of the
//! service thread.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::group::GroupId;
use crate::reclaim::owners::Io;
use crate::reclaim::progress::Progress;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::units::PageCount;

/// The percentage of the memory above which dirty blocks of any age are written.
const DIRTY_PERCENT: u64 = 20;

/// The state of the background work of one pool.
#[derive(Default)]
pub(crate) struct Background {
    /// The number of free pages below which eviction begins.
    pub(super) low: u64,
    /// The number of free pages at which eviction ends.
    pub(super) high: u64,
    /// The number of dirty pages above which blocks of any age are written.
    pub(super) most_dirty: u64,
    pub(super) evicting: AtomicBool,
    /// One more than the number of the tick in which eviction last freed nothing; 0 if there was no
    /// such tick, or if pages have become clean since. Eviction is not tried again in that tick.
    pub(super) futile_at: AtomicU64,
    /// The number of calls to `tick`.
    pub(super) clock: AtomicU64,
    /// The last tick in which every owner was called to flush old blocks.
    pub(super) flushed_at: AtomicU64,
    /// The number of the owner that was last called to write; 0 at first.
    pub(super) last_owner: AtomicU32,
    /// Whether reclaim met dirty blocks that it needs written.
    pub(super) flush_wanted: AtomicBool,
    /// The groups that were found over their `high` by requests that could not wait. A step looks
    /// at these alone, so that the groups of one tenant delay no step for another.
    pub(super) over_high: Mutex<BTreeSet<GroupId>>,
    /// Whether a step was requested since the service thread last woke. Only that thread clears the
    /// flag. A `tick` does not, because it may already have done its work when a step is requested.
    wanted: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
    /// Whether threads of the memory do the writing, each for one owner.
    served: AtomicBool,
    /// The flushes that are left to threads of the memory.
    pub(super) flushing: Progress,
}

impl Background {
    pub(crate) fn new(total: PageCount) -> Background {
        let low = (total.0 / 64).clamp(1, 4096);
        Background {
            low,
            high: low * 2,
            most_dirty: total.0 * DIRTY_PERCENT / 100,
            ..Background::default()
        }
    }

    /// Returns the number of ticks so far: the time stamp of dirty blocks.
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Leaves writing to threads of the memory from now on, each for one owner: a store that hangs
    /// then blocks one of them, and neither the service thread nor a caller.
    pub(crate) fn begin_service(&self) {
        self.served.store(true, Ordering::Relaxed);
    }

    /// Returns which stores a background step may call itself.
    pub(super) fn io(&self) -> Io {
        match self.is_served() {
            true => Io::Forbidden,
            false => Io::Of(GroupId::ROOT),
        }
    }

    /// Returns whether [`Background::begin_service`] was called.
    pub(crate) fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// Returns a count for [`Background::wait_for_flush`]. It rises when a flush that was left to a
    /// thread ends, and when the background finds that no flush is under way.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushing.finished()
    }

    /// Waits until [`Background::flushes`] no longer returns `before`, at most for `timeout`.
    /// Returns false, without waiting, if no threads of the memory make flushes.
    pub(crate) fn wait_for_flush(&self, before: u64, timeout: Duration) -> bool {
        let is_served = self.is_served();
        if is_served {
            self.flushing.wait_for_end(before, timeout);
        }
        is_served
    }

    /// Requests a step that brings `group` under its `high`.
    pub(crate) fn want_under_high(&self, group: GroupId) {
        self.over_high.lock().insert(group);
        self.kick();
    }

    /// Requests a step that writes dirty blocks, oldest first.
    pub(crate) fn want_flush(&self) {
        self.flush_wanted.store(true, Ordering::Relaxed);
        self.kick();
    }

    /// Requests a step if so few pages are left below `max` that eviction should begin.
    #[inline]
    pub(crate) fn kick_if_low(&self, used: u64, max: u64) {
        if used.saturating_add(self.low) > max && !self.wanted.load(Ordering::Relaxed) {
            self.kick();
        }
    }

    /// Requests a step, and wakes the service thread if there is one.
    #[cold]
    pub(crate) fn kick(&self) {
        // Release: pairs with the swap in `wait_for_work`, so that the service thread finds the
        // work that was requested.
        if !self.wanted.swap(true, Ordering::Release) {
            // The mutex is taken so that a thread between its check and its sleep is not missed.
            drop(self.sleep.lock());
            self.wake.notify_all();
        }
    }

    /// Sleeps until a step is requested, but at most `at_most`. Called by the service thread, which
    /// then looks for work.
    pub(crate) fn wait_for_work(&self, at_most: Duration) {
        let guard = self.sleep.lock();
        if !self.wanted.load(Ordering::Relaxed) {
            let _ = self.wake.wait_timeout(guard, at_most);
        }
        // Acquire: pairs with the swap in `kick`. It is a swap because a plain store would not
        // acquire what each `kick` so far has released.
        self.wanted.swap(false, Ordering::Acquire);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod for_tests {
    use super::*;

    impl Background {
        /// Returns whether a step is requested, so that the service thread would not sleep.
        pub(crate) fn is_kicked(&self) -> bool {
            self.wanted.load(Ordering::Relaxed)
        }
    }
}
