//! The state of one direct access file.

use std::io;
use std::ops::Range;

use super::device::DaxDevice;
use super::entries::{Entries, Found, Locked};
use super::entry::{Content, Entry, Size};
use super::error::{DaxAction, DaxError};
use super::extents::ExtentMap;
use super::grab::Wanted;
use super::open::HostFile;
use super::pins::Pins;
use super::stripes::{Count, Counts, DirtyRanges};
use crate::cache::{
    Cache, ErrorSequence, FaultKind, FileAccess, MapperId, MapperList, Mappers, Revoke, Wait,
    with_room,
};
use crate::group::{Group, LimitError};
use crate::reclaim::{AllocMode, HeapCharge, Pool};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, Rank, RwLock, RwLockReadGuard, Weak, failpoint};
use crate::units::{PAGE_SHIFT, PAGE_SIZE, PageCount};

/// What a range takes in the set of dirty ones: nodes have room for 11 and are two thirds full.
const DIRTY_RANGE_BYTES: u64 = 16;

/// The largest size of a file in bytes, over any device.
pub(super) const MAX_SIZE: u64 = 1 << 47;

/// What a write to a hole allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HoleWrites {
    /// The page that is written.
    #[default]
    OnePage,
    /// An aligned hole of 2 MiB at once, where the device has them free in one piece: for a store
    /// through a mapping that shows all of it, and for a write by call of all of it. Other writes,
    /// and those by call to a file that is guarded against being cut (`OnShrink`), allocate page by
    /// page.
    Large,
}

/// What a direct access file is made of.
pub(super) struct Parts {
    pub(super) name: Arc<str>,
    pub(super) device: DaxDevice,
    pub(super) extents: Box<dyn ExtentMap>,
    pub(super) size: u64,
    pub(super) most: u64,
    /// The host file, if there is one.
    pub(super) host: Option<Arc<HostFile>>,
}

/// Choices of whoever opens it.
#[derive(Clone, Debug)]
pub(crate) struct DaxSetup {
    pub(crate) access: FileAccess,
    pub(crate) hole_writes: HoleWrites,
    pub(crate) on_shrink: OnShrink,
    /// The most bytes a host file can grow to; by its length if not said.
    pub(crate) capacity: Option<u64>,
}

impl Default for DaxSetup {
    fn default() -> DaxSetup {
        DaxSetup {
            access: FileAccess::ReadWrite,
            hole_writes: HoleWrites::default(),
            on_shrink: OnShrink::default(),
            capacity: None,
        }
    }
}

/// What happens when another process cuts the host file short while it is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnShrink {
    /// An access to what was cut off ends the process with SIGBUS, as with any mapping of the
    /// kernel's. So may a store on a full disk, to an old block where the file system copies on
    /// write, or to a page that somebody else has had read into the cache again.
    #[default]
    Signal,
    /// Every access goes through a system call, and one to what was cut off is an error. Costs some
    /// hundred nanoseconds each.
    Error,
}

/// See the module. Kept by handles and mappings.
pub(crate) struct DaxCore {
    pub(super) name: Arc<str>,
    pub(super) pool: Arc<Pool>,
    /// Who makes its calls that are futures.
    pub(super) cache: Arc<Cache>,
    pub(super) device: DaxDevice,
    pub(super) extents: Box<dyn ExtentMap>,
    pub(super) access: FileAccess,
    pub(super) hole_writes: HoleWrites,
    pub(super) host: Option<Arc<HostFile>>,
    pub(crate) on_shrink: OnShrink,
    /// The most bytes it can have.
    pub(super) most: u64,
    /// The length in bytes when it was opened.
    pub(super) opened_len: u64,
    /// The length in bytes. Read by faults after they have locked an entry; stored by a truncate
    /// before it looks at entries.
    pub(super) size: AtomicU64,
    pub(super) entries: Entries,
    mappers: MapperList,
    /// Shared: reads and writes by call. Exclusive: truncate, punch. Outside entry locks.
    pub(super) layout: RwLock<()>,
    /// Serialises changes of the length by writes.
    pub(super) growth: Mutex<()>,
    /// What is being cut out: faults there wait. The count can be read without the mutex.
    pub(super) cuts: AtomicU64,
    pub(super) cut: Mutex<Vec<Range<u64>>>,
    /// One sync at a time, so that none returns before the flush it relies on is done.
    pub(super) syncing: Mutex<()>,
    /// Failures to make stores durable: each handle hears of each once.
    pub(super) errors: ErrorSequence<DaxError>,
    /// Failures of the host to write since it was last shown all that is dirty: it may take that
    /// for clean unless this is 0.
    pub(super) host_forgot: AtomicU64,
    /// The ranges in which some entry may be dirty.
    dirty: DirtyRanges,
    /// What the extent map and the set of dirty ranges take on the heap. Nothing waits with it
    /// locked.
    heap: Mutex<HeapCharge>,
    /// Pages that `heap` is charged for, changed with it locked: for those who find that it is
    /// enough.
    paid: AtomicU64,
    pub(super) pins: Pins,
    pub(super) counts: Counts,
    /// The last of the fields, so the last to go: whoever opens the host file again waits for it.
    #[cfg(not(target_family = "wasm"))]
    closed: Arc<()>,
}

