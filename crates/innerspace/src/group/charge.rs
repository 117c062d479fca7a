//! The hierarchical counter and the charge guard.

use super::levels::Levels;
use super::node::Node;
use super::stock::Stocked;
use super::{GroupId, GroupTree, MAX_LEVELS, Refused, Underflow};
use crate::stats::thread_number;
use crate::sync::atomic::Ordering;
use crate::sys::copy;
use crate::units::PageCount;

/// Which limits can refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ceiling {
    /// `max`.
    Enforced,
    /// None: the charge must succeed; going over `max` is counted.
    Ignored,
    /// `max` and `high`: for the stock, and for who asks again if this is refused, in the way that counts.
    BelowHigh,
}

/// Pages charged to a group, not yet carried by a frame. Dropped, they are given back.
#[must_use = "a charge that is dropped is given back at once"]
pub(crate) struct Charge<'t> {
    tree: &'t GroupTree,
    group: GroupId,
    pages: PageCount,
    over_high: Option<GroupId>,
    source: Source,
}

/// Where a charge came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// A stock: no level has changed.
    Stock,
    Levels,
}

impl std::fmt::Debug for Charge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Charge({} pages, group {})", self.pages.0, self.group.0)
    }
}

impl Charge<'_> {
    /// The group charged.
    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// The pages charged.
    pub(crate) fn pages(&self) -> PageCount {
        self.pages
    }

    /// The nearest group that was over its `high` with this charge: who charges has to do something about it.
    #[inline]
    pub(crate) fn over_high(&self) -> Option<GroupId> {
        self.over_high
    }

    /// Whether it came from a stock, so that no group's usage has changed.
    #[inline]
    pub(crate) fn is_from_stock(&self) -> bool {
        self.source == Source::Stock
    }

    /// Takes pages out, as a charge of their own.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline]
    pub(crate) fn split(&mut self, pages: PageCount) -> Self {
        let left = self.pages.0.checked_sub(pages.0);
        self.pages = PageCount(left.expect("a charge is split into parts of it"));
        Charge { pages, ..*self }
    }

    /// The pages stay charged; whoever takes the number over gives them back by [`GroupTree::uncharge`].
    pub(crate) fn commit(self) -> GroupId {
        let group = self.group;
        std::mem::forget(self);
        group
    }
}

impl Drop for Charge<'_> {
    // Compiled into who drops it, and what it calls is given values: one whose address was taken lies in memory, and is read back from
    // there each time it moves.
    #[inline(always)]
    fn drop(&mut self) {
        // Else all of it was split off.
        if self.pages.0 > 0 {
            self.tree.give_back(self.group, self.pages, self.over_high);
        }
    }
}

impl Node {
    /// Pages that pass neither limit.
    fn margin(&self) -> u64 {
        let limit = self.max.load(Ordering::Relaxed);
        let limit = limit.min(self.high.load(Ordering::Relaxed));
        limit.saturating_sub(self.usage.load(Ordering::Relaxed))
    }

    /// Adds to `usage` unless that would pass a limit; returns the new usage. Compare-and-swap rather than add-and-undo, so that
    /// usage is at or under `max` at every instant and a charge that will be undone refuses nobody on its own level.
    #[inline]
    fn try_add(&self, pages: u64, ceiling: Ceiling) -> Option<u64> {
        let mut usage = self.usage.load(Ordering::Relaxed);
        loop {
            let new = usage.checked_add(pages)?;
            let limit = match ceiling {
                Ceiling::Ignored => u64::MAX,
                Ceiling::Enforced => self.max.load(Ordering::Relaxed),
                Ceiling::BelowHigh => {
                    let high = self.high.load(Ordering::Relaxed);
                    self.max.load(Ordering::Relaxed).min(high)
                }
            };
            if new > limit {
                return None;
            }
            // Acquire: pairs with `checked_take`. Frames are freed before their charges are given back; whoever has charged what was
            // given back finds them, also those that are in magazines by plain stores.
            match self
                .usage
                .compare_exchange_weak(usage, new, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return Some(new),
                Err(now) => usage = now,
            }
        }
    }
}

/// What a charge came to that every level agreed to.
struct Added {
    /// The usage that each level reached, from the group charged up.
    reached: [u64; MAX_LEVELS],
    levels: usize,
    /// For some level that is a new peak.
    rises: bool,
    /// The nearest that is over its `high` now.
    over_high: Option<GroupId>,
}

