//! Dropping anonymous pages with the gate open: `Space::discard` of a range that contains no whole
//! leaf.
//!
//! The structure does not change: the mappings stay, and the leaf stays in its place and exclusive
//! to the space. So no gate is closed, and accessors have nothing to forget. A leaf that an
//! accessor may have coalesced is left to `change`, because a fault during this call may install
//! another page there while the old one is still read.
//!
//! 1. The writer's mutex is taken, because a fork could make the leaf shared. Then a section is
//!    opened, and `paths` is taken, because a fault that copies a leaf releases the old one:
//!    without `paths`, the leaf that this call found could meanwhile become exclusive to another
//!    space, or be freed.
//! 2. The leaf takes over the pages that it alone borrows: otherwise the shadow, which has no
//!    parent, would keep a page that is dropped here. Then each word is swapped for an empty one.
//!    Faults meanwhile replace words by compare-exchange: of the threads that want a word's page,
//!    one gets it.
//! 3. The section is closed and both locks are released before the wait, so that other threads can
//!    take them.
//! 4. A grace period passes, if there is anything to release. After it, every thread that had found
//!    a page by its word is done with the page (I6).
//! 5. The pages are released, and so is a shadow from which the leaf no longer borrows anything.
//!
//! A concurrent store either comes before the call, and is lost, or comes after it, and stays. A
//! fault that copies a page has read the page's word in the section in which it copies. So the page
//! is not reused until that section has ended, and the word does not return to its old value
//! (`pte`). A fault takes pages over from a shadow with `paths` held, so never during step 2.

use std::ops::Range;

use crate::FrameId;
use crate::space::core::address::LEAF_BYTES;
use crate::space::core::space::SpaceInner;
use crate::space::core::structure::Structure;
use crate::space::table::nodes::Detached;
use crate::space::table::pte::{self, Pte};
use crate::space::table::shadow::Borrower;
use crate::space::vma::area::{Backing, Vma};
use crate::sync::failpoint;
use crate::sync::gate::Writer;

/// Drops the pages of a mapped range, if they can be dropped with the gate open. Otherwise gives
/// the writer back, with no page dropped.
pub(super) fn zap<'gate>(
    space: &SpaceInner,
    mut writer: Writer<'gate, Structure>,
    range: &Range<u64>,
) -> Result<(), Writer<'gate, Structure>> {
    let anonymous = |vma: &Vma| matches!(vma.backing, Backing::Anonymous);
    if has_whole_leaf(range) || !writer.vmas.overlapping(range).all(anonymous) {
        return Err(writer);
    }
    space.code.changed(range);
    let Some(taken) = take_words(space, range) else {
        return Err(writer);
    };
    // The revision changes, because a restore must not assume that only stores have changed pages.
    writer.revision += 1;
    space.dirty.forget(&space.group, range);
    drop(writer);
    if !taken.is_empty() {
        space.grace();
        space.nodes().release(taken);
    }
    space.pool.flush_retired_if_due();
    Ok(())
}

/// Empties the words of the range, and returns the pages and shadows to be released. Returns
/// `None`, and changes nothing, if a leaf of the range is shared, or an accessor may have one
/// coalesced. The caller holds the gate's writer lock.
fn take_words(space: &SpaceInner, range: &Range<u64>) -> Option<Detached> {
    let nodes = space.nodes();
    let section = space.pool.domain.reader();
    let paths = space.paths.lock();
    // Where there is no leaf now, there is nothing to drop. A leaf that is linked later is left
    // alone: it may be in a shared node.
    let starts = nodes.leaves(range);
    let own = |at: &u64| {
        nodes
            .find_exclusive(*at)
            .filter(|leaf| !nodes.is_coalesced(*leaf))
    };
    let leaves: Vec<FrameId> = starts.iter().map(own).collect::<Option<_>>()?;
    let mut taken = Detached::default();
    for (start, leaf) in starts.into_iter().zip(leaves) {
        // Before pages are dropped, the leaf takes over those that it alone borrows: otherwise a
        // shadow without a parent would keep them.
        while nodes.collapse_shadow(leaf, Borrower::Exclusive) {}
        let end = range.end.min(start - start % LEAF_BYTES + LEAF_BYTES);
        nodes.for_each_slot(&(start..end), |_, word| {
            if pte::load(word) != Pte::EMPTY {
                failpoint!(Zap);
                let page = pte::take(word);
                if page.needs_letting_go() {
                    taken.pages.push(page);
                }
            }
        });
        if nodes.borrows_in_vain(leaf) {
            taken.shadows.extend(nodes.part(leaf));
        }
    }
    drop((paths, section));
    Some(taken)
}

/// Returns whether the range contains a whole leaf, which can be detached as a whole.
fn has_whole_leaf(range: &Range<u64>) -> bool {
    range.start.next_multiple_of(LEAF_BYTES) + LEAF_BYTES <= range.end
}
