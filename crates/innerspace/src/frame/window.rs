//! Windows: runs of consecutive addresses for frames.
//!
//! The arena has about four times as many addresses as there may be frames in use. An address
//! without a frame is a *hole*: no memory of the host backs it. At first all addresses after the
//! frames are holes. Frames and holes together always make up the whole arena, and the number of
//! frames never changes. But an address may change from one to the other: the frames of a block
//! that its owner gives up become holes, and as many holes elsewhere become frames in exchange. So
//! a run of any length can be found among the addresses that are not in use, wherever the free
//! frames are.
//!
//! A [`Window`] is a run of holes that is reserved for its owner. The owner *places* blocks there
//! one after the other, each in exchange for as many frames, whose memory goes back to the host. So
//! the host never backs more addresses than there are frames. A placed block is a block like any
//! other, and stays at its address: when it is freed, it goes to the buddy lists. The holes that
//! are left when the window is dropped stay holes.
//!
//! If no run of holes is long enough, a run of holes and free blocks is used: the free blocks in it
//! are removed from the lists, and as many holes elsewhere become free frames in exchange. So a
//! window never withholds a frame, and a thread with a charge finds one (see [`super::magazine`]).
//!
//! **Metadata.** The array of metadata has an element for each address, but only one element for
//! each frame that may be in use is charged for. Elements of holes are zeros or no longer mean
//! anything, and a page that has only such elements goes back to the host. So a page of the array
//! takes memory only if it has the element of some frame. That is little more than is charged for,
//! unless frames in use are spread thinly over the arena. At worst it is four times as much, 6 % of
//! the memory.
//!
//! **Hosts with larger pages**, and the portable form of `sys`, cannot take back single frames. On
//! such a host, the process may take up to four times the memory of its frames.
//!
//! The records of windows and holes are read and changed under the buddy mutex, so that a walk from
//! block to block is exact. The kind and order of a block's first frame are set under this mutex,
//! or by the block's owner, which does not change where the next block begins. The walk looks at a
//! line of metadata for each block, starting where the last window ended. So it is not for hot
//! paths.

use std::ops::Range;

use super::buddy::{Buddy, MAX_ORDER, set_taken};
use super::frames::Frames;
use super::meta::{Kind, Meta};
use super::owned::OwnedFrame;
use crate::FrameId;

/// Consecutive holes, to be filled with blocks of one order from the first hole on.
#[derive(Debug)]
pub(crate) struct Window<'f> {
    frames: &'f Frames,
    order: u8,
    /// The holes in which no block has been placed yet.
    left: Range<u32>,
}

impl Frames {
    /// Finds consecutive holes for `blocks` blocks of `1 << order` frames, or makes free blocks
    /// holes where runs of holes are too short. Returns `None` if no run of holes and free blocks
    /// is long enough, if there are too few holes in all, if `blocks` is 0, or if the run would be
    /// longer than the memory.
    pub(crate) fn window(&self, order: u8, blocks: u64) -> Option<Window<'_>> {
        let len = u32::try_from(blocks.checked_shl(order.into())?).ok()?;
        if len > self.total() || blocks == 0 {
            return None;
        }
        let find = |buddy: &mut Buddy| buddy.take_window(self, len, order);
        let left = self.allocator.with_lists(find)?;
        Some(Window {
            frames: self,
            order,
            left,
        })
    }
}

impl<'f> Window<'f> {
    /// Returns the frame after the window's last place.
    pub(crate) fn end(&self) -> FrameId {
        FrameId(self.left.end)
    }

