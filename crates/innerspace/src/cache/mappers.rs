//! Who maps a file: the upcall through which the cache takes translations away.

use std::ops::Range;

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Weak};

/// What a mapper has to take away from the pages of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Revoke {
    /// Every translation of the file's pages and of its holes; counts of mapped pages go down at once.
    All,
    /// The right to store.
    Write,
    /// The accessed state: the next access takes the slow path and sets it again.
    Age,
}

/// What a mapper found and took away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Revoked {
    /// Some translation had been used since it was last aged.
    pub(crate) accessed: bool,
    /// Translations changed.
    pub(crate) pages: u64,
}

/// A space that maps a file.
///
/// `revoke` changes page-table entries and nothing else. The caller holds the lock of the blocks (unless it only
/// ages them) and runs `Domain::synchronize` before it frees, cleans or reuses anything. The cache upgrades its weak
/// reference for the call, so dropping the last strong one must be harmless wherever the cache is called from.
pub(crate) trait Mappers: Send + Sync {
    /// Takes away what `how` says from the file's pages in `pages` (numbers of 4 KiB pages of the file).
    fn revoke(&self, pages: Range<u64>, how: Revoke) -> Revoked;
}

/// Names one registration in a [`MapperList`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MapperId(u64);

/// The mappers of one file. Its lock is inside the block lock and not held while a mapper is called.
#[derive(Debug, Default)]
pub(super) struct MapperList {
    /// Registrations, for the common case of none. SeqCst: see `FileCore::end_hole`.
    count: AtomicUsize,
    list: Mutex<Registrations>,
}

#[derive(Default)]
struct Registrations {
    next: u64,
    entries: Vec<(MapperId, Range<u64>, Weak<dyn Mappers>)>,
}

impl std::fmt::Debug for Registrations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.entries.iter().map(|(id, pages, _)| (id, pages)))
            .finish()
    }
}

impl MapperList {
    /// Adds a mapper of some pages.
    pub(super) fn add(&self, pages: Range<u64>, mapper: Weak<dyn Mappers>) -> MapperId {
        let mut list = self.list.lock();
        let id = MapperId(list.next);
        list.next += 1;
        list.entries.push((id, pages, mapper));
        self.count.store(list.entries.len(), Ordering::SeqCst);
        id
    }

    /// Removes a mapper; it has no translation left.
    pub(super) fn remove(&self, id: MapperId) {
        let mut list = self.list.lock();
        list.entries.retain(|(other, _, _)| *other != id);
        self.count.store(list.entries.len(), Ordering::SeqCst);
    }

    /// Whether nobody maps the file.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Asks every mapper of these pages.
    pub(super) fn revoke(&self, pages: Range<u64>, how: Revoke) -> Revoked {
        if self.is_empty() {
            return Revoked::default();
        }
        let touched: Vec<Arc<dyn Mappers>> = {
            let list = self.list.lock();
            let overlap = |other: &Range<u64>| other.start < pages.end && pages.start < other.end;
            list.entries
                .iter()
                .filter(|(_, theirs, _)| overlap(theirs))
                .filter_map(|(_, _, mapper)| mapper.upgrade())
                .collect()
        };
        let mut total = Revoked::default();
        for mapper in touched {
            let found = mapper.revoke(pages.clone(), how);
            total.accessed |= found.accessed;
            total.pages += found.pages;
        }
        total
    }
}
