//! Checks of a tree of ranges.

use crate::space::vma::tree::{Body, Key, LEAST, Node, RangeTree, Ranged, Row, WIDTH};

impl<V: Ranged> RangeTree<V> {
    /// Checks the tree, with all that its nodes say about their ranges.
    pub(crate) fn validate(&self) {
        let mut last = V::Key::FIRST;
        for value in self.iter() {
            assert!(last <= value.start() && value.start() < value.end());
            last = value.end();
        }
        if let Some(root) = &self.root {
            root.validate(true);
        }
    }
}

impl<V: Ranged> Node<V> {
    /// Checks the node and returns its depth.
    fn validate(&self, is_root: bool) -> usize {
        let least = if is_root { 1 } else { LEAST };
        assert!(self.body.len() >= least, "a node is too empty");
        match &self.body {
            Body::Leaf(row) => {
                row.validate();
                1
            }
            Body::Inner(row) => {
                row.validate();
                assert!(!is_root || row.items.len() > 1, "a root with one child");
                let depths: Vec<usize> = row
                    .items
                    .iter()
                    .map(|child| {
                        let known = (child.start, child.end, child.most);
                        assert_eq!(known, child.node.body.bounds(), "what is known of a child");
                        child.node.validate(false)
                    })
                    .collect();
                assert!(depths.iter().all(|depth| *depth == depths[0]), "uneven");
                depths[0] + 1
            }
        }
    }
}

impl<T: Ranged> Row<T> {
    fn validate(&self) {
        for place in 0..WIDTH {
            let want = self.items.get(place).map_or(T::Key::UNUSED, Ranged::end);
            assert_eq!(self.ends[place], want, "a row's ends");
        }
    }
}
