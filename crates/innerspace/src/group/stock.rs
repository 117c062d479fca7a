//! The stock: charges that are taken from the tree in batches, and handed out without touching a
//! shared cache line.
//!
//! A *slot* is one word: a group, and how many of its pages are charged but not handed out. The
//! pages of a slot count in the `usage` of the group and of all above it, so limits hold as if
//! these pages were in use; reports of usage subtract them. A slot with pages keeps its group's
//! number from being used again. Each thread has a stripe of a few slots; the group's number
//! selects one of them. `sync::per_thread` has the protocol. If there are more threads than such
//! stripes, the other threads share a few more stripes, each with a mutex.
//!
//! `slot` describes the bits of the word.
//!
//! - A charge of n pages takes n off the count.
//! - An uncharge of n pages lowers low to the count, if that is lower, and then adds n to the
//!   count. If the slot would then hold more than it may, it keeps half of what it may hold, or all
//!   of that if n alone is more.
//! - A refill adds a batch less n to the count, which becomes at most the batch. The batch was
//!   first added to every level.
//! - A drain (before a refusal, by a deletion, or when `max` or `high` is set) sets count and most
//!   to 0, so that the next batch is a first one. The count is taken off every level.
//! - The refill of another group takes over group, count and most. The old count is taken off every
//!   level of the old group.
//!
//! **Batches grow.** A thread that keeps charging the same group takes twice as many pages each
//! time, as long as no limit is near (`PART`), so that threads which charge one group seldom
//! contend for its levels. When a limit is near, batches are small again. All slots with large
//! batches share a part of the memory (`Batches::all`): however many threads there are, most of the
//! memory is in use or free.
//!
//! **Peaks.** While the count of a slot only falls, the levels do not change, and the pages in use
//! are at their highest now, although no thread has noted that. A thread that takes pages off the
//! levels notes this peak, for all charges from stocks until then.
//!
//! **No refusal while there are pages in stocks (M7).** Pages *move* between the levels and a slot
//! in a refill, and where a slot is halved or emptied. A thread announces a move before it, and
//! counts it after. When the levels refuse a request, it is refused for good if nothing is in stock
//! below the refusing group, and nothing moves or has moved since before the attempt. (A refill
//! adds to the levels after its announcement, with a fence between the two: a thread that saw the
//! levels full sees the move, or the pages that it left in the slot.) Otherwise the request begins
//! to *drain*: from then on no thread refills its stock or puts pages in it. The request waits
//! until nothing moves, empties the slots below the refusing group, and tries again. It repeats
//! this until it succeeds, or there was nothing left to empty and no other thread has moved pages.
//! The two counts (moves and drains) work as in Dekker's algorithm: each side raises its own,
//! passes the asymmetric barrier, and then reads the other's. So a refill that did not see the
//! drain is waited for, and every other thread puts pages in a slot at most once more.
//!
//! **Deletion (M6).** The group is marked deleted, then its slots are emptied. A thread looks at
//! the mark while it changes its slots, so it sees the mark, or the deletion sees its change.
//!
//! **Giving back more than is charged (M14)** is detected before anything is stocked: the group's
//! own charge, less the thread's stock, is too small. The counter is read first, with Acquire, then
//! the slot. Pages found in an owned slot were charged before the owner put them there. A thread
//! that empties the slot takes them off the counter afterwards, with Release, and every change of
//! the counter meanwhile is a read-modify-write that continues that release. So either the counter
//! as it was read includes the pages, or the slot is found without them. A shared slot gives no
//! such guarantee, because another thread may fill it between the two reads. So shared slots are
//! not read, and an excess given back to one is detected when the slot is emptied.

use super::GroupId;
use super::levels::Levels;
use super::moves::Moves;
use super::slot::{Batches, FIELD, Slot};
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::per_thread::{Draining, OWNERS, SHARED, ThreadSlots};
use crate::sync::{Rank, thread};

/// The number of slots in a stripe. A thread can have pages of this many groups in stock, as long
/// as the group numbers do not collide.
pub(super) const WAYS: usize = if cfg!(loom) { 1 } else { 8 };

/// The slots of one stripe.
type Slots = [AtomicU64; WAYS];

fn empty_slots() -> Slots {
    std::array::from_fn(|_| AtomicU64::new(0))
}

/// All stocks of one tree.
pub(super) struct Stocks {
    stripes: ThreadSlots<Slots>,
    batches: Batches,
    moves: Moves,
}

#[inline(always)]
fn way(slots: &Slots, group: GroupId) -> &AtomicU64 {
    &slots[usize::from(group.0) % WAYS]
}

