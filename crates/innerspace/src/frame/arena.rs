//! The arena: one mapping that holds the bytes of all frames, frame 0 (the zero frame) first.

use std::alloc::Layout;
use std::ptr::NonNull;

use crate::{FrameId, PAGE_SHIFT, PAGE_SIZE};

/// Alignment of the arena: that of the largest block, so that a block of 2 MiB can be one huge page of the host.
const ALIGN: usize = 2 << 20;

/// The bytes of the frames.
#[derive(Debug)]
pub(super) struct Arena {
    base: NonNull<u8>,
    layout: Layout,
    frames: u32,
}

// SAFETY: the pointer is the arena's own memory; who may touch which frame's bytes is decided by `Frames`' callers.
unsafe impl Send for Arena {}
// SAFETY: as above; `Arena` itself only computes addresses.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps zeroed memory for `frames` frames, the zero frame included; `None` when there is none to be had.
    pub(super) fn new(frames: u32) -> Option<Arena> {
        let layout = Layout::from_size_align((frames as usize) << PAGE_SHIFT, ALIGN).ok()?;
        // SAFETY: the layout's size is not zero, there is a zero frame at least.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(Arena {
            base,
            layout,
            frames,
        })
    }

    /// The number of frames, the zero frame included.
    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    /// The address of a frame's first byte.
    #[inline]
    pub(super) fn host(&self, id: FrameId) -> *mut u8 {
        assert!(
            id.0 < self.frames,
            "{id:?} is outside the arena of {} frames",
            self.frames
        );
        // SAFETY: the frame is inside the mapping.
        unsafe { self.base.as_ptr().add(id.index() << PAGE_SHIFT) }
    }

    /// The frame that holds the byte at host address `address`.
    #[inline]
    pub(super) fn frame_of(&self, address: usize) -> FrameId {
        let offset = address.wrapping_sub(self.base.as_ptr() as usize);
        let id = offset / PAGE_SIZE;
        assert!(
            id < self.frames as usize,
            "{address:#x} is not in the arena"
        );
        FrameId(id as u32)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}
