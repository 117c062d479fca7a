//! Walks over a table: for revokers, reports and checks.

use std::ops::Range;

use super::nodes::{Nodes, pieces};
use super::pte::{self, Holds, Pte, VALID_W};
use crate::space::core::address::{LEAF_BYTES, ROOT_LEVEL, span};
use crate::sync::raw::AtomicU64;
use crate::{FrameId, PageCount};

/// The number of pages of each kind in the leaves of a range.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Resident {
    /// Anonymous pages in leaves of the space's own.
    pub(crate) own: PageCount,
    /// Anonymous pages in leaves shared with forks, or borrowed from such leaves.
    pub(crate) shared: PageCount,
    pub(crate) file: PageCount,
    /// Pages of direct-access files.
    pub(crate) direct: PageCount,
    /// Pages of files that were stored to since they were last written back or synced.
    pub(crate) dirty: PageCount,
    pub(crate) zero: PageCount,
    pub(crate) referenced: PageCount,
    pub(crate) writable: PageCount,
}

impl Resident {
    /// Returns the number of present slots.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn total(&self) -> u64 {
        self.own.0 + self.shared.0 + self.file.0 + self.direct.0 + self.zero.0
    }
}

impl Nodes<'_> {
    /// Calls `each` for every slot of the range whose leaf exists and is not the leaf of zeros. The
    /// caller is inside the gate, or has it closed.
    pub(crate) fn for_each_slot(
        self,
        root: FrameId,
        start: u64,
        end: u64,
        each: &mut impl FnMut(u64, &AtomicU64),
    ) {
        self.walk_slots(root, ROOT_LEVEL, 0, start, end, each);
    }

    /// Whether there is a leaf for a part of the range. The caller is inside the gate, or has it
    /// closed.
    pub(crate) fn has_leaf(self, root: FrameId, range: &Range<u64>) -> bool {
        self.finds_leaf(root, ROOT_LEVEL, 0, range.start, range.end)
    }

    fn finds_leaf(self, node: FrameId, level: u32, base: u64, start: u64, end: u64) -> bool {
        pieces(level, base, start, end).any(|(index, from, to)| {
            let Some(child) = self.child(&self.words(node)[index]) else {
                return false;
            };
            let below = base + index as u64 * span(level);
            level == 1 || self.finds_leaf(child, level - 1, below, from, to)
        })
    }

    /// Returns one address in each leaf that has a slot of the range. The caller is inside the
    /// gate, or has it closed.
    pub(crate) fn leaves(self, root: FrameId, range: &Range<u64>) -> Vec<u64> {
        let mut leaves: Vec<u64> = Vec::new();
        self.for_each_slot(root, range.start, range.end, &mut |at, _| {
            let is_next = |last: &u64| last / LEAF_BYTES != at / LEAF_BYTES;
            if leaves.last().is_none_or(is_next) {
                leaves.push(at);
            }
        });
        leaves
    }

    fn walk_slots(
        self,
        node: FrameId,
        level: u32,
        base: u64,
        start: u64,
        end: u64,
        each: &mut impl FnMut(u64, &AtomicU64),
    ) {
        for (index, from, to) in pieces(level, base, start, end) {
            let word = &self.words(node)[index];
            if level == 0 {
                each(from, word);
            } else if let Some(child) = self.child(word)
                && !self.is_zero_leaf(child)
            {
                self.walk_slots(
                    child,
                    level - 1,
                    base + index as u64 * span(level),
                    from,
                    to,
                    each,
                );
            }
        }
    }

    /// Counts the pages in the range's leaves. `is_dirty` is called for pages of files to which a
    /// store would fault.
    pub(crate) fn resident(
        self,
        root: FrameId,
        start: u64,
        end: u64,
        is_dirty: impl Fn(u64, Pte) -> bool,
    ) -> Resident {
        let mut found = Resident::default();
        // The number of the last leaf, and whether that leaf is this space's alone.
        let mut leaf = (u64::MAX, false);
        self.for_each_slot(root, start, end, &mut |at, word| {
            let pte = pte::load(word);
            if leaf.0 != at / span(1) {
                let exclusive = self.find(root, at).is_some_and(|leaf| leaf.exclusive);
                leaf = (at / span(1), exclusive);
            }
            match pte.holds() {
                Holds::Nothing => return,
                Holds::Zero => found.zero.0 += 1,
                Holds::File => found.file.0 += 1,
                Holds::Direct => found.direct.0 += 1,
                Holds::Own if leaf.1 => found.own.0 += 1,
                Holds::Own | Holds::Borrowed => found.shared.0 += 1,
            }
            found.referenced.0 += u64::from(pte.has(pte::VALID_R));
            let writable = pte.has(VALID_W);
            found.writable.0 += u64::from(writable);
            if matches!(pte.holds(), Holds::File | Holds::Direct) {
                // Aging, samples and advice take write validity away and leave the page as dirty as
                // before.
                found.dirty.0 += u64::from(writable || is_dirty(at, pte));
            }
        });
        let holes = self.zero_leaf_pages(root, start, end);
        found.zero.0 += holes;
        found.referenced.0 += holes;
        found
    }

    /// Counts the nodes of the space's table, shared ones included.
    pub(crate) fn count_nodes(self, root: FrameId) -> PageCount {
        PageCount(self.count_below(root, ROOT_LEVEL))
    }

    fn count_below(self, node: FrameId, level: u32) -> u64 {
        if level == 0 {
            return 1;
        }
        let children = self.words(node).iter().filter_map(|word| self.child(word));
        let children = children.filter(|child| !self.is_zero_leaf(*child));
        1 + children
            .map(|child| self.count_below(child, level - 1))
            .sum::<u64>()
    }
}
