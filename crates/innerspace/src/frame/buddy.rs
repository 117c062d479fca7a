//! The buddy allocator: free blocks of 1 to 512 frames, split and coalesced.
//!
//! A block of order `k` has `1 << k` frames and starts at a multiple of that number, so its buddy (the other half of
//! the block of order `k + 1`) is found by flipping bit `k` of its number. A free block is a member of the list of its
//! order, threaded through the metadata of its first frame, which says `Kind::Free` and the order; the metadata of its
//! other frames says `Kind::Part`, allocated or free, so nothing but first frames is ever touched. (Knowlton 1965.)
//!
//! Everything here runs under the allocator's mutex: `Kind::Free` is set and removed under it alone, which is why the
//! test "is my buddy free and whole" is exact although other threads change the kinds of their own frames meanwhile.

use super::list::FrameList;
use super::meta::{Kind, Meta};
use crate::FrameId;

/// The largest order: 512 frames, 2 MiB.
pub(crate) const MAX_ORDER: u8 = 9;

/// The free lists.
#[derive(Debug)]
pub(super) struct Buddy {
    lists: [FrameList; MAX_ORDER as usize + 1],
    /// One past the last frame.
    end: u32,
    /// Frames in the lists.
    free: u32,
    /// No frame from here on was ever handed out: their bytes are the zeros that the host gave.
    untouched: u32,
}

impl Buddy {
    /// All frames of the arena but the zero frame, free. `metas` is as zeroed memory has it.
    pub(super) fn new(metas: &[Meta]) -> Buddy {
        let end = metas.len() as u32;
        let mut buddy = Buddy {
            lists: [const { FrameList::new() }; MAX_ORDER as usize + 1],
            end,
            free: 0,
            untouched: 1,
        };
        let mut id = 1;
        while id < end {
            let aligned = id.trailing_zeros().min(u32::from(MAX_ORDER));
            let fits = (end - id).ilog2();
            let order = aligned.min(fits) as u8;
            buddy.insert(metas, FrameId(id), order, End::Back);
            id += 1 << order;
        }
        buddy
    }

    /// The frames in the lists.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Takes a block of the smallest order that serves, splitting it; the lower half is handed out. The block's first
    /// frame becomes `Kind::Magazine`: free, but in no list.
    pub(super) fn take(&mut self, metas: &[Meta], order: u8) -> Option<FrameId> {
        let mut found = (order..=MAX_ORDER).find(|&k| !self.lists[usize::from(k)].is_empty())?;
        let id = self.lists[usize::from(found)].pop_front(metas)?;
        self.free -= 1 << found;
        metas[id.index()].set_kind(Kind::Magazine);
        while found > order {
            found -= 1;
            self.insert(metas, FrameId(id.0 + (1 << found)), found, End::Front);
        }
        let meta = &metas[id.index()];
        meta.set_order(order);
        meta.set_fresh(id.0 >= self.untouched);
        self.untouched = self.untouched.max(id.0 + (1 << order));
        Some(id)
    }

    /// Takes a block back, merging it with its buddy as long as that is free and whole.
    pub(super) fn give(&mut self, metas: &[Meta], mut id: FrameId, mut order: u8) {
        metas[id.index()].set_fresh(false); // below `untouched` by now
        while order < MAX_ORDER {
            let buddy = FrameId(id.0 ^ (1 << order));
            // The zero frame's kind keeps frame 1 from merging with it.
            if buddy.0 >= self.end {
                break;
            }
            let meta = &metas[buddy.index()];
            if meta.kind() != Kind::Free || meta.order() != order {
                break;
            }
            self.lists[usize::from(order)].remove(metas, buddy);
            self.free -= 1 << order;
            metas[id.0.max(buddy.0) as usize].set_kind(Kind::Part);
            id = FrameId(id.0.min(buddy.0));
            order += 1;
        }
        self.insert(metas, id, order, End::Front);
    }

    fn insert(&mut self, metas: &[Meta], id: FrameId, order: u8, end: End) {
        let meta = &metas[id.index()];
        meta.set_order(order);
        meta.set_kind(Kind::Free);
        let list = &mut self.lists[usize::from(order)];
        match end {
            End::Front => list.push_front(metas, id),
            End::Back => list.push_back(metas, id),
        }
        self.free += 1 << order;
    }

    /// Recomputes the count, checks the lists, and calls `block` for each free block.
    pub(super) fn validate(&self, metas: &[Meta], mut block: impl FnMut(FrameId, u8)) {
        let mut free = 0;
        for (order, list) in (0..=MAX_ORDER).zip(&self.lists) {
            let mut len = 0;
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
                assert_eq!(
                    list.before(metas, id),
                    before,
                    "the list of order {order} at {id:?}"
                );
                let buddy = id.0 ^ (1 << order);
                if order < MAX_ORDER && buddy < self.end {
                    let meta = &metas[buddy as usize];
                    let whole = meta.kind() == Kind::Free && meta.order() == order;
                    assert!(
                        !whole,
                        "{id:?} and its buddy {buddy} of order {order} are not merged"
                    );
                }
                block(id, order);
                len += 1;
                free += 1 << order;
                before = next;
                next = list.after(metas, id);
            }
            assert_eq!(list.back(), before, "the end of the list of order {order}");
            assert_eq!(list.len(), len, "the length of the list of order {order}");
        }
        assert_eq!(self.free, free, "frames in the free lists");
    }
}

#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}
