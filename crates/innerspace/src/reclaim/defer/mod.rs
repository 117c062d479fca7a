//! Things that are unreachable already and wait for a grace period: [`retire`]. Their queue may be
//! run wherever memory is wanted.

mod retire;

pub(super) use retire::RetireQueue;
