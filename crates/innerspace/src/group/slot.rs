//! The word of a slot of the stock, and the sizes of batches.
//!
//! | bits | name | meaning |
//! |---|---|---|
//! | 0..16 | group | the group of the pages |
//! | 16..32 | low | the lowest count since the slot was last settled, unless count is lower now |
//! | 32..48 | most | the pages that the slot may hold: the size of its last batch |
//! | 48..64 | count | pages in stock |
//!
//! To *settle* a slot is to note the peak of usage. The lower of low and count tells how high the
//! usage has been since the slot was last settled.

use super::GroupId;

/// The sizes of batches, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Batches {
    /// The pages in a thread's first batch; 0 for no stock at all.
    pub(super) first: u32,
    /// The most pages in a batch of a thread that takes batch after batch while no limit is near.
    pub(super) largest: u32,
    /// The most pages that all slots together may hold above their first batches.
    pub(super) all: u64,
}

impl Batches {
    /// Returns the sizes for a memory of this many pages. Stocks must be a small share of it.
    pub(super) fn of(memory: u64) -> Batches {
        Batches {
            first: (memory / 256).min(128) as u32,
            largest: (memory / PART).min(2048) as u32,
            all: memory / PART,
        }
    }

    /// Returns the size of the next batch of the slot `word`: twice the last one, but no more than
    /// `largest`, than the distance to the nearest limit allows, or than the slot's share of `all`
    /// when `large` other slots may hold more than a first batch. The result is at least a first
    /// batch.
    pub(super) fn next(self, word: Slot, margin: u64, large: usize) -> u32 {
        let twice = (2 * word.most()).min(self.largest).into();
        let share = self.all / (large as u64 + 1);
        share.min(margin / PART).min(twice).max(self.first.into()) as u32
    }
}

/// A batch larger than the first is at most one `PART`th of the distance to the nearest limit.
pub(super) const PART: u64 = if cfg!(loom) { 8 } else { 32 };

/// The word of a slot. The module's documentation describes its fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u64);

/// The bit at which each field begins.
const LOW: u32 = 16;
const MOST: u32 = 32;
const COUNT: u32 = 48;
/// The greatest value of a field.
pub(super) const FIELD: u64 = 0xffff;

impl Slot {
    /// Creates the word of a settled slot.
    pub(super) fn new(group: GroupId, count: u32, most: u32) -> Slot {
        debug_assert!(u64::from(count.max(most)) <= FIELD);
        let (count, most) = (u64::from(count), u64::from(most));
        Slot(u64::from(group.0) | count << LOW | most << MOST | count << COUNT)
    }

    /// Creates the word of an empty slot, whose next batch is a first one.
    pub(super) fn emptied(group: GroupId) -> Slot {
        Slot::new(group, 0, 0)
    }

    #[inline(always)]
    pub(super) fn group(self) -> GroupId {
        GroupId(self.0 as u16)
    }

    #[inline(always)]
    pub(super) fn count(self) -> u32 {
        (self.0 >> COUNT) as u32
    }

    /// Returns the lowest count since the slot was last settled. Charges leave the field `low`
    /// alone: after several consecutive charges, the count is the lowest.
    pub(super) fn low(self) -> u32 {
        ((self.0 >> LOW & FIELD) as u32).min(self.count())
    }

    pub(super) fn most(self) -> u32 {
        (self.0 >> MOST & FIELD) as u32
    }

    /// Returns whether the count has been lower than now since the slot was last settled.
    pub(super) fn is_due(self) -> bool {
        self.low() < self.count()
    }

    /// Returns the settled word, in which low is the count.
    pub(super) fn settled(self) -> Slot {
        Slot(self.0 & !(FIELD << LOW) | u64::from(self.count()) << LOW)
    }

    /// Returns the word with `pages` more. The caller has checked that the slot may hold them.
    #[inline(always)]
    pub(super) fn plus(self, pages: u64) -> Slot {
        let low = u64::from(self.low()) << LOW;
        Slot((self.0 & !(FIELD << LOW) | low) + (pages << COUNT))
    }

    /// Returns the word with `pages` fewer, if the slot has that many pages of this group. Takes as
    /// few instructions as possible: of several consecutive charges, each waits for the word that
    /// the previous one stored.
    #[inline(always)]
    pub(super) fn minus(self, group: GroupId, pages: u64) -> Option<Slot> {
        if self.group() != group || pages > FIELD {
            return None;
        }
        self.0.checked_sub(pages << COUNT).map(Slot)
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Batches {
        /// Returns sizes with which every batch has this many pages.
        pub(crate) fn fixed(pages: u32) -> Batches {
            Batches {
                first: pages,
                largest: pages,
                all: u64::MAX,
            }
        }
    }
}
