//! mmap with a hard limit, errors instead of SIGBUS, and a fork in microseconds. Over any store, in safe Rust.
#![warn(missing_docs)]

#[cfg(not(loom))]
mod cache;
mod frame;
#[cfg(not(loom))]
mod group;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod reclaim;
#[cfg(not(loom))]
mod space;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
pub mod store;
mod sync;
mod sys;
mod units;

#[cfg(not(loom))]
pub use cache::{
    Array, Cursor, Element, FileAccess, FileError, FileOptions, FileStats, HeldReason, PagedFile,
    Ready, StoreAction, View, WriteOrder,
};
#[cfg(not(loom))]
pub use group::{
    Group, GroupError, GroupStats, Holders, LimitDetails, LimitError, LimitReason, MAX_DEPTH,
};
#[cfg(not(loom))]
pub use memory::{
    FileOpener, MINIMUM_LIMIT, Memory, MemoryError, MemoryOptions, MemoryStats, OpenError, Threads,
};
#[cfg(not(loom))]
pub use space::{
    AccessKind, Accessor, Explanation, Fault, FaultKind, Map, MappingInfo, PageStats, Protection,
    Session, Sharing, Space, SpaceError, SpaceStats,
};
#[cfg(not(loom))]
pub use stats::Totals;
#[cfg(not(loom))]
pub use sys::copy::{AtomicScalar, Scalar};
pub use units::*;
