//! Groups over their limit: it was lowered and could not be met, or charges came that have to
//! succeed.
//!
//! Pages given back to such a group, or below it, are taken off the levels, past the thread's
//! stock: from there they would be granted again without a look at the levels. The tree counts
//! these groups, so that an uncharge looks at one word while there is none.
//!
//! A thread that brings a group over its limit calls [`GroupTree::note_over`], and so does one that
//! changes the limit or lowers the usage of a group that is over. Pages given back at the very
//! moment that a group comes to be over may still go to a stock.

use super::GroupId;
use super::node::Node;
use super::tree::GroupTree;
use crate::sync::atomic::Ordering;

impl GroupTree {
    /// Whether this group, or one above it, has more than its limit.
    #[inline]
    pub(super) fn is_any_over(&self, group: GroupId) -> bool {
        let is_over = |id| self.node(id).over.load(Ordering::Relaxed);
        // Relaxed: see the module on the moment at which it changes.
        self.over.load(Ordering::Relaxed) > 0 && self.path(group).any(is_over)
    }

    /// Notes a change of the usage or the limit of a group that is over it, or may be.
    #[cold]
    pub(super) fn note_over(&self, node: &Node) {
        // The next thread that changes usage or limit looks again. A thread that finds them changed
        // since the flag was set looks once more.
        loop {
            let is_over = || node.usage.load(Ordering::SeqCst) > node.max.load(Ordering::SeqCst);
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
