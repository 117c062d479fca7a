//! Groups that have more than their limit: it was lowered and could not be met, or charges came
//! that have to succeed.
//!
//! What is given back to such a group, or below it, goes off the levels, past the thread's stock:
//! from there it would be granted again without a look at them. The tree counts these groups, so
//! that who gives back looks at one word while there is none.
//!
//! Whoever brings a group over its limit says so ([`GroupTree::note_over`]), and so does whoever
//! changes the limit, or takes from the usage of a group that is over. What is given back at the
//! very moment that a group comes to be over may go to a stock yet.

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

    /// The usage or the limit of a group that is over it, or may be, has changed.
    #[cold]
    pub(super) fn note_over(&self, node: &Node) {
        // Whoever changes them next looks again; who finds that they have changed since the flag
        // did looks once more.
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
