//! Locking an entry in place, one step at a time, for words in any kind of memory.
//!
//! A range of 2 MiB has one word. If its pages have words of their own, the range's word leads to
//! the node with these words. The effect of a step:
//!
//! | range's word | one page, to read | one page, to change | all of it |
//! |---|---|---|---|
//! | absent | a node is linked, then as below | the same | locked, empty and large |
//! | large entry, locked | waits, by the range's first page | the same | the same |
//! | large hole | locked as it is | locked, to be replaced by a node | locked |
//! | large block | locked as it is | the same | the same |
//! | node | the page's word: locked, or waited for | the same | the node goes, or a conflict |
//!
//! It is a conflict if any of the node's 512 words is in use.
//!
//! **A page's word against the whole range.** To lock a page, a thread locks the page's word first
//! and reads the range's word again afterwards: if that word does not lead to the node any more, or
//! is locked, the thread releases the page's word and begins anew. To lock the range, a thread
//! locks the range's word first and reads all pages' words afterwards. Both are sequentially
//! consistent, so one of the two sees the other.
//!
//! A step runs in a section and never sleeps. A node that was replaced is reused after a grace
//! period.

use std::ops::Range;

use super::entry::{Content, Entry, LARGE_SHIFT, LOCKED, SharedWord, Size, Word};
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
    /// The entry that covers the page.
    Cover,
    /// The entry that covers the page, to put a block there. A large hole has to be replaced by a
    /// node first.
    Change,
    /// The entry that covers the page, if there is one.
    Present,
    /// The whole range.
    Large,
}

/// What to do about a locked entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WhenLocked {
    /// Queue for it.
    Queue,
    /// Give up.
    Leave,
}

/// The word that is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WordAt {
    /// The range's own.
    Range,
    /// A page's word, in this node.
    Page(FrameId),
}

/// A locked entry. Only its holder may change the word.
#[derive(Debug)]
#[must_use = "the entry stays locked"]
pub(super) struct Held {
    pub(super) place: WordAt,
    /// The first page that the entry covers, which is the key of its waiters.
    pub(super) first: u64,
    /// The entry in the word while it is locked.
    pub(super) found: Entry,
    /// The entry for the word when it is unlocked.
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

    /// Unlocks the entry by storing `unlocked` in its `word`, and wakes the waiters.
    #[inline]
    pub(super) fn release(self, waits: &Waits, word: &impl SharedWord, unlocked: u64) {
        waits.release(word, self.first, self.found.locked(), unlocked);
    }
}

/// The result of a step.
pub(super) enum Step {
    Held(Held),
    /// A large hole is in the way of one page, and is locked.
    Downgrade(Held),
    /// The range is locked; its node is unlinked.
    HeldInPlaceOf(Held, FrameId),
    /// The entry is locked: the caller sleeps, and tries again.
    Wait(Arc<Sleeper>),
    /// The entry is locked, and the caller may not wait.
    Taken,
    /// A node is needed.
    NeedNode,
    /// A page of the range has an entry.
    Conflict,
    /// There is no entry.
    Absent,
    /// Another thread was faster, or is checking the range's pages.
    Again,
}

/// Returns the first page of a page's range.
pub(super) fn range_start(page: u64) -> u64 {
    page >> LARGE_SHIFT << LARGE_SHIFT
}

/// Takes one step towards locking the entry of `page`. If the step links a node, it takes the node
/// from `spare`.
pub(super) fn step(
    words: &impl RangeWords,
    waits: &Waits,
    page: u64,
    (wanted, when_locked): (Wanted, WhenLocked),
    spare: &mut Vec<FrameId>,
) -> Step {
    let range = words.range();
    let now = range.load();
    match Word::decode(now) {
        Word::Absent => match wanted {
            Wanted::Present => Step::Absent,
            Wanted::Large => {
                let entry = Entry::new(Size::Large, Content::Empty);
                take(range, 0, entry, WordAt::Range, range_start(page))
            }
            Wanted::Cover | Wanted::Change => {
                let Some(&node) = spare.last() else {
                    return Step::NeedNode;
                };
                if range.exchange(0, Word::node(node)).is_ok() {
                    spare.pop();
                }
                Step::Again
            }
        },
        Word::Entry {
            locked: true,
            entry: _,
        } => wait(waits, range, range_start(page), when_locked),
        Word::Entry {
            locked: false,
            entry,
        } => {
            let is_hole = matches!(entry.content(), Content::Zero | Content::Empty);
            let in_the_way = wanted == Wanted::Change && is_hole;
            if in_the_way && spare.is_empty() {
                return Step::NeedNode;
            }
            match take(range, now, entry, WordAt::Range, range_start(page)) {
                Step::Held(held) if in_the_way => Step::Downgrade(held),
                other => other,
            }
        }
        Word::Node { locked: true, .. } => Step::Again,
        Word::Node { frame, .. } if wanted == Wanted::Large => whole(words, now, frame, page),
        Word::Node { frame, .. } => {
            one_page(words, waits, now, (frame, page), (wanted, when_locked))
        }
    }
}

