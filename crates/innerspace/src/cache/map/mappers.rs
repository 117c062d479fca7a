//! The mappers of a file: the upcall by which the cache revokes translations.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Rank, Weak};

/// Which translations of a range of pages a mapper revokes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Revoke {
    /// Every translation of the file's pages and of its holes. The counts of mapped pages go down
    /// in the same call.
    All,
    /// As [`Revoke::All`], and also the tables that stand for holes of 2 MiB. The range consists of
    /// such holes, each aligned to its size.
    Tables,
    /// Translations of holes only. Revoking these needs no block's lock. A cached block may lose
    /// its count of mapped pages only under its lock, because eviction sees by the count whether a
    /// grace period is needed.
    Holes,
    /// Write access. Loads can continue.
    Write,
}

/// A space that maps a file.
///
/// `revoke` changes page-table entries and nothing else. The caller holds the locks of the blocks,
/// unless it only ages them, ends holes, or makes stores take the slow path again
/// (`restamp_mappings`). The caller runs `Domain::synchronize` before it frees, cleans or reuses
/// anything. The cache upgrades its weak reference for the call, so dropping the last strong
/// reference must be harmless wherever the cache is called from.
pub(crate) trait Mappers: Send + Sync {
    /// Returns the number of the space, whose sessions may hold translations of the file.
    fn owner(&self) -> u64;

    /// Revokes those translations of the file's pages in `pages` that `how` names. Pages of 4 KiB
    /// are counted from the beginning of the file.
    fn revoke(&self, pages: Range<u64>, how: Revoke);

    /// Clears the accessed state of these pages: the next access takes the slow path, which sets
    /// the state again. Calls `used` with each page that was used since it was last aged. May be
    /// called with nothing locked.
    fn age(&self, pages: Range<u64>, used: &mut dyn FnMut(u64));

    /// Whether any of these pages must stay in memory.
    fn has_locked(&self, _pages: Range<u64>) -> bool {
        false
    }
}

/// Identifies one registration in a [`MapperList`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct MapperId(u64);

/// The mappers of one file. The list's lock may be taken while a block is locked, and is not held
/// while a mapper is called.
#[derive(Debug)]
pub(crate) struct MapperList {
    /// The number of registrations, to skip the lock in the common case of none. SeqCst: see
    /// `FileCore::end_mapped_holes`.
    count: AtomicUsize,
    list: Mutex<Registrations>,
}

#[derive(Default, Debug)]
struct Registrations {
    next: u64,
    /// The mappers in order of registration.
    mappers: BTreeMap<MapperId, Weak<dyn Mappers>>,
}

impl Default for MapperList {
    fn default() -> MapperList {
        MapperList {
            count: AtomicUsize::new(0),
            list: Mutex::ranked(Rank::Mappings, Registrations::default()),
        }
    }
}

impl MapperList {
    /// The heap bytes of a registration, if a node of the tree has room for 11 and holds 6.
    pub(crate) const ENTRY_BYTES: usize =
        (11 * (size_of::<MapperId>() + size_of::<Weak<dyn Mappers>>()) + 16) / 6;

    pub(crate) fn add(&self, mapper: Weak<dyn Mappers>) -> MapperId {
        let mut list = self.list.lock();
        let id = MapperId(list.next);
        list.next += 1;
        list.mappers.insert(id, mapper);
        self.count.store(list.mappers.len(), Ordering::SeqCst);
        id
    }

    /// Removes a mapper. The mapper has no translation left.
    pub(crate) fn remove(&self, id: MapperId) {
        let mut list = self.list.lock();
        list.mappers.remove(&id);
        self.count.store(list.mappers.len(), Ordering::SeqCst);
    }

    /// Whether a mapper of this space is registered.
    pub(crate) fn has_owner(&self, space: u64) -> bool {
        let (mappers, _) = self.registered_since(MapperId(0));
        mappers.iter().any(|mapper| mapper.owner() == space)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Whether any mapper keeps one of these pages in memory.
    pub(crate) fn has_locked(&self, pages: Range<u64>) -> bool {
        if self.is_empty() {
            return false;
        }
        let (mappers, _) = self.registered_since(MapperId(0));
        mappers
            .iter()
            .any(|mapper| mapper.has_locked(pages.clone()))
    }

    /// Has every mapper revoke translations.
    pub(crate) fn revoke(&self, pages: Range<u64>, how: Revoke) {
        self.each(|mapper| mapper.revoke(pages.clone(), how));
    }

    /// Has every mapper clear the accessed state.
    pub(crate) fn age(&self, pages: Range<u64>, used: &mut dyn FnMut(u64)) {
        self.each(|mapper| mapper.age(pages.clone(), used));
    }

    fn each(&self, mut ask: impl FnMut(&dyn Mappers)) {
        if self.is_empty() {
            return;
        }
        let mut from = MapperId(0);
        // A fork registers the child before the child shares the parent's leaves. A page may then
        // move from the parent's leaves to the child's after the parent's mapper was called. So
        // mappers that were registered meanwhile are called too, until there are no more. Parents
        // come before their children in the list.
        loop {
            let (touched, next) = self.registered_since(from);
            touched.iter().for_each(|mapper| ask(&**mapper));
            if self.list.lock().next == next.0 {
                return;
            }
            from = next;
        }
    }

    /// Returns the mappers with the number `from` or a later one, and the number that the next
    /// registration will get.
    fn registered_since(&self, from: MapperId) -> (Vec<Arc<dyn Mappers>>, MapperId) {
        let list = self.list.lock();
        let mappers = list.mappers.range(from..);
        let mappers = mappers.filter_map(|(_, mapper)| mapper.upgrade());
        (mappers.collect(), MapperId(list.next))
    }
}
