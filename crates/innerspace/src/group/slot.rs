//! The word of a slot of the stock, and how large batches are.
//!
//! | bits | name | meaning |
//! |---|---|---|
//! | 0..16 | group | whose pages they are |
//! | 16..32 | low | with the count, the lower of them: the lowest count since the slot was last settled, which tells how high usage was in between |
//! | 32..48 | most | pages that it may hold: its last batch |
//! | 48..64 | count | pages in stock |

use super::GroupId;

/// How many pages are taken at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Batches {
    /// By who comes for the first time; 0 for no stock at all.
    pub(super) first: u32,
    /// By who comes again and again, while the limits are far.
    pub(super) largest: u32,
    /// What all slots that may hold more than a first batch hold at most, together.
    pub(super) all: u64,
}

impl Batches {
    /// In a memory of so many pages: what lies in stock must not count.
    pub(super) fn of(memory: u64) -> Batches {
        Batches {
            first: (memory / 256).min(128) as u32,
            largest: (memory / PART).min(2048) as u32,
            all: memory / PART,
        }
    }

    /// Always the same.
    #[cfg(test)]
    pub(super) fn fixed(pages: u32) -> Batches {
        Batches {
            first: pages,
            largest: pages,
            all: u64::MAX,
        }
    }

    /// Who has `word` takes so many the next time: twice as many as the last time, as far as that
    /// is not too much for what is left up to the nearest limit, and for all that `large` other
    /// slots may hold besides (more than a first batch each).
    pub(super) fn next(self, word: Slot, margin: u64, large: usize) -> u32 {
        let twice = (2 * word.most()).min(self.largest).into();
        let share = self.all / (large as u64 + 1);
        share.min(margin / PART).min(twice).max(self.first.into()) as u32
    }
}

/// A batch larger than the first is at most this part of what is left up to the nearest limit.
pub(super) const PART: u64 = if cfg!(loom) { 8 } else { 32 };

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(pub(super) u64);

/// Where the fields of a slot begin.
const LOW: u32 = 16;
const MOST: u32 = 32;
const COUNT: u32 = 48;
/// The most that a field holds.
pub(super) const FIELD: u64 = 0xffff;

impl Slot {
    /// A settled one.
    pub(super) fn new(group: GroupId, count: u32, most: u32) -> Slot {
        debug_assert!(u64::from(count.max(most)) <= FIELD);
        let (count, most) = (u64::from(count), u64::from(most));
        Slot(u64::from(group.0) | count << LOW | most << MOST | count << COUNT)
    }

    /// One with nothing in it: its batches begin anew.
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

    /// The lowest count since it was last settled. Charges leave the field alone: of those in a row
    /// the last has the lowest count.
    pub(super) fn low(self) -> u32 {
        ((self.0 >> LOW & FIELD) as u32).min(self.count())
    }

    pub(super) fn most(self) -> u32 {
        (self.0 >> MOST & FIELD) as u32
    }

    /// Whether the count was lower since it was last settled.
    pub(super) fn is_due(self) -> bool {
        self.low() < self.count()
    }

    /// The same, from now on.
    pub(super) fn settled(self) -> Slot {
        Slot(self.0 & !(FIELD << LOW) | u64::from(self.count()) << LOW)
    }

    /// The same with `pages` more, which it may hold.
    #[inline(always)]
    pub(super) fn plus(self, pages: u64) -> Slot {
        let low = u64::from(self.low()) << LOW;
        Slot((self.0 & !(FIELD << LOW) | low) + (pages << COUNT))
    }

    /// The same with `pages` less, if it has as many of this group. As few instructions as can be:
    /// charges in a row each wait for the word that the one before has stored.
    #[inline(always)]
    pub(super) fn minus(self, group: GroupId, pages: u64) -> Option<Slot> {
        if self.group() != group || pages > FIELD {
            return None;
        }
        self.0.checked_sub(pages << COUNT).map(Slot)
    }
}
