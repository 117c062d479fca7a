//! The frames of one arena: allocation, metadata, addresses, locks, and a check of all of these.

use std::ops::Range;
use std::ptr::NonNull;

use thiserror::Error;

use super::arena::{Arena, FrameOffset};
use super::buddy::MAX_ORDER;
use super::hold::HoldState;
use super::huge::HugeParts;
use super::lock::FrameLock;
use super::lookaside::Lookaside;
use super::magazine::{Allocator, Source};
use super::meta::{Kind, Meta};
use super::owned::OwnedFrame;
use super::tag::Tag;
use super::wait_table::{DEFAULT_PATIENCE, WaitTable};
use super::zeroed_array::ZeroedArray;
use crate::sync::raw::AtomicU64;
use crate::sys::copy::{self, Quarter};
use crate::sys::memory::Pages;
use crate::{FrameId, Grouped, PAGE_SIZE};

/// The number of holes (addresses for windows) for each usable frame. They cost nothing but
/// addresses, except under model checkers, which create metadata for every address.
const HOLES_PER_FRAME: u32 = if cfg!(any(shuttle, miri)) { 1 } else { 3 };

/// The number of frames whose metadata fits in one page.
const METAS_PER_PAGE: usize = PAGE_SIZE / size_of::<Meta>();

/// The default reserve, in frames. Small arenas have a smaller one.
pub(crate) const DEFAULT_RESERVE: u32 = 64;

/// Options for an arena.
#[derive(Clone, Debug)]
pub(crate) struct ArenaOptions {
    /// The number of usable frames, including the reserve but not the zero frame.
    pub(crate) frames: u32,
    /// The number of frames that `Source::Ordinary` leaves free; less than `frames`.
    pub(crate) reserve: u32,
    /// The number of times that a waiter may lose a frame's lock to a thread that came later.
    pub(crate) patience: u32,
    /// The number of holes, for windows: addresses besides those of the usable frames.
    pub(crate) holes: u32,
    /// The kind of host pages with which to back the frames: small or huge.
    pub(crate) pages: Pages,
}

impl ArenaOptions {
    /// Returns the usual options for `frames` usable frames. The reserve is 64 frames, or an eighth
    /// of a small arena.
    pub(crate) fn new(frames: u32) -> ArenaOptions {
        ArenaOptions {
            frames,
            reserve: DEFAULT_RESERVE.min(frames / 8),
            patience: DEFAULT_PATIENCE,
            holes: frames.saturating_mul(HOLES_PER_FRAME),
            pages: Pages::Huge,
        }
    }
}

/// Why an arena could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum ArenaError {
    /// The number of frames is 0, or above the maximum.
    #[error("an arena of {} frames cannot be made: it has 1 to {} frames", Grouped((*frames).into()), Grouped(MAX_FRAMES.into()))]
    Size {
        /// The number of frames asked for.
        frames: u32,
    },
    /// The reserve leaves no frame for ordinary use.
    #[error("a reserve of {} frames leaves nothing of {} frames", Grouped((*reserve).into()), Grouped((*frames).into()))]
    Reserve {
        /// The number of reserved frames asked for.
        reserve: u32,
        /// The number of frames asked for.
        frames: u32,
    },
    /// The host refused to map the arena, its metadata or its lookaside tables.
    #[error("the host refused to map {} bytes: {source}", Grouped(*bytes))]
    Map {
        /// The size of the usable frames and the zero frame, in bytes.
        bytes: u64,
        /// The host's error.
        r#source: std::io::Error,
    },
}

/// The maximum number of usable frames: 1 TiB.
const MAX_FRAMES: u32 = 1 << 28;

/// The frames of one arena.
#[derive(Debug)]
pub(crate) struct Frames {
    pub(super) arena: Arena,
    metas: ZeroedArray<Meta>,
    pub(crate) lookaside: Lookaside,
    /// The number of frames that may be in use, the zero frame included.
    usable: u32,
    pub(super) allocator: Allocator,
    pub(crate) waits: WaitTable,
}

