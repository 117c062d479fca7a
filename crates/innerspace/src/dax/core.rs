//! The state of one direct-access file.

use std::io;
use std::ops::Range;

use super::device::DaxDevice;
use super::entries::{Entries, Locked};
use super::entry::{Content, Entry, Size};
use super::error::{DaxAction, DaxError};
use super::extents::{Extent, ExtentMap};
use super::grab::Wanted;
use super::open::HostFile;
use super::pins::Pins;
use super::stripes::{Count, Counts, DirtyRanges};
use crate::cache::{
    Cache, ErrorSequence, FaultKind, FileAccess, MapperList, Revoke, Wait, with_room,
};
use crate::group::{Group, LimitError};
use crate::reclaim::{HeapCharge, Pool};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, OnceLock, Rank, RwLock, RwLockReadGuard, Weak};
use crate::units::{PAGE_SHIFT, PAGE_SIZE, PageCount};

/// The approximate number of heap bytes that one range takes in the set of dirty ranges. A node of
/// the set's tree has room for 11 ranges, and is about two thirds full.
const DIRTY_RANGE_BYTES: u64 = 16;

/// The largest size in bytes of a file that takes its blocks from a device.
pub(super) const MAX_SIZE: u64 = 1 << 47;

/// How much a write to a hole allocates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum HoleWrites {
    /// The page that is written.
    #[default]
    OnePage,
    /// A whole aligned hole of 2 MiB, if the device has 2 MiB free in one piece. This applies to a
    /// store through a mapping that covers the hole, and to a write by call that covers it. Other
    /// writes allocate page by page, and so do writes by call to a file with [`OnShrink::Error`].
    Large,
}

/// The parts of which a direct-access file is made.
pub(super) struct Parts {
    pub(super) name: Arc<str>,
    pub(super) device: DaxDevice,
    pub(super) extents: Box<dyn ExtentMap>,
    /// The length in bytes at the time of opening.
    pub(super) size: u64,
    /// The most bytes that the file can have.
    pub(super) most: u64,
    /// The host file, if there is one.
    pub(super) host: Option<Arc<HostFile>>,
}

/// The options with which a file is opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct DaxSetup {
    pub(crate) access: FileAccess,
    pub(crate) hole_writes: HoleWrites,
    pub(crate) on_shrink: OnShrink,
    /// The most bytes to which a writable host file can grow. The default depends on the file's
    /// length.
    pub(crate) capacity: Option<u64>,
    /// Whether other groups may open the file, too.
    pub(crate) shared: bool,
}

/// The effect of another process cutting the host file short while the file is in use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum OnShrink {
    /// An access to bytes that were cut off ends the process with SIGBUS, as with any mapping that
    /// the kernel makes. A store on a full disk can do so too: to an old block, if the file system
    /// copies on write; or to a page that the system has read into its cache again for another
    /// process.
    #[default]
    Signal,
    /// Every access goes through a system call, which costs a few hundred nanoseconds, and an
    /// access to bytes that were cut off is an error.
    Error,
}

