//! The free pages of a device, shared by all files on it.
//!
//! Single pages are taken from regions of 2 MiB that are in use already, so that whole regions stay for large extents.
//! Inside a region they are taken out of order, and regions from the end on: a page of a file is next to never at the page
//! of the device that has its number, and mistaking one for the other shows at once.

use std::collections::BTreeSet;
use std::ops::Range;

use super::LARGE_PAGES;
use crate::sync::Mutex;

/// Pages in a region, the unit of large extents.
const REGION: u64 = LARGE_PAGES;
const WORDS: usize = REGION as usize / 64;
/// From one single page to the next inside a region; odd, so that all are come to.
const STRIDE: u64 = 197;

/// Which pages of a device are free.
pub(crate) struct Blocks {
    /// Immutable.
    pages: u64,
    /// A leaf.
    state: Mutex<State>,
}

struct State {
    regions: Vec<Region>,
    /// Regions with some pages free, but not all.
    partial: BTreeSet<u64>,
    /// Regions with all of their 512 pages free.
    whole: BTreeSet<u64>,
    free: u64,
    /// Where in a region the next single page is looked for.
    cursor: u64,
}

#[derive(Clone, Default)]
struct Region {
    used: [u64; WORDS],
    /// Pages that were in use at some time, and are no zeros for sure.
    touched: [u64; WORDS],
    free: u64,
}

/// A run of pages that was taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    /// The first of them.
    pub(crate) page: u64,
    /// Those that have to be zeroed: the others never were in use.
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

    /// Marks a free page used; whether it was in use before.
    fn take(&mut self, slot: u64) -> bool {
        let (word, bit) = word_and_bit(slot);
        self.used[word] |= bit;
        self.free -= 1;
        let stale = self.touched[word] & bit != 0;
        self.touched[word] |= bit;
        stale
    }

    /// The first free page at `from` or after it, going round.
    fn next_free(&self, from: u64) -> Option<u64> {
        let (word, bit) = word_and_bit(from);
        // The first word comes twice: first what is at `from` and above, last what is below.
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

impl State {
    /// Puts a region in the set it belongs to now.
    fn sort(&mut self, number: u64) {
        let free = self.regions[number as usize].free;
        self.partial.remove(&number);
        self.whole.remove(&number);
        match free {
            0 => {}
            REGION => drop(self.whole.insert(number)),
            _ => drop(self.partial.insert(number)),
        }
    }

    fn take(&mut self, page: u64, stale: &mut Vec<u64>) {
        let region = &mut self.regions[(page / REGION) as usize];
        let slot = page % REGION;
        assert!(
            !region.is_used(slot),
            "page {page} of the device is taken twice"
        );
        if region.take(slot) {
            stale.push(page);
        }
        self.free -= 1;
    }
}

impl Blocks {
    /// So many pages, all free and zeros.
    pub(crate) fn new(pages: u64) -> Blocks {
        let count = pages.div_ceil(REGION);
        let mut state = State {
            regions: vec![Region::default(); count as usize],
            partial: BTreeSet::new(),
            whole: BTreeSet::new(),
            free: pages,
            cursor: STRIDE,
        };
        for number in 0..count {
            let here = (pages - number * REGION).min(REGION);
            let region = &mut state.regions[number as usize];
            region.free = here;
            // Those that the device does not have are in use for ever.
            for slot in here..REGION {
                let (word, bit) = word_and_bit(slot);
                region.used[word] |= bit;
            }
            state.sort(number);
        }
        Blocks {
            pages,
            state: Mutex::new(state),
        }
    }

    /// Takes a page, if one is free.
    pub(crate) fn take_one(&self) -> Option<Taken> {
        let state = &mut *self.state.lock();
        let number = *state.partial.last().or_else(|| state.whole.last())?;
        let region = &state.regions[number as usize];
        let slot = region.next_free(state.cursor % REGION)?;
        state.cursor = (slot + STRIDE) % REGION;
        let page = number * REGION + slot;
        let mut stale = Vec::new();
        state.take(page, &mut stale);
        state.sort(number);
        Some(Taken { page, stale })
    }

    /// Takes 512 pages at a multiple of 512, if there are such.
    pub(crate) fn take_large(&self) -> Option<Taken> {
        let state = &mut *self.state.lock();
        let number = *state.whole.last()?;
        let page = number * REGION;
        let mut stale = Vec::new();
        for page in page..page + REGION {
            state.take(page, &mut stale);
        }
        state.sort(number);
        Some(Taken { page, stale })
    }

    /// Takes these pages.
    ///
    /// # Panics
    /// When one of them is in use.
    #[cfg(test)]
    pub(crate) fn take_at(&self, pages: Range<u64>) -> Taken {
        let state = &mut *self.state.lock();
        let mut stale = Vec::new();
        for page in pages.clone() {
            state.take(page, &mut stale);
            state.sort(page / REGION);
        }
        Taken {
            page: pages.start,
            stale,
        }
    }

    /// The first run of so many free pages that does not start at a multiple of 512.
    #[cfg(test)]
    pub(crate) fn find_unaligned(&self, pages: u64) -> Option<Range<u64>> {
        let state = self.state.lock();
        let used = |page: u64| state.regions[(page / REGION) as usize].is_used(page % REGION);
        let fits = |start: &u64| !(*start..*start + pages).any(used);
        (0..=self.pages.checked_sub(pages)?)
            .filter(|start| start % REGION != 0)
            .find(fits)
            .map(|start| start..start + pages)
    }

    /// Gives pages back.
    ///
    /// # Panics
    /// When one of them is free already: two files, or two places of one, have had the same block.
    pub(crate) fn give_back(&self, pages: Range<u64>) {
        assert!(
            pages.end <= self.pages,
            "pages {pages:?} of a device of {}",
            self.pages
        );
        let state = &mut *self.state.lock();
        let mut at = pages.start;
        while at < pages.end {
            let number = at / REGION;
            let end = pages.end.min((number + 1) * REGION);
            let region = &mut state.regions[number as usize];
            for page in at..end {
                let (word, bit) = word_and_bit(page % REGION);
                assert!(
                    region.used[word] & bit != 0,
                    "page {page} of the device is freed twice"
                );
                region.used[word] &= !bit;
            }
            region.free += end - at;
            state.free += end - at;
            state.sort(number);
            at = end;
        }
    }

    /// How many are free.
    pub(crate) fn free(&self) -> u64 {
        self.state.lock().free
    }

    /// Counts again what is kept as a number or a set.
    ///
    /// # Panics
    /// When it was wrong.
    #[cfg(test)]
    pub(crate) fn validate(&self) {
        let state = self.state.lock();
        let mut sum = 0;
        for (number, region) in (0..).zip(&state.regions) {
            let free: u64 = region
                .used
                .iter()
                .map(|word| u64::from(word.count_zeros()))
                .sum();
            assert_eq!(free, region.free, "region {number}");
            assert_eq!(
                state.whole.contains(&number),
                free == REGION,
                "region {number}"
            );
            let partial = free > 0 && free < REGION;
            assert_eq!(state.partial.contains(&number), partial, "region {number}");
            sum += free;
        }
        assert_eq!(sum, state.free);
    }
}
