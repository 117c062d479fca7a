//! A reference to an open file with a count of its own.
//!
//! Each fault holds a reference to its file, so it changes a reference count twice. If that were
//! the file's own count, threads that fault in different places would contend for its cache line.
//! So an accessor that remembers mappings of the file has a count that only its own faults change.
//! As long as that count is above 0, it keeps the file open by one reference.

use std::ops::Deref;

use super::core::DaxCore;
use crate::sync::Arc;

/// Keeps a file open. Clones share a count; [`DaxRef::with_own_count`] makes a reference with
/// another count.
#[derive(Clone, Debug)]
pub(crate) struct DaxRef(Arc<Counted>);

/// A reference to the file, with a count of its own: the count of the `Arc` around this value. The
/// value is aligned to two cache lines, because the processor prefetches the adjacent line too.
#[derive(Debug)]
#[repr(align(128))]
struct Counted(Arc<DaxCore>);

impl DaxRef {
    pub(crate) fn new(core: Arc<DaxCore>) -> DaxRef {
        DaxRef(Arc::new(Counted(core)))
    }

    /// Returns a reference to the same file with a count of its own.
    pub(crate) fn with_own_count(&self) -> DaxRef {
        DaxRef::new(self.core().clone())
    }

    pub(crate) fn core(&self) -> &Arc<DaxCore> {
        &self.0.0
    }
}

impl Deref for DaxRef {
    type Target = DaxCore;

    #[inline]
    fn deref(&self) -> &DaxCore {
        &self.0.0
    }
}
