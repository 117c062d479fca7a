//! Checks of a tree of ranges.

use crate::space::vma::tree::{Body, LEAST, Node, RangeTree, Ranged};

impl<V: Ranged> RangeTree<V> {
    /// Checks the tree, with all that its nodes say about their ranges.
    pub(crate) fn validate(&self) {
        let mut last = None;
        for value in self.iter() {
            assert!(last <= Some(value.start()) && value.start() < value.end());
            last = Some(value.end());
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
            Body::Leaf(_) => 1,
            Body::Inner(row) => {
                assert!(!is_root || row.len() > 1, "a root with one child");
                let depths: Vec<usize> = row
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
