//! Where blocks were last found: the number of a frame for a tag, without a walk through an index.
//!
//! Two tables for a whole memory. What they say are guesses that nobody keeps right: a frame's own
//! tag proves one ([`super::tag`]). A wrong one costs a look at the metadata of a frame, and the
//! walk; whoever has walked notes what was found.
//!
//! **Words**: one for a tag, named by its lower bits; tags that lie a power of two apart share one.
//! Of blocks that lie together no two share a word, if they are no more than the frames; of blocks
//! picked at random among many more, up to a third does.
//!
//! **Runs**: one for so many tags in a row ([`RUN`]). Blocks that were read one after the other lie
//! in frames one after the other, as a rule, and then one word says for all of them how far the
//! frame's number is from the tag's. That table is so small that it stays near to the processor
//! where the words do not: who copies pages from everywhere waits for memory between two copies for
//! each word that has to be fetched, a sixth of the time the copy takes. A run that was found wrong
//! is *mixed*, and those blocks are guessed by their words, until its first block is noted again.

use std::io;

use super::tag::Tag;
use super::zeroed_array::ZeroedArray;
use crate::sync::raw::{AtomicU32, Ordering};
use crate::units::FrameId;

/// Tags that a word of the second table stands for.
const RUN: u64 = 16;

/// Bytes of the tables for each frame, at the most: twice a word and its part of a run, for their
/// numbers are powers of two.
pub(crate) const LOOKASIDE_BYTES_PER_FRAME: u64 = 2 * size_of::<AtomicU32>() as u64 + 1;

/// Of a run of which nothing was noted: what a table begins with.
const UNKNOWN: u32 = 0;
/// Of a run whose blocks lie here and there.
const MIXED: u32 = 1;

/// See the module. Every word of the first table is the number of a frame of the arena.
#[derive(Debug)]
pub(super) struct Lookaside {
    words: ZeroedArray<AtomicU32>,
    /// Of a run how far its blocks' frames are from their tags, wrapping; or one of the two above.
    /// (Blocks that are as far as those say are guessed by their words.)
    runs: ZeroedArray<AtomicU32>,
    /// One less than the number of words, a power of two.
    mask: u64,
    run_mask: u64,
    frames: u32,
}

impl Lookaside {
    /// For an arena of `frames` frames, the zero frame included, which is what all words say at
    /// first: it has no tag.
    pub(super) fn new(frames: u32) -> io::Result<Lookaside> {
        let len = u64::from(frames.next_power_of_two());
        let runs = (len / RUN).max(1);
        Ok(Lookaside {
            words: ZeroedArray::new(len as usize)?,
            runs: ZeroedArray::new(runs as usize)?,
            mask: len - 1,
            run_mask: runs - 1,
            frames,
        })
    }

    /// Bytes.
    pub(super) fn size(&self) -> u64 {
        ((self.words.len() + self.runs.len()) * size_of::<AtomicU32>()) as u64
    }

    #[inline(always)]
    fn word(&self, tag: Tag) -> &AtomicU32 {
        // SAFETY: there is one more word than `mask` says.
        unsafe { self.words.get_unchecked((tag.0 & self.mask) as usize) }
    }

    #[inline(always)]
    fn run(&self, tag: Tag) -> &AtomicU32 {
        // SAFETY: there is one more word than `run_mask` says.
        unsafe {
            self.runs
                .get_unchecked(((tag.0 / RUN) & self.run_mask) as usize)
        }
    }

    /// A frame of the arena, maybe that of the block with this tag: what its word says.
    #[inline(always)]
    pub(super) fn guess(&self, tag: Tag) -> FrameId {
        // Relaxed: the frame's hold word and its tag say what is so.
        FrameId(self.word(tag).load(Ordering::Relaxed))
    }

    /// The same, by its run if there is one. Takes a few instructions more.
    #[inline(always)]
    pub(super) fn guess_in_run(&self, tag: Tag) -> FrameId {
        let run = self.run(tag).load(Ordering::Relaxed); // as above
        let frame = run.wrapping_add(tag.0 as u32);
        // The run of another file may lead out of the arena.
        match run > MIXED && frame < self.frames {
            true => FrameId(frame),
            false => self.guess(tag),
        }
    }

    /// The block with this tag was found in `frame`.
    #[inline]
    pub(super) fn note(&self, tag: Tag, frame: FrameId) {
        debug_assert!(frame.0 < self.frames, "{frame:?} is not in the arena");
        if frame.0 >= self.frames {
            return;
        }
        let far = frame.0.wrapping_sub(tag.0 as u32);
        let run = self.run(tag);
        let now = run.load(Ordering::Relaxed);
        if now == UNKNOWN || now == MIXED && tag.0.is_multiple_of(RUN) {
            run.store(far, Ordering::Relaxed);
        } else if now != far && now != MIXED {
            run.store(MIXED, Ordering::Relaxed);
        }
        let word = self.word(tag);
        if word.load(Ordering::Relaxed) != frame.0 {
            word.store(frame.0, Ordering::Relaxed);
        }
    }
}
