//! The state of one handle on a file.

use crate::cache::core::FileCore;
use crate::cache::errors::{ErrorCursor, FileError};
use crate::cache::read::read_ahead::Stream;
use crate::sync::Arc;
use crate::sync::atomic::AtomicU64;

/// One handle's own state.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) core: Arc<FileCore>,
    cursor: ErrorCursor,
    pub(crate) stream: Stream,
    /// Where the last read by copy ended.
    pub(crate) read_end: AtomicU64,
}

impl Handle {
    pub(crate) fn new(core: &Arc<FileCore>) -> Arc<Handle> {
        Arc::new(Handle {
            core: core.clone(),
            cursor: core.writes.errors.sample(),
            stream: Stream::default(),
            read_end: AtomicU64::new(u64::MAX),
        })
    }

    /// The file's latest failure, if this handle has not heard of it.
    pub(crate) fn check_errors(&self) -> Result<(), FileError> {
        self.core.writes.errors.check(&self.cursor)
    }
}
