//! Extent maps: where on a device each page of a file is.
//!
//! - [`IdentityMap`]: a page is at its own offset of a sparse host file. The host's file system
//!   keeps the map, even through a crash.
//! - [`ScatteredMap`]: blocks are anywhere on a memory device; each 2 MiB has a run, or a word for
//!   each page. This process keeps the map while the file lives.
//! - `Faulty` (tests): a scattered map that fails and misplaces blocks on demand.
//!
//! **Rules.** A fault, a write or a cut that relies on a lookup keeps others from changing the
//! page: it has the page's entry locked, or holds the file exclusively. If the lookup's answer is
//! longer, the operation relies only on the part that it has locked. A read by call locks no entry:
//! it shares the file's `layout`, so that no block is freed. `allocate` is called only for holes.
//! `free` is called once no thread can reach the pages any more. It also takes back an allocation
//! that is not used after all.

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
use crate::store::StoreError;
use crate::sync::Arc;
use crate::units::ByteSize;

pub(crate) use blocks::Blocks;
pub(crate) use identity::IdentityMap;
pub(crate) use scattered::ScatteredMap;

/// A run of pages of a file that are contiguous on the device, or are a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// The page of the device that holds the first page of the run; `None` for a hole.
    pub(crate) at: Option<u64>,
    /// The number of pages, from the one that was looked up: at least 1.
    pub(crate) pages: u64,
}

/// The map of one file. The module's documentation has the rules.
pub(crate) trait ExtentMap: Send + Sync {
    /// Returns the extent that begins at `page`, of at most `most` (at least 1) pages. It may be
    /// shorter than the real one.
    fn lookup(&self, page: u64, most: u64) -> io::Result<Extent>;

    /// Returns the extent that `lookup` would return, if no query of the host is needed for it.
    fn known(&self, page: u64, most: u64) -> Option<Extent> {
        self.lookup(page, most).ok()
    }

    /// Allocates contiguous zeroed blocks for the hole of 1 or [`LARGE_PAGES`] pages at `page`, and
    /// returns the first. A large run should start at a multiple of its size on the device.
    ///
    /// # Errors
    /// `StorageFull` if there is no such run (for a single page: if the device is full); an error
    /// with [`StoreError::Shrank`] inside if others have cut the host file; or another error of the
    /// host. In each case, no block is given out.
    fn allocate(&self, page: u64, pages: u64) -> io::Result<u64>;

    /// Turns pages into a hole. The caller ensures that no thread can reach them.
    fn free(&self, pages: Range<u64>) -> io::Result<()>;

    /// Forgets answers about these pages, which another process may have changed. By default no
    /// answers are kept, and this does nothing.
    fn forget(&self, _pages: Range<u64>) {}

    /// Returns roughly how many bytes of heap memory the map uses. The number is stored and loaded
    /// with SeqCst: a load that comes after a change in the single order of all SeqCst operations
    /// sees that change.
    fn heap_bytes(&self) -> u64;

    /// Returns whether freeing these pages may make the map larger.
    fn is_parted_by(&self, _pages: &Range<u64>) -> bool {
        false
    }

    /// Sets the file's length. By then the pages that are cut off have been freed. Before the file
    /// grows, the bytes past its end in its last page have been zeroed; when it shrinks, the map
    /// must not rely on that. By default no length is kept, and this does nothing.
    fn set_len(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    /// Waits until the map itself and the file's length are as durable as the device's bytes can
    /// be. By default they end with the process, and this does nothing.
    fn sync_metadata(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The device has no free block. This is wrapped in an `io::Error` of kind `StorageFull`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no block is free on a device of {}", ByteSize(*device_len))]
pub(crate) struct NoBlock {
    /// The device's length in bytes.
    pub(crate) device_len: u64,
}

impl DaxError {
    /// Wraps the error of an extent map's operation `what`, for `wanted` bytes at `offset` of
    /// `file`.
    pub(crate) fn from_extents(
        file: &Arc<str>,
        what: DaxAction,
        offset: u64,
        wanted: u64,
        error: io::Error,
    ) -> DaxError {
        let file = file.clone();
        let inside = error.get_ref();
        if let Some(&StoreError::Shrank {
            now, was, since, ..
        }) = inside.and_then(|e| e.downcast_ref())
        {
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
            Some(what) if error.kind() == io::ErrorKind::Unsupported => {
                DaxError::unsupported(file, what, error)
            }
            _ => DaxError::io(&file, what, offset, error),
        }
    }
}
