//! Bytes that the store does not have yet: the dirty index, writeback, and syncs.
//!
//! - `runs`, `index`: sets of blocks; which blocks are dirty, and which may be written when
//! - `state`: flushes, and barriers between blocks
//! - `limits`: how much may be unwritten, for each group, and which thread writes it then
//! - `writeback`, `write_depth`: writing one run; writing several at once
//! - `write_backoff`: how often a failing store is tried again
//! - `sync_turns`, `sync`: the order of syncs; one sync, and what a failed one costs
//! - `punched`, `punch`: punches that a failed sync may have undone; making them again

pub(crate) mod flush;
pub(crate) mod index;
pub(crate) mod limits;
pub(crate) mod punch;
pub(crate) mod punched;
pub(crate) mod room;
mod runs;
pub(crate) mod state;
pub(crate) mod sync;
pub(crate) mod sync_file;
pub(crate) mod sync_turns;
pub(crate) mod write_backoff;
mod write_depth;
pub(crate) mod writeback;
