//! Bytes from the store to readers: holes, fills and requests in flight, read-ahead, views,
//! copies, and reads that leave nothing in the cache.

mod as_bytes;
pub(crate) mod block_reader;
mod content;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod holes;
pub(crate) mod read_ahead;
pub(crate) mod requests;
pub(crate) mod scatter;
mod take_view;
pub(crate) mod uncached;
pub(crate) mod view;
