//! Checks of the free lists.

use std::ops::Range;

use super::{Buddy, MAX_ORDER};
use crate::FrameId;
use crate::frame::list::FrameList;
use crate::frame::meta::{Kind, Meta};
use crate::sync::atomic::Ordering;

impl Buddy {
    /// Recomputes the count, checks the lists, and calls `block` for each free block.
    pub(in crate::frame) fn validate(&self, metas: &[Meta], mut block: impl FnMut(FrameId, u8)) {
        let mut free = 0;
        for (order, list) in (0..=MAX_ORDER).zip(&self.lists) {
            let mut before = None;
            let mut next = list.front();
            while let Some(id) = next {
                let meta = &metas[id.index()];
                assert_eq!(
                    meta.kind(),
                    Kind::Free,
                    "{id:?} is in the list of order {order}"
                );
                assert_eq!(
                    meta.order(),
                    order,
                    "{id:?} is in the list of order {order}"
                );
                assert_eq!(
                    id.0 % (1 << order),
                    0,
                    "{id:?} is not aligned to its order {order}"
                );
                assert!(
                    !self.untouched.contains(&id.0),
                    "{id:?} is in a list, and no memory from {} on was used",
                    self.untouched.start
                );
                assert_eq!(
                    list.before(metas, id),
                    before,
                    "the list of order {order} at {id:?}"
                );
                let buddy = id.0 ^ (1 << order);
                if order < MAX_ORDER
                    && let Some(meta) = metas.get(buddy as usize)
                {
                    let whole = meta.kind() == Kind::Free && meta.order() == order;
                    assert!(
                        !whole,
                        "{id:?} and its buddy {buddy} of order {order} are not merged"
                    );
                }
                block(id, order);
                free += 1 << order;
                before = next;
                next = list.after(metas, id);
            }
            assert_eq!(list.back(), before, "the end of the list of order {order}");
        }
        for id in self.untouched.clone() {
            assert_eq!(
                metas[id as usize].kind(),
                Kind::Part,
                "frame {id} was never given out"
            );
            block(FrameId(id), 0);
            free += 1;
        }
        assert_eq!(self.free, free, "free frames");
    }

    /// Returns the number of holes, those of windows included.
    pub(in crate::frame) fn count_holes(&self, metas: &[Meta]) -> u32 {
        let holes = self.holes + self.windows.iter().map(Range::len).sum::<usize>() as u32;
        let end = self.untouched.end;
        let behind = end.next_multiple_of(1 << MAX_ORDER).min(metas.len() as u32);
        let counted: u32 = self.huge.holes.iter().sum();
        assert!(
            self.huge.holes.is_empty() || counted == holes + behind - end,
            "{counted} holes"
        );
        holes
    }
}

impl FrameList {
    /// Returns the frame after `id`.
    pub(crate) fn after(&self, metas: &[Meta], id: FrameId) -> Option<FrameId> {
        let next = metas[id.index()].links.next.load(Ordering::Relaxed);
        (next != 0).then_some(FrameId(next))
    }
}
