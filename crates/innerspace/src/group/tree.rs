//! The tree's nodes and shape: creates, limits, deletes and walks groups.

use std::collections::BTreeSet;

use super::block_sizes::{pages_for, too_small};
use super::node::{EventCounters, NO_LIMIT, Node};
use super::slot::Batches;
use super::stall::{Pressure, Stalls};
use super::stock::Stocks;
use super::watch::Watchers;
use super::{
    GroupError, GroupId, LimitReason, MAX_DEPTH, MAX_GROUPS_BELOW, Reclaimer, Slab, minimum_pages,
};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, OnDrop, Rank, Weak, failpoint};
use crate::sys::process::Process;
use crate::units::PageCount;

/// The number of levels on the longest path: the root and [`MAX_DEPTH`] below it.
pub(crate) const MAX_LEVELS: usize = MAX_DEPTH + 1;

/// The heap bytes of a group's handle, and of the reference counts of its name.
const HANDLE_BYTES: usize = 56;

/// The panic message if a group that a handle names is not found.
const IN_USE: &str = "a handle keeps its group";

/// The most calls to the reclaimer by one `set_max`. Each call requests all pages over the limit.
const SET_MAX_ROUNDS: usize = 64;

/// The most pages that one group's `min` adds to the sum in its parent, so that sums do not
/// overflow. No memory has as many pages.
pub(super) const MOST_OWED: u64 = 1 << 44;

/// The marks of a group besides `max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protection {
    /// Above this mark charges succeed, and their callers reclaim or are slowed down.
    High,
    /// Below this mark pages are evicted only when nothing unprotected is left.
    Low,
    /// Below this mark pages are not evicted for other groups.
    Min,
}

/// The shape of the tree, under its mutex.
#[derive(Default)]
pub(crate) struct Shape {
    /// The groups by number; `None` where the number is free. A deleted group has an empty name.
    entries: Vec<Option<Entry>>,
    /// Free numbers below `entries.len()`.
    free: Vec<u16>,
}

#[derive(Default)]
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    /// The groups right below, by name. Deleted groups have an empty name.
    children: BTreeSet<(Arc<str>, GroupId)>,
    /// The number of children that are not deleted.
    live: usize,
    /// The number of group numbers in use below this group, at any depth.
    below: usize,
    /// The heap bytes of this group, for which the group above is charged.
    heap: u64,
}

impl Entry {
    /// Returns the groups right below, deleted ones included.
    pub(super) fn children(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.children.iter().map(|(_, child)| *child)
    }

    /// Returns whether a group right below has this name.
    fn has_child(&self, name: &Arc<str>) -> bool {
        let mut same = self.children.range((name.clone(), GroupId(0))..);
        same.next().is_some_and(|(found, _)| found == name)
    }
}

impl Shape {
    pub(super) fn entry(&self, id: GroupId) -> Option<&Entry> {
        self.entries.get(id.0 as usize)?.as_ref()
    }

    fn entry_mut(&mut self, id: GroupId) -> Option<&mut Entry> {
        self.entries.get_mut(id.0 as usize)?.as_mut()
    }

    pub(super) fn live(&self, id: GroupId) -> Option<&Entry> {
        self.entry(id).filter(|entry| !entry.name.is_empty())
    }

    fn take_number(&mut self) -> Option<GroupId> {
        if let Some(number) = self.free.pop() {
            return Some(GroupId(number));
        }
        let number = u16::try_from(self.entries.len()).ok()?;
        self.entries.push(None);
        Some(GroupId(number))
    }
}

/// All groups of one memory.
pub(crate) struct GroupTree {
    nodes: Slab<Node>,
    /// The pages of the whole memory: the highest limit of the root.
    whole: PageCount,
    pub(super) shape: Mutex<Shape>,
    reclaimer: Mutex<Option<Weak<dyn Reclaimer>>>,
    pub(super) stocks: Stocks,
    pub(super) watchers: Arc<Watchers>,
    /// The number of groups over their limit: see [`super::over`].
    pub(super) over: AtomicU32,
    /// The moment from which the times of stalls are counted.
    born: std::time::Instant,
    /// The process that created the memory.
    pub(super) maker: Process,
}

impl std::fmt::Debug for GroupTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all_stats()).finish()
    }
}

