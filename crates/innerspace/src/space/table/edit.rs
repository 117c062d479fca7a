//! Structural changes to the slots of a range.

use std::convert::Infallible;
use std::ops::Range;

use super::nodes::{Detached, NeedNodes, Nodes, Spares, child_word};
use super::pte::{self, VALID_W, VALID_X};
use super::shadow::Borrower;
use crate::FrameId;
use crate::frame::Dropped;
use crate::space::core::address::{leaf_number, span};
use crate::sync::domain::Post;
use crate::sync::failpoint;
use crate::sync::raw::{AtomicU64, Ordering};

/// A change of the slots of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edit {
    /// Empties the slots. A subtree that is entirely in the range is detached as a whole.
    Detach,
    /// Takes all validity away. The paths are made the space's own first.
    Forbid,
    /// Takes validity for stores and fetches away. Shared paths stay shared.
    ForbidWrite,
    /// Takes validity for stores and fetches away, once the paths are the space's own: a word that
    /// becomes valid later would be wrong for other sharers.
    Part,
}

impl Edit {
    fn needs_own_path(self) -> bool {
        self != Edit::ForbidWrite
    }

    /// Returns whether the edit detaches a node at `level` as a whole. `part` is the part of the
    /// range that the node covers.
    fn takes_whole(self, level: u32, part: &Range<u64>) -> bool {
        self == Edit::Detach && part.end - part.start == span(level + 1)
    }

    #[inline(always)]
    fn apply(self, word: &AtomicU64, detached: &mut Detached) {
        match self {
            Edit::Detach => {
                let page = pte::take_alone(word);
                if page.needs_letting_go() {
                    detached.pages.push(page);
                }
            }
            Edit::Forbid => {
                pte::take_valid(word, pte::VALID);
            }
            Edit::ForbidWrite | Edit::Part => {
                pte::take_valid(word, VALID_W | VALID_X);
            }
        }
    }
}

/// A change of a range has two phases, both with the gate closed if anything is mapped there. The
/// first phase makes the paths the space's own. It changes nothing that a user can see, and can be
/// started again with more nodes. The second phase edits the slots, and needs no nodes.
impl Nodes<'_> {
    /// Makes the paths to the range the space's own, if `edit` needs that, and adds the replaced
    /// nodes to `detached`. If there are any, calls `moved` with the invalidation that accessors
    /// must be sent before the new nodes may be written to. If it fails, it has done both for the
    /// nodes that it had replaced by then. The caller is inside the gate, or has it closed, and
    /// holds the space's `paths` mutex.
    pub(crate) fn own_range(
        self,
        range: &Range<u64>,
        edit: Edit,
        spares: &mut Spares<'_>,
        detached: &mut Detached,
        moved: impl FnOnce(Post),
    ) -> Result<(), NeedNodes> {
        if !edit.needs_own_path() {
            return Ok(());
        }
        let mut forget = None;
        let owned = self.walk(range, &mut |word, child, level, part| {
            if edit.takes_whole(level, &part) {
                return Ok(None);
            }
            let mut own = Some(child);
            if self.is_zero_leaf(child) {
                own = None; // a missing leaf is right for every edit, and costs nothing
            } else if self.keep_if_shared(child, level, detached) {
                own = Some(self.copy(child, level, spares.take()?));
            }
            if own != Some(child) {
                self.replaces(level, part.start, &mut forget);
                word.store(own.map_or(0, child_word), Ordering::Release);
                detached.nodes.push((child, level));
            }
            if let (0, Some(leaf)) = (level, own)
                && edit != Edit::Forbid
            {
                // Before pages are dropped or moved, the leaf takes over those that it alone
                // borrows: otherwise a shadow without a parent would keep them. The caller is in a
                // section.
                while self.collapse_shadow(leaf, Borrower::Exclusive) {}
            }
            Ok(own)
        });
        if let Some(forget) = forget {
            failpoint!(Replaced);
            moved(forget);
            let dropped = self.pool.frames.meta(self.root).hold.put();
            assert_ne!(dropped, Dropped::Last, "I11: a root without a space");
        }
        owned
    }

    /// Returns the leaf of `at`. Makes the path the space's own, as [`Nodes::own_range`] does, and
    /// creates missing nodes. If there was no leaf, a load may link the leaf of zeros before this
    /// call creates one, and the result is then the leaf of zeros. A store cannot rule that out
    /// until it has locked the entry of its page, so it looks again then.
    pub(crate) fn own_path(
        self,
        at: u64,
        spares: &mut Spares<'_>,
        replaced: &mut Detached,
        moved: impl FnOnce(Post),
    ) -> Result<FrameId, NeedNodes> {
        // `Forbid` drops and moves no page, so the leaf keeps its shadow. The fault takes over the
        // shadow's pages when it stores to one of them.
        self.own_range(&(at..at + 1), Edit::Forbid, spares, replaced, moved)?;
        self.fill_path(at, 0, spares)
    }

    /// Applies `edit` to every slot of the range. The caller has made the paths exclusive to the
    /// space, if the edit needs that.
    ///
    /// Opens a section, for edits of shared paths. A fault next to the range may meanwhile replace
    /// a shared leaf by a copy and release the old leaf. Without the section, the old leaf could be
    /// freed, or become exclusive to another space, during the edit.
    pub(crate) fn apply(self, range: &Range<u64>, edit: Edit, detached: &mut Detached) {
        let _section = self.pool.domain.reader();
        let Ok(()) = self.walk::<Infallible>(range, &mut |word, child, level, part| {
            if edit.takes_whole(level, &part) {
                word.store(0, Ordering::Release);
                detached.nodes.push((child, level));
                return Ok(None);
            }
            if level == 0 {
                for (_, word) in self.slots(child, part) {
                    edit.apply(word, detached);
                    failpoint!(Edited);
                }
                if edit.needs_own_path() {
                    // Accessors that had the leaf coalesced were told to forget it when the gate
                    // closed. If nothing was mapped here, none had it coalesced.
                    self.unmark_coalesced(child);
                }
            }
            Ok(Some(child))
        });
    }

    /// Adds to `forget` the invalidation that accessors need because the child at `level` on the
    /// way to `at` is about to be replaced. If the child is an upper node, accessors must forget
    /// everything: until they do, a sharer may link a leaf into the old node, and this space must
    /// not use that leaf.
    ///
    /// From the first call for a range until the accessors have been told, the root has a second
    /// ref. So a fault that has walked to a leaf treats the leaf as shared. Before the fault stores
    /// there, it waits for `paths`, which the caller holds.
    fn replaces(self, level: u32, at: u64, forget: &mut Option<Post>) {
        let post = match level {
            0 => Post::One(leaf_number(at)),
            _ => Post::All,
        };
        if forget.is_none() {
            let counted = self.pool.frames.meta(self.root).hold.try_get();
            assert!(counted, "I11: a root with many parents");
        }
        *forget = Some(match *forget {
            Some(other) if other != post => Post::All,
            _ => post,
        });
    }
}
