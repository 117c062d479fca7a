//! Pages that a group sets aside for requests that must succeed later, when there may be no room.
//!
//! They are charged to the group until they are lent to a request, of any group, and become part of
//! its charge. From then on room is kept for them: while pages are lent, an equal number of pages
//! that are given back to their groups can be charged again only by the [`SetAside`]. So the pages
//! are set aside again when the requests to which they were lent have ended, however much others
//! request.

use super::counters::Ceiling;
use super::{Charge, Group, GroupId, GroupTree};
use crate::stats::thread_number;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::PageCount;

/// Pages that a group has set aside. Those that are not lent are given back when this is dropped.
pub(crate) struct SetAside {
    group: Group,
    most: PageCount,
    /// The pages that are not lent. Release when some are added, Acquire when some are taken: pages
    /// were charged before another thread lends them.
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

    /// Returns pages as a charge to `to`, a group of the same tree. Returns `None` if too few are
    /// left that are not lent, or if they do not fit in the limits of `to`.
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
        // This is done before the pages move, because the move takes them off the groups that are
        // above this one but not above `to`.
        tree.keep_room(self.group.id(), pages);
        let charge = tree.transfer(self.group.id(), to, pages);
        if charge.is_err() {
            tree.end_room(self.group.id(), pages);
            self.left.fetch_add(pages.0, Ordering::Release);
        }
        charge.ok()
    }

    /// Charges the group again for the pages that were lent, as far as there is room.
    fn refill(&self, tree: &GroupTree) {
        let group = self.group.id();
        let page = PageCount(1);
        while self.left.load(Ordering::Relaxed) < self.most.0 && tree.charge_kept(group, page) {
            let add = |left: u64| (left < self.most.0).then_some(left + 1);
            let (adding, looking) = (Ordering::Release, Ordering::Relaxed);
            match self.left.fetch_update(adding, looking, add) {
                Ok(_) => tree.end_room(group, page),
                // Another thread was faster.
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
    /// Keeps room for pages that are lent.
    fn keep_room(&self, group: GroupId, pages: PageCount) {
        for id in self.path(group) {
            self.node(id).lent.fetch_add(pages.0, Ordering::SeqCst);
            self.note_over(self.node(id));
        }
    }

    /// Ends keeping room for pages: they are set aside again, or never will be.
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
