//! Work that cannot be done at the point where it becomes due.
//!
//! [`retire`]: a queue of things that are unreachable already and wait for a grace period. It may
//! be run wherever memory is wanted. [`work`]: calls of stores and wakers, which may be made only
//! where no lock is held and no store is being called.

mod retire;
mod work;

pub(super) use retire::RetireQueue;
pub(super) use work::DeferredWork;
