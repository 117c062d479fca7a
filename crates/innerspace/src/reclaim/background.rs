//! What a service thread (or `tick`) does between requests: grace periods, free pages in stock, old
//! dirty pages.

use std::time::Duration;

use super::owners::OwnerId;
use super::pool::Pool;
use super::shrink::Io;
use crate::group::GroupId;
use crate::stats::Event;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::units::PageCount;

/// Pages one step evicts at most.
const STEP_PAGES: u64 = 512;

/// Pages one step has one owner write at most.
const FLUSH_PAGES: u64 = 256;

/// Ticks after which a dirty block is written.
const DIRTY_TICKS: u64 = 30;

/// Dirty pages, in hundredths of the memory, above which blocks of any age are written.
const DIRTY_PERCENT: u64 = 20;

/// Whether a step left something for the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Call again at once.
    More,
    /// Nothing to do until something changes.
    Idle,
}

/// What the background step wants written by an owner, oldest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlushRequest {
    /// Blocks that became dirty at this tick or before; `u64::MAX` for any.
    pub(crate) dirtied_by: u64,
    /// Pages to write at most.
    pub(crate) pages: PageCount,
}

/// State of the background work.
pub(super) struct Background {
    /// Below this many free pages eviction begins.
    low: u64,
    /// At this many it ends.
    high: u64,
    /// Pages in all.
    total: u64,
    evicting: AtomicBool,
    /// The tick, plus 1, at which eviction last found nothing: not tried again before the next.
    futile_at: AtomicU64,
    /// Counts calls of `tick`.
    clock: AtomicU64,
    /// The tick up to which old blocks were looked for.
    flushed_at: AtomicU64,
    /// The owner that was asked last.
    last_owner: AtomicU32,
    /// Spreads the rounding of shares.
    offset: AtomicU64,
    /// Reclaim met dirty blocks and wants them written.
    flush_wanted: AtomicBool,
    /// Some group is over its `high`, and who charged could not wait.
    high_wanted: AtomicBool,
    /// Somebody asked for a step since the service last came from its sleep. It alone takes this
    /// back: what a `tick` does meanwhile may be over when the next is asked for.
    wanted: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Background {
    pub(super) fn new(total: PageCount) -> Background {
        let low = (total.0 / 64).clamp(1, 4096);
        Background {
            low,
            high: low * 2,
            total: total.0,
            evicting: AtomicBool::new(false),
            futile_at: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            flushed_at: AtomicU64::new(0),
            last_owner: AtomicU32::new(OwnerId::NONE.0),
            offset: AtomicU64::new(0),
            flush_wanted: AtomicBool::new(false),
            high_wanted: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// A number below `total`, another each time, spread evenly in the long run (steps of the
    /// golden ratio).
    pub(super) fn next_offset(&self, total: u64) -> u64 {
        let count = self.offset.fetch_add(1, Ordering::Relaxed);
        let turn = count.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(turn) * u128::from(total)) >> 64) as u64
    }
}

impl Pool {
    /// Pages that a request could have without reclaim.
    pub(crate) fn free_pages(&self) -> PageCount {
        // What lies in stock counts as used, here and in `wake_background_if_low`: the two must
        // agree.
        self.free_beside(self.groups.charged(GroupId::ROOT))
    }

    /// Pages that are left when so many are used, and frames are there.
    fn free_beside(&self, used: PageCount) -> PageCount {
        let max = self.groups.max(GroupId::ROOT).map_or(u64::MAX, |max| max.0);
        let frames = self
            .frames
            .free_frames()
            .saturating_sub(self.frames.reserve());
        PageCount(max.saturating_sub(used.0).min(frames.into()))
    }

    /// Free pages: nothing is evicted for what lies in stock. Where that makes it enough, it is
    /// given back: else a step would be asked for again.
    fn free_with_stocks(&self, is_enough: impl Fn(PageCount) -> bool) -> PageCount {
        let free = self.free_pages();
        if is_enough(free) {
            return free;
        }
        let free = self.free_beside(self.groups.usage(GroupId::ROOT));
        if is_enough(free) {
            self.groups.drain_stocks(GroupId::ROOT);
        }
        free
    }

