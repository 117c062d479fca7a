//! The state of one handle on a file.

use crate::cache::core::FileCore;
use crate::cache::errors::{ErrorCursor, FileError};
use crate::cache::read::read_ahead::Stream;
use crate::group::{HeapBytes, MayReclaim};
use crate::sync::Arc;
use crate::sync::atomic::AtomicU64;

/// Bytes of the counts beside what is shared.
const ARC_BYTES: usize = 16;

/// One handle's own state.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) core: Arc<FileCore>,
    cursor: ErrorCursor,
    pub(crate) stream: Stream,
    /// Where the last read by copy ended.
    pub(crate) read_end: AtomicU64,
    /// `None` for a file's first handle, which its file is charged for.
    _heap: Option<HeapBytes>,
}

impl Handle {
    /// The first handle of a file.
    pub(crate) fn first(core: &Arc<FileCore>) -> Arc<Handle> {
        Handle::new(core, None)
    }

    /// One more handle of the file, or `other` if the group has no memory for it.
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

    /// The file's latest failure, if this handle has not heard of it.
    pub(crate) fn check_errors(&self) -> Result<(), FileError> {
        self.core.writes.errors.check(&self.cursor)
    }
}
