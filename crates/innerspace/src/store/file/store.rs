//! [`FileStore`], and its implementation of [`Store`].

use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;

use super::file_io::FileIo;
use super::lock::LockedFile;
use super::options::{CacheMode, FileAccess, FileEngine};
use super::ring;
use super::watch::Watch;
use crate::store::{
    Batch, Identity, Limits, Own, Store, StoreError, SyncWhat, Version, write_zeros,
};
use crate::sync::Arc;
use crate::sys::file as sys;
use crate::units::PageCount;

/// The preferred size of a request. One of this size keeps a disk busy for longer than the system
/// call takes.
const PREFERRED_SIZE: usize = 1 << 20;

/// A regular file as a store. Dropping the store unlocks the file, but does not sync it.
///
/// ```
/// use innerspace::store::{FileStore, Store, SyncWhat, write_all_at};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// let store = FileStore::create(&path)?;
/// write_all_at(&store, b"hello", 0)?;
/// store.sync(SyncWhat::All)?;
/// assert_eq!((store.len()?, std::fs::read(&path)?), (5, b"hello".to_vec()));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct FileStore {
    /// The file, with its advisory lock if it has one. It is used for everything except direct
    /// transfers.
    pub(super) file: LockedFile,
    pub(super) file_io: FileIo,
    pub(super) access: FileAccess,
    pub(super) identity: Option<Identity>,
    /// The path as given.
    pub(super) name: String,
    pub(super) watch: Arc<Watch>,
}

impl FileStore {
    /// Returns the mode by which the file's pages are kept out of the kernel's page cache. For
    /// [`CacheMode::Auto`] it is the mode that reads use. If the file system refuses a read in mode
    /// [`CacheMode::Direct`] although opening the file succeeded, reads use another mode from then
    /// on.
    pub fn cache_mode(&self) -> CacheMode {
        self.file_io.mode()
    }

    /// Returns the engine for several reads in flight. If the kernel refuses a read by
    /// [`FileEngine::IoUring`], the store uses [`FileEngine::Calls`] from then on.
    pub fn engine(&self) -> FileEngine {
        match ring::takes_reads(&self.file_io, &self.watch) {
            true => FileEngine::IoUring,
            false => FileEngine::Calls,
        }
    }

    /// Returns whether the file was opened for reading only, or for writing too.
    pub fn access(&self) -> FileAccess {
        self.access
    }

    fn check_writable(&self) -> io::Result<()> {
        match self.access {
            FileAccess::ReadWrite => Ok(()),
            FileAccess::ReadOnly => Err(StoreError::ReadOnly.into()),
        }
    }
}

/// Returns the identity of a regular file's bytes, which is the same however the file is opened.
/// Returns `None` where the system gives files no numbers.
pub(super) fn identity_of(metadata: &std::fs::Metadata) -> Option<Identity> {
    sys::identity(metadata).map(|numbers| Identity::new("file", numbers))
}

impl Store for FileStore {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_vectored_at(&mut [IoSliceMut::new(buf)], offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let count = self.file_io.read_vectored_at(&self.file, bufs, offset)?;
        if count == 0 {
            let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
            if wanted > 0 {
                self.watch.check_end(&self.file, offset, wanted as u64)?;
            }
        }
        Ok(count)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_vectored_at(&[IoSlice::new(buf)], offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.check_writable()?;
        let _own = self.watch.own_change();
        let count = self.file_io.write_vectored_at(&self.file, bufs, offset)?;
        self.watch.len.grew_to(offset + count as u64);
        Ok(count)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let _own = self.watch.own_change();
        let resize = || self.file.set_len(len);
        self.watch.len.resizing(&self.file, len, resize)
    }

    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        self.file.sync_name()?;
        self.file_io.sync_with(&self.file, |file| match what {
            SyncWhat::Data => file.sync_data(),
            SyncWhat::All => file.sync_all(),
        })
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let len = offset
            .saturating_add(len)
            .min(self.len()?)
            .saturating_sub(offset);
        if len == 0 {
            return Ok(());
        }
        let _own = self.watch.own_change();
        match sys::punch(&self.file, offset, len) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                write_zeros(self, offset, len)
            }
            done => done,
        }
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        sys::next_data(&self.file, offset)
    }

    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        Ok(sys::next_hole(&self.file, offset)?.unwrap_or(offset))
    }

    fn submit(&self, batch: Batch) {
        ring::launch(&self.file_io, &self.watch, batch).call(self);
    }

    fn fills_as_told(&self, _: Own) -> bool {
        true
    }

    fn identity(&self) -> Option<Identity> {
        self.identity
    }

    fn version(&self) -> io::Result<Option<Version>> {
        self.watch.version(&self.file).map(Some)
    }

    fn limits(&self) -> Limits {
        self.file_io.limits().preferred_size(PREFERRED_SIZE)
    }

    fn writable(&self) -> bool {
        self.access == FileAccess::ReadWrite
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Returns the number of pages of 4 KiB of the file at `path` that are in the kernel's page cache.
/// Linux only. On tmpfs and similar file systems the page cache is the file itself.
///
/// # Errors
/// The file cannot be opened, or the system does not say what is cached. On systems other than
/// Linux, [`io::ErrorKind::Unsupported`] for every file that can be opened.
pub fn kernel_cached_pages(path: impl AsRef<Path>) -> io::Result<PageCount> {
    sys::cached_bytes_of(path.as_ref()).map(PageCount::ceil)
}
