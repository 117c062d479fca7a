//! Brings bytes from writers into the cache: writes, appends, and new blocks made many at a time.

pub(crate) mod append;
pub(crate) mod new_blocks;
pub(crate) mod write_at;