impl Stocks {
    pub(super) fn new(batches: Batches) -> Stocks {
        let Batches { first, largest, .. } = batches;
        assert!(u64::from(first.max(largest)) <= FIELD, "{batches:?}");
        Stocks {
            stripes: ThreadSlots::new(Rank::Slot, empty_slots),
            batches,
            moves: Moves::new(),
        }
    }

    /// Changes the slot for `group` of the thread with this number to the word that `next` returns,
    /// and returns the word before. Returns `None`, with no change, if `next` does, or while slots
    /// are being drained. `next` takes no lock.
    #[inline(always)]
    fn change(
        &self,
        number: usize,
        group: GroupId,
        next: impl FnOnce(Slot) -> Option<Slot>,
    ) -> Option<Slot> {
        let changed = self.stripes.with(number, |slots| {
            let slot = way(slots, group);
            // Relaxed: no other thread uses the slot meanwhile. `sync::per_thread` has the
            // orderings with uses before and after this one.
            let before = Slot(slot.load(Ordering::Relaxed));
            slot.store(next(before)?.0, Ordering::Relaxed);
            Some(before)
        });
        changed.flatten()
    }

    /// Changes the slot as [`Stocks::change`] does, and adds `pages`, which are charged to `group`
    /// but in no slot. Pages that the new word does not hold are taken off the levels, those of
    /// another group in the slot too. Returns false, with no change, if `next` returns no word, or
    /// while slots are being drained.
    fn exchange(
        &self,
        levels: &impl Levels,
        number: usize,
        group: GroupId,
        pages: u64,
        next: impl FnOnce(Slot) -> Option<Slot>,
    ) -> bool {
        let mut kept = 0;
        let change = self.change(number, group, |word| {
            next(word).inspect(|next| kept = next.count().into())
        });
        let Some(before) = change else {
            return false;
        };
        let left = match before.group() == group {
            true => u64::from(before.count()) + pages - kept,
            false => before.count().into(),
        };
        if left > 0 {
            levels.note_peak(before.group(), before.low());
            levels.take_off(before.group(), left);
        }
        true
    }

    /// Charges from the stock of the thread with this number. Returns false if it has too few pages
    /// of this group, or while slots are being drained.
    #[inline(always)]
    pub(super) fn charge(&self, number: usize, group: GroupId, pages: u64) -> bool {
        let change = self.change(number, group, |word| word.minus(group, pages));
        change.is_some()
    }

    /// Puts pages that were charged to `group` in stock. If they do not fit, makes room as
    /// `overflow` does, and takes the remaining pages off the levels. Returns false if nothing was
    /// done.
    #[inline]
    pub(super) fn uncharge(
        &self,
        levels: &impl Levels,
        number: usize,
        group: GroupId,
        pages: u64,
    ) -> bool {
        let change = self.change(number, group, |word| {
            let count = u64::from(word.count()).saturating_add(pages);
            let fits = word.group() == group
                && count <= self.room(word).into()
                && !levels.is_deleted(group);
            fits.then(|| word.plus(pages))
        });
        change.is_some() || self.overflow(levels, number, group, pages)
    }

    /// Returns how many pages a slot may hold.
    #[inline(always)]
    fn room(&self, word: Slot) -> u32 {
        word.most().max(self.batches.first)
    }

    /// Makes room in a full slot. The slot keeps half of what it may hold, so that the next
    /// uncharges find room and the next charges find pages; the rest is taken off the levels. If
    /// `pages` alone is more than the slot may hold, the slot stays full, since its thread will
    /// want more pages. Returns false if nothing was done.
    #[cold]
    fn overflow(&self, levels: &impl Levels, number: usize, group: GroupId, pages: u64) -> bool {
        if self.batches.first == 0 || self.stripes.drains().any() {
            return false;
        }
        let _moving = self.moves.begin(self.stripes.drains());
        self.exchange(levels, number, group, pages, |word| {
            let room = self.room(word);
            let kept = if pages > room.into() { room } else { room / 2 };
            let is_full = u64::from(word.count()).saturating_add(pages) > room.into();
            (word.group() == group && is_full && !levels.is_deleted(group))
                .then(|| Slot::new(group, kept, room))
        })
    }

