//! Brings bytes from writers into the cache: writes (`write_at`), appends (`append`), new blocks
//! made many at a time (`new_blocks`), and operations on a cached block (`in_place`).

pub(crate) mod append;
pub(crate) mod in_place;
pub(crate) mod new_blocks;
pub(crate) mod write_at;
