//! The public handle to a group, and its counters.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::events::{GroupEvents, GroupStats};
use super::stall::Pressure;
use super::tree::{Protection, SharedTree};
use super::watch::{Callback, GroupWatch};
use super::{GroupError, GroupId, GroupTree, HeapBytes, LimitError, MayReclaim};
use crate::stats::tell;
use crate::sync::Arc;
use crate::units::PageCount;

/// A memory group: a name, a limit, and everything charged to it.
///
/// Clones name the same group. Dropping the last clone deletes it: pages still charged to it (by
/// views, and by files and spaces that outlive it) count as its parent's from then on. A group
/// keeps the groups above it alive.
///
/// A handle leads downwards only: from a group, or from a space or a file of it, there is no way to
/// the groups above. Errors do give the names of the groups above, and the usage of the one that
/// refused. A handle can change its group's own limits. So if a tenant must not raise its limit,
/// give it a child, made by [`Group::create_child_unlimited`], of a group whose limit you keep.
///
/// ```
/// use innerspace::{KIB, MIB, Map, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// # std::fs::write(&path, vec![7; MIB as usize])?;
/// let memory = Memory::with_limit(16 * MIB)?;
/// let tenant = memory.create_group("tenant-a", 512 * KIB)?;
/// let file = memory.file_options().group(&tenant).open(&path)?;
/// file.scan(.., |_| ())?;                            // evicts its own pages, and nobody else's
/// assert!(tenant.usage() <= 512 * KIB);
///
/// let space = memory.create_space_in(&tenant)?;
/// let at = space.map(Map::anonymous(MIB))?;          // address space costs nothing yet
/// let mut a = space.accessor()?;
/// let full = a.fill(at, 1, MIB as usize).unwrap_err();
/// assert!(full.is_limit());
/// println!("{}", a.explain(full));                   // group root/tenant-a is full: ...
/// println!("{}", tenant.stats());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Group(Arc<Shared>);

struct Shared {
    tree: SharedTree,
    id: GroupId,
    /// Only kept alive, never handed out: see [`Group`].
    parent: Option<Group>,
}

/// Handles are equal if they name the same group.
impl PartialEq for Group {
    fn eq(&self, other: &Group) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // In a child of fork(2), the lock of the tree may be held for ever.
        if self.parent.is_some() && self.tree.maker.is_current() {
            let removed = self.tree.remove(self.id);
            debug_assert!(removed, "groups below hold their parent's handle");
        }
    }
}

impl Group {
    /// Creates the handle to the root of a tree: the whole memory.
    pub(crate) fn root(tree: SharedTree) -> Group {
        Group(Arc::new(Shared {
            tree,
            id: GroupId::ROOT,
            parent: None,
        }))
    }

    /// Returns whether this is a group of `tree`.
    pub(crate) fn belongs_to(&self, tree: &SharedTree) -> bool {
        Arc::ptr_eq(&self.0.tree, tree)
    }

    /// Charges the group for this many bytes on the heap.
    ///
    /// # Errors
    /// The group, or one above it, is full, or too far above its `high` for
    /// [`MayReclaim::Background`]. Or this is a child of fork(2). Nothing was charged then.
    pub(crate) fn charge_heap(
        &self,
        bytes: usize,
        may: MayReclaim,
    ) -> Result<HeapBytes, LimitError> {
        HeapBytes::add(&self.0.tree, self.0.id, bytes, may)
    }

    /// Changes a charge, which is `None` at first, to this many bytes, without waiting.
    ///
    /// # Errors
    /// The errors of [`Group::charge_heap`], in which case nothing has changed. Reducing the charge
    /// never fails.
    pub(crate) fn set_heap(
        &self,
        heap: &mut Option<HeapBytes>,
        bytes: usize,
    ) -> Result<(), LimitError> {
        match heap {
            Some(heap) => heap.set(bytes as u64, MayReclaim::Background),
            None => {
                *heap = Some(self.charge_heap(bytes, MayReclaim::Background)?);
                Ok(())
            }
        }
    }

    pub(super) fn tree(&self) -> &SharedTree {
        &self.0.tree
    }

    /// Returns the group's number, which the frames charged to it carry.
    pub(crate) fn id(&self) -> GroupId {
        self.0.id
    }

