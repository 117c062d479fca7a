//! Blocks in place, over a sparse host file: a page of the file is at the device's page with the
//! same number.
//!
//! The host's file system keeps the map, even through a crash; lseek(2) asks it for the next data
//! and the next hole. A block is allocated (fallocate(2)) before it is first written, so that a
//! full file system is an error here and not a signal at a store. This holds for file systems that
//! write in place. On one that copies on write (btrfs, or a range shared by reflink) even a store
//! to an old block may need a new block, and raises a SIGBUS if the file system is full.
//!
//! An allocated block is not enough if the host caches several pages as one (a large folio: ext4
//! since 6.16). At the first store to one of these pages, the host makes room for all of them,
//! holes included. So before clean pages are mapped for stores or written by call, the host is
//! asked to do that (`DaxDevice::make_storable`), and its refusal is an error. One case is left:
//! the host may write a dirty page, drop it from its cache, and read it again, with other holes
//! around it, for another process. If the file system has become full meanwhile, a store to the
//! page raises a SIGBUS.
//!
//! **Known runs.** The map keeps the host's last few answers, as runs of data or hole. Allocating
//! and freeing change them. An answer is not kept if `changes` has grown during the query. Writes
//! by processes that ignore the lock on the file are not seen before `forget`.

use std::io;
use std::ops::Range;

use super::super::open::HostFile;
use super::{Extent, ExtentMap};
use crate::sync::{Arc, Mutex};
use crate::sys::file as sys;
use crate::sys::shared;
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

/// The number of runs that are remembered.
const KNOWN_RUNS: usize = 16;

/// The map of a host file.
pub(crate) struct IdentityMap {
    host: Arc<HostFile>,
    /// The host's last answers. An innermost lock; the host is not called with it held.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// At most [`KNOWN_RUNS`] runs, the newest last, none of them empty, no two overlapping.
    runs: Vec<Run>,
    /// The number of allocations, punched holes, changes of length and calls to `forget` so far.
    changes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    pages: Range<u64>,
    content: Content,
}

