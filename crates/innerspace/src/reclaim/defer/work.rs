//! Calls of stores and wakers, deferred by threads that could not make them where they were.
//!
//! The last reference to a file may be dropped in an odd place: below reclaim, with a block locked,
//! in a call of the file's own store. To close the file there would wait for locks that the same
//! thread holds. So closing is deferred to where no lock is held and no store is being called: to
//! the service, and to the end of calls that release files (an unmapping, a space that ends). If
//! there is neither a service nor a memory that could be ticked, reads that missed and syncs do it,
//! too.

use std::collections::VecDeque;

use crate::reclaim::owners::OwnerId;
use crate::sync::Mutex;

type Work = Box<dyn FnOnce() + Send>;

/// The deferred calls, oldest first.
#[derive(Default)]
pub(crate) struct DeferredWork(Mutex<VecDeque<Deferred>>);

struct Deferred {
    /// The file that it concerns, if any.
    of: Option<OwnerId>,
    work: Work,
}

impl DeferredWork {
    pub(crate) fn push(&self, of: Option<OwnerId>, work: Work) {
        self.0.lock().push_back(Deferred { of, work });
    }

    /// The oldest.
    pub(crate) fn take(&self) -> Option<Work> {
        Some(self.0.lock().pop_front()?.work)
    }

    /// The oldest that concerns the file `of`.
    pub(crate) fn take_of(&self, of: OwnerId) -> Option<Work> {
        let mut deferred = self.0.lock();
        let at = deferred.iter().position(|entry| entry.of == Some(of))?;
        Some(deferred.remove(at)?.work)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
