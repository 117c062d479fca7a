//! redb databases in a cache with a hard limit.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

use innerspace::store::FileLock;
use innerspace::{
    FileOpener, OpenError, PagedFile,
    file::{FileAccess, FileError},
};
use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// The bytes that processes lock to share a database that is written: see "Lock bytes" in redb's
/// design document.
const MODE_BYTES: std::ops::RangeInclusive<u64> = (1 << 62) + 1..=(1 << 62) + 2;

/// A file of an [`innerspace::Memory`] as the storage of a redb database.
///
/// redb keeps a cache of its own, whose size [`redb::Builder::set_cache_size`] sets: a small one is
/// enough here, since the blocks are in the memory's cache, and count against its limit.
///
/// The locks are those of redb's own [`FileBackend`], so that programs with that one and this one
/// keep out of each other's way. The modes in which processes share a database that is written are
/// refused as unsupported: a cache does not see what another process writes.
///
/// ```
/// use innerspace::{MIB, Memory};
/// use innerspace_adapters::redb::PagedBackend;
/// use redb::{Database, ReadableDatabase, TableDefinition};
///
/// const TABLE: TableDefinition<u64, &str> = TableDefinition::new("names");
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("names.redb");
/// let memory = Memory::with_limit(8 * MIB)?;
/// let backend = PagedBackend::open(memory.file_options(), &path)?;
/// let database = Database::builder().set_cache_size(MIB as usize).create_with_backend(backend)?;
/// let write = database.begin_write()?;
/// write.open_table(TABLE)?.insert(1, "one")?;
/// write.commit()?;
/// let read = database.begin_read()?;
/// assert_eq!(read.open_table(TABLE)?.get(1)?.unwrap().value(), "one");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PagedBackend {
    /// `None` once redb has closed it.
    file: RwLock<Option<PagedFile>>,
    /// Has the locks, on a descriptor of its own; `None` for a file without a path.
    locks: Option<FileBackend>,
}

impl PagedBackend {
    /// Opens the file at `path` for reading and writing, and makes it if there is none. `options`
    /// say which memory and group pay, and how large a block is.
    ///
    /// # Errors
    /// [`OpenError`]. A database that is open elsewhere is an error of redb's, when it is opened.
    pub fn open(options: FileOpener, path: impl AsRef<Path>) -> Result<PagedBackend, OpenError> {
        let path = path.as_ref();
        let file = options.lock(FileLock::None).open_or_create(path)?;
        let locks = File::options().read(true).write(true).open(path);
        let locks = locks.ok().and_then(|file| FileBackend::new(file).ok());
        let file = RwLock::new(Some(file));
        Ok(PagedBackend { file, locks })
    }

    /// Opens the file at `path` only for reading: for
    /// [`redb::Builder::open_read_only_with_backend`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_read_only(
        options: FileOpener,
        path: impl AsRef<Path>,
    ) -> Result<PagedBackend, OpenError> {
        let path = path.as_ref();
        let options = options.access(FileAccess::ReadOnly);
        let file = options.lock(FileLock::None).open(path)?;
        let locks = File::open(path).ok();
        let locks = locks.and_then(|file| FileBackend::new(file).ok());
        let file = RwLock::new(Some(file));
        Ok(PagedBackend { file, locks })
    }

    /// Uses a file that is open already, over any store. Nobody else may use it meanwhile: it is
    /// not locked.
    pub fn new(file: PagedFile) -> PagedBackend {
        PagedBackend {
            file: RwLock::new(Some(file)),
            locks: None,
        }
    }

    fn with<T>(&self, call: impl FnOnce(&PagedFile) -> Result<T, FileError>) -> io::Result<T> {
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner);
        let closed = || io::Error::new(io::ErrorKind::NotConnected, "the database was closed");
        Ok(call(file.as_ref().ok_or_else(closed)?)?)
    }

    /// The locks, for a range of the modes in which one process has the database to itself, or
    /// several only read it.
    fn locks(&self, start: Bound<u64>, end: Bound<u64>) -> Result<&FileBackend, BackendError> {
        let shares_writing = matches!(
            (start, end),
            (Bound::Included(first), Bound::Included(last))
                if first == last && MODE_BYTES.contains(&first)
        );
        let locks = self.locks.as_ref().filter(|_| !shares_writing);
        locks.ok_or(BackendError::Unsupported)
    }
}

impl StorageBackend for PagedBackend {
    fn len(&self) -> io::Result<u64> {
        self.with(|file| Ok(file.len()))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|file| file.read_exact_at(out, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|file| file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(PagedFile::sync_data)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|file| file.write_at(data, offset))
    }

    fn close(&self) -> io::Result<()> {
        let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
        // The file has all bytes before another holder can get the lock.
        let closed = file.take().map_or(Ok(()), PagedFile::close);
        drop(file);
        let unlocked = self.locks.as_ref().map_or(Ok(()), StorageBackend::close);
        closed?;
        unlocked
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.locks(start, end)?.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.locks(start, end)?.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locks(start, end)?.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locks(start, end)?.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.locks(start, end)?.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        // Whether others share the writing may be asked, and concerns a reader.
        let locks = self.locks.as_ref().ok_or(BackendError::Unsupported)?;
        locks.query_lock_range(start, end)
    }
}