/// An open file. Handles and mappings keep it open.
pub(crate) struct DaxCore {
    pub(super) parts: Parts,
    pub(crate) setup: DaxSetup,
    pub(super) pool: Arc<Pool>,
    /// Runs the file's calls that are made in the background.
    pub(super) cache: Arc<Cache>,
    /// The length in bytes. A fault reads it after locking an entry; a truncate stores it before it
    /// locks the entries that it removes.
    pub(super) size: AtomicU64,
    pub(super) entries: Entries,
    /// The spaces that map the file.
    pub(crate) mappers: MapperList,
    /// Locked shared by reads, writes and pins that are made by call; exclusively for `set_len`,
    /// and for everything that removes entries. Taken before entries are locked.
    pub(super) layout: RwLock<()>,
    /// Serialises appends. Taken before `layout`.
    pub(super) appending: Mutex<()>,
    /// Serialises changes of the length by writes.
    pub(super) growth: Mutex<()>,
    /// The number of ranges in `cut`, which are being punched. Faults in these ranges wait. The
    /// number can be read without the mutex of `cut`.
    pub(super) cuts: AtomicU64,
    pub(super) cut: Mutex<Vec<Range<u64>>>,
    /// Serialises syncs, so that none returns before the flush on which it relies is done. A cut
    /// takes it too (`no_sync`).
    pub(super) syncing: Mutex<()>,
    /// Failures to make stores durable. The latest one is reported once to each handle.
    pub(super) errors: ErrorSequence<DaxError>,
    /// The number of times that the host has failed to write, or to free blocks, since it was last
    /// made to consider all dirty pages changed. Unless this is 0, the host may consider dirty
    /// pages clean, or they may have lost their blocks.
    pub(super) host_forgot: AtomicU64,
    /// The ranges in which an entry may be dirty.
    pub(super) dirty: DirtyRanges,
    /// The charge for the heap memory of the extent map and the set of dirty ranges.
    heap: HeapCharge,
    pub(super) pins: Pins,
    pub(super) counts: Counts,
    /// Dropped with the file: its place in the table of open files, and the charge for its heap.
    ending: OnceLock<Box<dyn Send + Sync>>,
    /// Dropped last of the fields. A thread that opens the host file again waits until this is
    /// dropped.
    closed: Arc<()>,
}

impl DaxCore {
    pub(super) fn new(
        cache: &Arc<Cache>,
        group: &Group,
        parts: Parts,
        setup: DaxSetup,
    ) -> Arc<DaxCore> {
        let pool = &cache.pool;
        Arc::new(DaxCore {
            size: AtomicU64::new(parts.size),
            parts,
            setup,
            pool: pool.clone(),
            cache: cache.clone(),
            entries: Entries::new(pool, group),
            mappers: MapperList::default(),
            layout: RwLock::ranked(Rank::Invalidate, ()),
            appending: Mutex::new(()),
            growth: Mutex::new(()),
            cuts: AtomicU64::new(0),
            cut: Mutex::new(Vec::new()),
            syncing: Mutex::new(()),
            errors: ErrorSequence::default(),
            host_forgot: AtomicU64::new(0),
            dirty: DirtyRanges::new(),
            heap: HeapCharge::new(pool, group),
            pins: Pins::default(),
            counts: Counts::default(),
            ending: OnceLock::new(),
            closed: Arc::new(()),
        })
    }

    /// Keeps a value until the file is closed.
    pub(crate) fn keep(&self, ending: Box<dyn Send + Sync>) {
        let _once = self.ending.set(ending);
    }

    /// Returns a reference that is alive until the file is closed and its lock on the host file is
    /// released.
    pub(crate) fn until_closed(&self) -> Weak<()> {
        Arc::downgrade(&self.closed)
    }

    /// Returns the group to which the file is charged.
    pub(crate) fn group(&self) -> &Group {
        self.entries.group()
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.parts.name
    }

    /// Returns whether the file belongs to the memory of `pool`.
    pub(crate) fn is_in(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Returns whether the file accepts writes.
    pub(crate) fn writable(&self) -> bool {
        self.setup.access == FileAccess::ReadWrite
    }

    /// Returns whether every access is made by calls to the host ([`OnShrink::Error`]).
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded_host().is_some()
    }

    /// Returns the host file, if every access is a call to the host.
    pub(super) fn guarded_host(&self) -> Option<&HostFile> {
        let host = self.parts.host.as_deref();
        host.filter(|_| self.setup.on_shrink == OnShrink::Error)
    }

    /// Returns the length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    /// Returns the number of pages. The last page may be partly past the end.
    pub(super) fn pages(&self) -> u64 {
        self.size().div_ceil(PAGE_SIZE as u64)
    }

    /// Returns an error in a child of fork(2), which lacks the mapping.
    #[inline]
    pub(super) fn check_process(&self) -> Result<(), DaxError> {
        let file = || self.parts.name.clone();
        self.pool
            .check_process(|pid| DaxError::OtherProcess { file: file(), pid })
    }