impl GroupTree {
    /// Creates a tree of the root alone, limited to `max`.
    pub(crate) fn new(max: PageCount) -> GroupTree {
        GroupTree::with_batches(max, Batches::of(max.0))
    }

    /// Like [`GroupTree::new`], with other batch sizes for the stocks.
    pub(super) fn with_batches(max: PageCount, batches: Batches) -> GroupTree {
        let tree = GroupTree {
            nodes: Slab::new(),
            whole: max,
            shape: Mutex::ranked(Rank::GroupTree, Shape::default()),
            reclaimer: Mutex::new(None),
            stocks: Stocks::new(batches),
            watchers: Arc::default(),
            over: AtomicU32::new(0),
            born: std::time::Instant::now(),
            maker: Process::current(),
        };
        let mut shape = tree.shape.lock();
        let root = shape
            .take_number()
            .expect("the first number of an empty tree is free");
        tree.start_node(&mut shape, root, &"root".into(), None, max.0, 0);
        drop(shape);
        tree
    }

    /// Sets the reclaimer. It frees pages for heap charges, for a limit that is lowered below the
    /// usage, and for `Group::reclaim`.
    pub(crate) fn set_reclaimer(&self, reclaimer: Weak<dyn Reclaimer>) {
        *self.reclaimer.lock() = Some(reclaimer);
    }

    /// Returns the counters of a group that exists or existed, by two loads.
    #[inline]
    pub(super) fn node(&self, id: GroupId) -> &Node {
        self.nodes
            .get(id.0)
            .expect("a group number comes from this tree")
    }

    fn start_node(
        &self,
        shape: &mut Shape,
        id: GroupId,
        name: &Arc<str>,
        parent: Option<GroupId>,
        max: u64,
        heap: u64,
    ) {
        self.nodes
            .get_or_make(id.0, Node::default)
            .start(parent, max);
        shape.entries[id.0 as usize] = Some(Entry {
            name: name.clone(),
            heap,
            ..Entry::default()
        });
    }

    /// Creates a group below `parent`. The caller has charged `parent` for `heap` bytes. On success
    /// they stay charged until the number of the new group is free again.
    pub(super) fn create_paid(
        &self,
        parent: GroupId,
        name: &str,
        max: Option<PageCount>,
        heap: u64,
    ) -> Result<GroupId, GroupError> {
        if name.is_empty()
            || name.len() > 128
            || name.contains(|c: char| c == '/' || c.is_control())
        {
            return Err(GroupError::BadName { name: name.into() });
        }
        let mut shape = self.shape.lock();
        let above = shape.live(parent).expect(IN_USE);
        let path = || format!("{}/{name}", self.full_name(&shape, parent));
        check_minimum(path, max, 0)?;
        let name: Arc<str> = name.into();
        if above.has_child(&name) {
            return Err(GroupError::Exists {
                parent: self.full_name(&shape, parent),
                name: name.to_string(),
            });
        }
        if self.path(parent).count() >= MAX_LEVELS {
            return Err(GroupError::TooDeep { group: path() });
        }
        let is_full = |id: &GroupId| {
            let below = shape.entry(*id).map_or(0, |entry| entry.below);
            *id != GroupId::ROOT && below >= MAX_GROUPS_BELOW
        };
        if let Some(full) = self.path(parent).find(is_full) {
            return Err(GroupError::TooManyBelow {
                group: self.full_name(&shape, full),
            });
        }
        let group = path();
        let Some(id) = shape.take_number() else {
            return Err(GroupError::TooMany { group });
        };
        let max = max.map_or(NO_LIMIT, |max| max.0);
        self.start_node(&mut shape, id, &name, Some(parent), max, heap);
        let above = shape.entry_mut(parent).expect("live above");
        above.children.insert((name, id));
        above.live += 1;
        for id in self.path(parent) {
            shape.entry_mut(id).expect("above one that is in use").below += 1;
        }
        Ok(id)
    }

    pub(crate) fn reclaimer(&self) -> Option<Arc<dyn Reclaimer>> {
        self.reclaimer.lock().as_ref().and_then(Weak::upgrade)
    }