    /// Dirty pages, as the owners have counted them.
    pub(crate) fn dirty_pages(&self) -> PageCount {
        // The two sums are read one after the other: a page cleaned in between must not wrap.
        let cleaned = self.counters.sum(Event::PgCleaned);
        PageCount(self.counters.sum(Event::PgDirtied).saturating_sub(cleaned))
    }

    /// The number of ticks so far: the time stamp of what becomes dirty.
    pub(crate) fn now(&self) -> u64 {
        self.background.clock.load(Ordering::Relaxed)
    }

    /// One tick of the clock: batches are drained, then steps are made until nothing is left to do
    /// (at most 64).
    pub(crate) fn tick(&self) {
        self.background.clock.fetch_add(1, Ordering::Relaxed);
        self.lru.drain_batches(&self.frames);
        self.groups.drain_stocks(GroupId::ROOT);
        self.owners.try_all_again();
        self.tick_samples(std::time::Instant::now());
        for _ in 0..64 {
            if self.background_step() == Step::Idle {
                break;
            }
        }
    }

    /// A bounded piece of work: one grace period, up to 512 pages evicted, up to 256 pages written.
    /// Outside every section, with no lock held.
    pub(crate) fn background_step(&self) -> Step {
        self.let_go();
        let evicted = self.keep_free_pages();
        let relieved = self.relieve_groups();
        let written = self.write_old_blocks();
        // In a call of a store locks may be held.
        if !Pool::in_any_store_scope() {
            self.groups.tell_watchers();
        }
        match (evicted, relieved, written, self.retired.len()) {
            (Step::Idle, Step::Idle, Step::Idle, 0) => Step::Idle,
            _ => Step::More,
        }
    }

    /// Asks for a background step that brings groups under their `high`.
    pub(super) fn want_under_high(&self) {
        self.background.high_wanted.store(true, Ordering::Relaxed);
        self.kick();
    }

    /// Asks for a background step that writes dirty blocks, oldest first.
    pub(crate) fn want_flush(&self) {
        self.background.flush_wanted.store(true, Ordering::Relaxed);
        self.kick();
    }

    /// Frees some of what is over the `high` of each group, for those who could not wait for it.
    fn relieve_groups(&self) -> Step {
        if !self.background.high_wanted.swap(false, Ordering::Relaxed) {
            return Step::Idle;
        }
        let mut step = Step::Idle;
        for group in self.groups.subtree(GroupId::ROOT) {
            let over = |pool: &Pool| {
                let high = pool.groups.high(group).map_or(u64::MAX, |high| high.0);
                pool.groups.charged(group).0.saturating_sub(high)
            };
            if over(self) > 0 {
                // Nothing is evicted for what lies in stock.
                self.groups.drain_stocks(group);
            }
            let target = over(self).min(STEP_PAGES);
            if target > 0 {
                let shrunk = self.shrink(group, PageCount(target), Io::Allowed);
                if shrunk.freed.0 > 0 && over(self) > 0 {
                    self.background.high_wanted.store(true, Ordering::Relaxed);
                    step = Step::More;
                } else if over(self) > 0 && Pool::in_any_store_scope() {
                    // What was passed over can be freed as soon as the call ends.
                    self.want_under_high();
                }
            }
        }
        step
    }

