//! The entries of one file: words in nodes of the arena, locked in place.
//!
//! ```text
//! index (cache::index), a word for each GiB ─> node of 512 ranges of 2 MiB ─> node of 512 pages
//! ```
//!
//! Nodes are charged to the file's group. The upper nodes stay until the file ends, so the word of
//! a range stays once it exists. A node of pages without entries is unlinked by a cut, or when the
//! whole range is wanted; it is freed after a grace period.

use std::mem::ManuallyDrop;
use std::ops::Range;

use super::entry::{Content, Entry, LARGE_PAGES, LARGE_SHIFT, Word};
use super::grab::{self, Held, RangeWords, Step, Wanted, WordAt, range_start};
use super::waits::Waits;
use crate::cache::index::{Index, Word as IndexWord};
use crate::cache::{SpareNodes, Wait};
use crate::group::{Group, LimitError};
use crate::reclaim::{AllocMode, Pool, Retired};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Backoff, Rank, order, raw};
use crate::units::FrameId;

/// The log2 of the number of ranges in an upper node.
const UPPER_SHIFT: u32 = 9;
const UPPER_RANGES: u64 = 1 << UPPER_SHIFT;

/// The most entries that are locked at the same time: as many as one range has.
const BATCH: usize = LARGE_PAGES as usize;

/// The entries of one file.
pub(super) struct Entries {
    pool: Arc<Pool>,
    /// The group to which the nodes are charged.
    group: Group,
    upper: Index,
    pub(super) waits: Waits,
    /// The number of nodes of pages.
    nodes: AtomicU64,
}

/// A locked entry, unlocked when dropped. If it is still empty then, it is removed.
pub(super) struct Locked<'e> {
    entries: &'e Entries,
    held: Held,
}

/// The words of one range, valid while the section is open.
struct Words<'p> {
    pool: &'p Pool,
    range: &'p raw::AtomicU64,
}

impl RangeWords for Words<'_> {
    type Word = raw::AtomicU64;

    fn range(&self) -> &raw::AtomicU64 {
        self.range
    }

    fn pages(&self, node: FrameId) -> &[raw::AtomicU64] {
        self.pool.frames.words(node)
    }
}

impl Entries {
    /// Returns the group to which the nodes are charged.
    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    pub(super) fn new(pool: &Arc<Pool>, group: &Group) -> Entries {
        Entries {
            pool: pool.clone(),
            group: group.clone(),
            upper: Index::default(),
            waits: Waits::default(),
            nodes: AtomicU64::new(0),
        }
    }

