//! The free pages of a device, shared by all files on it.
//!
//! Single pages are taken from regions of 2 MiB that are in use already, so that whole regions stay
//! free for large extents. Inside a region pages are taken out of order, and the regions at the end
//! of the device are taken first. So a page of a file is hardly ever at the device's page with the
//! same number, and code that confuses the two fails at once.
//!
//! Each thread takes single pages from a region of its own, as long as there are enough regions.
//! Each region has a lock. A common lock is taken to give pages back, to find another region, and
//! to take a whole one.

use std::collections::BTreeSet;
use std::ops::Range;

use super::super::stripes::{STRIPES, Stripe, stripes};
use super::LARGE_PAGES;
use crate::stats::thread_number;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The number of pages in a region, the unit of large extents.
const REGION: u64 = LARGE_PAGES;
const WORDS: usize = REGION as usize / 64;
/// The distance between two single pages that are taken from a region one after the other. It is
/// odd, so that all pages are reached.
const STRIDE: u64 = 197;
/// The value of `current` for a stripe of threads that has no region yet.
const NONE: u64 = u64::MAX;

/// The free pages of a device.
pub(crate) struct Blocks {
    /// The number of pages; it never changes.
    pages: u64,
    /// The regions in which to search. This lock is taken before a region's.
    sets: Mutex<Sets>,
    /// The regions, each with an innermost lock.
    regions: Box<[Stripe<Mutex<Region>>]>,
    /// For each stripe of threads, the region from which it last took single pages, or [`NONE`].
    /// Written with `sets` locked.
    current: Box<[Stripe<AtomicU64>]>,
}

/// The regions in which to search for free pages. A region may become full without `sets` locked.
struct Sets {
    /// Regions with some of their pages free, and regions that have become full since they were
    /// added.
    partial: BTreeSet<u64>,
    /// Regions with all of their 512 pages free.
    whole: BTreeSet<u64>,
}

#[derive(Clone, Default)]
struct Region {
    used: [u64; WORDS],
    /// Pages that have been in use at some time, so that they may contain bytes other than zero.
    touched: [u64; WORDS],
    free: u64,
    /// The place at which the search for the next single page begins.
    cursor: u64,
}

/// A run of pages that was taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    /// The first page of the run.
    pub(crate) page: u64,
    /// The pages that were in use before, and so have to be zeroed.
    pub(crate) stale: Vec<u64>,
}

fn word_and_bit(slot: u64) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

impl Region {
    fn is_used(&self, slot: u64) -> bool {
        let (word, bit) = word_and_bit(slot);
        self.used[word] & bit != 0
    }

    /// Marks a free page as used. Returns whether the page was in use before, so that it may
    /// contain bytes other than zero.
    fn take(&mut self, slot: u64) -> bool {
        let (word, bit) = word_and_bit(slot);
        self.used[word] |= bit;
        self.free -= 1;
        let stale = self.touched[word] & bit != 0;
        self.touched[word] |= bit;
        stale
    }

    /// Takes a free page of this region, if there is one. `number` is the region's own number.
    fn take_single(&mut self, number: u64) -> Option<Taken> {
        let slot = self.next_free(self.cursor)?;
        self.cursor = (slot + STRIDE) % REGION;
        let page = number * REGION + slot;
        let stale = self.take(slot).then_some(page).into_iter().collect();
        Some(Taken { page, stale })
    }

    /// Takes a given free page of this region, and adds it to `stale` if it was in use before.
    ///
    /// # Panics
    /// Panics if the page is in use.
    fn take_page(&mut self, page: u64, stale: &mut Vec<u64>) {
        let slot = page % REGION;
        assert!(
            !self.is_used(slot),
            "page {page} of the device is taken twice"
        );
        if self.take(slot) {
            stale.push(page);
        }
    }

    /// Returns the first free page at `from` or after it; the search wraps around.
    fn next_free(&self, from: u64) -> Option<u64> {
        let (word, bit) = word_and_bit(from);
        // The first word is searched twice: first its slots from `from` on, last those below.
        (0..=WORDS).find_map(|step| {
            let at = (word + step) % WORDS;
            let mask = match step {
                0 => bit.wrapping_neg(),
                WORDS => bit - 1,
                _ => u64::MAX,
            };
            let free = !self.used[at] & mask;
            (free != 0).then(|| at as u64 * 64 + u64::from(free.trailing_zeros()))
        })
    }
}

impl Sets {
    /// Moves a region to the set in which it belongs now.
    fn sort(&mut self, number: u64, region: &Region) {
        self.partial.remove(&number);
        self.whole.remove(&number);
        match region.free {
            0 => {}
            REGION => drop(self.whole.insert(number)),
            _ => drop(self.partial.insert(number)),
        }
    }
}

impl Blocks {
    /// Creates the record of a device with `pages` pages, which are all free and zeroed.
    pub(crate) fn new(pages: u64) -> Blocks {
        let count = pages.div_ceil(REGION);
        let mut sets = Sets {
            partial: BTreeSet::new(),
            whole: BTreeSet::new(),
        };
        let new = |number: u64| {
            let mut region = Region {
                cursor: STRIDE,
                ..Region::default()
            };
            region.free = (pages - number * REGION).min(REGION);
            // Pages past the end of the device are marked as used, so that they are never taken.
            for slot in region.free..REGION {
                let (word, bit) = word_and_bit(slot);
                region.used[word] |= bit;
            }
            sets.sort(number, &region);
            Stripe(Mutex::new(region))
        };
        Blocks {
            pages,
            regions: (0..count).map(new).collect(),
            sets: Mutex::new(sets),
            current: stripes(|| AtomicU64::new(NONE)),
        }
    }

