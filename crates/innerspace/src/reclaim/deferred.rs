//! Work that comes to stores and wakers, deferred by those who could not do it where they were.
//!
//! The last reference to a file may go in an odd place: below reclaim, with a block locked, in a
//! call of the file's own store. To close the file there would wait for what that very thread
//! holds. So it is deferred, and done where no lock is held and no store is being called: by the
//! service, and by the calls that let go of files (an unmapping, a space that ends), when they are
//! done; where there is neither a service nor a memory that could be ticked, also by reads that
//! missed and by syncs. What waits for a grace period alone is another matter, and may be done
//! wherever memory is wanted: see [`super::retire`].

use std::collections::VecDeque;

use super::owners::OwnerId;
use super::pool::Pool;
use crate::sync::panics::Panics;
use crate::sync::{Mutex, may_call_out};

/// What is to be done.
struct Deferred {
    /// The file that it is about, if it is about one.
    of: Option<OwnerId>,
    work: Box<dyn FnOnce() + Send>,
}

/// What is to be done, oldest first.
#[derive(Default)]
pub(super) struct DeferredWork(Mutex<VecDeque<Deferred>>);

impl DeferredWork {
    fn take(&self, wanted: impl Fn(&Deferred) -> bool) -> Option<Deferred> {
        let mut deferred = self.0.lock();
        let at = deferred.iter().position(wanted)?;
        deferred.remove(at)
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl Pool {
    /// Leaves `work`, about the file `of` if it is about one, to whoever comes by where it may be
    /// done. Never waits.
    pub(crate) fn defer(&self, of: Option<OwnerId>, work: impl FnOnce() + Send + 'static) {
        let work = Box::new(work);
        self.deferred.0.lock().push_back(Deferred { of, work });
        self.kick();
    }

    /// Does what was deferred, and what that defers. Outside every section, with no lock held; in a
    /// call of a store, whose caller may hold some, nothing is done.
    pub(crate) fn do_deferred(&self) {
        if self.deferred.is_empty() || Pool::in_any_store_scope() {
            return;
        }
        may_call_out();
        let mut panics = Panics::default();
        while let Some(deferred) = self.deferred.take(|_| true) {
            panics.catch(deferred.work);
        }
        panics.go_on();
    }

    /// Does what was deferred about the file `of`, also in a call of a store: for who would wait
    /// for it. Outside every section, with no lock held but those of that call.
    pub(crate) fn do_deferred_of(&self, of: OwnerId) {
        while let Some(deferred) = self.deferred.take(|deferred| deferred.of == Some(of)) {
            (deferred.work)();
        }
    }

    /// [`Pool::flush_retired`] and [`Pool::do_deferred`]: whatever was let go is gone then. Where
    /// both are allowed.
    pub(crate) fn let_go(&self) {
        self.flush_retired();
        // A mapping that went then may have been the last to keep a direct access file, whose
        // entries wait in their turn.
        self.flush_retired();
        self.do_deferred();
    }
}