    pub(super) fn check_writable(&self, offset: u64) -> Result<(), DaxError> {
        self.check_process()?;
        match self.setup.access {
            FileAccess::ReadWrite => Ok(()),
            FileAccess::ReadOnly => Err(DaxError::ReadOnly {
                file: self.parts.name.clone(),
                offset,
            }),
        }
    }

    pub(super) fn past_end(&self, offset: u64, len: u64) -> DaxError {
        DaxError::PastEnd {
            file: self.parts.name.clone(),
            offset,
            len,
            size: self.size(),
        }
    }

    /// Returns a closure that turns an error of the host or the device into the failure of `what`
    /// at `offset`.
    pub(super) fn failed(&self, what: DaxAction, offset: u64) -> impl Fn(io::Error) -> DaxError {
        move |error| DaxError::from_extents(&self.parts.name, what, offset, PAGE_SIZE as u64, error)
    }

    /// Looks up the extent that begins at `page`, of at most `most` pages. An error names `offset`.
    pub(super) fn look_up_extent(
        &self,
        page: u64,
        most: u64,
        offset: u64,
    ) -> Result<Extent, DaxError> {
        let extent = self.parts.extents.lookup(page, most);
        extent.map_err(self.failed(DaxAction::Query, offset))
    }

    /// Sets the length in the extent map.
    pub(super) fn set_len_of_map(&self, len: u64) -> Result<(), DaxError> {
        let set = self.parts.extents.set_len(len);
        set.map_err(self.failed(DaxAction::Resize, len))
    }

    pub(super) fn too_long(&self, offset: u64, len: u64) -> DaxError {
        DaxError::TooLong {
            file: self.parts.name.clone(),
            offset,
            len,
            most: self.parts.most,
        }
    }

    /// Returns the error of a call that would have to wait, but must not.
    pub(super) fn would_block(&self, offset: u64) -> DaxError {
        DaxError::WouldBlock {
            file: self.parts.name.clone(),
            offset,
        }
    }

    /// Shares `layout`, which keeps cuts away. With [`Wait::No`], fails instead of waiting; the
    /// error names `offset`.
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

    /// Revokes all translations of a locked entry. The caller still has to wait for a grace period.
    pub(super) fn revoke(&self, pages: Range<u64>, entry: Entry) {
        let how = match (entry.size(), entry.content()) {
            (Size::Large, Content::Zero) => Revoke::Tables,
            _ => Revoke::All,
        };
        self.mappers.revoke(pages, how);
    }

    /// Returns whether a sync that ran now would write the page.
    pub(crate) fn is_dirty(&self, page: u64) -> bool {
        self.entries.peek(page).is_some_and(Entry::is_dirty)
    }

    /// Marks code that was translated from these pages as stale, after a call has changed their
    /// bytes. The caller still has their entries locked, so a fault that maps them from now on sees
    /// the new bytes.
    pub(super) fn written_in_place(&self, pages: Range<u64>) {
        if !self.mappers.is_empty() {
            let _section = self.pool.domain.reader();
            let file = std::ptr::from_ref(self) as usize;
            self.pool.watched.stored(file, pages);
        }
    }

    /// Runs `work`, which locks the file and needs memory. If there is no memory, makes room with
    /// nothing locked and runs `work` again.
    pub(super) fn with_room<T>(
        &self,
        work: impl FnMut() -> Result<T, DaxError>,
    ) -> Result<T, DaxError> {
        let is_full = |error: &DaxError| match error {
            DaxError::Limit(full) => Some(full.details().id),
            _ => None,
        };
        with_room(&self.pool, self.heap.group(), PageCount(0), is_full, work)
    }

    /// Waits until no thread uses a revoked translation any more.
    pub(super) fn grace(&self) {
        let domain = &self.pool.domain;
        domain.synchronize_with(|owner| self.mappers.has_owner(owner));
    }

    /// Records that an entry in this page's range became dirty. The caller has the entry locked.
    pub(super) fn note_dirty(&self, page: u64) {
        if self.dirty.add(page) {
            self.settle_heap();
        }
    }

