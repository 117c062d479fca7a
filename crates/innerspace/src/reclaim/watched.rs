//! Pages of files that code was fetched from. A store to such a page, through any space, advances
//! the generations of the spaces that watch the page.
//!
//! A thread that makes a page writable first calls [`WatchedPages::stored`], in the same section. A
//! call of the file that writes to mapped pages calls it afterwards. See `space::code`.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Weak};

/// The watched pages of all files, by the file's key and the page's number.
#[derive(Debug, Default)]
pub(crate) struct WatchedPages {
    /// The number of watched pages: most calls find 0 and need not lock the map.
    count: AtomicUsize,
    pages: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    /// The generations to advance for each page, one for each space that watches it. A space does
    /// not remove its generations when it ends: the map is swept when it has doubled.
    pages: BTreeMap<(usize, u64), Vec<Weak<AtomicU64>>>,
    swept: usize,
}

/// The number of pages below which nothing is swept.
const FEW: usize = 64;

fn keep_live(generations: &mut Vec<Weak<AtomicU64>>) -> bool {
    generations.retain(|generation| generation.upgrade().is_some());
    !generations.is_empty()
}

impl WatchedPages {
    /// Makes stores to the page advance `generation` from now on. Stores that were already allowed
    /// are over after a grace period.
    pub(crate) fn watch(&self, file: usize, page: u64, generation: &Arc<AtomicU64>) {
        let mut watched = self.pages.lock();
        let known = watched.pages.entry((file, page)).or_default();
        keep_live(known);
        let weak = Arc::downgrade(generation);
        if !known.iter().any(|known| known.ptr_eq(&weak)) {
            known.push(weak);
        }
        if watched.pages.len() >= FEW.max(2 * watched.swept) {
            watched
                .pages
                .retain(|_, generations| keep_live(generations));
            watched.swept = watched.pages.len();
        }
        self.count.store(watched.pages.len(), Ordering::Release);
    }

    /// Advances the generations of these pages. They have been written to, or become writable in
    /// the section in which this is called.
    #[inline]
    pub(crate) fn stored(&self, file: usize, pages: Range<u64>) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.count_stores(file, pages);
        }
    }

    #[cold]
    fn count_stores(&self, file: usize, pages: Range<u64>) {
        let watched = self.pages.lock();
        let stored = watched.pages.range((file, pages.start)..(file, pages.end));
        for generation in stored.flat_map(|(_, generations)| generations) {
            if let Some(generation) = generation.upgrade() {
                // Release: a thread that sees the new generation also sees that the page may have
                // changed.
                generation.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}
