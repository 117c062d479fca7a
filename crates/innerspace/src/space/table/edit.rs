//! Structural changes of a range of addresses.

use std::ops::Range;

use super::nodes::{Detached, NeedNodes, Nodes, PendingInvalidation, Spares, child_word, pieces};
use super::pte::{self, VALID_W, VALID_X};
use super::shadow::Borrower;
use crate::FrameId;
use crate::space::core::address::{LEAF_BYTES, ROOT_LEVEL, slot_index, span};
use crate::sync::domain::Post;
use crate::sync::failpoint;
use crate::sync::raw::{AtomicU64, Ordering};

/// How to edit the slots of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edit {
    /// Empty them; whole subtrees come off as one.
    Detach,
    /// Take all validity away on paths of the space's own.
    Forbid,
    /// Take write and fetch validity away, wherever it is.
    ForbidWrite,
    /// The same on paths of the space's own: words that become valid there from now on would be
    /// wrong for other sharers.
    Part,
}

impl Edit {
    fn needs_own_path(self) -> bool {
        self != Edit::ForbidWrite
    }
}

/// Changes of a range, in two phases, both with the gate closed: first the paths are made the
/// space's own, which changes nothing that anybody can see and can be started again with more
/// nodes; then the slots are edited, which needs none.
impl Nodes<'_> {
    /// Makes the paths that `edit` needs the space's own. Nodes that it replaced are in `detached`,
    /// also when it fails; `moved` is called as by [`Nodes::own_path`]. The space's `paths` mutex
    /// is held.
    pub(crate) fn own_range(
        self,
        root: FrameId,
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
            pending: PendingInvalidation::new(root),
        };
        let owned = walk.own(root, ROOT_LEVEL, 0, range, spares);
        walk.pending.notify(self, owned, moved)
    }

    /// Does `edit` to every slot of the range, whose paths are the space's own if the edit needs
    /// that. Opens a section of its own: if the paths are shared, a fault beside the range may
    /// meanwhile replace a leaf by a copy and release it, and the leaf would then be another
    /// space's alone, or nobody's.
    pub(crate) fn apply(
        self,
        root: FrameId,
        range: &Range<u64>,
        edit: Edit,
        detached: &mut Detached,
    ) {
        let _section = self.pool.domain.reader();
        Walk {
            nodes: self,
            edit,
            detached,
            pending: PendingInvalidation::new(root), // no node is replaced
        }
        .edit(root, ROOT_LEVEL, 0, range);
    }
}

struct Walk<'a, 'pool> {
    nodes: Nodes<'pool>,
    edit: Edit,
    detached: &'a mut Detached,
    pending: PendingInvalidation,
}

impl Walk<'_, '_> {
    /// Whether the edit takes the child that covers `from..to` off as one.
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
                // The absence of a leaf is right for every edit, and costs nothing.
                self.pending.replaces(self.nodes, level - 1, from);
                word.store(0, Ordering::Release);
                self.detached.nodes.push((child, level - 1));
                continue;
            }
            if self.nodes.keep_if_shared(child, level - 1, self.detached) {
                let copy = self.nodes.copy(child, level - 1, spares.take()?);
                self.pending.replaces(self.nodes, level - 1, from);
                word.store(child_word(copy), Ordering::Release);
                self.detached.nodes.push((child, level - 1));
                child = copy;
            }
            if level == 1 && self.edit != Edit::Forbid {
                // Pages that it alone borrows become its own before any of them is dropped or
                // moved: a shadow without a parent would keep them. In the caller's section.
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
                // Accessors that had it coalesced were told when the gate closed; if nothing was
                // mapped here, none had.
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
