//! The nodes and their shape: making, limiting, deleting and walking groups.

use super::{
    GroupError, GroupId, GroupStats, LimitDetails, LimitError, LimitReason, MAX_DEPTH, Reclaimer,
    Slab, minimum_pages,
};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, Weak};
use crate::units::PageCount;

/// Levels on the longest path: the root and [`MAX_DEPTH`] below it.
pub(crate) const MAX_LEVELS: usize = MAX_DEPTH + 1;

/// Calls of the reclaimer that one `set_max` makes at most; each asks for everything that is over.
const SET_MAX_ROUNDS: usize = 64;

const NO_PARENT: u32 = u32::MAX;

const FREE: u8 = 0;
const LIVE: u8 = 1;
const DELETED: u8 = 2;

/// One group's counters. All atomic; `parent` is constant while the node is not free.
#[repr(align(128))]
pub(crate) struct Node {
    /// Pages charged to this node and to all below it.
    pub(super) usage: AtomicU64,
    /// Pages charged to this node itself.
    pub(super) own: AtomicU64,
    /// The hard limit in pages; `u64::MAX` for none.
    pub(super) max: AtomicU64,
    /// The highest `usage` of a charge that succeeded.
    pub(super) peak: AtomicU64,
    parent: AtomicU32,
    state: AtomicU8,
    accessors: AtomicU32,
    /// Charges this node refused.
    pub(super) refusals: AtomicU64,
    /// Must-succeed charges that took this node over `max`.
    pub(super) forced: AtomicU64,
    /// Pages of page-table and index nodes charged to this node itself (a share of `own`).
    tables: AtomicU64,
}

impl Node {
    fn new() -> Node {
        Node {
            usage: AtomicU64::new(0),
            own: AtomicU64::new(0),
            max: AtomicU64::new(u64::MAX),
            peak: AtomicU64::new(0),
            parent: AtomicU32::new(NO_PARENT),
            state: AtomicU8::new(FREE),
            accessors: AtomicU32::new(0),
            refusals: AtomicU64::new(0),
            forced: AtomicU64::new(0),
            tables: AtomicU64::new(0),
        }
    }

    /// The group above, or `None` at the root.
    #[inline]
    pub(super) fn parent(&self) -> Option<GroupId> {
        match self.parent.load(Ordering::Relaxed) {
            NO_PARENT => None,
            number => Some(GroupId(number as u16)),
        }
    }

    /// Deleted, with pages still charged. SeqCst pairs with `remove`: either it sees usage 0, or the last uncharge sees this.
    #[inline]
    pub(super) fn is_deleted(&self) -> bool {
        self.state.load(Ordering::SeqCst) == DELETED
    }

    fn max_pages(&self) -> Option<PageCount> {
        Some(PageCount(self.max.load(Ordering::Relaxed))).filter(|max| max.0 != u64::MAX)
    }
}

/// What the tree looks like: protected by the tree's mutex.
#[derive(Default)]
pub(crate) struct Shape {
    /// By group number; `None` when the number is free. A deleted group has an empty name.
    entries: Vec<Option<Entry>>,
    /// Free numbers below `entries.len()`.
    free: Vec<u16>,
}

struct Entry {
    name: String,
    children: Vec<GroupId>,
}

impl Shape {
    fn entry(&self, id: GroupId) -> Option<&Entry> {
        self.entries.get(id.0 as usize)?.as_ref()
    }

    fn entry_mut(&mut self, id: GroupId) -> Option<&mut Entry> {
        self.entries.get_mut(id.0 as usize)?.as_mut()
    }

    fn live(&self, id: GroupId) -> Result<&Entry, GroupError> {
        self.entry(id)
            .filter(|entry| !entry.name.is_empty())
            .ok_or(GroupError::Gone { number: id.0 })
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
    shape: Mutex<Shape>,
    reclaimer: Mutex<Option<Weak<dyn Reclaimer>>>,
}

impl std::fmt::Debug for GroupTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all_stats()).finish()
    }
}

impl GroupTree {
    /// A tree of the root alone, limited to `max`.
    pub(crate) fn new(max: PageCount) -> GroupTree {
        let tree = GroupTree {
            nodes: Slab::new(),
            shape: Mutex::new(Shape::default()),
            reclaimer: Mutex::new(None),
        };
        let mut shape = tree.shape.lock();
        let root = shape
            .take_number()
            .expect("the first number of an empty tree is free");
        tree.start_node(&mut shape, root, "root", None, max.0);
        drop(shape);
        tree
    }

