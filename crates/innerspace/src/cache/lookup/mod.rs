//! From the number of a block to the block: the lookup, the guards on the block found, and batches
//! of locked blocks.

pub(crate) mod batch;
pub(crate) mod block;
pub(crate) mod get;