    fn region(&self, number: u64) -> &Mutex<Region> {
        &self.regions[number as usize].0
    }

    /// Takes a page, if one is free.
    pub(crate) fn take_one(&self) -> Option<Taken> {
        self.take_one_by(thread_number() % STRIPES)
    }

    /// Takes a page for a thread of this stripe.
    pub(super) fn take_one_by(&self, stripe: usize) -> Option<Taken> {
        let current = &self.current[stripe].0;
        let number = current.load(Ordering::Relaxed);
        if number != NONE {
            let region = &mut *self.region(number).lock();
            // A region whose pages are all free again is not used here: it is chosen from `sets`,
            // like any other.
            if region.free < REGION
                && let Some(taken) = region.take_single(number)
            {
                return Some(taken);
            }
        }
        self.take_from_another(current)
    }

    /// Takes a page from another region, which becomes the stripe's `current` one.
    #[cold]
    fn take_from_another(&self, current: &AtomicU64) -> Option<Taken> {
        let mut sets = self.sets.lock();
        loop {
            let is_of_another = |number: &&u64| {
                let mut others = self
                    .current
                    .iter()
                    .filter(|Stripe(its)| !std::ptr::eq(its, current));
                others.any(|Stripe(its)| its.load(Ordering::Relaxed) == **number)
            };
            let mut partial = sets.partial.iter().rev();
            let of_no_other = partial.find(|number| !is_of_another(number));
            let number = of_no_other
                .or_else(|| sets.whole.last().filter(|_| self.may_break_up(&sets)))
                .or_else(|| sets.partial.last())
                .or_else(|| sets.whole.last());
            let number = *number?;
            let region = &mut *self.region(number).lock();
            let taken = region.take_single(number);
            sets.sort(number, region);
            if taken.is_some() {
                current.store(number, Ordering::Relaxed);
                return taken;
            }
        }
    }

    /// Returns whether a whole region may be used for single pages although other regions have free
    /// pages left. Returns false if many regions are partly free: threads that have ended keep
    /// their regions, so these regions have to be shared. Also returns false if few whole regions
    /// are left: these are kept for large extents.
    fn may_break_up(&self, sets: &Sets) -> bool {
        let regions = self.regions.len();
        sets.partial.len() < regions / 8 && sets.whole.len() > regions / 16
    }

    /// Takes 512 free pages that begin at a multiple of 512, if there are any.
    pub(crate) fn take_large(&self) -> Option<Taken> {
        let mut sets = self.sets.lock();
        let number = *sets.whole.last()?;
        let page = number * REGION;
        let region = &mut *self.region(number).lock();
        let mut stale = Vec::new();
        for page in page..page + REGION {
            region.take_page(page, &mut stale);
        }
        sets.sort(number, region);
        Some(Taken { page, stale })
    }

    /// Gives pages back.
    ///
    /// # Panics
    /// Panics if one of the pages is past the end of the device, or is free already: two files, or
    /// two pages of one file, had the same block.
    pub(crate) fn give_back(&self, pages: Range<u64>) {
        assert!(
            pages.end <= self.pages,
            "pages {pages:?} of a device of {}",
            self.pages
        );
        let mut sets = self.sets.lock();
        let mut at = pages.start;
        while at < pages.end {
            let number = at / REGION;
            let end = pages.end.min((number + 1) * REGION);
            let region = &mut *self.region(number).lock();
            for page in at..end {
                let (word, bit) = word_and_bit(page % REGION);
                assert!(
                    region.used[word] & bit != 0,
                    "page {page} of the device is freed twice"
                );
                region.used[word] &= !bit;
            }
            region.free += end - at;
            sets.sort(number, region);
            at = end;
        }
    }

    /// Returns the number of free pages.
    pub(crate) fn free(&self) -> u64 {
        let regions = self.regions.iter();
        regions.map(|Stripe(region)| region.lock().free).sum()
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Blocks {
        /// Takes these pages.
        ///
        /// # Panics
        /// Panics if one of them is in use.
        pub(crate) fn take_at(&self, pages: Range<u64>) -> Taken {
            let mut sets = self.sets.lock();
            let mut stale = Vec::new();
            for page in pages.clone() {
                let region = &mut *self.region(page / REGION).lock();
                region.take_page(page, &mut stale);
                sets.sort(page / REGION, region);
            }
            let page = pages.start;
            Taken { page, stale }
        }

        /// Returns the first run of this many free pages that does not start at a multiple of 512.
        pub(crate) fn find_unaligned(&self, pages: u64) -> Option<Range<u64>> {
            let used = |page: u64| self.region(page / REGION).lock().is_used(page % REGION);
            let fits = |start: &u64| !(*start..*start + pages).any(used);
            (0..=self.pages.checked_sub(pages)?)
                .filter(|start| start % REGION != 0)
                .find(fits)
                .map(|start| start..start + pages)
        }

        /// Recomputes the counts and sets, and compares them.
        ///
        /// # Panics
        /// Panics if one of them is wrong.
        pub(crate) fn validate(&self) {
            let sets = self.sets.lock();
            for number in 0..self.regions.len() as u64 {
                let region = self.region(number).lock();
                let used = region.used.iter();
                let free: u64 = used.map(|word| u64::from(word.count_zeros())).sum();
                assert_eq!(free, region.free, "region {number}");
                assert_eq!(
                    sets.whole.contains(&number),
                    free == REGION,
                    "region {number}"
                );
                let is_partial = sets.partial.contains(&number);
                assert!(is_partial || free == 0 || free == REGION, "region {number}");
                assert!(!is_partial || free < REGION, "region {number}");
            }
        }
    }
}
