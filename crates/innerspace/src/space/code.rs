//! Pages that code was fetched from, and their generations, by which a translator can tell that its
//! translation is stale.
//!
//! A page is *watched* from the first [`Accessor::watch_code`](crate::Accessor::watch_code) on. A
//! fault that makes a watched page writable counts one generation first, in its section. To watch:
//! close the gate on the page; make the page read-only; wait for a grace period; read the
//! generation; open the gate.
//!
//! A page of a file may be mapped elsewhere, too: at other addresses, in forks, in other spaces.
//! Stores there count as well. The pool knows its generation (`reclaim::watched`) by the file's
//! page, and a fault that makes such a page writable anywhere counts it, in its section. No gate
//! keeps these faults out, so the watcher makes itself known; reads the generation; waits for a
//! grace period; takes the right to store away in every space (`Revoke::Write`); and waits for
//! another. A call that writes to a page of a file counts afterwards, in a section of its own. Why
//! no store is missed is in `docs/protocols/watched-pages.md`.
//!
//! Structural changes count a generation first, too, and their writer keeps watchers out from
//! before the count until they are over. A file that takes pages away counts once the page's word
//! is changed, with its block locked.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::space::core::address::page_start;
use crate::space::vma::set::VmaSet;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};

/// The watched pages of a space.
#[derive(Debug, Default)]
pub(crate) struct Code {
    /// Their number: if it is 0, there is no need to look closer.
    watched: AtomicUsize,
    /// By the address of the page.
    pages: Mutex<BTreeMap<u64, Arc<AtomicU64>>>,
}

/// The state of a page that code was fetched from; see
/// [`Accessor::watch_code`](crate::Accessor::watch_code).
#[derive(Clone, Debug)]
pub struct CodePage {
    generation: Arc<AtomicU64>,
    seen: u64,
}

impl CodePage {
    /// Whether nothing was stored to the page, nor its mapping changed, since it was watched. Costs
    /// one load.
    ///
    /// [`Accessor::watch_code`](crate::Accessor::watch_code) says which stores count. It may also
    /// say false where nothing was stored: where a store began at the same time, or pages of the
    /// file were taken away. It never turns true again.
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
    #[inline(always)]
    pub(crate) fn written(&self, at: u64) {
        if self.is_watching() {
            self.changed(&(page_start(at)..page_start(at) + 1));
        }
    }

    /// Whether any page is watched.
    pub(crate) fn is_watching(&self) -> bool {
        self.watched.load(Ordering::Acquire) != 0
    }

    pub(crate) fn page(generation: Arc<AtomicU64>, seen: u64) -> CodePage {
        CodePage { generation, seen }
    }

    /// Pages that begin in the range show something else now.
    pub(crate) fn changed(&self, range: &Range<u64>) {
        if !self.is_watching() {
            return;
        }
        for (_, generation) in self.pages.lock().range(range.clone()) {
            // Release: a thread that sees the new number sees that the page has changed.
            generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Watched pages of the range that show a file may show something else now, and no mapper says
    /// so.
    pub(crate) fn left_out(&self, vmas: &VmaSet, range: &Range<u64>) {
        for (page, generation) in self.pages.lock().range(range.clone()) {
            let mapped = vmas.find_containing(*page);
            if mapped.is_some_and(|vma| vma.file().is_some()) {
                // Release: as in `changed`.
                generation.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    pub(crate) fn watch(&self, page: u64) -> Arc<AtomicU64> {
        let mut pages = self.pages.lock();
        let generation = pages.entry(page).or_default().clone();
        self.watched.store(pages.len(), Ordering::Release);
        generation
    }
}
