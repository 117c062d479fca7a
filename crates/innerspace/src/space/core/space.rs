//! The space: the object behind the handles, with the functions that every operation on it needs.

use std::collections::VecDeque;
use std::ops::Range;

use super::address::{LEAF_BYTES, leaf_number, page_start};
use super::calls::Calls;
use super::error::SpaceError;
use super::fault::{AccessKind, Cause, Explanation, Fault, FaultKind, Wanted};
use super::options::AddressWidth;
use super::structure::Structure;
use crate::cache::Cache;
use crate::exec::reentry::{Inside, is_in_callback};
use crate::group::{Group, GroupId, HeapBytes, LimitError, MayReclaim};
use crate::reclaim::{AllocMode, Pool};
use crate::space::code::Code;
use crate::space::dirty::DirtyLog;
use crate::space::snapshot::changes::Changes;
use crate::space::table::nodes::{Detached, Nodes};
use crate::space::table::{self};
use crate::space::vma::area::Vma;
use crate::space::vma::cache::Sequence;
use crate::space::vma::ledger::Ledger;
use crate::space::vma::set::VmaSet;
use crate::stats::Event;
use crate::sync::domain::{NO_OWNER, Participant, Post};
use crate::sync::gate::{EVERYWHERE, Gate};
use crate::sync::members::Members;
use crate::sync::rcu_cell::RcuCell;
use crate::sync::{Arc, Mutex, Rank, failpoint};
use crate::{FrameId, PAGE_SIZE, VirtAddr};

/// The most faults whose causes are kept for [`Space::explain`].
const REMEMBERED: usize = 16;

/// The heap bytes that a cause takes: its place in the queue, and the error with its names.
const CAUSE_BYTES: usize = size_of::<Remembered>() + 256;

/// An address space: mappings of files and anonymous memory, reached through
/// [`Accessor`](crate::Accessor)s.
///
/// This is a handle: a clone is another handle on the same space, whereas [`Space::fork`] makes
/// another space. The space lives as long as it has a handle or an accessor.
///
/// ```
/// use innerspace::{MIB, Map, Memory, space::Protection};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(16 * MIB)?;
/// let space = memory.create_space()?;
/// let at = space.map(Map::anonymous(MIB))?;          // zeros, readable and writable
/// space.accessor()?.store(at, 1_u64)?;
///
/// let child = space.fork()?;                         // shares each page until either stores to it
/// child.accessor()?.store(at, 2_u64)?;
/// assert_eq!(space.accessor()?.load::<u64>(at)?, 1);
///
/// space.protect(at, MIB, Protection::READ)?;
/// assert!(space.accessor()?.store(at, 3_u64).is_err());
/// space.unmap(at, MIB)?;
/// assert!(space.accessor()?.load::<u64>(at).is_err());
/// println!("{}", child.stats());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Space(pub(crate) Arc<SpaceInner>);

/// Whether this is an ordinary space or a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// An ordinary space, with the number of the snapshot from which it was forked, if any.
    Live { born_of: Option<u64> },
    /// A snapshot of the space with this number. Stores, and changes of its mappings, are refused.
    Frozen { of: u64 },
}

/// A fault, its cause, and the charge for them. The charge is `None` if the group had no room, and
/// there was no older cause whose charge could be taken over.
type Remembered = (Fault, Cause, Option<HeapBytes>);

