//! redb databases in a cache with a hard limit.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::path::Path;

use innerspace::store::FileLock;
use innerspace::{FileAccess, FileOpener, OpenError, PagedFile};
use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// A file of an [`innerspace::Memory`] as the storage of a redb database.
///
/// redb keeps a cache of its own, whose size [`redb::Builder::set_cache_size`] sets: a small one is
/// enough here, since the blocks are in the memory's cache, and count against its limit.
///
/// The locks are redb's, on the whole file, so that programs with redb's own `FileBackend` and this
/// one keep out of each other's way. The mode of several writing processes needs more, and is
/// refused: a cache does not see what another process writes.
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
/// let backend = PagedBackend::open(memory.options(), &path)?;
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
    file: PagedFile,
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
        Ok(PagedBackend { file, locks })
    }

    /// Opens the file at `path` for reading alone: for
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
        let file = options.lock(FileLock::None).open_path(path)?;
        let locks = File::open(path).ok();
        let locks = locks.and_then(|file| FileBackend::new(file).ok());
        Ok(PagedBackend { file, locks })
    }

    /// Uses a file that is open already, over any store. Nobody else may use it meanwhile: it is
    /// not locked.
    pub fn new(file: PagedFile) -> PagedBackend {
        PagedBackend { file, locks: None }
    }

    /// The file: its counters, its group.
    pub fn file(&self) -> &PagedFile {
        &self.file
    }

    /// The locks, for a lock of the whole file.
    fn whole(&self, start: Bound<u64>, end: Bound<u64>) -> Result<&FileBackend, BackendError> {
        let is_whole = matches!(
            (start, end),
            (Bound::Unbounded | Bound::Included(0), Bound::Unbounded)
        );
        let locks = self.locks.as_ref().filter(|_| is_whole);
        locks.ok_or(BackendError::Unsupported)
    }
}

impl StorageBackend for PagedBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        Ok(self.file.read_exact_at(out, offset)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(self.file.set_len(len)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Ok(self.file.write_at(data, offset)?)
    }

    fn close(&self) -> io::Result<()> {
        // Whoever gets the lock next finds all bytes in the file.
        if self.file.access() == FileAccess::ReadWrite {
            self.file.clone().close()?;
        }
        self.locks.as_ref().map_or(Ok(()), StorageBackend::close)
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.whole(start, end)?.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.whole(start, end)?.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.whole(start, end)?.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.whole(start, end)?.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.whole(start, end)?.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.whole(start, end)?.query_lock_range(start, end)
    }
}
