//! Single frames that were taken from a magazine together.

use super::frames::Frames;
use super::owned::OwnedFrame;
use crate::sys::copy::Streaming;
use crate::{FrameId, PAGE_SIZE};

/// The most frames of one turn at a magazine.
pub(crate) const MOST: usize = 16;

/// Frames that are in no magazine any more, and that [`Singles::next`] makes owned one by one. The
/// rest goes back when this is dropped.
#[must_use = "the frames go back when this is dropped"]
#[derive(Debug)]
pub(crate) struct Singles<'f> {
    frames: &'f Frames,
    ids: [FrameId; MOST],
    /// The frames before this one are owned.
    next: usize,
    len: usize,
    /// Whether the frames are filled (as many of them as there were pages for).
    filled: bool,
}

impl<'f> Singles<'f> {
    /// Takes over the first `len` of `ids`, fresh from the allocator.
    pub(super) fn new(frames: &'f Frames, ids: [FrameId; MOST], len: usize) -> Singles<'f> {
        Singles {
            frames,
            ids,
            next: 0,
            len,
            filled: false,
        }
    }

    /// Copies pages into the next frames, one each, past the caches, as far as there are both.
    /// Returns false, with nothing copied, if that gains nothing.
    pub(crate) fn stream_in(&mut self, pages: &[[u8; PAGE_SIZE]]) -> bool {
        let Some(streaming) = Streaming::begin() else {
            return false;
        };
        for (id, page) in self.ids[self.next..self.len].iter().zip(pages) {
            // The bytes are no longer those that the host gave, also of frames that may go back
            // without having been owned.
            self.frames.meta(*id).take_fresh();
            let start = self.frames.start(*id);
            // SAFETY: a frame of the arena is 4096 bytes, page-aligned. Nobody else has this one,
            // and before it is owned, let alone published, `streaming` is dropped.
            unsafe { streaming.copy_page(start.as_ptr(), page) };
        }
        self.filled = true;
        true
    }

    /// Frames that are left.
    pub(crate) fn len(&self) -> usize {
        self.len - self.next
    }

    /// Takes one frame, owned from now on.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<OwnedFrame<'f>> {
        let id = *self.ids[..self.len].get(self.next)?;
        self.next += 1;
        if let [next, soon, ..] = self.ids[self.next..self.len]
            && !self.filled
        {
            // The caller fills this one now, so there is time to fetch the next.
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
