//! Entries that are already unreachable and wait for a grace period: [`retire`]. Their queue may be
//! flushed wherever memory is needed.

mod retire;

pub(super) use retire::RetireQueue;
