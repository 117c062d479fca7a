//! The leaves in which a space may have pinned pages; `pin` says what pins are.

use std::collections::BTreeSet;
use std::ops::Range;

use super::address::{LEAF_BYTES, leaf_number};
use crate::FrameId;
use crate::space::table::nodes::Nodes;
use crate::sync::{Arc, Weak};

/// The number of leaves to remember before checking whether they still have pinned pages.
const MANY_LEAVES: usize = 64;

/// The leaves of a space that may have pinned pages, and the pins that a fork may not copy.
/// Protected by the gate's writer lock.
#[derive(Default)]
pub(crate) struct PinnedLeaves {
    /// The numbers of leaves that may have pinned pages.
    leaves: BTreeSet<u64>,
    /// The number of entries of both lists that were left by the last check.
    live: usize,
    /// The frames of each pin with [`AtFork::Refuse`](crate::space::AtFork::Refuse).
    alone: Vec<Weak<[FrameId]>>,
}

impl PinnedLeaves {
    pub(crate) fn add(&mut self, range: &Range<u64>, frames: &Arc<[FrameId]>, is_copied: bool) {
        self.leaves
            .extend(leaf_number(range.start)..=leaf_number(range.end - 1));
        if !is_copied {
            self.alone.push(Arc::downgrade(frames));
        }
    }

    /// Returns whether it is time to check which leaves still have pinned pages.
    pub(crate) fn is_look_due(&self) -> bool {
        self.leaves.len() + self.alone.len() > MANY_LEAVES.max(2 * self.live)
    }

    /// Returns the frames that a fork may not copy.
    pub(crate) fn not_copied(&self) -> BTreeSet<FrameId> {
        let alone = self.alone.iter().filter_map(Weak::upgrade);
        alone.flat_map(|frames| frames.to_vec()).collect()
    }

    /// Notes that the pages of `from` are about to move to the addresses from `to` on.
    pub(crate) fn move_range(&mut self, from: &Range<u64>, to: u64) {
        let span = LEAF_BYTES;
        let known = leaf_number(from.start)..=leaf_number(from.end - 1);
        let moved: Vec<u64> = self.leaves.range(known).copied().collect();
        for leaf in moved {
            let start = (leaf * span).max(from.start) - from.start + to;
            let end = ((leaf + 1) * span).min(from.end) - from.start + to;
            self.leaves
                .extend(leaf_number(start)..=leaf_number(end - 1));
        }
    }

    /// Returns all pinned pages, by address, and forgets leaves without any. The caller is in a
    /// section and holds the gate's writer lock.
    pub(crate) fn look(&mut self, nodes: Nodes<'_>) -> Vec<(u64, FrameId)> {
        let mut found = Vec::new();
        self.leaves.retain(|leaf| {
            let pages = nodes.pinned_in_leaf(leaf * LEAF_BYTES);
            let any = !pages.is_empty();
            found.extend(pages);
            any
        });
        self.alone.retain(|frames| frames.strong_count() > 0);
        self.live = self.leaves.len() + self.alone.len();
        found
    }
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl PinnedLeaves {
        /// Returns the number of leaves that are remembered.
        pub(crate) fn known(&self) -> usize {
            self.leaves.len()
        }
    }
}
