//! The lookaside tables: a guess at the frame of a tag, without a walk through an index.
//!
//! Two tables serve a whole memory. Their entries are guesses that are not kept up to date; the
//! frame's own tag proves a guess ([`super::tag`]). A wrong guess costs one look at a frame's
//! metadata before the walk, and the walk then notes the frame that it found.
//!
//! **Words**: each tag has one word, chosen by its lower bits. Tags that differ by a multiple of
//! the number of words share a word. Consecutive blocks of a file do not share words, as long as
//! there are no more of these blocks than frames. If the blocks are picked at random from many
//! more, up to a third of them share a word.
//!
//! **Runs**: [`RUN`] consecutive tags share one word of the second table. Blocks that were read one
//! after the other are usually in consecutive frames, and then one word has the distance from tag
//! to frame for all of them. This table fits into the processor's caches where the first one does
//! not. With the first table alone, a thread that copies pages from random places would wait for
//! each word to be fetched, which takes a sixth of the time of the copy.
//!
//! A run whose distance is found wrong becomes *mixed*. Its blocks are then guessed by their words,
//! until its first block is noted again.

use std::io;

use super::tag::Tag;
use super::zeroed_array::ZeroedArray;
use crate::sync::raw::{AtomicU32, Ordering};
use crate::units::FrameId;

/// The number of tags that share a word of the second table.
const RUN: u64 = 16;

/// The maximum number of bytes that the tables take for each frame, rounded up: a word and its
/// share of a run, twice, because table sizes are rounded up to powers of two.
pub(crate) const LOOKASIDE_BYTES_PER_FRAME: u64 = 2 * size_of::<AtomicU32>() as u64 + 1;

/// The initial value of a run: nothing is noted about it yet.
const UNKNOWN: u32 = 0;
/// The value of a run whose blocks are not in consecutive frames.
const MIXED: u32 = 1;

/// The two tables that this module describes. Every word of the first one is the number of a frame
/// of the arena.
#[derive(Debug)]
pub(crate) struct Lookaside {
    words: ZeroedArray<AtomicU32>,
    /// For each run, the wrapping distance from tags to frames, or [`UNKNOWN`] or [`MIXED`]. (If a
    /// distance equals one of these two, the run's blocks are guessed by their words.)
    runs: ZeroedArray<AtomicU32>,
    /// The number of words less one. The number of words is a power of two.
    mask: u64,
    run_mask: u64,
    frames: u32,
}

impl Lookaside {
    /// Makes the tables for an arena of `frames` frames, the zero frame included, of which at most
    /// `usable` are in use. All words name the zero frame at first, which has no tag.
    pub(super) fn new(frames: u32, usable: u32) -> io::Result<Lookaside> {
        let len = u64::from(usable.next_power_of_two());
        let runs = (len / RUN).max(1);
        Ok(Lookaside {
            words: ZeroedArray::new(len as usize)?,
            runs: ZeroedArray::new(runs as usize)?,
            mask: len - 1,
            run_mask: runs - 1,
            frames,
        })
    }

    /// Returns the size of the tables in bytes.
    pub(crate) fn size(&self) -> u64 {
        ((self.words.len() + self.runs.len()) * size_of::<AtomicU32>()) as u64
    }

    #[inline(always)]
    fn word(&self, tag: Tag) -> &AtomicU32 {
        // SAFETY: the number of words is one more than `mask`.
        unsafe { self.words.get_unchecked((tag.0 & self.mask) as usize) }
    }

    #[inline(always)]
    fn run(&self, tag: Tag) -> &AtomicU32 {
        // SAFETY: the number of runs is one more than `run_mask`.
        unsafe {
            self.runs
                .get_unchecked(((tag.0 / RUN) & self.run_mask) as usize)
        }
    }

    /// Returns the guess of the tag's word: a frame of the arena, which may hold the block.
    #[inline(always)]
    pub(crate) fn guess(&self, tag: Tag) -> FrameId {
        // Relaxed: only the frame's hold word and tag decide whether the guess is right.
        FrameId(self.word(tag).load(Ordering::Relaxed))
    }

    /// Returns the guess of the tag's run if the run has one in the arena, otherwise the guess of
    /// the tag's word. This takes a few more instructions than `guess`.
    #[inline(always)]
    pub(crate) fn guess_in_run(&self, tag: Tag) -> FrameId {
        let run = self.run(tag).load(Ordering::Relaxed); // relaxed, as in `guess`
        let frame = run.wrapping_add(tag.0 as u32);
        // The run may belong to another file and lead out of the arena.
        match run > MIXED && frame < self.frames {
            true => FrameId(frame),
            false => self.guess(tag),
        }
    }

    /// Notes that the block with this tag was found in `frame`.
    #[inline]
    pub(crate) fn note(&self, tag: Tag, frame: FrameId) {
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
