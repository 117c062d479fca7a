//! The [`Store`] trait and its backends: the places where a file's bytes are when they are not
//! cached.
//!
//! A store is to the cache what a block device is to a kernel: positioned reads and writes, a
//! length, a sync. It knows nothing of frames, blocks, limits or sticky errors, which the cache
//! adds.
//!
//! | backend | bytes are in | for |
//! |---|---|---|
//! | [`MemoryStore`] | sparse chunks of this process's memory | tests, small targets |
//! | [`FileStore`] | a regular file, kept out of the kernel's page cache | all other uses |
//! | `FaultyStore` | another store, with faults by plan or by seed | tests (feature `test-util`) |
//!
//! **A backend of your own** needs [`Store::len`] and [`Store::read_at`]. If it can be written, it
//! also needs [`Store::write_at`], [`Store::set_len`], [`Store::sync`] and [`Store::writable`]. All
//! other methods have correct defaults.
//!
//! **Rules** that every store keeps, and on which the layers above rely:
//! - `read_at` and `write_at` may transfer less than asked. If a read into a non-empty buffer
//!   returns 0 bytes, the store ends at or before the offset of that read. [`read_exact_or_eof`]
//!   and [`write_all_at`] repeat short transfers.
//! - The layers above repeat a call that fails with `Interrupted`, as std does.
//! - A call that panics has failed. The panic propagates out of the operation that made the call;
//!   in a thread of the memory it is caught.
//! - Every offset and length is accepted. [`Limits`] says which are served directly, and so faster.
//! - Calls come from many threads at the same time. Calls on ranges that do not overlap do not
//!   disturb each other.
//! - A failed sync may drop writes and punches that were accepted before it, unless
//!   [`Store::accepted`] says otherwise. It must not undo a change of the length.
//! - A call may use other files of the same memory. It may also use cached blocks of the file for
//!   which it is made: by a read, a view, an eviction, or a load through a mapping. An operation on
//!   that file that might wait for the call fails with
//!   [`FileError::Reentered`](crate::file::FileError::Reentered). An access through a mapping then
//!   faults, with that error as the cause. During a call that is made for a fault in a space, or
//!   for a change of one, all accesses to that space fail with
//!   [`FaultKind::Reentered`](crate::space::FaultKind::Reentered).
//! - Two handles with equal [`Store::identity`] reach the same bytes.
//! - Bytes reported as a hole by `next_data`/`next_hole` read as zeros.
//!
//! Errors are `io::Error`s without the store's name: the cache wraps them with file and offset.
//! [`StoreErrorKind::of`] classifies them. For a failure that `io::ErrorKind` cannot express, the
//! `io::Error` contains a [`StoreError`].
//!
//! Locking: the caller of a store may hold a block lock or a WRITEBACK bit. Locks of a backend are
//! innermost in the lock order, and are never held across a call back into this crate.
//!
//! Neighbours: `sys::file` below has the system calls. `cache` above calls the stores; `memory` and
//! `dax` open files by this module's steps. This layer does not cache, does not retry failed writes
//! and does not order writes.

mod error;
#[cfg(any(test, feature = "test-util"))]
pub mod faulty;
mod file;
mod memory;
mod request;
mod transfer;

#[cfg(all(test, not(shuttle)))]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};

use crate::sync::Arc;

pub(crate) use error::WithCauses;
pub use error::{KnownSince, StoreError, StoreErrorKind};
#[cfg(any(test, feature = "test-util"))]
pub use faulty::FaultyStore;
#[cfg(all(test, unix, not(loom), not(shuttle), not(miri)))]
pub(crate) use file::hook;
pub use file::{
    CacheMode, FileAccess, FileEngine, FileLock, FileOpenError, FileOptions, FileStore, LockHolder,
    kernel_cached_pages,
};
pub(crate) use file::{Create, Flights, KnownLen, LockedFile, Locking, Opened, Opening, shown};
pub use memory::{MemoryStore, StoreCounts};
pub(crate) use request::Transfer;
pub use request::{Batch, Operation, Request};
pub use transfer::{
    read_exact_or_eof, short_read_error, write_all_at, write_all_vectored_at, write_zeros,
};
pub(crate) use transfer::{read_vectored_or_eof, uninterrupted};

/// The data and metadata that [`Store::sync`] makes durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SyncWhat {
    /// The bytes, and the metadata needed to read them back (fdatasync).
    Data,
    /// The bytes and all metadata (fsync).
    All,
}

