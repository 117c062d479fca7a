//! The arena: one mapping that holds the bytes of all frames, frame 0 (the zero frame) first.
//!
//! The host backs the mapping with memory as it is touched, with huge pages where possible. This
//! module only computes addresses. Other modules decide which thread may touch a frame's bytes.

use std::hint::cold_path;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use crate::sys::memory::{Mapping, Pages};
use crate::{FrameId, PAGE_SHIFT, PAGE_SIZE};

/// A frame, named by the offset of its first byte in the arena. This is the frame's number,
/// followed by twelve zero bits. Two instructions turn a word that holds an offset into the address
/// of the bytes, and two into that of the metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameOffset(u64);

impl FrameOffset {
    /// The mask of the bits below the frame's number in a word.
    pub(crate) const LOW_BITS: u64 = PAGE_SIZE as u64 - 1;

    /// Returns the offset of a frame.
    #[inline(always)]
    pub(crate) const fn of(id: FrameId) -> FrameOffset {
        FrameOffset((id.0 as u64) << PAGE_SHIFT)
    }

    /// Returns the frame whose number is in the upper bits of `word`. The lower bits are ignored.
    #[inline(always)]
    pub(crate) const fn in_word(word: u64) -> FrameOffset {
        FrameOffset(word & !FrameOffset::LOW_BITS)
    }

    /// Returns the frame's number.
    #[inline(always)]
    pub(crate) const fn id(self) -> FrameId {
        FrameId((self.0 >> PAGE_SHIFT) as u32)
    }

    /// Returns the offset in bytes.
    #[inline(always)]
    pub(crate) const fn bytes(self) -> u64 {
        self.0
    }
}

/// The bytes of the frames. The mapping is aligned to the largest block, so that a block of 2 MiB
/// can be a huge page of the host.
#[derive(Debug)]
pub(super) struct Arena {
    memory: Mapping,
    /// The number of frames and holes. It is as wide as the values that are compared with it, so
    /// that the comparison can take it as a memory operand.
    frames: u64,
}

impl Arena {
    /// Maps zeroed memory for `frames` frames, including the zero frame.
    ///
    /// In a child of fork(2) this memory and the metadata become zeros. Otherwise the child would
    /// be a second owner of every frame. With zeroed metadata every lookup in a child misses, and
    /// misses are refused there.
    pub(super) fn new(frames: u32) -> io::Result<Arena> {
        // Computed in 64 bits, so that the shift does not overflow where addresses are shorter.
        let len = usize::try_from(u64::from(frames) << PAGE_SHIFT)
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        let memory = Mapping::new(len)?;
        memory.advise_wipe_on_fork();
        Ok(Arena {
            memory,
            frames: frames.into(),
        })
    }

    /// Returns the number of frames and holes, including the zero frame.
    pub(super) fn frames(&self) -> u32 {
        self.frames as u32
    }

    /// Returns the address of a frame's first byte.
    ///
    /// # Panics
    /// If the frame is not in the arena.
    #[inline]
    pub(super) fn host(&self, id: FrameId) -> *mut u8 {
        if u64::from(id.0) >= self.frames {
            self.outside(id);
        }
        // SAFETY: the frame is inside the mapping.
        unsafe { self.memory.base().add(id.index() << PAGE_SHIFT) }
    }

    /// Returns the address at which the first byte of frame `id` would be. `id` need not be in the
    /// arena, so the address may only be used for hints, such as a prefetch.
    #[inline(always)]
    pub(super) fn hint(&self, id: FrameId) -> *const u8 {
        self.memory.base().wrapping_add(id.index() << PAGE_SHIFT)
    }

    /// Returns the address of a frame's first byte, or `None` if the frame is not in the arena.
    #[inline(always)]
    pub(super) fn start_of(&self, at: FrameOffset) -> Option<NonNull<u8>> {
        // The rotation moves the low bits to the top. If one of them is set, the result is larger
        // than any frame number.
        if at.0.rotate_right(PAGE_SHIFT) >= self.frames {
            cold_path();
            return None;
        }
        // SAFETY: the low bits are 0, and the frame is inside the mapping.
        Some(unsafe { self.memory.start().add(at.0 as usize) })
    }

    /// Returns the address of the first byte of a frame that is known to be in the arena.
    ///
    /// # Safety
    /// The frame is inside the arena.
    #[inline(always)]
    pub(super) unsafe fn start_unchecked(&self, id: FrameId) -> NonNull<u8> {
        // SAFETY: the caller promises that the frame is in the arena, so the address is inside the
        // mapping.
        unsafe { self.memory.start().add(id.index() << PAGE_SHIFT) }
    }

    fn bytes(frames: Range<u32>) -> Range<usize> {
        (frames.start as usize) << PAGE_SHIFT..(frames.end as usize) << PAGE_SHIFT
    }

    /// Gives the memory of some frames back to the host. No other thread may be using these frames.
    pub(super) fn discard(&self, frames: Range<u32>) {
        self.memory.discard(Arena::bytes(frames));
    }

    /// Advises the host whether to back some frames with small or huge pages. Returns whether the
    /// host took the advice, or ignores such advice anyway.
    pub(super) fn advise(&self, frames: Range<u32>, pages: Pages) -> bool {
        self.memory.advise_pages(Arena::bytes(frames), pages)
    }

    /// Panics because `id` is not a frame of this arena. The number is passed by value: with a
    /// reference every caller would have to keep it in memory.
    #[cold]
    #[inline(never)]
    pub(super) fn outside(&self, id: FrameId) -> ! {
        panic!("{id:?} is outside the arena of {} frames", self.frames);
    }

    /// Returns the frame that holds the byte at host address `address`.
    ///
    /// # Panics
    /// If the byte is not in the arena.
    #[inline]
    pub(super) fn frame_of(&self, address: usize) -> FrameId {
        let offset = address.wrapping_sub(self.memory.base() as usize);
        let id = offset / PAGE_SIZE;
        assert!(
            id < self.frames as usize,
            "{address:#x} is not in the arena"
        );
        FrameId(id as u32)
    }
}

#[cfg(all(test, target_os = "linux", not(any(portable, miri, shuttle))))]
mod for_tests {
    use super::*;

    impl Arena {
        /// Returns how many of these frames the host has memory for.
        pub(crate) fn resident(&self, frames: Range<u32>) -> usize {
            self.memory.resident_pages(Arena::bytes(frames))
        }
    }
}
