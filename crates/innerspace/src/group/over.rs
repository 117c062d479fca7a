//! Groups over their limit. A group is over its limit if the limit was lowered and the usage could
//! not be brought under it, or if room is kept for lent pages (`aside`), which lowers the limit.
//!
//! Pages given back to such a group, or to one below it, are taken off the levels and not put in
//! the thread's stock: from there they would be charged again without checking the levels. The tree
//! counts the groups over their limit, so that an uncharge reads a single word while there are
//! none.
//!
//! [`GroupTree::note_over`] is called by a thread that brings a group over its limit, that changes
//! a limit, or that lowers the usage of a group that is over. Pages given back at the very moment
//! at which a group passes its limit may still go to a stock.

use super::GroupId;
use super::node::Node;
use super::tree::GroupTree;
use crate::sync::atomic::Ordering;

impl GroupTree {
    /// Returns whether this group, or one above it, is over its limit.
    #[inline]
    pub(super) fn is_any_over(&self, group: GroupId) -> bool {
        let is_over = |id| self.node(id).over.load(Ordering::Relaxed);
        // Relaxed: the module's documentation says what happens to pages given back at the moment
        // of the change.
        self.over.load(Ordering::Relaxed) > 0 && self.path(group).any(is_over)
    }

    /// Updates the flag of a group after a change of its usage or limit.
    #[cold]
    pub(super) fn note_over(&self, node: &Node) {
        // If a thread changes the usage or the limit after that, it calls this function itself. So
        // one more comparison after the flag is set is enough.
        loop {
            let limit = || {
                let lent = node.lent.load(Ordering::SeqCst);
                node.max.load(Ordering::SeqCst).saturating_sub(lent)
            };
            let is_over = || node.usage.load(Ordering::SeqCst) > limit();
            let now = is_over();
            if node.over.swap(now, Ordering::SeqCst) != now {
                match now {
                    true => self.over.fetch_add(1, Ordering::SeqCst),
                    false => self.over.fetch_sub(1, Ordering::SeqCst),
                };
            }
            if is_over() == now {
                return;
            }
        }
    }
}
