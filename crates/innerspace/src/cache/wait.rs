//! The mode of a call: whether it may wait. Functions of this layer and of the layers above take it
//! as a parameter.

use crate::reclaim::AllocMode;

/// Whether a call may wait. A call that may not wait fails with "would block" instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The call may call the store, evict, and sleep on locks.
    Yes,
    /// The call must neither call the store, nor evict, nor sleep on a lock.
    No,
}

impl Wait {
    /// Returns the value for a call that may wait, or for one that may not.
    pub(crate) const fn if_may(wait: bool) -> Wait {
        if wait { Wait::Yes } else { Wait::No }
    }

    /// Returns the mode in which a call with this value allocates memory.
    pub(crate) fn alloc_mode(self) -> AllocMode {
        match self {
            Wait::Yes => AllocMode::Wait,
            Wait::No => AllocMode::NoWait,
        }
    }
}
