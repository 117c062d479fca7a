//! Pages from which code was fetched, with generations by which a translator of code can tell that
//! its translation is stale.
//!
//! A page is *watched* from the first [`Accessor::watch_code`](crate::Accessor::watch_code) on. A
//! fault that makes a watched page writable first increments the page's generation, in its section.
//! `watch_code` closes the gate on the page, makes the page read-only, waits for a grace period,
//! reads the generation, and opens the gate.
//!
//! A page of a file may be mapped elsewhere too: at other addresses, in forks, in other spaces.
//! Stores through those mappings count as well. The pool keeps the generation of such a page under
//! the file and the page's number in it (`reclaim::watched`), and a fault that makes the page
//! writable anywhere increments the generation, in its section. No gate keeps these faults out. So
//! the watcher first registers the page with the pool; reads the generation; waits for a grace
//! period; takes write validity away in every space (`Revoke::Write`); and waits for a second grace
//! period. A call that writes to a page of a file increments the generation afterwards, in its own
//! section. `docs/protocols/watched-pages.md` shows that no store is missed.
//!
//! A structural change also increments the generations, before it changes any words. Its writer
//! lock keeps watchers out from then until the change is over. A file that takes a page away
//! increments the generation after it has changed the page's word, with the page's block locked.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::group::{Group, HeapBytes, LimitError, MayReclaim};
use crate::reclaim::WatchedPages;
use crate::space::core::address::page_start;
use crate::space::vma::set::VmaSet;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};

/// The watched pages of a space.
#[derive(Debug, Default)]
pub(crate) struct Code {
    /// The number of watched pages: if it is 0, the pages need not be searched.
    watched: AtomicUsize,
    /// The pages by their addresses.
    pages: Mutex<BTreeMap<u64, Watched>>,
}

/// A watched page.
#[derive(Debug)]
struct Watched {
    generation: Arc<AtomicU64>,
    /// For a page of a file, the key of the file and the page's number in it, under which the pool
    /// has the generation too.
    of_file: Option<(usize, u64)>,
    _heap: HeapBytes,
}

/// The heap bytes that a watched page takes: its generation, and its places in the maps of the
/// space and of the pool, in whose nodes about 6 of 11 places are in use. A page of no file is not
/// in the pool.
const WATCHED_BYTES: usize = (size_of::<u64>() + size_of::<Watched>() + 32) * 11 / 6 + 24;

/// The state of a page from which code was fetched; see
/// [`Accessor::watch_code`](crate::Accessor::watch_code).
#[derive(Clone, Debug)]
pub struct CodePage {
    generation: Arc<AtomicU64>,
    seen: u64,
}

impl CodePage {
    /// Returns whether the page is unchanged since it was watched: nothing was stored to it, and
    /// its mapping was not changed. Costs one load.
    ///
    /// [`Accessor::watch_code`](crate::Accessor::watch_code) says which stores count. The answer
    /// may be false although nothing was stored, for example if a store began at the same time, or
    /// if pages of the file were taken away. Once false, the answer stays false.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.generation.load(Ordering::Acquire) == self.seen
    }

    /// Returns the generation of the page when it was watched. A run of stores increases the
    /// generation by one or more.
    pub fn generation(&self) -> u64 {
        self.seen
    }
}

impl Code {
    /// Notes that the page at `at` is about to become writable, or to be restored; see
    /// `SpaceInner::written`.
    #[inline(always)]
    pub(crate) fn written(&self, at: u64) {
        if self.is_watching() {
            self.changed(&(page_start(at)..page_start(at) + 1));
        }
    }

    /// Returns whether any page is watched.
    pub(crate) fn is_watching(&self) -> bool {
        self.watched.load(Ordering::Acquire) != 0
    }

    pub(crate) fn page(generation: Arc<AtomicU64>, seen: u64) -> CodePage {
        CodePage { generation, seen }
    }

    /// Notes that the watched pages that begin in the range have changed, or are about to change.
    pub(crate) fn changed(&self, range: &Range<u64>) {
        if self.is_watching() {
            self.count(range, |_| true);
        }
    }

    /// Notes that watched pages of files in the range were left out of a copied leaf: from now on,
    /// no mapper reports a change of them.
    pub(crate) fn left_out(&self, vmas: &VmaSet, range: &Range<u64>) {
        self.count(range, |page| {
            let mapped = vmas.find_containing(page);
            mapped.is_some_and(|vma| vma.file().is_some())
        });
    }

    fn count(&self, range: &Range<u64>, is_changed: impl Fn(u64) -> bool) {
        let pages = self.pages.lock();
        let pages = pages.range(range.clone());
        for (_, watched) in pages.filter(|(page, _)| is_changed(**page)) {
            // Release: pairs with the Acquire of `is_current` and `watch_code`. A thread that sees
            // the new generation also sees what preceded the increment. No Acquire: nothing here
            // depends on the number that was there, and a watcher is ordered against the stores
            // that follow by its grace period (`docs/protocols/watched-pages.md`).
            watched.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Watches the page at this address, charges `group` for that, and returns the page's
    /// generation. If the page is watched already, only returns its generation.
    ///
    /// # Errors
    /// The group has no room.
    pub(crate) fn watch(&self, group: &Group, at: u64) -> Result<Arc<AtomicU64>, LimitError> {
        let known = self
            .pages
            .lock()
            .get(&at)
            .map(|page| page.generation.clone());
        if let Some(generation) = known {
            return Ok(generation);
        }
        let _heap = group.charge_heap(WATCHED_BYTES, MayReclaim::Yes)?;
        let mut pages = self.pages.lock();
        let page = pages.entry(at).or_insert_with(|| Watched {
            generation: Arc::default(),
            of_file: None,
            _heap,
        });
        let generation = page.generation.clone();
        self.watched.store(pages.len(), Ordering::Release);
        Ok(generation)
    }

    /// Registers a watched page with the pool, as the file page that `of_file` names. Removes the
    /// page's earlier registration, which is not needed: if the mapping has changed since, so has
    /// the generation. The caller holds the gate's writer lock.
    pub(crate) fn register(&self, pool: &WatchedPages, at: u64, of_file: (usize, u64)) {
        let mut pages = self.pages.lock();
        let Some(page) = pages.get_mut(&at) else {
            return;
        };
        if let Some((file, number)) = page.of_file.replace(of_file) {
            pool.forget(file, number, &page.generation);
        }
        pool.watch(of_file.0, of_file.1, &page.generation);
    }

    /// Forgets all watched pages, and removes those of files from the pool's map. Called when the
    /// space is dropped.
    pub(crate) fn end(&mut self, pool: &WatchedPages) {
        for page in std::mem::take(&mut *self.pages.lock()).into_values() {
            if let Some((file, number)) = page.of_file {
                pool.forget(file, number, &page.generation);
            }
        }
    }
}
