//! Blocks anywhere on a memory device.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::Range;

use super::super::device::DaxDevice;
use super::super::stripes::{Stripe, stripe_of, stripes, stripes_of};
use super::blocks::{Blocks, Taken};
use super::range::{RangeMap, Run};
use super::{Extent, ExtentMap, LARGE_PAGES, NoBlock};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RwLock, RwLockReadGuard};
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

/// The bytes that a range takes in the tree. A node has two words of its own and room for 11
/// ranges, and is about two thirds full.
const RANGE_BYTES: u64 = (11 * size_of::<(u64, RangeMap)>() as u64 + 16) * 3 / (2 * 11);
/// The map of one file. The file's blocks go back to the device when the map is dropped.
///
/// The map is striped by range of 2 MiB, so that allocations in different ranges do not contend. No
/// extent goes past the end of its range.
pub(crate) struct ScatteredMap {
    device: DaxDevice,
    /// Innermost locks; no thread holds two of them.
    stripes: Box<[Stripe<RwLock<Ranges>>]>,
    /// The heap bytes of all stripes, roughly. SeqCst: see [`ExtentMap::heap_bytes`].
    bytes: AtomicU64,
}

/// The ranges of one stripe that are not holes.
#[derive(Default)]
struct Ranges {
    /// The ranges, by their numbers.
    ranges: BTreeMap<u64, RangeMap>,
    /// The number of bytes on the heap, roughly.
    bytes: u64,
}

impl Ranges {
    /// Returns the extent that begins at `page`, of at most `most` pages of its range.
    fn extent(&self, page: u64, most: u64) -> Extent {
        let place = page % LARGE_PAGES;
        match self.ranges.get(&(page / LARGE_PAGES)) {
            Some(range) => range.extent(place, most),
            None => Extent {
                at: None,
                pages: most.min(LARGE_PAGES - place),
            },
        }
    }

    /// Maps pages of one range, from `page` on, to the device's pages from `at` on.
    ///
    /// # Panics
    /// Panics if one of them is not a hole.
    fn insert(&mut self, page: u64, at: u64, pages: u64) {
        let place = page % LARGE_PAGES;
        let run = Run { place, at, pages };
        match self.ranges.entry(page / LARGE_PAGES) {
            Entry::Vacant(entry) => {
                entry.insert(RangeMap::Run(run));
                self.bytes += RANGE_BYTES;
            }
            Entry::Occupied(mut entry) => {
                let range = entry.get_mut();
                let before = range.heap_bytes();
                range.insert(run);
                self.bytes += range.heap_bytes() - before;
            }
        }
    }

    /// Removes pages of the file. Adds to `removed` the device's pages that they had.
    fn remove(&mut self, pages: &Range<u64>, removed: &mut Vec<Range<u64>>) {
        let numbers = pages.start / LARGE_PAGES..pages.end.div_ceil(LARGE_PAGES);
        let mut empty = Vec::new();
        for (&number, range) in self.ranges.range_mut(numbers) {
            let first = number * LARGE_PAGES;
            let places = pages.start.max(first) - first..(pages.end - first).min(LARGE_PAGES);
            let before = range.heap_bytes();
            let is_left = range.remove(places, removed);
            self.bytes = self.bytes + range.heap_bytes() - before;
            if !is_left {
                self.bytes -= range.heap_bytes() + RANGE_BYTES;
                empty.push(number);
            }
        }
        for number in empty {
            self.ranges.remove(&number);
        }
    }
}

impl ScatteredMap {
    /// Creates the map of an empty file on `device`.
    ///
    /// # Panics
    /// Panics if the device is a host file's, whose blocks belong to its file system.
    pub(crate) fn new(device: &DaxDevice) -> ScatteredMap {
        assert!(
            device.blocks().is_some(),
            "{device:?} has no blocks to give"
        );
        ScatteredMap {
            device: device.clone(),
            stripes: stripes(RwLock::default),
            bytes: AtomicU64::new(0),
        }
    }

