//! Pages of files that code was fetched from. A store to such a page, through any space, advances
//! the generations of those that watch it.
//!
//! A thread that makes a page writable calls [`WatchedPages::stored`] first, in the section in
//! which it does so. A call of the file that writes to mapped pages does it afterwards. See
//! `space::code`.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Weak};

/// The watched pages of all files, by the file's key and the page's number.
#[derive(Debug, Default)]
pub(crate) struct WatchedPages {
    /// The number of pages: most calls find 0 and need not look closer.
    count: AtomicUsize,
    pages: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    /// The generations of each page, of several spaces. Spaces do not remove theirs when they end:
    /// the map is swept when it has doubled.
    pages: BTreeMap<(usize, u64), Vec<Weak<AtomicU64>>>,
    swept: usize,
}

/// Pages below which nothing is swept.
const FEW: usize = 64;

fn keep_live(generations: &mut Vec<Weak<AtomicU64>>) -> bool {
    generations.retain(|generation| generation.upgrade().is_some());
    !generations.is_empty()
}

impl WatchedPages {
    /// From now on, stores to the page advance `generation`. A store that was allowed before is
    /// over after a grace period.
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

    /// The pages have been written to, or are about to become writable in the section in which this
    /// is called.
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
                // Release: a thread that sees the new number sees that the page may have changed.
                generation.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}