/// The effect of a failed sync on the writes and punches that were accepted before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Accepted {
    /// A failed sync may drop the write. Reads then return older bytes, as with a kernel's page
    /// cache. The library's cache therefore keeps written bytes until a sync has succeeded, and
    /// writes them again after a failed one. It also remembers punched ranges, and punches them
    /// again.
    UntilSync,
    /// The write stays, even if a sync fails.
    Kept,
}

/// Identifies the bytes that a store reaches: two stores with equal identities have the same bytes.
///
/// An identity is valid while a store that returned it is open. After a file is closed, its numbers
/// may be given to another file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    kind: &'static str,
    numbers: [u64; 2],
}

impl Identity {
    /// Makes an identity from the backend's name for its kind of store ("file", "memory") and two
    /// numbers. Stores of one kind with the same numbers must have the same bytes.
    pub fn new(kind: &'static str, numbers: [u64; 2]) -> Identity {
        Identity { kind, numbers }
    }

    /// Returns the kind of store, such as "file".
    pub fn kind(&self) -> &'static str {
        self.kind
    }
}

/// A value that changes when another program changes the store. Versions can only be compared for
/// equality.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Version(u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Version {
    /// Makes a version from a number, such as a generation number or the hash of an HTTP entity
    /// tag.
    pub fn new(number: u64) -> Version {
        Version(number)
    }
}

/// The requests that a store serves directly. It serves others too, but more slowly.
///
/// ```
/// use innerspace::store::Limits;
/// let disk = Limits::aligned(4096).requests(32).preferred_size(1 << 20);
/// assert_eq!((disk.alignment, disk.memory_alignment, disk.requests), (4096, 4096, 32));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Offsets and lengths that are multiples of this many bytes are served directly. A power of
    /// two, at least 1.
    pub alignment: usize,
    /// Buffer addresses that are multiples of this are served directly. A power of two, at least 1.
    pub memory_alignment: usize,
    /// The preferred size of a request in bytes. Neighbouring blocks are read and written together
    /// up to this size. 0 means no preference; 1 MiB is used then. A sequential reader has eight
    /// requests of this size in flight, or [`requests`](Limits::requests) if that is fewer, but at
    /// least four. There may be more if they are small, up to 16 MiB in all. At most an eighth of
    /// the limit of any group above the file is in flight.
    pub preferred_size: usize,
    /// The number of requests that the store serves at the same time, at least 1. If the store has
    /// no completion form of its own ([`Store::submit`]), the memory calls it from that many
    /// threads.
    pub requests: u32,
}

/// The default of [`Limits::requests`].
const REQUESTS: u32 = 16;

impl Default for Limits {
    /// Returns limits without an alignment or a preferred size, and with 16 requests at the same
    /// time.
    fn default() -> Limits {
        Limits {
            alignment: 1,
            memory_alignment: 1,
            preferred_size: 0,
            requests: REQUESTS,
        }
    }
}

impl Limits {
    /// Returns limits with the same alignment in bytes for offsets, lengths and memory.
    ///
    /// # Panics
    /// If `alignment` is not a power of two.
    pub fn aligned(alignment: usize) -> Limits {
        assert!(
            alignment.is_power_of_two(),
            "alignment {alignment} is not a power of two"
        );
        Limits {
            alignment,
            memory_alignment: alignment,
            ..Limits::default()
        }
    }

    /// Returns the same limits with this many requests at the same time.
    #[must_use]
    pub fn requests(self, requests: u32) -> Limits {
        Limits { requests, ..self }
    }

    /// Returns the same limits with a preferred request size in bytes.
    #[must_use]
    pub fn preferred_size(self, preferred_size: usize) -> Limits {
        Limits {
            preferred_size,
            ..self
        }
    }
}

/// A token that only this crate can make, so that only this crate can call a method that takes one.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Own(());

impl Own {
    /// The only value of this type.
    pub(crate) const ASKS: Own = Own(());
}

