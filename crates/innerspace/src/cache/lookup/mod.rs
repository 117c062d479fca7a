//! From the number of a block to the block: the lookup, and the guards on what it finds.

pub(crate) mod batch;
pub(crate) mod block;
pub(crate) mod get;