    /// Places as many blocks as `given` has frames for, and returns them, in order. Their bytes are
    /// unknown.
    ///
    /// # Panics
    /// If the window has no room for them, or the frames do not make a whole number of blocks.
    pub(crate) fn place(&mut self, given: Vec<OwnedFrame<'f>>) -> Vec<OwnedFrame<'f>> {
        let (frames, order) = (self.frames, self.order);
        let blocks = given.into_iter().map(|block| {
            let len = (block.len() / crate::PAGE_SIZE) as u32;
            let id = block.into_id();
            id.0..id.0 + len
        });
        let mut gone: Vec<Range<u32>> = blocks.collect();
        gone.sort_unstable_by_key(|block| block.start);
        let count: u32 = gone.iter().map(Range::len).sum::<usize>() as u32;
        assert!(count.is_multiple_of(1 << order) && count as usize <= self.left.len());
        // The memory is given back before the frames become holes, because another window may take
        // their addresses from then on. The loss is counted before they become holes
        // (`HugeParts::lose`).
        frames.allocator.with_lists(|buddy| {
            (gone.iter()).for_each(|block| buddy.huge.lose(&frames.arena, block));
        });
        // Even a frame that was never touched may have memory, as a part of a huge page.
        for run in gone.chunk_by(|one, next| one.end == next.start) {
            frames.arena.discard(run[0].start..run[run.len() - 1].end);
        }
        let placed = self.left.start..self.left.start + count;
        let firsts = placed.clone().step_by(1 << order).map(FrameId);
        frames.allocator.with_lists(|buddy| {
            buddy.forget_window(&self.left);
            self.left.start = placed.end;
            buddy.windows.push(self.left.clone());
            buddy.holes += count;
            for block in &gone {
                frames.meta(FrameId(block.start)).set_kind(Kind::Part);
            }
            buddy.huge.gain(&frames.arena, &placed);
            (firsts.clone()).for_each(|id| set_taken(frames.meta(id), order, Kind::Magazine));
            frames.discard_metas(&gone);
        });
        firsts.map(|id| frames.begin(id, order)).collect()
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        self.frames.allocator.with_lists(|buddy| {
            buddy.forget_window(&self.left);
            buddy.holes += self.left.len() as u32;
        });
    }
}

impl Buddy {
    fn take_window(&mut self, frames: &Frames, len: u32, order: u8) -> Option<Range<u32>> {
        let metas = frames.metas();
        // Each frame of the window takes one hole: its own, or one elsewhere in exchange for a free
        // frame.
        if self.holes < len {
            return None;
        }
        let [lower, upper] = self.given_out(metas);
        // The walk has to begin where a block begins. That is so at every multiple of the largest
        // size, but perhaps not where the last window ended.
        let next = self.next_window.clamp(upper.start, upper.end) & !((1 << MAX_ORDER) - 1);
        let parts = [next..upper.end, upper, lower];
        let find = |order, free| {
            let mut parts = parts.iter();
            parts.find_map(|part| self.find_window(metas, part.clone(), len, order, free))
        };
        // If possible, a long window begins where a part begins ([`super::huge`]), so that it fills
        // whole parts.
        let part = self.huge.order().max(order);
        let whole = (len >= 1 << part).then(|| find(part, false)).flatten();
        let window = whole.or_else(|| find(order, false));
        let window = window.or_else(|| find(order, true))?;
        let taken = self.take_free(frames, &window);
        self.next_window = window.end;
        self.windows.push(window.clone());
        self.holes -= len - taken;
        self.give_holes(frames, taken);
        Some(window)
    }

    /// Returns the addresses before the frames that were never given out, from frame 1 on, and the
    /// addresses after them, which begin at a multiple of 512.
    fn given_out(&self, metas: &[Meta]) -> [Range<u32>; 2] {
        let untouched = self.untouched();
        let behind = untouched.end.next_multiple_of(1 << MAX_ORDER);
        [1..untouched.start, behind..metas.len() as u32]
    }

