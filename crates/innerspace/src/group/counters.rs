//! The hierarchical counter: adds pages to a group and to all above it, all or nothing, and takes
//! them off again.

use super::levels::Levels;
use super::node::Node;
use super::{GroupId, GroupTree, MAX_LEVELS, Underflow};
use crate::sync::atomic::Ordering;
use crate::sys::copy;
use crate::units::PageCount;

/// The limits that can refuse a charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ceiling {
    /// `max`, less the room that is kept for lent pages.
    Enforced,
    /// The whole `max`: for pages for which room is kept.
    Kept,
    /// Like `Enforced`, and `high` too: for the stock, and for callers that can charge in another
    /// way if refused.
    BelowHigh,
}

impl Node {
    /// Returns the usage up to which a charge is granted: `max`, less the room that is kept for
    /// pages that were set aside and are lent.
    pub(super) fn limit(&self) -> u64 {
        let lent = self.lent.load(Ordering::Relaxed);
        self.max.load(Ordering::Relaxed).saturating_sub(lent)
    }

    /// Returns how many pages can be added before usage exceeds the limit or `high`.
    fn margin(&self) -> u64 {
        let limit = self.limit().min(self.high.load(Ordering::Relaxed));
        limit.saturating_sub(self.usage.load(Ordering::Relaxed))
    }

    /// Adds to `usage` unless that would exceed a limit, and returns the new usage. Uses
    /// compare-and-swap rather than add-and-undo, so that usage never exceeds `max`, even for an
    /// instant, and an attempt that fails here never causes another charge to be refused here.
    #[inline]
    fn try_add(&self, pages: u64, ceiling: Ceiling) -> Option<u64> {
        let add = |usage: u64| {
            let limit = match ceiling {
                Ceiling::Enforced => self.limit(),
                Ceiling::Kept => self.max.load(Ordering::Relaxed),
                Ceiling::BelowHigh => self.limit().min(self.high.load(Ordering::Relaxed)),
            };
            usage.checked_add(pages).filter(|new| *new <= limit)
        };
        // Acquire pairs with `checked_take`. Frames are freed before their charges are given back.
        // So a thread whose charge was made possible by pages given back finds their frames, even
        // those that were put in magazines by plain stores.
        let added = (self.usage).fetch_update(Ordering::Acquire, Ordering::Relaxed, add);
        added.ok().map(|before| before + pages)
    }
}

/// Takes `pages` off a counter, and returns the new value. If the counter has fewer, leaves it
/// unchanged and returns its value as `Err`. Each attempt first calls `before` with the counter's
/// value.
#[inline]
fn checked_take(
    counter: &crate::sync::atomic::AtomicU64,
    pages: u64,
    before: impl Fn(u64),
) -> Result<u64, u64> {
    // SeqCst: `GroupTree::remove` stores the node's state and then reads its usage, and the last
    // uncharge writes the usage and then reads the state. One of the two sees the other's write (on
    // x86-64 the ordering costs nothing here). For `own`, Release is enough: it pairs with
    // `Stocks::in_use`.
    counter
        .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |value| {
            before(value);
            value.checked_sub(pages)
        })
        .map(|old| old - pages)
}

