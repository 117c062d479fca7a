//! The blocks of a file in address spaces: page faults, fault-around, revoking translations,
//! eviction.

pub(crate) mod evict;
pub(crate) mod fault;
pub(crate) mod fault_around;
pub(crate) mod mappers;
