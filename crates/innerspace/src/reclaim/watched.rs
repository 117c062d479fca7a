//! Pages of files that code was fetched from: whose generations a store to them counts up,
//! whichever space it comes through.
//!
//! Who makes a page writable calls [`WatchedPages::stored`] first, in the section in which it does;
//! who writes to mapped pages by a call of the file does so afterwards: see `space::code`.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Weak};

/// The watched pages of all files, by the file's key and the page's number.
#[derive(Debug, Default)]
pub(crate) struct WatchedPages {
    /// Their number, for those who need not look closer.
    count: AtomicUsize,
    pages: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    /// Of several spaces. They end without a word: the map is swept when it has doubled.
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
    /// Has stores to the page counted in `generation` from now on. A store that was let in before
    /// is over after a grace period.
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

    /// The pages are about to become writable somewhere, and this is the section in which they do;
    /// or they have been written to.
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
                // Release: whoever sees the new number sees that the page is no longer what it was.
                generation.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}
