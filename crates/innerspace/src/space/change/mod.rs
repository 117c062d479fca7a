//! Changes of a space, with the gate closed on their range where the structure changes.
//!
//! | file | what is in it |
//! |---|---|
//! | `revoke` | taking pages of files away, in every space that shows them |
//! | `steps` | a structural change, step by step |
//! | `map`, `mapping` | what to map, and how; mapping, unmapping, protecting |
//! | `remap`, `region`, `fork` | moving and growing; a range that grows; forks |
//! | `zap`, `advise` | dropping anonymous pages where they are; advice, populating, locking |
//! | `take_dirty` | taking what was stored to |

pub(in crate::space) mod advise;
pub(in crate::space) mod fork;
pub(in crate::space) mod map;
pub(in crate::space) mod mapping;
pub(in crate::space) mod region;
pub(in crate::space) mod remap;
pub(in crate::space) mod revoke;
pub(in crate::space) mod steps;
pub(in crate::space) mod take_dirty;
pub(in crate::space) mod zap;
