//! The blocks of a file in address spaces: page faults, fault-around, revoking translations,
//! eviction.
//!
//! - `mappers`: the upcall by which a file's pages lose their translations
//! - `fault`, `fault_around`: the block for a page fault; the blocks that are mapped with it
//! - `evict`: the calls that reclaim makes to a file, such as age, clean, evict and flush

pub(crate) mod evict;
pub(crate) mod fault;
pub(crate) mod fault_around;
pub(crate) mod mappers;
