//! Dropping anonymous pages where they are: `Advice::DontNeed` of less than a leaf.
//!
//! Nothing of the structure changes, so this is not a structural change: the mappings stay, and the
//! leaf stays where it is, the space's alone. No gate is closed, and no accessor has anything to
//! forget. A leaf that an accessor may have coalesced is left to `change`, since a fault beside
//! this call may put another page there while the old one is still read.
//!
//! 1. The writer's mutex is taken, since a fork could make others share the leaf; then `paths`,
//!    since a fault that copies a leaf releases the old one: if it was found before, it would by
//!    now be another space's alone, or nobody's.
//! 2. The leaf takes over the pages that it alone borrows: one that is dropped from here would stay
//!    its shadow's, which has no parent. Then, in a section, each word is swapped for an empty one.
//!    Faults beside it replace words by compare-exchange: of those that want a word's page, one
//!    gets it.
//! 3. Both locks are released, for others, before the wait.
//! 4. A grace period, if there is anything to release: a thread that had found a page by its word
//!    is done with it (I6).
//! 5. The pages are released, and a shadow from which nothing is borrowed any more.
//!
//! A store beside the call is before it, and lost, or after it, and there. A fault that copies a
//! page has read its word in the section it copies in, so the page is nobody else's until that has
//! ended, and the word does not go back to what it was (`pte`). A page that a fault collapses from
//! a shadow beside step 2 is the leaf's before the swap, or stays the shadow's.

use std::ops::Range;

use crate::space::core::address::{LEAF_BYTES, slot_index};
use crate::space::core::space::SpaceInner;
use crate::space::core::structure::Structure;
use crate::space::table::nodes::{Detached, Leaf};
use crate::space::table::pte::{self, Pte};
use crate::space::table::shadow::Borrower;
use crate::space::vma::area::{Backing, Vma};
use crate::sync::failpoint;
use crate::sync::gate::Writer;

impl SpaceInner {
    /// Drops the pages of a mapped range, if this way is possible; else gives the writer back, with
    /// nothing changed.
    pub(crate) fn zap<'gate>(
        &self,
        mut writer: Writer<'gate, Structure>,
        range: &Range<u64>,
    ) -> Result<(), Writer<'gate, Structure>> {
        let anonymous = |vma: &Vma| matches!(vma.backing, Backing::Anonymous);
        if has_whole_leaf(range) || !writer.vmas.overlapping(range).all(anonymous) {
            return Err(writer);
        }
        self.code.changed(range);
        let Some(taken) = self.take_words(range) else {
            return Err(writer);
        };
        // A restore cannot assume that only stores have changed pages.
        writer.revision += 1;
        self.dirty.forget(self.payer(), range);
        drop(writer);
        if !taken.is_empty() {
            self.grace();
            self.nodes().release(taken);
        }
        self.pool.safe_point();
        Ok(())
    }

    /// Empties the words of the range, and returns the pages to be released. Returns `None`, and
    /// changes nothing, if others share a leaf of it, or an accessor may have one coalesced. The
    /// gate's writer is held.
    fn take_words(&self, range: &Range<u64>) -> Option<Detached> {
        let nodes = self.nodes();
        let section = self.pool.domain.reader();
        let paths = self.paths.lock();
        // Where there is no leaf there is nothing to drop. A leaf that comes meanwhile may be in a
        // node that others share.
        let parts = parts_by_leaf(range).map(|part| (nodes.find(self.root, part.start), part));
        let parts = parts.filter_map(|(leaf, part)| Some((leaf?, part)));
        let parts: Vec<(Leaf, Range<u64>)> = parts.collect();
        let is_left = |leaf: &Leaf| !leaf.exclusive || nodes.is_coalesced(leaf.frame);
        if parts.iter().any(|(leaf, _)| is_left(leaf)) {
            return None;
        }
        let mut taken = Detached::default();
        for (leaf, part) in parts {
            // Pages that it alone borrows become its own: if they were dropped here, a shadow
            // without a parent would keep them.
            while nodes.collapse_shadow(leaf.frame, Borrower::Exclusive) {}
            let slots = slot_index(part.start, 0)..=slot_index(part.end - 1, 0);
            for word in &nodes.words(leaf.frame)[slots] {
                if pte::load(word) != Pte::EMPTY {
                    failpoint!(Zap);
                    let page = pte::take(word);
                    if page.needs_letting_go() {
                        taken.pages.push(page);
                    }
                }
            }
            if nodes.borrows_in_vain(leaf.frame) {
                taken.shadows.extend(nodes.part(leaf.frame));
            }
        }
        drop((paths, section));
        Some(taken)
    }
}

/// The parts of a range in one leaf each.
fn parts_by_leaf(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let first = range.start - range.start % LEAF_BYTES;
    let leaves = (first..range.end).step_by(LEAF_BYTES as usize);
    leaves.map(|leaf| leaf.max(range.start)..(leaf + LEAF_BYTES).min(range.end))
}

/// Whether a leaf can come off as one.
fn has_whole_leaf(range: &Range<u64>) -> bool {
    range.start.next_multiple_of(LEAF_BYTES) + LEAF_BYTES <= range.end
}
