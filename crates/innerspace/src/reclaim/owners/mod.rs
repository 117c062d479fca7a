//! Owners: the files that frames belong to, as reclaim sees them.
//!
//! [`owner`] is the upcall to the layer above, [`table`] the registered owners by number, and
//! [`shadows`] the queue that bounds the shadows which evicted blocks leave in their files'
//! indexes.

mod owner;
mod shadows;
mod table;

pub(crate) use owner::{CleanCount, EvictCount, FlushRequest, Io, LeftShadow, Owner, OwnerId};
pub(crate) use shadows::SHADOW_BYTES_PER_FRAME;
pub(super) use shadows::Shadows;
pub(super) use table::Owners;
