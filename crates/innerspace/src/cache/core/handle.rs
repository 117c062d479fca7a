//! The state of one handle on a file.

use crate::cache::core::FileCore;
use crate::cache::errors::{ErrorCursor, FileError};
use crate::cache::read::read_ahead::Stream;
use crate::group::{HeapBytes, MayReclaim};
use crate::sync::Arc;
use crate::sync::atomic::AtomicU64;

/// The size in bytes of the two reference counts that an `Arc` keeps with its value.
const ARC_BYTES: usize = 16;

/// The state of one handle.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) core: Arc<FileCore>,
    cursor: ErrorCursor,
    pub(crate) stream: Stream,
    /// The offset at which the last copying read ended; `u64::MAX` before the first.
    pub(crate) read_end: AtomicU64,
    /// The charge for the handle. `None` for the first one, which is charged with its file.
    _heap: Option<HeapBytes>,
}

impl Handle {
    pub(crate) fn first(core: &Arc<FileCore>) -> Arc<Handle> {
        Handle::new(core, None)
    }

    /// Creates another handle on the file, or returns `other` if the group has no memory for one.
    pub(crate) fn another(other: &Arc<Handle>) -> Arc<Handle> {
        let core = &other.core;
        let bytes = size_of::<Handle>() + ARC_BYTES;
        match core.id.group.charge_heap(bytes, MayReclaim::Clean) {
            Ok(heap) => Handle::new(core, Some(heap)),
            Err(_full) => other.clone(),
        }
    }

    fn new(core: &Arc<FileCore>, heap: Option<HeapBytes>) -> Arc<Handle> {
        Arc::new(Handle {
            core: core.clone(),
            cursor: core.writes.errors.sample(),
            stream: Stream::default(),
            read_end: AtomicU64::new(u64::MAX),
            _heap: heap,
        })
    }

    /// Returns the file's latest failure as an error, if it was not yet reported to this handle.
    pub(crate) fn check_errors(&self) -> Result<(), FileError> {
        self.core.writes.errors.check(&self.cursor)
    }
}
