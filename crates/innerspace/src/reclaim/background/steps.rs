//! The steps of background work: grace periods, keeping pages free, writing old dirty pages.

use crate::group::GroupId;
use crate::reclaim::owners::{FlushRequest, OwnerId};
use crate::reclaim::pool::Pool;
use crate::reclaim::scope::StoreScope;
use crate::stats::Event;
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, failpoint};
use crate::units::PageCount;

/// The most pages that one step evicts to keep pages free, and from each group that is over its
/// `high`.
const STEP_PAGES: u64 = 512;

/// The most pages that one step has one owner write.
const FLUSH_PAGES: u64 = 256;

/// The number of ticks after which a dirty block is written.
const DIRTY_TICKS: u64 = 30;

/// The most steps of one tick.
const TICK_STEPS: u32 = 64;

/// Whether a step left work for the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// There is more to do: the caller makes the next step without sleeping.
    More,
    /// There is nothing to do until something changes.
    Idle,
}

/// A flush, or a sync, that is left to a thread of the memory. Dropping this ends it.
#[must_use = "the flush is over when this is dropped"]
pub(crate) struct LeftFlush {
    pool: Arc<Pool>,
    ticket: u64,
    /// Whether pages became clean.
    pub(crate) has_cleaned: bool,
}

impl LeftFlush {
    pub(crate) fn begin(pool: &Arc<Pool>) -> LeftFlush {
        LeftFlush {
            pool: pool.clone(),
            ticket: pool.background.flushing.enter(),
            has_cleaned: false,
        }
    }
}

impl Drop for LeftFlush {
    fn drop(&mut self) {
        let background = &self.pool.background;
        background.flushing.leave(self.ticket);
        if self.has_cleaned {
            // There may be something to evict now, and more to write.
            background.futile_at.store(0, Ordering::Relaxed);
            background.kick();
        }
    }
}

impl Pool {
    /// Returns how many pages a request could get without reclaim.
    pub(crate) fn free_pages(&self) -> PageCount {
        // Pages in stock count as used both here and in `kick_if_low`: the two must agree.
        self.free_beside(self.groups.charged(GroupId::ROOT))
    }

    /// Returns how many pages are free if `used` pages are in use. Every frame in use is charged,
    /// and the root's limit is no more than the frames beyond the reserve, so as many are free.
    fn free_beside(&self, used: PageCount) -> PageCount {
        PageCount(self.max_pages().saturating_sub(used.0))
    }

    /// Returns the number of free pages. If they are not enough, also counts the pages in stock as
    /// free. If that makes the number sufficient, drains the stocks, because otherwise a step would
    /// be requested again.
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

    /// Returns the number of dirty pages, as the owners have counted them.
    pub(crate) fn dirty_pages(&self) -> PageCount {
        // The cleaned pages are summed first: a page cleaned between the two sums must not make the
        // difference wrap.
        let cleaned = self.counters.sum(Event::PgCleaned);
        PageCount(self.counters.sum(Event::PgDirtied).saturating_sub(cleaned))
    }

    /// Makes one tick: advances the clock, drains batches and stocks, begins a sampling stretch if
    /// it is time, and then makes steps until nothing is left to do, at most [`TICK_STEPS`] of
    /// them.
    pub(crate) fn tick(&self) {
        self.background.clock.fetch_add(1, Ordering::Relaxed);
        self.lru.drain_batches(&self.frames);
        self.groups.drain_stocks(GroupId::ROOT);
        self.tick_samples(std::time::Instant::now());
        for _ in 0..TICK_STEPS {
            if self.background_step() == Step::Idle {
                break;
            }
        }
    }

