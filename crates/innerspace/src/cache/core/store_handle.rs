//! The store of an open file, as the file has it and each of its calls.
//!
//! A call that is under way as the file is closed has the store a moment longer, and with it what
//! the store keeps others out by, a lock for one. So the file's entry in the table of open files
//! stays until then: whoever opens the same again waits, in place of meeting that lock.

use std::ops::Deref;

use crate::store::Store;
use crate::sync::{Arc, Weak};

/// See the module.
pub(crate) struct Reached {
    store: Arc<dyn Store>,
    /// Dropped when the store is, behind it.
    open: Arc<()>,
}

impl Reached {
    pub(crate) fn new(store: Arc<dyn Store>) -> Reached {
        let open = Arc::new(());
        Reached { store, open }
    }

    /// As long as it can be upgraded, the store is in use: by the file, or by a call that is under
    /// way yet.
    pub(crate) fn in_use(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }
}

impl Deref for Reached {
    type Target = dyn Store;

    fn deref(&self) -> &dyn Store {
        &*self.store
    }
}
