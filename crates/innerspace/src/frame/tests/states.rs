//! Checks that every frame is in one state.

use crate::frame::buddy::MAX_ORDER;
use crate::frame::frames::Frames;
use crate::frame::hold::HoldState;
use crate::frame::meta::Kind;
use crate::sys::copy;
use crate::{FrameId, PAGE_SIZE};

impl Frames {
    /// Checks that every frame is in exactly one state (I1), and recomputes what the allocator
    /// caches. Each frame is in one free block, one magazine or one allocated block, and no free
    /// frame is held. Panics otherwise. No thread may allocate or free meanwhile.
    pub(crate) fn validate(&self) {
        let mut free = vec![false; self.metas.len()];
        let mut count = 0;
        self.allocator.validate(&self.metas, |id, order| {
            for frame in id.0..id.0 + (1 << order) {
                assert!(!free[frame as usize], "I1: frame {frame} is free twice");
                free[frame as usize] = true;
                let meta = &self.metas[frame as usize];
                assert_eq!(
                    meta.hold.load(),
                    HoldState::NONE,
                    "I1: free frame {frame} is held"
                );
                assert!(
                    frame == id.0 || meta.kind() == Kind::Part,
                    "frame {frame}: {meta:?}"
                );
            }
            count += 1 << order;
        });
        assert_eq!(count, self.free_frames(), "free frames");
        let zero = self.meta(FrameId::ZERO);
        assert_eq!(
            (zero.kind(), zero.hold.load()),
            (Kind::Zero, HoldState::NONE),
            "I4: the zero frame was counted"
        );
        let mut bytes = [1; PAGE_SIZE];
        // SAFETY: the zero frame is 4096 bytes of the arena, to which nothing writes.
        unsafe { copy::copy_in(&mut bytes, self.host(FrameId::ZERO)) };
        assert!(bytes == [0; PAGE_SIZE], "I4: the zero frame was written to");
        let mut holes = self
            .allocator
            .with_lists(|buddy| buddy.count_holes(&self.metas));
        let mut id = 1;
        while id < self.arena.frames() {
            if id == self.usable && id % (1 << MAX_ORDER) != 0 {
                id = id.next_multiple_of(1 << MAX_ORDER);
                continue;
            }
            if free[id as usize] {
                id += 1;
                continue;
            }
            let meta = &self.metas[id as usize];
            if meta.kind() == Kind::Part {
                assert!(holes > 0, "I1: frame {id} is neither free nor in use");
                holes -= 1;
                id += 1;
                continue;
            }
            assert!(
                meta.kind().is_live(),
                "I1: frame {id} is neither free nor allocated: {meta:?}"
            );
            for part in id + 1..id + (1 << meta.order()) {
                assert!(
                    !free[part as usize],
                    "I1: frame {part} is free and part of {id}"
                );
                assert_eq!(
                    self.metas[part as usize].kind(),
                    Kind::Part,
                    "frame {part} of {id}"
                );
            }
            id += 1 << meta.order();
        }
        assert_eq!(holes, 0, "holes of the arena");
    }
}
