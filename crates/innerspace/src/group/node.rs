//! One group's counters and limits.

use super::GroupId;
use super::block_sizes::BlockSizes;
use super::events::GroupEvents;
use super::stall::Stalls;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::units::PageCount;

const NO_PARENT: u32 = u32::MAX;

const FREE: u8 = 0;
const LIVE: u8 = 1;
const DELETED: u8 = 2;

/// The value for "no limit".
pub(super) const NO_LIMIT: u64 = u64::MAX;

/// Moves the fields after it to other cache lines. It is aligned to two lines, which processors
/// prefetch together.
#[derive(Default)]
#[repr(C, align(128))]
struct Apart;

/// One group's counters and limits, which are atomic, and two records under mutexes. `parent` is
/// constant while the node is not free.
///
/// The fields that charges write are on other cache lines than those that charges only read. So a
/// charge knows the path to the root before the first contended line has arrived.
///
/// A node is free by default. While it is free, only its state is meaningful.
#[derive(Default)]
#[repr(C, align(128))]
pub(crate) struct Node {
    /// Pages charged to this node and to all below it, including those in their stocks.
    pub(super) usage: AtomicU64,
    /// Pages charged to this node itself, including those in its stocks.
    pub(super) own: AtomicU64,
    /// The highest `usage` that a charge reached, without the pages in stock, up to the last
    /// [`super::GroupTree::take_peak`].
    peak: AtomicU64,
    /// The highest `usage` since the last [`super::GroupTree::take_peak`], without the pages in
    /// stock. Charges raise only this counter, not `peak`.
    recent_peak: AtomicU64,
    /// Pages of page-table and index nodes charged to this node itself (a part of `own`).
    pub(super) tables: AtomicU64,
    _apart: Apart,
    /// The hard limit in pages.
    pub(super) max: AtomicU64,
    /// Pages that were set aside and are lent: see [`super::aside`].
    pub(super) lent: AtomicU64,
    /// The mark above which a charge succeeds, but its caller must reclaim or is slowed down.
    pub(super) high: AtomicU64,
    pub(super) parent: AtomicU32,
    state: AtomicU8,
    /// Whether the tree counts the node as a group over its limit; see [`super::over`].
    pub(super) over: AtomicBool,
    pub(super) accessors: AtomicU32,
    /// Below this mark, the group's pages are evicted only when nothing unprotected is left.
    pub(super) low: AtomicU64,
    /// Below this mark, the group's pages are not evicted for other groups at all.
    pub(super) min: AtomicU64,
    /// The sum of `min` of the groups right below. It changes only under the tree's mutex.
    pub(super) owed: AtomicU64,
    _events_apart: Apart,
    /// Written by reclaim, and by charges that reach a limit.
    pub(super) events: EventCounters,
    pub(super) blocks: BlockSizes,
    /// The charges for heap memory. An innermost lock.
    pub(super) heap: Mutex<Ledger>,
    /// Created by the first stall.
    pub(super) stalls: Mutex<Option<Box<Stalls>>>,
}

/// The events of a group; see [`GroupEvents`].
#[derive(Default)]
pub(super) struct EventCounters {
    pub(super) refused: AtomicU64,
    pub(super) high: AtomicU64,
    pub(super) max: AtomicU64,
    pub(super) oom: AtomicU64,
    pub(super) reclaimed: AtomicU64,
}

impl EventCounters {
    fn all(&self) -> [&AtomicU64; 5] {
        [
            &self.refused,
            &self.high,
            &self.max,
            &self.oom,
            &self.reclaimed,
        ]
    }

    pub(super) fn load(&self) -> GroupEvents {
        let [refused, high, max, oom, reclaimed] =
            self.all().map(|counter| counter.load(Ordering::Relaxed));
        GroupEvents {
            high,
            max,
            oom,
            reclaimed: PageCount(reclaimed),
            refused,
        }
    }
}

/// The heap charges of one group: see [`super::heap`].
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) bytes: u64,
    /// The pages charged for `bytes`.
    pub(super) pages: u64,
}