    /// Says who frees pages when a limit is lowered below the usage.
    pub(crate) fn set_reclaimer(&self, reclaimer: Weak<dyn Reclaimer>) {
        *self.reclaimer.lock() = Some(reclaimer);
    }

    /// The whole memory.
    pub(crate) fn root(&self) -> GroupId {
        GroupId::ROOT
    }

    /// The counters of a group that exists or existed. Two loads.
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
        name: &str,
        parent: Option<GroupId>,
        max: u64,
    ) {
        let node = self.nodes.get_or_make(id.0, Node::new);
        for counter in [
            &node.usage,
            &node.own,
            &node.peak,
            &node.refusals,
            &node.forced,
            &node.tables,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        node.accessors.store(0, Ordering::Relaxed);
        node.max.store(max, Ordering::Relaxed);
        let parent_number = parent.map_or(NO_PARENT, |parent| u32::from(parent.0));
        node.parent.store(parent_number, Ordering::Relaxed);
        node.state.store(LIVE, Ordering::SeqCst);
        shape.entries[id.0 as usize] = Some(Entry {
            name: name.to_owned(),
            children: Vec::new(),
        });
    }

    /// Makes a group below `parent`. `max` `None`: limited by the groups above it alone.
    pub(crate) fn create(
        &self,
        parent: GroupId,
        name: &str,
        max: Option<PageCount>,
    ) -> Result<GroupId, GroupError> {
        if name.is_empty()
            || name.len() > 128
            || name.contains(|c: char| c == '/' || c.is_control())
        {
            return Err(GroupError::BadName { name: name.into() });
        }
        self.check_minimum(name, max, 0)?;
        let mut shape = self.shape.lock();
        let above = shape.live(parent)?;
        let taken = |child: &GroupId| shape.entry(*child).is_some_and(|entry| entry.name == name);
        if above.children.iter().any(taken) {
            return Err(GroupError::Exists {
                parent: above.name.clone(),
                name: name.into(),
            });
        }
        if self.levels(parent) >= MAX_LEVELS {
            return Err(GroupError::TooDeep { name: name.into() });
        }
        let id = shape
            .take_number()
            .ok_or_else(|| GroupError::TooMany { name: name.into() })?;
        let max = max.map_or(u64::MAX, |max| max.0);
        self.start_node(&mut shape, id, name, Some(parent), max);
        let above = shape.entry_mut(parent).expect("live above");
        above.children.push(id);
        Ok(id)
    }

    fn check_minimum(
        &self,
        name: &str,
        max: Option<PageCount>,
        accessors: u32,
    ) -> Result<(), GroupError> {
        let minimum = minimum_pages(accessors);
        match max {
            Some(max) if max < minimum => Err(GroupError::TooSmall {
                name: name.into(),
                max: max.bytes(),
                minimum: minimum.bytes(),
                accessors: accessors.max(1),
            }),
            _ => Ok(()),
        }
    }

    /// Changes the limit, then frees what is over it. The new limit stays also when that fails: the error says what could not
    /// be freed. It ends whatever others charge meanwhile: they are refused, and the number of rounds is bounded (M8).
    pub(crate) fn set_max(&self, id: GroupId, max: Option<PageCount>) -> Result<(), GroupError> {
        let node = {
            let shape = self.shape.lock();
            let entry = shape.live(id)?;
            let node = self.node(id);
            self.check_minimum(&entry.name, max, node.accessors.load(Ordering::Relaxed))?;
            node.max
                .store(max.map_or(u64::MAX, |max| max.0), Ordering::Relaxed);
            node
        };
        let reclaimer = self.reclaimer.lock().as_ref().and_then(Weak::upgrade);
        for _ in 0..SET_MAX_ROUNDS {
            let over = node
                .usage
                .load(Ordering::Relaxed)
                .saturating_sub(node.max.load(Ordering::Relaxed));
            if over == 0 {
                return Ok(());
            }
            let Some(reclaimer) = &reclaimer else { break };
            if reclaimer.reclaim(id, PageCount(over)).0 == 0 {
                break;
            }
        }
        if node.usage.load(Ordering::Relaxed) <= node.max.load(Ordering::Relaxed) {
            return Ok(());
        }
        let reason = LimitReason::NothingEvictable;
        Err(self
            .limit_error(id, PageCount(0), reason, reclaimer.as_deref())
            .into())
    }

    /// Deletes a group that has none below it. Its charges stand for its parent's from now on; its number is used again once
    /// the last of them is given back. Constant time, whatever is charged.
    pub(crate) fn remove(&self, id: GroupId) -> Result<(), GroupError> {
        let mut shape = self.shape.lock();
        if id == GroupId::ROOT {
            return Err(GroupError::IsRoot);
        }
        let entry = shape.live(id)?;
        let named = |child: &&GroupId| {
            shape
                .entry(**child)
                .is_some_and(|entry| !entry.name.is_empty())
        };
        let children = entry.children.iter().filter(named).count();
        if children > 0 {
            return Err(GroupError::HasChildren {
                name: entry.name.clone(),
                children,
            });
        }
        shape.entry_mut(id).expect("live above").name = String::new();
        let node = self.node(id);
        node.max.store(u64::MAX, Ordering::Relaxed);
        node.state.store(DELETED, Ordering::SeqCst);
        self.release_drained(&mut shape, id);
        Ok(())
    }

    /// Frees the number of a deleted group whose last page is gone, and of the deleted groups above it that only it kept.
    pub(super) fn release(&self, id: GroupId) {
        self.release_drained(&mut self.shape.lock(), id);
    }

    fn release_drained(&self, shape: &mut Shape, id: GroupId) {
        let mut next = Some(id);
        while let Some(id) = next {
            let node = self.node(id);
            let childless = shape
                .entry(id)
                .is_some_and(|entry| entry.children.is_empty());
            // Under the mutex: of two threads that both saw the count reach 0, the second finds the node free (or reused, live).
            if !(childless && node.is_deleted() && node.usage.load(Ordering::SeqCst) == 0) {
                return;
            }
            next = node.parent();
            node.state.store(FREE, Ordering::SeqCst);
            shape.entries[id.0 as usize] = None;
            shape.free.push(id.0);
            if let Some(above) = next.and_then(|parent| shape.entry_mut(parent)) {
                above.children.retain(|child| *child != id);
            }
        }
    }

    /// The group, and all below it, deleted ones that still have pages included: what reclaim has to look at.
    pub(crate) fn subtree(&self, id: GroupId) -> Vec<GroupId> {
        let shape = self.shape.lock();
        let mut found = vec![id];
        let mut at = 0;
        while at < found.len() {
            if let Some(entry) = shape.entry(found[at]) {
                found.extend(&entry.children);
            }
            at += 1;
        }
        found
    }

    /// Nodes from `id` to the root, both counted.
    fn levels(&self, id: GroupId) -> usize {
        std::iter::successors(Some(id), |id| self.node(*id).parent()).count()
    }

    /// One more accessor works for this group: fails when its limit is too small for that many.
    pub(crate) fn attach_accessor(&self, id: GroupId) -> Result<(), GroupError> {
        let shape = self.shape.lock();
        let entry = shape.live(id)?;
        let node = self.node(id);
        let accessors = node.accessors.load(Ordering::Relaxed) + 1;
        self.check_minimum(&entry.name, node.max_pages(), accessors)?;
        node.accessors.store(accessors, Ordering::Relaxed);
        Ok(())
    }

    /// The accessor of an earlier [`GroupTree::attach_accessor`] is gone.
    pub(crate) fn detach_accessor(&self, id: GroupId) {
        let _shape = self.shape.lock();
        let accessors = &self.node(id).accessors;
        let left = accessors.load(Ordering::Relaxed).checked_sub(1);
        accessors.store(left.expect("detach follows attach"), Ordering::Relaxed);
    }

    /// `pages` of this group's own charge are (no longer) page-table or index nodes.
    pub(crate) fn count_tables(&self, id: GroupId, change: i64) {
        // A wrapping add of a negative number subtracts; readers see a sum of whole changes.
        self.node(id)
            .tables
            .fetch_add(change as u64, Ordering::Relaxed);
    }

    /// Pages of page-table and index nodes charged to this group itself.
    pub(crate) fn tables(&self, id: GroupId) -> PageCount {
        PageCount(self.node(id).tables.load(Ordering::Relaxed))
    }

    /// Pages charged to the group and to all below it.
    #[inline]
    pub(crate) fn usage(&self, id: GroupId) -> PageCount {
        PageCount(self.node(id).usage.load(Ordering::Relaxed))
    }

    /// Pages charged to the group itself.
    pub(crate) fn own(&self, id: GroupId) -> PageCount {
        PageCount(self.node(id).own.load(Ordering::Relaxed))
    }

    /// The limit, `None` for none.
    pub(crate) fn max(&self, id: GroupId) -> Option<PageCount> {
        self.node(id).max_pages()
    }

    /// The highest usage so far.
    pub(crate) fn peak(&self, id: GroupId) -> PageCount {
        PageCount(self.node(id).peak.load(Ordering::Relaxed))
    }

    /// Charges this group refused.
    pub(crate) fn refusals(&self, id: GroupId) -> u64 {
        self.node(id).refusals.load(Ordering::Relaxed)
    }

    /// Must-succeed charges that took this group over its limit.
    pub(crate) fn forced(&self, id: GroupId) -> u64 {
        self.node(id).forced.load(Ordering::Relaxed)
    }

    /// The group's name; of a deleted group, the nearest live one above it, which its pages count for.
    pub(crate) fn name(&self, id: GroupId) -> String {
        let shape = self.shape.lock();
        let path = std::iter::successors(Some(id), |id| self.node(*id).parent());
        path.filter_map(|id| shape.live(id).ok())
            .map(|entry| entry.name.clone())
            .next()
            .unwrap_or_default()
    }

    /// The counters of one group; `None` when it is deleted.
    pub(crate) fn stats(&self, id: GroupId) -> Option<GroupStats> {
        self.stats_locked(&self.shape.lock(), id)
    }

    /// The counters of every group, parents before children.
    pub(crate) fn all_stats(&self) -> Vec<GroupStats> {
        let ids = self.subtree(GroupId::ROOT);
        let shape = self.shape.lock();
        ids.into_iter()
            .filter_map(|id| self.stats_locked(&shape, id))
            .collect()
    }

    fn stats_locked(&self, shape: &MutexGuard<'_, Shape>, id: GroupId) -> Option<GroupStats> {
        let entry = shape.live(id).ok()?;
        let node = self.node(id);
        let mut path: Vec<&str> = std::iter::successors(Some(id), |id| self.node(*id).parent())
            .filter_map(|id| shape.entry(id).map(|entry| entry.name.as_str()))
            .collect();
        path.reverse();
        let deleted = entry
            .children
            .iter()
            .filter(|child| self.node(**child).is_deleted());
        let inherited: u64 = deleted.map(|child| self.usage(*child).0).sum();
        Some(GroupStats {
            name: entry.name.clone(),
            path: path.join("/"),
            usage: self.usage(id),
            own: PageCount(node.own.load(Ordering::Relaxed) + inherited),
            max: node.max_pages(),
            peak: self.peak(id),
            refusals: self.refusals(id),
            forced: self.forced(id),
            tables: self.tables(id),
            accessors: node.accessors.load(Ordering::Relaxed),
        })
    }

    /// The error for a refusal by `id`, with the holders counted if a reclaimer is at hand.
    pub(crate) fn limit_error(
        &self,
        id: GroupId,
        requested: PageCount,
        reason: LimitReason,
        reclaimer: Option<&dyn Reclaimer>,
    ) -> LimitError {
        let usage = self.usage(id);
        LimitError::new(LimitDetails {
            group: self.name(id),
            id,
            max: self.max(id).unwrap_or(usage),
            usage,
            requested,
            reason,
            holders: reclaimer
                .map(|reclaimer| reclaimer.holders(id))
                .unwrap_or_default(),
        })
    }

    /// Recomputes the counters from their parts; call at rest. The message names the first group that disagrees (I8).
    pub(crate) fn validate(&self) -> Result<(), String> {
        let ids = self.subtree(GroupId::ROOT);
        let shape = self.shape.lock();
        for id in ids {
            let Some(entry) = shape.entry(id) else {
                return Err(format!(
                    "group {}: listed as a child, but its number is free",
                    id.0
                ));
            };
            let below: u64 = entry
                .children
                .iter()
                .map(|child| self.usage(*child).0)
                .sum();
            let (usage, own) = (self.usage(id).0, self.own(id).0);
            if usage != own + below {
                let name = &entry.name;
                return Err(format!(
                    "group {} {name:?}: usage {usage} is not own {own} + children {below} (I8)",
                    id.0
                ));
            }
            if self.tables(id).0 > own {
                return Err(format!("group {}: more table pages than own pages", id.0));
            }
        }
        Ok(())
    }
}

/// A tree that outlives its [`super::Group`] handles is shared.
pub(crate) type SharedTree = Arc<GroupTree>;
