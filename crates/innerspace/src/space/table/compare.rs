//! Compares two tables, and makes one like the other. Equal words are skipped with their subtrees,
//! so the cost depends on how many nodes the two tables no longer share.

use std::ops::Range;

use super::nodes::{Detached, Nodes, TooManyForks, child_word};
use super::pte::{self, Holds, Pte};
use crate::FrameId;
use crate::space::core::address::{ROOT_LEVEL, SLOTS, span};
use crate::sync::failpoint;
use crate::sync::raw::{AtomicU64, Ordering};

/// A change of one word of an upper node at `level`.
struct Change<'pool> {
    word: &'pool AtomicU64,
    level: u32,
    old: Option<FrameId>,
    new: Option<FrameId>,
}

/// Returns the host address of the page in a slot, if the page is anonymous; otherwise `None`.
fn private_page(word: Option<&AtomicU64>) -> Option<u64> {
    let page = word.map_or(Pte::EMPTY, pte::load);
    matches!(page.holds(), Holds::Own | Holds::Borrowed).then(|| page.host())
}

impl<'pool> Nodes<'pool> {
    /// Makes the table like that below `theirs`, or fails with nothing changed. Upper nodes that
    /// are exclusive to the space are kept. `detached` receives the nodes that are no longer in the
    /// table, or, after a failure, those that were to be added. The gate is closed, and `theirs`
    /// loses no child except the leaf of zeros.
    pub(crate) fn restore_table(
        self,
        theirs: FrameId,
        detached: &mut Detached,
    ) -> Result<(), TooManyForks> {
        let mut changes = Vec::new();
        let counted = self.count_new(self.root, theirs, ROOT_LEVEL, &mut changes);
        failpoint!(GateClosed);
        for change in changes {
            let dropped = match counted {
                Ok(()) => {
                    // Release: pairs with the acquire of walkers in `child`. The subtree itself was
                    // published long ago.
                    let word = change.new.map_or(0, child_word);
                    change.word.store(word, Ordering::Release);
                    change.old
                }
                // Only the new child's ref is given back. The word has not changed, and is not
                // written: a revoker may have unlinked the leaf of zeros from it meanwhile.
                Err(TooManyForks) => change.new,
            };
            let dropped = dropped.map(|node| (node, change.level - 1));
            detached.nodes.extend(dropped);
        }
        counted
    }

    /// Lists the changes that [`Nodes::restore_table`] makes, and takes a ref on each new child. If
    /// a child has too many parents to count, fails, and the list has the changes before that one.
    fn count_new(
        self,
        ours: FrameId,
        theirs: FrameId,
        level: u32,
        changes: &mut Vec<Change<'pool>>,
    ) -> Result<(), TooManyForks> {
        for (word, their) in self.words(ours).iter().zip(self.words(theirs)) {
            let old = self.child(word);
            // The leaf of zeros is left out and faults in again: a revoker may unlink it from
            // `theirs` before `ours` links it.
            let new = self.child(their);
            let new = new.filter(|new| !self.is_zero_leaf(*new));
            if old == new {
                continue;
            }
            if let (Some(old), Some(new)) = (old, new)
                && level > 1
                && !self.is_shared(old)
            {
                self.count_new(old, new, level - 1, changes)?;
                continue;
            }
            if let Some(new) = new
                && !self.pool.frames.meta(new).hold.try_get()
            {
                return Err(TooManyForks);
            }
            changes.push(Change {
                word,
                level,
                old,
                new,
            });
        }
        Ok(())
    }

    /// Returns the addresses of the anonymous pages in a range. The caller is inside the gate.
    pub(crate) fn private_pages(self, range: &Range<u64>) -> Vec<u64> {
        let mut found = Vec::new();
        self.for_each_slot(range, |at, word| {
            found.extend(private_page(Some(word)).map(|_| at));
        });
        found
    }

    /// Calls `each` with every address at which the two tables do not have the same anonymous page.
    /// The caller is inside the gates of both spaces.
    pub(crate) fn for_each_difference(self, other: FrameId, each: &mut impl FnMut(u64)) {
        self.differences(Some(self.root), Some(other), ROOT_LEVEL, 0, each);
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