pub(crate) struct SpaceInner {
    /// The number of the space or snapshot; unique in this process, never reused, never 0.
    pub(crate) id: u64,
    pub(crate) role: Role,
    pub(crate) pool: Arc<Pool>,
    /// Runs the space's futures. Its service thread lives at least as long as the space.
    pub(crate) cache: Arc<Cache>,
    pub(crate) group: Group,
    /// The pages that the space has made its own since its last restore.
    pub(crate) changes: Changes,
    /// The root of the page table; it stays the same while the space lives.
    pub(crate) root: FrameId,
    /// The mappings. Published by the holder of the gate's writer lock.
    pub(crate) vmas: RcuCell<VmaSet>,
    /// Numbers the changes of the mappings, so that accessors see when the slots of their caches
    /// are stale.
    pub(crate) sequence: Sequence,
    /// The number of bits in an address.
    pub(crate) width: AddressWidth,
    /// The watched pages, from which code was fetched.
    pub(crate) code: Code,
    /// The pages stored to since they were last taken as dirty.
    pub(crate) dirty: DirtyLog,
    /// The gate, closed on ranges that are being changed. Its writer lock protects the mappings,
    /// the list of mapped files, and the pins.
    pub(crate) gate: Gate<Structure>,
    /// Serialises the copying of shared nodes; see `table`.
    pub(crate) paths: Mutex<()>,
    /// The participants of the accessors, to which invalidations are posted.
    pub(crate) accessors: Mutex<Members<Arc<Participant>>>,
    /// The calls to devices and guarded files that are under way.
    pub(crate) calls: Arc<Calls>,
    /// The causes of the last few faults, for [`Space::explain`]; the oldest first.
    causes: Mutex<VecDeque<Remembered>>,
}

impl Space {
    /// Creates an empty space whose pages and tables are charged to `group`.
    pub(crate) fn new(
        cache: &Arc<Cache>,
        group: &Group,
        width: AddressWidth,
    ) -> Result<Space, LimitError> {
        let pool = &cache.pool;
        let ledger = Ledger::new(group, SpaceInner::HEAP)?;
        let mut root = pool.alloc(group.id(), 0, AllocMode::Wait)?;
        root.zero();
        let nodes = Nodes {
            pool,
            owner: NO_OWNER,
            root: root.id(),
        };
        let root = nodes.publish(root);
        let vmas = VmaSet::new(ledger);
        let role = Role::Live { born_of: None };
        Ok(Space(SpaceInner::new(
            cache, group, role, width, root, vmas,
        )))
    }

    /// Returns the group that pays for this space's own pages and tables.
    pub fn group(&self) -> &Group {
        &self.0.group
    }

    /// Explains a fault of this space: by the error that caused it, if the space still has the
    /// error; otherwise by the mapping at the address, or the nearest one.
    pub fn explain(&self, fault: Fault) -> Explanation {
        self.0.explain(fault)
    }
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Space")
            .field("group", &self.0.group)
            .finish_non_exhaustive()
    }
}

impl SpaceInner {
    /// The heap bytes of a space: the space, its ledger and calls, the published set of mappings,
    /// and the reference counts of their `Arc`s.
    pub(crate) const HEAP: usize = size_of::<SpaceInner>()
        + size_of::<Ledger>()
        + size_of::<Calls>()
        + size_of::<VmaSet>()
        + 64;

    pub(crate) fn new(
        cache: &Arc<Cache>,
        group: &Group,
        role: Role,
        width: AddressWidth,
        root: FrameId,
        vmas: VmaSet,
    ) -> Arc<SpaceInner> {
        use std::sync::atomic as plain;
        static NEXT_ID: plain::AtomicU64 = plain::AtomicU64::new(1);
        let pool = &cache.pool;
        let id = NEXT_ID.fetch_add(1, plain::Ordering::Relaxed);
        Arc::new(SpaceInner {
            id,
            role,
            changes: Changes::default(),
            root,
            vmas: RcuCell::new(&pool.domain, vmas.clone()),
            sequence: Sequence::default(),
            width,
            code: Code::default(),
            dirty: DirtyLog::default(),
            gate: Gate::new(&pool.domain, id, Structure::new(vmas)),
            pool: pool.clone(),
            cache: cache.clone(),
            group: group.clone(),
            paths: Mutex::ranked(Rank::Paths, ()),
            accessors: Mutex::ranked(Rank::Participants, Members::default()),
            calls: Arc::default(),
            causes: Mutex::new(VecDeque::new()),
        })
    }

    pub(crate) fn is_frozen(&self) -> bool {
        matches!(self.role, Role::Frozen { .. })
    }

