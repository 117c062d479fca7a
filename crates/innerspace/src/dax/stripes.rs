//! Stripes: data that faults write, spread over cache lines so that faults in different ranges do
//! not contend. Counts are striped by thread, and dirty ranges by range.

use std::collections::BTreeSet;
use std::ops::Range;

use super::entry::{LARGE_PAGES, LARGE_SHIFT};
use super::grab::range_start;
use crate::stats::thread_number;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, Rank};

/// The number of stripes of each kind.
pub(super) const STRIPES: usize = 16;

/// Returns the stripe of a page's range of 2 MiB. Ranges whose numbers differ by a power of two are
/// mostly in different stripes. This matters because threads often divide a file into parts whose
/// sizes are powers of two.
pub(super) fn stripe_of(page: u64) -> usize {
    let mixed = (page >> LARGE_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - STRIPES.ilog2())) as usize
}

/// Returns the stripes that may hold the ranges of these pages: one stripe if all of the pages are
/// in one range, otherwise all stripes.
pub(super) fn stripes_of(pages: &Range<u64>) -> Range<usize> {
    match pages.end <= range_start(pages.start) + LARGE_PAGES {
        true => stripe_of(pages.start)..stripe_of(pages.start) + 1,
        false => 0..STRIPES,
    }
}

/// A value aligned to two cache lines, because the processor prefetches the adjacent line too.
#[repr(align(128))]
pub(super) struct Stripe<T>(pub(super) T);

/// Creates a value for each stripe.
pub(super) fn stripes<T>(mut new: impl FnMut() -> T) -> Box<[Stripe<T>]> {
    (0..STRIPES).map(|_| Stripe(new())).collect()
}

/// The events that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Count {
    Faults,
    LargeFaults,
    Fallbacks,
    ZeroMaps,
    Downgrades,
    Allocated,
    Flushed,
}

const COUNTS: usize = Count::Flushed as usize + 1;

/// Counts of events, for statistics only.
pub(super) struct Counts(Box<[Stripe<[AtomicU64; COUNTS]>]>);

impl Default for Counts {
    fn default() -> Counts {
        Counts(stripes(Default::default))
    }
}

impl Counts {
    /// Counts one more event.
    #[inline]
    pub(super) fn count(&self, what: Count) {
        self.add(what, 1);
    }

    /// Counts `times` more events.
    pub(super) fn add(&self, what: Count, times: u64) {
        let Stripe(counts) = &self.0[thread_number() % STRIPES];
        counts[what as usize].fetch_add(times, Ordering::Relaxed);
    }

    pub(super) fn sum(&self, what: Count) -> u64 {
        let counts = self.0.iter().map(|Stripe(counts)| &counts[what as usize]);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// The 2 MiB ranges in which an entry may be dirty, by their first pages.
pub(super) struct DirtyRanges {
    stripes: Box<[Stripe<Mutex<BTreeSet<u64>>>]>,
    /// The number of ranges. It is written only when a range is added or removed, so once for many
    /// faults. SeqCst: see `HeapCharge`.
    len: AtomicU64,
}

impl DirtyRanges {
    pub(super) fn new() -> DirtyRanges {
        DirtyRanges {
            stripes: stripes(|| Mutex::ranked(Rank::Dirty, BTreeSet::new())),
            len: AtomicU64::new(0),
        }
    }

    /// Adds the range of a page. Returns whether it is new.
    pub(super) fn add(&self, page: u64) -> bool {
        let mut ranges = self.stripes[stripe_of(page)].0.lock();
        let is_new = ranges.insert(range_start(page));
        if is_new {
            self.len.fetch_add(1, Ordering::SeqCst);
        }
        is_new
    }

    /// Returns the number of ranges.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::SeqCst)
    }

    /// Returns all ranges, in the order of their pages.
    pub(super) fn all(&self) -> Vec<u64> {
        let stripes = self.stripes.iter();
        let mut all: Vec<u64> = stripes
            .flat_map(|Stripe(ranges)| ranges.lock().iter().copied().collect::<Vec<_>>())
            .collect();
        all.sort_unstable();
        all
    }

    /// Removes and returns the ranges that contain any of these pages, in the order of their pages.
    pub(super) fn take(&self, pages: &Range<u64>) -> Vec<u64> {
        let mut taken = Vec::new();
        if pages.is_empty() {
            return taken;
        }
        let within = range_start(pages.start)..pages.end;
        for Stripe(ranges) in &self.stripes[stripes_of(pages)] {
            taken.extend(ranges.lock().extract_if(within.clone(), |_| true));
        }
        self.len.fetch_sub(taken.len() as u64, Ordering::SeqCst);
        taken.sort_unstable();
        taken
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_taken_once_and_in_order_whatever_their_stripes() {
        let ranges = DirtyRanges::new();
        let firsts: Vec<u64> = (0..40).map(|number| number * 3 * LARGE_PAGES).collect();
        for first in firsts.iter().rev() {
            assert!(ranges.add(first + 5));
            assert!(!ranges.add(first + 511));
        }
        assert_eq!((ranges.all(), ranges.len()), (firsts.clone(), 40));
        // The pages are from the middle of a range to the middle of another.
        let some = firsts[2] + 7..firsts[7] + 1;
        assert_eq!(ranges.take(&some), firsts[2..8]);
        for none in [0..0, 5..5] {
            assert_eq!(ranges.take(&none), [0; 0]);
        }
        assert_eq!(ranges.take(&(5..u64::MAX)).len(), 34);
        assert_eq!((ranges.all(), ranges.len()), (Vec::new(), 0));
    }

    #[test]
    fn pages_of_one_range_have_one_stripe() {
        for first in (0..40).map(|number| number * LARGE_PAGES) {
            let stripe = stripe_of(first)..stripe_of(first) + 1;
            for pages in [
                first..first + 1,
                first..first + 512,
                first + 511..first + 512,
            ] {
                assert_eq!(stripes_of(&pages), stripe);
            }
            assert_eq!(stripes_of(&(first + 511..first + 513)), 0..STRIPES);
        }
        assert_eq!(stripes_of(&(0..u64::MAX)), 0..STRIPES);
    }

    #[test]
    fn ranges_a_power_of_two_apart_do_not_share_a_stripe() {
        for apart in (0..16).map(|log| LARGE_PAGES << log) {
            let together = |first: &u64| stripe_of(*first) == stripe_of(first + apart);
            let firsts = (0..100).map(|number| number * LARGE_PAGES);
            assert!(
                firsts.clone().filter(together).count() <= 15,
                "{apart} pages apart"
            );
        }
    }

    #[test]
    fn counts_are_summed_whoever_counted() {
        let counts = Counts::default();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| counts.add(Count::Flushed, 5));
            }
        });
        counts.count(Count::Faults);
        assert_eq!(
            (counts.sum(Count::Flushed), counts.sum(Count::Faults)),
            (15, 1)
        );
    }
}