/// Takes `pages` off a counter; `Err` with its value when there are fewer, and nothing changed. `before` sees each value that they are
/// about to be taken off.
#[inline]
fn checked_take(
    counter: &crate::sync::atomic::AtomicU64,
    pages: u64,
    before: impl Fn(u64),
) -> Result<u64, u64> {
    // SeqCst: `GroupTree::remove` stores its state and then reads usage; the last uncharge writes usage and then reads the
    // state. One of the two sees the other (on x86-64 the ordering is free here). Of `own`, Release: pairs with `Stocks::in_use`.
    counter
        .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |value| {
            before(value);
            value.checked_sub(pages)
        })
        .map(|old| old - pages)
}

impl GroupTree {
    /// Charges `pages` to `group` and to every group above it, or nothing at all. All or nothing for a block, too (M13).
    #[inline]
    pub(crate) fn try_charge(
        &self,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        self.try_charge_at(thread_number(), group, pages)
    }

    /// [`GroupTree::try_charge`] once more, after it was refused: that counts as one refusal, however often.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_again(
        &self,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        let over_high = self.charge_slow(thread_number(), group, pages);
        Ok(Charge {
            tree: self,
            group,
            pages,
            over_high: over_high.map_err(|group| Refused { group })?,
            source: Source::Levels,
        })
    }

    /// [`GroupTree::try_charge`] for tests of other modules, where no other thread has this number.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn try_charge_as(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        self.try_charge_at(number, group, pages)
    }

    /// [`GroupTree::try_charge`] by the thread with this number.
    #[inline(always)]
    pub(super) fn try_charge_at(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        let (over_high, source) = match self.stocks.charge(number, group, pages.0) {
            true => (None, Source::Stock),
            false => (self.charge_or_refuse(number, group, pages)?, Source::Levels),
        };
        Ok(Charge {
            tree: self,
            group,
            pages,
            over_high,
            source,
        })
    }

    /// Charges one page if the thread has it in stock: no level changes.
    #[inline(always)]
    pub(crate) fn try_charge_stocked(&self, group: GroupId) -> Option<Charge<'_>> {
        let charged = self.stocks.charge(thread_number(), group, 1);
        charged.then(|| Charge {
            tree: self,
            group,
            pages: PageCount(1),
            over_high: None,
            source: Source::Stock,
        })
    }

    /// Charges one page below every `max` and `high`: from the thread's stock, with a batch, or alone. `None` where that takes more;
    /// nobody was refused, nobody's stock was taken, and nothing is counted: ask [`GroupTree::try_charge`].
    #[inline]
    pub(crate) fn try_charge_unrefused(&self, group: GroupId) -> Option<Charge<'_>> {
        self.try_charge_unrefused_at(thread_number(), group)
    }

    /// [`GroupTree::try_charge_unrefused`] by the thread with this number.
    #[inline]
    pub(super) fn try_charge_unrefused_at(
        &self,
        number: usize,
        group: GroupId,
    ) -> Option<Charge<'_>> {
        let source = match self.stocks.charge(number, group, 1) {
            true => Source::Stock,
            false if self.charge_one_below(number, group) => Source::Levels,
            false => return None,
        };
        Some(Charge {
            tree: self,
            group,
            pages: PageCount(1),
            over_high: None,
            source,
        })
    }

    #[cold]
    fn charge_one_below(&self, number: usize, group: GroupId) -> bool {
        if self.stocks.refill(self, number, group, 1) {
            return true;
        }
        self.stocks.settle(self, number, group);
        let stocked = self.stocks.count(number, group);
        let added = self.add_levels(group, PageCount(1), Ceiling::BelowHigh, stocked);
        if let Ok(added) = &added {
            self.note_peaks(group, added, stocked);
        }
        added.is_ok()
    }

    /// Charges up to `most` pages: as many as the thread has in stock, which is filled if it is empty. `None` where a limit is too near
    /// for that; nobody was refused, and nothing is counted: ask [`GroupTree::try_charge`].
    pub(crate) fn try_charge_some(&self, group: GroupId, most: PageCount) -> Option<Charge<'_>> {
        let number = thread_number();
        let most = self.stocks.at_most(most.0);
        let (pages, source) = match self.stocks.charge_some(number, group, most) {
            0 if most > 0 && self.stocks.refill(self, number, group, most) => {
                (most, Source::Levels)
            }
            0 => return None,
            pages => (pages, Source::Stock),
        };
        Some(Charge {
            tree: self,
            group,
            pages: PageCount(pages),
            over_high: None,
            source,
        })
    }

    #[cold]
    fn charge_or_refuse(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Option<GroupId>, Refused> {
        self.charge_slow(number, group, pages).map_err(|group| {
            self.count(group, 1, |events| &events.refused);
            Refused { group }
        })
    }

    /// Charges every level, past the stock: the old way.
    #[cfg(feature = "tables")]
    pub(crate) fn try_charge_levels(
        &self,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        let charged = self.charge_levels(thread_number(), group, pages, Ceiling::Enforced);
        let over_high = charged.map_err(|group| Refused { group })?;
        Ok(Charge {
            tree: self,
            group,
            pages,
            over_high,
            source: Source::Levels,
        })
    }

    /// The stock has too little: a batch, the pages alone, or the pages after what others have in stock was given back.
    #[cold]
    fn charge_slow(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Option<GroupId>, GroupId> {
        if self.stocks.refill(self, number, group, pages.0) {
            return Ok(None);
        }
        self.stocks.settle(self, number, group);
        let exactly = || self.charge_levels(number, group, pages, Ceiling::Enforced);
        exactly().or_else(|refuser| self.stocks.drain_until(self, number, refuser, exactly))
    }

    /// Charges over any limit. For writeback and what else must not fail; counted as one event, by the nearest group that is
    /// over its limit now.
    pub(crate) fn charge_must(&self, group: GroupId, pages: PageCount) -> Charge<'_> {
        let number = thread_number();
        let over_high = match self.stocks.charge(number, group, pages.0) {
            true => None,
            false => self
                .charge_slow(number, group, pages)
                .or_else(|_| self.charge_levels(number, group, pages, Ceiling::Ignored))
                .unwrap_or_else(|group| unreachable!("group {} holds 2^64 pages", group.0)),
        };
        Charge {
            tree: self,
            group,
            pages,
            over_high,
            source: Source::Levels,
        }
    }

    /// Adds at every level, or at none: then the group that refused. Returns the nearest group that is over its `high` now.
    fn charge_levels(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
        ceiling: Ceiling,
    ) -> Result<Option<GroupId>, GroupId> {
        let stocked = self.stocks.count(number, group);
        let added = self.add_levels(group, pages, ceiling, stocked)?;
        // Every level agreed: only now may anything but `usage` move.
        self.note_peaks(group, &added, stocked);
        if let Some(id) = added.over_high {
            self.count(id, 1, |events| &events.high);
        }
        if ceiling == Ceiling::Ignored {
            let mut levels = self.path(group).zip(added.reached);
            let max = |id| self.node(id).max.load(Ordering::Relaxed);
            if let Some((id, _)) = levels.find(|(id, usage)| *usage > max(*id)) {
                self.count(id, 1, |events| &events.forced);
                self.path(group)
                    .for_each(|id| self.note_over(self.node(id)));
            }
        }
        Ok(added.over_high)
    }

    /// Adds at every level, or at none: then the group that refused. `stocked` is for a look at the peaks.
    fn add_levels(
        &self,
        group: GroupId,
        pages: PageCount,
        ceiling: Ceiling,
        stocked: u64,
    ) -> Result<Added, GroupId> {
        self.fetch_levels(group);
        let mut added = Added {
            reached: [0; MAX_LEVELS],
            levels: 0,
            rises: false,
            over_high: None,
        };
        let mut next = Some(group);
        while let Some(id) = next {
            let node = self.node(id);
            let Some(usage) = node.try_add(pages.0, ceiling) else {
                self.undo_levels(group, added.levels, pages);
                return Err(id);
            };
            added.reached[added.levels] = usage;
            added.levels += 1;
            added.rises |= node.is_peak(usage.saturating_sub(stocked));
            if added.over_high.is_none() && usage > node.high.load(Ordering::Relaxed) {
                added.over_high = Some(id);
            }
            next = node.parent();
        }
        self.node(group).own.fetch_add(pages.0, Ordering::Relaxed);
        Ok(added)
    }

    /// Has the counters of all levels on their way, all at once: what another thread has changed takes long to come, and the atomic
    /// operations on them wait for each other.
    fn fetch_levels(&self, group: GroupId) {
        for id in self.path(group) {
            copy::prefetch_line(std::ptr::from_ref(&self.node(id).usage).cast());
        }
    }

    /// Notes what the levels reached, less `stocked`, if that is more than before at any.
    #[inline]
    fn note_peaks(&self, group: GroupId, added: &Added, stocked: u64) {
        if !added.rises {
            return;
        }
        for (id, usage) in self.path(group).zip(added.reached) {
            self.node(id).note_peak(usage.saturating_sub(stocked));
        }
    }

    /// Takes the charge of the first `levels` nodes from `group` up back off.
    fn undo_levels(&self, group: GroupId, levels: usize, pages: PageCount) {
        let mut next = Some(group);
        for _ in 0..levels {
            let Some(id) = next else { break };
            let node = self.node(id);
            checked_take(&node.usage, pages.0, |_| ()).expect("the level was charged just now");
            next = node.parent();
        }
    }

    /// Gives back what was charged and not committed.
    #[cold]
    #[inline(never)]
    fn give_back(&self, group: GroupId, pages: PageCount, over_high: Option<GroupId>) {
        if over_high.is_none() {
            return self.uncharge(group, pages);
        }
        // Not in stock: from there it would be had again without a look at the mark.
        if let Err(underflow) = self.uncharge_past_stock(thread_number(), group, pages) {
            panic!("{underflow}");
        }
    }

    /// Gives back `pages` that a committed charge left with `group`.
    ///
    /// # Panics
    /// When fewer are charged: the books are wrong, and going on would let the limit be passed (M14).
    #[inline]
    pub(crate) fn uncharge(&self, group: GroupId, pages: PageCount) {
        if let Err(underflow) = self.try_uncharge(group, pages) {
            panic!("{underflow}");
        }
    }

    /// Like [`GroupTree::uncharge`], reporting instead of panicking; then no counter moved.
    #[inline]
    pub(crate) fn try_uncharge(&self, group: GroupId, pages: PageCount) -> Result<(), Underflow> {
        self.try_uncharge_at(thread_number(), group, pages)
    }

    /// [`GroupTree::try_uncharge`] by the thread with this number.
    #[inline]
    pub(super) fn try_uncharge_at(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<(), Underflow> {
        // What other threads have in stock is seen when it is drained.
        let in_use = self.stocks.in_use(number, group, &self.node(group).own);
        if in_use < pages.0 {
            return Err(Underflow {
                group,
                charged: in_use,
                wanted: pages.0,
            });
        }
        if !self.is_any_over(group)
            && self.stocks.uncharge(self, number, group, pages.0) == Stocked::Yes
        {
            return Ok(());
        }
        self.uncharge_past_stock(number, group, pages)
    }

    /// Gives `pages` back to the levels, by the thread with this number.
    fn uncharge_past_stock(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<(), Underflow> {
        let stocked = self.stocks.settle(self, number, group);
        self.uncharge_levels(group, pages, stocked)
    }

    /// Takes pages off every level. Up to now as many as there were may have been in use, but for `stocked`: it is noted, for who has
    /// charged from a stock that was full when its levels were last looked at has noted nothing.
    fn uncharge_levels(
        &self,
        group: GroupId,
        pages: PageCount,
        stocked: u64,
    ) -> Result<(), Underflow> {
        self.fetch_levels(group);
        checked_take(&self.node(group).own, pages.0, |_| ()).map_err(|charged| Underflow {
            group,
            charged,
            wanted: pages.0,
        })?;
        let mut next = Some(group);
        while let Some(id) = next {
            let node = self.node(id);
            // Read first: once its last page is taken off, the node may start another life.
            next = node.parent();
            // Before, not after: see above.
            let note = |usage: u64| node.note_peak(usage.saturating_sub(stocked));
            let was_over = node.over.load(Ordering::Relaxed);
            let left = checked_take(&node.usage, pages.0, note).expect("usage covers own (I8)");
            if was_over {
                self.note_over(node);
            }
            if left == 0 && node.is_deleted() {
                // Each level by itself: another thread may have released the one below already.
                self.release(id);
            }
        }
        Ok(())
    }

    /// Gives back what threads have in stock of `group` and of those below it.
    pub(crate) fn drain_stocks(&self, group: GroupId) {
        self.stocks.drain(self, thread_number(), group);
    }
}

impl Levels for GroupTree {
    fn add_batch(&self, group: GroupId, pages: u32, stocked: u32) -> bool {
        let (pages, stocked) = (PageCount(pages.into()), stocked.into());
        let added = self.add_levels(group, pages, Ceiling::BelowHigh, stocked);
        if let Ok(added) = &added {
            self.note_peaks(group, added, stocked);
        }
        added.is_ok()
    }

    fn margin(&self, group: GroupId) -> u64 {
        let margins = self.path(group).map(|id| self.node(id).margin());
        margins.min().unwrap_or(0)
    }

    fn take_off(&self, group: GroupId, pages: u64) {
        if let Err(underflow) = self.uncharge_levels(group, PageCount(pages), pages) {
            panic!("{underflow}");
        }
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
