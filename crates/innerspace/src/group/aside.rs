//! Pages that a group sets aside for requests that must succeed later, when there may be no room.
//!
//! Pages set aside are charged to the group until they are lent to a request, of any group, and
//! become part of the request's charge. While they are lent, room is kept for them: when pages are
//! given back to the group, an equal number can be charged again only by the [`SetAside`]. So the
//! pages are set aside again once the requests have ended, however much other requests ask for.

use super::counters::Ceiling;
use super::{Charge, Group, GroupId, GroupTree};
use crate::stats::thread_number;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::PageCount;

/// Pages that a group has set aside. Dropping this gives back those that are not lent.
pub(crate) struct SetAside {
    group: Group,
    most: PageCount,
    /// The pages that are not lent. Pages are added with Release and taken with Acquire, so a page
    /// is charged before another thread can lend it.
    left: AtomicU64,
}

impl SetAside {
    /// Sets aside the pages of `charged`, a charge to `group`.
    pub(crate) fn new(group: &Group, charged: Charge<'_>) -> SetAside {
        let most = charged.pages();
        debug_assert_eq!(charged.group(), group.id());
        let _group = charged.commit();
        SetAside {
            group: group.clone(),
            most,
            left: AtomicU64::new(most.0),
        }
    }

    /// Lends pages: returns them as a charge to `to`, a group of the same tree. Returns `None` if
    /// fewer than `pages` are left, or if `to` or a group above it has no room for them.
    pub(crate) fn lend<'t>(
        &self,
        tree: &'t GroupTree,
        to: GroupId,
        pages: PageCount,
    ) -> Option<Charge<'t>> {
        self.refill(tree);
        let (taking, looking) = (Ordering::Acquire, Ordering::Relaxed);
        let take = |left: u64| left.checked_sub(pages.0);
        self.left.fetch_update(taking, looking, take).ok()?;
        // Room is kept before the pages move, because the move takes them off the groups that are
        // above this one but not above `to`.
        tree.keep_room(self.group.id(), pages);
        let charge = tree.transfer(self.group.id(), to, pages);
        if charge.is_err() {
            tree.end_room(self.group.id(), pages);
            self.left.fetch_add(pages.0, Ordering::Release);
        }
        charge.ok()
    }

    /// Charges the group again for pages that were lent, until all are set aside or there is no
    /// room.
    fn refill(&self, tree: &GroupTree) {
        let group = self.group.id();
        let page = PageCount(1);
        while self.left.load(Ordering::Relaxed) < self.most.0 && tree.charge_kept(group, page) {
            let add = |left: u64| (left < self.most.0).then_some(left + 1);
            let (adding, looking) = (Ordering::Release, Ordering::Relaxed);
            match self.left.fetch_update(adding, looking, add) {
                Ok(_) => tree.end_room(group, page),
                // Another thread has added the last page.
                Err(_) => tree.uncharge(group, page),
            }
        }
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let (tree, group) = (self.group.tree(), self.group.id());
        let left = *self.left.get_mut();
        tree.end_room(group, PageCount(self.most.0 - left));
        if left > 0 {
            tree.uncharge(group, PageCount(left));
        }
    }
}

impl GroupTree {
    /// Keeps room for pages that are lent, in the group and in all above it.
    fn keep_room(&self, group: GroupId, pages: PageCount) {
        for id in self.path(group) {
            self.node(id).lent.fetch_add(pages.0, Ordering::SeqCst);
            self.note_over(self.node(id));
        }
    }

    /// Stops keeping room for pages: they are set aside again, or their [`SetAside`] is dropped.
    fn end_room(&self, group: GroupId, pages: PageCount) {
        for id in self.path(group).filter(|_| pages.0 > 0) {
            self.node(id).lent.fetch_sub(pages.0, Ordering::SeqCst);
            self.note_over(self.node(id));
        }
    }

    /// Charges pages for which room is kept. Returns false if there is no room yet.
    fn charge_kept(&self, group: GroupId, pages: PageCount) -> bool {
        let stocked = self.stocks.count(thread_number(), group);
        let added = self.add_levels(group, None, pages, Ceiling::Kept, stocked);
        added.is_ok()
    }

    /// Returns the usage up to which charges to a group are granted.
    pub(crate) fn limit(&self, group: GroupId) -> u64 {
        self.node(group).limit()
    }
}
