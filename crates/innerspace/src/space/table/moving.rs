//! Moving the pages of a range to other addresses of the same space.

use std::ops::Range;

use super::nodes::{Detached, NeedNodes, Nodes};
use super::pte::{self, Holds, Pte};
use crate::FrameId;
use crate::space::core::address::{slot_index, span};

/// The caller of each function has the gate closed on both ranges, holds `paths`, and has made the
/// paths to both the space's own.
impl Nodes<'_> {
    /// Calls `path`, which creates the path to an address, for each leaf from `to` on that will
    /// receive a page of `from`.
    pub(crate) fn move_paths(
        self,
        from: &Range<u64>,
        to: u64,
        mut path: impl FnMut(u64) -> Result<FrameId, NeedNodes>,
    ) -> Result<(), NeedNodes> {
        let mut needed: Vec<u64> = Vec::new();
        self.for_each_slot(from, |at, word| {
            let there = (to + (at - from.start)) & !(span(1) - 1);
            let moves = matches!(pte::load(word).holds(), Holds::Own | Holds::Borrowed);
            if moves && needed.last() != Some(&there) {
                needed.push(there);
            }
        });
        needed
            .into_iter()
            .try_for_each(|there| path(there).map(drop))
    }

    /// Empties the slots of a range, and adds the pages that were in them to `detached`. The leaves
    /// stay.
    pub(crate) fn empty(self, range: &Range<u64>, detached: &mut Detached) {
        self.for_each_slot(range, |_, word| {
            let page = pte::take(word);
            if page != Pte::EMPTY {
                detached.pages.push(page);
            }
        });
    }

    /// Moves the anonymous pages of `from` to the empty slots from `to` on.
    pub(crate) fn move_range(self, from: &Range<u64>, to: u64, detached: &mut Detached) {
        let _section = self.pool.domain.reader();
        let any_pinned = self.is_marked(self.root);
        self.for_each_slot(from, |at, word| {
            let page = pte::load(word);
            let moved = match page.holds() {
                Holds::Own => pte::take(word),
                Holds::Borrowed => {
                    let leaf = self.find(at).expect("the slot is in a leaf").frame;
                    let owned = self.second_owner(leaf, slot_index(at, 0), page);
                    detached.pages.push(pte::take(word));
                    owned.expect("a frame has as many owners as a count can hold")
                }
                Holds::Nothing | Holds::Zero | Holds::File | Holds::Direct => return,
            };
            let there = to + (at - from.start);
            let leaf = self.find(there).expect("its path was made").frame;
            let slot = &self.words(leaf)[slot_index(there, 0)];
            let put = pte::replace(slot, Pte::EMPTY, moved);
            assert!(put, "I11: a slot was filled behind a closed gate");
            if any_pinned && self.is_pinned(moved) {
                self.mark_pinned(there);
            }
        });
    }
}