    /// Charges for the extent map and the set of dirty ranges, with some room to spare. This is
    /// called before something is added to them. If `wait` allows waiting for memory, the caller
    /// must have nothing locked.
    pub(super) fn pay_ahead(&self, wait: Wait) -> Result<(), LimitError> {
        self.heap.pay_ahead(|| self.heap_bytes(), wait.alloc_mode())
    }

    /// Adjusts the charge for the extent map and the set of dirty ranges after their sizes have
    /// changed: see [`HeapCharge::settle`]. Never waits.
    pub(super) fn settle_heap(&self) {
        self.heap.settle(|| self.heap_bytes());
    }

    fn heap_bytes(&self) -> u64 {
        self.parts.extents.heap_bytes() + self.dirty.len() * DIRTY_RANGE_BYTES
    }

    /// Takes the ranges that overlap `pages` out of the set of dirty ranges. Returns the first page
    /// of each.
    pub(super) fn take_dirty(&self, pages: &Range<u64>) -> Vec<u64> {
        let found = self.dirty.take(pages);
        self.settle_heap();
        found
    }

    /// Returns whether one of these pages is being punched. A truncate shows in the length instead.
    /// Called with an entry locked, before its block is looked up.
    pub(super) fn is_being_cut(&self, pages: &Range<u64>) -> bool {
        self.cuts.load(Ordering::SeqCst) > 0
            && self
                .cut
                .lock()
                .iter()
                .any(|cut| cut.start < pages.end && pages.start < cut.end)
    }

    /// Waits until no cut is under way. The caller has no entry locked.
    pub(super) fn wait_for_cut(&self) {
        drop(self.layout.read());
    }

    /// Locks the entry that covers a page of the file; fails if the page is past the end. Waits
    /// while the page is being cut out; with [`Wait::No`], fails instead. For a write, charges in
    /// advance for the heap memory that it may need.
    pub(super) fn lock_page(
        &self,
        page: u64,
        kind: FaultKind,
        wait: Wait,
    ) -> Result<Locked<'_>, DaxError> {
        if kind == FaultKind::Write {
            self.pay_ahead(wait)?;
        }
        loop {
            // The length is checked here too, so that a fault past the end creates no node.
            if page >= self.pages() {
                return Err(self.past_end(DaxCore::offset(page), PAGE_SIZE as u64));
            }
            let locked = self.lock_for(page, kind, wait)?;
            // The length and the cuts are checked with the entry locked: see `cut`.
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

    /// Locks the entry that covers a page, whatever the file's length. For a write, first replaces
    /// a large hole by a node of pages, after a grace period. With [`Wait::No`], fails instead of
    /// waiting.
    pub(super) fn lock_for(
        &self,
        page: u64,
        kind: FaultKind,
        wait: Wait,
    ) -> Result<Locked<'_>, DaxError> {
        let would_block = || self.would_block(DaxCore::offset(page));
        let hole = Entry::new(Size::Large, Content::Zero);
        let mut node = self.entries.no_spares();
        loop {
            let locked = self.entries.find(page, Wanted::Cover, wait, &mut node)?;
            let locked = locked.ok_or_else(would_block)?;
            if kind == FaultKind::Read || locked.entry() != hole {
                return Ok(locked);
            }
            if wait == Wait::No {
                return Err(would_block());
            }
            if node.nodes().is_empty() {
                // The wait for memory comes before anything is revoked, and happens with nothing
                // locked.
                drop(locked);
                node.ensure(1, wait.alloc_mode())?;
                continue;
            }
            self.revoke(locked.pages(), hole);
            self.grace();
            self.counts.count(Count::Downgrades);
            locked.split(&mut node);
        }
    }

    /// Returns the offset of a page.
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
        #[cfg(feature = "tracing_0_1")]
        self.cache.defer_event({
            let file = self.parts.name.clone();
            move || tracing::debug!(target: "innerspace", %file, "direct file closed")
        });
        self.pool.background.kick();
    }
}

impl std::fmt::Debug for DaxCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DaxCore")
            .field("name", &self.parts.name)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}
