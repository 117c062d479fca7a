//! Locking an entry in place, one step at a time, for words in any kind of memory.
//!
//! A range of 2 MiB has one word. If its pages have words of their own, the range's word leads to
//! the node with these words. The effect of a step:
//!
//! | range's word | one page | all of it |
//! |---|---|---|
//! | absent | a node is linked, then as below | locked, empty and large |
//! | large entry, locked | waits; the key is the range's first page | the same |
//! | large entry | locked as it is | the same |
//! | node | the page's word: locked, or waited for | refused |
//!
//! Where only a present entry is wanted, a step at an absent word is refused. A step that would
//! have to wait is refused if the caller may not wait. A node whose 512 words are all absent is
//! unlinked before the whole range is locked. To put a block for one page into a large hole, the
//! caller locks the hole and replaces it by a node (`DaxCore::lock_for`).
//!
//! **A page's word against the whole range.** To lock a page, a thread locks the page's word first
//! and reads the range's word again afterwards: if that word does not lead to the node any more, or
//! is locked, the thread releases the page's word and begins anew. To unlink the node, a thread
//! locks the range's word first and reads all pages' words afterwards. All these accesses are
//! sequentially consistent, so one of the two threads sees the other.
//!
//! A step runs in a section and never sleeps. A node that was replaced is reused after a grace
//! period.

use std::ops::Range;

use super::entry::{Content, Entry, LARGE_SHIFT, LOCKED, SharedWord, Size, WAITERS, Word};
use super::waits::Waits;
use crate::frame::Sleeper;
use crate::sync::Arc;
use crate::units::FrameId;

/// The words of one range.
pub(super) trait RangeWords {
    type Word: SharedWord;
    /// Returns the range's own word.
    fn range(&self) -> &Self::Word;
    /// Returns the words of the range's pages, in this node.
    fn pages(&self, node: FrameId) -> &[Self::Word];
}

/// The entry to lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// The entry that covers the page. If there is none, an empty one is made.
    Cover,
    /// The entry that covers the page, if there is one.
    Present,
    /// The entry of the whole range. If the range has none and no node, an empty one is made.
    Large,
}

/// The word that is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WordAt {
    /// The range's own word.
    Range,
    /// A page's word, in this node.
    Page(FrameId),
}

/// A locked entry. Only its holder may change the word, except for WAITERS.
#[derive(Clone, Copy, Debug)]
#[must_use = "the entry stays locked"]
pub(super) struct Held {
    pub(super) place: WordAt,
    /// The first page that the entry covers, which is the key of its waiters.
    pub(super) first: u64,
    /// The entry that the word has while it is locked.
    pub(super) found: Entry,
    /// The entry that the word gets when it is unlocked.
    pub(super) entry: Entry,
}

impl Held {
    fn new(place: WordAt, first: u64, entry: Entry) -> Held {
        Held {
            place,
            first,
            found: entry,
            entry,
        }
    }

    /// Returns the pages that the entry covers.
    pub(super) fn pages(&self) -> Range<u64> {
        self.first..self.first + self.entry.size().pages()
    }

    /// Unlocks the entry by storing `unlocked` in its `word`, and wakes waiters.
    #[inline]
    pub(super) fn release(self, waits: &Waits, word: &impl SharedWord, unlocked: u64) {
        waits.release(word, self.first, self.found.locked(), unlocked);
    }
}

/// The result of a step.
pub(super) enum Step {
    Held(Held),
    /// The entry is locked: the caller sleeps, and tries again.
    Wait(Arc<Sleeper>),
    /// A node is needed.
    NeedNode,
    /// There is no entry where a present one is wanted; or the whole range is wanted and has a
    /// node; or the entry is locked and the caller may not wait.
    Refused,
    /// The caller tries again: a node was linked, another thread was faster, or another thread is
    /// checking the range's pages.
    Again,
}

/// Returns the first page of the range that contains `page`.
pub(super) fn range_start(page: u64) -> u64 {
    page >> LARGE_SHIFT << LARGE_SHIFT
}

