//! Bytes from the store to readers: holes, fills and requests in flight, read-ahead, views,
//! copies, and reads that leave nothing in the cache.
//!
//! - `holes`, `content`: the store's holes as far as they are known; the queries that find them
//! - `window`, `read_ahead`: the size of the read-ahead window; which blocks are in it
//! - `requests`, `fill`: reads in flight; the handling of a miss, from the charge to the bytes
//! - `view`, `as_bytes`, `take_view`: a view and its traits; taking one, with the inlined hit
//! - `long_view`, `scatter`: a view over several blocks; views block by block
//! - `copy`, `block_reader`, `uncached`: `read_at` and scans; a reader that remembers blocks; reads
//!   that leave nothing in the cache

pub(super) mod as_bytes;
pub(crate) mod block_reader;
pub(crate) mod content;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod holes;
mod long_view;
pub(crate) mod read_ahead;
pub(crate) mod requests;
pub(crate) mod scatter;
pub(crate) mod take_view;
pub(crate) mod uncached;
pub(crate) mod view;
mod window;
