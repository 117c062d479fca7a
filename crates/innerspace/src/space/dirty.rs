//! The pages that were stored to since the last call: for a framebuffer, or to copy a space while
//! it runs.
//!
//! A page is *watched* from the first `Space::take_dirty` of its range on. The log has a bit for
//! each watched page that a fault has made writable since it was last taken; so a watched page is
//! writable only if its bit is set. `take_dirty` closes the gate on the range, takes the bits,
//! takes away the write validity of their pages, waits for a grace period, and opens the gate.
//! `docs/protocols/watched-pages.md` has the argument, and says what ends the watch of a page.
//!
//! The mutex of the log is taken inside sections and under the gate's writer lock, and no lock is
//! taken under it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::group::LimitError;
use crate::space::core::address::{SLOTS, leaf_number, page_start, slot_index};
use crate::space::core::payer::Payer;
use crate::space::table::{self};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{PAGE_SHIFT, PageCount};

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/dirty.rs"]
mod validate;

/// The number of ranges and leaves that fit in a page of memory. The group is charged for whole
/// pages.
const A_PAGE: usize = 32;
const BITS: usize = SLOTS / 64;

/// The log of a space.
#[derive(Debug, Default)]
pub(crate) struct DirtyLog {
    /// Whether any page was ever watched. Set with the gate closed, so a fault inside the gate
    /// reads the current value.
    watching: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// The watched ranges, start to end. They do not touch.
    watched: BTreeMap<u64, u64>,
    /// For each leaf, by its number, a bit for each watched page that was made writable.
    stored: BTreeMap<u64, [u64; BITS]>,
    /// The number of pages of memory that the group is charged for.
    charged: usize,
}

/// The result of taking a range.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Parts of the range that were not watched.
    pub(crate) unknown: Vec<Range<u64>>,
    /// Pages of the watched parts that were made writable.
    pub(crate) stored: Vec<u64>,
}

impl Taken {
    pub(crate) fn is_empty(&self) -> bool {
        self.unknown.is_empty() && self.stored.is_empty()
    }
}

impl DirtyLog {
    /// Notes that a fault is about to make the page at `at` writable. The fault is in its section,
    /// inside the gate.
    #[inline(always)]
    pub(crate) fn stored(&self, payer: Payer<'_>, at: u64) {
        // Relaxed: the gate orders this load.
        if self.watching.load(Ordering::Relaxed) {
            self.note(payer, at);
        }
    }

    #[cold]
    fn note(&self, payer: Payer<'_>, at: u64) {
        self.log.lock().note(payer, page_start(at));
    }

    /// Ends the watch of a range whose pages may have changed. The caller holds the gate's writer
    /// lock.
    pub(crate) fn forget(&self, payer: Payer<'_>, range: &Range<u64>) {
        // Relaxed: the writer's mutex orders this load.
        if self.watching.load(Ordering::Relaxed) {
            self.log.lock().forget(payer, range);
        }
    }

    /// Takes the range's bits. The whole range is watched from now on, if there is memory to note
    /// it. The gate is closed on the range.
    pub(crate) fn take(&self, payer: Payer<'_>, range: &Range<u64>) -> Taken {
        self.watching.store(true, Ordering::Relaxed);
        self.log.lock().take(payer, range)
    }

    /// Gives back the charges of a space that is gone.
    pub(crate) fn end(&self, payer: Payer<'_>) {
        let mut log = self.log.lock();
        payer.uncharge(PageCount(std::mem::take(&mut log.charged) as u64));
    }

    /// Charges for one more range, if that needs no waiting. The caller holds the gate's writer
    /// lock.
    pub(crate) fn make_room(&self, payer: Payer<'_>) -> Result<(), LimitError> {
        let mut log = self.log.lock();
        log.shrink(payer);
        log.make_room(payer)
    }
}