    /// Returns the end of the space: the first address past its last.
    pub(crate) fn end(&self) -> u64 {
        self.width.end()
    }

    /// Returns the address `bytes` after `at`. In a narrow space, the last address is followed by
    /// 0. In a wide space, or if `at` is past the last address already, the result may be past the
    /// last address, where nothing exists.
    pub(crate) fn after(&self, at: VirtAddr, bytes: u64) -> VirtAddr {
        let next = at.0.wrapping_add(bytes);
        match self.width {
            AddressWidth::Bits32 if at.0 < self.end() => VirtAddr(next % self.end()),
            _ => VirtAddr(next),
        }
    }

    /// Splits a range of addresses at page boundaries. Yields the address and length of each part.
    pub(crate) fn pieces(
        &self,
        mut at: VirtAddr,
        len: usize,
    ) -> impl Iterator<Item = (u64, usize)> + use<> {
        let wraps_at = match self.width {
            AddressWidth::Bits32 if at.0 < self.end() => self.end(),
            _ => 0,
        };
        let mut left = len;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let piece = left.min(PAGE_SIZE - at.page_offset());
            let start = at.0;
            at.0 = at.0.wrapping_add(piece as u64);
            if at.0 == wraps_at {
                at.0 = 0;
            }
            left -= piece;
            Some((start, piece))
        })
    }

    /// Marks the calling thread as inside a device's handler of the space, until the returned value
    /// is dropped.
    pub(crate) fn enter_device(&self) -> Inside {
        let inside = Inside::callback(self.id);
        // If the space has accessors besides the one that makes this call, the next access of each
        // accessor checks for this mark, whatever it has cached.
        let accessors = self.accessors.lock();
        if accessors.len() > 1 {
            accessors
                .iter()
                .for_each(|accessor| accessor.request_safepoint());
        }
        inside
    }

    /// Returns the operations on the nodes of the space's table.
    #[inline(always)]
    pub(crate) fn nodes(&self) -> Nodes<'_> {
        Nodes {
            pool: &self.pool,
            owner: self.id,
            root: self.root,
        }
    }

    /// Waits until no access of the space can use a translation that was taken away before the
    /// call.
    pub(crate) fn grace(&self) {
        let domain = &self.pool.domain;
        domain.synchronize_with(|owner| owner == self.id);
    }

    /// Returns an error inside a callback of the space, and in a child of fork(2).
    pub(crate) fn check_entry(
        &self,
        what: &'static str,
        at: VirtAddr,
        len: u64,
    ) -> Result<(), SpaceError> {
        self.pool
            .check_process(|pid| SpaceError::OtherProcess { what, pid })?;
        match is_in_callback(self.id) {
            true => Err(SpaceError::Reentered { what, at, len }),
            false => Ok(()),
        }
    }

    /// Returns an error if [`SpaceInner::check_entry`] does, or if the space is a snapshot, which
    /// allows no structural change.
    pub(crate) fn check_live(
        &self,
        what: &'static str,
        at: VirtAddr,
        len: u64,
    ) -> Result<(), SpaceError> {
        self.check_entry(what, at, len)?;
        match self.role {
            Role::Live { .. } => Ok(()),
            Role::Frozen { .. } => Err(SpaceError::Frozen { what }),
        }
    }

    /// Returns the range of `len` bytes at `at`, rounded up to whole pages. Returns an error, with
    /// `what` as the name of the operation, if the range is empty, does not start at a page, or
    /// ends past the end of the space.
    pub(crate) fn range(
        &self,
        what: &'static str,
        at: VirtAddr,
        len: u64,
    ) -> Result<Range<u64>, SpaceError> {
        if len == 0 {
            return Err(SpaceError::Empty { what, at });
        }
        if !at.is_page_aligned() {
            return Err(SpaceError::Unaligned { what, at });
        }
        let end = VirtAddr(self.end());
        let len_in_pages = len.checked_next_multiple_of(PAGE_SIZE as u64);
        let last = len_in_pages.and_then(|len| at.0.checked_add(len));
        match last.filter(|last| *last <= end.0) {
            Some(last) => Ok(at.0..last),
            None => Err(SpaceError::OutOfRange { what, at, len, end }),
        }
    }

    /// Returns the range of a structural change, if the change is allowed: see
    /// [`SpaceInner::check_live`] and [`SpaceInner::range`].
    pub(crate) fn live_range(
        &self,
        what: &'static str,
        at: VirtAddr,
        len: u64,
    ) -> Result<Range<u64>, SpaceError> {
        self.check_live(what, at, len)?;
        self.range(what, at, len)
    }

    pub(crate) fn group_id(&self) -> GroupId {
        self.group.id()
    }

    /// Posts a message to every accessor of the space.
    pub(crate) fn post(&self, post: Post) {
        self.post_if(post, |_| true);
    }

    /// Posts a message to all accessors except the caller's, which needs none.
    pub(crate) fn post_to_others(&self, post: Post, own: &Participant) {
        self.post_if(post, |accessor| !std::ptr::eq(accessor, own));
    }

    /// Makes all accessors forget the leaf of `at` if any of them may have it coalesced. The caller
    /// holds the gate's writer lock, and has changed words of the leaf, for pages on which the gate
    /// is closed. The caller waits for a grace period next.
    pub(crate) fn post_coalesced(&self, at: u64) {
        let nodes = self.nodes();
        let marked = self.inside(|_| {
            // No accessor has a shared leaf coalesced. A leaf that was shared may be exclusive to
            // another space by now, and marked for that space. A leaf that is exclusive to this
            // space stays so.
            let leaf = nodes.find_exclusive(at);
            leaf.is_some_and(|leaf| nodes.unmark_coalesced(leaf))
        });
        if marked {
            self.post(Post::One(leaf_number(at)));
        }
    }

    pub(crate) fn post_if(&self, post: Post, wanted: impl Fn(&Participant) -> bool) {
        let event = match post {
            Post::One(_) => Event::MailboxPost,
            Post::All => Event::MailboxFlush,
        };
        for accessor in self.accessors.lock().iter().filter(|it| wanted(it)) {
            accessor.post(post);
            self.pool.counters.count(event);
        }
    }

    /// Releases the references to nodes that a fault replaced. This is deferred until after a grace
    /// period if there are other accessors, which may still read the old leaf, or if a change is
    /// under way, which may be reading the leaf's words. Until then the old leaf counts as shared,
    /// so no thread writes to it.
    pub(crate) fn release_replaced(self: &SpaceInner, replaced: Detached) {
        // The gate is checked in a section. If it is open, a writer that closes it later finds the
        // new leaf, and a writer that had closed it before is done.
        let is_open = self.gate.is_open(&self.pool.domain.reader(), &EVERYWHERE);
        if is_open && self.accessors.lock().len() <= 1 {
            self.nodes().release(replaced);
        } else {
            self.retire(replaced);
        }
    }

    /// Releases a leaf from which a leaf of the space has stopped borrowing, as
    /// [`SpaceInner::release_replaced`] does.
    #[cold]
    pub(crate) fn release_shadow(&self, shadow: FrameId) {
        let mut replaced = Detached::default();
        replaced.shadows.push(shadow);
        self.release_replaced(replaced);
    }

    /// Notes that the leaves of this range may have been copied. A copy leaves out words of files,
    /// whose pages fault in again. Until they do, an operation that changes such a page does not
    /// reach this space. So watched pages of files in these leaves count as changed.
    pub(crate) fn leaves_copied(&self, range: &Range<u64>) {
        if !self.code.is_watching() {
            return;
        }
        let start = |at| at & !(LEAF_BYTES - 1);
        let leaves = start(range.start)..start(range.end - 1) + LEAF_BYTES;
        self.inside(|vmas| self.code.left_out(vmas, &leaves));
    }

    /// Notes, for everything that watches for stores, that the page at `at` is about to become
    /// writable, or to be restored. The caller is a fault, in the section in which it found the
    /// gate open, or a restore with the gate closed.
    #[inline(always)]
    pub(crate) fn written(&self, at: u64) {
        self.code.written(at);
        self.dirty.stored(&self.group, at);
        failpoint!(WatchersNotified);
    }

    /// Notes a store to the page at `at` for everything that watches the file page there, if `vma`
    /// maps a file. Then does the same as [`SpaceInner::written`].
    pub(crate) fn file_written(&self, vma: &Vma, at: u64) {
        if let Some(file) = vma.file() {
            let page = vma.file_page(page_start(at));
            self.pool.watched.stored(file.key(), page..page + 1);
        }
        self.written(at);
    }

    /// Runs `look` with the space's mappings, in a section of the calling thread.
    pub(crate) fn inside<T>(&self, look: impl FnOnce(&VmaSet) -> T) -> T {
        let section = self.pool.domain.reader();
        look(self.vmas.read(&section))
    }

    pub(crate) fn remember(&self, fault: Fault, cause: Cause) {
        let paid = self.group.charge_heap(CAUSE_BYTES, MayReclaim::No).ok();
        let mut causes = self.causes.lock();
        let paid = match paid.filter(|_| causes.len() < REMEMBERED) {
            Some(paid) => Some(paid),
            // If the queue is full, or the group has no room, the oldest cause, if there is one,
            // goes, and its charge is taken over.
            None => causes.pop_front().and_then(|(_, _, paid)| paid),
        };
        causes.push_back((fault, cause, paid));
    }

    /// Returns the fault of an access at `at` that found no memory, and keeps `error` to explain
    /// it.
    pub(crate) fn limit_fault(&self, at: VirtAddr, access: AccessKind, error: LimitError) -> Fault {
        let kind = match error.would_block() {
            true => FaultKind::WouldBlock,
            false => FaultKind::Limit,
        };
        let fault = Fault::new(kind, at, access, 0);
        self.remember(fault, Cause::Limit(error));
        fault
    }

    pub(crate) fn explain(&self, fault: Fault) -> Explanation {
        let at = fault.address();
        let cause = self
            .causes
            .lock()
            .iter()
            .rev()
            .find(|(known, ..)| *known == fault)
            .map(|(_, cause, _)| cause.clone());
        let text = match (&cause, fault.kind()) {
            (Some(cause), _) => format!("{}: {cause}", Wanted(fault)),
            (None, FaultKind::NotMapped) if fault.is_beyond() => fault.to_string(),
            (None, FaultKind::NotMapped) => self.inside(|vmas| match vmas.nearest(at.0) {
                Some(vma) => format!("{fault}; nearest mapping {vma}"),
                None => format!("{fault}; the space has no mapping"),
            }),
            (None, _) => self.inside(|vmas| match vmas.find_containing(at.0) {
                Some(vma) => format!("{fault}: {vma}"),
                None => fault.to_string(),
            }),
        };
        Explanation { fault, text, cause }
    }

    /// Returns the error of an operation that could not access a page.
    pub(crate) fn access_error(&self, what: &'static str, fault: Fault) -> SpaceError {
        let explanation = self.explain(fault);
        SpaceError::Access { what, explanation }
    }
}

impl Drop for SpaceInner {
    fn drop(&mut self) {
        if self.pool.foreign_maker().is_some() {
            // A child of fork(2) drops nothing that belongs to its parent.
            std::mem::forget((self.pool.clone(), self.cache.clone(), self.group.clone()));
            return;
        }
        // No handle, no accessor and no revoker is left: a revoker holds an `Arc` of the space
        // while it works.
        let (vmas, files) = self.gate.get_mut().close();
        self.changes = Changes::default();
        self.dirty = DirtyLog::default();
        let pool = &self.pool;
        self.code.end(&self.pool.watched);
        self.nodes().put(self.root, table::ROOT_LEVEL);
        failpoint!(TableGone);
        // The mappings may have been the last to keep a file open. Such a file is closed now, or by
        // another thread: see `Cache::released`.
        drop(self.vmas.publish(&pool.domain, vmas));
        self.cache.released(files);
    }
}
