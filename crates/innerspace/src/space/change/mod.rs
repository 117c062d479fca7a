//! Changes of a space. A structural change closes the gate on its range if it changes words of
//! mapped pages (`steps`).
//!
//! | file | what is in it |
//! |---|---|
//! | `revoke` | revoking pages of files, in every space that maps them |
//! | `steps` | a structural change, step by step |
//! | `map`, `mapping` | what to map, and how; mapping, unmapping, protecting |
//! | `remap`, `region`, `fork` | moving and growing mappings; a range that grows; forks |
//! | `zap`, `take_dirty` | dropping anonymous pages with the gate open; listing pages stored to |
//! | `pages` | the calls about the pages of a range: advice, populating, locking, pinning |

pub(crate) mod fork;
pub(crate) mod map;
pub(crate) mod mapping;
pub(crate) mod pages;
pub(crate) mod region;
pub(crate) mod remap;
pub(crate) mod revoke;
pub(crate) mod steps;
pub(crate) mod take_dirty;
pub(crate) mod zap;