impl Log {
    fn note(&mut self, payer: Payer<'_>, page: u64) {
        if !self.watches(page) {
            return;
        }
        let leaf = leaf_number(page);
        if !self.stored.contains_key(&leaf) && self.make_room(payer).is_err() {
            let start = leaf * table::span(1);
            return self.forget(payer, &(start..start + table::span(1)));
        }
        let slot = slot_index(page, 0);
        self.stored.entry(leaf).or_default()[slot / 64] |= 1 << (slot % 64);
    }

    fn watches(&self, page: u64) -> bool {
        let below = self.watched.range(..=page).next_back();
        below.is_some_and(|(_, end)| page < *end)
    }

    /// Charges for one more entry than there are.
    fn make_room(&mut self, payer: Payer<'_>) -> Result<(), LimitError> {
        let wanted = (self.watched.len() + self.stored.len() + 1).div_ceil(A_PAGE);
        if wanted > self.charged {
            let more = PageCount((wanted - self.charged) as u64);
            payer.charge(more)?;
            self.charged = wanted;
        }
        Ok(())
    }

    /// Gives back charges for entries that no longer exist.
    fn shrink(&mut self, payer: Payer<'_>) {
        let wanted = (self.watched.len() + self.stored.len()).div_ceil(A_PAGE);
        if wanted < self.charged {
            let less = PageCount((self.charged - wanted) as u64);
            payer.uncharge(less);
            self.charged = wanted;
        }
    }

    /// Takes out the watched ranges that overlap `range`.
    fn take_out(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let below = self.watched.range(..=range.start).next_back();
        let below = below.filter(|(_, end)| **end > range.start);
        let first = below.map_or(range.start, |(start, _)| *start);
        let known = self.watched.extract_if(first..range.end, |_, _| true);
        known.map(|(start, end)| start..end).collect()
    }

    fn forget(&mut self, payer: Payer<'_>, range: &Range<u64>) {
        for known in self.take_out(range) {
            if known.start < range.start {
                self.watched.insert(known.start, range.start);
            }
            // Cutting a range in two adds an entry.
            let cut_in_two = known.start < range.start && range.end < known.end;
            let has_room = !cut_in_two || self.make_room(payer).is_ok();
            if range.end < known.end && has_room {
                self.watched.insert(range.end, known.end);
            }
            let kept_from = if has_room { range.end } else { known.end };
            let gone = known.start.max(range.start)..known.end.min(kept_from);
            self.take_bits(&gone, |_| ());
        }
    }

    fn take(&mut self, payer: Payer<'_>, range: &Range<u64>) -> Taken {
        let has_room = self.make_room(payer).is_ok();
        let mut taken = Taken::default();
        let (mut from, mut whole) = (range.start, range.clone());
        for known in self.take_out(range) {
            if from < known.start {
                taken.unknown.push(from..known.start);
            }
            let part = known.start.max(range.start)..known.end.min(range.end);
            self.take_bits(&part, |page| taken.stored.push(page));
            from = part.end;
            whole = whole.start.min(known.start)..whole.end.max(known.end);
        }
        if from < range.end {
            taken.unknown.push(from..range.end);
        }
        self.watched.insert(whole.start, whole.end);
        if !has_room {
            self.forget(payer, range);
        }
        taken
    }

    /// Clears the bits of the range's pages, and calls `each` for those that were set, in order of
    /// address.
    fn take_bits(&mut self, range: &Range<u64>, mut each: impl FnMut(u64)) {
        let leaves = leaf_number(range.start)..=leaf_number(range.end - 1);
        let emptied = self.stored.extract_if(leaves, |leaf, bits| {
            for (group, word) in bits.iter_mut().enumerate() {
                let mut left = *word;
                while left != 0 {
                    let slot = group as u64 * 64 + u64::from(left.trailing_zeros());
                    let page = leaf * table::span(1) + (slot << PAGE_SHIFT);
                    let bit = left & left.wrapping_neg();
                    left ^= bit;
                    if range.contains(&page) {
                        *word ^= bit;
                        each(page);
                    }
                }
            }
            *bits == [0; BITS]
        });
        emptied.for_each(drop);
    }
}
