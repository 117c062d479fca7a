//! Charges and uncharges pages through the thread's stock; the guard that holds a charge. A charge
//! or uncharge that the stock cannot serve changes the counters (`counters`).

use super::counters::Ceiling;
use super::levels::Levels;
use super::{GroupId, GroupTree, Underflow};
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
    /// The thread's stock: no level has changed.
    Stock,
    /// The levels. Holds the nearest group that was over its `high` after this charge, if any. A
    /// transfer does not look for one.
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

    /// Returns the number of pages charged.
    pub(crate) fn pages(&self) -> PageCount {
        self.pages
    }

    /// Returns the nearest group that was over its `high` after this charge. The caller must
    /// reclaim for that group, or is slowed down.
    #[inline]
    pub(crate) fn over_high(&self) -> Option<GroupId> {
        match self.source {
            Source::Stock => None,
            Source::Levels(over_high) => over_high,
        }
    }

    /// Returns whether the pages came from a stock, so that no group's usage has changed.
    #[inline]
    pub(crate) fn is_from_stock(&self) -> bool {
        self.source == Source::Stock
    }

    /// Ends the guard, and returns the group. The pages stay charged until the caller gives them
    /// back by [`GroupTree::uncharge`].
    pub(crate) fn commit(self) -> GroupId {
        let group = self.group;
        std::mem::forget(self);
        group
    }
}

impl Drop for Charge<'_> {
    // Inlined, and the fields are passed by value: if a charge's address were taken, the charge
    // would be kept in memory, and reloaded whenever it moves.
    #[inline(always)]
    fn drop(&mut self) {
        self.tree
            .give_back(self.group, self.pages, self.over_high());
    }
}

/// How far a charge may go to get its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The thread's stock only: no level changes.
    Stock,
    /// The stock, or a new batch for it. If no batch fits, the charge is refused. This way, a
    /// long write leaves some pages for index nodes and for other threads.
    Batch,
    /// The stock, a batch, or the requested pages alone, if every `max` and `high` allows them.
    High,
    /// The stock, a batch, or the requested pages alone, if every `max` allows them. If necessary,
    /// the stocks of other threads are drained first. A refusal is counted as an event.
    Max,
    /// Like [`Reach::Max`], for another attempt after a refusal: a further refusal is not counted.
    MaxAgain,
}

