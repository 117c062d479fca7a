//! Waits for files that a caller has released, perhaps as their last user.

use crate::cache::core::FileCore;
use crate::cache::file::closing::wait_closed;
use crate::cache::file::inner::FileInner;
use crate::cache::service::Cache;
use crate::exec::reentry;
use crate::sync::panics::Panics;
use crate::sync::{Arc, Weak, failpoint};

/// A file that a caller has released, perhaps as its last user.
pub(crate) struct Released {
    inner: Weak<FileInner>,
    core: Arc<FileCore>,
}

impl Released {
    pub(crate) fn new(file: &Arc<FileInner>) -> Released {
        Released {
            inner: Arc::downgrade(file),
            core: file.core().clone(),
        }
    }

    /// Whether no handle or mapping keeps the file open.
    fn is_unused(&self) -> bool {
        self.inner.strong_count() == 0
    }
}

impl Cache {
    /// Waits until those of `files` that nothing keeps open are closed, and everything that the
    /// caller released is free. If the caller is in a call to a store, or has a file locked, the
    /// closing is left to other threads.
    ///
    /// The caller has dropped handles or mappings that may have been the last. It holds no lock,
    /// except perhaps a file's, and has no section open.
    pub(crate) fn released(&self, files: Vec<Released>) {
        failpoint!(Released);
        self.pool.finish_retired();
        let mut panics = Panics::default();
        if reentry::is_outermost() {
            for file in files.iter().filter(|file| file.is_unused()) {
                panics.catch(|| wait_closed(&file.core));
            }
        }
        panics.catch(|| self.run_deferred());
        panics.go_on();
    }
}
