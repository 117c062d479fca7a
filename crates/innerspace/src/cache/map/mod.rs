//! Blocks in address spaces: page faults, what is mapped around one, taking translations away, and
//! eviction.

pub(crate) mod evict;
pub(crate) mod fault;
pub(crate) mod fault_around;
pub(crate) mod mappers;
