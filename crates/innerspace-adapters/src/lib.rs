//! Engines on [`innerspace`], each behind a feature: their own files and memory, with a hard limit,
//! a share for each tenant, and errors instead of SIGBUS.
//!
//! | engine | type here | stands in for | feature |
//! |---|---|---|---|
//! | redb | `redb::PagedBackend` | `FileBackend` | `redb_4` |
//! | tantivy | `tantivy::PagedDirectory` | `MmapDirectory` | `tantivy_0_27` |
//! | parquet | `parquet::PagedReader` | `std::fs::File` | `parquet_60` |
//! | vm-memory | `vm_memory::PinnedRegion` | `GuestRegionMmap` | `vm_memory_0_18` |
//!
//! Each module is a file to copy and change: at most 250 lines, on top of the library's public
//! calls. Each has an example program:
//!
//! ```sh
//! cargo run -p innerspace-adapters --features redb_4 --example redb
//! ```

#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![warn(clippy::return_self_not_must_use)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "parquet_60")]
pub mod parquet;
#[cfg(feature = "redb_4")]
pub mod redb;
#[cfg(feature = "tantivy_0_27")]
pub mod tantivy;
#[cfg(feature = "vm_memory_0_18")]
pub mod vm_memory;