impl Frames {
    /// Maps an arena in which all frames but the zero frame are free.
    pub(crate) fn new(options: &ArenaOptions) -> Result<Frames, ArenaError> {
        let &ArenaOptions {
            frames,
            reserve,
            patience,
            holes,
            pages,
        } = options;
        if frames == 0 || frames > MAX_FRAMES {
            return Err(ArenaError::Size { frames });
        }
        if reserve >= frames {
            return Err(ArenaError::Reserve { reserve, frames });
        }
        let usable = frames + 1;
        let bytes = u64::from(usable) * PAGE_SIZE as u64;
        let map = |source| ArenaError::Map { bytes, source };
        // If the host refuses to map that many addresses, the arena has no windows.
        let arena = match holes {
            0 => Arena::new(usable),
            _ => Arena::new(usable.next_multiple_of(1 << MAX_ORDER) + holes)
                .or_else(|_| Arena::new(usable)),
        };
        let arena = arena.map_err(map)?;
        let all = arena.frames();
        let metas = ZeroedArray::<Meta>::new(all as usize).map_err(map)?;
        metas.keep_small_from(usable as usize);
        metas[FrameId::ZERO.index()].set_kind(Kind::Zero);
        let allocator = Allocator::new(all, usable, reserve);
        allocator.with_lists(|buddy| buddy.huge = HugeParts::new(&arena, usable, pages));
        Ok(Frames {
            arena,
            metas,
            usable,
            allocator,
            lookaside: Lookaside::new(all, usable).map_err(map)?,
            waits: WaitTable::new(patience),
        })
    }

    /// Returns the number of usable frames, including the reserve but not the zero frame.
    pub(crate) fn total(&self) -> u32 {
        self.usable - 1
    }

    /// Returns the number of frames and holes, the zero frame included: one more than the largest
    /// frame number.
    pub(crate) fn arena_frames(&self) -> u32 {
        self.arena.frames()
    }

    /// Returns whether there are addresses for windows. A host that limits addresses (`ulimit -v`,
    /// or strict overcommit) may give none.
    pub(crate) fn has_windows(&self) -> bool {
        self.arena_frames() > self.usable
    }

    /// Returns the number of free frames, including the reserve. It is exact while no thread
    /// allocates or frees.
    pub(crate) fn free_frames(&self) -> u32 {
        self.allocator.free_frames()
    }

    /// Returns the number of frames that only [`Source::Reserve`] may take.
    pub(crate) fn reserve(&self) -> u32 {
        self.allocator.reserve()
    }