impl GroupTree {
    /// Charges every level, or charges none and returns the group that refused as the error. On
    /// success returns the nearest group that is over its `high` now, and counts the event for it.
    pub(super) fn charge_levels(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Option<GroupId>, GroupId> {
        let stocked = self.stocks.count(number, group);
        let over_high = self.add_levels(group, None, pages, Ceiling::Enforced, stocked)?;
        if let Some(id) = over_high {
            self.count(id, 1, |events| &events.high);
        }
        Ok(over_high)
    }

    /// Adds `pages` to `usage` at every level from `group` up to `end`, which is not included (up
    /// to the root if `end` is `None`), and to `own` of `group`. Notes new peaks, in which the
    /// `stocked` pages do not count. If a level refuses, undoes the additions and returns the group
    /// that refused as the error. On success returns the nearest group that is over its `high` now.
    pub(super) fn add_levels(
        &self,
        group: GroupId,
        end: Option<GroupId>,
        pages: PageCount,
        ceiling: Ceiling,
        stocked: u64,
    ) -> Result<Option<GroupId>, GroupId> {
        self.fetch_levels(group);
        let levels = || self.path(group).take_while(|id| Some(*id) != end);
        let mut reached = [0; MAX_LEVELS];
        let (mut rises, mut over_high) = (false, None);
        for (level, id) in levels().enumerate() {
            let node = self.node(id);
            let Some(usage) = node.try_add(pages.0, ceiling) else {
                self.undo_levels(group, level, pages);
                return Err(id);
            };
            reached[level] = usage;
            rises |= node.is_peak(usage.saturating_sub(stocked));
            if usage > node.high.load(Ordering::Relaxed) {
                over_high = over_high.or(Some(id));
            }
        }
        // Every level has granted the pages: only from here on may anything but `usage` change.
        self.node(group).own.fetch_add(pages.0, Ordering::Relaxed);
        if rises {
            for (id, usage) in levels().zip(reached) {
                self.node(id).note_peak(usage.saturating_sub(stocked));
            }
        }
        Ok(over_high)
    }

    /// Prefetches the counters of all levels together: a cache line that another thread has changed
    /// takes a long time to arrive, and atomic operations on several such lines would wait one
    /// after the other.
    fn fetch_levels(&self, group: GroupId) {
        for id in self.path(group) {
            copy::prefetch_to_write::<1>(std::ptr::from_ref(&self.node(id).usage).cast());
        }
    }

    /// Undoes a charge at the first `levels` nodes from `group` upwards.
    fn undo_levels(&self, group: GroupId, levels: usize, pages: PageCount) {
        for id in self.path(group).take(levels) {
            let usage = &self.node(id).usage;
            checked_take(usage, pages.0, |_| ()).expect("the level was charged just now");
        }
    }

    /// Takes `pages` off every level from `group` up to `end`, which is not included (up to the
    /// root if `end` is `None`), and off `own` of `group`. Until now, all of the usage except
    /// `stocked` pages may have been in use. This peak is noted here, because charges from a stock
    /// note none. Frees the numbers of deleted groups that have no pages left.
    ///
    /// # Panics
    /// If the group is charged for fewer pages. No counter has changed then (M14).
    pub(super) fn uncharge_levels(
        &self,
        group: GroupId,
        end: Option<GroupId>,
        pages: PageCount,
        stocked: u64,
    ) {
        self.fetch_levels(group);
        let wanted = pages.0;
        if let Err(charged) = checked_take(&self.node(group).own, wanted, |_| ()) {
            let underflow = Underflow {
                group,
                charged,
                wanted,
            };
            panic!("{underflow}");
        }
        // `path` has read a node's parent before it returns the node: once the last page is taken
        // off, the node may be reused for another group.
        for id in self.path(group).take_while(|id| Some(*id) != end) {
            let node = self.node(id);
            // The peak is noted before the pages are taken off: `GroupTree::peak` relies on this
            // order.
            let note = |usage: u64| node.note_peak(usage.saturating_sub(stocked));
            let was_over = node.over.load(Ordering::Relaxed);
            let left = checked_take(&node.usage, pages.0, note).expect("usage covers own (I8)");
            if was_over {
                self.note_over(node);
            }
            if left == 0 && node.is_deleted() {
                // Each level is checked separately: another thread may already have released the
                // level below.
                self.release(id);
            }
        }
    }
}

impl Levels for GroupTree {
    fn add_batch(&self, group: GroupId, pages: u32, stocked: u32) -> bool {
        let (pages, stocked) = (PageCount(pages.into()), stocked.into());
        let added = self.add_levels(group, None, pages, Ceiling::BelowHigh, stocked);
        added.is_ok()
    }

    fn margin(&self, group: GroupId) -> u64 {
        let margins = self.path(group).map(|id| self.node(id).margin());
        margins.min().unwrap_or(0)
    }

    fn take_off(&self, group: GroupId, pages: u64) {
        self.uncharge_levels(group, None, PageCount(pages), pages);
    }

    fn note_peak(&self, group: GroupId, stocked: u32) {
        for id in self.path(group) {
            let node = self.node(id);
            let usage = node.usage.load(Ordering::Relaxed);
            node.note_peak(usage.saturating_sub(stocked.into()));
        }
    }

    fn is_below(&self, group: GroupId, top: GroupId) -> bool {
        self.path(group).any(|id| id == top)
    }

    fn is_deleted(&self, group: GroupId) -> bool {
        self.node(group).is_deleted()
    }
}