/// The place in which a file's bytes are stored. The module's documentation has the rules for
/// stores.
///
/// ```
/// use std::io;
/// use innerspace::{MIB, Memory, store::Store};
///
/// /// The squares, as text of eight bytes each, computed when they are read.
/// struct Squares;
///
/// impl Store for Squares {
///     fn len(&self) -> io::Result<u64> {
///         Ok(8 * 1_000_000)
///     }
///
///     fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
///         let len = (self.len()?.saturating_sub(offset)).min(buf.len() as u64) as usize;
///         for (at, byte) in (offset..).zip(&mut buf[..len]) {
///             let square = format!("{:8}", (at / 8).pow(2) % 100_000_000);
///             *byte = square.as_bytes()[at as usize % 8];
///         }
///         Ok(len)
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(4 * MIB)?;
/// let file = memory.file_options().name("squares").open_store(Squares)?;
/// assert_eq!(file.view(8 * 111..8 * 112)?[..], *b"   12321");
/// # Ok(()) }
/// ```
#[allow(
    clippy::len_without_is_empty,
    reason = "a length in bytes that may fail, not a collection"
)]
pub trait Store: Send + Sync + 'static {
    /// Returns the present length in bytes.
    ///
    /// # Errors
    /// The length cannot be determined.
    fn len(&self) -> io::Result<u64>;

    /// Reads up to `buf.len()` bytes at `offset`, and returns how many. May read fewer, but 0 only
    /// at or past the end.
    ///
    /// # Errors
    /// After an error nothing was read. The cache repeats a call that was
    /// [interrupted](io::ErrorKind::Interrupted), and reports any other error with file and offset.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Fills the buffers one after the other from `offset` on, under the rules of
    /// [`Store::read_at`]. Default: reads into the first buffer that is not empty.
    ///
    /// # Errors
    /// Those of [`Store::read_at`].
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        bufs.iter_mut()
            .find(|buf| !buf.is_empty())
            .map_or(Ok(0), |buf| self.read_at(buf, offset))
    }

    /// Writes up to `buf.len()` bytes at `offset`, and returns how many. Writes at least one byte
    /// unless `buf` is empty. A write past the end lengthens the store, and bytes between the old
    /// end and `offset` then read as zeros. Default: fails, because the store is read-only.
    ///
    /// # Errors
    /// After an error nothing was written. The bytes stay dirty in the cache, which writes them
    /// again later.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let _ = (buf, offset);
        Err(StoreError::ReadOnly.into())
    }

    /// Writes the buffers one after the other at `offset`, under the rules of [`Store::write_at`].
    /// Default: writes the first buffer that is not empty.
    ///
    /// # Errors
    /// Those of [`Store::write_at`].
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        bufs.iter()
            .find(|buf| !buf.is_empty())
            .map_or(Ok(0), |buf| self.write_at(buf, offset))
    }

    /// Cuts or lengthens the store to `len` bytes. New bytes read as zeros. The change may need a
    /// sync to be durable, but a failed sync must not undo it, because the cache does not set the
    /// length again. Default: fails, because the store is read-only.
    ///
    /// # Errors
    /// After an error the length is unchanged.
    fn set_len(&self, len: u64) -> io::Result<()> {
        let _ = len;
        Err(StoreError::ReadOnly.into())
    }

    /// Makes all writes that ended before the call durable: once the call has returned, they
    /// survive a power cut. Default: does nothing, for a store whose writes are durable when they
    /// return.
    ///
    /// # Errors
    /// After an error some of these writes may not be durable. [`Store::accepted`] says what may
    /// have become of them.
    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        let _ = what;
        Ok(())
    }

    /// Returns what happens to an accepted write if the next sync fails. The answer never changes.
    /// Default: a failed sync may drop the write.
    fn accepted(&self) -> Accepted {
        Accepted::UntilSync
    }

    /// Makes a range read as zeros, and frees its space where the store can. The length does not
    /// change, and the part of the range past the end is ignored. Default: writes zeros.
    ///
    /// # Errors
    /// After an error any part of the range may read as zeros.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.len()?);
        write_zeros(self, offset, end.saturating_sub(offset))
    }

    /// Returns the first offset at or after `offset` that is not in a hole. Returns `None` if only
    /// a hole or the end follows. Default: there are no holes.
    ///
    /// # Errors
    /// The store cannot tell where its data is. The cache then fails the read for which it asked.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok((offset < self.len()?).then_some(offset))
    }

    /// Returns the first offset at or after `offset` that is in a hole or at the end. Default: the
    /// end.
    ///
    /// # Errors
    /// Those of [`Store::next_data`].
    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        Ok(self.len()?.max(offset))
    }

    /// Returns an identity of the store's bytes, by which a second open of the same bytes is
    /// recognised. Default: `None`, which means that the identity is unknown.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Returns a value that changes when another program changes the store, but not by calls
    /// through this handle.
    ///
    /// The cache asks for the version when the file is opened, at the first fill in each tick of
    /// the memory's clock (about a second), and when a sync begins. After a change the cache reads
    /// no more, and returns [`FileError::ChangedInPlace`](crate::file::FileError::ChangedInPlace).
    /// So old and new bytes are mixed for a tick at most. Default: `None`, which means that the
    /// store cannot tell; it is not asked again.
    ///
    /// A [`FileStore`] makes its version from the length and the time of the last modification. It
    /// misses a change by another program between a change through the store and the next check. It
    /// also misses a change that the file system's clock cannot distinguish from the previous one.
    ///
    /// # Errors
    /// The version cannot be determined.
    fn version(&self) -> io::Result<Option<Version>> {
        Ok(None)
    }

    /// Returns the limits within which requests are served directly. Default: all requests are.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Returns whether the store can be written. Default: no.
    fn writable(&self) -> bool {
        false
    }

    /// Returns whether a call to the store may use files or spaces of a [`Memory`](crate::Memory),
    /// as a store over another file does. The answer never changes. Default: no.
    ///
    /// A thread that needs memory while it has a file locked does not call a store that uses files,
    /// because the call might need that file. The dirty blocks above the store are written a little
    /// later instead, with nothing locked. An operation may therefore fail for lack of memory that
    /// writing them would have freed.
    ///
    /// If a store uses files but returns `false`, the memory notices this at the first call that
    /// uses a file. That one call may deadlock. A store around another one should return the inner
    /// store's answer.
    ///
    /// During a call to a store, memory is freed only by evicting clean blocks. Dirty blocks must
    /// be writable even when the memory is full. So a file that is opened for writing over a store
    /// that uses files sets aside a block and six pages. Calls that change the store may use these
    /// pages, for files and spaces of the same memory. If the pages do not suffice, or the group
    /// that requests memory has reached its own limit, the store's request fails with a
    /// [`LimitError`](crate::group::LimitError). If the store's call then fails with
    /// [`io::ErrorKind::OutOfMemory`], the file makes room and repeats the call with fewer blocks.
    fn uses_files(&self) -> bool {
        false
    }

    /// Returns the name used in messages and in saved snapshots. For a file it is the path as
    /// given. Messages escape control characters in it. Default: `store`.
    fn name(&self) -> String {
        "store".to_owned()
    }

    /// Puts requests in flight and returns without waiting. Requests are completed in any order, on
    /// any thread, and some perhaps before this call returns. The caller holds locks of the file,
    /// so the call must not wait. Default: [`Batch::call`], which has threads of the memory make
    /// the plain calls.
    ///
    /// If this panics, the requests that it drops fail, and the cache reads their bytes by plain
    /// calls. A file may be closed while its requests are in flight. Its store is then kept until
    /// the last request has completed. The store is not dropped in that completion, but a little
    /// later: by the memory's service thread, or by a thread that calls `tick`, drops a file, or
    /// opens the store again.
    fn submit(&self, batch: Batch) {
        batch.call(self);
    }

    /// Returns whether the store may be given memory that is not cleared. A read from such a store
    /// fills exactly as many bytes as it returns, and never looks at the memory's old content. Only
    /// the library's own stores return `true`.
    #[doc(hidden)]
    fn fills_as_told(&self, _: Own) -> bool {
        false
    }
}