    /// Takes a batch, `pages` of which go to the caller. Returns false if `pages` exceeds a first
    /// batch, the stocks are being drained, the group is deleted, or a limit is too near.
    pub(super) fn refill(
        &self,
        levels: &impl Levels,
        number: usize,
        group: GroupId,
        pages: u64,
    ) -> bool {
        if pages > u64::from(self.batches.first) {
            return false;
        }
        let _moving = self.moves.begin(self.stripes.drains());
        if self.stripes.drains().any() || levels.is_deleted(group) {
            return false;
        }
        self.settle(levels, number, group);
        let add = |batch: u32| {
            let left = batch - pages as u32;
            let stocked = left + self.count(number, group) as u32;
            levels.add_batch(group, batch, stocked).then_some(batch)
        };
        let batch = self.next_batch(levels, number, group);
        let first = self.batches.first;
        let added = add(batch).or_else(|| (batch > first).then(|| add(first)).flatten());
        let Some(most) = added else {
            return false;
        };
        // The rest of the batch goes in the slot. If the slot is shared, another thread may have
        // filled it meanwhile.
        let rest = most - pages as u32;
        let stashed = self.exchange(levels, number, group, rest.into(), |word| {
            let own = if word.group() == group {
                word.count()
            } else {
                0
            };
            (!levels.is_deleted(group)).then(|| Slot::new(group, (own + rest).min(most), most))
        });
        if !stashed && rest > 0 {
            levels.take_off(group, rest.into());
        }
        true
    }

    /// Returns the number of pages in a first batch.
    pub(super) fn first_batch(&self) -> u32 {
        self.batches.first
    }

    /// Returns the size of the next batch; see [`Batches::next`].
    fn next_batch(&self, levels: &impl Levels, number: usize, group: GroupId) -> u32 {
        let Batches { first, largest, .. } = self.batches;
        let own = way(self.stripes.look(number), group);
        let word = Slot(own.load(Ordering::Relaxed));
        if word.group() != group || word.most() == 0 || largest <= first {
            return first;
        }
        let is_large = |slot: &&AtomicU64| {
            !std::ptr::eq(*slot, own) && Slot(slot.load(Ordering::Relaxed)).most() > first
        };
        // In a large memory the share is large enough even if every slot has a large batch.
        let large = match self.batches.all / ((OWNERS + SHARED) * WAYS) as u64 {
            enough if enough >= largest.into() => 0,
            _ => self.stripes.all().flatten().filter(is_large).count(),
        };
        self.batches.next(word, levels.margin(group), large)
    }

    /// Returns the number of pages of `group` that the thread with this number has in stock.
    #[inline]
    pub(super) fn count(&self, number: usize, group: GroupId) -> u64 {
        let word = Slot(way(self.stripes.look(number), group).load(Ordering::Relaxed));
        match word.group() == group {
            true => word.count().into(),
            false => 0,
        }
    }

    /// Returns the number of pages charged to `group` itself, which `own` counts, without those in
    /// the caller's own slot. A correct uncharge is never for more; see M14 in the module's
    /// documentation.
    #[inline]
    pub(super) fn in_use(&self, number: usize, group: GroupId, own: &AtomicU64) -> u64 {
        // `own` is read before the slot. The Acquire pairs with the Release of a thread that
        // emptied the slot and then took its pages off `own`.
        let charged = own.load(Ordering::Acquire);
        let in_stock = match number < OWNERS {
            true => self.count(number, group),
            false => 0,
        };
        charged.saturating_sub(in_stock)
    }

    /// Settles the slot: notes the highest usage since the previous call. Called before the usage
    /// of the group's levels changes. Returns the number of pages in the slot, which stay there
    /// until this thread uses the slot again. Returns 0 if the slot is shared or has another group,
    /// and while slots are being drained.
    pub(super) fn settle(&self, levels: &impl Levels, number: usize, group: GroupId) -> u64 {
        let change = self.change(number, group, |word| {
            (word.group() == group).then(|| word.settled())
        });
        let Some(before) = change else {
            return 0;
        };
        if before.is_due() {
            levels.note_peak(group, before.low());
        }
        match number < OWNERS {
            true => before.count().into(),
            // Other threads may charge from a shared slot meanwhile.
            false => 0,
        }
    }

