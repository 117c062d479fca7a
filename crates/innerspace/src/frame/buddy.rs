//! The buddy allocator: free blocks of 1 to 512 frames, split and coalesced.
//!
//! A block of order `k` has `1 << k` frames and starts at a multiple of that number. Its buddy, the
//! other half of the block of order `k + 1`, is therefore found by flipping bit `k` of its number.
//!
//! A free block is in the list of its order, which is threaded through the metadata of first
//! frames. The first frame of a free block has `Kind::Free` and the block's order. The other frames
//! of a block have `Kind::Part`, whether it is allocated or free. So splitting and merging touch
//! only first frames. (Knowlton 1965.) Memory that was never given out is in no list, but in a
//! range of its own.
//!
//! Everything here runs under the allocator's mutex. `Kind::Free` is set and removed only under
//! that mutex. So the test of whether a buddy is free and whole is exact, although other threads
//! meanwhile change the kinds of their own frames.

use std::ops::Range;

use super::huge::HugeParts;
use super::list::{End, FrameList};
use super::meta::{Kind, Meta};
use crate::FrameId;

/// The largest order: 512 frames, 2 MiB.
pub(crate) const MAX_ORDER: u8 = 9;

/// The free frames of one arena: its free lists, and the memory that was never given out.
#[derive(Debug)]
pub(super) struct Buddy {
    /// The free blocks of each order.
    lists: [FrameList; MAX_ORDER as usize + 1],
    /// The frames that were never given out, which are free but in no list. They are taken last, in
    /// ascending order. Their bytes are still the host's zeros, and so is their metadata. The
    /// addresses after them are holes at first ([`super::window`]).
    untouched: Range<u32>,
    /// The number of free frames: those in the lists, and the untouched ones.
    free: u32,
    /// The number of addresses without a frame that are in no window.
    pub(super) holes: u32,
    /// The parts of windows that have no frames yet.
    pub(super) windows: Vec<Range<u32>>,
    /// The frame number at which the search for the next window begins.
    pub(super) next_window: u32,
    /// Which parts of the arena have holes, and so no huge pages.
    pub(super) huge: HugeParts,
}

impl Buddy {
    /// Creates an allocator in which all frames before `end` are free, except the zero frame. The
    /// arena has `all` addresses. The holes begin at the first multiple of 512 that is not below
    /// `end`.
    pub(super) fn new(all: u32, end: u32) -> Buddy {
        let holes = end.next_multiple_of(1 << MAX_ORDER);
        Buddy {
            lists: Default::default(),
            untouched: 1..end,
            free: end - 1,
            holes: all.saturating_sub(holes),
            windows: Vec::new(),
            next_window: holes,
            huge: HugeParts::default(),
        }
    }

    /// Returns the number of free frames.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Returns the frames that were never given out.
    pub(super) fn untouched(&self) -> &Range<u32> {
        &self.untouched
    }

    /// Takes a block of the smallest order that is large enough. If it is larger than needed,
    /// splits it and takes the lowest part. Memory that was never used is taken last. The block's
    /// first frame gets `Kind::Magazine` or `Kind::Fresh`: free, but in no list.
    pub(super) fn take(&mut self, metas: &[Meta], order: u8) -> Option<FrameId> {
        self.take_from_lists(metas, order)
            .or_else(|| self.take_untouched(metas, order))
    }

    /// Takes a block from the list of the smallest order that is large enough.
    fn take_from_lists(&mut self, metas: &[Meta], order: u8) -> Option<FrameId> {
        let list = (order..=MAX_ORDER).find(|list| self.has_block(*list))?;
        Some(self.take_listed(metas, list, order))
    }

    /// Takes a block of order `order` from the list of the blocks of order `list`. That list must
    /// not be empty, and `list` must not be below `order`.
    fn take_listed(&mut self, metas: &[Meta], list: u8, order: u8) -> FrameId {
        let first = self.lists[usize::from(list)].pop_front(metas);
        let id = first.expect("the chosen list has a block");
        self.free -= 1 << list;
        for half in (order..list).rev() {
            self.insert(metas, FrameId(id.0 + (1 << half)), half, End::Front);
        }
        set_taken(&metas[id.index()], order, Kind::Magazine);
        id
    }