/// Locks a word that was just read and was unlocked: `now`.
fn take(word: &impl SharedWord, now: u64, entry: Entry, place: WordAt, first: u64) -> Step {
    match word.exchange(now, entry.locked()) {
        Ok(()) => Step::Held(Held::new(place, first, entry)),
        Err(_) => Step::Again,
    }
}

fn wait(waits: &Waits, word: &impl SharedWord, key: u64, when_locked: WhenLocked) -> Step {
    if when_locked == WhenLocked::Leave {
        return Step::Taken;
    }
    waits.enqueue(word, key).map_or(Step::Again, Step::Wait)
}

/// Locks a page's word, in the node to which the range's word `now` leads.
fn one_page(
    words: &impl RangeWords,
    waits: &Waits,
    now: u64,
    (node, page): (FrameId, u64),
    (wanted, when_locked): (Wanted, WhenLocked),
) -> Step {
    let pages = words.pages(node);
    let word = &pages[page as usize % pages.len()];
    let before = word.load();
    let entry = match Word::decode(before) {
        Word::Absent if wanted == Wanted::Present => return Step::Absent,
        Word::Absent => Entry::new(Size::Small, Content::Empty),
        Word::Entry { locked: true, .. } => return wait(waits, word, page, when_locked),
        Word::Entry { entry, .. } => entry,
        Word::Node { .. } => panic!("I1: a node in place of a page's entry"),
    };
    match take_page(words, waits, now, (node, page), word, before, entry) {
        Some(held) => Step::Held(held),
        None => Step::Again,
    }
}

/// Locks a page's word that was read, unlocked, as `before`. Returns `None` if another thread was
/// faster, or is locking the whole range.
fn take_page<W: RangeWords>(
    words: &W,
    waits: &Waits,
    now: u64,
    (node, page): (FrameId, u64),
    word: &W::Word,
    before: u64,
    entry: Entry,
) -> Option<Held> {
    let Step::Held(held) = take(word, before, entry, WordAt::Page(node), page) else {
        return None;
    };
    if words.range().load() == now {
        return Some(held);
    }
    // Another thread is locking the whole range, or has locked it.
    held.release(waits, word, before);
    None
}

/// Locks, in order, the entries of `pages`, all in one range, that are `wanted`, up to the first
/// that is locked. `wanted` is called with `None` for a page without an entry; if it agrees, an
/// empty entry is made. Returns the first page that was not looked at, which is the first of all if
/// the pages have no words of their own. Never waits.
pub(super) fn run(
    words: &impl RangeWords,
    waits: &Waits,
    pages: Range<u64>,
    wanted: impl Fn(Option<Entry>) -> bool,
    mut each: impl FnMut(Held),
) -> u64 {
    let now = words.range().load();
    let Some(frame) = unlocked_node(now) else {
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
        let Some(held) = take_page(words, waits, now, (frame, page), word, before, entry) else {
            return page;
        };
        each(held);
    }
    pages.end
}

/// Returns the node to which a range's word leads, unless the word is locked.
fn unlocked_node(word: u64) -> Option<FrameId> {
    match Word::decode(word) {
        Word::Node { frame, locked } if !locked => Some(frame),
        _ => None,
    }
}

/// Locks a whole range whose pages have words of their own, if all of those are absent.
fn whole(words: &impl RangeWords, now: u64, node: FrameId, page: u64) -> Step {
    let range = words.range();
    if range.exchange(now, now | LOCKED).is_err() {
        return Step::Again;
    }
    let pages = words.pages(node);
    if pages.iter().any(|word| word.load() != 0) {
        range.store(now);
        return Step::Conflict;
    }
    let entry = Entry::new(Size::Large, Content::Empty);
    range.store(entry.locked());
    let held = Held::new(WordAt::Range, range_start(page), entry);
    Step::HeldInPlaceOf(held, node)
}

/// Unlinks the node of a range if none of its pages has an entry.
pub(super) fn prune(words: &impl RangeWords) -> Option<FrameId> {
    let range = words.range();
    let now = range.load();
    let frame = unlocked_node(now)?;
    range.exchange(now, now | LOCKED).ok()?;
    let empty = words.pages(frame).iter().all(|word| word.load() == 0);
    range.store(if empty { 0 } else { now });
    empty.then_some(frame)
}