/// Implements the named methods of [`Store`] for a pointer to a store.
macro_rules! forward_store {
    ($pointer:ident: $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl<S: Store + ?Sized> Store for $pointer<S> {
            $(fn $name(&self $(, $argument: $type)*) $(-> $result)? {
                (**self).$name($($argument),*)
            })*
        }
    };
    ($first:ident, $second:ident: $($methods:tt)*) => {
        forward_store! { $first: $($methods)* }
        forward_store! { $second: $($methods)* }
    };
}

forward_store! { Arc, Box:
    fn len() -> io::Result<u64>;
    fn read_at(buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn read_vectored_at(bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize>;
    fn write_at(buf: &[u8], offset: u64) -> io::Result<usize>;
    fn write_vectored_at(bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    fn set_len(len: u64) -> io::Result<()>;
    fn sync(what: SyncWhat) -> io::Result<()>;
    fn accepted() -> Accepted;
    fn punch(offset: u64, len: u64) -> io::Result<()>;
    fn next_data(offset: u64) -> io::Result<Option<u64>>;
    fn next_hole(offset: u64) -> io::Result<u64>;
    fn identity() -> Option<Identity>;
    fn version() -> io::Result<Option<Version>>;
    fn limits() -> Limits;
    fn writable() -> bool;
    fn uses_files() -> bool;
    fn name() -> String;
    fn submit(batch: Batch);
    fn fills_as_told(own: Own) -> bool;
}

/// Returns a name as messages show it. Control characters are escaped, so that no file name breaks
/// a line or sends a terminal a command.
pub(crate) fn shown_name(name: &str) -> Cow<'_, str> {
    if !name.contains(char::is_control) {
        return Cow::Borrowed(name);
    }
    let mut text = String::new();
    for letter in name.chars() {
        match letter.is_control() {
            true => text.extend(letter.escape_default()),
            false => text.push(letter),
        }
    }
    Cow::Owned(text)
}
