//! Where a file's bytes live when they are not cached: the [`Store`] trait and its backends.
//!
//! A store is to the cache what a block device is to a kernel: positioned reads and writes, a
//! length, a barrier. It knows nothing of frames, blocks, limits or sticky errors; the cache above
//! adds those.
//!
//! | backend | bytes are in | for |
//! |---|---|---|
//! | [`MemoryStore`] | sparse chunks of this process's memory | tests, small targets |
//! | [`FileStore`] | a regular file; nothing is left in the kernel's page cache | all |
//! | `FaultyStore` | another store, with faults by plan or by seed | tests (feature `test-util`) |
//!
//! **A backend of your own** needs [`Store::len`] and [`Store::read_at`]; [`Store::write_at`],
//! [`Store::set_len`], [`Store::sync`] and [`Store::writable`] when it can be written. All other
//! methods have correct defaults.
//!
//! **Rules every store keeps**, and the layers above rely on:
//! - `read_at` and `write_at` may transfer less than asked. 0 bytes read into a non-empty buffer
//!   mean the end of the store. [`read_exact_or_eof`] and [`write_all_at`] are the retry loops.
//! - A call that fails with `Interrupted` is made again, as long as it does, as std does.
//! - Every offset and length is accepted; [`Limits`] says which are served directly.
//! - Calls come from many threads at once. Calls on ranges that do not overlap do not disturb each
//!   other.
//! - A sync that fails may drop writes and punches accepted before it, unless [`Store::accepted`]
//!   says otherwise. A length that was set stays.
//! - A call may use other files of the same memory. The file that the call is for serves its cached
//!   blocks (to a read, a view, an eviction, a load through a mapping). An operation that might
//!   wait for the call fails with [`FileError::Reentered`](crate::FileError::Reentered), or with a
//!   fault for that reason. In a call for a fault or a change of a space, all accesses to that
//!   space fail with [`FaultKind::Reentered`](crate::FaultKind::Reentered).
//! - Two handles with equal [`Store::identity`] reach the same bytes.
//! - Bytes reported as a hole by `next_data`/`next_hole` read as zeros.
//!
//! Errors are `io::Error`s without the store's name: the cache wraps them with file and offset.
//! [`StoreErrorKind::of`] sorts them. A failure that `io::ErrorKind` has no word for is a
//! [`StoreError`] inside.
//!
//! Locking: the caller of a store may hold a block lock or a WRITEBACK bit. Locks of a backend are
//! leaves of the lock order, and are never held across a call back into this crate.
//!
//! Neighbours: `sys::file` below has the system calls; `cache` above is the only user. This layer
//! does not cache, does not retry failed writes and does not order writes.

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

pub use error::{KnownSince, StoreError, StoreErrorKind};
#[cfg(any(test, feature = "test-util"))]
pub use faulty::FaultyStore;
#[cfg(all(test, unix, not(loom), not(shuttle), not(miri)))]
pub(crate) use file::hook;
pub use file::{
    Access, CacheMode, Create, FileEngine, FileLock, FileOptions, FileStore, Holder, OpenError,
    kernel_cached_pages,
};
pub(crate) use file::{Emptying, Flights, Locked, LockedFile, Locking, Opened, shown};
pub use memory::{MemoryStore, StoreCounts};
pub(crate) use request::Transfer;
pub use request::{Batch, Operation, Request};
pub use transfer::{
    read_exact_or_eof, short_read_error, write_all_at, write_all_vectored_at, write_zeros,
};
pub(crate) use transfer::{read_vectored_or_eof, uninterrupted};

/// What a [`Store::sync`] makes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncWhat {
    /// The bytes, and the metadata needed to read them back (fdatasync).
    Data,
    /// The bytes and all metadata (fsync).
    All,
}

/// The fate of an accepted write or punch if the next sync fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// A failed sync may drop it, and reads then show older bytes, as with a kernel's page cache.
    /// The library's cache keeps such bytes until a sync has succeeded, and writes them again after
    /// a failed one. It also notes punched ranges, and punches them again.
    UntilSync,
    /// It stays, even if a sync fails.
    Kept,
}

