//! Finding a block by its number: the lookup, which also makes and inserts blocks (`get`), the
//! guards on blocks (`block`), and batches of locked blocks (`batch`).

pub(crate) mod batch;
pub(crate) mod block;
pub(crate) mod get;
