//! Structural changes of the slots of a range.

use std::ops::Range;

use super::nodes::{Detached, NeedNodes, Nodes, Spares, child_word, pieces};
use super::pte::{self, VALID_W, VALID_X};
use super::shadow::Borrower;
use crate::FrameId;
use crate::frame::Dropped;
use crate::space::core::address::{LEAF_BYTES, ROOT_LEVEL, leaf_number, slot_index, span};
use crate::sync::domain::Post;
use crate::sync::failpoint;
use crate::sync::raw::{AtomicU64, Ordering};

/// What to do to the slots of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edit {
    /// Empties the slots. A subtree that lies wholly in the range is taken off as one.
    Detach,
    /// Takes all validity away. The paths are made the space's own first.
    Forbid,
    /// Takes validity for stores and fetches away. Shared paths stay shared.
    ForbidWrite,
    /// Takes validity for stores and fetches away, on paths of the space's own: words that become
    /// valid there from now on would be wrong for other sharers.
    Part,
}

impl Edit {
    fn needs_own_path(self) -> bool {
        self != Edit::ForbidWrite
    }
}

/// Changes of a range have two phases, both with the gate closed. The first makes the paths the
/// space's own. It changes nothing that a user can see, and can be started again with more nodes.
/// The second edits the slots, and needs no nodes.
impl Nodes<'_> {
    /// Makes the paths that `edit` needs the space's own. The replaced nodes go to `detached`, even
    /// when the call fails. `moved` is called, whether or not it fails, with what accessors have to
    /// forget before the new nodes can be written to. The caller is inside the gate, or has it
    /// closed, and holds the space's `paths` mutex.
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
        let mut walk = Walk {
            nodes: self,
            edit,
            detached,
            forget: None,
        };
        let owned = walk.own(self.root, ROOT_LEVEL, 0, range, spares);
        if let Some(forget) = walk.forget {
            failpoint!(Replaced);
            moved(forget);
            let dropped = self.pool.frames.meta(self.root).hold.put();
            assert_ne!(dropped, Dropped::Last, "I11: a root without a space");
        }
        owned
    }

    /// Returns the leaf of `at`, with the path made the space's own as by [`Nodes::own_range`], and
    /// missing nodes created. Where there was no leaf, a load may link the leaf of zeros meanwhile:
    /// a store has to lock the entry of its page before it can tell, and then looks again.
    pub(crate) fn own_path(
        self,
        at: u64,
        spares: &mut Spares<'_>,
        replaced: &mut Detached,
        moved: impl FnOnce(Post),
    ) -> Result<FrameId, NeedNodes> {
        // `Forbid`, because no page is dropped or moved: the leaf keeps its shadow, and the fault
        // takes over its pages once it stores to one.
        self.own_range(&(at..at + 1), Edit::Forbid, spares, replaced, moved)?;
        self.fill_path(at, 0, spares)
    }

    /// Applies `edit` to every slot of the range. If the edit needs paths that are exclusive to the
    /// space, they already are. Opens a section of its own: if the paths are shared, a fault next
    /// to the range may meanwhile replace a leaf by a copy and release it, and the leaf would then
    /// be exclusive to another space, or free.
    pub(crate) fn apply(self, range: &Range<u64>, edit: Edit, detached: &mut Detached) {
        let _section = self.pool.domain.reader();
        Walk {
            nodes: self,
            edit,
            detached,
            forget: None, // no node is replaced
        }
        .edit(self.root, ROOT_LEVEL, 0, range);
    }
}

struct Walk<'a, 'pool> {
    nodes: Nodes<'pool>,
    edit: Edit,
    detached: &'a mut Detached,
    /// What is owed to accessors that may have cached a node that was replaced.
    forget: Option<Post>,
}

impl Walk<'_, '_> {
    /// Announces that the child at `level` on the way to `at` is replaced next. If it is an upper
    /// node, accessors have to forget everything: until they do, a sharer may link a leaf into the
    /// old node, and this space must not use that leaf.
    ///
    /// From then on until the accessors have been told, the root counts twice: a fault that has
    /// walked to a leaf takes the leaf for shared, and waits for `paths`, which the caller holds,
    /// before it stores there.
    fn replaces(&mut self, level: u32, at: u64) {
        let post = match level {
            0 => Post::One(leaf_number(at)),
            _ => Post::All,
        };
        if self.forget.is_none() {
            let counted = self.nodes.pool.frames.meta(self.nodes.root).hold.try_get();
            assert!(counted, "I11: a root with many parents");
        }
        self.forget = Some(match self.forget {
            Some(other) if other != post => Post::All,
            _ => post,
        });
    }

    /// Returns whether the edit takes off the child that covers `from..to` as a whole.
    fn takes_whole(&self, level: u32, from: u64, to: u64) -> bool {
        self.edit == Edit::Detach && to - from == span(level)
    }

    fn own(
        &mut self,
        node: FrameId,
        level: u32,
        base: u64,
        range: &Range<u64>,
        spares: &mut Spares<'_>,
    ) -> Result<(), NeedNodes> {
        for (index, from, to) in pieces(level, base, range.start, range.end) {
            let word = &self.nodes.words(node)[index];
            let Some(mut child) = self.nodes.child(word) else {
                continue;
            };
            if self.takes_whole(level, from, to) {
                continue;
            }
            if self.nodes.is_zero_leaf(child) {
                // A missing leaf is right for every edit, and costs nothing.
                self.replaces(level - 1, from);
                word.store(0, Ordering::Release);
                self.detached.nodes.push((child, level - 1));
                continue;
            }
            if self.nodes.keep_if_shared(child, level - 1, self.detached) {
                let copy = self.nodes.copy(child, level - 1, spares.take()?);
                self.replaces(level - 1, from);
                word.store(child_word(copy), Ordering::Release);
                self.detached.nodes.push((child, level - 1));
                child = copy;
            }
            if level == 1 && self.edit != Edit::Forbid {
                // The leaf takes over the pages that it alone borrows before any of them is dropped
                // or moved: a shadow without a parent would keep them. The caller is in a section.
                while self.nodes.collapse_shadow(child, Borrower::Exclusive) {}
            }
            if level > 1 {
                self.own(
                    child,
                    level - 1,
                    base + index as u64 * span(level),
                    range,
                    spares,
                )?;
            }
        }
        Ok(())
    }

    fn edit(&mut self, node: FrameId, level: u32, base: u64, range: &Range<u64>) {
        if level == 0 {
            let first = slot_index(range.start.max(base), 0);
            let end = range.end.min(base + LEAF_BYTES) - base;
            let words = &self.nodes.words(node)[first..end.div_ceil(span(0)) as usize];
            for word in words {
                self.edit_slot(word);
                failpoint!(Edited);
            }
            if self.edit.needs_own_path() {
                // Accessors that had the leaf coalesced were told when the gate closed. If nothing
                // was mapped here, none had it coalesced.
                self.nodes.unmark_coalesced(node);
            }
            return;
        }
        for (index, from, to) in pieces(level, base, range.start, range.end) {
            let word = &self.nodes.words(node)[index];
            let Some(child) = self.nodes.child(word) else {
                continue;
            };
            if self.takes_whole(level, from, to) {
                word.store(0, Ordering::Release);
                self.detached.nodes.push((child, level - 1));
                continue;
            }
            self.edit(child, level - 1, base + index as u64 * span(level), range);
        }
    }

    #[inline(always)]
    fn edit_slot(&mut self, word: &AtomicU64) {
        match self.edit {
            Edit::Detach => {
                let page = pte::take_alone(word);
                if page.needs_letting_go() {
                    self.detached.pages.push(page);
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
