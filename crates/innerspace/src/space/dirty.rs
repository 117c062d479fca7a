//! The pages that were stored to since the last `Space::take_dirty`: for a framebuffer, or to copy
//! a space while it runs.
//!
//! A page is *clean* from the `Space::take_dirty` of its range until a fault makes it writable. So
//! a clean page is not writable. `take_dirty` closes the gate on the range, makes the range clean,
//! takes away the write validity of the pages that were not, waits for a grace period, and opens
//! the gate. `docs/protocols/watched-pages.md` has the argument, and says when else a page stops
//! being clean.
//!
//! The log keeps the clean ranges, and charges the group a page of memory for every 128 of them.
//! Each run of pages that are stored to cuts a range in two, until a `take_dirty` joins the parts
//! again. If the group cannot pay for one more range, the pages after the cut stop being clean,
//! too.
//!
//! The mutex of the log is taken inside sections and under the gate's writer lock, and no lock is
//! taken under it.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::group::LimitError;
use crate::space::core::address::page_start;
use crate::space::core::payer::Payer;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{PAGE_SIZE, PageCount};

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/dirty.rs"]
mod validate;

/// The number of ranges that fit in a page of memory. The group is charged for whole pages.
const A_PAGE: usize = 128;

/// The log of a space.
#[derive(Debug, Default)]
pub(crate) struct DirtyLog {
    /// Whether any page was ever clean. Set with the gate closed, so a fault that has found the
    /// gate open reads the current value.
    watching: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// The clean ranges: the end of each by its start. No two of them touch.
    clean: BTreeMap<u64, u64>,
    /// The number of pages of memory that the group is charged for.
    charged: usize,
}

impl DirtyLog {
    /// Notes that the page at `at` is about to become writable, or to be restored; see
    /// `SpaceInner::written`.
    #[inline(always)]
    pub(crate) fn stored(&self, payer: Payer<'_>, at: u64) {
        // Relaxed: the gate orders this load.
        if self.watching.load(Ordering::Relaxed) {
            self.note(payer, page_start(at));
        }
    }

    #[cold]
    fn note(&self, payer: Payer<'_>, page: u64) {
        let page = page..page + PAGE_SIZE as u64;
        self.log.lock().forget(payer, &page);
    }

    /// Notes that no page of a range is clean any more. The caller holds the gate's writer lock.
    pub(crate) fn forget(&self, payer: Payer<'_>, range: &Range<u64>) {
        // Relaxed: the writer's mutex orders this load.
        if self.watching.load(Ordering::Relaxed) {
            self.log.lock().forget(payer, range);
        }
    }

    /// Returns the parts of the range that are not clean. Makes the whole range clean, if there is
    /// memory to note it. The gate is closed on the range.
    pub(crate) fn take(&self, payer: Payer<'_>, range: &Range<u64>) -> Vec<Range<u64>> {
        self.watching.store(true, Ordering::Relaxed);
        self.log.lock().take(payer, range)
    }

    /// Gives back the charges of a space that is being dropped.
    pub(crate) fn end(&self, payer: Payer<'_>) {
        let mut log = self.log.lock();
        log.clean.clear();
        log.give_back(payer);
    }

    /// Charges for one more range, if that needs no waiting. The caller holds the gate's writer
    /// lock.
    pub(crate) fn make_room(&self, payer: Payer<'_>) -> Result<(), LimitError> {
        let mut log = self.log.lock();
        log.give_back(payer);
        log.make_room(payer)
    }
}

impl Log {
    /// Charges for one more range than there are.
    fn make_room(&mut self, payer: Payer<'_>) -> Result<(), LimitError> {
        let wanted = (self.clean.len() + 1).div_ceil(A_PAGE);
        if wanted > self.charged {
            payer.charge(PageCount((wanted - self.charged) as u64))?;
            self.charged = wanted;
        }
        Ok(())
    }

    /// Gives back charges for ranges that no longer exist.
    fn give_back(&mut self, payer: Payer<'_>) {
        let wanted = self.clean.len().div_ceil(A_PAGE);
        payer.uncharge(PageCount((self.charged - wanted) as u64));
        self.charged = wanted;
    }

    /// Removes and returns the last clean range that overlaps `range`.
    fn take_out(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        let (&start, &end) = self.clean.range(..range.end).next_back()?;
        (end > range.start).then(|| {
            self.clean.remove(&start);
            start..end
        })
    }

    fn forget(&mut self, payer: Payer<'_>, range: &Range<u64>) {
        while let Some(known) = self.take_out(range) {
            if known.start < range.start {
                self.clean.insert(known.start, range.start);
            }
            // Cutting a range in two adds one. Without memory for it, the pages after the cut stop
            // being clean, too.
            let cut_in_two = known.start < range.start && range.end < known.end;
            if range.end < known.end && (!cut_in_two || self.make_room(payer).is_ok()) {
                self.clean.insert(range.end, known.end);
            }
        }
    }

    fn take(&mut self, payer: Payer<'_>, range: &Range<u64>) -> Vec<Range<u64>> {
        let has_room = self.make_room(payer).is_ok();
        let mut taken = Vec::new();
        let (mut to, mut whole) = (range.end, range.clone());
        // Ranges that touch are joined.
        let near = range.start.saturating_sub(1)..range.end.saturating_add(1);
        while let Some(known) = self.take_out(&near) {
            if known.end < to {
                taken.push(known.end..to);
            }
            to = known.start;
            whole = whole.start.min(known.start)..whole.end.max(known.end);
        }
        if range.start < to {
            taken.push(range.start..to);
        }
        self.clean.insert(whole.start, whole.end);
        if !has_room {
            self.forget(payer, range);
        }
        taken.reverse();
        taken
    }
}
