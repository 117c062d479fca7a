//! Blocks anywhere on a memory device: files in memory, and the proof that nothing takes offset and block for one.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use super::super::device::DaxDevice;
use super::super::stripes::{Stripe, stripe_of, stripes, stripes_of};
use super::blocks::{Blocks, Taken};
use super::{Extent, ExtentMap, LARGE_PAGES, NoBlock, Used};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RwLock, RwLockReadGuard};
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

/// What a run takes in the tree: nodes have room for 11 and are two thirds full.
const RUN_BYTES: u64 = 48;
/// Runs of a stripe are told of so many at a time, so that not each allocation writes the sum.
const RUNS_TOLD: u64 = 16;

/// The map of one file; its blocks go back to the device when it is dropped.
///
/// In stripes by the range of 2 MiB, so that allocations in different ranges do not meet. No run goes beyond its range.
pub(crate) struct ScatteredMap {
    device: DaxDevice,
    /// Leaves, each held for a look or a change of its tree, none with another.
    stripes: Box<[Stripe<RwLock<Runs>>]>,
    /// Runs in all stripes, about: the sum of what each has told.
    told: AtomicU64,
    /// The file's length in bytes. Changed by one at a time.
    len: AtomicU64,
}

/// What lies in the ranges of one stripe.
#[derive(Default)]
struct Runs {
    /// By the first page of the file; no two of one range touch both in the file and on the device.
    runs: BTreeMap<u64, Run>,
    /// How many are in [`ScatteredMap::told`]: at least as many as there are, and less than twice [`RUNS_TOLD`] more.
    told: u64,
}

/// Pages of a file that lie one behind the other on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    at: u64,
    pages: u64,
}

/// The first page of the range behind the one of `page`.
fn range_end(page: u64) -> u64 {
    (page / LARGE_PAGES + 1) * LARGE_PAGES
}

impl Runs {
    /// The run that holds `page`, with its first page.
    fn find(&self, page: u64) -> Option<(u64, Run)> {
        let (&first, &run) = self.runs.range(..=page).next_back()?;
        (page < first + run.pages).then_some((first, run))
    }

    fn insert(&mut self, mut first: u64, mut run: Run) {
        // What ends where the range begins, or begins where it ends, is in another stripe.
        if let Some((before, other)) = first.checked_sub(1).and_then(|page| self.find(page))
            && other.at + other.pages == run.at
        {
            first = before;
            run = Run {
                at: other.at,
                pages: other.pages + run.pages,
            };
        }
        let end = first + run.pages;
        if let Some(after) = self
            .runs
            .get(&end)
            .filter(|after| after.at == run.at + run.pages)
        {
            run.pages += after.pages;
            self.runs.remove(&end);
        }
        self.runs.insert(first, run);
    }

    /// Takes pages of the file out; the device's pages that held them.
    fn remove(&mut self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut removed = Vec::new();
        let start = self
            .find(pages.start)
            .map_or(pages.start, |(first, _)| first);
        let firsts: Vec<u64> = self
            .runs
            .range(start..pages.end.max(start))
            .map(|(&first, _)| first)
            .collect();
        for first in firsts {
            let Some(run) = self.runs.remove(&first) else {
                continue;
            };
            let (from, to) = (first.max(pages.start), (first + run.pages).min(pages.end));
            if first < from {
                let kept = Run {
                    at: run.at,
                    pages: from - first,
                };
                self.runs.insert(first, kept);
            }
            if to < first + run.pages {
                let kept = Run {
                    at: run.at + (to - first),
                    pages: first + run.pages - to,
                };
                self.runs.insert(to, kept);
            }
            removed.push(run.at + (from - first)..run.at + (to - first));
        }
        removed
    }
}

impl ScatteredMap {
    /// The map of an empty file on `device`.
    ///
    /// # Panics
    /// When the device is a host file's, whose blocks are its file system's.
    pub(crate) fn new(device: &DaxDevice) -> ScatteredMap {
        assert!(
            device.blocks().is_some(),
            "{device:?} has no blocks to give"
        );
        ScatteredMap {
            device: device.clone(),
            stripes: stripes(RwLock::default),
            told: AtomicU64::new(0),
            len: AtomicU64::new(0),
        }
    }

