//! The arena: one mapping that holds the bytes of all frames, frame 0 (the zero frame) first.
//!
//! The host backs it as it is touched, with huge pages where it can. It only computes addresses;
//! other modules decide which thread may touch a frame's bytes.

use std::hint::cold_path;
use std::io;
use std::ptr::NonNull;

use crate::sys::memory::Mapping;
use crate::{FrameId, PAGE_SHIFT, PAGE_SIZE};

/// A frame by the offset of its first byte in the arena: its number with twelve zeros behind. Words
/// that name frames in this form lead to the bytes, and to the metadata, in two instructions each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FrameOffset(u64);

impl FrameOffset {
    /// The part of a word below a frame's number.
    pub(crate) const LOW_BITS: u64 = PAGE_SIZE as u64 - 1;

    /// The offset of a frame.
    #[inline(always)]
    pub(crate) const fn of(id: FrameId) -> FrameOffset {
        FrameOffset((id.0 as u64) << PAGE_SHIFT)
    }

    /// The frame whose number is in the upper bits of a word, whatever is in the others.
    #[inline(always)]
    pub(crate) const fn in_word(word: u64) -> FrameOffset {
        FrameOffset(word & !FrameOffset::LOW_BITS)
    }

    /// The frame whose number is in the upper bits of a word that has exactly `form` in the others.
    /// The offset of a word of another form is in no arena.
    #[inline(always)]
    pub(crate) const fn in_form(word: u64, form: u64) -> FrameOffset {
        FrameOffset(word ^ form)
    }

    /// The frame's number.
    #[inline(always)]
    pub(crate) const fn id(self) -> FrameId {
        FrameId((self.0 >> PAGE_SHIFT) as u32)
    }

    /// The offset in bytes.
    #[inline(always)]
    pub(crate) const fn bytes(self) -> u64 {
        self.0
    }
}

/// The bytes of the frames. The mapping is aligned to the largest block, so that a block of 2 MiB
/// can be one huge page of the host.
#[derive(Debug)]
pub(super) struct Arena {
    memory: Mapping,
    /// As wide as the values that it is compared with, so that a comparison can read it from
    /// memory.
    frames: u64,
}

impl Arena {
    /// Maps zeroed memory for `frames` frames, the zero frame included. A child of fork(2) has
    /// zeros there, as in the metadata: it would be a second owner of everything. Zeros lead to
    /// nothing, so each lookup misses, and misses are refused there.
    pub(super) fn new(frames: u32) -> io::Result<Arena> {
        // Wider than addresses: nothing may be cut off here, since frames are distinguished from
        // others by their number.
        let len = usize::try_from(u64::from(frames) << PAGE_SHIFT)
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        let memory = Mapping::new(len)?;
        memory.advise_wipe_on_fork();
        memory.advise_huge();
        Ok(Arena {
            memory,
            frames: frames.into(),
        })
    }

    /// The number of frames, the zero frame included.
    pub(super) fn frames(&self) -> u32 {
        self.frames as u32
    }

    /// The address of a frame's first byte.
    #[inline]
    pub(super) fn host(&self, id: FrameId) -> *mut u8 {
        if u64::from(id.0) >= self.frames {
            self.outside(id);
        }
        // SAFETY: the frame is inside the mapping.
        unsafe { self.memory.base().add(id.index() << PAGE_SHIFT) }
    }

    /// The address where the first byte of a frame with any number would be: for hints.
    #[inline(always)]
    pub(super) fn hint(&self, id: FrameId) -> *const u8 {
        self.memory.base().wrapping_add(id.index() << PAGE_SHIFT)
    }

    /// The address of the first byte of a frame, if it is inside the arena. Does not panic: a
    /// caller with a section open would have to be ready to leave it.
    #[inline(always)]
    pub(super) fn start_of(&self, at: FrameOffset) -> Option<NonNull<u8>> {
        // Low bits that are set make it a large number.
        if at.0.rotate_right(PAGE_SHIFT) >= self.frames {
            cold_path();
            return None;
        }
        // SAFETY: the low bits are 0, and the frame is inside the mapping.
        Some(unsafe { self.memory.start().add(at.0 as usize) })
    }

    /// The same of a frame that is known to be inside.
    ///
    /// # Safety
    /// The frame is inside the arena.
    #[inline(always)]
    pub(super) unsafe fn start_unchecked(&self, id: FrameId) -> NonNull<u8> {
        // SAFETY: the caller's promise: inside the mapping.
        unsafe { self.memory.start().add(id.index() << PAGE_SHIFT) }
    }

    /// Panics: `id` is no frame of this arena.
    #[cold]
    pub(super) fn outside(&self, id: FrameId) -> ! {
        outside(id, self.frames())
    }

    /// The frame that holds the byte at host address `address`.
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

/// Passed by value: with a reference every caller would have to keep the number in memory.
#[cold]
#[inline(never)]
fn outside(id: FrameId, frames: u32) -> ! {
    panic!("{id:?} is outside the arena of {frames} frames");
}
