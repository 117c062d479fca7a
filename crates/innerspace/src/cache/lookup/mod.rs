//! From the number of a block to the block: the lookup, the guards on what it finds, and
//! batches of locked blocks.

pub(crate) mod batch;
pub(crate) mod block;
pub(crate) mod get;
