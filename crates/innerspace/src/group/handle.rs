//! The public handle on a group, and its counters.

use std::fmt;

use super::tree::SharedTree;
use super::{GroupError, GroupId};
use crate::sync::Arc;
use crate::units::{ByteSize, Grouped, PageCount};

/// A memory group: a name, a limit, and everything charged to it.
///
/// Clones name the same group. The last clone deletes it: what is still charged (pages of files and spaces that outlive it, views)
/// counts for the parent from then on. A group keeps the groups above it alive.
#[derive(Clone)]
pub struct Group(Arc<Shared>);

struct Shared {
    tree: SharedTree,
    id: GroupId,
    parent: Option<Group>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.parent.is_some() {
            let removed = self.tree.remove(self.id);
            debug_assert!(
                removed.is_ok(),
                "groups below hold their parent's handle: {removed:?}"
            );
        }
    }
}

impl Group {
    /// The root of a tree: the whole memory.
    pub(crate) fn root(tree: SharedTree) -> Group {
        Group(Arc::new(Shared {
            tree,
            id: GroupId::ROOT,
            parent: None,
        }))
    }

    /// Whether this is a group of `tree`.
    pub(crate) fn belongs_to(&self, tree: &SharedTree) -> bool {
        Arc::ptr_eq(&self.0.tree, tree)
    }

    /// The number that frames carry.
    pub(crate) fn id(&self) -> GroupId {
        self.0.id
    }

    /// Makes a group below this one, limited to `max` bytes (rounded down to whole pages) and by every group above it.
    ///
    /// # Errors
    /// [`GroupError::TooSmall`], [`GroupError::BadName`], [`GroupError::Exists`], [`GroupError::TooDeep`],
    /// [`GroupError::TooMany`].
    pub fn child(&self, name: &str, max: u64) -> Result<Group, GroupError> {
        self.make_child(name, Some(PageCount::floor(max)))
    }

    /// Makes a group below this one that only counts: the groups above it are its limit.
    ///
    /// # Errors
    /// As [`Group::child`], [`GroupError::TooSmall`] excepted.
    pub fn child_unlimited(&self, name: &str) -> Result<Group, GroupError> {
        self.make_child(name, None)
    }

    fn make_child(&self, name: &str, max: Option<PageCount>) -> Result<Group, GroupError> {
        let id = self.0.tree.create(self.0.id, name, max)?;
        Ok(Group(Arc::new(Shared {
            tree: self.0.tree.clone(),
            id,
            parent: Some(self.clone()),
        })))
    }

    /// The name it was given; `root` for the whole memory.
    pub fn name(&self) -> String {
        self.0.tree.name(self.0.id)
    }

    /// The group above, `None` for the root.
    pub fn parent(&self) -> Option<&Group> {
        self.0.parent.as_ref()
    }

    /// Changes the limit to `max` bytes (rounded down to whole pages): first the limit, then eviction of what is over it.
    ///
    /// # Errors
    /// [`GroupError::TooSmall`]: nothing changed. [`GroupError::Limit`]: the new limit holds, but what the error names could not
    /// be evicted; requests are refused until usage is under it.
    pub fn set_max(&self, max: u64) -> Result<(), GroupError> {
        self.0.tree.set_max(self.0.id, Some(PageCount::floor(max)))
    }

    /// Bytes charged to this group and to all below it.
    pub fn usage(&self) -> u64 {
        self.0.tree.usage(self.0.id).bytes()
    }

    /// The group's counters.
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

/// What a group has and what happened to it. `Display` prints one line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GroupStats {
    /// The group's name.
    pub name: String,
    /// The names from the root to it, joined by `/`.
    pub path: String,
    /// Pages charged to it and to all below it.
    pub usage: PageCount,
    /// Pages charged to it alone, what deleted groups below it left behind included.
    pub own: PageCount,
    /// Its limit; `None`: limited by the groups above it alone.
    pub max: Option<PageCount>,
    /// The highest usage so far.
    pub peak: PageCount,
    /// Requests it refused before reclaim was tried.
    pub refusals: u64,
    /// Requests that had to be granted over its limit.
    pub forced: u64,
    /// Pages of page-table and index nodes charged to it alone.
    pub tables: PageCount,
    /// Accessors that work for it.
    pub accessors: u32,
}

impl fmt::Display for GroupStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of ", self.path, ByteSize(self.usage.bytes()))?;
        match self.max {
            Some(max) => write!(f, "{}", ByteSize(max.bytes()))?,
            None => f.write_str("no limit")?,
        }
        write!(
            f,
            ", peak {}, {} refusals",
            ByteSize(self.peak.bytes()),
            Grouped(self.refusals)
        )
    }
}
