//! A frame (or block of frames) that no other thread can see, with plain stores to its metadata and
//! bytes.

use std::ptr::NonNull;
use std::{fmt, mem};

use super::flags::FlagSet;
use super::frames::Frames;
use super::hold::HoldState;
use super::meta::{Kind, Meta};
use crate::sync::raw::AtomicU64;
use crate::sys::copy::{self, Quarter, Streaming};
use crate::{FrameId, PAGE_SIZE};

/// A block of `1 << order` frames that has one owner. Dropping it frees the block; publishing
/// consumes it.
///
/// Only this type has plain setters (I2). Unless the block is new, its bytes are those that its
/// last user left, so the owner clears or fills them.
#[must_use = "dropping an owned frame frees it"]
pub(crate) struct OwnedFrame<'f> {
    id: FrameId,
    order: u8,
    /// Whether the bytes are known to be the zeros that the host gave.
    clear: bool,
    /// The address of the first byte, and the metadata, which are looked up only once.
    start: NonNull<u8>,
    meta: &'f Meta,
    frames: &'f Frames,
}

// SAFETY: the pointer leads to bytes of the arena that belong only to this owner, whichever thread
// has it.
unsafe impl Send for OwnedFrame<'_> {}
// SAFETY: as above; through a shared reference the bytes are only read.
unsafe impl Sync for OwnedFrame<'_> {}

impl<'f> OwnedFrame<'f> {
    /// Makes the owner of a block whose metadata says `Kind::Owned` and which is not held.
    #[inline(always)]
    pub(super) fn new(frames: &'f Frames, id: FrameId, order: u8, clear: bool) -> OwnedFrame<'f> {
        let start = frames.start(id);
        OwnedFrame {
            id,
            order,
            clear,
            start,
            meta: frames.meta(id),
            frames,
        }
    }

    /// Returns the block's first frame.
    #[inline(always)]
    pub(crate) fn id(&self) -> FrameId {
        self.id
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        PAGE_SIZE << self.order
    }

    /// Returns the block's bytes for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.clear = false;
        // SAFETY: as in `bytes`, at the end of this file; `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }

    /// Returns whether the bytes are known to be clear.
    #[inline(always)]
    pub(crate) fn is_clear(&self) -> bool {
        self.clear
    }

    /// Clears the bytes, unless they are known to be clear.
    #[inline(always)]
    pub(crate) fn zero(&mut self) {
        if self.is_clear() {
            return;
        }
        if self.order == 0 {
            // SAFETY: the frame is 4096 bytes of page-aligned memory, exclusively borrowed.
            unsafe { copy::zero_page(self.start.as_ptr()) }
        } else {
            let bytes = self.bytes_mut();
            // SAFETY: the slice is borrowed exclusively.
            unsafe { copy::fill(bytes.as_mut_ptr(), 0, bytes.len()) }
        }
    }

    /// Fills this block with the bytes from frame `source` on. Other threads may write to the
    /// source meanwhile. Each aligned word of the copy is a value that the same word of the source
    /// had at some moment.
    ///
    /// # Panics
    /// If `source` is this block, or reaches beyond the arena.
    pub(crate) fn copy_from(&mut self, source: FrameId) {
        assert_ne!(source, self.id, "copy of a block to itself");
        let from = self.frames.block(source, self.order).cast_const();
        // SAFETY: the source is inside the arena and is not this block, which is exclusively
        // borrowed. Other threads write to the source only through atomics or `sys::copy`.
        unsafe { copy::copy_in(self.bytes_mut(), from) }
    }

    /// Fills this block with the bytes from frame `source` on. Assumes that the source does not
    /// change; the caller checks that afterwards.
    ///
    /// # Panics
    /// If `source` is this block, or reaches beyond the arena.
    pub(crate) fn copy_from_still(&mut self, source: FrameId) {
        assert_ne!(source, self.id, "copy of a block to itself");
        let from = self.frames.block(source, self.order).cast_const();
        // SAFETY: the source is inside the arena and is not this block, which is exclusively
        // borrowed. Other threads write to the source only through atomics or `sys::copy`.
        unsafe { copy::copy_still(self.bytes_mut(), from) }
    }

    /// Copies each page into a frame of its own, with stores that bypass the caches, until the
    /// pages or the frames run out. Returns false, and copies nothing, if bypassing the caches
    /// would not be faster.
    pub(crate) fn stream_in<'a>(
        frames: impl Iterator<Item = &'a mut OwnedFrame<'f>>,
        pages: &[[u8; PAGE_SIZE]],
    ) -> bool
    where
        'f: 'a,
    {
        let Some(streaming) = Streaming::begin() else {
            return false;
        };
        for (frame, page) in frames.zip(pages) {
            frame.clear = false;
            // SAFETY: a frame is 4096 bytes at least, page-aligned. It is exclusively borrowed
            // until `streaming` is dropped.
            unsafe { streaming.copy_page(frame.start.as_ptr(), page) };
        }
        true
    }