impl DaxCore {
    pub(super) fn new(
        cache: &Arc<Cache>,
        group: &Group,
        parts: Parts,
        setup: DaxSetup,
    ) -> Arc<DaxCore> {
        let Parts {
            name,
            device,
            extents,
            size,
            most,
            host,
        } = parts;
        let DaxSetup {
            access,
            hole_writes,
            on_shrink,
            capacity: _,
        } = setup;
        let pool = cache.pool();
        Arc::new(DaxCore {
            name,
            pool: pool.clone(),
            cache: cache.clone(),
            device,
            extents,
            access,
            hole_writes,
            host,
            on_shrink,
            most,
            opened_len: size,
            size: AtomicU64::new(size),
            entries: Entries::new(pool, group),
            mappers: MapperList::default(),
            layout: RwLock::ranked(Rank::Invalidate, ()),
            growth: Mutex::new(()),
            cuts: AtomicU64::new(0),
            cut: Mutex::new(Vec::new()),
            syncing: Mutex::new(()),
            errors: ErrorSequence::default(),
            host_forgot: AtomicU64::new(0),
            dirty: DirtyRanges::new(),
            heap: Mutex::new(HeapCharge::new(pool, group)),
            paid: AtomicU64::new(0),
            pins: Pins::default(),
            counts: Counts::default(),
            #[cfg(not(target_family = "wasm"))]
            closed: Arc::new(()),
        })
    }