impl Run {
    /// Returns the extent that begins at `page`, of at most `most` pages. `page` must be in the
    /// run.
    fn extent(&self, page: u64, most: u64) -> Extent {
        Extent {
            at: (self.content == Content::Data).then_some(page),
            pages: (self.pages.end - page).min(most),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Data,
    Hole,
}

impl Known {
    fn find(&self, page: u64) -> Option<&Run> {
        self.runs.iter().find(|run| run.pages.contains(&page))
    }

    fn add(&mut self, run: Run) {
        // Overlapping runs are older, and lose these pages. A neighbour with the same content is
        // joined to the new run.
        let mut run = run;
        self.forget(run.pages.clone());
        self.runs.retain(|other| {
            let touches = other.pages.end == run.pages.start || run.pages.end == other.pages.start;
            let joins = touches && other.content == run.content;
            if joins {
                let start = run.pages.start.min(other.pages.start);
                run.pages = start..run.pages.end.max(other.pages.end);
            }
            !joins
        });
        if self.runs.len() == KNOWN_RUNS {
            self.runs.remove(0);
        }
        self.runs.push(run);
    }

    /// Removes pages from the runs. If that cuts a run in two, only the second part stays, because
    /// pages are mostly looked up in ascending order.
    fn forget(&mut self, pages: Range<u64>) {
        for run in &mut self.runs {
            let (start, end) = (run.pages.start, run.pages.end);
            if end <= pages.start || pages.end <= start {
                continue;
            }
            run.pages = if pages.end < end {
                pages.end..end
            } else {
                start..pages.start.max(start)
            };
        }
        self.runs.retain(|run| !run.pages.is_empty());
    }

    /// Records that these pages have changed or may have changed, with their new content if that is
    /// known.
    fn change(&mut self, pages: Range<u64>, content: Option<Content>) {
        self.changes += 1;
        match content {
            Some(content) => self.add(Run { pages, content }),
            None => self.forget(pages),
        }
    }
}

fn bytes(page: u64) -> u64 {
    page << PAGE_SHIFT
}

impl IdentityMap {
    /// Creates the map of a file that was just opened.
    pub(crate) fn new(host: Arc<HostFile>) -> IdentityMap {
        IdentityMap {
            host,
            known: Mutex::default(),
        }
    }

    /// Asks the file system for the run that begins at `page`.
    fn ask(&self, page: u64) -> io::Result<Run> {
        let data = sys::next_data(&self.host.file, bytes(page))?;
        let Some(data) = data else {
            // The page is in a hole, or past the end of the file. A range that another process has
            // cut off is not a hole.
            self.check_len(page)?;
            return Ok(Run {
                pages: page..u64::MAX >> PAGE_SHIFT,
                content: Content::Hole,
            });
        };
        // A page that contains any data is a page of data.
        if data >> PAGE_SHIFT > page {
            return Ok(Run {
                pages: page..data >> PAGE_SHIFT,
                content: Content::Hole,
            });
        }
        let hole = sys::next_hole(&self.host.file, data)?.unwrap_or(data + 1);
        Ok(Run {
            pages: page..hole.div_ceil(PAGE_SIZE as u64).max(page + 1),
            content: Content::Data,
        })
    }

    /// Checks, for an access to `page`, that the file is not shorter than it should be.
    ///
    /// # Errors
    /// An error that contains [`StoreError::Shrank`](crate::store::StoreError), or the host's error
    /// if it cannot be asked for the length.
    fn check_len(&self, page: u64) -> io::Result<()> {
        let was = self.host.len.get();
        match self.host.len_now()? {
            now if now < was => Err(self.host.len.shrank(bytes(page), PAGE_SIZE as u64, now)),
            _ => Ok(()),
        }
    }
}

impl ExtentMap for IdentityMap {
    fn lookup(&self, page: u64, most: u64) -> io::Result<Extent> {
        debug_assert!(most > 0);
        let changes = {
            let known = self.known.lock();
            if let Some(run) = known.find(page) {
                return Ok(run.extent(page, most));
            }
            known.changes
        };
        let run = self.ask(page)?;
        let extent = run.extent(page, most);
        let mut known = self.known.lock();
        if known.changes == changes {
            known.add(run);
        }
        Ok(extent)
    }

    fn known(&self, page: u64, most: u64) -> Option<Extent> {
        let known = self.known.lock();
        known.find(page).map(|run| run.extent(page, most))
    }

    fn allocate(&self, page: u64, pages: u64) -> io::Result<u64> {
        let range = page..page + pages;
        shared::allocate(&self.host.file, bytes(page), bytes(pages))?;
        if let Err(error) = self.check_len(page) {
            // If the file system cannot punch holes past the end, the block stays until the file's
            // length changes.
            let _ = self.host.punch(bytes(page), bytes(pages));
            self.known.lock().change(range, None);
            return Err(error);
        }
        self.known.lock().change(range, Some(Content::Data));
        Ok(page)
    }

    fn free(&self, pages: Range<u64>) -> io::Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let done = self
            .host
            .punch(bytes(pages.start), bytes(pages.end - pages.start));
        let content = done.is_ok().then_some(Content::Hole);
        self.known.lock().change(pages, content);
        done
    }

    fn forget(&self, pages: Range<u64>) {
        self.known.lock().change(pages, None);
    }

    fn heap_bytes(&self) -> u64 {
        (KNOWN_RUNS * size_of::<Run>()) as u64
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.host.len_now()?;
        if len > before {
            // Bytes that another process has cut off must not come back as zeros.
            self.check_len(before >> PAGE_SHIFT)?;
        }
        let done = self.host.set_len(len);
        self.forget(len.min(before) >> PAGE_SHIFT..u64::MAX >> PAGE_SHIFT);
        done
    }

    fn sync_metadata(&self) -> io::Result<()> {
        self.host.file.sync_name()?;
        self.host.file.sync_all()
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    fn run(pages: Range<u64>, content: Content) -> Run {
        Run { pages, content }
    }

    #[test]
    fn a_change_in_the_middle_of_a_run_leaves_the_part_behind_it() {
        let mut known = Known::default();
        known.add(run(0..100, Content::Hole));
        known.change(10..12, Some(Content::Data));
        assert_eq!(known.find(11), Some(&run(10..12, Content::Data)));
        assert_eq!(known.find(12), Some(&run(12..100, Content::Hole)));
        assert_eq!(known.find(9), None);
        // Neighbours with the same content become one run.
        known.change(12..13, Some(Content::Data));
        assert_eq!(known.find(10), Some(&run(10..13, Content::Data)));
        known.change(99..200, Some(Content::Hole));
        assert_eq!(known.find(50), Some(&run(13..200, Content::Hole)));
        known.change(0..u64::MAX, None);
        assert!(known.runs.is_empty());
    }

    #[test]
    fn old_answers_make_room_for_new_ones() {
        let mut known = Known::default();
        for number in 0..100 {
            known.add(run(2 * number..2 * number + 1, Content::Data));
            assert!(known.find(2 * number).is_some());
            assert!(known.runs.len() <= KNOWN_RUNS);
        }
        assert_eq!(known.find(0), None);
    }
}