    /// Replaces each of the block's words by the result of `change`.
    #[inline]
    pub(crate) fn change_words(&mut self, mut change: impl FnMut(u64) -> u64) {
        let (words, rest) = self.bytes_mut().as_chunks_mut::<8>();
        debug_assert!(rest.is_empty());
        for word in words {
            *word = change(u64::from_ne_bytes(*word)).to_ne_bytes();
        }
    }

    /// Returns the frame's bytes as the 512 words of a table or index node, to be filled before the
    /// frame is published.
    pub(crate) fn words(&mut self) -> &[AtomicU64; 512] {
        self.clear = false;
        // SAFETY: the frame is 4096 bytes of initialised, page-aligned memory that only this owner
        // touches.
        unsafe { &*self.start.as_ptr().cast() }
    }

    /// Sets the flags with which the frame will be published. Replaces all flags that were set
    /// before.
    pub(crate) fn set_flags(&mut self, flags: FlagSet) {
        debug_assert!(
            !flags.contains(FlagSet::WAITERS),
            "nobody can wait for an owned frame"
        );
        self.meta().flags.store_owned(flags);
    }

    /// Sets the owner (file or space), as registered with `reclaim`.
    pub(crate) fn set_owner(&mut self, owner: u32) {
        self.meta().set_owner(owner);
    }

    /// Sets the block's position in its owner.
    pub(crate) fn set_index(&mut self, index: u64) {
        self.meta().set_index(index);
    }

    /// Sets the group to which the frame is charged.
    #[inline(always)]
    pub(crate) fn set_group(&mut self, group: u16) {
        self.meta().set_group(group);
    }

    /// Sets what the frame is used for.
    #[inline(always)]
    pub(crate) fn set_kind(&mut self, kind: Kind) {
        assert!(kind.is_live(), "an owned frame cannot become {kind:?}");
        self.meta().set_kind(kind);
    }

    /// Returns the address of the first byte.
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Prefetches a quarter of the frame for writing.
    #[inline(always)]
    pub(crate) fn prefetch(&self, quarter: Quarter) {
        quarter.prefetch_to_write(self.start.as_ptr());
    }

    /// Prefetches the whole frame for writing.
    pub(crate) fn prefetch_whole(&self) {
        copy::prefetch_to_write::<PAGE_SIZE>(self.start.as_ptr());
    }

    /// Returns the metadata, with its atomic setters.
    #[inline(always)]
    pub(crate) fn meta(&self) -> &'f Meta {
        self.meta
    }

    /// Makes the frame visible to threads that find its number, with the holds of `initial`. A
    /// thread that takes a hold sees everything that was set and written before the call.
    #[inline(always)]
    pub(crate) fn publish(self, initial: HoldState) -> FrameId {
        let meta = self.meta();
        debug_assert_ne!(
            meta.kind(),
            Kind::Owned,
            "a published frame has a use: set_kind first"
        );
        debug_assert_ne!(
            initial,
            HoldState::NONE,
            "a published frame is held by somebody"
        );
        meta.publish(initial);
        self.into_id()
    }

    /// Consumes the guard without freeing the frame. From then on the caller is responsible for the
    /// frame.
    #[inline(always)]
    pub(crate) fn into_id(self) -> FrameId {
        let id = self.id;
        mem::forget(self);
        id
    }
}

impl Drop for OwnedFrame<'_> {
    // Inlined: if the address of the owned frame were taken, its fields would be kept in memory,
    // and reloaded whenever it moves.
    #[inline(always)]
    fn drop(&mut self) {
        self.frames.free(self.id);
    }
}

impl fmt::Debug for OwnedFrame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedFrame({}: {:?})", self.id.0, self.meta())
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl OwnedFrame<'_> {
        /// Returns the base-2 logarithm of the number of frames.
        pub(crate) fn order(&self) -> u8 {
            self.order
        }

        /// Returns the block's bytes.
        pub(crate) fn bytes(&self) -> &[u8] {
            // SAFETY: the block is inside the arena, whose memory is initialised (zeroed when it
            // was mapped). No other thread reads or writes the block: the allocator gave it to this
            // owner only, and the thread that froze it, or dropped its last hold, had waited for
            // its readers before (I6).
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
        }
    }
}