    /// What is there until the file is closed, its lock on the host file given up.
    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn until_closed(&self) -> Weak<()> {
        Arc::downgrade(&self.closed)
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether its translations and frames are those of this memory.
    pub(crate) fn is_in(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Whether the file takes writes.
    pub(crate) fn writable(&self) -> bool {
        self.access == FileAccess::ReadWrite
    }

    /// Whether every access asks the host file first.
    pub(crate) fn is_guarded(&self) -> bool {
        self.on_shrink == OnShrink::Error && self.host.is_some()
    }

    /// The length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    /// Pages, the last of which may be partly past the end.
    pub(super) fn pages(&self) -> u64 {
        self.size().div_ceil(PAGE_SIZE as u64)
    }

    /// Refuses everything to a child of fork(2), which has neither the mapping nor what is kept of
    /// it.
    #[inline]
    pub(super) fn check_process(&self) -> Result<(), DaxError> {
        match self.pool.foreign_maker() {
            None => Ok(()),
            Some(maker) => Err(DaxError::OtherProcess {
                file: self.name.clone(),
                pid: maker.id(),
            }),
        }
    }

    pub(super) fn check_writable(&self, offset: u64) -> Result<(), DaxError> {
        self.check_process()?;
        match self.access {
            FileAccess::ReadWrite => Ok(()),
            FileAccess::ReadOnly => Err(DaxError::ReadOnly {
                file: self.name.clone(),
                offset,
            }),
        }
    }

    pub(super) fn past_end(&self, offset: u64, len: u64) -> DaxError {
        DaxError::PastEnd {
            file: self.name.clone(),
            offset,
            len,
            size: self.size(),
        }
    }

    /// What the host or the device said, with the place.
    pub(super) fn host_error(&self, what: DaxAction, offset: u64, error: io::Error) -> DaxError {
        DaxError::from_extents(&self.name, what, offset, PAGE_SIZE as u64, error)
    }

    pub(super) fn too_long(&self, offset: u64, len: u64) -> DaxError {
        DaxError::TooLong {
            file: self.name.clone(),
            offset,
            len,
            most: self.most,
        }
    }

    /// The error of who may not wait.
    pub(super) fn would_block(&self, offset: u64) -> DaxError {
        DaxError::WouldBlock {
            file: self.name.clone(),
            offset,
        }
    }

    /// Keeps cuts away, for what is done at `offset`.
    pub(super) fn share_layout(
        &self,
        offset: u64,
        wait: Wait,
    ) -> Result<RwLockReadGuard<'_, ()>, DaxError> {
        match wait {
            Wait::Yes => Ok(self.layout.read()),
            Wait::No => {
                let shared = self.layout.try_read();
                shared.ok_or_else(|| self.would_block(offset))
            }
        }
    }

    /// Adds a space that maps the file.
    pub(crate) fn add_mapper(&self, mapper: Weak<dyn Mappers>) -> MapperId {
        self.mappers.add(mapper)
    }

    /// Removes one; it has no translation left.
    pub(crate) fn remove_mapper(&self, id: MapperId) {
        self.mappers.remove(id);
    }

    /// Takes the translations of an entry away that was there and is locked. A grace period is
    /// still to pass.
    pub(super) fn revoke(&self, pages: Range<u64>, entry: Entry) {
        let how = match (entry.size(), entry.content()) {
            (Size::Large, Content::Zero) => Revoke::Tables,
            _ => Revoke::All,
        };
        self.mappers.revoke(pages, how);
    }

    /// Whether the page is one that a sync writes, if its entry is not being changed.
    pub(crate) fn is_dirty(&self, page: u64) -> bool {
        self.entries.peek(page).is_some_and(Entry::is_dirty)
    }

    /// Takes the right to store away.
    pub(crate) fn revoke_write(&self, pages: Range<u64>) {
        self.mappers.revoke(pages, Revoke::Write);
    }

    /// Bytes of pages whose entries are locked were changed, by no mapping: what code was made of
    /// them is stale. Who maps the file now finds an entry locked, and so the bytes.
    pub(super) fn written_in_place(&self, pages: Range<u64>) {
        if !self.mappers.is_empty() {
            let _section = self.pool.domain.reader();
            let file = std::ptr::from_ref(self) as usize;
            self.pool.watched.stored(file, pages);
        }
    }

    /// Does `work`, which locks the file and wants memory, again where that can be had with nothing
    /// locked.
    pub(super) fn with_room<T>(
        &self,
        work: impl FnMut() -> Result<T, DaxError>,
    ) -> Result<T, DaxError> {
        let is_full = |error: &DaxError| match error {
            DaxError::Limit(full) => Some(full.details().id),
            _ => None,
        };
        with_room(&self.pool, PageCount(0), is_full, work)
    }

    /// Waits until nobody uses what was revoked.
    pub(super) fn grace(&self) {
        self.pool.domain.synchronize();
    }

    /// Remembers that an entry of this page's range became dirty. Its lock is held.
    pub(super) fn note_dirty(&self, page: u64) {
        if self.dirty.add(page) {
            self.must_pay_for_heap();
        }
    }

    /// Charges for what the extent map and the set of dirty ranges take, and for the next few that
    /// come: asked by whoever is to add to them, with nothing locked if it may wait for memory.
    pub(super) fn pay_ahead(&self, wait: Wait) -> Result<(), LimitError> {
        if HeapCharge::wanted_ahead(self.heap_bytes()).0 <= self.paid.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (group, short) = self.heap.lock().short_of(self.heap_bytes());
        if short.0 > 0 {
            // With `heap` unlocked: closing files run in here, and they may pay, too.
            let _group = self.pool.charge(group, short, wait.alloc_mode())?.commit();
            let mut heap = self.heap.lock();
            heap.add(short);
            self.paid.store(heap.pages().0, Ordering::SeqCst);
            drop(heap);
            // Two at once have charged too much, and what others gave back meanwhile was settled by
            // an older number.
            self.must_pay_for_heap();
        }
        Ok(())
    }

    /// The same for what was added, above the limit if need be: what there is cannot be given up.
    /// Gives back what is charged too much. Never waits.
    ///
    /// What others add or give back meanwhile they settle themselves: they change the bytes first
    /// and look at `paid` afterwards, and here `paid` is changed first and the bytes are looked at
    /// afterwards, all SeqCst; so one of the two sees the other.
    pub(super) fn must_pay_for_heap(&self) {
        while !self.has_paid_for_heap() {
            let mut heap = self.heap.lock();
            let paid = heap.settle(self.heap_bytes(), AllocMode::Must);
            paid.expect("a charge that must be never fails");
            failpoint!(Settled);
            self.paid.store(heap.pages().0, Ordering::SeqCst);
        }
    }

    fn has_paid_for_heap(&self) -> bool {
        let paid = PageCount(self.paid.load(Ordering::SeqCst));
        HeapCharge::is_settled(self.heap_bytes(), paid)
    }

    fn heap_bytes(&self) -> u64 {
        self.extents.heap_bytes() + self.dirty.len() * DIRTY_RANGE_BYTES
    }

    /// The ranges that may have dirty entries.
    pub(super) fn all_dirty(&self) -> Vec<u64> {
        self.dirty.all()
    }

    /// Takes the ranges out that may have dirty entries in `pages`.
    pub(super) fn take_dirty(&self, pages: &Range<u64>) -> Vec<u64> {
        let found = self.dirty.take(pages);
        self.must_pay_for_heap();
        found
    }

    /// Whether a page is being cut out. Asked by whoever has locked an entry, before it looks for a
    /// block.
    pub(super) fn is_being_cut(&self, pages: &Range<u64>) -> bool {
        self.cuts.load(Ordering::SeqCst) > 0
            && self
                .cut
                .lock()
                .iter()
                .any(|cut| cut.start < pages.end && pages.start < cut.end)
    }

    /// Waits until no cut is under way. No entry is locked.
    pub(super) fn wait_for_cut(&self) {
        drop(self.layout.read());
    }

    /// Locks what covers a page of the file that is not being cut out.
    pub(super) fn lock_page(
        &self,
        page: u64,
        kind: FaultKind,
        wait: Wait,
    ) -> Result<Locked<'_>, DaxError> {
        let wanted = match kind {
            FaultKind::Read => Wanted::Cover,
            FaultKind::Write => {
                self.pay_ahead(wait)?;
                Wanted::Change
            }
        };
        loop {
            // Asked before, too: a look past the end makes no node.
            if page >= self.pages() {
                return Err(self.past_end(DaxCore::offset(page), PAGE_SIZE as u64));
            }
            let locked = self.lock_for_change(page, wanted, wait)?;
            // The length and the cuts are looked at with the entry locked: see `cut`.
            if page >= self.pages() {
                return Err(self.past_end(DaxCore::offset(page), PAGE_SIZE as u64));
            }
            if !self.is_being_cut(&locked.pages()) {
                return Ok(locked);
            }
            if wait == Wait::No {
                return Err(self.would_block(DaxCore::offset(page)));
            }
            drop(locked);
            self.wait_for_cut();
        }
    }

