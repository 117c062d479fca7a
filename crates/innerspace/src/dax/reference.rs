//! A reference to an open file with a count of its own.
//!
//! Each fault keeps its file open while it waits for it, so it counts itself in and out. Were that
//! the file's own count, threads that fault in different places would take its line from each other
//! twice a fault. So a mapping that an accessor remembers has a count that the accessor's faults
//! alone change, and which keeps the file open as a whole.

use std::ops::Deref;

use super::core::DaxCore;
use crate::sync::{Arc, Weak};

/// Keeps a file open. Clones share a count; [`DaxRef::with_own_count`] makes one that does not.
#[derive(Clone, Debug)]
pub(crate) struct DaxRef(Arc<Counted>);

/// On lines of its own (two: the adjacent line is prefetched with it), for the count that `Arc`
/// puts before it is there, too.
#[derive(Debug)]
#[repr(align(128))]
struct Counted(Arc<DaxCore>);

/// The same, without keeping it open.
#[derive(Debug)]
pub(crate) struct WeakDaxRef(Weak<Counted>);

impl DaxRef {
    pub(crate) fn new(core: Arc<DaxCore>) -> DaxRef {
        DaxRef(Arc::new(Counted(core)))
    }

    /// Another, which whoever clones this one does not meet.
    pub(crate) fn with_own_count(&self) -> DaxRef {
        DaxRef::new(self.core().clone())
    }

    /// Whether they are of one file.
    pub(crate) fn is_same(&self, other: &DaxRef) -> bool {
        Arc::ptr_eq(self.core(), other.core())
    }

    pub(crate) fn core(&self) -> &Arc<DaxCore> {
        &self.0.0
    }

    /// Good for as long as one of the clones is there.
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