    /// Takes the lowest block of this order in the memory that was never given out. Frames that are
    /// skipped for the sake of alignment go to the backs of the lists. If they complete a block
    /// there that is large enough, takes that one instead.
    fn take_untouched(&mut self, metas: &[Meta], order: u8) -> Option<FrameId> {
        let start = self.untouched.start.next_multiple_of(1 << order);
        if start > self.untouched.end {
            return None;
        }
        let skipped = self.untouched.start..start;
        if !skipped.is_empty() {
            self.free -= skipped.len() as u32;
            self.untouched.start = start;
            for (id, order) in blocks_of(skipped) {
                self.give_at(metas, id, order, End::Back);
            }
            // Together with free frames below them, the skipped frames may have completed a block
            // that is large enough.
            let whole = self.take_from_lists(metas, order);
            if whole.is_some() {
                return whole;
            }
        }
        let end = start + (1 << order);
        if end > self.untouched.end {
            return None;
        }
        self.free -= 1 << order;
        self.untouched.start = end;
        set_taken(&metas[start as usize], order, Kind::Fresh);
        Some(FrameId(start))
    }

    /// Takes single frames until `into` is full or none are left, and returns how many it took.
    /// Takes blocks as large as the number wanted allows, split from larger ones if necessary, or
    /// else the largest blocks that there are. Frames that were never given out come last. The
    /// frames of a block are in ascending order, and the blocks in the order of the lists.
    ///
    /// Taking small pieces first would keep more large blocks whole. But it would give out
    /// scattered frames for as long as the pieces circulate, and a page is cleared much faster
    /// after its lower neighbour. Pieces that are left alone meanwhile become whole again. Pieces
    /// do come before memory that was never used, which costs more than scattered frames do.
    pub(super) fn take_singles(&mut self, metas: &[Meta], into: &mut [FrameId]) -> usize {
        let mut taken = 0;
        while taken < into.len() {
            let wanted = ((into.len() - taken).ilog2() as u8).min(MAX_ORDER);
            let mut lists = (wanted..=MAX_ORDER).chain((0..wanted).rev());
            let Some(list) = lists.find(|list| self.has_block(*list)) else {
                break;
            };
            let order = list.min(wanted);
            let first = self.take_listed(metas, list, order);
            for id in (first.0..).map(FrameId).take(1 << order) {
                set_taken(&metas[id.index()], 0, Kind::Magazine);
                into[taken] = id;
                taken += 1;
            }
        }
        for place in &mut into[taken..] {
            let Some(id) = self.take_untouched(metas, 0) else {
                break;
            };
            *place = id;
            taken += 1;
        }
        taken
    }

    fn has_block(&self, list: u8) -> bool {
        self.lists[usize::from(list)].front().is_some()
    }

    /// Removes a free block from its list. The caller changes the block's kind.
    pub(super) fn unlist(&mut self, metas: &[Meta], id: FrameId) {
        let order = metas[id.index()].order();
        self.lists[usize::from(order)].remove(metas, id);
        self.free -= 1 << order;
    }

    /// Takes single frames back. Sorts `ids`. Neighbours are joined into blocks before the blocks
    /// are merged with their buddies.
    pub(super) fn give_singles(&mut self, metas: &[Meta], ids: &mut [FrameId]) {
        ids.sort_unstable_by_key(|id| id.0);
        for run in ids.chunk_by(|one, next| one.0 + 1 == next.0) {
            self.give_run(metas, run[0].0..run[0].0 + run.len() as u32);
        }
    }

