//! The reverse map: which ranges of a space map a page of a file. It is used when pages of a file
//! are revoked.
//!
//! Several ranges may map the same page of a file, and a range may have any length. The ranges are
//! in a separate tree, part of the set of mappings, ordered by file, first page and address. The
//! tree records, for each subtree, the greatest file page at which one of its ranges ends, so a
//! lookup skips the subtrees that end too early. The cost is in proportion to the ranges found,
//! plus a few descents, however many ranges there are.

use std::ops::Range;

use super::area::Vma;
use super::ledger::Ledger;
use super::tree::{RangeTree, Ranged};
use crate::PAGE_SHIFT;
use crate::sync::Arc;

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/rmap.rs"]
mod validate;

/// The ranges of files, in the tree that this module describes.
#[derive(Clone)]
pub(crate) struct FileRanges(RangeTree<RmapEntry>);

/// The pages of a file that one range maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RmapEntry {
    /// The file's key.
    file: usize,
    /// The first page of the file that the range maps.
    first: u64,
    /// The first page of the file after those that the range maps.
    end: u64,
    /// The first address of the range.
    at: u64,
}

impl RmapEntry {
    /// Returns the entry of a mapping; `None` if it maps no file.
    fn by(vma: &Vma) -> Option<RmapEntry> {
        Some(RmapEntry {
            file: vma.file()?.key(),
            first: vma.first_page,
            end: vma.first_page + ((vma.end - vma.start) >> PAGE_SHIFT),
            at: vma.start,
        })
    }
}

impl Ranged for RmapEntry {
    type Key = (usize, u64, u64);

    fn start(&self) -> (usize, u64, u64) {
        (self.file, self.first, self.at)
    }

    fn end(&self) -> (usize, u64, u64) {
        (self.file, self.first, self.at + 1)
    }

    fn most(&self) -> u64 {
        self.end
    }
}

impl FileRanges {
    /// Creates an empty map whose nodes are counted in `ledger`.
    pub(crate) fn new(ledger: Arc<Ledger>) -> FileRanges {
        FileRanges(RangeTree::new(ledger))
    }

    /// Returns a clone of the map whose new nodes are counted in `ledger`.
    pub(crate) fn with_ledger(&self, ledger: Arc<Ledger>) -> FileRanges {
        FileRanges(self.0.with_ledger(ledger))
    }

    /// Adds a range, if it maps a file.
    pub(crate) fn insert(&mut self, vma: &Vma) {
        if let Some(entry) = RmapEntry::by(vma) {
            self.0.insert(entry);
        }
    }

    /// Removes a range, if it maps a file.
    pub(crate) fn remove(&mut self, vma: &Vma) {
        if let Some(entry) = RmapEntry::by(vma) {
            self.0.remove(entry.start());
        }
    }

    /// Returns the start of each range that maps one of `pages` of the file with the key `file`.
    pub(crate) fn showing(
        &self,
        file: usize,
        pages: &Range<u64>,
    ) -> impl Iterator<Item = u64> + use<'_> {
        self.entries(file, pages).map(|entry| entry.at)
    }

    /// Returns the first page of the file, at or above `from`, that a range maps.
    pub(crate) fn first_page(&self, file: usize, from: u64) -> Option<u64> {
        let entry = self.entries(file, &(from..u64::MAX)).next()?;
        Some(entry.first.max(from))
    }

    /// Returns the ranges that map one of `pages` of the file, in the order of their first pages.
    fn entries(
        &self,
        file: usize,
        pages: &Range<u64>,
    ) -> impl Iterator<Item = &RmapEntry> + use<'_> {
        let pages = pages.clone();
        let first = Some((file, 0, 0));
        let near = self.0.iter_reaching(first, pages.start + 1);
        let near = near.take_while(move |entry| (entry.file, entry.first) < (file, pages.end));
        near.filter(move |entry| entry.end > pages.start)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::tree::WIDTH;
    use super::*;

    /// Returns a generator of pseudo-random numbers.
    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut state = 7_u64;
        move |below| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        }
    }

    fn entry(file: usize, at: u64, first: u64, pages: u64) -> RmapEntry {
        let end = first + pages;
        RmapEntry {
            file,
            first,
            end,
            at,
        }
    }

    fn ranges(all: &[RmapEntry]) -> FileRanges {
        let mut ranges = FileRanges::new(Arc::default());
        all.iter().for_each(|one| ranges.0.insert(*one));
        ranges
    }

    #[test]
    fn what_shows_a_page_is_found_as_by_looking_at_all() {
        let mut random = numbers();
        let longest = [1, 2, 3, 4, 7, 8, 9, 64, 300];
        let mut one = |at| {
            let pages = 1 + random(longest[at as usize % longest.len()]);
            entry(1 + random(3) as usize, at, random(500), pages)
        };
        let all: Vec<RmapEntry> = (0..400).map(&mut one).collect();
        let ranges = ranges(&all);
        for start in 0..810 {
            for (file, len) in [(1, 1), (2, 1), (3, 40), (2, 1000), (4, 1)] {
                let pages = start..start + len;
                let of_file = || all.iter().filter(|one| one.file == file);
                let hits = |one: &&RmapEntry| one.first < pages.end && pages.start < one.end;
                let want: Vec<u64> = of_file().filter(hits).map(|one| one.at).collect();
                let mut found: Vec<u64> = ranges.showing(file, &pages).collect();
                found.sort_unstable();
                assert_eq!(found, want, "{pages:?} of {file}");
                let first = |one: &RmapEntry| (start < one.end).then(|| one.first.max(start));
                let want = of_file().filter_map(first).min();
                assert_eq!(ranges.first_page(file, start), want, "{start} of {file}");
            }
        }
    }

    #[test]
    fn of_a_thousand_ranges_few_are_looked_at_for_a_page() {
        // There are 1,000 adjacent ranges of 5 to 9 pages at random addresses, and one range with
        // all their pages.
        let mut random = numbers();
        let mut page = 0;
        let mut all: Vec<RmapEntry> = (0..1000)
            .map(|_| {
                let first = page;
                page += 5 + random(5);
                entry(1, random(1 << 40), first, page - first)
            })
            .collect();
        all.push(entry(1, 1 << 41, 0, page));
        let ranges = ranges(&all);
        let looks = |page: u64| {
            let near = ranges.0.iter_reaching(None, page + 1);
            near.take_while(|entry| entry.first <= page).count()
        };
        let most = (0..page).map(looks).max();
        assert!(most <= Some(2 * WIDTH), "{most:?} looks for one page");
        assert!((0..page).all(|page| ranges.showing(1, &(page..page + 1)).count() == 2));
    }
}
