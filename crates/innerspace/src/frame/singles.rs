//! Single frames that were taken from a magazine together.

use super::frames::Frames;
use super::owned::OwnedFrame;
use crate::sys::copy::Streaming;
use crate::{FrameId, PAGE_SIZE};

/// The maximum number of frames of one turn at a magazine.
pub(crate) const MOST: usize = 16;

/// Frames that were taken out of a magazine. [`Singles::next`] makes them owned one by one.
/// Dropping this gives the rest back.
#[must_use = "the frames go back when this is dropped"]
#[derive(Debug)]
pub(crate) struct Singles<'f> {
    frames: &'f Frames,
    ids: [FrameId; MOST],
    /// The index of the next frame to be taken. The frames before it are owned.
    next: usize,
    len: usize,
    /// Whether the frames are filled, as far as there were pages for them.
    filled: bool,
}

impl<'f> Singles<'f> {
    /// Takes over the first `len` frames of `ids`, which the allocator has just given out.
    pub(super) fn new(frames: &'f Frames, ids: [FrameId; MOST], len: usize) -> Singles<'f> {
        Singles {
            frames,
            ids,
            next: 0,
            len,
            filled: false,
        }
    }

    /// Copies pages past the caches into the next frames, one each, until there are no more pages
    /// or frames. Returns `false`, and copies nothing, if that would gain nothing.
    pub(crate) fn stream_in(&mut self, pages: &[[u8; PAGE_SIZE]]) -> bool {
        let Some(streaming) = Streaming::begin() else {
            return false;
        };
        for (id, page) in self.ids[self.next..self.len].iter().zip(pages) {
            // The bytes are no longer the host's zeros. That also holds for frames that are given
            // back without having been owned.
            self.frames.meta(*id).take_fresh();
            let start = self.frames.start(*id);
            // SAFETY: a frame of the arena is 4096 bytes, page-aligned. Nothing else has this
            // frame, and `streaming` is dropped before the frame is owned, and so before it is
            // published.
            unsafe { streaming.copy_page(start.as_ptr(), page) };
        }
        self.filled = true;
        true
    }

    /// Returns the number of frames that are left.
    pub(crate) fn len(&self) -> usize {
        self.len - self.next
    }

    /// Takes one frame and makes it owned.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<OwnedFrame<'f>> {
        let id = *self.ids[..self.len].get(self.next)?;
        self.next += 1;
        if let [next, soon, ..] = self.ids[self.next..self.len]
            && !self.filled
        {
            // The caller fills this frame now, so there is time to fetch the next ones.
            self.frames.prefetch_meta(soon);
            self.frames.prefetch_to_write(next);
        }
        Some(self.frames.begin_single(id))
    }
}

impl Drop for Singles<'_> {
    fn drop(&mut self) {
        self.frames.give_back(&mut self.ids[self.next..self.len]);
    }
}
