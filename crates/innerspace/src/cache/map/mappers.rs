//! Who maps a file: the upcall through which the cache takes translations away.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::lookup::block::Locked;
use crate::frame::{FlagSet, Kind};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, Rank, Weak};
use crate::units::{FrameId, PAGE_SHIFT, PAGE_SIZE};

/// What a mapper has to take away from the pages of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Revoke {
    /// Every translation of the file's pages and of its holes; counts of mapped pages go down at
    /// once.
    All,
    /// The same, and the tables that stand for holes of 2 MiB: the range is such holes, aligned.
    Tables,
    /// What shows holes, and nothing else: that needs no block's lock. A block that is there may
    /// lose its count of mapped pages under its lock alone, for whoever evicts it sees by the count
    /// whether a grace period is needed.
    Holes,
    /// The right to store.
    Write,
}

/// A space that maps a file.
///
/// `revoke` changes page-table entries and nothing else. The caller holds the lock of the blocks
/// (unless it only ages them, ends holes, or has stores take the slow path again:
/// `FileCore::restamp_mappings`) and runs `Domain::synchronize` before it frees, cleans or reuses
/// anything. The cache upgrades its weak reference for the call, so dropping the last strong one
/// must be harmless wherever the cache is called from.
pub(crate) trait Mappers: Send + Sync {
    /// Takes away what `how` says from the file's pages in `pages` (numbers of 4 KiB pages of the
    /// file).
    fn revoke(&self, pages: Range<u64>, how: Revoke);

    /// Takes the accessed state of these pages away: the next access takes the slow path and sets
    /// it again. Calls `used` with each page that was used since it was last aged. May be called
    /// with nothing locked.
    fn age(&self, pages: Range<u64>, used: &mut dyn FnMut(u64));

    /// Whether any of these pages has to stay in memory.
    fn has_locked(&self, _pages: Range<u64>) -> bool {
        false
    }
}

/// Names one registration in a [`MapperList`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct MapperId(u64);

/// The mappers of one file. Its lock is inside the block lock and not held while a mapper is
/// called.
#[derive(Debug)]
pub(crate) struct MapperList {
    /// Registrations, for the common case of none. SeqCst: see `FileCore::end_hole`.
    count: AtomicUsize,
    list: Mutex<Registrations>,
}

#[derive(Default)]
struct Registrations {
    next: u64,
    /// In the order in which they came.
    mappers: BTreeMap<MapperId, Weak<dyn Mappers>>,
}

impl std::fmt::Debug for Registrations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.mappers.keys()).finish()
    }
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
    /// Adds a mapper.
    pub(crate) fn add(&self, mapper: Weak<dyn Mappers>) -> MapperId {
        let mut list = self.list.lock();
        let id = MapperId(list.next);
        list.next += 1;
        list.mappers.insert(id, mapper);
        self.count.store(list.mappers.len(), Ordering::SeqCst);
        id
    }

    /// Removes a mapper; it has no translation left.
    pub(crate) fn remove(&self, id: MapperId) {
        let mut list = self.list.lock();
        list.mappers.remove(&id);
        self.count.store(list.mappers.len(), Ordering::SeqCst);
    }

    /// Whether nobody maps the file.
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

    /// Has every mapper take translations away.
    pub(crate) fn revoke(&self, pages: Range<u64>, how: Revoke) {
        self.each(|mapper| mapper.revoke(pages.clone(), how));
    }

    /// Has every mapper take the accessed state away.
    pub(crate) fn age(&self, pages: Range<u64>, used: &mut dyn FnMut(u64)) {
        self.each(|mapper| mapper.age(pages.clone(), used));
    }

    /// Asks every mapper.
    fn each(&self, mut ask: impl FnMut(&dyn Mappers)) {
        if self.is_empty() {
            return;
        }
        let mut from = MapperId(0);
        // A fork registers the child while it shares the parent's leaves; a page may leave the
        // parent's reach for the child's after the parent was asked. So those who came meanwhile
        // are asked too, until nobody came. Parents stand before their children in the list.
        loop {
            let (touched, next) = self.registered_since(from);
            touched.iter().for_each(|mapper| ask(&**mapper));
            if self.list.lock().next == next.0 {
                return;
            }
            from = next;
        }
    }

    /// The mappers with the number `from` or a later one, and the number that the next one will
    /// have.
    fn registered_since(&self, from: MapperId) -> (Vec<Arc<dyn Mappers>>, MapperId) {
        let list = self.list.lock();
        let mappers = list.mappers.range(from..);
        let mappers = mappers.filter_map(|(_, mapper)| mapper.upgrade());
        (mappers.collect(), MapperId(list.next))
    }
}

impl FileCore {
    /// Bytes of a locked block were changed in place, by no mapping: what code was made of them is
    /// stale. A page that nobody maps now is mapped by RMWs of the hold word that come after the
    /// end of the write, so with the bytes.
    #[inline]
    pub(crate) fn written_in_place(&self, locked: &Locked<'_>, inside: &Range<usize>) {
        // mutant: V11-call (test devices: a_write_by_a_call_of_the_file_counts; shuttle: code_beside_writes_by_calls_is_current_or_known_to_be_stale)
        if locked.meta().hold.load().mapped() > 0 && cfg!(not(mutant = "V11-call")) {
            let first = self.pages_in(locked.block()).start;
            let past_last = inside.end.div_ceil(PAGE_SIZE) as u64;
            let pages = first + (inside.start >> PAGE_SHIFT) as u64..first + past_last;
            let _section = self.pool.domain.reader();
            self.pool.watched.stored(self.address(), pages);
        }
    }

    /// Whether the frame has this page of the file, whose block the caller has locked. The frame is
    /// one that a word of a page table leads to, found in a section that is still open.
    ///
    /// While the word leads to the frame, what the metadata says does not change; a `true` stays
    /// so, for the block is the one that is locked. Of a word that has been emptied meanwhile, the
    /// answer means nothing.
    pub(crate) fn has_page_in(&self, page: u64, frame: FrameId) -> bool {
        self.head_of_page(page, frame).is_some()
    }

    /// Whether a page of the file, found in this frame, is of a block that is dirty: of this
    /// moment, if its block is not locked.
    pub(crate) fn is_dirty_in(&self, page: u64, frame: FrameId) -> bool {
        let head = self.head_of_page(page, frame);
        let flags = head.map(|head| self.frames().meta(head).flags.load());
        flags.is_some_and(|flags| flags.contains(FlagSet::DIRTY))
    }

    fn head_of_page(&self, page: u64, frame: FrameId) -> Option<FrameId> {
        let place = page & (self.block_pages() - 1);
        let head = FrameId(frame.0.checked_sub(place as u32)?);
        let meta = self.frames().meta(head);
        let is_own = meta.kind() == Kind::Cached && meta.owner() == self.owner.0;
        (is_own && meta.index() == page >> self.order).then_some(head)
    }
}
