//! The tag of a frame: one word that says which block of which file the frame is, according to the
//! file's index.
//!
//! The tag lets a reader find a block without a walk through the index: the reader guesses a frame
//! ([`super::lookaside`]), and the tag proves the guess. Every change of an index also changes the
//! tags, under the index's mutex:
//!
//! - A block is added ([`fill`]): its slot is stored, then its tag.
//! - A block is removed ([`empty`]): its tag is cleared, then its slot.
//! - A block moves to another frame ([`refill`]): the old frame's tag is cleared, then the slot is
//!   stored, then the new frame's tag.
//!
//! So if a frame has a tag, the index has the frame at that place. A frame that is freed has no
//! tag, and a published frame gets none before it is in an index. A reader checks the tag, takes a
//! hold that requires CACHED, and checks the tag again (`Meta::try_hold_of`).
//! `docs/protocols/hold-word.md` says why that proves the guess, and has the orderings.
//!
//! Three kinds of files have no tags: files whose blocks are larger than a page, files that were
//! ever longer than [`TAGGED_BYTES`], and files whose owner has a number of 2^23 or more.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{interleave, raw};
use crate::units::PAGE_SHIFT;

/// The width in bits of the block numbers that have tags, and of a file's start number.
const BLOCK_BITS: u32 = 39;
/// The number of bits of a tag below the file's number. They hold the sum of a start number and a
/// block number.
const NUMBER_SHIFT: u32 = BLOCK_BITS + 1;
/// The value for a file without tags. It is the sign bit, which is set in no tag.
const NOWHERE: u64 = 1 << 63;

/// The maximum length of a file whose blocks have tags: 2 PiB.
pub(crate) const TAGGED_BYTES: u64 = 1 << (BLOCK_BITS + PAGE_SHIFT);

/// A block of a file, as one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(pub(super) u64);

impl Tag {
    /// The tag of a frame that is in no index, or in the index of a file without tags.
    pub(crate) const NONE: Tag = Tag(0);

    /// Returns whether a frame may have this tag. `false` for a block of a file without tags.
    #[inline]
    pub(crate) fn is_somewhere(self) -> bool {
        self.0 & NOWHERE == 0
    }
}

/// The tags of one file's blocks.
#[derive(Debug)]
pub(crate) struct Tags {
    /// The tag of block 0: the file's number, and in the lower bits a start number from which its
    /// blocks are counted. The start number differs from file to file, so that blocks of several
    /// files do not share words of the lookaside table. NOWHERE if the file has no tags.
    first: AtomicU64,
}

impl Tags {
    /// Makes the tags of a file whose blocks have none.
    pub(crate) fn none() -> Tags {
        Tags {
            first: AtomicU64::new(NOWHERE),
        }
    }

    /// Makes the tags of the file with this number. No other file may get the number as long as
    /// frames have the file's tags, or threads look for them. If the number is 0, or 2^23 or more,
    /// the file has no tags.
    pub(crate) fn of_file(number: u32) -> Tags {
        let number = u64::from(number);
        // Start numbers are multiples of an odd number. Those of consecutive file numbers differ in
        // the lower bits, which select a word, and are far apart.
        let start = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1 << BLOCK_BITS) - 1);
        let has_tags = number != 0 && number < NOWHERE >> NUMBER_SHIFT;
        Tags {
            first: AtomicU64::new(match has_tags {
                true => number << NUMBER_SHIFT | start,
                false => NOWHERE,
            }),
        }
    }

    /// Returns the tag by which `block` is looked up. The block was inside the file when the file's
    /// size was read. If the file has no tags, the result is a value that no frame has.
    #[inline(always)]
    pub(crate) fn sought(&self, block: u64) -> Tag {
        // Relaxed: the size was read with Acquire, and `end` is called before the file gets a size
        // for which there are no tags. The sign bit of NOWHERE stays set in the sum.
        Tag(self.first.load(Ordering::Relaxed).wrapping_add(block))
    }

    /// Returns the tag for the frame that is about to hold `block`, or [`Tag::NONE`] if blocks of
    /// the file, or blocks this far into it, have no tags. The caller holds the index's mutex.
    #[inline]
    pub(crate) fn given(&self, block: u64) -> Tag {
        let first = self.first.load(Ordering::Relaxed);
        match first != NOWHERE && block < 1 << BLOCK_BITS {
            true => Tag(first + block),
            false => Tag::NONE,
        }
    }

    /// Stops using tags for a file that is about to become longer than [`TAGGED_BYTES`]. Frames
    /// keep the tags that they have, but no thread looks for these tags any more.
    #[cold]
    pub(crate) fn end(&self) {
        self.first.store(NOWHERE, Ordering::Relaxed);
    }
}

/// A word of an index.
pub(crate) trait Slot {
    fn store(&self, word: u64, order: Ordering);
    fn swap(&self, word: u64, order: Ordering) -> u64;
}

impl Slot for raw::AtomicU64 {
    #[inline(always)]
    fn store(&self, word: u64, order: Ordering) {
        self.store(word, order);
    }
    #[inline(always)]
    fn swap(&self, word: u64, order: Ordering) -> u64 {
        self.swap(word, order)
    }
}

/// Puts a block into a slot that had none. `tag` sets the tag of the block's frame.
#[inline(always)]
pub(crate) fn fill(slot: &impl Slot, word: u64, tag: impl Fn()) {
    // Release: pairs with the acquire loads of readers. The frame was published before.
    slot.store(word, Ordering::Release);
    tag();
}

/// Removes a block from a slot. `untag` clears the tag of the block's frame. Returns the slot's
/// previous word.
#[inline(always)]
pub(crate) fn empty(slot: &impl Slot, word: u64, untag: impl Fn()) -> u64 {
    untag();
    interleave();
    slot.swap(word, Ordering::AcqRel)
}

/// Moves a block to another frame. `untag` clears the tag of the old frame, and `tag` sets that of
/// the new one. Returns the slot's previous word, as [`empty`] does.
#[inline(always)]
pub(crate) fn refill(slot: &impl Slot, word: u64, untag: impl Fn(), tag: impl Fn()) -> u64 {
    untag();
    interleave();
    let before = slot.swap(word, Ordering::AcqRel);
    tag();
    before
}

/// The result of taking a hold on a frame because of its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a hold on another block has to be dropped"]
pub(crate) enum HeldOf {
    /// The caller has a hold on the block that was sought.
    Sought,
    /// The caller has a hold on another block, which the frame has just become.
    Other,
    /// The caller has no hold: the frame is another block, or cannot be held.
    Refused,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod for_tests {
    use super::*;

    impl Tag {
        /// Returns the tag as a number.
        pub(crate) fn number(self) -> u64 {
            self.0
        }
    }
}
