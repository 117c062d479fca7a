//! Cached files: a [`PagedFile`] is a store with a cache of its own, which is read, viewed,
//! written, mapped, truncated and synced.
//!
//! - open one: [`Memory::open`](crate::Memory::open) and its neighbours; with options, or over a
//!   [store](crate::store): [`FileOpener`]
//! - read without a copy: [`View`], an immutable slice; [`ScatterView`] and [`Chunks`] for bytes
//!   that need not be one slice; [`Array`] for numbers; [`BlockReader`] for many small reads
//! - read and write as `std::io` does: [`Cursor`]
//! - say in which order it will be read: [`Reading`]; choose when it is written: [`WriteOrder`]
//! - wait without a thread: [`Ready`], [`Task`]
//! - what can go wrong: [`FileError`], [`CloseError`]
//!
//! The layer behind this module is `cache`.

pub use crate::cache::{
    Array, BlockReader, Chunks, CloseError, Cursor, Element, FileAccess, FileError, FileStats,
    HeldReason, PagedFile, Reading, Ready, ScatterView, StoreAction, Task, TimedOut, View,
    WriteOrder,
};
pub use crate::memory::{FileOpener, OpenError};
