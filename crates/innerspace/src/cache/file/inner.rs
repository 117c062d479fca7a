//! The state of an open file that handles and mappings share.

use std::ops::Deref;

use crate::cache::core::FileCore;
use crate::cache::core::handle::Handle;
use crate::cache::file::closing::close_elsewhere;
use crate::store::FileAccess;
use crate::sync::Arc;

/// An open file, shared by handles and mappings. Dereferences to its [`FileCore`].
#[derive(Debug)]
pub(crate) struct FileInner {
    core: Arc<FileCore>,
    /// The first handle. Later opens of the file share it if the group has no memory for another.
    first: Arc<Handle>,
}

impl FileInner {
    /// Creates the state of a file that is being opened, with its first handle.
    pub(super) fn new(core: Arc<FileCore>) -> FileInner {
        let first = Handle::first(&core);
        FileInner { core, first }
    }

    pub(crate) fn core(&self) -> &Arc<FileCore> {
        &self.core
    }

    pub(super) fn first(&self) -> &Arc<Handle> {
        &self.first
    }

    /// Whether the file takes writes.
    pub(crate) fn writable(&self) -> bool {
        self.core.access() == FileAccess::ReadWrite
    }
}

impl Deref for FileInner {
    type Target = FileCore;

    fn deref(&self) -> &FileCore {
        &self.core
    }
}

impl Drop for FileInner {
    fn drop(&mut self) {
        // A child of fork(2) keeps the file: closing it would need threads, and would write to the
        // parent's file.
        if self.core.check_process().is_err() {
            std::mem::forget(self.core.clone());
            return;
        }
        // The last reference may be dropped anywhere, for example in reclaim with a block locked.
        // So the closing is left to another thread, or to the caller that released the file. A
        // `PagedFile` that is the last reference closes the file itself where it can.
        if !self.core.is_closed() {
            close_elsewhere(&self.core);
        }
    }
}
