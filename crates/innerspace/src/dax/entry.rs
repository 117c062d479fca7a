//! The word of an entry: the content of a file at a page, or at 2 MiB.
//!
//! ```text
//!  63..12        9     8     7    6     5       4      3..0
//!  device page   DIRTY EMPTY ZERO LARGE WAITERS LOCKED tag
//! ```
//!
//! - *absent*, tag 0: nothing is known about the page, and nothing is mapped
//! - *entry*, tag 4: with `ZERO`, a hole, mapped as the zero frame; with `EMPTY`, nothing yet: the
//!   holder of the lock decides what it becomes; otherwise a block of the device
//! - *node*, tag 5, only for a range of 2 MiB: the range's pages have words of their own, in the
//!   node's frame. LOCKED: a thread is checking whether all of them are absent
//!
//! The tags of the page cache's index (`cache::index`) are never in the word of a direct-access
//! file: finding one there means that an invariant is broken.
//!
//! A locked word is changed only by the holder of its lock, except that a waiter sets WAITERS
//! (`waits`).

use crate::sync::raw::Ordering;
use crate::sync::{interleave, raw};
use crate::units::FrameId;

const TAG: u64 = 15;
const TAG_ENTRY: u64 = 4;
const TAG_NODE: u64 = 5;
pub(super) const LOCKED: u64 = 1 << 4;
pub(super) const WAITERS: u64 = 1 << 5;
const LARGE: u64 = 1 << 6;
const ZERO: u64 = 1 << 7;
const EMPTY: u64 = 1 << 8;
pub(super) const DIRTY: u64 = 1 << 9;
const VALUE: u32 = 12;

/// The log2 of the number of pages in a large entry.
pub(crate) const LARGE_SHIFT: u32 = 9;
/// The number of pages in a large entry.
pub(crate) const LARGE_PAGES: u64 = 1 << LARGE_SHIFT;

/// The number of pages that an entry covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    /// One page.
    Small,
    /// 512 pages. The number of the first is a multiple of 512.
    Large,
}

impl Size {
    /// Returns the number of pages.
    pub(crate) fn pages(self) -> u64 {
        match self {
            Size::Small => 1,
            Size::Large => LARGE_PAGES,
        }
    }
}

/// The content of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Nothing yet.
    Empty,
    /// A hole, read through the zero frame.
    Zero,
    /// A block, which begins at this page of the device.
    Block(u64),
}

/// An entry without the bits LOCKED and WAITERS.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(u64);

/// A decoded word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    Absent,
    Entry { entry: Entry, locked: bool },
    Node { frame: FrameId, locked: bool },
}

impl Entry {
    pub(crate) fn new(size: Size, content: Content) -> Entry {
        let large = match size {
            Size::Small => 0,
            Size::Large => LARGE,
        };
        let content = match content {
            Content::Empty => EMPTY,
            Content::Zero => ZERO,
            Content::Block(page) => page << VALUE,
        };
        Entry(TAG_ENTRY | large | content)
    }

    pub(crate) fn size(self) -> Size {
        match self.0 & LARGE {
            0 => Size::Small,
            _ => Size::Large,
        }
    }

    pub(crate) fn content(self) -> Content {
        match self.0 & (ZERO | EMPTY) {
            ZERO => Content::Zero,
            EMPTY => Content::Empty,
            _ => Content::Block(self.0 >> VALUE),
        }
    }

    /// Returns whether the entry's block has stores that no sync has covered.
    pub(crate) fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Returns the same entry, marked dirty: its block has stores to sync.
    ///
    /// # Panics
    /// Panics if the entry is not a block.
    pub(crate) fn dirty(self) -> Entry {
        assert!(
            matches!(self.content(), Content::Block(_)),
            "I4: {self:?} cannot be dirty"
        );
        Entry(self.0 | DIRTY)
    }

