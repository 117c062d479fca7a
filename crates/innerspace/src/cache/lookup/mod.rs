//! From the number of a block to the block: the lookup, which also makes and inserts blocks
//! (`get`), the guards on the block found (`block`), and batches of locked blocks (`batch`).

pub(crate) mod batch;
pub(crate) mod block;
pub(crate) mod get;
