//! Blocks anywhere on a memory device: files in memory, and the proof that nothing takes offset and block for one.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use super::super::device::DaxDevice;
use super::blocks::{Blocks, Taken};
use super::{Extent, ExtentMap, LARGE_PAGES, NoBlock, Used};
use crate::sync::RwLock;
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

/// What a run takes in the tree: nodes have room for 11 and are two thirds full.
const RUN_BYTES: u64 = 48;

/// The map of one file; its blocks go back to the device when it is dropped.
pub(crate) struct ScatteredMap {
    device: DaxDevice,
    /// A leaf, held for a look or a change of the tree.
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    /// By the first page of the file; no two touch both in the file and on the device.
    runs: BTreeMap<u64, Run>,
    /// The file's length in bytes.
    len: u64,
}

/// Pages of a file that lie one behind the other on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    at: u64,
    pages: u64,
}

impl State {
    /// The run that holds `page`, with its first page.
    fn find(&self, page: u64) -> Option<(u64, Run)> {
        let (&first, &run) = self.runs.range(..=page).next_back()?;
        (page < first + run.pages).then_some((first, run))
    }

    fn insert(&mut self, mut first: u64, mut run: Run) {
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
            state: RwLock::new(State::default()),
        }
    }

    fn blocks(&self) -> &Blocks {
        self.device.blocks().expect("looked at by `new`")
    }

    /// Zeroes what was taken and makes it the pages from `page` on.
    pub(super) fn place(&self, page: u64, pages: u64, taken: Taken) -> u64 {
        for &stale in &taken.stale {
            self.device.zero(stale << PAGE_SHIFT, PAGE_SIZE as u64);
        }
        let mut state = self.state.write();
        let next = state.runs.range(page..).next().map(|(&first, _)| first);
        assert!(
            state.find(page).is_none() && next.is_none_or(|next| next >= page + pages),
            "pages {page}..{} of a file were allocated over others",
            page + pages
        );
        let run = Run {
            at: taken.page,
            pages,
        };
        state.insert(page, run);
        taken.page
    }

    /// Makes the block of every page of the file's page range `at` on the device: an extent where a test wants it.
    #[cfg(test)]
    pub(crate) fn place_at(&self, page: u64, at: Range<u64>) {
        let pages = at.end - at.start;
        let taken = self.blocks().take_at(at);
        self.place(page, pages, taken);
    }

    fn remove(&self, pages: Range<u64>) {
        let removed = self.state.write().remove(pages);
        for run in removed {
            self.blocks().give_back(run);
        }
    }

    /// Zeroes the bytes from `len` to the end of its page: they are past the end, or about to come to the file.
    fn zero_tail(&self, len: u64) {
        let inside = len % PAGE_SIZE as u64;
        if inside == 0 {
            return;
        }
        let page = len >> PAGE_SHIFT;
        if let Some((first, run)) = self.state.read().find(page) {
            let at = (run.at + (page - first)) << PAGE_SHIFT;
            self.device.zero(at + inside, PAGE_SIZE as u64 - inside);
        }
    }

    /// The number of runs.
    #[cfg(test)]
    pub(super) fn runs(&self) -> usize {
        self.state.read().runs.len()
    }
}

impl ExtentMap for ScatteredMap {
    fn lookup(&self, page: u64, most: u64) -> io::Result<Extent> {
        debug_assert!(most > 0);
        let state = self.state.read();
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
            let removed = self.state.write().remove(page..page + pages);
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
        self.state.read().runs.len() as u64 * RUN_BYTES
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let before = self.state.read().len;
        self.zero_tail(before.min(bytes));
        self.state.write().len = bytes;
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