    /// Locks what covers a page, whatever the file's length; large holes in the way become small
    /// ones, after a grace period.
    pub(super) fn lock_for_change(
        &self,
        page: u64,
        wanted: Wanted,
        wait: Wait,
    ) -> Result<Locked<'_>, DaxError> {
        loop {
            match self.entries.find(page, wanted, wait)? {
                Found::Locked(locked) => return Ok(locked),
                Found::InTheWay(hole) if wait == Wait::Yes => {
                    let pages = hole.pages();
                    self.revoke(pages, Entry::new(Size::Large, Content::Zero));
                    self.grace();
                    self.counts.count(Count::Downgrades);
                    hole.finish();
                }
                Found::InTheWay(_) | Found::Taken => {
                    return Err(self.would_block(DaxCore::offset(page)));
                }
                Found::Conflict | Found::Absent => {
                    unreachable!("an entry is made where there is none")
                }
            }
        }
    }

    /// The offset of a page.
    pub(super) fn offset(page: u64) -> u64 {
        page << PAGE_SHIFT
    }
}

impl Drop for DaxCore {
    fn drop(&mut self) {
        if self.pool.foreign_maker().is_some() {
            return;
        }
        self.entries.end();
        self.pool.kick();
    }
}

impl std::fmt::Debug for DaxCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DaxCore")
            .field("name", &self.name)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