    /// Changes the limit, then frees pages over it. The new limit stays even if that fails: the
    /// error says which pages could not be freed. The call ends even if other threads go on
    /// charging: they are refused, and the number of rounds is bounded (M8).
    ///
    /// The root's limit is never more than the whole memory: the marks at which the background
    /// evicts and writes, and the memory owed to protected groups, are parts of that limit.
    pub(crate) fn set_max(&self, id: GroupId, max: Option<PageCount>) -> Result<(), GroupError> {
        let limit = match id {
            GroupId::ROOT => Some(max.unwrap_or(self.whole).min(self.whole)),
            _ => max,
        };
        let node = {
            let shape = self.shape.lock();
            assert!(shape.live(id).is_some(), "{IN_USE}");
            let node = self.node(id);
            let path = || self.full_name(&shape, id);
            check_minimum(path, max, node.accessors.load(Ordering::Relaxed))?;
            if let (Some(max), Some(order)) = (max, node.blocks.largest())
                && max < pages_for(order)
            {
                return Err(too_small(path(), max, order));
            }
            node.max
                .store(limit.map_or(NO_LIMIT, |max| max.0), Ordering::Relaxed);
            node
        };
        // The flag `over` is set before stocks are drained, so that pages given back later do not
        // fill a stock again.
        self.note_over(node);
        let reclaimer = self.reclaimer();
        for _ in 0..SET_MAX_ROUNDS {
            self.drain_stocks(id);
            let over = node
                .usage
                .load(Ordering::Relaxed)
                .saturating_sub(node.max.load(Ordering::Relaxed));
            if over == 0 {
                return Ok(());
            }
            let Some(reclaimer) = &reclaimer else { break };
            if reclaimer.reclaim(id, PageCount(over), Some(id)).0 == 0 {
                break;
            }
        }
        // Pages given back just before the group was over its limit may have been stocked since the
        // last drain. None of them is in use.
        self.drain_stocks(id);
        if node.usage.load(Ordering::Relaxed) <= node.max.load(Ordering::Relaxed) {
            return Ok(());
        }
        let reason = LimitReason::NothingEvictable;
        Err(self
            .limit_error(id, PageCount(0), reason, reclaimer.as_deref())
            .into())
    }

    /// Deletes a group that has no live groups below it. Its charges count as its parent's from now
    /// on, and its number is reused once the last of the charges is given back. Takes constant
    /// time, whatever is charged.
    ///
    /// Returns false if the group is the root, is already deleted or has live groups below it. The
    /// handles exclude these cases.
    pub(crate) fn remove(&self, id: GroupId) -> bool {
        let mut shape = self.shape.lock();
        let is_leaf = shape.live(id).is_some_and(|entry| entry.live == 0);
        if id == GroupId::ROOT || !is_leaf {
            return false;
        }
        let nameless: Arc<str> = "".into();
        let entry = shape.entry_mut(id).expect("live above");
        let name = std::mem::replace(&mut entry.name, nameless.clone());
        let parent = self.node(id).parent().expect("not the root");
        let above = shape.entry_mut(parent).expect("above one that is in use");
        above.children.remove(&(name, id));
        above.children.insert((nameless, id));
        above.live -= 1;
        self.change_min(id, 0);
        self.node(id).delete();
        self.note_over(self.node(id));
        drop(shape);
        self.stocks.drain_all(self, id);
        self.release(id);
        failpoint!(Released);
        true
    }

    /// Frees the number of a deleted group if its last page and heap byte are gone and no group is
    /// below it. Then also frees the numbers of deleted groups above it that only this group kept
    /// in use.
    pub(super) fn release(&self, id: GroupId) {
        let mut freed = Vec::new();
        self.release_drained(&mut self.shape.lock(), id, &mut freed);
        // Giving back the heap bytes of the freed groups may release a deleted group further up.
        for (parent, heap) in freed {
            self.give_heap_back(parent, heap);
        }
    }

