//! Extent maps: which page of a device has which page of a file.
//!
//! - [`IdentityMap`]: a page is at its own offset of a sparse host file. The host's file system
//!   keeps the map, and keeps it through a crash.
//! - [`ScatteredMap`]: blocks are anywhere on a memory device; each 2 MiB has a run, or a word for
//!   each page. This process keeps the map, as long as the file lives.
//! - `Faulty` (tests): as scattered, failing and misplacing on demand.
//!
//! **Rules.** A caller that looks a page up keeps others from changing it meanwhile: it holds the
//! page's entry locked, or the file exclusively. It relies on a longer answer only as far as it has
//! locked. `allocate` is called only for holes, and each allocation is followed by exactly one
//! `finish`. `free` is called once nobody can reach the pages any more.

mod blocks;
#[cfg(test)]
pub(crate) mod faulty;
mod identity;
mod range;
mod scattered;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

use std::io;
use std::ops::Range;

pub(crate) use super::entry::LARGE_PAGES;
use super::error::{DaxAction, DaxError, DaxFeature};
use crate::store::KnownSince;
use crate::sync::Arc;
use crate::units::{ByteSize, Grouped};

pub(crate) use blocks::Blocks;
pub(crate) use identity::IdentityMap;
pub(crate) use scattered::ScatteredMap;

/// A run of pages of a file that are contiguous on the device, or are a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// The device's page that has the first one; `None` for a hole.
    pub(crate) at: Option<u64>,
    /// The number of pages, from the one looked up on: at least 1.
    pub(crate) pages: u64,
}

/// The outcome of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Used {
    /// The file's entry has it.
    Kept,
    /// The block was not used, and the pages are a hole again.
    Dropped,
}

/// The map of one file. See the module's rules.
pub(crate) trait ExtentMap: Send + Sync {
    /// The extent that begins at `page`, of at most `most` (at least 1) pages. It may be shorter
    /// than the whole.
    fn lookup(&self, page: u64, most: u64) -> io::Result<Extent>;

    /// The extent, if no query of the host is needed.
    fn known(&self, page: u64, most: u64) -> Option<Extent> {
        self.lookup(page, most).ok()
    }

    /// Allocates contiguous zeroed blocks for the hole of 1 or [`LARGE_PAGES`] pages at `page`, and
    /// returns the first. A large run should start at a multiple of its size on the device.
    ///
    /// # Errors
    /// `StorageFull` when there is no such run (of a single page: when the device is full);
    /// [`HostShrank`] inside when the host file was cut by others. Nothing has changed then.
    fn allocate(&self, page: u64, pages: u64) -> io::Result<u64>;

    /// Reports the outcome of an allocation.
    fn finish(&self, page: u64, pages: u64, used: Used);

    /// Makes pages a hole. Nobody can reach them any more.
    fn free(&self, pages: Range<u64>) -> io::Result<()>;

    /// Forgets answers about these pages, which another process may have changed. Default: nothing
    /// is remembered.
    fn forget(&self, _pages: Range<u64>) {}

    /// The map's heap memory in bytes, roughly. A change is visible to a call of this after the
    /// call that made it, in one order with all other SeqCst operations.
    fn heap_bytes(&self) -> u64;

    /// Sets the file's length. Nobody can reach pages that are cut off any more; new bytes are
    /// zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Returns when the map itself and the file's length survive a power cut as far as the device
    /// does.
    fn sync_metadata(&self) -> io::Result<()>;
}

/// Inside an `io::Error` of [`ExtentMap::allocate`]: another process has cut the host file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the file now ends at {} (it was {} {since})", Grouped(*now), Grouped(*was))]
pub(crate) struct HostShrank {
    /// Its length now.
    pub(crate) now: u64,
    /// Its length before.
    pub(crate) was: u64,
    /// Since when that was known.
    pub(crate) since: KnownSince,
}

/// Inside an `io::Error` of kind `StorageFull`: the device has no block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no block is free on a device of {}", ByteSize(*device_len))]
pub(crate) struct NoBlock {
    /// The device's length in bytes.
    pub(crate) device_len: u64,
}

impl DaxError {
    /// Wraps an extent map's error on `what`, for `wanted` bytes at `offset` of `file`.
    pub(crate) fn from_extents(
        file: &Arc<str>,
        what: DaxAction,
        offset: u64,
        wanted: u64,
        error: io::Error,
    ) -> DaxError {
        let file = file.clone();
        let inside = error.get_ref();
        if let Some(&HostShrank { now, was, since }) = inside.and_then(|e| e.downcast_ref()) {
            return DaxError::Shrank {
                file,
                offset,
                wanted,
                now,
                was,
                since,
            };
        }
        if let Some(&NoBlock { device_len }) = inside.and_then(|e| e.downcast_ref()) {
            return DaxError::DeviceFull {
                file,
                offset,
                device_len,
            };
        }
        let feature = match what {
            DaxAction::Allocate => Some(DaxFeature::Allocating),
            DaxAction::Punch => Some(DaxFeature::Punching),
            _ => None,
        };
        match feature {
            Some(what) if error.kind() == io::ErrorKind::Unsupported => DaxError::Unsupported {
                file,
                what,
                source: Arc::new(error),
            },
            _ => DaxError::io(&file, what, offset, error),
        }
    }
}
