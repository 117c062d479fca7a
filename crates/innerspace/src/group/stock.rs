//! Charges in stock: taken from the tree a batch at a time, handed out without touching a shared line.
//!
//! A *slot* is one word: a group, and how many of its pages are charged but in nobody's hands. The pages of a slot count in the
//! `usage` of the group and of all above it, so limits hold as if they were in use; whoever reports usage takes them off. A slot with
//! pages keeps its group's number from being used again. Each stripe of threads has a few slots, chosen by the group's number.
//!
//! | bits | name | meaning |
//! |---|---|---|
//! | 0..16 | group | whose pages they are |
//! | 16..24 | count | pages in stock, at most a batch |
//! | 24..32 | low | the lowest count since the slot was last settled: tells how high usage was in between |
//!
//! | change | by | then |
//! |---|---|---|
//! | count - n | a charge | |
//! | count + n | an uncharge | at most a batch; half of it stays when it would be more |
//! | 0 -> batch - n | a refill | a batch was added to every level before |
//! | count -> 0 | drain: before a refusal, by a deletion, by another group's refill | the count is taken off every level |
//!
//! **No refusal while margin sits in stocks (M7).** Who is refused counts itself in `draining`, waits until no refill is under way, empties
//! the slots below the group that refused, and asks again, until nothing was left to empty. While `draining` is not 0, nobody refills
//! and nobody stocks what it gives back. The two counts are Dekker's: each side raises its own, a full fence, then reads the
//! other's; so a refill that did not see the drain is waited for, and every other thread puts pages in a slot at most once more.
//!
//! **Deletion (M6).** The group is marked deleted, then its slots are emptied; who stocks pages looks again at the mark afterwards. All four
//! are SeqCst: one of the two finds the other's.

use super::GroupId;
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::sync::thread;

/// Stripes of threads; more threads share slots and stay right.
pub(super) const STRIPES: usize = if cfg!(loom) { 2 } else { 16 };

/// Slots of a stripe: groups whose pages a thread can have in stock at once, where their numbers do not collide.
pub(super) const WAYS: usize = if cfg!(loom) { 1 } else { 8 };

/// Pages of a batch, unless the memory is small.
pub(super) const BATCH: u32 = 64;

/// The counters of a tree, as the stock needs them.
pub(super) trait Levels {
    /// Adds `pages` at every level from `group` up, if none of them then passes a limit of either kind. No event is counted.
    fn add_batch(&self, group: GroupId, pages: u32, stocked: u32) -> bool;

    /// Takes `pages` off every level.
    fn take_off(&self, group: GroupId, pages: u32);

    /// Usage was as high as it is now, less `stocked`.
    fn note_peak(&self, group: GroupId, stocked: u32);

    /// Whether `group` is `top` or below it.
    fn is_below(&self, group: GroupId, top: GroupId) -> bool;

    /// Whether the group is deleted: it keeps no stock.
    fn is_deleted(&self, group: GroupId) -> bool;
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(u32);

impl Slot {
    fn new(group: GroupId, count: u32) -> Slot {
        Slot(u32::from(group.0) | count << 16 | count << 24)
    }

    fn group(self) -> GroupId {
        GroupId(self.0 as u16)
    }

    fn count(self) -> u32 {
        self.0 >> 16 & 0xff
    }

    fn low(self) -> u32 {
        self.0 >> 24
    }

    fn with_count(self, count: u32) -> Slot {
        Slot(self.0 & 0xffff | count << 16 | self.low().min(count) << 24)
    }
}

/// The slots of one stripe, on a line of their own.
#[repr(align(64))]
struct Stripe([AtomicU32; WAYS]);

/// All stocks of one tree.
pub(super) struct Stocks {
    stripes: Box<[Stripe]>,
    /// Pages of a batch; 0 for no stock at all.
    batch: u32,
    /// Threads that were refused and are emptying slots.
    draining: AtomicU32,
    /// Threads that have a batch which is in no slot yet.
    refilling: AtomicU32,
}

/// How an uncharge ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stocked {
    /// The pages are in stock.
    Yes,
    /// They have to be taken off the levels.
    No,
}

impl Stocks {
    pub(super) fn new(batch: u32) -> Stocks {
        assert!(batch <= BATCH, "a slot's count has eight bits");
        let stripe = || Stripe(std::array::from_fn(|_| AtomicU32::new(0)));
        Stocks {
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
            batch,
            draining: AtomicU32::new(0),
            refilling: AtomicU32::new(0),
        }
    }