    /// Locks the entry at `page` that `wanted` describes. Sleeps if `wait` allows it; then the
    /// caller must have no section open, and no entry of a later page locked. Returns `None` if
    /// there is no such entry, or if the entry is locked and the caller may not wait. If the whole
    /// range is wanted, returns `None` also if the range has a node that could not be unlinked: one
    /// of its pages has an entry, or another thread has just linked the node. A node that is needed
    /// is taken from `spare`.
    ///
    /// # Errors
    /// There is no memory for a node.
    pub(super) fn find(
        &self,
        page: u64,
        wanted: Wanted,
        wait: Wait,
        spare: &mut SpareNodes<'_>,
    ) -> Result<Option<Locked<'_>>, LimitError> {
        let may_wait = wait == Wait::Yes;
        if may_wait {
            order::may_wait(Rank::Block);
        }
        if wanted == Wanted::Large {
            // If other threads link a node again, the caller uses single pages.
            self.prune(page..page + 1);
        }
        let mut backoff = Backoff::new();
        loop {
            match self.step(page, wanted, may_wait, spare.nodes()) {
                None if wanted == Wanted::Present => return Ok(None),
                None => self.add_upper(page, wait.alloc_mode())?,
                Some(Step::Held(held)) => return Ok(Some(self.adopt(held))),
                Some(Step::Wait(sleeper)) => drop(sleeper.sleep(None)),
                Some(Step::NeedNode) => spare.ensure(1, wait.alloc_mode())?,
                Some(Step::Refused) => return Ok(None),
                Some(Step::Again) => backoff.snooze(),
            }
        }
    }

    /// Locks entries of `pages`, in the order of their pages, keeps those that are `wanted` when
    /// they are locked, and passes these to `each`, at most [`BATCH`] at a time. `each` must unlock
    /// them by emptying the vector. Sleeps on a locked entry. Stops at the first error of `each`.
    pub(super) fn for_each_batch<'e, E>(
        &'e self,
        pages: Range<u64>,
        wanted: impl Fn(Entry) -> bool,
        mut each: impl FnMut(&mut Vec<Locked<'e>>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut at, mut batch) = (pages.start, Vec::new());
        while at < pages.end {
            let next = self.next(at, pages.end, |entry, locked| locked || wanted(entry));
            let page = next.map_or(pages.end, |(page, _)| page);
            let room = (BATCH - batch.len()) as u64;
            let run = page..pages.end.min(page + room);
            let is_wanted = |there: Option<Entry>| there.is_some_and(&wanted);
            at = self.lock_run(run, is_wanted, |locked| batch.push(locked));
            if at == page && page < pages.end {
                at = page + 1;
                // Locking an existing entry needs no node, and waits if the entry is locked.
                let none = &mut self.no_spares();
                if let Ok(Some(locked)) = self.find(page, Wanted::Present, Wait::Yes, none) {
                    at = locked.pages().end;
                    if wanted(locked.entry()) {
                        batch.push(locked);
                    }
                }
            }
            if batch.len() == BATCH || (at >= pages.end && !batch.is_empty()) {
                each(&mut batch)?;
            }
        }
        Ok(())
    }

    /// Locks entries of `pages` in one section, up to the end of the first page's range. Returns
    /// the first page if its range has no word yet, and otherwise the result of [`grab::run`].
    pub(super) fn lock_run<'e>(
        &'e self,
        pages: Range<u64>,
        wanted: impl Fn(Option<Entry>) -> bool,
        mut each: impl FnMut(Locked<'e>),
    ) -> u64 {
        let _section = self.pool.domain.reader();
        let Some(words) = self.words(pages.start) else {
            return pages.start;
        };
        let end = pages.end.min(range_start(pages.start) + LARGE_PAGES);
        grab::run(&words, &self.waits, pages.start..end, wanted, |held| {
            each(self.adopt(held));
        })
    }

    /// Takes one step ([`grab::step`]) in a section. Returns `None` if the page's range has no word
    /// yet.
    fn step(
        &self,
        page: u64,
        wanted: Wanted,
        may_wait: bool,
        spare: &mut Vec<FrameId>,
    ) -> Option<Step> {
        let before = spare.len();
        let _section = self.pool.domain.reader();
        let words = self.words(page)?;
        let step = grab::step(&words, &self.waits, page, wanted, may_wait, spare);
        if spare.len() < before {
            self.nodes.fetch_add(1, Ordering::Relaxed);
        }
        Some(step)
    }

    /// Returns the words of the page's range, if there are any yet. The caller is in a section.
    fn words(&self, page: u64) -> Option<Words<'_>> {
        let (pool, range) = (&self.pool, page >> LARGE_SHIFT);
        let upper = self.upper.load(&pool.frames, range >> UPPER_SHIFT);
        let IndexWord::Block(node) = upper else {
            return None;
        };
        let range = &pool.frames.words(node)[(range % UPPER_RANGES) as usize];
        Some(Words { pool, range })
    }

    /// Returns an empty supply of nodes.
    pub(super) fn no_spares(&self) -> SpareNodes<'_> {
        SpareNodes::new(&self.pool, self.group.id())
    }

    /// Creates the upper node that contains the word of the page's range, unless another thread has
    /// just done so.
    fn add_upper(&self, page: u64, mode: AllocMode) -> Result<(), LimitError> {
        let key = page >> LARGE_SHIFT >> UPPER_SHIFT;
        let (mut own, mut spares) = (self.no_spares(), self.no_spares());
        own.ensure(1, mode)?;
        let node = own.nodes()[0];
        loop {
            let mut writer = self.upper.write();
            let frames = &self.pool.frames;
            let inserted = writer.insert(frames, key, &[node], spares.nodes(), &mut Vec::new());
            drop(writer);
            if inserted.blocks > 0 {
                own.nodes().clear();
            }
            let Some(count) = inserted.need_nodes else {
                return Ok(());
            };
            spares.ensure(count, mode)?;
        }
    }

    /// Makes a guard of a locked entry.
    pub(super) fn adopt(&self, held: Held) -> Locked<'_> {
        Locked {
            entries: self,
            held,
        }
    }

    fn retire(&self, node: FrameId) {
        self.nodes.fetch_sub(1, Ordering::Relaxed);
        self.pool.retire(Retired::Put(node));
    }

    /// Unlocks an entry. Its word stays while it is locked, so the caller needs no section.
    fn release(&self, held: Held, unlocked: u64) {
        let word = match held.place {
            WordAt::Page(node) => {
                &self.pool.frames.words(node)[(held.first % LARGE_PAGES) as usize]
            }
            WordAt::Range => {
                let _section = self.pool.domain.reader();
                let words = self.words(held.first);
                words.expect("I7: the word of a locked entry").range
            }
        };
        held.release(&self.waits, word, unlocked);
    }

    /// Unlinks and retires the nodes of the ranges that overlap `pages` and have no entry any more.
    pub(super) fn prune(&self, pages: Range<u64>) {
        let mut at = range_start(pages.start);
        while at < pages.end {
            let section = self.pool.domain.reader();
            let unlinked = self.words(at).map(|words| grab::unlink(&words));
            at = match unlinked {
                Some(_) => at + LARGE_PAGES,
                None => self.next_range(at, pages.end),
            };
            drop(section);
            if let Some(node) = unlinked.flatten() {
                self.retire(node);
            }
        }
    }

    /// Returns the first page under the next upper node after that of `page`, or `end` if no such
    /// node comes before `end`. The caller is in a section.
    fn next_range(&self, page: u64, end: u64) -> u64 {
        let shift = LARGE_SHIFT + UPPER_SHIFT;
        let (key, last) = ((page >> shift) + 1, end.div_ceil(1 << shift));
        let next = self.upper.next_block(&self.pool.frames, key, last);
        next.map_or(end, |(key, _)| key << shift)
    }

    /// Returns the first page in `from..end` whose entry is `wanted` when it is read, and that
    /// entry. `wanted` is also told whether the entry is locked: the content of a locked entry may
    /// still change.
    pub(super) fn next(
        &self,
        from: u64,
        end: u64,
        wanted: impl Fn(Entry, bool) -> bool,
    ) -> Option<(u64, Entry)> {
        let wanted_at = |page, word: &raw::AtomicU64| match decode(word) {
            Word::Entry { entry, locked } if wanted(entry, locked) => Some((page, entry)),
            _ => None,
        };
        let mut at = from;
        while at < end {
            let _section = self.pool.domain.reader();
            let Some(Words { pool, range }) = self.words(at) else {
                at = self.next_range(at, end);
                continue;
            };
            let next = range_start(at) + LARGE_PAGES;
            let found = match decode(range) {
                Word::Node { frame, .. } => {
                    let words = pool.frames.words(frame);
                    let word = |page| &words[(page % LARGE_PAGES) as usize];
                    (at..end.min(next)).find_map(|page| wanted_at(page, word(page)))
                }
                _ => wanted_at(at, range),
            };
            if found.is_some() {
                return found;
            }
            at = next;
        }
        None
    }

    /// Returns the entry that covers a page, without locking it: it may change at any time.
    pub(super) fn peek(&self, page: u64) -> Option<Entry> {
        let there = self.next(page, page + 1, |_, _| true);
        there.map(|(_, entry)| entry)
    }

    /// Returns the number of nodes in use, each one page: those of pages, of ranges, and above.
    pub(super) fn node_count(&self) -> u64 {
        let upper = self.upper.counts();
        self.nodes.load(Ordering::Relaxed) + upper.blocks + upper.nodes
    }

    /// Frees all nodes. No other thread can reach the entries, and none is locked.
    pub(super) fn end(&self) {
        let mut key = 0;
        loop {
            let section = self.pool.domain.reader();
            let next = self.upper.next_block(&self.pool.frames, key, u64::MAX);
            drop(section);
            let Some((found, node)) = next else { break };
            for word in self.pool.frames.words(node) {
                if let Word::Node { frame, .. } = decode(word) {
                    self.retire(frame);
                }
            }
            let mut freed = Vec::new();
            let mut writer = self.upper.write();
            writer.remove(&self.pool.frames, found, node, None, &mut freed);
            drop(writer);
            freed.push(node);
            for node in freed {
                self.pool.retire(Retired::Put(node));
            }
            key = found + 1;
        }
    }
}

