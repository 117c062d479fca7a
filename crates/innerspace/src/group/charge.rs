//! Charges and uncharges through the thread's stock, and the guard in between. Pages that do not
//! fit in the stock go to the counters (`counters`).

use super::counters::Ceiling;
use super::levels::Levels;
use super::stock::Stocked;
use super::{GroupId, GroupTree, Refused, Underflow};
use crate::stats::thread_number;
use crate::sync::failpoint;
use crate::units::PageCount;

/// Pages charged to a group, not yet carried by a frame. Dropping the charge gives them back.
#[must_use = "a charge that is dropped is given back at once"]
pub(crate) struct Charge<'t> {
    tree: &'t GroupTree,
    group: GroupId,
    pages: PageCount,
    source: Source,
}

/// Where a charge came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// A stock: no level has changed.
    Stock,
    /// The levels. The nearest group that was over its `high` with the charge, if any.
    Levels(Option<GroupId>),
}

impl std::fmt::Debug for Charge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Charge({} pages, group {})", self.pages.0, self.group.0)
    }
}

impl Charge<'_> {
    /// Returns the group charged.
    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// Returns the pages charged.
    pub(crate) fn pages(&self) -> PageCount {
        self.pages
    }

    /// Returns the nearest group that was over its `high` with this charge. The caller has to
    /// reclaim for it, or is slowed down.
    #[inline]
    pub(crate) fn over_high(&self) -> Option<GroupId> {
        match self.source {
            Source::Stock => None,
            Source::Levels(over_high) => over_high,
        }
    }

    /// Whether the pages came from a stock, so that no group's usage has changed.
    #[inline]
    pub(crate) fn is_from_stock(&self) -> bool {
        self.source == Source::Stock
    }

    /// Ends the guard. The pages stay charged until the caller gives them back by
    /// [`GroupTree::uncharge`].
    pub(crate) fn commit(self) -> GroupId {
        let group = self.group;
        std::mem::forget(self);
        group
    }
}

impl Drop for Charge<'_> {
    // Inlined, and the calls take values: a charge whose address is taken is kept in memory, and is
    // read from there each time that it moves.
    #[inline(always)]
    fn drop(&mut self) {
        self.tree
            .give_back(self.group, self.pages, self.over_high());
    }
}