impl GroupTree {
    /// Charges `pages` to `group` and to every group above it, or charges nothing at all. So either
    /// all pages of a block are charged, or none (M13).
    ///
    /// # Errors
    /// The group that has no room within `reach`. With a reach short of [`Reach::Max`], nothing was
    /// counted and no other thread's stock was drained.
    #[inline(always)]
    pub(crate) fn charge(
        &self,
        group: GroupId,
        pages: PageCount,
        reach: Reach,
    ) -> Result<Charge<'_>, GroupId> {
        let number = thread_number();
        let source = match self.stocks.charge(number, group, pages.0) {
            true => Source::Stock,
            false => Source::Levels(self.charge_slow(number, group, pages, reach)?),
        };
        let tree = self;
        Ok(Charge {
            tree,
            group,
            pages,
            source,
        })
    }

    /// Returns the number of pages in a thread's first batch; 0 if threads have no stocks.
    pub(crate) fn first_batch(&self) -> usize {
        self.stocks.first_batch() as usize
    }

    /// Charges pages that the thread's stock lacks, as far as `reach` allows: takes a batch, or the
    /// pages alone, if necessary after draining the stocks of other threads. Returns the nearest
    /// group that is over its `high` now, or the group that refused as the error.
    #[cold]
    #[inline(never)]
    fn charge_slow(
        &self,
        number: usize,
        group: GroupId,
        pages: PageCount,
        reach: Reach,
    ) -> Result<Option<GroupId>, GroupId> {
        if reach == Reach::Stock {
            return Err(group);
        }
        if self.stocks.refill(self, number, group, pages.0) {
            return Ok(None);
        }
        if reach == Reach::Batch {
            return Err(group);
        }
        self.stocks.settle(self, number, group);
        if reach == Reach::High {
            let stocked = self.stocks.count(number, group);
            return self.add_levels(group, None, pages, Ceiling::BelowHigh, stocked);
        }
        let exactly = || self.charge_levels(number, group, pages);
        let charged =
            exactly().or_else(|refuser| self.stocks.drain_until(self, number, refuser, exactly));
        if let (Err(group), Reach::Max) = (&charged, reach) {
            self.count(*group, 1, |events| &events.refused);
        }
        charged
    }

    /// Moves pages of a committed charge from the group `from` to the group `to`. Groups that are
    /// above both count the pages throughout: no other request gets them meanwhile, and none of
    /// these groups can refuse them.
    ///
    /// # Errors
    /// `to`, or a group that is above `to` but not above `from`, has no room for the pages. They
    /// stay with `from`.
    #[cold]
    pub(crate) fn transfer(
        &self,
        from: GroupId,
        to: GroupId,
        pages: PageCount,
    ) -> Result<Charge<'_>, GroupId> {
        let number = thread_number();
        let above_both = self.path(to).find(|above| self.is_below(from, *above));
        let stocked = self.stocks.count(number, to);
        self.add_levels(to, above_both, pages, Ceiling::Enforced, stocked)?;
        let stocked = self.stocks.settle(self, number, from);
        self.uncharge_levels(from, above_both, pages, stocked);
        Ok(Charge {
            tree: self,
            group: to,
            pages,
            source: Source::Levels(None),
        })
    }

    /// Gives back a charge that was not committed.
    #[cold]
    #[inline(never)]
    fn give_back(&self, group: GroupId, pages: PageCount, over_high: Option<GroupId>) {
        match over_high {
            None => self.uncharge(group, pages),
            // The pages do not go back to the stock: from there they would be charged again without
            // checking `high`.
            Some(_) => self.uncharge_past_stock(thread_number(), group, pages),
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

    /// Like [`GroupTree::uncharge`], but returns an error instead of panicking, with no counter
    /// changed.
    ///
    /// # Panics
    /// This or a later call may panic if too few pages are in use and the missing ones are in other
    /// threads' stocks, which are not looked at here.
    #[inline]
    pub(super) fn try_uncharge(&self, group: GroupId, pages: PageCount) -> Result<(), Underflow> {
        let number = thread_number();
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
            if self.stocks.uncharge(self, number, group, pages.0) {
                return Ok(());
            }
        }
        self.uncharge_past_stock(number, group, pages);
        Ok(())
    }

    /// Takes `pages` off the levels, without putting them in the stock of the thread with this
    /// number.
    fn uncharge_past_stock(&self, number: usize, group: GroupId, pages: PageCount) {
        let stocked = self.stocks.settle(self, number, group);
        self.uncharge_levels(group, None, pages, stocked);
    }

    /// Gives back the pages that all threads have in stock for `group` and the groups below it.
    pub(crate) fn drain_stocks(&self, group: GroupId) {
        self.stocks.drain(self, thread_number(), group);
    }
}

#[cfg(all(test, not(loom)))]
mod for_tests {
    use super::*;
    use crate::stats::as_thread;

    impl GroupTree {
        /// Charges `pages` if every `max` allows them ([`Reach::Max`]).
        pub(crate) fn try_charge(
            &self,
            group: GroupId,
            pages: PageCount,
        ) -> Result<Charge<'_>, GroupId> {
            self.charge(group, pages, Reach::Max)
        }

        /// Like [`GroupTree::try_charge`], as the thread with this number, which no other thread
        /// has.
        pub(crate) fn try_charge_as(
            &self,
            number: usize,
            group: GroupId,
            pages: PageCount,
        ) -> Result<Charge<'_>, GroupId> {
            as_thread(number, || self.try_charge(group, pages))
        }
    }
}
