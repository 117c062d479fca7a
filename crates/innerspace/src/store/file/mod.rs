//! [`FileStore`]: a regular file, of which nothing stays in the kernel's page cache.
//!
//! The library caches the file itself, under a limit. A second copy in the kernel would make that
//! limit a lie. [`CacheMode`] names the ways to avoid it, [`FileStore::cache_mode`] says which is
//! in force.
//!
//! | file | contents |
//! |---|---|
//! | `options.rs` | the choices of an open, and its errors |
//! | `lock.rs` | the advisory lock |
//! | `watch.rs` | noticing that the file shrank, or changed from outside |
//! | `direct.rs` | direct I/O, and transfers that are not aligned |
//! | `long.rs` | long writes that bypass the page cache, beside short ones through it |
//! | `engine.rs` | one read or write in each cache mode, and which mode is fastest |
//! | `ring/` | reads in flight by io_uring(7) |
//! | `store.rs` | [`FileStore`] as a [`Store`](super::Store) |
//! | `opening.rs` | the steps of opening a file; choosing the engine |
//! | `open.rs` | opening step by step: which file it is, locked, emptied last |
//!
//! **Locks between processes.** A writable open takes an exclusive advisory lock (flock) before it
//! changes anything, and keeps it until the store is dropped. A read-only open takes none. A shared
//! lock would let any reader keep the file's owner out for as long as it likes; a read-only medium
//! may not have one; and it would promise a stillness that programs without locks do not keep.
//! Readers learn from [`Store::version`](super::Store::version) that the file changes.
//!
//! **What a sync means.** Only [`Store::sync`](super::Store::sync) makes data durable. When it
//! fails, the kernel may have dropped the bytes of earlier writes, and will not report that again.
//! With [`CacheMode::Direct`] alone the device has accepted a write that returned.
//!
//! Locking: `watch`, the unaligned edges of direct I/O, and the note of the range written through
//! the page cache have a mutex each, all of them leaves. Reads take none.

mod direct;
mod engine;
mod lock;
mod long;
mod name;
mod open;
mod opening;
mod options;
#[cfg(all(
    feature = "io-uring",
    target_os = "linux",
    not(any(loom, shuttle, miri, portable))
))]
mod ring;
#[cfg(not(all(
    feature = "io-uring",
    target_os = "linux",
    not(any(loom, shuttle, miri, portable))
)))]
#[path = "no_ring.rs"]
mod ring;
mod store;
mod watch;

pub(crate) use lock::LockedFile;
pub use open::FileOptions;
#[cfg(all(test, unix, not(loom), not(shuttle), not(miri)))]
pub(crate) use open::hook;
pub(crate) use open::{Emptying, Locked, Locking, Opened};
pub(crate) use options::shown;
pub use options::{Access, CacheMode, Create, FileEngine, FileLock, Holder, OpenError};
pub(crate) use ring::Flights;
pub use store::{FileStore, kernel_cached_pages};
