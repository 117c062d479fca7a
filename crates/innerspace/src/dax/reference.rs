//! A reference to an open file with a count of its own.
//!
//! Each fault holds a reference to its file, so it changes a count twice. If that were the file's
//! own count, threads that fault in different places would contend for its cache line. So a mapping
//! that an accessor remembers has a count that only the accessor's faults change, and which as a
//! whole keeps the file open.

use std::ops::Deref;

use super::core::DaxCore;
use crate::sync::{Arc, Weak};

/// Keeps a file open. Clones share a count; [`DaxRef::with_own_count`] makes one that does not.
#[derive(Clone, Debug)]
pub(crate) struct DaxRef(Arc<Counted>);

/// Aligned to two cache lines, since the adjacent line is prefetched too: the counts of the `Arc`
/// are on them.
#[derive(Debug)]
#[repr(align(128))]
struct Counted(Arc<DaxCore>);

/// A reference that does not keep the file open.
#[derive(Debug)]
pub(crate) struct WeakDaxRef(Weak<Counted>);

impl DaxRef {
    pub(crate) fn new(core: Arc<DaxCore>) -> DaxRef {
        DaxRef(Arc::new(Counted(core)))
    }

    /// A reference to the same file with a count of its own.
    pub(crate) fn with_own_count(&self) -> DaxRef {
        DaxRef::new(self.core().clone())
    }

    /// Whether both are of one file.
    pub(crate) fn is_same(&self, other: &DaxRef) -> bool {
        Arc::ptr_eq(self.core(), other.core())
    }

    pub(crate) fn core(&self) -> &Arc<DaxCore> {
        &self.0.0
    }

    /// Can be upgraded as long as a clone is there.
    pub(crate) fn downgrade(&self) -> WeakDaxRef {
        WeakDaxRef(Arc::downgrade(&self.0))
    }
}

impl Deref for DaxRef {
    type Target = DaxCore;

    #[inline]
    fn deref(&self) -> &DaxCore {
        &self.0.0
    }
}

impl WeakDaxRef {
    pub(crate) fn upgrade(&self) -> Option<DaxRef> {
        self.0.upgrade().map(DaxRef)
    }
}