    fn release_drained(&self, shape: &mut Shape, id: GroupId, freed: &mut Vec<(GroupId, u64)>) {
        let mut next = Some(id);
        while let Some(id) = next {
            let node = self.node(id);
            let childless = shape
                .entry(id)
                .is_some_and(|entry| entry.children.is_empty());
            // This runs under the mutex: of two threads that both saw the count reach 0, the second
            // finds the node free (or live, if it was reused).
            let unused = || node.usage.load(Ordering::SeqCst) == 0 && self.is_heap_empty(id);
            if !(childless && node.is_deleted() && unused()) {
                return;
            }
            next = node.parent();
            node.end();
            let entry = shape.entries[id.0 as usize].take();
            shape.free.push(id.0);
            let (Some(parent), Some(entry)) = (next, entry) else {
                return;
            };
            if let Some(above) = shape.entry_mut(parent) {
                above.children.remove(&(entry.name, id));
            }
            for id in self.path(parent) {
                shape.entry_mut(id).expect("above one that is in use").below -= 1;
            }
            if entry.heap > 0 {
                freed.push((parent, entry.heap));
            }
        }
    }

    /// Returns the group and all below it, including deleted ones that still have pages: the groups
    /// that reclaim must look at.
    pub(crate) fn subtree(&self, id: GroupId) -> Vec<GroupId> {
        let shape = self.shape.lock();
        let mut found = vec![id];
        let mut at = 0;
        while at < found.len() {
            if let Some(entry) = shape.entry(found[at]) {
                found.extend(entry.children());
            }
            at += 1;
        }
        found
    }

    /// Returns the heap bytes of a group with this name: its counters, its place in the tree, and
    /// its handle.
    pub(super) fn heap_of(name: &str) -> u64 {
        let place = size_of::<Entry>() + 2 * size_of::<(Arc<str>, GroupId)>();
        (size_of::<Node>() + place + name.len() + HANDLE_BYTES) as u64
    }

