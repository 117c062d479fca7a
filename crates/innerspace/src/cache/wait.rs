//! Whether a call may wait: the mode in which the calls of this layer and of those above are made.

use crate::reclaim::AllocMode;

/// Whether a call may wait. One that may not fails with "would block" instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// It may call the store, evict, and sleep for locks.
    Yes,
    /// It may not.
    No,
}

impl Wait {
    /// How memory is allocated.
    pub(crate) fn alloc_mode(self) -> AllocMode {
        match self {
            Wait::Yes => AllocMode::Wait,
            Wait::No => AllocMode::NoWait,
        }
    }
}
