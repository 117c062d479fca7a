//! Pages of files that code was fetched from. A store to such a page, through any space, advances
//! the generations of the spaces that watch the page.
//!
//! A thread that makes a page writable first calls [`WatchedPages::stored`], in the same section. A
//! call that writes to mapped pages of a file calls `stored` afterwards. See `space::code`.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex};

/// The watched pages of all files.
#[derive(Debug, Default)]
pub(crate) struct WatchedPages {
    /// The number of watched pages: most calls find 0 and need not lock the map.
    count: AtomicUsize,
    /// The generations to advance, keyed by file, page number and the address of the generation.
    pages: Mutex<BTreeMap<(usize, u64, usize), Arc<AtomicU64>>>,
}

impl WatchedPages {
    /// Makes stores to the page advance `generation` until [`WatchedPages::forget`]. A fault that
    /// does not see this watch has ended after a grace period. So the caller waits for one, and
    /// then revokes the page's writable translations.
    pub(crate) fn watch(&self, file: usize, page: u64, generation: &Arc<AtomicU64>) {
        let mut pages = self.pages.lock();
        let of = (file, page, Arc::as_ptr(generation).addr());
        pages.insert(of, generation.clone());
        self.count.store(pages.len(), Ordering::Release);
    }

    /// Undoes [`WatchedPages::watch`].
    pub(crate) fn forget(&self, file: usize, page: u64, generation: &Arc<AtomicU64>) {
        let mut pages = self.pages.lock();
        let of = (file, page, Arc::as_ptr(generation).addr());
        pages.remove(&of);
        self.count.store(pages.len(), Ordering::Release);
    }

    /// Advances the generations of the spaces that watch these pages. The pages have been written
    /// to, or become writable in the section in which this is called.
    #[inline]
    pub(crate) fn stored(&self, file: usize, pages: Range<u64>) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.count_stores(file, pages);
        }
    }

    #[cold]
    fn count_stores(&self, file: usize, pages_of: Range<u64>) {
        let pages = self.pages.lock();
        let stored = pages.range((file, pages_of.start, 0)..(file, pages_of.end, 0));
        for generation in stored.map(|(_, generation)| generation) {
            // Release: pairs with the Acquire loads of the generation in `space::code`. A thread
            // that sees the new generation also sees what a call wrote to the page before. No
            // Acquire: nothing depends on the number before.
            generation.fetch_add(1, Ordering::Release);
        }
    }
}
