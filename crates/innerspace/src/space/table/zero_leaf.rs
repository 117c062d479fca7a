//! The leaf of zeros: 512 words that map the zero frame, read-only. One word that points to it maps
//! a hole of 2 MiB, so the hole needs no table.
//!
//! Each `Memory` has one such leaf and never frees it, so the root group pays for it. Its parents
//! are not counted: a revoker unlinks it at any time, with neither `paths` nor the gate. The leaf
//! counts as shared: a change of one of its pages first unlinks it. Its words never change; walks
//! that change words skip it, and copies of nodes and restores leave it out. It is linked only
//! where an entry of a direct-access file says "hole of 2 MiB". Linking it, and unlinking it by a
//! revoker, needs that entry's lock.
//!
//! A thread that makes a path the space's own unlinks the leaf of zeros by a plain store, in a
//! section and with `paths` held. A revoker may have unlinked it first, but the store still
//! overwrites no other leaf: the revoker keeps the entry locked until the section ends, and a fault
//! that would link a leaf there waits for the entry first, or for `paths`.
//!
//! The leaf of zeros is not linked where a mapping allows execution, because its words are valid
//! for loads alone. A fetch would have to replace it, and copy the nodes above it, even in a
//! snapshot. But forks and restores walk a snapshot's nodes without a section, because a snapshot
//! never loses a node. Spaces whose protections differ there share no node above the leaf of zeros:
//! the edit that separates them (`Edit::Part`) leaves it out.

use super::nodes::{Nodes, Spares, child_word};
use super::pte::{Pte, VALID_R};
use crate::FrameId;
use crate::space::core::address::{ROOT_LEVEL, SLOTS, slot_index};
use crate::sync::raw::Ordering;

impl Nodes<'_> {
    /// Returns whether this is the leaf of zeros.
    pub(crate) fn is_zero_leaf(self, node: FrameId) -> bool {
        self.pool.zero_leaf.get() == Some(&node)
    }

    /// Maps zeros in the 2 MiB at `at`, if there is no leaf. Returns false if there is another
    /// leaf, or if a node could not be allocated.
    pub(crate) fn link_zero_leaf(self, at: u64, spares: &mut Spares<'_>) -> bool {
        let Some(leaf) = self.zero_leaf(spares) else {
            return false;
        };
        let Ok(node) = self.fill_path(at, 1, spares) else {
            return false;
        };
        let word = &self.words(node)[slot_index(at, 1)];
        // Release: publishes the leaf's words; Acquire: a loser may walk into the winner's leaf.
        let linked =
            word.compare_exchange(0, child_word(leaf), Ordering::AcqRel, Ordering::Acquire);
        linked.is_ok() || linked == Err(child_word(leaf))
    }

    /// Unlinks the leaf of zeros from the 2 MiB at `at`, if it is linked there. The caller then
    /// waits for a grace period.
    pub(crate) fn unlink_zero_leaf(self, at: u64) {
        let Some(&leaf) = self.pool.zero_leaf.get() else {
            return;
        };
        let child = |node, level| self.child(&self.words(node)[slot_index(at, level)]);
        let Some(node) = (2..=ROOT_LEVEL).rev().try_fold(self.root, child) else {
            return;
        };
        // A thread that made the path the space's own meanwhile may have put another leaf here.
        let word = &self.words(node)[slot_index(at, 1)];
        let _unlinked =
            word.compare_exchange(child_word(leaf), 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Returns the leaf of zeros, and creates it at the first use.
    fn zero_leaf(self, spares: &mut Spares<'_>) -> Option<FrameId> {
        if let Some(leaf) = self.pool.zero_leaf.get() {
            return Some(*leaf);
        }
        // The leaf serves the whole memory and is never freed, so the root group pays for it.
        let mut frame = spares.take().ok()?.paid_by_root();
        let zero = self.pool.frames.host(FrameId::ZERO) as u64;
        let words: &[_; SLOTS] = frame.words();
        for word in words {
            word.store(Pte::zero(zero, VALID_R).0, Ordering::Relaxed);
        }
        let leaf = self.publish(frame);
        if self.pool.zero_leaf.set(leaf).is_err() {
            self.put(leaf, 0); // another thread was faster; the words keep no page
        }
        self.pool.zero_leaf.get().copied()
    }
}
