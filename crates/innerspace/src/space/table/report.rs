//! Walks over a table: for revokers, reports and checks.

use std::ops::Range;

use super::nodes::Nodes;
use super::pte::{self, Holds, Pte, VALID_R, VALID_W};
use crate::space::core::address::slot_index;
use crate::sync::raw::AtomicU64;
use crate::{FrameId, PAGE_SIZE, PageCount};

/// Numbers of pages of 4 KiB, by kind and state.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PageStats {
    /// Mapped pages that take memory, like Linux's Rss: pages of devices and the zero frame do not
    /// count.
    pub resident: PageCount,
    /// Pages of files in the page cache.
    pub file: PageCount,
    /// Anonymous pages that belong to this space alone.
    pub own: PageCount,
    /// Anonymous pages shared with forks, snapshots or their views, or once shared with one that no
    /// longer exists, and not stored to since.
    pub shared: PageCount,
    /// Pages of direct-access files: they belong to the device, and take no memory.
    pub direct: PageCount,
    /// Pages of files that were written or stored to since they were last written back or synced:
    /// like Linux's Shared_Dirty. All mapped pages of a dirty block count.
    pub dirty: PageCount,
    /// Pages that map the zero frame; they take no memory.
    pub zero: PageCount,
    /// Pages that were used since reclaim last checked: like Linux's Referenced.
    pub referenced: PageCount,
    /// Pages to which a store needs no fault.
    pub writable: PageCount,
}

impl PageStats {
    pub(crate) fn add(&mut self, other: &PageStats) {
        self.resident += other.resident;
        self.file += other.file;
        self.own += other.own;
        self.shared += other.shared;
        self.direct += other.direct;
        self.dirty += other.dirty;
        self.zero += other.zero;
        self.referenced += other.referenced;
        self.writable += other.writable;
    }
}

impl<'pool> Nodes<'pool> {
    /// Calls `each` with every leaf that covers a part of the range, and with the part, until
    /// `each` returns false. Returns whether `each` never returned false. The caller of this
    /// function, and of those below, is inside the gate, or has it closed.
    fn all_leaves(
        self,
        range: &Range<u64>,
        each: &mut impl FnMut(FrameId, Range<u64>) -> bool,
    ) -> bool {
        let mut visit = |_: &AtomicU64, child, level, part| match level {
            0 if !each(child, part) => Err(()),
            _ => Ok(Some(child)),
        };
        self.walk(range, &mut visit).is_ok()
    }

    /// Returns the slots of a part of a leaf, with their addresses.
    pub(super) fn slots(
        self,
        leaf: FrameId,
        part: Range<u64>,
    ) -> impl Iterator<Item = (u64, &'pool AtomicU64)> {
        let words = &self.words(leaf)[slot_index(part.start, 0)..];
        part.step_by(PAGE_SIZE).zip(words)
    }

    /// Calls `each` for every slot of the range whose leaf exists and is not the leaf of zeros.
    pub(crate) fn for_each_slot(self, range: &Range<u64>, mut each: impl FnMut(u64, &AtomicU64)) {
        self.all_leaves(range, &mut |leaf, part| {
            if !self.is_zero_leaf(leaf) {
                self.slots(leaf, part).for_each(|(at, word)| each(at, word));
            }
            true
        });
    }

    /// Returns whether there is a leaf for a part of the range.
    pub(crate) fn has_leaf(self, range: &Range<u64>) -> bool {
        !self.all_leaves(range, &mut |_, _| false)
    }

    /// Returns one address in each leaf that has a slot of the range.
    pub(crate) fn leaves(self, range: &Range<u64>) -> Vec<u64> {
        let mut leaves: Vec<u64> = Vec::new();
        self.all_leaves(range, &mut |_, part| {
            leaves.push(part.start);
            true
        });
        leaves
    }

    /// Counts the pages of a range. A file's page counts as dirty if a store to it needs no fault,
    /// or if `is_dirty` says so.
    pub(crate) fn count_pages(
        self,
        start: u64,
        end: u64,
        is_dirty: impl Fn(u64, Pte) -> bool,
    ) -> PageStats {
        let mut found = PageStats::default();
        self.all_leaves(&(start..end), &mut |leaf, part| {
            if self.is_zero_leaf(leaf) {
                let holes = PageCount::floor(part.end - part.start);
                found.zero += holes;
                found.referenced += holes;
                return true;
            }
            let exclusive = self.find(part.start).is_some_and(|leaf| leaf.exclusive);
            for (at, word) in self.slots(leaf, part) {
                let pte = pte::load(word);
                match pte.holds() {
                    Holds::Nothing => continue,
                    Holds::Zero => found.zero += PageCount(1),
                    Holds::File => found.file += PageCount(1),
                    Holds::Direct => found.direct += PageCount(1),
                    // The leaf, or one copied from it, may have taken a ref on each page instead
                    // of borrowing: then the pages have two owners.
                    Holds::Own if exclusive && self.is_sole_owner(pte) => found.own += PageCount(1),
                    Holds::Own | Holds::Borrowed => found.shared += PageCount(1),
                }
                found.referenced += PageCount(pte.has(VALID_R).into());
                let writable = pte.has(VALID_W);
                found.writable += PageCount(writable.into());
                if matches!(pte.holds(), Holds::File | Holds::Direct) {
                    // Aging, samples and advice take write validity away, but a dirty page stays
                    // dirty.
                    found.dirty += PageCount((writable || is_dirty(at, pte)).into());
                }
            }
            true
        });
        found.resident = found.file + found.own + found.shared;
        found
    }

    /// Counts a node and the nodes below it, shared ones included. The leaf of zeros does not
    /// count.
    pub(crate) fn count_nodes(self, node: FrameId, level: u32) -> PageCount {
        let words = self.words(node).iter().filter(|_| level > 0);
        let children = words.filter_map(|word| self.child(word));
        let children = children.filter(|child| !self.is_zero_leaf(*child));
        let below = children.map(|child| self.count_nodes(child, level - 1));
        PageCount(1) + below.sum()
    }
}