    /// Takes consecutive single frames back.
    pub(super) fn give_run(&mut self, metas: &[Meta], frames: Range<u32>) {
        for (id, order) in blocks_of(frames) {
            let parts = &metas[id.index() + 1..id.index() + (1 << order)];
            parts.iter().for_each(|meta| meta.set_kind(Kind::Part));
            self.give(metas, id, order);
        }
    }

    /// Takes a block back, and merges it with its buddy as long as the buddy is free and whole.
    pub(super) fn give(&mut self, metas: &[Meta], id: FrameId, order: u8) {
        self.give_at(metas, id, order, End::Front);
    }

    /// Takes a block back as [`Buddy::give`] does, and puts the merged block at this end of its
    /// list.
    fn give_at(&mut self, metas: &[Meta], mut id: FrameId, mut order: u8, end: End) {
        while order < MAX_ORDER {
            let buddy = FrameId(id.0 ^ (1 << order));
            // The zero frame's kind keeps frame 1 from merging with it. The addresses that were
            // holes at first begin at a multiple of the largest block, so no block spans that
            // boundary.
            let Some(meta) = metas.get(buddy.index()) else {
                break;
            };
            if meta.kind() != Kind::Free || meta.order() != order {
                break;
            }
            self.unlist(metas, buddy);
            metas[id.0.max(buddy.0) as usize].set_kind(Kind::Part);
            id = FrameId(id.0.min(buddy.0));
            order += 1;
        }
        self.insert(metas, id, order, end);
    }

    fn insert(&mut self, metas: &[Meta], id: FrameId, order: u8, end: End) {
        let meta = &metas[id.index()];
        meta.set_order(order);
        meta.set_kind(Kind::Free);
        self.lists[usize::from(order)].push(metas, id, end);
        self.free += 1 << order;
    }
}

/// Notes that a block is free but in no list: `kind` is `Magazine` or `Fresh`.
pub(super) fn set_taken(meta: &Meta, order: u8, kind: Kind) {
    meta.set_order(order);
    meta.set_kind(kind);
}

