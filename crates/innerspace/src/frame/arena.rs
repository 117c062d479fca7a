//! The arena: one mapping that holds the bytes of all frames, frame 0 (the zero frame) first.
//!
//! The host backs it as it is touched, with huge pages where it can. It computes addresses; who may touch which frame's
//! bytes is decided elsewhere.

use std::io;
use std::ptr::NonNull;

use super::frames::{HugePages, Prefault};
use crate::sys::memory::Mapping;
use crate::{FrameId, PAGE_SHIFT, PAGE_SIZE};

/// The bytes of the frames. The mapping is aligned to the largest block, so that a block of 2 MiB can be one huge page of
/// the host.
#[derive(Debug)]
pub(super) struct Arena {
    memory: Mapping,
    frames: u32,
}

impl Arena {
    /// Maps zeroed memory for `frames` frames, the zero frame included. A child of fork(2) does not get it: it would be a
    /// second owner of everything.
    pub(super) fn new(frames: u32, huge: HugePages, prefault: Prefault) -> io::Result<Arena> {
        let memory = Mapping::new((frames as usize) << PAGE_SHIFT)?;
        memory.advise_dont_fork();
        if huge == HugePages::Advise {
            memory.advise_huge();
        }
        if prefault == Prefault::Now {
            memory.prefault(0..memory.len())?;
        }
        Ok(Arena { memory, frames })
    }

    /// The number of frames, the zero frame included.
    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    /// The address of a frame's first byte.
    #[inline]
    pub(super) fn host(&self, id: FrameId) -> *mut u8 {
        if id.0 >= self.frames {
            outside(id, self.frames);
        }
        // SAFETY: the frame is inside the mapping.
        unsafe { self.memory.base().add(id.index() << PAGE_SHIFT) }
    }

    /// Like [`Arena::host`], unchecked.
    ///
    /// # Safety
    /// The frame is inside the arena.
    #[inline(always)]
    pub(super) unsafe fn start_of(&self, id: FrameId) -> NonNull<u8> {
        debug_assert!(id.0 < self.frames);
        // SAFETY: the caller's promise.
        unsafe { self.memory.start().add(id.index() << PAGE_SHIFT) }
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

/// By value: a reference would have every caller keep the number in memory.
#[cold]
#[inline(never)]
fn outside(id: FrameId, frames: u32) -> ! {
    panic!("{id:?} is outside the arena of {frames} frames");
}