/// Names the bytes that a store reaches: two stores with equal identities have the same bytes.
///
/// It is valid while a store that returned it is open; a closed file's numbers may be given to
/// another file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    kind: &'static str,
    numbers: [u64; 2],
}

impl Identity {
    /// An identity among the stores of one `kind`, a name that the backend chooses for itself
    /// ("file", "memory").
    pub fn new(kind: &'static str, numbers: [u64; 2]) -> Identity {
        Identity { kind, numbers }
    }

    /// The backend's name for itself.
    pub fn kind(&self) -> &'static str {
        self.kind
    }
}

/// A value that changes when another program changes the store. Only equality has a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Version(u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Version {
    /// A version from a generation number, or from a hash of an entity tag.
    pub fn new(number: u64) -> Version {
        Version(number)
    }
}

/// Which requests a store serves directly. Others are served too, only slower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Offsets and lengths in bytes that are multiples of this are served directly. A power of two,
    /// at least 1.
    pub alignment: usize,
    /// Buffer addresses that are multiples of this are served directly. A power of two, at least 1.
    pub memory_alignment: usize,
    /// The preferred request size in bytes: neighbouring blocks are read and written together up to
    /// this much. 0 for no preference, which means 1 MiB.
    pub preferred_size: usize,
    /// How many requests the store serves at a time, at least 1. As many threads call a store that
    /// has no completion form of its own.
    pub requests: u32,
}

/// Requests at a time, for a store that does not say how many.
const REQUESTS: u32 = 16;

impl Default for Limits {
    /// No alignment, no preferred size, 16 requests at a time.
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
    /// Limits with the same alignment in bytes for offsets, lengths and memory.
    ///
    /// # Panics
    /// When `alignment` is not a power of two.
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

    /// The same limits with this many requests at a time.
    pub fn at_a_time(self, requests: u32) -> Limits {
        Limits { requests, ..self }
    }

    /// The same limits with a preferred request size in bytes.
    pub fn prefer(self, preferred_size: usize) -> Limits {
        Limits {
            preferred_size,
            ..self
        }
    }
}

/// A token that only this crate can name, so that only its stores can implement what asks for it.
#[derive(Clone, Copy, Debug)]
pub struct Own(());

impl Own {
    /// The token.
    pub(crate) const ASKS: Own = Own(());
}