    /// Returns the group and the groups above it, from the group up to the root.
    pub(crate) fn path(&self, id: GroupId) -> impl Iterator<Item = GroupId> + '_ {
        std::iter::successors(Some(id), |id| self.node(*id).parent())
    }

    /// Counts an event of a group `times` times, and notes that its watchers are to be called.
    pub(super) fn count(&self, id: GroupId, times: u64, which: fn(&EventCounters) -> &AtomicU64) {
        which(&self.node(id).events).fetch_add(times, Ordering::Relaxed);
        self.watchers.note();
    }

    /// Counts a request that reached this group's `max` and now reclaims.
    pub(crate) fn count_max(&self, id: GroupId) {
        self.count(id, 1, |events| &events.max);
    }

    /// Counts a request that failed because of this group.
    pub(crate) fn count_oom(&self, id: GroupId) {
        self.count(id, 1, |events| &events.oom);
    }

    /// Counts evicted pages in the group that they were charged to, and in the groups above it.
    pub(crate) fn count_reclaimed(&self, id: GroupId, pages: PageCount) {
        for id in self.path(id) {
            self.count(id, pages.0, |events| &events.reclaimed);
        }
    }

    /// Sets `high`, `low` or `min` of a group. Nothing is evicted here. A charge from a stock does
    /// not look at `high`, so a new `high` empties the stocks of this group and of the groups below
    /// it.
    pub(crate) fn set_protection(
        &self,
        id: GroupId,
        which: Protection,
        pages: Option<PageCount>,
    ) -> Result<(), GroupError> {
        let shape = self.shape.lock();
        assert!(shape.live(id).is_some(), "{IN_USE}");
        let node = self.node(id);
        let max = node.max.load(Ordering::Relaxed);
        let (counter, default) = match which {
            Protection::High => (&node.high, NO_LIMIT),
            Protection::Low => (&node.low, 0),
            Protection::Min => (&node.min, 0),
        };
        let value = pages.map_or(default, |pages| pages.0);
        if which == Protection::Min && value > max {
            return Err(GroupError::MinAboveMax {
                group: self.full_name(&shape, id),
                min: PageCount(value).bytes(),
                max: PageCount(max).bytes(),
            });
        }
        if which == Protection::High {
            check_minimum(|| self.full_name(&shape, id), pages, 0)?;
        }
        match which {
            Protection::Min => self.change_min(id, value),
            _ => counter.store(value, Ordering::Relaxed),
        }
        drop(shape);
        if which == Protection::High {
            self.drain_stocks(id);
        }
        Ok(())
    }

    /// Sets a group's `min`, and updates `owed` of the group above. The caller holds the tree's
    /// mutex.
    fn change_min(&self, id: GroupId, min: u64) {
        let node = self.node(id);
        let before = node.min.swap(min, Ordering::Relaxed);
        if let Some(above) = node.parent() {
            let owed = &self.node(above).owed;
            let others = owed.load(Ordering::Relaxed) - before.min(MOST_OWED);
            owed.store(others + min.min(MOST_OWED), Ordering::Relaxed);
        }
    }

    /// Counts one more accessor of this group. The group's limit cannot be set below the pages that
    /// its accessors need.
    pub(crate) fn attach_accessor(&self, id: GroupId) {
        self.node(id).accessors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one accessor fewer, after an earlier [`GroupTree::attach_accessor`].
    pub(crate) fn detach_accessor(&self, id: GroupId) {
        let accessors = self.node(id).accessors.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(accessors > 0, "detach follows attach");
    }

    /// Returns the nanoseconds since the tree was created.
    fn time(&self) -> u64 {
        self.born.elapsed().as_nanos() as u64
    }

    /// Begins a stall of one of the group's requests, which counts in the group and in all above
    /// it. The stall lasts until the result is dropped. The caller keeps the group alive.
    pub(crate) fn stall(&self, group: GroupId) -> OnDrop<impl FnMut() + '_> {
        let time = self.time();
        for id in self.path(group) {
            let mut stalls = self.node(id).stalls.lock();
            stalls
                .get_or_insert_with(|| Box::new(Stalls::new()))
                .begin(time);
        }
        OnDrop(move || {
            let time = self.time();
            for id in self.path(group) {
                if let Some(stalls) = &mut *self.node(id).stalls.lock() {
                    stalls.end(time);
                }
            }
        })
    }

    /// Returns how much of the time requests of the group and of the groups below it were stalled.
    pub(crate) fn pressure(&self, group: GroupId) -> Pressure {
        let stalls = self.node(group).stalls.lock();
        let pressure = stalls.as_ref().map(|stalls| stalls.pressure(self.time()));
        pressure.unwrap_or_default()
    }

    /// Updates every watcher whose group has counted events since the last call. Returns the
    /// callbacks to call now, each with its group.
    pub(crate) fn due_watchers(&self) -> Vec<(GroupId, Box<dyn FnOnce() + Send>)> {
        self.watchers.tell(|group| self.events(group))
    }

    /// Adds `change` to the number of page-table and index nodes among this group's own charge.
    pub(crate) fn count_tables(&self, id: GroupId, change: i64) {
        // Adding a negative number wraps, and so subtracts. Readers see a sum of whole changes.
        self.node(id)
            .tables
            .fetch_add(change as u64, Ordering::Relaxed);
    }
}

/// Refuses a limit that is too small for a group with this many accessors. `path` gives the group's
/// name for the error.
fn check_minimum(
    path: impl FnOnce() -> String,
    max: Option<PageCount>,
    accessors: u32,
) -> Result<(), GroupError> {
    let minimum = minimum_pages(accessors);
    match max {
        Some(max) if max < minimum => Err(GroupError::TooSmall {
            group: path(),
            max: max.bytes(),
            minimum: minimum.bytes(),
            accessors: accessors.max(1),
        }),
        _ => Ok(()),
    }
}

/// A shared tree, which outlives its [`super::Group`] handles.
pub(crate) type SharedTree = Arc<GroupTree>;

#[cfg(test)]
mod for_tests {
    use super::*;

    impl GroupTree {
        /// Returns the root, which stands for the whole memory.
        pub(crate) fn root(&self) -> GroupId {
            GroupId::ROOT
        }

        /// Creates a group below `parent`. With `max` `None`, only the groups above limit it.
        pub(crate) fn create(
            &self,
            parent: GroupId,
            name: &str,
            max: Option<PageCount>,
        ) -> Result<GroupId, GroupError> {
            self.create_paid(parent, name, max, 0)
        }

        /// Calls the callbacks of [`GroupTree::due_watchers`].
        pub(crate) fn call_watchers(&self) {
            let mut panics = crate::sync::panics::Panics::default();
            for (_, call) in self.due_watchers() {
                panics.catch(call);
            }
            panics.go_on();
        }
    }
}
