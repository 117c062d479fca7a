//! The group that pays for what a space records.

use crate::PageCount;
use crate::group::{Group, LimitError};
use crate::reclaim::{AllocMode, Pool};

/// A pool, and the group in it that is charged.
#[derive(Clone, Copy)]
pub(crate) struct Payer<'space> {
    pub(crate) pool: &'space Pool,
    pub(crate) group: &'space Group,
}

impl<'space> Payer<'space> {
    /// Charges this many pages, without waiting for memory.
    ///
    /// # Errors
    /// The group has no room.
    pub(crate) fn charge(self, pages: PageCount) -> Result<(), LimitError> {
        let mode = AllocMode::NoWait;
        let charge = self.pool.charge(self.group.id(), pages, mode)?;
        let _group = charge.commit();
        Ok(())
    }

    /// Uncharges this many pages.
    pub(crate) fn uncharge(self, pages: PageCount) {
        if pages.0 > 0 {
            self.pool.groups.uncharge(self.group.id(), pages);
        }
    }
}