    /// Creates a group below this one, limited to `max` bytes (rounded down to whole pages) and by
    /// every group above it.
    ///
    /// # Errors
    /// [`GroupError::TooSmall`], [`GroupError::BadName`], [`GroupError::Exists`],
    /// [`GroupError::TooDeep`], [`GroupError::TooMany`], [`GroupError::TooManyBelow`];
    /// [`GroupError::Limit`]: this group has no memory left for the new one. (Every group except
    /// the root pays some 600 bytes for each group right below it.)
    pub fn create_child(&self, name: &str, max: u64) -> Result<Group, GroupError> {
        self.make_child(name, Some(PageCount::floor(max)))
            .map_err(|error| error.for_limit(max))
    }

    /// Creates a group below this one that counts usage but sets no limit: only the groups above
    /// limit it.
    ///
    /// # Errors
    /// The errors of [`Group::create_child`], except [`GroupError::TooSmall`].
    pub fn create_child_unlimited(&self, name: &str) -> Result<Group, GroupError> {
        self.make_child(name, None)
    }

    fn make_child(&self, name: &str, max: Option<PageCount>) -> Result<Group, GroupError> {
        let tree = &self.0.tree;
        // Groups right below the root are not charged for: only the owner of the memory creates
        // them, and their number is limited.
        let heap = match self.0.id {
            GroupId::ROOT => 0,
            _ => GroupTree::heap_of(name),
        };
        tree.add_heap(self.0.id, heap, MayReclaim::Yes)?;
        let id = tree.create_paid(self.0.id, name, max, heap);
        let id = id.inspect_err(|_| tree.give_heap_back(self.0.id, heap))?;
        let group = Group(Arc::new(Shared {
            tree: self.0.tree.clone(),
            id,
            parent: Some(self.clone()),
        }));
        tell!(debug, group = %group.path(), "group created");
        Ok(group)
    }

    /// Returns the name that the group was created with; `root` for the whole memory.
    pub fn name(&self) -> String {
        self.0.tree.name(self.0.id)
    }

    /// Returns the names from the root to this group, joined by `/`, as in errors and in
    /// [`GroupStats::path`]: `root/tenant-a`.
    pub fn path(&self) -> String {
        self.0.tree.path_name(self.0.id)
    }

    /// Changes the limit to `max` bytes (rounded down to whole pages), and then evicts the pages
    /// that are over it. With `None`, only the groups above limit it, as after
    /// [`Group::create_child_unlimited`]. The root's limit is never higher than its memory's:
    /// `None`, or more than the memory has, restores that limit.
    ///
    /// # Errors
    /// [`GroupError::TooSmall`], [`GroupError::TooSmallForBlocks`]: nothing changed.
    /// [`GroupError::Limit`]: the new limit holds, but the pages that the error names could not be
    /// evicted. Requests are refused until the usage is under the limit.
    pub fn set_max(&self, max: impl Into<Option<u64>>) -> Result<(), GroupError> {
        let max = max.into();
        let set = self.0.tree.set_max(self.0.id, max.map(PageCount::floor));
        set.map_err(|error| error.for_limit(max.unwrap_or(u64::MAX)))
    }

    /// Sets a mark above which requests are slow. Above `high` bytes (rounded down to whole pages)
    /// requests still succeed, but each must first evict pages of the group, or is slowed down.
    /// Requests that may not wait are refused a little above the mark. `None`, the default, sets no
    /// mark.
    ///
    /// # Errors
    /// [`GroupError::TooSmall`]: nothing changed.
    pub fn set_high(&self, high: impl Into<Option<u64>>) -> Result<(), GroupError> {
        let high = high.into();
        self.set(Protection::High, high)
            .map_err(|error| error.for_limit(high.unwrap_or(u64::MAX)))
    }

    /// Protects the group's pages from being evicted for other groups. While the group has no more
    /// than `low` bytes (rounded down to whole pages), its pages are evicted for another group only
    /// when the other groups have no unprotected pages left. Protection is bounded by that of the
    /// groups above. If children ask for more than their parent has, they share it in proportion to
    /// how much each uses of what it asks for. `None`, the default, gives no protection.
    ///
    /// # Errors
    /// None at present: every value is accepted, even one above the limit.
    pub fn set_low(&self, low: impl Into<Option<u64>>) -> Result<(), GroupError> {
        self.set(Protection::Low, low.into())
    }