fn decode(word: &raw::AtomicU64) -> Word {
    Word::decode(word.load(raw::Ordering::SeqCst))
}

impl Locked<'_> {
    pub(super) fn entry(&self) -> Entry {
        self.held.entry
    }

    pub(super) fn content(&self) -> Content {
        self.held.entry.content()
    }

    /// Returns the first page that the entry covers.
    pub(super) fn first(&self) -> u64 {
        self.held.first
    }

    /// Returns the pages that the entry covers.
    pub(super) fn pages(&self) -> Range<u64> {
        self.held.pages()
    }

    /// Changes the entry; other threads see the change once the entry is unlocked.
    pub(super) fn set(&mut self, entry: Entry) {
        self.held.entry = entry;
    }

    /// Removes the entry, and unlocks its word.
    pub(super) fn remove(mut self) {
        self.set(Entry::new(self.entry().size(), Content::Empty));
    }

    /// Replaces a large hole by an empty node, which it takes from `spare`. No thread may have a
    /// translation of the hole any more.
    pub(super) fn split(self, spare: &mut SpareNodes<'_>) {
        let node = spare.nodes().pop().expect("ensured before");
        let entries = self.entries;
        entries.nodes.fetch_add(1, Ordering::Relaxed);
        entries.release(self.into_held(), Word::node(node));
    }

    /// Keeps the entry locked without a borrow; [`Entries::adopt`] makes it a guard again.
    pub(super) fn into_held(self) -> Held {
        ManuallyDrop::new(self).held
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let unlocked = match self.content() {
            Content::Empty => 0,
            _ => self.entry().word(),
        };
        self.entries.release(self.held, unlocked);
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Entries {
        /// Queues the caller for a page's locked entry, and returns the caller's place in the
        /// queue.
        pub(crate) fn queue_for(&self, page: u64) -> Arc<crate::frame::Sleeper> {
            match self.step(page, Wanted::Cover, true, &mut Vec::new()) {
                Some(Step::Wait(sleeper)) => sleeper,
                _ => panic!("the entry of page {page} is not locked"),
            }
        }

        /// Locks an entry for a caller that may wait.
        pub(crate) fn lock(
            &self,
            page: u64,
            wanted: Wanted,
        ) -> Result<Option<Locked<'_>>, LimitError> {
            self.find(page, wanted, Wait::Yes, &mut self.no_spares())
        }
    }

    impl Locked<'_> {
        /// Changes and unlocks the entry.
        pub(crate) fn replace(mut self, entry: Entry) {
            self.set(entry);
        }
    }
}
