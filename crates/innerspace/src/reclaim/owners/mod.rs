//! Owners: the files that frames belong to, as reclaim sees them.
//!
//! [`owner`] is the upcall to the layer above, [`table`] the registered owners by number.

mod owner;
mod table;

pub(crate) use owner::{EvictCount, FlushRequest, Io, Owner, OwnerId};
pub(super) use table::Owners;