    /// Like [`Group::set_low`], but absolute: requests of other groups fail before a protected page
    /// is evicted.
    ///
    /// Other groups cannot use this memory for data that is not yet written to its store: a write
    /// that would do so is refused, and the error names the writer's group. Data that was unwritten
    /// when the protection was set may stay until it is written. Anonymous memory and views of
    /// other groups cannot be evicted; set a `max` on those groups to keep them from taking the
    /// protected memory.
    ///
    /// # Errors
    /// [`GroupError::MinAboveMax`]: nothing changed.
    pub fn set_min(&self, min: impl Into<Option<u64>>) -> Result<(), GroupError> {
        self.set(Protection::Min, min.into())
    }

    fn set(&self, which: Protection, bytes: Option<u64>) -> Result<(), GroupError> {
        let pages = bytes.map(PageCount::floor);
        self.0.tree.set_protection(self.0.id, which, pages)
    }

    /// Evicts pages of this group and of the groups below it until `bytes` are freed or nothing
    /// more can be evicted. Returns how many bytes were freed.
    pub fn reclaim(&self, bytes: u64) -> u64 {
        let (id, pages) = (self.0.id, PageCount::ceil(bytes));
        let reclaimer = self.0.tree.reclaimer();
        let freed = reclaimer.map(|pool| pool.reclaim(id, pages, Some(id)));
        freed.unwrap_or_default().bytes()
    }

    /// Returns the bytes charged to this group and to all below it.
    pub fn usage(&self) -> u64 {
        self.0.tree.usage(self.0.id).bytes()
    }

    /// Returns the highest usage in bytes since the previous call for this group.
    /// [`GroupStats::peak`] has the highest usage ever.
    pub fn take_peak(&self) -> u64 {
        self.0.tree.take_peak(self.0.id).bytes()
    }

    /// Returns the events of the group so far.
    pub fn events(&self) -> GroupEvents {
        self.0.tree.events(self.0.id)
    }

    /// Returns how much of the time requests of this group and of the groups below it were stalled
    /// for memory.
    pub fn pressure(&self) -> Pressure {
        self.0.tree.pressure(self.0.id)
    }

    /// Subscribes to the group's events. The returned handle waits for them.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use innerspace::{KIB, MIB, Memory, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = Memory::with_limit(4 * MIB)?;
    /// let group = memory.create_group("scans", 256 * KIB)?;
    /// let watch = group.watch()?;
    /// let seen = watch.events();
    /// let store = MemoryStore::from_bytes(&[1; MIB as usize]);
    /// memory.file_options().group(&group).open_store(store)?.scan(.., |_| ())?;
    /// let events = watch.wait_timeout(&seen, Duration::from_secs(60));
    /// assert!(events.reclaimed.bytes() > 512 * KIB, "{events}");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The group, which pays for the subscription, is full, or one above it is.
    pub fn watch(&self) -> Result<GroupWatch, LimitError> {
        self.watch_with(None, 0)
    }

    /// Calls `callback` after events were counted, until the returned handle is dropped. The
    /// service thread, or [`Memory::tick`](crate::Memory::tick), looks for events about once a
    /// second and when memory is short. A thread of the memory then makes the call. In a memory
    /// without threads, the thread that called `tick` makes it, or another thread that calls the
    /// memory. One call may report several events.
    ///
    /// # Errors
    /// The group, which pays for the subscription, is full, or one above it is.
    pub fn on_events(
        &self,
        callback: impl Fn(&GroupEvents) + Send + Sync + 'static,
    ) -> Result<GroupWatch, LimitError> {
        let bytes = size_of_val(&callback);
        self.watch_with(Some(Box::new(callback)), bytes)
    }

    fn watch_with(
        &self,
        callback: Option<Callback>,
        bytes: usize,
    ) -> Result<GroupWatch, LimitError> {
        let heap = self.charge_heap(GroupWatch::HEAP + bytes, MayReclaim::Yes)?;
        let watchers = self.0.tree.watchers.clone();
        let (id, seen) = (self.0.id, self.events());
        Ok(GroupWatch::new(
            watchers,
            id,
            seen,
            callback,
            Box::new(heap),
        ))
    }

    /// Returns the group's counters.
    #[expect(
        clippy::missing_panics_doc,
        reason = "the handle keeps the group, which has counters as long as it lives"
    )]
    pub fn stats(&self) -> GroupStats {
        let stats = self.0.tree.stats(self.0.id);
        stats.expect("the handle keeps the group")
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({})", self.stats())
    }
}
