//! The tag of a frame: which block of which file it is, as one word, as the file's index says it.
//!
//! It lets a reader find a block without a walk through the index: by a guess
//! ([`super::lookaside`]) that the tag proves. Every change of an index keeps the tags in step with
//! it, under the index's mutex:
//!
//! - A block comes ([`fill`]): its slot is stored, then its tag.
//! - A block goes ([`empty`]): its tag is cleared, then its slot.
//! - A block moves to another frame ([`refill`]): the old frame's tag is cleared, then the slot is
//!   stored, then the new frame's tag.
//!
//! So a frame with a tag is what the index has there. A frame that is freed has none, and one that
//! is published gets none before it is in an index. A reader looks at the tag, takes a hold that
//! needs CACHED, and looks at the tag again (`Meta::try_hot_view_of`, `Meta::try_view_of`,
//! `Meta::try_get_of`). Why that proves the guess, and the orderings, are in
//! `docs/protocols/hold-word.md`.
//!
//! Files of larger blocks have no tags, nor do files that were ever longer than [`TAGGED_BYTES`],
//! or files beyond 2^23 owners at once.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{interleave, raw};
use crate::units::PAGE_SHIFT;

/// log2 of the number of blocks of a file that have tags, and of the start numbers.
const BLOCK_BITS: u32 = 39;
/// The bits of a tag below the file's number: the sum of both.
const NUMBER_SHIFT: u32 = BLOCK_BITS + 1;
/// The value for a file without tags. It is the sign bit, which no tag has.
const NOWHERE: u64 = 1 << 63;

/// The most bytes of a file whose blocks have tags: 2 PiB.
pub(crate) const TAGGED_BYTES: u64 = 1 << (BLOCK_BITS + PAGE_SHIFT);

/// A block of a file as one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(pub(super) u64);

impl Tag {
    /// The tag of a frame that is in no index, or in that of a file without tags.
    pub(crate) const NONE: Tag = Tag(0);

    /// Whether there may be a frame with this tag: false for a block of a file without tags.
    #[inline]
    pub(crate) fn is_somewhere(self) -> bool {
        self.0 & NOWHERE == 0
    }

    /// The tag as a number.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// The tags of one file's blocks.
#[derive(Debug)]
pub(crate) struct Tags {
    /// The tag of block 0: the file's number, and below it a number at which its blocks start, so
    /// that the blocks of several files do not share words of the lookaside table. NOWHERE for
    /// none.
    first: AtomicU64,
}

impl Tags {
    /// Tags of no block.
    pub(crate) fn none() -> Tags {
        Tags {
            first: AtomicU64::new(NOWHERE),
        }
    }

    /// The tags of the file with this number, which no other file has as long as there are frames
    /// with its tags, or threads that look for them.
    pub(crate) fn of_file(number: u32) -> Tags {
        let number = u64::from(number);
        // Multiples of an odd number: for consecutive numbers they differ in the lower bits, which
        // name a word, and lie apart.
        let start = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1 << BLOCK_BITS) - 1);
        let has_tags = number != 0 && number < NOWHERE >> NUMBER_SHIFT;
        Tags {
            first: AtomicU64::new(match has_tags {
                true => number << NUMBER_SHIFT | start,
                false => NOWHERE,
            }),
        }
    }

    /// The tag by which `block` is looked up, which was inside the file when its size was read. No
    /// frame has it if the file has no tags.
    #[inline(always)]
    pub(crate) fn sought(&self, block: u64) -> Tag {
        // Relaxed: the size was read with Acquire, and `end` comes before a size for which there
        // are no tags. The sign of NOWHERE stays.
        Tag(self.first.load(Ordering::Relaxed).wrapping_add(block))
    }

    /// The tag for the frame that comes to `block`. The caller holds the index's mutex.
    #[inline]
    pub(crate) fn given(&self, block: u64) -> Tag {
        let first = self.first.load(Ordering::Relaxed);
        match first != NOWHERE && block < 1 << BLOCK_BITS {
            true => Tag(first + block),
            false => Tag::NONE,
        }
    }

    /// The file is about to be longer than [`TAGGED_BYTES`]. Frames keep the tags that they have,
    /// and nobody looks for them.
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

/// A block comes to a slot in which there is none: `tag` sets its frame's tag.
#[inline(always)]
pub(crate) fn fill(slot: &impl Slot, word: u64, tag: impl Fn()) {
    // Release: pairs with the acquire loads of readers; the frame was published before.
    slot.store(word, Ordering::Release);
    tag();
}

/// A block goes from a slot: `untag` clears its frame's tag. Returns the word that was there.
#[inline(always)]
pub(crate) fn empty(slot: &impl Slot, word: u64, untag: impl Fn()) -> u64 {
    untag();
    interleave();
    slot.swap(word, Ordering::AcqRel)
}

/// A block moves to another frame: `untag` clears the tag of the old one, and `tag` sets that of
/// the new one. As [`empty`].
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
    /// The caller has none: the frame is another block, or cannot be held.
    Refused,
}