impl GroupTree {
    #[inline(always)]
    fn charge_from(&self, source: Source, group: GroupId, pages: PageCount) -> Charge<'_> {
        Charge {
            tree: self,
            group,
            pages,
            source,
        }
    }

    /// Charges `pages` to `group` and to every group above it, or charges nothing at all. The same
    /// holds for the pages of one block (M13).
    #[inline]
    pub(crate) fn try_charge(
        &self,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        self.try_charge_at(thread_number(), group, pages)
    }

    /// Tries [`GroupTree::try_charge`] again after a refusal. All attempts together count as one
    /// refusal.
    #[cold]
    #[inline(never)]
    pub(crate) fn try_charge_again(
        &self,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        let over_high = self.charge_slow(thread_number(), group, pages);
        let over_high = over_high.map_err(|group| Refused { group })?;
        Ok(self.charge_from(Source::Levels(over_high), group, pages))
    }

    /// Like [`GroupTree::try_charge`], by the thread with this number.
    #[inline(always)]
    pub(super) fn try_charge_at(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        let source = match self.stocks.charge(number, group, pages.0) {
            true => Source::Stock,
            false => Source::Levels(self.charge_or_refuse(number, group, pages)?),
        };
        Ok(self.charge_from(source, group, pages))
    }

    /// Charges one page if the thread has it in stock. No level changes.
    #[inline(always)]
    pub(crate) fn try_charge_stocked(&self, group: GroupId) -> Option<Charge<'_>> {
        let charged = self.stocks.charge(thread_number(), group, 1);
        charged.then(|| self.charge_from(Source::Stock, group, PageCount(1)))
    }

    /// Returns the pages of a thread's first batch; 0 if threads have no stocks.
    pub(crate) fn first_batch(&self) -> usize {
        self.stocks.first_batch() as usize
    }

    /// Charges one page from the thread's stock, which is filled with a batch if it is empty.
    /// Returns `None` where a batch does not fit: so the pages of a long write leave some for nodes
    /// and for other threads. Nothing counts as refused.
    pub(crate) fn try_charge_batched(&self, group: GroupId) -> Option<Charge<'_>> {
        let number = thread_number();
        let source = match self.stocks.charge(number, group, 1) {
            true => Source::Stock,
            false if self.stocks.refill(self, number, group, 1) => Source::Levels(None),
            false => return None,
        };
        Some(self.charge_from(source, group, PageCount(1)))
    }

    /// Charges one page below every `max` and `high`: from the thread's stock, with a batch, or
    /// alone. Returns `None` where these do not suffice. Then nothing was refused or counted and no
    /// stock was drained: use [`GroupTree::try_charge`].
    #[inline]
    pub(crate) fn try_charge_unrefused(&self, group: GroupId) -> Option<Charge<'_>> {
        self.try_charge_unrefused_at(thread_number(), group)
    }

    /// Like [`GroupTree::try_charge_unrefused`], by the thread with this number.
    #[inline]
    pub(super) fn try_charge_unrefused_at(
        &self,
        number: usize,
        group: GroupId,
    ) -> Option<Charge<'_>> {
        let source = match self.stocks.charge(number, group, 1) {
            true => Source::Stock,
            false if self.charge_one_below(number, group) => Source::Levels(None),
            false => return None,
        };
        Some(self.charge_from(source, group, PageCount(1)))
    }

    #[cold]
    fn charge_one_below(&self, number: usize, group: GroupId) -> bool {
        if self.stocks.refill(self, number, group, 1) {
            return true;
        }
        self.stocks.settle(self, number, group);
        let stocked = self.stocks.count(number, group);
        let added = self.add_levels(group, None, PageCount(1), Ceiling::BelowHigh, stocked);
        added.is_ok()
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

    /// Charges where the stock has too little: a batch, the pages alone, or the pages after other
    /// threads have given their stocks back.
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
        let exactly = || self.charge_levels(number, group, pages);
        exactly().or_else(|refuser| self.stocks.drain_until(self, number, refuser, exactly))
    }

    /// Moves pages that a committed charge left with `from` to another group. The groups above both
    /// of them count the pages all the while: no other request gets them in between, and none of
    /// these groups can refuse them.
    ///
    /// # Errors
    /// A group that is above `to` but not above `from` has no room for them. They stay with `from`.
    #[cold]
    pub(crate) fn transfer(
        &self,
        from: GroupId,
        to: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, Refused> {
        let number = thread_number();
        let above_both = self.path(to).find(|above| self.is_below(from, *above));
        let stocked = self.stocks.count(number, to);
        let added = self.add_levels(to, above_both, pages, Ceiling::Enforced, stocked);
        added.map_err(|group| Refused { group })?;
        let stocked = self.stocks.settle(self, number, from);
        if let Err(underflow) = self.uncharge_levels(from, above_both, pages, stocked) {
            panic!("{underflow}");
        }
        Ok(self.charge_from(Source::Levels(None), to, pages))
    }

    /// Gives back a charge that was not committed.
    #[cold]
    #[inline(never)]
    fn give_back(&self, group: GroupId, pages: PageCount, over_high: Option<GroupId>) {
        if over_high.is_none() {
            return self.uncharge(group, pages);
        }
        // The pages do not go back to the stock: from there they would be charged again without a
        // look at `high`.
        if let Err(underflow) = self.uncharge_past_stock(thread_number(), group, pages) {
            panic!("{underflow}");
        }
    }

    /// Gives back `pages` of a committed charge to `group`.
    ///
    /// # Panics
    /// If fewer pages are charged. The counters are wrong then, and continuing would let the limit
    /// be exceeded (M14).
    #[inline]
    pub(crate) fn uncharge(&self, group: GroupId, pages: PageCount) {
        if let Err(underflow) = self.try_uncharge(group, pages) {
            panic!("{underflow}");
        }
    }

    /// Like [`GroupTree::uncharge`], but returns an error instead of panicking. No counter has
    /// changed then.
    #[inline]
    pub(crate) fn try_uncharge(&self, group: GroupId, pages: PageCount) -> Result<(), Underflow> {
        self.try_uncharge_at(thread_number(), group, pages)
    }

    /// Like [`GroupTree::try_uncharge`], by the thread with this number.
    #[inline]
    pub(super) fn try_uncharge_at(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<(), Underflow> {
        // Pages that are in other threads' stocks are checked when these stocks are drained.
        let in_use = self.stocks.in_use(number, group, &self.node(group).own);
        if in_use < pages.0 {
            return Err(Underflow {
                group,
                charged: in_use,
                wanted: pages.0,
            });
        }
        if !self.is_any_over(group) {
            failpoint!(NotOver);
            if self.stocks.uncharge(self, number, group, pages.0) == Stocked::Yes {
                return Ok(());
            }
        }
        self.uncharge_past_stock(number, group, pages)
    }

    /// Takes `pages` off the levels, past the stock of the thread with this number.
    fn uncharge_past_stock(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
    ) -> Result<(), Underflow> {
        let stocked = self.stocks.settle(self, number, group);
        self.uncharge_levels(group, None, pages, stocked)
    }

    /// Gives back the stocks of `group` and of the groups below it.
    pub(crate) fn drain_stocks(&self, group: GroupId) {
        self.stocks.drain(self, thread_number(), group);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod for_tests {
    use super::*;

    impl GroupTree {
        /// Like [`GroupTree::try_charge`], with a given thread number. For tests of other modules,
        /// where no other thread has this number.
        pub(crate) fn try_charge_as(
            &self,
            number: usize,
            group: GroupId,
            pages: PageCount,
        ) -> Result<Charge<'_>, Refused> {
            self.try_charge_at(number, group, pages)
        }
    }
}
