//! Where blocks were last found: the number of a frame for a tag, without a walk through an index.
//!
//! One table for a whole memory, in which a tag's word is named by its lower bits; tags that lie a power of two apart share one. What it
//! says is a guess that nobody keeps right: a frame's own tag proves it ([`super::tag`]). A wrong one costs a look at the metadata of a
//! frame, and the walk; whoever has walked notes what was found. Of blocks that lie together no two share a word, if they are no more than
//! the frames; of blocks picked at random among many more, up to a third does.

use std::io;

use super::tag::Tag;
use super::zeroed_array::ZeroedArray;
use crate::sync::raw::{AtomicU32, Ordering};
use crate::units::FrameId;

/// Bytes of the table for each frame, at the most.
pub(crate) const LOOKASIDE_BYTES_PER_FRAME: u64 = 2 * size_of::<AtomicU32>() as u64;

/// See the module. Every word is the number of a frame of the arena.
#[derive(Debug)]
pub(super) struct Lookaside {
    words: ZeroedArray<AtomicU32>,
    /// One less than their number, a power of two.
    mask: u64,
    frames: u32,
}

impl Lookaside {
    /// For an arena of `frames` frames, the zero frame included, which is what all words say at first: it has no tag.
    pub(super) fn new(frames: u32) -> io::Result<Lookaside> {
        let len = frames.next_power_of_two();
        Ok(Lookaside {
            words: ZeroedArray::new(len as usize)?,
            mask: u64::from(len) - 1,
            frames,
        })
    }

    /// Bytes.
    pub(super) fn size(&self) -> u64 {
        (self.words.len() * size_of::<AtomicU32>()) as u64
    }

    /// A frame of the arena, maybe that of the block with this tag.
    #[inline(always)]
    pub(super) fn guess(&self, tag: Tag) -> FrameId {
        // SAFETY: there is one more word than `mask` says.
        let word = unsafe { self.words.get_unchecked((tag.0 & self.mask) as usize) };
        // Relaxed: the frame's hold word and its tag say what is so.
        FrameId(word.load(Ordering::Relaxed))
    }

    /// The block with this tag was found in `frame`.
    #[inline]
    pub(super) fn note(&self, tag: Tag, frame: FrameId) {
        debug_assert!(frame.0 < self.frames, "{frame:?} is not in the arena");
        let word = &self.words[(tag.0 & self.mask) as usize];
        if frame.0 < self.frames && word.load(Ordering::Relaxed) != frame.0 {
            word.store(frame.0, Ordering::Relaxed);
        }
    }
}
