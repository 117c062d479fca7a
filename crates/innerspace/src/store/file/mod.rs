//! [`FileStore`]: a regular file, kept out of the kernel's page cache as far as possible.
//!
//! The library has a cache of its own, with a limit. A second copy in the kernel would defeat that
//! limit. [`CacheMode`] lists the ways to avoid the copy, and [`FileStore::cache_mode`] returns the
//! one in use.
//!
//! | file | contents |
//! |---|---|
//! | `options.rs` | the choices of an open, and its errors |
//! | `lock.rs` | the open file: its advisory lock, and its name, which a sync makes durable |
//! | `watch.rs` | notices that the file shrank, or changed from outside |
//! | `direct.rs` | direct I/O, and transfers that are not aligned |
//! | `long.rs` | long writes, which bypass the page cache |
//! | `file_io.rs` | one read or write in each cache mode, and which mode is fastest |
//! | `ring/` | reads in flight by io_uring(7); which engine a file uses (`in_flight.rs`) |
//! | `store.rs` | [`FileStore`] as a [`Store`](super::Store) |
//! | `opening.rs` | the steps of opening a file; choosing the cache mode |
//! | `open.rs` | the order of the steps: the file is identified, locked, and emptied last |
//!
//! **Locks between processes.** By default, a writable open takes an exclusive advisory lock
//! (flock) before it changes anything, and keeps it until the store is dropped. A read-only open
//! takes no lock, for three reasons. With a shared lock any reader could keep the file's owner out
//! for as long as it likes. Files on a read-only medium may not support locks. And a lock would
//! promise that the file does not change, although programs without locks can change it. A reader
//! learns from [`Store::version`](super::Store::version) that the file has changed.
//!
//! **What a sync means.** Only [`Store::sync`](super::Store::sync) makes data durable. If it fails,
//! the kernel may have dropped the bytes of earlier writes, and will not report that again. Only in
//! [`CacheMode::Direct`] is it certain that a write that returned was accepted by the device.
//!
//! Locking: each of these has a mutex: `watch`, the unaligned edges of direct I/O, the span written
//! through the page cache, the write-out error that the next sync will report, and the folder that
//! a sync makes durable. All of these mutexes are innermost. Reads take none.

mod direct;
mod file_io;
mod lock;
mod long;
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
pub(crate) use open::{Locking, Opened};
pub(crate) use opening::Opening;
pub(crate) use options::Create;
pub(crate) use options::shown;
pub use options::{CacheMode, FileAccess, FileEngine, FileLock, FileOpenError, LockHolder};
pub(crate) use ring::Flights;
pub use store::{FileStore, kernel_cached_pages};
pub(crate) use watch::KnownLen;
