//! The end of a file: what its last keeper does, or leaves to others.

use crate::cache::core::FileCore;
use crate::cache::errors::ErrorCursor;
use crate::cache::file::handle::FileInner;
use crate::cache::lookup::batch::remove_blocks;
use crate::cache::service::Cache;
use crate::exec::reentry;
use crate::sync::panics::Panics;
use crate::sync::{Arc, Weak, failpoint};

/// A file that a caller has let go of, and that may have been open for it alone.
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

    /// Whether no handle or mapping keeps it open.
    fn is_unused(&self) -> bool {
        self.inner.strong_count() == 0
    }
}

impl FileCore {
    /// Whether the last handle is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.ready.is_closed()
    }

    /// Closes the file, whose last handle is gone, unless that was begun.
    pub(crate) fn close_once(&self) {
        if let Some(_ended) = self.closing.begin() {
            self.close();
        }
    }

    /// The last handle went where the file cannot be closed: has another thread do it.
    pub(crate) fn close_elsewhere(&self) {
        let Some(core) = self.me.upgrade() else {
            return;
        };
        self.closing.leave();
        let (group, owner) = (self.id.group.id(), self.id.owner);
        self.cache
            .defer(group, Some(owner), move || core.close_once());
    }

    /// Closes the file if that is left to somebody, and waits until it is closed. The last handle
    /// is gone, or going. No section is open, no lock held.
    pub(crate) fn wait_closed(&self) {
        while self.closing.wait() {
            self.close_once();
        }
    }

    /// The last handle is gone: writes what is unwritten and frees the blocks. Data that cannot be
    /// written is lost, and the memory's error list says so. No section is open and no lock held.
    /// Panics of foreign code resume when the file is closed.
    fn close(&self) {
        self.ready.begin_close();
        // A thread that found the file open under this mutex has put its blocks in by now.
        drop(self.blocks.index.lock());
        let mut panics = Panics::default();
        // A first attempt: its failure does not count yet. A store that panics has failed, too.
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
        // Only now: the store can be opened again, and woken futures may do so at once.
        self.ready.wake_closed(&self.closed(), &mut panics);
        // Nothing of it is charged any more when its last keeper returns.
        panics.catch(|| self.pool.finish_retired());
        panics.go_on();
    }

    /// Writes the rest of a file that is being closed, once more and with no other writer, whose
    /// failures may be a reason for the rest. Data that cannot be written now is lost.
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
    /// The caller has let go of what may have been the last to keep these files open: waits until
    /// those that nobody keeps are closed, and all that was released is free. No lock is held, no
    /// section open. In a call of a store, or with a file locked, the closing is left to others.
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
