//! Bytes that the store does not have yet: the dirty index, writeback, and syncs.
//!
//! - `runs`, `index`: sets of blocks; which blocks are dirty, and which may be written when
//! - `state`: flushes, and barriers between blocks
//! - `marks`: marking blocks dirty and clean, and the counts of their groups
//! - `limits`, `room`: how much may be unwritten, for each group; making room at that limit
//! - `writeback`, `write_depth`: writing one run; writing a range, several runs at once
//! - `flush`: writing a part of what is dirty, for the flusher or for memory
//! - `write_backoff`: how often a failing store is tried again
//! - `sync_turns`, `sync`: the order of syncs; one sync of the store, and what follows if it fails
//! - `sync_file`: a sync of the file, or of a range of it: writing, waiting, then the store
//! - `punched`, `punch`: punches that a failed sync may have undone; repeating them

pub(crate) mod flush;
pub(crate) mod index;
pub(crate) mod limits;
pub(crate) mod marks;
pub(crate) mod punch;
pub(crate) mod punched;
pub(crate) mod room;
mod runs;
pub(crate) mod state;
pub(crate) mod sync;
pub(crate) mod sync_file;
pub(crate) mod sync_turns;
pub(crate) mod write_backoff;
pub(crate) mod write_depth;
mod writeback;
