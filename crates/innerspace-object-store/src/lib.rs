//! Files in object storage for [`innerspace`]: a bounded cache in memory, a second one on local
//! disk if wanted, and errors instead of mixed bytes.
//!
//! ```no_run
//! use innerspace::{GIB, MIB, Memory};
//! use innerspace_object_store::{ObjectStoreFile, Tier};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = Memory::with_limit(64 * MIB)?;
//! let tier = Tier::open("/var/cache/my-program", 2 * GIB)?; // on local disk, warm after a restart
//! let object = ObjectStoreFile::open("s3://bucket/data.bin")?; // credentials by the environment
//! let file = memory.file_options().open_store(tier.store(object)?)?;
//! println!("{:?}", &file.view(0..4096)?[..16]);
//! # Ok(()) }
//! ```
//!
//! | type | what it is |
//! |---|---|
//! | [`ObjectStoreFile`] | one version of one object, to be read |
//! | [`NewObject`] | a new object, uploaded by a sync |
//! | [`Tier`], [`TieredStore`] | a cache on local disk, in front of any store |
//! | [`RequestLimit`] | a limit on requests in flight for the files of a group, and their counters |
//! | [`CachedObjectStore`] | an [`object_store::ObjectStore`] whose reads go through the cache |
//! | [`Runtime`] | the threads of the clients |
//!
//! # What owns what
//!
//! A [`Memory`](innerspace::Memory) owns the cached blocks, and its limit holds for them. An
//! [`ObjectStoreFile`] owns no bytes: the body of an answer is copied into the cache's memory piece
//! by piece, as it arrives. Beyond the limit, a process that reads 100 files at once needs on its
//! heap at most 16 MiB (8 MiB measured, with 100 requests in flight), 8 MiB where the files share a
//! [`RequestLimit`] of 8 requests (3 MiB measured), and 32 MiB with a tier (26 MiB measured: 16
//! MiB of [buffers](TierOptions::buffers), and about 1 MiB for each GiB of its size). A test holds
//! these. What the system's allocator keeps for later comes on top: up to as much again. An upload
//! has four parts (32 MiB) while it runs.
//!
//! A request in flight owns the memory that it fills, as `docs/protocols/requests.md` explains. It
//! is a task of the [`Runtime`], and takes no thread while it waits. A plain read waits in the
//! calling thread.
//!
//! # What the version of an object means
//!
//! An object is opened at one version: its entity tag, its version id if the bucket has versions,
//! or, on servers with neither, its length and its time. Every request names that version
//! (`If-Match`, `versionId`, `If-Unmodified-Since`), and the answer is checked for it as well, for
//! servers that ignore conditions. A weak tag is only checked. If the object is replaced, reads
//! that need the server fail with [`StoreError::Changed`](innerspace::store::StoreError::Changed),
//! from then on without asking again; in a bucket with versions they go on. If it is deleted, they
//! fail with [`Reason::Deleted`]. Answers of wrong length are tried again, and are errors in the
//! end.
//!
//! `docs/protocols/object-storage.md` explains how the tier keeps its promises.

#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![warn(clippy::return_self_not_must_use)]

mod cached;
mod error;
mod fetch;
mod file;
mod limit;
mod runtime;
mod tier;
mod upload;
mod url;

pub use object_store;

pub use cached::CachedObjectStore;
pub use error::{Reason, RemoteError};
pub use file::{ObjectStoreFile, RemoteOptions};
pub use limit::{RemoteStats, RequestLimit};
pub use runtime::Runtime;
pub use tier::{Tier, TierError, TierOptions, TierStats, TieredStore};
pub use upload::{NewObject, Replace};
pub use url::install_tls;
