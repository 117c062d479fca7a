//! Blocks in address spaces: page faults, fault-around, taking translations away, and eviction.

pub(crate) mod evict;
pub(crate) mod fault;
pub(crate) mod fault_around;
pub(crate) mod mappers;