    #[inline]
    fn slot(&self, stripe: usize, group: GroupId) -> &AtomicU32 {
        &self.stripes[stripe % STRIPES].0[usize::from(group.0) % WAYS]
    }

    /// Charges from stock; false when there is not enough of this group's.
    #[inline]
    pub(super) fn charge(&self, stripe: usize, group: GroupId, pages: u64) -> bool {
        let slot = self.slot(stripe, group);
        let mut word = Slot(slot.load(Ordering::Relaxed));
        loop {
            let count = word.count();
            if word.group() != group || u64::from(count) < pages {
                return false;
            }
            let next = word.with_count(count - pages as u32);
            // Acquire: who drains or deletes later has seen the batch added. Release: the other way round.
            match slot.compare_exchange_weak(word.0, next.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = Slot(now),
            }
        }
    }

    /// Puts pages that were charged to `group` in stock.
    #[inline]
    pub(super) fn uncharge(
        &self,
        levels: &impl Levels,
        stripe: usize,
        group: GroupId,
        pages: u64,
    ) -> Stocked {
        if pages > u64::from(self.batch) || self.draining.load(Ordering::Relaxed) != 0 {
            return Stocked::No;
        }
        let slot = self.slot(stripe, group);
        let mut word = Slot(slot.load(Ordering::Relaxed));
        loop {
            let count = word.count() + pages as u32;
            if word.group() != group || count > self.batch {
                return self.overflow(levels, slot, word, group);
            }
            match slot.compare_exchange_weak(
                word.0,
                word.with_count(count).0,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => word = Slot(now),
            }
        }
        // mutant: M6 (loom: loom_a_deleted_group_keeps_no_stock)
        if cfg!(not(mutant = "M6")) && levels.is_deleted(group) {
            self.empty(levels, slot, |found| found == group);
        }
        Stocked::Yes
    }

    /// A full slot gives half of its pages back, so that the next uncharges find room and the next charges pages.
    #[cold]
    fn overflow(
        &self,
        levels: &impl Levels,
        slot: &AtomicU32,
        word: Slot,
        group: GroupId,
    ) -> Stocked {
        if word.group() == group && word.count() > self.batch / 2 {
            let kept = Slot::new(group, self.batch / 2);
            levels.note_peak(group, word.low());
            let exchanged =
                slot.compare_exchange(word.0, kept.0, Ordering::AcqRel, Ordering::Relaxed);
            if exchanged.is_ok() {
                levels.take_off(group, word.count() - kept.count());
            }
        }
        Stocked::No
    }

    /// Takes a batch, `pages` of it for the caller; false when a limit is too near for that.
    pub(super) fn refill(
        &self,
        levels: &impl Levels,
        stripe: usize,
        group: GroupId,
        pages: u64,
    ) -> bool {
        if pages > u64::from(self.batch) {
            return false;
        }
        self.refilling.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `drain_until`.
        fence(Ordering::SeqCst);
        let left = self.batch - pages as u32;
        let added = self.draining.load(Ordering::Relaxed) == 0 && !levels.is_deleted(group) && {
            self.settle(levels, stripe, group);
            let stocked = left + self.count(stripe, group) as u32;
            levels.add_batch(group, self.batch, stocked)
        };
        if added {
            self.stash(levels, stripe, group, left);
        }
        // Release: pairs with the Acquire in `drain_until`, which then finds the slot filled.
        self.refilling.fetch_sub(1, Ordering::Release);
        added
    }

    /// Puts the rest of a batch in its slot; what is there of another group, or too much of this one, is given back.
    fn stash(&self, levels: &impl Levels, stripe: usize, group: GroupId, pages: u32) {
        let slot = self.slot(stripe, group);
        let mut word = Slot(slot.load(Ordering::Relaxed));
        let given_back = loop {
            let (count, given_back) = match word.group() == group {
                true => {
                    let sum = word.count() + pages;
                    (
                        sum.min(self.batch),
                        (group, sum.saturating_sub(self.batch), 0),
                    )
                }
                false => (pages, (word.group(), word.count(), word.low())),
            };
            let next = Slot::new(group, count);
            match slot.compare_exchange_weak(word.0, next.0, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break given_back,
                Err(now) => word = Slot(now),
            }
        };
        let (other, count, low) = given_back;
        if count > 0 {
            if other != group {
                levels.note_peak(other, low);
            }
            levels.take_off(other, count);
        }
        if levels.is_deleted(group) {
            self.empty(levels, slot, |found| found == group);
        }
    }