    /// Walks over `part`, which begins where a block begins, and has no untouched memory. Returns
    /// the blocks in it with their kinds; a hole is a block with the kind `Part`. The unfilled part
    /// of a window counts as a block in use.
    fn walk<'a>(
        &'a self,
        metas: &'a [Meta],
        part: Range<u32>,
    ) -> impl Iterator<Item = (Range<u32>, Kind)> + 'a {
        let mut rest = part;
        std::iter::from_fn(move || {
            let id = rest.clone().next()?;
            let window = self.windows.iter().find(|window| window.contains(&id));
            let meta = &metas[id as usize];
            let (end, kind) = match (window, meta.kind()) {
                (Some(window), _) => (window.end, Kind::Owned),
                (None, Kind::Part) => (id + 1, Kind::Part),
                (None, kind) => (id + (1 << meta.order()), kind),
            };
            rest.start = end;
            Some((id..end, kind))
        })
    }

    /// Returns the first aligned run of `len` holes in `part`. With `free`, the run may also
    /// contain free blocks.
    fn find_window(
        &self,
        metas: &[Meta],
        part: Range<u32>,
        len: u32,
        order: u8,
        free: bool,
    ) -> Option<Range<u32>> {
        // A frame's offset in the arena is aligned as its number is, because numbers begin at 0.
        let mut start = part.start.next_multiple_of(1 << order);
        for (block, kind) in self.walk(metas, part) {
            if kind != Kind::Part && !(free && kind == Kind::Free) {
                start = block.end.next_multiple_of(1 << order);
            } else if block.end >= start.checked_add(len)? {
                return Some(start..start + len);
            }
        }
        None
    }

    /// Removes the free blocks in a window from the lists, and gives their memory back. The parts
    /// of these blocks outside the window stay free. Returns how many frames of the window were
    /// free.
    fn take_free(&mut self, frames: &Frames, window: &Range<u32>) -> u32 {
        let metas = frames.metas();
        let start = window.start & !((1 << MAX_ORDER) - 1);
        let blocks = self.walk(metas, start..window.end);
        let free = blocks.filter(|(block, kind)| *kind == Kind::Free && block.end > window.start);
        let free: Vec<Range<u32>> = free.map(|(block, _)| block).collect();
        let mut taken = 0;
        for block in free {
            self.unlist(metas, FrameId(block.start));
            metas[block.start as usize].set_kind(Kind::Part);
            self.give_run(metas, block.start..window.start.max(block.start));
            self.give_run(metas, window.end.min(block.end)..block.end);
            let inside = block.start.max(window.start)..block.end.min(window.end);
            taken += inside.len() as u32;
            self.huge.lose(&frames.arena, &inside);
            frames.arena.discard(inside);
        }
        taken
    }

    /// Turns `count` holes into free frames.
    fn give_holes(&mut self, frames: &Frames, count: u32) {
        let metas = frames.metas();
        let parts = self.given_out(metas).into_iter();
        let blocks = parts.flat_map(|part| self.walk(metas, part));
        let holes = blocks.filter(|(_, kind)| *kind == Kind::Part);
        let mut given: Vec<FrameId> = (holes.map(|(hole, _)| FrameId(hole.start)))
            .take(count as usize)
            .collect();
        for id in &given {
            self.huge.gain(&frames.arena, &(id.0..id.0 + 1));
        }
        self.holes -= count;
        self.give_singles(metas, &mut given);
    }

    /// Removes the window whose unfilled part is `left` from the list of live windows.
    fn forget_window(&mut self, left: &Range<u32>) {
        let at = self.windows.iter().position(|window| window == left);
        self.windows.swap_remove(at.expect("a window that lives"));
    }
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    #[cfg(all(target_os = "linux", not(any(portable, miri))))]
    impl Frames {
        /// Returns the number of pages of metadata that are not all zeros, and so have memory.
        pub(crate) fn pages_of_metas(&self) -> usize {
            self.metas_array().pages_in_use()
        }

        /// Returns the number of holes for which the host has memory.
        pub(crate) fn resident_holes(&self) -> usize {
            let metas = self.metas();
            self.allocator.with_lists(|buddy| {
                let mut id = 1;
                let mut resident = 0;
                while id < metas.len() as u32 {
                    if id == buddy.untouched().start {
                        id = buddy.untouched().end;
                    }
                    let meta = &metas[id as usize];
                    if meta.kind() == Kind::Part {
                        resident += self.arena.resident(id..id + 1);
                        id += 1;
                    } else {
                        id += 1 << meta.order();
                    }
                }
                resident
            })
        }
    }

    impl Window<'_> {
        /// Returns log2 of the number of frames in a block.
        pub(crate) fn order(&self) -> u8 {
            self.order
        }

        /// Returns the number of places without a block.
        pub(crate) fn blocks_left(&self) -> u64 {
            self.left.len() as u64 >> self.order
        }

        /// Returns the first frame of the next place.
        pub(crate) fn next(&self) -> FrameId {
            FrameId(self.left.start)
        }
    }
}
