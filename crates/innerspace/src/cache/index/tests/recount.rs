//! Checks of the index.

use super::{Counts, Index, MAX_HEIGHT, Nodes, Word, height_of};
use crate::sync::raw::Ordering;

impl<T> Index<T> {
    /// Recounts everything, and panics if a count or the form of the tree is wrong. No other thread
    /// may be changing the index.
    pub(crate) fn validate(&self, nodes: &impl Nodes) {
        let writer = self.write();
        let mut found = Counts::default();
        recount(nodes, self.root.load(Ordering::Relaxed), &mut found);
        assert_eq!(found, writer.guarded.counts, "index counts");
    }
}

fn recount(nodes: &impl Nodes, word: u64, found: &mut Counts) -> bool {
    match Word::decode(word) {
        Word::Empty => false,
        Word::Block(_) => {
            found.blocks += 1;
            true
        }
        Word::Shadow(_) => {
            found.shadows += 1;
            false
        }
        Word::Node(node, height) => {
            assert!(
                (1..=MAX_HEIGHT).contains(&height),
                "node of height {height}"
            );
            found.nodes += 1;
            let mut live = 0;
            for word in nodes.words(node) {
                let word = word.load(Ordering::Relaxed);
                if height_of(word) > 0 {
                    assert_eq!(height_of(word), height - 1, "a child one level down");
                } else {
                    assert!(
                        word == 0 || height == 1,
                        "a word of a block above the lowest level"
                    );
                }
                live += u32::from(recount(nodes, word, found));
            }
            assert_eq!(live, nodes.live(node), "live words of a node");
            assert!(live > 0, "an empty node was kept");
            true
        }
    }
}