/// Splits a range of frames into the largest aligned blocks that fit in it. Returns each with its
/// order.
fn blocks_of(frames: Range<u32>) -> impl Iterator<Item = (FrameId, u8)> {
    let mut id = frames.start;
    std::iter::from_fn(move || {
        let fits = frames.end.saturating_sub(id).checked_ilog2()?;
        let order = fits.min(id.trailing_zeros()).min(u32::from(MAX_ORDER));
        id += 1 << order;
        Some((FrameId(id - (1 << order)), order as u8))
    })
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::super::zeroed_array::ZeroedArray;
    use super::*;
    use proptest::prelude::*;

    const FRAMES: u32 = 300;

    fn arena() -> (ZeroedArray<Meta>, Buddy) {
        arena_of(FRAMES)
    }

    fn arena_of(frames: u32) -> (ZeroedArray<Meta>, Buddy) {
        let metas = ZeroedArray::<Meta>::new(frames as usize).unwrap();
        metas[FrameId::ZERO.index()].set_kind(Kind::Zero);
        let buddy = Buddy::new(frames, frames);
        (metas, buddy)
    }

    /// Makes an allocator in which only these frames are free.
    fn with_free(free: &[FrameId]) -> (ZeroedArray<Meta>, Buddy) {
        let (metas, mut buddy) = arena();
        while buddy.take(&metas, 0).is_some() {}
        free.iter().for_each(|id| buddy.give(&metas, *id, 0));
        (metas, buddy)
    }

    fn blocks((metas, buddy): &(ZeroedArray<Meta>, Buddy)) -> Vec<(FrameId, u8)> {
        let mut blocks = Vec::new();
        buddy.validate(metas, |id, order| blocks.push((id, order)));
        blocks.sort_unstable_by_key(|(id, _)| id.0);
        blocks
    }

    /// Returns all free frames, in ascending order.
    fn frames_of(arena: &(ZeroedArray<Meta>, Buddy)) -> Vec<FrameId> {
        let frames = |(id, order): (FrameId, u8)| (id.0..id.0 + (1 << order)).map(FrameId);
        blocks(arena).into_iter().flat_map(frames).collect()
    }

    fn some_frames() -> impl Strategy<Value = Vec<FrameId>> {
        let numbers = proptest::collection::btree_set(1..FRAMES, 0..FRAMES as usize);
        let frames = numbers.prop_map(|numbers| numbers.into_iter().map(FrameId).collect());
        Strategy::prop_shuffle(frames)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

        #[test]
        fn singles_given_together_leave_the_blocks_that_one_by_one_leaves(
            mut given in some_frames(),
            sorted in any::<bool>(),
            at_a_time in 1_usize..40,
        ) {
            if sorted {
                given.sort_unstable_by_key(|id| id.0);
            }
            let one_by_one = with_free(&given);
            let (metas, mut buddy) = with_free(&[]);
            for some in given.chunks_mut(at_a_time) {
                buddy.give_singles(&metas, some);
            }
            prop_assert_eq!(blocks(&(metas, buddy)), blocks(&one_by_one));
        }

        #[test]
        fn singles_taken_together_are_neighbours_where_there_are_some(
            free in some_frames(),
            untouched in any::<bool>(),
            wanted in 0_usize..70,
        ) {
            let mut arena = if untouched { arena() } else { with_free(&free) };
            let (before, all) = (blocks(&arena), frames_of(&arena));
            let mut taken = vec![FrameId::ZERO; wanted];
            let count = arena.1.take_singles(&arena.0, &mut taken);
            taken.truncate(count);
            prop_assert_eq!(count, wanted.min(all.len()));
            for id in &taken {
                let meta = &arena.0[id.index()];
                let kind = match untouched {
                    true => Kind::Fresh,
                    false => Kind::Magazine,
                };
                prop_assert_eq!((meta.kind(), meta.order()), (kind, 0));
            }
            if count > 0 && !untouched {
                let largest = before.iter().map(|(_, order)| *order).max();
                let together = 1 << largest.unwrap().min(wanted.ilog2() as u8);
                let ids: Vec<_> = (taken[0].0..).map(FrameId).take(together).collect();
                prop_assert_eq!(&taken[..together], &ids[..]);
            }
            taken.extend(frames_of(&arena));
            taken.sort_unstable_by_key(|id| id.0);
            prop_assert_eq!(taken, all);
        }
    }

    #[test]
    fn singles_are_of_memory_that_was_used_before_while_there_is_some() {
        let (metas, mut buddy) = arena_of(256);
        let mut used = [FrameId::ZERO; 64];
        assert_eq!(buddy.take_singles(&metas, &mut used), 64);
        // The frames given back here are pieces of one block.
        used.iter()
            .step_by(2)
            .for_each(|id| buddy.give(&metas, *id, 0));
        let mut taken = [FrameId::ZERO; 33];
        assert_eq!(buddy.take_singles(&metas, &mut taken), 33);
        let again = taken.iter().filter(|id| used.contains(id)).count();
        assert_eq!(again, 32);
    }

    #[test]
    fn a_used_block_is_broken_up_before_untouched_memory_that_would_fit_better() {
        let (metas, mut buddy) = arena_of(1024);
        let mut used = [FrameId::ZERO; 512];
        assert_eq!(buddy.take_singles(&metas, &mut used), 512);
        assert!(buddy.untouched.start <= 576, "what follows would fit");
        for id in 128..256 {
            buddy.give(&metas, FrameId(id), 0);
        }
        for order in [6, 5] {
            let mut taken = [FrameId::ZERO; 64];
            let taken = &mut taken[..1 << order];
            assert_eq!(buddy.take_singles(&metas, taken), taken.len());
            assert!(taken.iter().all(|id| (128..256).contains(&id.0)));
        }
        assert!((128..256).contains(&buddy.take(&metas, 4).unwrap().0));
    }

    #[test]
    fn what_an_aligned_block_passes_over_is_free_and_handed_out_next() {
        let mut arena = arena_of(2048);
        let first = arena.1.take(&arena.0, 0).unwrap();
        let all = frames_of(&arena);
        let large = arena.1.take(&arena.0, MAX_ORDER).unwrap();
        assert_eq!((first, large), (FrameId(1), FrameId(512)));
        assert_eq!(arena.1.untouched.start, 1024);
        let left = all.iter().filter(|id| !(512..1024).contains(&id.0));
        assert!(left.eq(&frames_of(&arena)), "all but the block is free");
        let mut singles = vec![FrameId::ZERO; 510];
        assert_eq!(arena.1.take_singles(&arena.0, &mut singles), 510);
        singles.sort_unstable_by_key(|id| id.0);
        assert!(singles.into_iter().eq((2..512).map(FrameId)));
        assert_eq!(arena.1.untouched.start, 1024);
    }

    #[test]
    fn a_block_that_the_untouched_memory_ends_in_is_whole_again_once_its_beginning_is_free() {
        // Of 1025 frames, the last one comes after the block.
        for (frames, last) in [(1024, 512_u32), (1025, 512), (256, 128)] {
            let (metas, mut buddy) = arena_of(frames);
            let order = (last.trailing_zeros() as u8).min(MAX_ORDER);
            let mut used = vec![FrameId::ZERO; last as usize + 40];
            assert_eq!(buddy.take_singles(&metas, &mut used), used.len());
            assert_eq!(buddy.take(&metas, order), None);
            assert_eq!(buddy.free(), frames - 1 - used.len() as u32);
            buddy.give_singles(&metas, &mut used[last as usize..]);
            assert_eq!(buddy.take(&metas, order), None, "one frame is in use");
            buddy.give(&metas, FrameId(last), 0);
            assert_eq!(buddy.take(&metas, order), Some(FrameId(last)));
            assert_eq!(metas[last as usize].kind(), Kind::Magazine);
            assert_eq!(buddy.free(), frames - last - (1 << order));
            buddy.validate(&metas, |_, _| ());
        }
    }

    #[test]
    fn a_block_of_used_and_untouched_frames_is_taken_before_one_of_untouched_frames_alone() {
        let (metas, mut buddy) = arena_of(2048);
        let mut used = vec![FrameId::ZERO; 600];
        assert_eq!(buddy.take_singles(&metas, &mut used), 600);
        buddy.give_singles(&metas, &mut used[511..]);
        assert_eq!(buddy.take(&metas, MAX_ORDER), Some(FrameId(512)));
        assert_eq!(buddy.take(&metas, MAX_ORDER), Some(FrameId(1024)));
        assert_eq!(metas[1024].kind(), Kind::Fresh);
    }

    #[test]
    fn frames_that_an_aligned_block_passes_over_come_after_used_ones_of_the_same_order() {
        let (metas, mut buddy) = arena_of(2048);
        let mut used = [FrameId::ZERO; 383];
        assert_eq!(buddy.take_singles(&metas, &mut used), 383);
        buddy.give_singles(&metas, &mut used[127..255]);
        assert_eq!(buddy.take(&metas, MAX_ORDER), Some(FrameId(512)));
        for first in [128, 384] {
            assert_eq!(buddy.take(&metas, 7), Some(FrameId(first)));
        }
    }

    #[test]
    fn untouched_memory_is_used_upwards_also_where_the_arena_ends_in_pieces() {
        let (metas, mut buddy) = arena();
        let mut taken = [FrameId::ZERO; 31];
        assert_eq!(buddy.take_singles(&metas, &mut taken), 31);
        assert_eq!(FRAMES.trailing_zeros(), 2, "a block of four ends the arena");
        assert_eq!(buddy.untouched.start, 32);
        for id in [32, 36, 40] {
            assert_eq!(buddy.take(&metas, 2), Some(FrameId(id)));
            assert_eq!(metas[id as usize].kind(), Kind::Fresh);
        }
    }
}

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/buddy_lists.rs"]
mod validate;
