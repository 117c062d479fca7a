//! Reports of the tree: usage and counters of groups, the details of a refusal, `validate`.

use super::levels::Levels;
use super::tree::Shape;
use super::{
    GroupEvents, GroupId, GroupStats, GroupTree, LimitDetails, LimitError, LimitReason, Reclaimer,
};
use crate::sync::MutexGuard;
use crate::sync::atomic::{Ordering, fence};
use crate::units::PageCount;

impl GroupTree {
    /// Returns the pages of page-table and index nodes charged to this group itself.
    pub(crate) fn tables(&self, id: GroupId) -> PageCount {
        PageCount(self.node(id).tables.load(Ordering::Relaxed))
    }

    /// Returns the pages in use that are charged to the group or below it, without those in stock.
    /// Exact while no thread is charging.
    pub(crate) fn usage(&self, id: GroupId) -> PageCount {
        let charged = self.charged(id).0;
        let stocked = self.stocks.sum(|group| self.is_below(group, id));
        PageCount(charged.saturating_sub(stocked))
    }

    /// Returns the pages charged to the group and to all below it, including those in stock: the
    /// value that limits are compared with. Takes one load.
    #[inline]
    pub(crate) fn charged(&self, id: GroupId) -> PageCount {
        PageCount(self.node(id).usage.load(Ordering::Relaxed))
    }

    /// Returns the pages in use that are charged to the group itself.
    pub(crate) fn own(&self, id: GroupId) -> PageCount {
        let charged = self.node(id).own.load(Ordering::Relaxed);
        PageCount(charged.saturating_sub(self.stocks.sum(|group| group == id)))
    }

    /// Returns the limit, or `None` if there is none.
    pub(crate) fn max(&self, id: GroupId) -> Option<PageCount> {
        self.node(id).max_pages()
    }

    /// Returns the mark above which charges are slow, or `None` if there is none.
    pub(crate) fn high(&self, id: GroupId) -> Option<PageCount> {
        self.node(id).high_pages()
    }

    /// Returns `low` and `min`: the pages protected while other groups have unprotected ones, and
    /// the pages that are always protected.
    pub(crate) fn protection(&self, id: GroupId) -> (PageCount, PageCount) {
        let node = self.node(id);
        let [low, min] = [&node.low, &node.min].map(|of| PageCount(of.load(Ordering::Relaxed)));
        (low, min)
    }

    /// Returns the sum of `min` of the groups right below.
    #[inline]
    pub(crate) fn owed(&self, id: GroupId) -> PageCount {
        PageCount(self.node(id).owed.load(Ordering::Relaxed))
    }

    /// Returns the groups right below that have a `min`, each with its `min`.
    pub(crate) fn creditors(&self, id: GroupId) -> Vec<(GroupId, PageCount)> {
        let shape = self.shape.lock();
        let entry = shape.entry(id);
        let children = entry.iter().flat_map(|entry| entry.children());
        let with_min = children.map(|child| (child, self.protection(child).1));
        with_min.filter(|(_, min)| min.0 > 0).collect()
    }

    /// Returns the highest usage so far. If several threads have stocks, the result may include
    /// pages in them.
    pub(crate) fn peak(&self, id: GroupId) -> PageCount {
        self.stocks.settle_below(self, id);
        // Usage is read before the noted peak. If pages had been taken off by then, their peak had
        // already been noted, so reading the noted peak finds it.
        let usage = self.usage(id);
        fence(Ordering::Acquire);
        PageCount(self.node(id).highest()).max(usage)
    }

    /// Returns the highest usage since the previous call.
    pub(crate) fn take_peak(&self, id: GroupId) -> PageCount {
        self.stocks.settle_below(self, id);
        let usage = self.usage(id);
        PageCount(self.node(id).take_recent_peak(usage.0)).max(usage)
    }

    /// Returns the events of the group so far.
    pub(crate) fn events(&self, id: GroupId) -> GroupEvents {
        self.node(id).events.load()
    }

    /// Returns the group's name. For a deleted group, returns the name of the nearest live group
    /// above it, for which its pages count.
    pub(crate) fn name(&self, id: GroupId) -> String {
        let shape = self.shape.lock();
        self.path(id)
            .filter_map(|id| shape.live(id))
            .map(|entry| entry.name.to_string())
            .next()
            .unwrap_or_default()
    }

    /// Returns the names from the root to the group, joined by `/`. For a deleted group, returns
    /// those of the nearest live group above it.
    pub(crate) fn path_name(&self, id: GroupId) -> String {
        self.full_name(&self.shape.lock(), id)
    }

    /// Like [`GroupTree::path_name`], for a caller that has the shape locked.
    pub(super) fn full_name(&self, shape: &Shape, id: GroupId) -> String {
        // No group is deleted before the groups below it are.
        let live = self.path(id).filter_map(|id| shape.live(id));
        let mut names: Vec<&str> = live.map(|entry| &*entry.name).collect();
        names.reverse();
        names.join("/")
    }

    /// Returns the counters of one group, or `None` if it is deleted.
    pub(crate) fn stats(&self, id: GroupId) -> Option<GroupStats> {
        self.stats_locked(&self.shape.lock(), id)
    }

    /// Returns the counters of every group that is not deleted, parents before children.
    pub(crate) fn all_stats(&self) -> Vec<GroupStats> {
        let ids = self.subtree(GroupId::ROOT);
        let shape = self.shape.lock();
        ids.into_iter()
            .filter_map(|id| self.stats_locked(&shape, id))
            .collect()
    }

    fn stats_locked(&self, shape: &MutexGuard<'_, Shape>, id: GroupId) -> Option<GroupStats> {
        let entry = shape.live(id)?;
        let node = self.node(id);
        let events = self.events(id);
        let deleted = entry
            .children()
            .filter(|child| self.node(*child).is_deleted());
        let inherited: u64 = deleted.map(|child| self.usage(child).0).sum();
        Some(GroupStats {
            name: entry.name.to_string(),
            path: self.full_name(shape, id),
            usage: self.usage(id),
            own: PageCount(self.own(id).0 + inherited),
            max: node.max_pages(),
            high: node.high_pages(),
            low: self.protection(id).0,
            min: self.protection(id).1,
            peak: self.peak(id),
            refusals: events.refused,
            events,
            tables: self.tables(id),
            accessors: node.accessors.load(Ordering::Relaxed),
        })
    }

    /// Creates the error for a refusal by `id`. The holders are counted if there is a reclaimer.
    pub(crate) fn limit_error(
        &self,
        id: GroupId,
        requested: PageCount,
        reason: LimitReason,
        reclaimer: Option<&dyn Reclaimer>,
    ) -> LimitError {
        let usage = self.usage(id);
        LimitError::new(LimitDetails {
            group: self.path_name(id),
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
}

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/counters.rs"]
mod validate;