    /// Returns the same entry, marked clean: it has nothing to sync.
    pub(crate) fn clean(self) -> Entry {
        Entry(self.0 & !DIRTY)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    pub(super) fn locked(self) -> u64 {
        self.0 | LOCKED
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dirty = if self.is_dirty() { " dirty" } else { "" };
        write!(f, "{:?} {:?}{dirty}", self.size(), self.content())
    }
}

impl Word {
    /// Decodes a word.
    ///
    /// # Panics
    /// Panics if this is not the word of a direct-access file, but for example that of a block in
    /// the page cache: an invariant is broken.
    #[inline]
    pub(super) fn decode(word: u64) -> Word {
        let locked = word & LOCKED != 0;
        match word & TAG {
            0 if word == 0 => Word::Absent,
            TAG_ENTRY => Word::Entry {
                entry: Entry(word & !(LOCKED | WAITERS)),
                locked,
            },
            TAG_NODE => Word::Node {
                frame: FrameId((word >> VALUE) as u32),
                locked,
            },
            _ => panic!(
                "I1: the word {word:#x} of an ordinary page in the index of a direct access file"
            ),
        }
    }

    /// Returns the word that leads to a node.
    pub(super) fn node(frame: FrameId) -> u64 {
        u64::from(frame.0) << VALUE | TAG_NODE
    }
}

/// A word that threads share: in a frame, or in a model. All orders are SeqCst: a thread that locks
/// an entry reads the range's word and the file's length afterwards, and a thread that changes
/// those looks at the entries afterwards; one of the two has to see the other.
pub(super) trait SharedWord {
    fn load(&self) -> u64;
    /// Replaces `old` by `new`. Fails with the current word.
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64>;
    fn store(&self, new: u64);
}

impl SharedWord for raw::AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        interleave();
        raw::AtomicU64::load(self, Ordering::SeqCst)
    }

    #[inline]
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        interleave();
        self.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            .map(drop)
    }

    #[inline]
    fn store(&self, new: u64) {
        interleave();
        raw::AtomicU64::store(self, new, Ordering::SeqCst);
    }
}

/// Loom treats SeqCst accesses as AcqRel, but models SeqCst fences exactly. So each access has a
/// fence, which orders the accesses to these words as SeqCst does.
#[cfg(loom)]
impl SharedWord for crate::sync::atomic::AtomicU64 {
    fn load(&self) -> u64 {
        loom::sync::atomic::fence(Ordering::SeqCst);
        crate::sync::atomic::AtomicU64::load(self, Ordering::SeqCst)
    }

    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        let done = self.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
        loom::sync::atomic::fence(Ordering::SeqCst);
        done.map(drop)
    }

    fn store(&self, new: u64) {
        crate::sync::atomic::AtomicU64::store(self, new, Ordering::SeqCst);
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn words_come_apart_as_they_were_put_together() {
        for size in [Size::Small, Size::Large] {
            for content in [
                Content::Empty,
                Content::Zero,
                Content::Block(0),
                Content::Block((1 << 52) - 1),
            ] {
                let entry = Entry::new(size, content);
                assert_eq!((entry.size(), entry.content()), (size, content));
                assert!(!entry.is_dirty());
                let locked = true;
                let word = Word::decode(entry.locked() | WAITERS);
                assert_eq!(word, Word::Entry { entry, locked });
            }
        }
        let block = Entry::new(Size::Small, Content::Block(7));
        assert!(block.dirty().is_dirty() && block.dirty().clean() == block);
        let node = Word::decode(Word::node(FrameId(u32::MAX)));
        let (frame, locked) = (FrameId(u32::MAX), false);
        assert_eq!(node, Word::Node { frame, locked });
        assert_eq!(Word::decode(0), Word::Absent);
    }

    // spec: D21
    #[test]
    #[should_panic(expected = "an ordinary page in the index of a direct access file")]
    fn a_page_of_the_cache_is_no_entry() {
        // The page cache's word for a block in frame 5.
        Word::decode(5 << 12 | 1);
    }

    // spec: D14
    #[test]
    #[should_panic(expected = "I4")]
    fn a_hole_is_never_dirty() {
        let _ = Entry::new(Size::Small, Content::Zero).dirty();
    }
}
