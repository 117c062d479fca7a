//! The end of a file: closes it when its last handle or mapping is dropped, or leaves that to
//! another thread.

use crate::cache::core::FileCore;
use crate::cache::errors::ErrorCursor;
use crate::cache::file::handle::FileInner;
use crate::cache::lookup::batch::remove_blocks;
use crate::cache::service::Cache;
use crate::exec::reentry;
use crate::stats::tell;
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

impl FileCore {
    /// Whether the last handle is dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.ready.is_closed()
    }

    /// Closes the file, unless that was begun. Its last handle is dropped.
    pub(crate) fn close_once(&self) {
        if let Some(_ended) = self.closing.begin() {
            self.close();
        }
    }

    /// Has another thread close the file. Its last handle was dropped where it cannot be closed.
    pub(crate) fn close_elsewhere(&self) {
        let Some(core) = self.me.upgrade() else {
            return;
        };
        self.closing.leave();
        let (group, owner) = (self.id.group.id(), self.id.owner);
        self.cache
            .defer(group, Some(owner), move || core.close_once());
    }

    /// Waits until the file is closed, and closes it here if that was left to another thread. The
    /// last handle is dropped, or being dropped. No section is open, and no lock is held.
    pub(crate) fn wait_closed(&self) {
        while self.closing.wait() {
            self.close_once();
        }
    }

    /// Closes the file, whose last handle is dropped: writes unwritten data and frees the blocks.
    /// Data that cannot be written is lost, and the memory's error list says so. No section is open
    /// and no lock is held. Panics of foreign code resume when the file is closed.
    fn close(&self) {
        self.ready.begin_close();
        // Every thread that found the file open under this mutex has by now put its blocks in.
        drop(self.blocks.index.lock());
        let mut panics = Panics::default();
        // This is a first attempt, whose failure does not count yet. A panic of the store is a
        // failure, too.
        panics.catch(|| drop(self.sync_blocks(0..self.end_block(), None)));
        if self.has_unwritten() {
            self.write_last(&mut panics);
        }
        self.detach_requests();
        remove_blocks(self, 0..u64::MAX);
        debug_assert_eq!(
            self.blocks.index.counts().blocks,
            0,
            "blocks of a closed file"
        );
        self.blocks.index.write().drop_shadows(self.frames(), 0);
        panics.catch(|| self.store.close());
        self.cache.remove_file(self);
        // Futures are woken only now: the store can be opened again, and they may do so
        // immediately.
        self.ready.wake_closed(&self.closed(), &mut panics);
        // When this returns to the last user of the file, nothing of the file is charged any more.
        panics.catch(|| self.pool.finish_retired());
        panics.catch(|| {
            tell!(debug, file = %self.id.name, "file closed");
        });
        panics.go_on();
    }

    /// Writes the rest of a file that is being closed, once more and with no other writer. (Failed
    /// writes of other threads may be the reason for the rest.) Data that cannot be written now is
    /// lost.
    fn write_last(&self, panics: &mut Panics) {
        self.dirty().begin_closing();
        self.wait_written(0..u64::MAX);
        failpoint!(Closing);
        let failures = self.writes.errors.count();
        let mut outcome = Ok(());
        panics.catch(|| outcome = self.sync_blocks(0..self.end_block(), None));
        if self.has_unwritten()
            && let Err(error) = self.writes.errors.check(&ErrorCursor::behind(failures))
        {
            self.cache.log_error(error);
        }
        if let Err(error) = outcome {
            self.cache.log_error(error);
        }
    }
}

impl Cache {
    /// Waits until those of these files that nothing keeps open are closed, and all that the caller
    /// released is free. The caller has dropped handles or mappings that may have been the last. No
    /// lock is held and no section is open. In a call of a store, or with a file locked, the
    /// closing is left to other threads.
    pub(crate) fn released(&self, files: Vec<Released>) {
        failpoint!(Released);
        self.pool().finish_retired();
        let mut panics = Panics::default();
        if reentry::is_outermost() {
            for file in files.iter().filter(|file| file.is_unused()) {
                panics.catch(|| file.core.wait_closed());
            }
        }
        panics.catch(|| self.run_deferred());
        panics.go_on();
    }
}