    /// Does a bounded piece of work: one grace period, up to 512 pages evicted to keep pages free,
    /// as many from each group that a request found over its `high`, and calls to owners to write
    /// up to 256 pages each. The caller is outside every section and holds no lock.
    pub(crate) fn background_step(&self) -> Step {
        self.flush_retired();
        let evicted = self.keep_free_pages();
        let relieved = self.relieve_groups();
        let written = self.write_old_blocks();
        match (evicted, relieved, written, self.retired.len()) {
            (Step::Idle, Step::Idle, Step::Idle, 0) => Step::Idle,
            _ => Step::More,
        }
    }

    /// Frees some pages of each group that requests found over its `high` when they could not wait.
    fn relieve_groups(&self) -> Step {
        let mut step = Step::Idle;
        let groups = std::mem::take(&mut *self.background.over_high.lock());
        for group in groups {
            if self.over_high(group) > 0 {
                // The stocks are drained first, so that nothing is evicted only because of pages in
                // stock.
                self.groups.drain_stocks(group);
            }
            let target = self.over_high(group).min(STEP_PAGES);
            if target == 0 {
                continue;
            }
            let shrunk = self.shrink(group, PageCount(target), self.background.io());
            if self.over_high(group) == 0 {
                continue;
            }
            if shrunk.freed.0 > 0 {
                self.background.over_high.lock().insert(group);
                step = Step::More;
            } else if StoreScope::is_any_open() {
                // Pages that were skipped can be freed as soon as this thread's call to a store
                // ends.
                self.background.want_under_high(group);
            }
        }
        step
    }

    /// Keeps some pages free: begins to evict below the low mark, and goes on up to the high mark.
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
        let tick = background.now() + 1;
        if background.futile_at.load(Ordering::Relaxed) == tick {
            return Step::Idle;
        }
        let want = PageCount((background.high - free.0).min(STEP_PAGES));
        let shrunk = self.shrink(GroupId::ROOT, want, background.io());
        if shrunk.freed.0 == 0 && !StoreScope::is_any_open() {
            background.futile_at.store(tick, Ordering::Relaxed);
        }
        let free = self.free_with_stocks(|free| free.0 >= background.high).0;
        let more = shrunk.freed.0 > 0 && free < background.high;
        // Pages that were skipped can be freed as soon as this thread's call to a store ends.
        let later = !more && free < background.high && StoreScope::is_any_open();
        background.evicting.store(more || later, Ordering::Relaxed);
        if later {
            background.kick();
        }
        if more { Step::More } else { Step::Idle }
    }

    /// Calls owners to write, until one has written something. They write blocks of any age if too
    /// many are dirty, otherwise only old ones. If the memory has threads that write, owners write
    /// nothing in the call, so all of them are called. An owner that is listed during the walk
    /// might be called only in the next one. Its blocks are young, and if too many are dirty, the
    /// next step walks again.
    fn write_old_blocks(&self) -> Step {
        let background = &self.background;
        let dirty = self.dirty_pages().0;
        let now = background.now();
        let wanted = background.flush_wanted.swap(false, Ordering::Relaxed);
        let too_much = wanted || dirty > background.most_dirty;
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
        // Calls one owner after the other, until one has written something or all were called.
        for _ in 0..self.owners.flushable() {
            let last = OwnerId(background.last_owner.load(Ordering::Relaxed));
            let Some((id, owner)) = self.owners.next_flushable(last) else {
                break;
            };
            failpoint!(OwnerAsked);
            background.last_owner.store(id.0, Ordering::Relaxed);
            let _working = self.progress.begin();
            let _scope = self.owner_scope();
            let written = owner.flush(&request);
            self.counters.add(Event::PgWriteback, written.0);
            if written.0 > 0 {
                return Step::More;
            }
        }
        // In a call to a store, owners skip blocks that they can write as soon as that call ends.
        if StoreScope::is_any_open() {
            if wanted {
                background.want_flush();
            }
            return Step::Idle;
        }
        background.flushed_at.store(now, Ordering::Relaxed);
        // If no flush is under way, this ends the waits for one.
        background.flushing.note_idle();
        Step::Idle
    }
}
