//! Checks of the allocator.

use super::Allocator;
use crate::FrameId;
use crate::frame::meta::{Kind, Meta};
use crate::frame::stack::Stack;
use crate::sync::atomic::Ordering;

impl Allocator {
    /// Checks lists, magazines and counts, and calls `block` for each free block. No thread may
    /// allocate or free meanwhile.
    pub(in crate::frame) fn validate(&self, metas: &[Meta], mut block: impl FnMut(FrameId, u8)) {
        let buddy = self.common.lists.lock();
        for id in self.magazines.all().flat_map(Stack::iter) {
            let meta = &metas[id.index()];
            assert!(
                matches!(meta.kind(), Kind::Magazine | Kind::Fresh),
                "{id:?} is in a magazine: {meta:?}"
            );
            assert_eq!(meta.order(), 0, "{id:?} is in a magazine");
            block(id, 0);
        }
        assert_eq!(
            buddy.free(),
            self.common.listed.load(Ordering::Relaxed),
            "listed frames"
        );
        buddy.validate(metas, block);
    }
}

impl Stack {
    /// Iterates over the frames, the coldest first.
    fn iter(&self) -> impl Iterator<Item = FrameId> {
        (0..self.len()).map(|at| self.get(at))
    }
}