/// Where a file's bytes are stored. See the module's rules.
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
/// let file = memory.options().name("squares").open(Squares)?;
/// assert_eq!(file.view(8 * 111..8 * 112)?[..], *b"   12321");
/// # Ok(()) }
/// ```
#[allow(
    clippy::len_without_is_empty,
    reason = "a length in bytes that may fail, not a collection"
)]
pub trait Store: Send + Sync + 'static {
    /// The length in bytes, as of now.
    fn len(&self) -> io::Result<u64>;

    /// Reads up to `buf.len()` bytes at `offset`. It may read fewer, but 0 only at or past the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Fills the buffers one after the other from `offset` on, as [`Store::read_at`] does. Default:
    /// reads into the first buffer that is not empty.
    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        bufs.iter_mut()
            .find(|buf| !buf.is_empty())
            .map_or(Ok(0), |buf| self.read_at(buf, offset))
    }

    /// Writes up to `buf.len()` bytes at `offset`, at least one unless `buf` is empty, and
    /// lengthens the store where needed. Bytes between the old end and `offset` read as zeros.
    /// Default: the store is read-only.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let _ = (buf, offset);
        Err(StoreError::ReadOnly.into())
    }

    /// Writes the buffers one after the other at `offset`, as [`Store::write_at`] does. Default:
    /// writes the first buffer that is not empty.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        bufs.iter()
            .find(|buf| !buf.is_empty())
            .map_or(Ok(0), |buf| self.write_at(buf, offset))
    }

    /// Cuts or lengthens the store to `len` bytes; new bytes read as zeros. It may need a sync to
    /// be durable, but a failed sync must not undo it: the cache does not set the length again.
    /// Default: the store is read-only.
    fn set_len(&self, len: u64) -> io::Result<()> {
        let _ = len;
        Err(StoreError::ReadOnly.into())
    }

    /// Returns when all writes that ended before the call would survive a power cut. Default: they
    /// already do.
    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        let _ = what;
        Ok(())
    }

    /// The fate of an accepted write if the next sync fails. The answer never changes. Default: a
    /// failed sync may drop it.
    fn accepted(&self) -> Accepted {
        Accepted::UntilSync
    }

    /// Makes a range read as zeros, and frees its space where the store can. The length does not
    /// change; the part of the range past the end is ignored. Default: writes zeros.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.len()?);
        write_zeros(self, offset, end.saturating_sub(offset))
    }

    /// The first offset at or after `offset` that is not in a hole; `None` when only a hole or the
    /// end follows. Default: there are no holes.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok((offset < self.len()?).then_some(offset))
    }

    /// The first offset at or after `offset` that is in a hole or at the end. Default: the end.
    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        Ok(self.len()?.max(offset))
    }

    /// Names the store's bytes, so that a second open of the same bytes is recognised. Default:
    /// unknown.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Changes when another program changes the store, and not by calls through this handle. The
    /// cache asks when the file is opened, at the first fill in each tick of the memory's clock
    /// (about a second), and when a sync begins; after a change it reads no more, and says
    /// [`FileError::ChangedInPlace`](crate::FileError::ChangedInPlace). So old and new bytes are
    /// mixed for a tick at most. Default: cannot tell, and is not asked again.
    ///
    /// That of a [`FileStore`] is made of the length and the time of the last modification. It
    /// misses a change that comes between one of ours and the next look, and one that the file
    /// system's clock cannot tell apart from the last.
    fn version(&self) -> io::Result<Option<Version>> {
        Ok(None)
    }

    /// Which requests are served directly. Default: all of them.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// Whether the store takes writes. Default: no.
    fn writable(&self) -> bool {
        false
    }

    /// Whether a call of the store may use files or spaces of a [`Memory`](crate::Memory), as a
    /// store over another file does. The answer never changes. Default: it uses none.
    ///
    /// A thread that needs memory while it has a file locked does not call such a store, which
    /// might need that file. Dirty blocks above the store are written a little later, with nothing
    /// locked, and an operation may fail for lack of memory that writing them would have freed. A
    /// store that uses files and does not say so is found out at its first such call, which may
    /// wait for itself. A store around another should return the inner store's answer.
    fn uses_files(&self) -> bool {
        false
    }

    /// The name used in messages and in saved snapshots; for a file its path as given. Messages
    /// escape control characters in it. Default: `store`.
    fn name(&self) -> String {
        "store".to_owned()
    }

    /// Puts requests in flight and returns at once. Each is completed later, in any order, on any
    /// thread, perhaps before this returns. This is called with locks of the file held, so it must
    /// not wait. Default: [`Batch::call`], by which threads of the memory make the plain calls.
    ///
    /// If this panics, the requests that it drops fail, and are read by plain calls. A file may be
    /// closed while its requests are in flight; the store is kept until the last has completed.
    /// The store is not dropped in that completion, but by the memory, a little later: by its
    /// service, or by a thread that ticks, drops a file, or opens the store again.
    fn submit(&self, batch: Batch) {
        batch.call(self);
    }

    /// Whether reads fill memory exactly as far as they say, and do not look at it, so that it need
    /// not be cleared first. Only the library's own stores answer yes.
    #[doc(hidden)]
    fn fills_as_told(&self, _: Own) -> bool {
        false
    }
}

/// Implements [`Store`] for a pointer to one: the methods named.
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

/// A name as shown in messages. Control characters are escaped, so that no file name breaks a line
/// or reaches a terminal as a command.
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
