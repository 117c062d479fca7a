//! The charge for structures smaller than a page, which the layers above keep on the heap.

use super::request::AllocMode;
use crate::group::{Group, GroupId, LimitError};
use crate::reclaim::pool::Pool;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, failpoint};
use crate::units::PageCount;

/// The number of pages charged beyond those that the heap's bytes fill: one for a last page that is
/// partly filled, and one so that bytes that come and go need no charge each time.
const AHEAD: u64 = 2;

/// The pages that a group is charged for memory on the heap. Dropping this gives them back.
///
/// A thread that adds or gives back bytes first changes the bytes, and then reads `pages` in
/// [`HeapCharge::settle`]. A thread that charges first changes `pages`, and then reads the bytes.
/// All these accesses are SeqCst, so at least one of the two sees the other's change, and settles.
/// No thread waits for another here.
pub(crate) struct HeapCharge {
    pool: Arc<Pool>,
    group: Group,
    pages: AtomicU64,
}

impl HeapCharge {
    /// Creates a charge of no pages.
    pub(crate) fn new(pool: &Arc<Pool>, group: &Group) -> HeapCharge {
        HeapCharge {
            pool: pool.clone(),
            group: group.clone(),
            pages: AtomicU64::new(0),
        }
    }

    /// Returns the group that pays.
    pub(crate) fn group(&self) -> GroupId {
        self.group.id()
    }

    /// Charges for this many bytes, and some more, so that the next few bytes need no charge.
    /// Charges nothing if enough was charged before. Called before something is added. The caller
    /// is outside every section, and holds no lock if `mode` lets the call reclaim.
    ///
    /// # Errors
    /// The errors of [`Pool::charge`], in which case nothing has changed.
    pub(crate) fn pay_ahead(
        &self,
        bytes: impl Fn() -> u64,
        mode: AllocMode,
    ) -> Result<(), LimitError> {
        let wanted = PageCount::floor(bytes()).0 + AHEAD;
        let short = wanted.saturating_sub(self.pages.load(Ordering::SeqCst));
        if short > 0 {
            let charge = self.pool.charge(self.group(), PageCount(short), mode)?;
            let _group = charge.commit();
            self.pages.fetch_add(short, Ordering::SeqCst);
            // Two threads that charge at the same time may have charged too much. A thread that
            // gave memory back meanwhile may have settled by an older value of `pages`.
            self.settle(bytes);
        }
        Ok(())
    }

    /// Gives back excess pages. If concurrent threads have added more bytes than were paid for in
    /// advance, charges the missing pages if there is room; otherwise the next call to
    /// [`HeapCharge::pay_ahead`] charges them. Never waits.
    pub(crate) fn settle(&self, bytes: impl Fn() -> u64) {
        loop {
            let pages = self.pages.load(Ordering::SeqCst);
            let wanted = PageCount::floor(bytes()).0;
            let most = wanted + AHEAD;
            if pages < wanted {
                let more = PageCount(wanted - pages);
                let Ok(charge) = self.pool.charge(self.group(), more, AllocMode::NoWait) else {
                    return;
                };
                let _group = charge.commit();
                self.pages.fetch_add(more.0, Ordering::SeqCst);
            } else if pages > most {
                failpoint!(Settled);
                let given =
                    self.pages
                        .compare_exchange(pages, most, Ordering::SeqCst, Ordering::SeqCst);
                if given.is_ok() {
                    let excess = PageCount(pages - most);
                    self.pool.groups.uncharge(self.group(), excess);
                }
            } else {
                return;
            }
        }
    }
}

impl Drop for HeapCharge {
    fn drop(&mut self) {
        let pages = PageCount(self.pages.load(Ordering::SeqCst));
        self.pool.groups.uncharge(self.group(), pages);
    }
}
