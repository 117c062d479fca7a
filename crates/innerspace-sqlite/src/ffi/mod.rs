//! Where C calls Rust and Rust calls C. All `unsafe` for that is here.
//!
//! Why not the crate `sqlite-plugin`: it passes no file control but `PRAGMA` (so no `mmap_size`, no
//! `SIZE_HINT`, no `HAS_MOVED`), drops the flags of a sync and of a delete, gives no way to the
//! parameters of a URI, changes names that are not UTF-8, and needs libclang to be built.

pub(crate) mod api;
mod extension;
mod functions;
mod methods;
#[doc(hidden)]
pub mod raw;
mod vfs;
mod write_back;

#[doc(hidden)]
pub use api::Api;
pub(crate) use vfs::install;
pub(crate) use write_back::write_back_to;
