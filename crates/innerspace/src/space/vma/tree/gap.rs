//! Finding a free range. Subtrees whose widest gap is too narrow are skipped.

use super::{Body, Node, RangeTree, Ranged, place};

impl<V: Ranged<Key = u64>> RangeTree<V> {
    /// Returns the start of the lowest free range of `len` bytes at or above `from` and below
    /// `limit`, aligned to `align`.
    pub(crate) fn gap(&self, from: u64, limit: u64, len: u64, align: u64) -> Option<u64> {
        let mut search = Gap {
            at: from,
            len,
            align,
        };
        let found = self
            .root
            .as_deref()
            .and_then(|root| search.look(root))
            .or_else(|| search.fits(u64::MAX))?;
        (found.checked_add(len)? <= limit).then_some(found)
    }
}

/// A search for a free range.
struct Gap {
    /// Addresses below this one have been searched.
    at: u64,
    len: u64,
    align: u64,
}

impl Gap {
    /// Returns the first address at which the range fits between `at` and `end`.
    fn fits(&self, end: u64) -> Option<u64> {
        let start = self.at.checked_next_multiple_of(self.align)?;
        (start.checked_add(self.len)? <= end).then_some(start)
    }

    fn look<V: Ranged<Key = u64>>(&mut self, node: &Node<V>) -> Option<u64> {
        match &node.body {
            Body::Leaf(row) => row[place(row, self.at)..].iter().find_map(|value| {
                let found = self.fits(value.start());
                self.at = self.at.max(value.end());
                found
            }),
            Body::Inner(row) => row[place(row, self.at)..].iter().find_map(|child| {
                let before = self.fits(child.start);
                let inside = || (child.most >= self.len).then(|| self.look(&child.node))?;
                let found = before.or_else(inside);
                self.at = self.at.max(child.end);
                found
            }),
        }
    }
}
