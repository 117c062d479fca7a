//! Pages that code was fetched from: their generations, by which a translator can tell that what it made of them is stale.
//!
//! A page is *watched* from the first [`Accessor::watch_code`] on. A fault that makes a watched page writable counts one
//! generation first, in its section. To watch: read the generation; wait for a grace period; make the page read-only; do all that
//! again until the generation was the same twice and the page was not writable the second time. Whoever had counted before
//! the generation was first read has made the page writable by the end of the first grace period, so it is read-only
//! after that; whoever counts later changes the generation. The stores that needed no fault began before it was read-only, so
//! are over when the second grace period is. That one is needed whoever made the page read-only: writeback, aging and samples
//! do it, too, and a store may be under way by what the page was.
//!
//! Structural changes, and files that take pages away, count a generation once the page's word is changed.

use std::collections::BTreeMap;
use std::ops::Range;

use super::access::Single;
use super::accessor::Accessor;
use super::error::{AccessKind, Fault};
use super::pte::{self, VALID_W};
use super::table::{Nodes, slot_index};
use super::{SpaceInner, page_start};
use crate::VirtAddr;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};

/// Tries to find a page at rest.
const ROUNDS: u32 = 8;

/// The watched pages of a space.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// Their number, for those who need not look closer.
    watched: AtomicUsize,
    /// By the address of the page.
    pages: Mutex<BTreeMap<u64, Arc<AtomicU64>>>,
}

/// The state of a page that code was fetched from; see [`Accessor::watch_code`].
#[derive(Clone, Debug)]
pub struct CodePage {
    generation: Arc<AtomicU64>,
    seen: u64,
}

impl CodePage {
    /// Whether nothing was stored to the page, nor its mapping changed, since it was watched. Costs one load.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.generation.load(Ordering::Acquire) == self.seen
    }

    /// The generation that was seen. Counts up, by one or more, for a run of stores.
    pub fn generation(&self) -> u64 {
        self.seen
    }
}

impl Code {
    /// A fault is about to make the page at `at` writable. In its section.
    #[inline]
    fn written(&self, at: u64) {
        if self.watched.load(Ordering::Acquire) != 0 {
            self.changed(&(page_start(at)..page_start(at) + 1));
        }
    }

    /// Pages that begin in the range show something else now.
    pub(super) fn changed(&self, range: &Range<u64>) {
        if self.watched.load(Ordering::Acquire) == 0 {
            return;
        }
        for (_, generation) in self.pages.lock().range(range.clone()) {
            // Release: whoever sees the new number sees that the page is no longer what it was.
            generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn watch(&self, page: u64) -> Arc<AtomicU64> {
        let mut pages = self.pages.lock();
        let generation = pages.entry(page).or_default().clone();
        self.watched.store(pages.len(), Ordering::Release);
        generation
    }
}

impl SpaceInner {
    /// A fault is about to make the page at `at` writable: tells all who watch for stores. In its section, inside the gate.
    #[inline]
    pub(super) fn written(&self, at: u64) {
        self.code.written(at);
        self.dirty.stored(self, at);
        #[cfg(all(test, not(shuttle)))]
        super::midway::reached(super::midway::Point::Told);
    }

    /// Takes the write validity of the page away; whether it had any.
    fn end_writes(&self, page: u64) -> bool {
        let nodes = Nodes { pool: &self.pool };
        self.inside(|tables| {
            let leaf = nodes.find(tables.root, page);
            leaf.is_some_and(|leaf| {
                let word = &nodes.words(leaf.frame)[slot_index(page, 0)];
                pte::take_valid(word, VALID_W).has(VALID_W)
            })
        })
    }
}

impl Accessor {
    /// Watches the page of `at`, whose mapping has to allow execution, for changes: call it, then fetch and translate;
    /// what was made of the page is stale as soon as [`CodePage::is_current`] is false. Stores through spaces count, by
    /// any accessor of this space; what other spaces and writes to the file itself store to a shared file does not.
    ///
    /// Waits for grace periods: it costs a few microseconds. The space remembers each page it was called for, in some tens of bytes.
    ///
    /// # Errors
    /// The [`Fault`] of a fetch there.
    pub fn watch_code(&mut self, at: VirtAddr) -> Result<CodePage, Fault> {
        self.core.have_in::<Single>(at, AccessKind::Fetch)?;
        let space = self.core.space.clone();
        let page = page_start(at.0);
        let generation = space.code.watch(page);
        // The generation that was seen before the page was last made read-only.
        let mut before = None;
        for _ in 0..ROUNDS {
            let seen = generation.load(Ordering::Acquire);
            // mutant: V11 (test: a_page_is_not_watched_beside_a_store_that_has_counted_and_not_stored) no grace period
            if cfg!(not(mutant = "V11")) {
                space.pool.domain.synchronize();
            }
            #[cfg(all(test, not(shuttle)))]
            super::midway::reached(super::midway::Point::Waited);
            let _writer = space.gate.write();
            let was_writable = space.end_writes(page);
            // mutant: V11-taken (test: a_page_is_not_watched_beside_a_store_whose_page_was_aged) read-only is at rest
            let rests = before == Some(seen) || cfg!(mutant = "V11-taken");
            if rests && !was_writable {
                return Ok(CodePage { generation, seen });
            }
            if was_writable {
                space.changes.doubt();
            }
            before = Some(seen);
        }
        // It is being written all the time: stale as it is.
        let seen = generation.fetch_add(1, Ordering::AcqRel);
        Ok(CodePage { generation, seen })
    }
}