    /// Settles every slot of `top` and the groups below it, as [`Stocks::settle`] settles one.
    pub(super) fn settle_below(&self, levels: &impl Levels, top: GroupId) {
        let is_due = |slot: &AtomicU64| {
            let word = Slot(slot.load(Ordering::Acquire));
            word.is_due() && levels.is_below(word.group(), top)
        };
        if !self.stripes.all().flatten().any(is_due) {
            return;
        }
        let _draining = self.stripes.drain();
        for slot in self.stripes.all().flatten() {
            let word = Slot(slot.load(Ordering::Relaxed));
            if word.is_due() && levels.is_below(word.group(), top) {
                levels.note_peak(word.group(), word.low());
                let settled = word.settled().0;
                // If this fails, another thread has settled or changed the slot, which is just as
                // good.
                let _ = slot.compare_exchange(word.0, settled, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Gives back the pages of `top` and the groups below it in all slots. Pages put in a slot
    /// meanwhile may stay.
    pub(super) fn drain(&self, levels: &impl Levels, number: usize, top: GroupId) {
        self.drain_own(levels, number, top);
        if self.is_any_below(levels, top) {
            self.drain_all(levels, top);
        }
    }

    /// Gives back the pages of `top` and the groups below it in all slots. Afterwards no slot has
    /// pages that its owner was about to put there when the call began.
    pub(super) fn drain_all(&self, levels: &impl Levels, top: GroupId) {
        let draining = self.stripes.drain();
        self.drain_stopped(levels, top, &draining);
    }

    /// Gives back the pages of `top` and the groups below it in all slots, while a drain keeps the
    /// owners out. Returns the number of pages.
    fn drain_stopped(&self, levels: &impl Levels, top: GroupId, _: &Draining<'_>) -> u64 {
        if !self.is_any_below(levels, top) {
            return 0;
        }
        let _moving = self.moves.begin(self.stripes.drains());
        self.stripes
            .all()
            .flatten()
            .map(|slot| empty(levels, slot, top))
            .sum()
    }

    /// Gives back the pages of `top` and the groups below it in the slots of the thread with this
    /// number. Begins no drain.
    fn drain_own(&self, levels: &impl Levels, number: usize, top: GroupId) {
        let slots = self.stripes.look(number);
        let is_any = |slot: &AtomicU64| Slot(slot.load(Ordering::Relaxed)).count() > 0;
        if !slots.iter().any(is_any) {
            return;
        }
        let _moving = self.moves.begin(self.stripes.drains());
        for slot in slots {
            let group = Slot(slot.load(Ordering::Relaxed)).group();
            if levels.is_below(group, top) {
                self.exchange(levels, number, group, 0, |word| {
                    (word.group() == group && word.count() > 0).then(|| Slot::emptied(group))
                });
            }
        }
    }

    /// Returns whether pages of `top` or of a group below it are in stock. Acquire keeps this look
    /// before a later look at the moves; see M7 in the module's documentation.
    fn is_any_below(&self, levels: &impl Levels, top: GroupId) -> bool {
        self.stripes.all().flatten().any(|slot| {
            let word = Slot(slot.load(Ordering::Acquire));
            word.count() > 0 && levels.is_below(word.group(), top)
        })
    }

    /// Empties the slots below the group that refused and tries again, until `attempt` succeeds, or
    /// no stock is left below the group that refused last and no thread has moved pages meanwhile.
    pub(super) fn drain_until<T>(
        &self,
        levels: &impl Levels,
        number: usize,
        mut refused: GroupId,
        attempt: impl Fn() -> Result<T, GroupId>,
    ) -> Result<T, GroupId> {
        if self.batches.first == 0 {
            return Err(refused);
        }
        self.drain_own(levels, number, refused);
        let moves = self.moves.look();
        match attempt() {
            Ok(done) => return Ok(done),
            Err(group) => refused = group,
        }
        // Pairs with the fence in `Moves::begin`: if the attempt met a batch at the levels, the
        // announcement of its move is seen from here on.
        fence(Ordering::Acquire);
        if !self.is_any_below(levels, refused) && !self.moves.any_since(moves) {
            return Err(refused);
        }
        let draining = self.stripes.drain();
        loop {
            while self.moves.look().is_any_under_way() {
                thread::yield_now();
            }
            let moves = self.moves.look();
            let drained = self.drain_stopped(levels, refused, &draining);
            // Tries again even if nothing was drained: a refill that this thread waited for has
            // given its batch back, if it saw the drain.
            match attempt() {
                Ok(done) => return Ok(done),
                Err(group)
                    if drained == 0
                        && levels.is_below(group, refused)
                        && !self.moves.any_since(moves) =>
                {
                    return Err(group);
                }
                Err(group) => refused = group,
            }
        }
    }

    /// Returns the number of pages that all threads have in stock for the groups that `wanted`
    /// selects. Exact while no thread is charging.
    pub(super) fn sum(&self, wanted: impl Fn(GroupId) -> bool) -> u64 {
        self.stripes
            .all()
            .flatten()
            .map(|slot| Slot(slot.load(Ordering::Acquire)))
            .filter(|word| word.count() > 0 && wanted(word.group()))
            .map(|word| u64::from(word.count()))
            .sum()
    }
}

/// Empties a slot of `top` or of a group below it, and returns the number of pages given back. The
/// slot's threads are kept out by a drain, but another drainer may be emptying the slot, too.
fn empty(levels: &impl Levels, slot: &AtomicU64, top: GroupId) -> u64 {
    let mut word = Slot(slot.load(Ordering::Acquire));
    while word.count() > 0 && levels.is_below(word.group(), top) {
        let emptied = Slot::emptied(word.group());
        match slot.compare_exchange(word.0, emptied.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                levels.note_peak(word.group(), word.low());
                levels.take_off(word.group(), word.count().into());
                return word.count().into();
            }
            Err(now) => word = Slot(now),
        }
    }
    0
}