/// Takes one step towards locking the entry of `page`. `may_wait` says whether the caller can sleep
/// until another thread unlocks it. If the step links a node, it takes the node from `spare`.
pub(super) fn step(
    words: &impl RangeWords,
    waits: &Waits,
    page: u64,
    wanted: Wanted,
    may_wait: bool,
    spare: &mut Vec<FrameId>,
) -> Step {
    let range = words.range();
    let now = range.load();
    let (word, before, place, first) = match Word::decode(now) {
        Word::Absent if wanted == Wanted::Cover => {
            let Some(&node) = spare.last() else {
                return Step::NeedNode;
            };
            if range.exchange(0, Word::node(node)).is_ok() {
                spare.pop();
            }
            return Step::Again;
        }
        Word::Absent | Word::Entry { .. } => (range, now, WordAt::Range, range_start(page)),
        Word::Node { locked: true, .. } => return Step::Again,
        Word::Node { .. } if wanted == Wanted::Large => return Step::Refused,
        Word::Node { frame, .. } => {
            let pages = words.pages(frame);
            let word = &pages[page as usize % pages.len()];
            (word, word.load(), WordAt::Page(frame), page)
        }
    };
    let entry = match (Word::decode(before), place) {
        (Word::Absent, _) if wanted == Wanted::Present => return Step::Refused,
        (Word::Absent, WordAt::Page(_)) => Entry::new(Size::Small, Content::Empty),
        (Word::Absent, WordAt::Range) => Entry::new(Size::Large, Content::Empty),
        (Word::Entry { locked: true, .. }, _) if !may_wait => return Step::Refused,
        (Word::Entry { locked: true, .. }, _) => {
            return waits.enqueue(word, first).map_or(Step::Again, Step::Wait);
        }
        (Word::Entry { entry, .. }, _) => entry,
        (Word::Node { .. }, _) => panic!("I1: a node in place of a page's entry"),
    };
    let held = Held::new(place, first, entry);
    take(words, waits, now, (word, before), held).map_or(Step::Again, Step::Held)
}

/// Locks `word`, which was unlocked when it was read as `before`. `now` is the value of the range's
/// word, which was read earlier. Returns `None` if another thread was faster, or is locking the
/// whole range.
fn take<W: RangeWords>(
    words: &W,
    waits: &Waits,
    now: u64,
    (word, before): (&W::Word, u64),
    held: Held,
) -> Option<Held> {
    // WAITERS stays set if it was set: when this holder unlocks, it wakes waiters that are left in
    // the queue.
    let locked = held.entry.locked() | before & WAITERS;
    word.exchange(before, locked).ok()?;
    if held.place == WordAt::Range || words.range().load() == now {
        return Some(held);
    }
    // Another thread is locking the whole range, or has locked it.
    held.release(waits, word, before & !WAITERS);
    None
}

/// Locks the `wanted` entries of `pages`, in order, and passes them to `each`. The pages are all in
/// one range. Stops at an entry that another thread has locked, or that it fails to lock. `wanted`
/// is called with `None` for a page without an entry; if it returns true, an empty entry is made.
/// Returns the page at which it stopped, or the end of `pages`. Stops at the first page if the
/// pages have no words of their own, or if another thread is checking these words. Never waits.
pub(super) fn run(
    words: &impl RangeWords,
    waits: &Waits,
    pages: Range<u64>,
    wanted: impl Fn(Option<Entry>) -> bool,
    mut each: impl FnMut(Held),
) -> u64 {
    let now = words.range().load();
    let Word::Node {
        frame,
        locked: false,
    } = Word::decode(now)
    else {
        return pages.start;
    };
    let all = words.pages(frame);
    for page in pages.clone() {
        let word = &all[page as usize % all.len()];
        let before = word.load();
        let there = match Word::decode(before) {
            Word::Absent => None,
            Word::Entry { locked: true, .. } => return page,
            Word::Entry { entry, .. } => Some(entry),
            Word::Node { .. } => panic!("I1: a node in place of a page's entry"),
        };
        if !wanted(there) {
            continue;
        }
        let entry = there.unwrap_or(Entry::new(Size::Small, Content::Empty));
        let held = Held::new(WordAt::Page(frame), page, entry);
        match take(words, waits, now, (word, before), held) {
            Some(held) => each(held),
            None => return page,
        }
    }
    pages.end
}

/// Unlinks the node of a range, if no page of the range has an entry, and returns it. Returns
/// `None` also if the range has no node, or if another thread has changed or locked its word.
pub(super) fn unlink(words: &impl RangeWords) -> Option<FrameId> {
    let range = words.range();
    let now = range.load();
    let Word::Node {
        frame,
        locked: false,
    } = Word::decode(now)
    else {
        return None;
    };
    range.exchange(now, now | LOCKED).ok()?;
    let in_use = words.pages(frame).iter().any(|word| word.load() != 0);
    range.store(if in_use { now } else { 0 });
    (!in_use).then_some(frame)
}
