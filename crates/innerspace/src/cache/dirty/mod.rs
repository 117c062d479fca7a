//! Bytes that the store does not have yet: the dirty index, writeback, and syncs.

pub(crate) mod index;
mod limits;
mod punch;
pub(crate) mod punched;
mod runs;
pub(crate) mod state;
pub(crate) mod sync;
pub(crate) mod sync_turns;
pub(crate) mod write_backoff;
mod write_depth;
pub(crate) mod writeback;