    /// Between the low and the high mark: begins evicting below the one, goes on up to the other.
    fn keep_free_pages(&self) -> Step {
        let background = &self.background;
        let evicting = background.evicting.load(Ordering::Relaxed);
        let is_enough =
            |free: PageCount| free.0 >= background.high || (free.0 >= background.low && !evicting);
        let free = self.free_with_stocks(is_enough);
        if is_enough(free) {
            background.evicting.store(false, Ordering::Relaxed);
            return Step::Idle;
        }
        let tick = self.now() + 1;
        if background.futile_at.load(Ordering::Relaxed) == tick {
            return Step::Idle;
        }
        let want = PageCount((background.high - free.0).min(STEP_PAGES));
        let shrunk = self.shrink(GroupId::ROOT, want, Io::Allowed);
        if shrunk.freed.0 == 0 && !Pool::in_any_store_scope() {
            background.futile_at.store(tick, Ordering::Relaxed);
        }
        let free = self.free_with_stocks(|free| free.0 >= background.high).0;
        let more = shrunk.freed.0 > 0 && free < background.high;
        // What was passed over in a call of a store can be freed as soon as it ends.
        let later = !more && free < background.high && Pool::in_any_store_scope();
        background.evicting.store(more || later, Ordering::Relaxed);
        if later {
            self.kick();
        }
        if more { Step::More } else { Step::Idle }
    }

    /// Asks one owner to write: whatever it has while too much is dirty, what is old otherwise.
    fn write_old_blocks(&self) -> Step {
        let background = &self.background;
        let dirty = self.dirty_pages().0;
        let now = self.now();
        let wanted = background.flush_wanted.swap(false, Ordering::Relaxed);
        let too_much = wanted || dirty * 100 > background.total * DIRTY_PERCENT;
        let looked = background.flushed_at.load(Ordering::Relaxed) >= now;
        if dirty == 0 || (looked && !too_much) || (!too_much && now < DIRTY_TICKS) {
            return Step::Idle;
        }
        let request = FlushRequest {
            dirtied_by: if too_much {
                u64::MAX
            } else {
                now - DIRTY_TICKS
            },
            pages: PageCount(FLUSH_PAGES),
        };
        // Owners one after the other, until one has something to write or all were asked.
        for _ in 0..self.owners.len() {
            let last = OwnerId(background.last_owner.load(Ordering::Relaxed));
            let Some((id, owner)) = self.owners.next_after(last) else {
                break;
            };
            background.last_owner.store(id.0, Ordering::Relaxed);
            let _working = self.progress.begin();
            let _scope = self.store_scope();
            let count = owner.flush(&request);
            self.owners.note_clean(id, &count);
            self.counters.add(Event::PgWriteback, count.written.0);
            if count.written.0 > 0 {
                return Step::More;
            }
        }
        // In a call of a store, owners pass over what they can write as soon as it ends.
        if Pool::in_any_store_scope() {
            if wanted {
                self.want_flush();
            }
            return Step::Idle;
        }
        background.flushed_at.store(now, Ordering::Relaxed);
        Step::Idle
    }

    /// Asks for a background step when free pages run low; asked whenever the root's usage has
    /// grown.
    #[inline]
    pub(super) fn wake_background_if_low(&self) {
        let background = &self.background;
        let used = self.groups.charged(GroupId::ROOT).0;
        let max = self.groups.max(GroupId::ROOT).map_or(u64::MAX, |max| max.0);
        if used.saturating_add(background.low) > max && !background.wanted.load(Ordering::Relaxed) {
            self.kick();
        }
    }

    /// Asks for a background step; wakes the service thread if there is one.
    #[cold]
    pub(crate) fn kick(&self) {
        let background = &self.background;
        // Release: who takes this finds what it is to do.
        if !background.wanted.swap(true, Ordering::Release) {
            // Taken so that a thread between its check and its sleep is not missed.
            drop(background.sleep.lock());
            background.wake.notify_all();
        }
    }

    /// Sleeps until a step is asked for, or for `at_most`. For the service thread, which looks for
    /// work after this.
    pub(crate) fn wait_for_work(&self, at_most: Duration) {
        let background = &self.background;
        let guard = background.sleep.lock();
        if !background.wanted.load(Ordering::Relaxed) {
            let _ = background.wake.wait_timeout(guard, at_most);
        }
        // Acquire, and a swap: pairs with each `kick` up to here.
        background.wanted.swap(false, Ordering::Acquire);
    }

    /// Whether the service would not sleep.
    #[cfg(all(test, not(loom), not(shuttle)))]
    pub(crate) fn is_kicked(&self) -> bool {
        self.background.wanted.load(Ordering::Relaxed)
    }
}