impl Ledger {
    /// Removes the charged pages that the bytes no longer need, and returns their number. The
    /// caller uncharges them.
    pub(super) fn take_excess(&mut self) -> PageCount {
        let needed = PageCount::floor(self.bytes).0;
        let excess = self.pages.saturating_sub(needed);
        self.pages -= excess;
        PageCount(excess)
    }
}

impl Node {
    /// Initialises the node of a new group: Free -> Live. The caller holds the tree's mutex, and
    /// the number is free.
    pub(super) fn start(&self, parent: Option<GroupId>, max: u64) {
        let counters = [
            &self.usage,
            &self.own,
            &self.lent,
            &self.peak,
            &self.recent_peak,
            &self.low,
            &self.min,
            &self.owed,
            &self.tables,
        ];
        for counter in counters.into_iter().chain(self.events.all()) {
            counter.store(0, Ordering::Relaxed);
        }
        self.accessors.store(0, Ordering::Relaxed);
        *self.stalls.lock() = None;
        self.max.store(max, Ordering::Relaxed);
        self.high.store(NO_LIMIT, Ordering::Relaxed);
        let parent_number = parent.map_or(NO_PARENT, |parent| u32::from(parent.0));
        self.parent.store(parent_number, Ordering::Relaxed);
        self.state.store(LIVE, Ordering::SeqCst);
    }

    /// Deletes the group (Live -> Deleted): it no longer has a limit or protection, and its pages
    /// belong to its parent.
    pub(super) fn delete(&self) {
        self.max.store(NO_LIMIT, Ordering::Relaxed);
        self.high.store(NO_LIMIT, Ordering::Relaxed);
        self.low.store(0, Ordering::Relaxed);
        self.min.store(0, Ordering::Relaxed);
        self.state.store(DELETED, Ordering::SeqCst);
    }

    /// Frees the node of a deleted group (Deleted -> Free).
    pub(super) fn end(&self) {
        self.state.store(FREE, Ordering::SeqCst);
    }

    /// Returns the group above, or `None` at the root.
    #[inline]
    pub(super) fn parent(&self) -> Option<GroupId> {
        match self.parent.load(Ordering::Relaxed) {
            NO_PARENT => None,
            number => Some(GroupId(number as u16)),
        }
    }

    /// Returns whether the group is deleted and its node not yet free. SeqCst pairs with `remove`:
    /// either `remove` sees usage 0, or the last uncharge sees the new state.
    #[inline]
    pub(super) fn is_deleted(&self) -> bool {
        self.state.load(Ordering::SeqCst) == DELETED
    }

    pub(super) fn max_pages(&self) -> Option<PageCount> {
        limit(&self.max)
    }

    pub(super) fn high_pages(&self) -> Option<PageCount> {
        limit(&self.high)
    }

    /// Returns whether `usage` is higher than the recent peak.
    #[inline]
    pub(super) fn is_peak(&self, usage: u64) -> bool {
        usage > self.recent_peak.load(Ordering::Relaxed)
    }

    /// Notes that `usage` was reached.
    #[inline]
    pub(super) fn note_peak(&self, usage: u64) {
        if self.is_peak(usage) {
            self.recent_peak.fetch_max(usage, Ordering::Relaxed);
        }
    }

    /// Returns the highest `usage` noted so far.
    pub(super) fn highest(&self) -> u64 {
        // The recent peak is read first: `take_recent_peak` copies a peak to `peak` before it
        // resets `recent_peak`.
        let recent = self.recent_peak.load(Ordering::SeqCst);
        recent.max(self.peak.load(Ordering::SeqCst))
    }

    /// Returns the highest `usage` noted since the previous call; the next peak begins at `usage`.
    pub(super) fn take_recent_peak(&self, usage: u64) -> u64 {
        let seen = self.recent_peak.load(Ordering::SeqCst);
        self.peak.fetch_max(seen, Ordering::SeqCst);
        let taken = self.recent_peak.swap(usage, Ordering::SeqCst);
        self.peak.fetch_max(taken, Ordering::SeqCst);
        taken
    }
}

fn limit(of: &AtomicU64) -> Option<PageCount> {
    Some(PageCount(of.load(Ordering::Relaxed))).filter(|pages| pages.0 != NO_LIMIT)
}
