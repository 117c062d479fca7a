//! Cached files.
#![allow(
    dead_code,
    unused_imports,
    reason = "the layers above take these into use one by one"
)]

mod array;
mod block;
mod core;
mod cursor;
mod dirty;
mod errors;
mod extents;
mod fault;
mod file;
mod fill;
mod index;
mod lookup;
mod mappers;
mod options;
mod owner;
mod read;
mod ready;
mod service;
mod stats;
mod stream;
mod truncate;
mod view;
mod write;
mod writeback;

pub use array::{Array, Element};
pub use cursor::Cursor;
pub use dirty::WriteOrder;
pub use errors::{FileError, HeldReason, StoreAction};
pub(crate) use fault::{FaultKind, FaultPage, HoleToken, LockedBlock};
pub(crate) use file::FileInner;
pub use file::PagedFile;
pub(crate) use mappers::{MapperId, Mappers, Revoke, Revoked};
pub use options::{FileAccess, FileOptions};
pub use ready::Ready;
pub(crate) use service::Cache;
pub use stats::FileStats;
pub use view::View;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
