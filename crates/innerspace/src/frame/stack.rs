//! The stack of free frames in a magazine.

use crate::FrameId;
use crate::sync::atomic::{AtomicU32, Ordering};

/// The maximum number of frames in a magazine.
pub(super) const CAPACITY: usize = if cfg!(loom) { 2 } else { 128 };

/// A stack of free frames. The fields are atomic only so that other threads can read the length.
/// Only one thread at a time changes the stack, and it sees all earlier changes (see `magazine`).
#[derive(Debug)]
pub(super) struct Stack {
    len: AtomicU32,
    frames: [AtomicU32; CAPACITY],
}

impl Stack {
    pub(super) fn new() -> Stack {
        Stack {
            len: AtomicU32::new(0),
            frames: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    #[inline(always)]
    fn set_len(&self, len: usize) {
        self.len.store(len as u32, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> FrameId {
        FrameId(self.frames[at].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn set(&self, at: usize, id: FrameId) {
        self.frames[at].store(id.0, Ordering::Relaxed);
    }

    /// Puts a frame on top.
    ///
    /// # Panics
    /// If there are [`CAPACITY`] frames already.
    #[inline(always)]
    pub(super) fn push(&self, id: FrameId) {
        let len = self.len();
        self.set(len, id);
        self.set_len(len + 1);
    }

    /// Removes the frame on top, and returns it.
    #[inline(always)]
    pub(super) fn pop(&self) -> Option<FrameId> {
        let len = self.len().checked_sub(1)?;
        self.set_len(len);
        Some(self.get(len))
    }

    /// Returns the frame on top.
    #[inline(always)]
    pub(super) fn top(&self) -> Option<FrameId> {
        let len = self.len().checked_sub(1)?;
        Some(self.get(len))
    }

    /// Removes up to `count` frames from the bottom, the coldest ones, and passes each of them to
    /// `each`.
    pub(super) fn take_coldest(&self, count: usize, mut each: impl FnMut(FrameId)) {
        let len = self.len();
        let count = count.min(len);
        (0..count).for_each(|at| each(self.get(at)));
        (count..len).for_each(|at| self.set(at - count, self.get(at)));
        self.set_len(len - count);
    }
}
