//! The charge for structures smaller than a page, which the layers above keep on the heap.

use super::request::AllocMode;
use crate::group::{Group, GroupId, LimitError};
use crate::reclaim::pool::Pool;
use crate::sync::Arc;
use crate::units::PageCount;

/// Pages that stay charged although no bytes use them, so that bytes that come and go do not charge
/// each time; and pages charged in advance: one page and a part of another.
const AHEAD: u64 = 2;

/// The pages that a group is charged for memory on the heap. Dropping this gives them back.
pub(crate) struct HeapCharge {
    pool: Arc<Pool>,
    group: Group,
    pages: PageCount,
}

impl HeapCharge {
    /// Creates a charge of no pages.
    pub(crate) fn new(pool: &Arc<Pool>, group: &Group) -> HeapCharge {
        HeapCharge {
            pool: pool.clone(),
            group: group.clone(),
            pages: PageCount(0),
        }
    }

    /// Returns the pages for this many bytes, and some more, so that the next few bytes need no
    /// charge.
    pub(crate) fn wanted_ahead(bytes: u64) -> PageCount {
        PageCount(PageCount::floor(bytes).0 + AHEAD)
    }

    /// Whether [`HeapCharge::settle`] would leave the charge at this many pages.
    pub(crate) fn is_settled(bytes: u64, pages: PageCount) -> bool {
        let wanted = PageCount::floor(bytes).0;
        (wanted..=wanted + AHEAD).contains(&pages.0)
    }

    /// Returns the group that pays.
    pub(crate) fn group(&self) -> GroupId {
        self.group.id()
    }

    /// Returns the pages charged now.
    pub(crate) fn pages(&self) -> PageCount {
        self.pages
    }

    /// Returns the group, and how many more pages it has to be charged for
    /// [`HeapCharge::wanted_ahead`].
    pub(crate) fn short_of(&self, bytes: u64) -> (GroupId, PageCount) {
        let short = HeapCharge::wanted_ahead(bytes)
            .0
            .saturating_sub(self.pages.0);
        (self.group.id(), PageCount(short))
    }

    /// Takes over pages that were charged to the group.
    pub(crate) fn add(&mut self, charged: PageCount) {
        self.pages.0 += charged.0;
    }

    /// Charges for this many bytes, rounded down to pages, or gives back excess pages. The caller
    /// is outside every section. The call may reclaim, as `mode` says.
    ///
    /// # Errors
    /// The errors of [`Pool::charge`], in which case nothing has changed. Giving back never fails.
    pub(crate) fn settle(&mut self, bytes: u64, mode: AllocMode) -> Result<(), LimitError> {
        if HeapCharge::is_settled(bytes, self.pages) {
            return Ok(());
        }
        let wanted = PageCount::floor(bytes);
        let id = self.group.id();
        if wanted.0 > self.pages.0 {
            let more = PageCount(wanted.0 - self.pages.0);
            let _group = self.pool.charge(id, more, mode)?.commit();
            self.pages = wanted;
        } else {
            let less = PageCount(self.pages.0 - wanted.0 - AHEAD);
            self.pool.groups.uncharge(id, less);
            self.pages.0 -= less.0;
        }
        Ok(())
    }
}

impl Drop for HeapCharge {
    fn drop(&mut self) {
        self.pool.groups.uncharge(self.group.id(), self.pages);
    }
}