    /// Takes a block of `1 << order` frames (order 0 to 9), aligned to its size. Returns `None` if
    /// no such block is free, or if `source` must leave the free frames to the reserve. Never waits
    /// for memory.
    #[inline(always)]
    pub(crate) fn alloc(&self, order: u8, source: Source) -> Option<OwnedFrame<'_>> {
        assert!(order <= MAX_ORDER, "order {order} is above {MAX_ORDER}");
        let id = self.allocator.take(&self.metas, order, source)?;
        Some(self.begin(id, order))
    }

    /// Takes one frame from this thread's magazine, which is refilled if it is empty. Also returns,
    /// as a hint, the frame that the thread gets next, if that is known. Returns `None` if the
    /// thread has no magazine of its own, if magazines are being drained, or if the lists have no
    /// frame to spare.
    #[inline(always)]
    pub(crate) fn alloc_from_thread_cache(&self) -> Option<(OwnedFrame<'_>, Option<FrameId>)> {
        let (id, next) = self.allocator.take_from_thread_cache(&self.metas)?;
        Some((self.begin(id, 0), next))
    }

    /// Turns a block that was just taken from the allocator into an owned one.
    #[inline(always)]
    pub(super) fn begin(&self, id: FrameId, order: u8) -> OwnedFrame<'_> {
        let meta = self.meta(id);
        let clear = meta.is_fresh();
        meta.begin(order);
        OwnedFrame::new(self, id, order, clear)
    }

    /// Returns, as a hint, the frame that this thread gets next, if it is known.
    #[inline(always)]
    pub(crate) fn next_single(&self) -> Option<FrameId> {
        self.allocator.peek()
    }

    /// Prefetches a quarter of a free frame for writing, and with the first quarter the frame's
    /// metadata.
    #[inline(always)]
    pub(crate) fn prefetch_free(&self, id: FrameId, quarter: Quarter) {
        if quarter == Quarter::First {
            self.prefetch_meta(id);
        }
        quarter.prefetch_to_write(self.arena.hint(id));
    }

    /// Prefetches the metadata of a free frame.
    #[inline(always)]
    pub(super) fn prefetch_meta(&self, id: FrameId) {
        // A prefetch is allowed for every address.
        copy::prefetch_to_write::<1>(self.metas.as_ptr().wrapping_add(id.index()).cast());
    }

    /// Frees the block that starts at `id`, which must not be held.
    pub(crate) fn free(&self, id: FrameId) {
        let meta = self.meta(id);
        meta.end(id);
        self.allocator.give(&self.metas, id, meta.order());
    }

    /// Marks a frame as no longer allocated: the first half of freeing. The frame must be a block
    /// of order 0, and must not be held.
    #[inline(always)]
    pub(crate) fn end_single(&self, id: FrameId) {
        let meta = self.meta(id);
        meta.end(id);
        debug_assert_eq!(meta.order(), 0, "{id:?} is a block");
    }

    /// Makes frames free for allocation again: the second half of freeing, for many frames. May
    /// sort `ids`.
    pub(crate) fn give_ended(&self, ids: &mut [FrameId]) {
        self.allocator.give_singles(&self.metas, ids);
    }

    /// Makes frames free like `give_ended`, but bypasses the magazines, so that neighbouring frames
    /// are given out together again. Sorts `ids`.
    pub(crate) fn give_ended_to_lists(&self, ids: &mut [FrameId]) {
        self.allocator.give_to_lists(&self.metas, ids);
    }

    /// Returns a frame's metadata.
    #[inline]
    pub(crate) fn meta(&self, id: FrameId) -> &Meta {
        &self.metas[id.index()]
    }

    /// Returns the metadata, and the address of the first byte, of the frame that the lookaside
    /// table guesses for this tag. The frame may hold another block.
    #[inline(always)]
    pub(super) fn guess(&self, tag: Tag) -> (&Meta, NonNull<u8>) {
        let frame = self.lookaside.guess(tag);
        // SAFETY: every word of the table names a frame of the arena, and the metadata has one
        // element for each frame.
        unsafe {
            let meta = self.metas.get_unchecked(frame.index());
            (meta, self.arena.start_unchecked(frame))
        }
    }

    /// Returns the frame to which this metadata belongs.
    pub(crate) fn id_of(&self, meta: &Meta) -> FrameId {
        let at = self.metas.element_offset(meta);
        FrameId(at.expect("metadata of this arena") as u32)
    }

    /// Returns the metadata of all frames, for walking a [`FrameList`](super::list::FrameList).
    #[inline]
    pub(crate) fn metas(&self) -> &[Meta] {
        &self.metas
    }

    /// Returns the first frame of the allocated block that contains `id`. The caller holds the
    /// block.
    pub(crate) fn head_of(&self, id: FrameId) -> FrameId {
        (0..=MAX_ORDER)
            .map(|order| FrameId(id.0 & !((1 << order) - 1)))
            .find(|head| self.meta(*head).kind() != Kind::Part)
            .unwrap_or_else(|| panic!("{id:?} is in no block"))
    }

    /// Returns the address of a frame's first byte. The zero frame's bytes must not be written
    /// (I4).
    ///
    /// # Panics
    /// If the frame is not in the arena.
    #[inline]
    pub(crate) fn host(&self, id: FrameId) -> *mut u8 {
        self.arena.host(id)
    }

    /// Returns the address of a frame's first byte, for the frame's owner.
    ///
    /// # Panics
    /// If the frame is not in the arena.
    #[inline(always)]
    pub(super) fn start(&self, id: FrameId) -> NonNull<u8> {
        let start = self.arena.start_of(FrameOffset::of(id));
        start.unwrap_or_else(|| self.arena.outside(id))
    }

    /// Gives pages of metadata back to the host. `gone` are blocks that have become holes, in
    /// ascending order. A page with metadata of theirs is given back if the rest of it belongs to
    /// holes, or to frames that were never given out. The caller holds the buddy mutex.
    pub(super) fn discard_metas(&self, gone: &[Range<u32>]) {
        let pages = |block: &Range<u32>| {
            block.start as usize / METAS_PER_PAGE..(block.end as usize).div_ceil(METAS_PER_PAGE)
        };
        let mut pages: Vec<usize> = gone.iter().flat_map(pages).collect();
        pages.dedup();
        for page in pages {
            let start = page * METAS_PER_PAGE;
            let metas = start..(start + METAS_PER_PAGE).min(self.metas.len());
            // If every element of this page is `Part`, none of them is in a block that begins in
            // another page: such a block would fill this page, but one of the elements is that of a
            // hole. So all are elements of holes, or zeros of frames that were never given out.
            let is_part = |meta: &Meta| meta.kind() == Kind::Part;
            if self.metas[metas.clone()].iter().all(is_part) {
                self.metas.discard(metas);
            }
        }
    }

    /// Prefetches the first quarter of a frame that is to be copied soon. The processor's own
    /// prefetching then fetches the rest.
    #[inline]
    pub(crate) fn prefetch(&self, id: FrameId) {
        copy::prefetch::<{ PAGE_SIZE / 4 }>(self.host(id));
    }

    /// Returns the address of the first byte of the `1 << order` frames from `id` on. Panics unless
    /// all of them are in the arena.
    pub(super) fn block(&self, id: FrameId, order: u8) -> *mut u8 {
        let last = id.0.checked_add((1 << order) - 1);
        assert!(
            last.is_some_and(|last| last < self.arena_frames()),
            "{id:?} order {order}"
        );
        self.host(id)
    }

    /// Returns the frame that holds the byte at host address `address`, which must be in the arena.
    #[inline]
    pub(crate) fn frame_of(&self, address: usize) -> FrameId {
        self.arena.frame_of(address)
    }

    /// Returns the words of a table or index node.
    #[inline]
    pub(crate) fn words(&self, id: FrameId) -> &[AtomicU64; 512] {
        let Some(start) = self.arena.start_of(FrameOffset::of(id)) else {
            self.arena.outside(id)
        };
        debug_assert!(
            self.meta(id).kind().has_words() || self.is_wiped(),
            "{id:?} is {:?}",
            self.meta(id).kind()
        );
        // SAFETY: the frame is 4096 bytes of initialised, page-aligned memory of the arena, which
        // lives as long as `self`. Frames of these kinds are reached only through their words,
        // until their owner has waited for their readers and freed them (I6).
        unsafe { start.cast().as_ref() }
    }

    /// Returns whether this is a child of fork(2), in which the arena and the metadata are zeros.
    pub(super) fn is_wiped(&self) -> bool {
        self.meta(FrameId::ZERO).kind() != Kind::Zero
    }

    /// Returns the frame's lock. The caller holds the frame as long as it uses the lock.
    #[inline]
    pub(crate) fn lock_of(&self, id: FrameId) -> FrameLock<'_> {
        FrameLock {
            id,
            flags: &self.meta(id).flags,
            waits: &self.waits,
        }
    }

    /// Ends the writeback that `set_writeback` began, and wakes its waiters. The caller keeps its
    /// hold on the frame until this returns. Otherwise the wake-up could reach waiters of a frame
    /// that was freed and allocated again (L11).
    pub(crate) fn end_writeback(&self, id: FrameId) {
        self.lock_of(id).end_writeback();
        debug_assert_ne!(
            self.meta(id).hold.load(),
            HoldState::NONE,
            "{id:?} was freed while its writeback ended"
        );
    }
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl Frames {
        /// Returns the number of magazines that have frames.
        pub(crate) fn magazines_in_use(&self) -> usize {
            self.allocator.magazines_in_use()
        }

        /// Returns how many times magazines were emptied.
        pub(crate) fn magazine_drains(&self) -> u32 {
            self.allocator.drains()
        }

        /// Returns the number of free frames that are in no magazine.
        pub(crate) fn listed_frames(&self) -> u32 {
            self.allocator.listed_frames()
        }

        /// Makes a block owned again. The caller has frozen it, or dropped its last hold.
        pub(crate) fn own(&self, id: FrameId) -> OwnedFrame<'_> {
            let meta = self.meta(id);
            assert_eq!(meta.hold.load(), HoldState::NONE, "I1: {id:?} is held");
            assert!(meta.kind().is_live(), "I1: {id:?} is {:?}", meta.kind());
            meta.set_kind(Kind::Owned);
            OwnedFrame::new(self, id, meta.order(), false)
        }

        /// Moves the free frames of all magazines to the buddy lists. `alloc` does so before it
        /// gives up, if that may help.
        pub(crate) fn drain_magazines(&self) {
            drop(self.allocator.drain_magazines(&self.metas));
        }

        #[cfg(all(target_os = "linux", not(any(portable, miri))))]
        pub(in crate::frame) fn metas_array(&self) -> &ZeroedArray<Meta> {
            &self.metas
        }
    }
}

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/states.rs"]
mod validate;