    /// Returns the ranges of a page's stripe.
    fn ranges_at(&self, page: u64) -> RwLockReadGuard<'_, Ranges> {
        self.stripes[stripe_of(page)].0.read()
    }

    fn blocks(&self) -> &Blocks {
        self.device.blocks().expect("looked at by `new`")
    }

    /// Zeroes the stale pages of `taken`, and maps `pages` pages of the file to `taken`, beginning
    /// with `page`. Returns the first page of `taken`.
    pub(super) fn place(&self, page: u64, pages: u64, taken: Taken) -> u64 {
        for page in &taken.stale {
            self.device.zero(page << PAGE_SHIFT, PAGE_SIZE as u64);
        }
        let mut done = 0;
        while done < pages {
            let first = page + done;
            let part = (LARGE_PAGES - first % LARGE_PAGES).min(pages - done);
            let at = taken.page + done;
            self.change(stripe_of(first), |ranges| ranges.insert(first, at, part));
            done += part;
        }
        taken.page
    }

    /// Changes the ranges of a stripe, and updates the sum of the heap bytes of all stripes. Most
    /// allocations need no heap memory, because their ranges have words already.
    fn change(&self, stripe: usize, change: impl FnOnce(&mut Ranges)) {
        let mut ranges = self.stripes[stripe].0.write();
        let before = ranges.bytes;
        change(&mut ranges);
        // The difference may be negative: the addition wraps.
        let more = ranges.bytes.wrapping_sub(before);
        if more != 0 {
            self.bytes.fetch_add(more, Ordering::SeqCst);
        }
    }

    fn remove(&self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let mut removed = Vec::new();
        for stripe in stripes_of(&pages) {
            self.change(stripe, |ranges| ranges.remove(&pages, &mut removed));
        }
        for run in removed {
            self.blocks().give_back(run);
        }
    }
}

impl ExtentMap for ScatteredMap {
    fn lookup(&self, page: u64, most: u64) -> io::Result<Extent> {
        debug_assert!(most > 0);
        // The next range is in another stripe: a caller that wants more pages calls again.
        Ok(self.ranges_at(page).extent(page, most))
    }

    fn allocate(&self, page: u64, pages: u64) -> io::Result<u64> {
        let taken = match pages {
            1 => self.blocks().take_one(),
            LARGE_PAGES => self.blocks().take_large(),
            _ => panic!("an extent of {pages} pages is neither small nor large"),
        };
        let device_len = self.device.len();
        let full = || io::Error::new(io::ErrorKind::StorageFull, NoBlock { device_len });
        Ok(self.place(page, pages, taken.ok_or_else(full)?))
    }

    fn free(&self, pages: Range<u64>) -> io::Result<()> {
        self.remove(pages);
        Ok(())
    }

    fn heap_bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    fn is_parted_by(&self, pages: &Range<u64>) -> bool {
        let Some(before) = pages.start.checked_sub(1).filter(|_| !pages.is_empty()) else {
            return false;
        };
        // The extent ends where its range does, at the latest.
        let around = self.ranges_at(before).extent(before, LARGE_PAGES);
        around.at.is_some() && before + around.pages > pages.end
    }
}

impl Drop for ScatteredMap {
    fn drop(&mut self) {
        self.remove(0..u64::MAX);
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl ScatteredMap {
        /// Maps the file's pages, beginning with `page`, to the device's pages `at`.
        pub(crate) fn place_at(&self, page: u64, at: Range<u64>) {
            let pages = at.end - at.start;
            let taken = self.blocks().take_at(at);
            self.place(page, pages, taken);
        }

        /// Returns the number of runs. No run goes past the end of its range.
        pub(crate) fn runs(&self) -> usize {
            let runs_of = |number: u64, range: &RangeMap| {
                let mut place = 0;
                let extents = std::iter::from_fn(|| {
                    let extent = (place < LARGE_PAGES).then(|| range.extent(place, LARGE_PAGES))?;
                    place += extent.pages;
                    Some(extent)
                });
                let runs = extents.filter(|extent| extent.at.is_some()).count();
                assert!(runs > 0, "range {number} is a hole");
                runs
            };
            let stripes = self.stripes.iter();
            let runs = stripes.map(|Stripe(ranges)| {
                let ranges = ranges.read();
                let runs = ranges.ranges.iter();
                runs.map(|(number, range)| runs_of(*number, range))
                    .sum::<usize>()
            });
            runs.sum()
        }
    }
}