    /// The runs of a page's stripe.
    fn runs_at(&self, page: u64) -> RwLockReadGuard<'_, Runs> {
        self.stripes[stripe_of(page)].0.read()
    }

    fn blocks(&self) -> &Blocks {
        self.device.blocks().expect("looked at by `new`")
    }

    /// Zeroes what was taken and makes it the pages from `page` on.
    pub(super) fn place(&self, page: u64, pages: u64, taken: Taken) -> u64 {
        for &stale in &taken.stale {
            self.device.zero(stale << PAGE_SHIFT, PAGE_SIZE as u64);
        }
        let mut done = 0;
        while done < pages {
            let first = page + done;
            let part = (range_end(first) - first).min(pages - done);
            let run = Run {
                at: taken.page + done,
                pages: part,
            };
            self.change(stripe_of(first), |state| {
                let next = state.runs.range(first..).next().map(|(&first, _)| first);
                assert!(
                    state.find(first).is_none() && next.is_none_or(|next| next >= first + part),
                    "pages {first}..{} of a file were allocated over others",
                    first + part
                );
                state.insert(first, run);
            });
            done += part;
        }
        taken.page
    }

    /// Changes the runs of a stripe, and tells how many there are if that is more, or far less, than was told.
    fn change<T>(&self, stripe: usize, change: impl FnOnce(&mut Runs) -> T) -> T {
        let mut state = self.stripes[stripe].0.write();
        let changed = change(&mut state);
        let wanted = (state.runs.len() as u64).next_multiple_of(RUNS_TOLD);
        if wanted > state.told || wanted + RUNS_TOLD < state.told || wanted == 0 {
            // A wrapping addition of the difference, of either sign.
            let more = wanted.wrapping_sub(state.told);
            if more != 0 {
                self.told.fetch_add(more, Ordering::Relaxed);
            }
            state.told = wanted;
        }
        changed
    }

    /// Makes the block of every page of the file's page range `at` on the device: an extent where a test wants it.
    #[cfg(test)]
    pub(crate) fn place_at(&self, page: u64, at: Range<u64>) {
        let pages = at.end - at.start;
        let taken = self.blocks().take_at(at);
        self.place(page, pages, taken);
    }

    fn remove(&self, pages: Range<u64>) {
        for run in self.take_out(pages) {
            self.blocks().give_back(run);
        }
    }

    /// Takes pages of the file out; the device's pages that held them.
    fn take_out(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut removed = Vec::new();
        for stripe in stripes_of(&pages) {
            removed.extend(self.change(stripe, |state| state.remove(pages.clone())));
        }
        removed
    }

    /// Zeroes the bytes from `len` to the end of its page: they are past the end, or about to come to the file.
    fn zero_tail(&self, len: u64) {
        let inside = len % PAGE_SIZE as u64;
        if inside == 0 {
            return;
        }
        let page = len >> PAGE_SHIFT;
        if let Some((first, run)) = self.runs_at(page).find(page) {
            let at = (run.at + (page - first)) << PAGE_SHIFT;
            self.device.zero(at + inside, PAGE_SIZE as u64 - inside);
        }
    }

    /// The number of runs.
    #[cfg(test)]
    pub(super) fn runs(&self) -> usize {
        let lens = self
            .stripes
            .iter()
            .map(|Stripe(runs)| runs.read().runs.len());
        lens.sum()
    }
}

impl ExtentMap for ScatteredMap {
    fn lookup(&self, page: u64, most: u64) -> io::Result<Extent> {
        debug_assert!(most > 0);
        // What lies behind the range is in another stripe: whoever wants more asks again.
        let most = most.min(range_end(page) - page);
        let state = self.runs_at(page);
        if let Some((first, run)) = state.find(page) {
            let skip = page - first;
            return Ok(Extent {
                at: Some(run.at + skip),
                pages: (run.pages - skip).min(most),
            });
        }
        let next = state.runs.range(page..).next();
        Ok(Extent {
            at: None,
            pages: next.map_or(most, |(first, _)| (first - page).min(most)),
        })
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

    fn finish(&self, page: u64, pages: u64, used: Used) {
        if used == Used::Dropped {
            let removed = self.take_out(page..page + pages);
            let count: u64 = removed.iter().map(|run| run.end - run.start).sum();
            assert_eq!(
                count, pages,
                "an allocation at page {page} was dropped twice"
            );
            for run in removed {
                self.blocks().give_back(run);
            }
        }
    }

    fn free(&self, pages: Range<u64>) -> io::Result<()> {
        self.remove(pages);
        Ok(())
    }

    fn heap_bytes(&self) -> u64 {
        self.told.load(Ordering::Relaxed) * RUN_BYTES
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let before = self.len.load(Ordering::Relaxed);
        self.zero_tail(before.min(bytes));
        self.len.store(bytes, Ordering::Relaxed);
        if bytes < before {
            self.remove(bytes.div_ceil(PAGE_SIZE as u64)..u64::MAX);
        }
        Ok(())
    }

    fn sync_metadata(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ScatteredMap {
    fn drop(&mut self) {
        self.remove(0..u64::MAX);
    }
}
