//! The blocks of one range of 2 MiB of a file: a run, or a word for each page.
//!
//! A range begins as a run: of all its pages if it was allocated as a whole, otherwise of a single
//! page. Single pages are taken from the device out of order (`blocks`), so a second one turns the
//! run into words. A fault finds its page in one step, whatever the number of pages.

use std::ops::Range;

use super::{Extent, LARGE_PAGES};

/// The word of a page that is a hole.
const HOLE: u64 = u64::MAX;

/// The device's page for each page of a range. A place is a page's number within its range.
#[derive(Debug)]
pub(super) enum RangeMap {
    /// Pages that are contiguous on the device, and no others.
    Run(Run),
    /// The device's page for each place, and the number of places that are not holes, which is at
    /// least one.
    Words(Box<[u64; LARGE_PAGES as usize]>, u64),
}

/// Pages of a range that are contiguous on the device: at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// The place of the first page.
    pub(super) place: u64,
    /// The page of the device that holds the first page.
    pub(super) at: u64,
    pub(super) pages: u64,
}

impl Run {
    fn places(&self) -> Range<u64> {
        self.place..self.place + self.pages
    }

    /// Returns the part of the run at these places.
    fn part(&self, places: Range<u64>) -> Run {
        Run {
            place: places.start,
            at: self.at + (places.start - self.place),
            pages: places.end - places.start,
        }
    }

    fn blocks(&self) -> Range<u64> {
        self.at..self.at + self.pages
    }
}

impl RangeMap {
    /// Returns the extent that begins at a place, of at most `most` pages.
    pub(super) fn extent(&self, place: u64, most: u64) -> Extent {
        let most = most.min(LARGE_PAGES - place);
        match self {
            RangeMap::Run(run) if run.places().contains(&place) => {
                let part = run.part(place..run.places().end);
                Extent {
                    at: Some(part.at),
                    pages: part.pages.min(most),
                }
            }
            RangeMap::Run(run) => Extent {
                at: None,
                pages: match run.place.checked_sub(place) {
                    Some(before) => before.min(most),
                    None => most,
                },
            },
            RangeMap::Words(words, _) => {
                let words = &words[place as usize..(place + most) as usize];
                let first = words[0];
                let goes_on = |(number, word): (u64, &u64)| match first {
                    HOLE => *word == HOLE,
                    at => *word == at + number,
                };
                let pages = (0..).zip(words).take_while(|next| goes_on(*next)).count();
                Extent {
                    at: (first != HOLE).then_some(first),
                    pages: pages as u64,
                }
            }
        }
    }

    /// Adds a run in place of a hole.
    ///
    /// # Panics
    /// Panics if a part of it is not a hole.
    pub(super) fn insert(&mut self, new: Run) {
        let hole = self.extent(new.place, new.pages);
        assert!(
            hole.at.is_none() && hole.pages == new.pages,
            "places {:?} of a range were allocated over others",
            new.places()
        );
        let (words, used) = self.words();
        for (place, at) in new.places().zip(new.blocks()) {
            words[place as usize] = at;
        }
        *used += new.pages;
    }

    /// Returns the words, and the number of those that are not holes. A run is first turned into
    /// words.
    fn words(&mut self) -> (&mut [u64; LARGE_PAGES as usize], &mut u64) {
        if let RangeMap::Run(run) = self {
            let mut words = Box::new([HOLE; LARGE_PAGES as usize]);
            for (place, at) in run.places().zip(run.blocks()) {
                words[place as usize] = at;
            }
            *self = RangeMap::Words(words, run.pages);
        }
        match self {
            RangeMap::Words(words, used) => (words, used),
            RangeMap::Run(_) => unreachable!("made words above"),
        }
    }

    /// Makes places holes, and adds the device's pages of these places to `removed`. Returns
    /// whether any page is left.
    pub(super) fn remove(&mut self, places: Range<u64>, removed: &mut Vec<Range<u64>>) -> bool {
        if let RangeMap::Run(run) = self {
            let own = run.places();
            let gone = own.start.max(places.start)..own.end.min(places.end);
            if gone.is_empty() {
                return true;
            }
            match (own.start < gone.start, gone.end < own.end) {
                (true, true) => {} // two runs are left
                (before, behind) => {
                    removed.push(run.part(gone.clone()).blocks());
                    if before {
                        *run = run.part(own.start..gone.start);
                    } else if behind {
                        *run = run.part(gone.end..own.end);
                    } else {
                        return false;
                    }
                    return true;
                }
            }
        }
        let (words, used) = self.words();
        for word in &mut words[places.start as usize..places.end as usize] {
            let at = std::mem::replace(word, HOLE);
            if at == HOLE {
                continue;
            }
            *used -= 1;
            match removed.last_mut() {
                Some(run) if run.end == at => run.end += 1,
                _ => removed.push(at..at + 1),
            }
        }
        *used > 0
    }

    /// Returns the bytes on the heap, without those of this value itself.
    pub(super) fn heap_bytes(&self) -> u64 {
        match self {
            RangeMap::Run(_) => 0,
            RangeMap::Words(words, _) => size_of_val(&**words) as u64,
        }
    }
}
