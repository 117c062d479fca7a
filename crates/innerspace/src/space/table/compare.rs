//! Compares two tables, and makes one like the other. Equal words are skipped with their subtrees,
//! so the cost depends on how many nodes were un-shared since.

use super::nodes::{Detached, Nodes, TooManyForks, child_word};
use super::pte::{self, Holds, Pte};
use crate::FrameId;
use crate::space::core::address::{ROOT_LEVEL, SLOTS, span};
use crate::sync::raw::{AtomicU64, Ordering};

/// A planned change of one word of an upper node.
struct Change {
    node: FrameId,
    slot: usize,
    level: u32,
    old: Option<FrameId>,
    new: Option<FrameId>,
}

/// The changes that make one table like another. The plan holds a ref on each new child.
pub(crate) struct Plan(Vec<Change>);

/// Returns the host address of the page in a slot, if the page is anonymous; `None` for pages of
/// files and zeros.
fn private_page(word: Option<&AtomicU64>) -> Option<u64> {
    let page = word.map_or(Pte::EMPTY, pte::load);
    matches!(page.holds(), Holds::Own | Holds::Borrowed).then(|| page.host())
}

impl Nodes<'_> {
    /// Plans the changes that make the table below `ours` like that below `theirs`, and changes
    /// nothing yet. Upper nodes that are exclusive to the space are kept. The gate of `ours` is
    /// closed, and `theirs` loses no children.
    pub(crate) fn plan_restore(self, ours: FrameId, theirs: FrameId) -> Result<Plan, TooManyForks> {
        let mut plan = Plan(Vec::new());
        match self.plan_below(ours, theirs, ROOT_LEVEL, &mut plan.0) {
            Ok(()) => Ok(plan),
            Err(TooManyForks) => {
                for change in plan.0 {
                    if let Some(new) = change.new {
                        self.put(new, change.level - 1);
                    }
                }
                Err(TooManyForks)
            }
        }
    }

    fn plan_below(
        self,
        ours: FrameId,
        theirs: FrameId,
        level: u32,
        plan: &mut Vec<Change>,
    ) -> Result<(), TooManyForks> {
        for slot in 0..SLOTS {
            let old = self.child(&self.words(ours)[slot]);
            // The leaf of zeros is left out and faults in again: a revoker may unlink it from
            // `theirs` before `ours` links it.
            let new = self.child(&self.words(theirs)[slot]);
            let new = new.filter(|new| !self.is_zero_leaf(*new));
            if old == new {
                continue;
            }
            if let (Some(old), Some(new)) = (old, new)
                && level > 1
                && !self.is_shared(old)
            {
                self.plan_below(old, new, level - 1, plan)?;
                continue;
            }
            if let Some(new) = new
                && !self.pool.frames.meta(new).hold.try_get()
            {
                return Err(TooManyForks);
            }
            plan.push(Change {
                node: ours,
                slot,
                level,
                old,
                new,
            });
        }
        Ok(())
    }

    /// Makes the planned changes. The gate is still closed. `detached` receives the nodes that were
    /// replaced.
    pub(crate) fn apply_plan(self, plan: Plan, detached: &mut Detached) {
        for change in plan.0 {
            let word = change.new.map_or(0, child_word);
            // Release: pairs with the acquire of walkers in `child`. The subtree itself was
            // published long ago.
            self.words(change.node)[change.slot].store(word, Ordering::Release);
            detached
                .nodes
                .extend(change.old.map(|old| (old, change.level - 1)));
        }
    }

    /// Returns the addresses of the anonymous pages in a range. The caller is inside the gate.
    pub(crate) fn private_pages(self, root: FrameId, start: u64, end: u64) -> Vec<u64> {
        let mut found = Vec::new();
        self.for_each_slot(root, start, end, &mut |at, word| {
            found.extend(private_page(Some(word)).map(|_| at));
        });
        found
    }

    /// Calls `each` with the address of every anonymous page that the two tables do not share. The
    /// caller is inside the gates of both spaces.
    pub(crate) fn for_each_difference(self, a: FrameId, b: FrameId, each: &mut impl FnMut(u64)) {
        self.differences(Some(a), Some(b), ROOT_LEVEL, 0, each);
    }

    fn differences(
        self,
        a: Option<FrameId>,
        b: Option<FrameId>,
        level: u32,
        base: u64,
        each: &mut impl FnMut(u64),
    ) {
        if a == b {
            return;
        }
        let [a, b] = [a, b].map(|node| node.map(|node| self.words(node)));
        for slot in 0..SLOTS {
            let [a, b] = [a, b].map(|words| words.map(|words| &words[slot]));
            let at = base + slot as u64 * span(level);
            if level == 0 {
                if private_page(a) != private_page(b) {
                    each(at);
                }
                continue;
            }
            let [a, b] = [a, b].map(|word| word.and_then(|word| self.child(word)));
            self.differences(a, b, level - 1, at, each);
        }
    }
}
