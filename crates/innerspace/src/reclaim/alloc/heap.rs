//! The charge for structures smaller than a page, which the layers above keep on the heap.

use super::request::AllocMode;
use crate::group::{Group, GroupId, LimitError};
use crate::reclaim::pool::Pool;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, failpoint};
use crate::units::PageCount;

/// Pages that stay charged although no bytes use them, so that bytes that come and go do not charge
/// each time; and pages charged in advance: one page and a part of another.
const AHEAD: u64 = 2;

/// The pages that a group is charged for memory on the heap. Dropping this gives them back.
///
/// A thread that adds or gives back bytes settles them itself: it changes the bytes first and reads
/// `pages` afterwards. Here `pages` is changed first and the bytes are read afterwards. All are
/// SeqCst, so one of the two sees the other. No thread waits for another here.
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
    /// Called before something is added. The caller is outside every section. The call may reclaim,
    /// as `mode` says; then the caller has nothing locked.
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
            // Two threads at the same time may have charged too much, and a thread that gave memory
            // back meanwhile may have settled by an older number.
            self.settle(bytes);
        }
        Ok(())
    }

    /// Gives back excess pages. Additions were paid for in advance. Where concurrent threads have
    /// added more, the excess is charged if there is room, and otherwise by the next call of
    /// [`HeapCharge::pay_ahead`]. Never waits.
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
