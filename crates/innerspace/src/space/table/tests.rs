//! Checks of a table.

use super::nodes::Nodes;
use super::pte::{self, Holds, Pte, VALID_W};
use crate::FrameId;
use crate::frame::Kind;
use crate::space::core::address::ROOT_LEVEL;

impl Nodes<'_> {
    /// Checks all that one space can check of the nodes below `root`. No other thread changes the
    /// table.
    pub(crate) fn validate(self) {
        self.validate_below(self.root, ROOT_LEVEL);
    }

    fn validate_below(self, node: FrameId, level: u32) {
        assert_eq!(
            self.pool.frames.meta(node).kind(),
            Kind::Table,
            "node {node:?}"
        );
        assert!(self.state(node).refs() >= 1, "node {node:?} has no parent");
        for word in self.words(node) {
            if level > 0 {
                if let Some(child) = self.child(word) {
                    self.validate_below(child, level - 1);
                }
                continue;
            }
            let pte = pte::load(word);
            match pte.holds() {
                Holds::Nothing => assert_eq!(pte, Pte::EMPTY),
                Holds::Zero => assert!(!pte.has(VALID_W), "I4: the zero frame is writable"),
                Holds::File => {
                    let head = self.pool.frames.head_of(self.frame_of(pte));
                    assert!(
                        self.state(head).mapped() > 0,
                        "a file page counts as unmapped"
                    );
                }
                Holds::Direct => {}
                Holds::Own => {
                    let state = self.state(self.frame_of(pte));
                    assert!(state.refs() > 0, "an own page is free");
                    let stays = state.refs() == 1 && !self.is_shared(node);
                    assert!(state.mapped() == 0 || stays, "a pinned page is shared");
                }
                Holds::Borrowed => {
                    assert!(!pte.has(VALID_W), "a borrowed page is writable");
                    assert!(self.shadow(node).is_some(), "borrowed from nobody");
                    assert!(
                        self.state(self.frame_of(pte)).refs() > 0,
                        "a borrowed page is free"
                    );
                }
            }
        }
        if let (0, Some((shadow, _))) = (level, self.shadow(node)) {
            assert!(
                self.state(shadow).mapped() > 0,
                "a shadow does not count its borrower"
            );
        }
    }
}
