//! The common leaf of zeros: 512 words that map the zero frame, read-only. A hole of 2 MiB is
//! mapped by one word that leads there, so it needs no table of its own.
//!
//! One leaf a `Memory`, kept for good, so that the root pays for it, with no count of its users:
//! words that lead to it may go at any time, since a revoker takes them away with neither `paths`
//! nor the gate. It counts as shared: a change of a page below it copies it first, and gets an
//! empty leaf. Nobody changes its words; walks that change words pass it over, and copies of nodes
//! and restores leave it out. It may stand where an entry of a direct access file says "hole of 2
//! MiB" and nowhere else, and is linked and unlinked under that entry's lock.
//!
//! Making a path the space's own puts an empty leaf, or none, in its place by a plain store, in a
//! section and with `paths` held. A revoker may have been faster; but it keeps the entry locked
//! until the section ends, and a fault that would link a leaf there waits for the entry first, or
//! for `paths`. So no word is overwritten.
//!
//! Nor does it stand where a mapping allows execution: its words are right for loads alone, and a
//! fetch that parted from it would copy nodes above it, in a snapshot as well, whose nodes forks
//! and restores walk by without a section because it never loses one. Spaces whose protections
//! differ there share no node above it (`Edit::Part`), and parting leaves it out.

use super::nodes::{Nodes, Spares, child_word, pieces};
use super::pte::{Pte, VALID_R};
use crate::FrameId;
use crate::space::core::address::{ROOT_LEVEL, SLOTS, slot_index, span};
use crate::sync::raw::Ordering;

impl Nodes<'_> {
    /// Whether this is the leaf of zeros.
    pub(crate) fn is_zero_leaf(self, node: FrameId) -> bool {
        self.pool.zero_leaf.get() == Some(&node)
    }

    /// Maps zeros at the 2 MiB at `at`, if no leaf is there; false if there is one, or a node could
    /// not be allocated.
    pub(crate) fn link_zero_leaf(self, root: FrameId, at: u64, spares: &mut Spares<'_>) -> bool {
        let Some(leaf) = self.zero_leaf(spares) else {
            return false;
        };
        let mut node = root;
        for level in (2..=ROOT_LEVEL).rev() {
            let word = &self.words(node)[slot_index(at, level)];
            node = match self.child(word) {
                Some(child) => child,
                None => match self.link_new(word, spares) {
                    Ok(child) => child,
                    Err(_) => return false,
                },
            };
        }
        let word = &self.words(node)[slot_index(at, 1)];
        // Release: publishes the leaf's words; Acquire: a loser may walk into the winner's leaf.
        let linked =
            word.compare_exchange(0, child_word(leaf), Ordering::AcqRel, Ordering::Acquire);
        linked.is_ok() || linked == Err(child_word(leaf))
    }

    /// Unlinks the leaf of zeros from the 2 MiB at `at`, if it is there. The caller waits for a
    /// grace period.
    pub(crate) fn unlink_zero_leaf(self, root: FrameId, at: u64) {
        let Some(&leaf) = self.pool.zero_leaf.get() else {
            return;
        };
        let mut node = root;
        for level in (2..=ROOT_LEVEL).rev() {
            match self.child(&self.words(node)[slot_index(at, level)]) {
                Some(child) => node = child,
                None => return,
            }
        }
        // A copy of the leaf made meanwhile has put an empty one here.
        let word = &self.words(node)[slot_index(at, 1)];
        let _unlinked =
            word.compare_exchange(child_word(leaf), 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The number of pages of a range that the leaf of zeros maps.
    pub(crate) fn zero_leaf_pages(self, root: FrameId, start: u64, end: u64) -> u64 {
        match self.pool.zero_leaf.get() {
            Some(_) => self.zero_pages_below(root, ROOT_LEVEL, 0, start, end),
            None => 0,
        }
    }

    fn zero_pages_below(self, node: FrameId, level: u32, base: u64, start: u64, end: u64) -> u64 {
        let mut pages = 0;
        for (index, from, to) in pieces(level, base, start, end) {
            let Some(child) = self.child(&self.words(node)[index]) else {
                continue;
            };
            if self.is_zero_leaf(child) {
                pages += (to - from) / span(0);
            } else if level > 1 {
                let base = base + index as u64 * span(level);
                pages += self.zero_pages_below(child, level - 1, base, from, to);
            }
        }
        pages
    }

    /// The leaf, made at its first use.
    fn zero_leaf(self, spares: &mut Spares<'_>) -> Option<FrameId> {
        if let Some(leaf) = self.pool.zero_leaf.get() {
            return Some(*leaf);
        }
        // The first caller makes it for all, and for good.
        let mut frame = spares.take().ok()?.paid_by_root();
        let zero = self.pool.frames.host(FrameId::ZERO) as u64;
        let words: &[_; SLOTS] = frame.words();
        for word in words {
            word.store(Pte::zero(zero, VALID_R).0, Ordering::Relaxed);
        }
        let leaf = self.publish(frame);
        if self.pool.zero_leaf.set(leaf).is_err() {
            self.put(leaf, 0); // somebody was faster; what it shows holds nothing
        }
        self.pool.zero_leaf.get().copied()
    }
}