    /// Pages of `group` that this stripe has in stock.
    pub(super) fn count(&self, stripe: usize, group: GroupId) -> u64 {
        let word = Slot(self.slot(stripe, group).load(Ordering::Relaxed));
        match word.group() == group {
            true => word.count().into(),
            false => 0,
        }
    }

    /// The usage of the group is about to change at its levels: notes how high it was since this was last called.
    pub(super) fn settle(&self, levels: &impl Levels, stripe: usize, group: GroupId) {
        settle(levels, self.slot(stripe, group), |found| found == group);
    }

    /// [`Stocks::settle`] for every slot of `top` and the groups below it.
    pub(super) fn settle_below(&self, levels: &impl Levels, top: GroupId) {
        for slot in self.stripes.iter().flat_map(|stripe| &stripe.0) {
            settle(levels, slot, |group| levels.is_below(group, top));
        }
    }

    /// Empties a slot if `wanted` says so of its group; returns the pages given back.
    fn empty(
        &self,
        levels: &impl Levels,
        slot: &AtomicU32,
        wanted: impl Fn(GroupId) -> bool,
    ) -> u64 {
        let mut word = Slot(slot.load(Ordering::SeqCst));
        while word.count() > 0 && wanted(word.group()) {
            let emptied = Slot::new(word.group(), 0);
            match slot.compare_exchange(word.0, emptied.0, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    levels.note_peak(word.group(), word.low());
                    levels.take_off(word.group(), word.count());
                    return word.count().into();
                }
                Err(now) => word = Slot(now),
            }
        }
        0
    }

    /// Gives back what all slots hold of `top` and the groups below it; returns the pages.
    pub(super) fn drain(&self, levels: &impl Levels, top: GroupId) -> u64 {
        let slots = self.stripes.iter().flat_map(|stripe| &stripe.0);
        slots
            .map(|slot| self.empty(levels, slot, |group| levels.is_below(group, top)))
            .sum()
    }

    /// Empties the slots below the group that refused and asks again, until `attempt` succeeds or no stock is left below the one
    /// that refused last.
    pub(super) fn drain_until<T>(
        &self,
        levels: &impl Levels,
        mut refused: GroupId,
        attempt: impl Fn() -> Result<T, GroupId>,
    ) -> Result<T, GroupId> {
        if self.batch == 0 {
            return Err(refused);
        }
        self.draining.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `refill`.
        fence(Ordering::SeqCst);
        let end = loop {
            while self.refilling.load(Ordering::Acquire) != 0 {
                thread::yield_now();
            }
            // mutant: M7 (test: what_other_threads_have_in_stock_is_no_reason_to_refuse; loom: loom_a_request_that_fits_is_not_refused_for_what_is_in_stock)
            if cfg!(mutant = "M7") || self.drain(levels, refused) == 0 {
                break Err(refused);
            }
            match attempt() {
                Ok(done) => break Ok(done),
                Err(group) => refused = group,
            }
        };
        self.draining.fetch_sub(1, Ordering::Release);
        end
    }

    /// Pages in stock of the groups that `wanted` names; exact when nobody charges.
    pub(super) fn sum(&self, wanted: impl Fn(GroupId) -> bool) -> u64 {
        self.sum_of(wanted, Slot::count)
    }

    /// Like [`Stocks::sum`], the lowest counts since the slots were settled.
    pub(super) fn sum_low(&self, wanted: impl Fn(GroupId) -> bool) -> u64 {
        self.sum_of(wanted, Slot::low)
    }

    fn sum_of(&self, wanted: impl Fn(GroupId) -> bool, what: impl Fn(Slot) -> u32) -> u64 {
        let slots = self.stripes.iter().flat_map(|stripe| &stripe.0);
        slots
            .map(|slot| Slot(slot.load(Ordering::Acquire)))
            .filter(|word| word.count() > 0 && wanted(word.group()))
            .map(|word| u64::from(what(word)))
            .sum()
    }
}

fn settle(levels: &impl Levels, slot: &AtomicU32, wanted: impl Fn(GroupId) -> bool) {
    let word = Slot(slot.load(Ordering::Relaxed));
    if word.low() < word.count() && wanted(word.group()) {
        levels.note_peak(word.group(), word.low());
        let settled = Slot::new(word.group(), word.count());
        // Another thread of the stripe was faster: as good.
        let _ = slot.compare_exchange(word.0, settled.0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
