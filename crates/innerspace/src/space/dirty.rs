//! The pages that were stored to since the last `Space::take_dirty`: for a framebuffer, or to copy
//! a space while it runs.
//!
//! A page is *clean* from the `Space::take_dirty` of its range until a fault makes it writable. So
//! a clean page is not writable. `take_dirty` closes the gate on the range, makes the range clean,
//! takes away the write validity of the pages that were not clean, waits for a grace period, and
//! opens the gate. `docs/protocols/watched-pages.md` has the argument, and says when else a page
//! stops being clean.
//!
//! The log keeps the clean ranges, and charges the group a page of memory for every 128 of them.
//! Each run of pages that are stored to cuts a range in two, until a `take_dirty` joins the parts
//! again. If the group cannot pay for one more range, the pages after the cut stop being clean,
//! too.
//!
//! The mutex of the log is taken inside sections and under the gate's writer lock. Under it, the
//! thread charges the group without waiting, and gives back charges. That takes the lock of the
//! group tree, for an error, and locks that come later in the lock order.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::PAGE_SIZE;
use crate::group::{Group, HeapBytes, LimitError};
use crate::space::core::address::page_start;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/dirty.rs"]
mod validate;

/// The number of ranges that fit in a page of memory. The group is charged for whole pages.
const A_PAGE: usize = 128;

/// A space's record of its clean pages, as this module describes it.
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
    /// The charge for the ranges, in whole pages.
    heap: Option<HeapBytes>,
}

impl DirtyLog {
    /// Notes that the page at `at` is about to become writable, or to be restored; see
    /// `SpaceInner::written`.
    #[inline(always)]
    pub(crate) fn stored(&self, group: &Group, at: u64) {
        // Relaxed: the gate orders this load.
        if self.watching.load(Ordering::Relaxed) {
            self.note(group, page_start(at));
        }
    }

    #[cold]
    fn note(&self, group: &Group, page: u64) {
        let page = page..page + PAGE_SIZE as u64;
        self.log.lock().forget(group, &page);
    }

    /// Notes that no page of a range is clean any more. The caller holds the gate's writer lock.
    pub(crate) fn forget(&self, group: &Group, range: &Range<u64>) {
        // Relaxed: the writer's mutex orders this load.
        if self.watching.load(Ordering::Relaxed) {
            self.log.lock().forget(group, range);
        }
    }

    /// Returns the parts of the range that are not clean. Makes the whole range clean, if there is
    /// memory to note it. The gate is closed on the range.
    pub(crate) fn take(&self, group: &Group, range: &Range<u64>) -> Vec<Range<u64>> {
        self.watching.store(true, Ordering::Relaxed);
        self.log.lock().take(group, range)
    }

    /// Charges for one more range, without waiting, or fails; and gives back what is charged for
    /// ranges that no longer exist. The caller holds the gate's writer lock.
    pub(crate) fn make_room(&self, group: &Group) -> Result<(), LimitError> {
        let mut log = self.log.lock();
        let wanted = log.bytes_for_one_more();
        group.set_heap(&mut log.heap, wanted)
    }
}

impl Log {
    /// Returns the bytes to be charged for one more range than there are.
    fn bytes_for_one_more(&self) -> usize {
        (self.clean.len() + 1).div_ceil(A_PAGE) * PAGE_SIZE
    }

    /// Raises the charge, if necessary, so that it covers one more range than there are.
    fn make_room(&mut self, group: &Group) -> Result<(), LimitError> {
        let wanted = self.bytes_for_one_more();
        match &self.heap {
            Some(heap) if heap.bytes() >= wanted as u64 => Ok(()),
            _ => group.set_heap(&mut self.heap, wanted),
        }
    }

    /// Removes and returns the last clean range that overlaps `range`.
    fn take_out(&mut self, range: &Range<u64>) -> Option<Range<u64>> {
        let (&start, &end) = self.clean.range(..range.end).next_back()?;
        (end > range.start).then(|| {
            self.clean.remove(&start);
            start..end
        })
    }

    fn forget(&mut self, group: &Group, range: &Range<u64>) {
        while let Some(known) = self.take_out(range) {
            if known.start < range.start {
                self.clean.insert(known.start, range.start);
            }
            // Cutting a range in two adds one. Without memory for it, the pages after the cut stop
            // being clean, too.
            let cut_in_two = known.start < range.start && range.end < known.end;
            if range.end < known.end && (!cut_in_two || self.make_room(group).is_ok()) {
                self.clean.insert(range.end, known.end);
            }
        }
    }

    fn take(&mut self, group: &Group, range: &Range<u64>) -> Vec<Range<u64>> {
        let has_room = self.make_room(group).is_ok();
        let mut taken = Vec::new();
        let (mut to, mut whole) = (range.end, range.clone());
        // Clean ranges that overlap or touch `range` are joined with it.
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
            self.forget(group, range);
        }
        taken.reverse();
        taken
    }
}
