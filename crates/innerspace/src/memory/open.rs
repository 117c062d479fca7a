//! Opening files: by path or over any store.

use std::io;
use std::path::Path;

use thiserror::Error;

use super::Memory;
use super::files::{Found, Listed, OpenFile};
use crate::cache::{FileAccess, FileError, FileOptions, PagedFile, StoreProbe, WriteOrder};
use crate::group::{FileBlocks, Group, GroupError, HeapBytes, MayReclaim};
use crate::stats::tell;
use crate::store::{self, CacheMode, Create, FileLock, Opened, Store};
use crate::sync::Arc;
use crate::texts::into_io_error;

/// Why a file could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file system refused.
    #[error(transparent)]
    Path(#[from] store::FileOpenError),
    /// The store refused, or the options are wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// A block of the file does not fit in the limit of the group that was to pay for the file.
    #[error("{file}: {why}")]
    BlockTooLarge {
        /// The name of the file.
        file: String,
        /// The group, its limit and the size of the block.
        why: GroupError,
    },
    /// The group that was given for the file belongs to another memory.
    #[error("the group given for the file belongs to another memory")]
    OtherMemorysGroup,
    /// The same store is already open in this memory, with other options.
    #[error("{file}: is open already {how}; close it first, or open it the same way")]
    OpenOtherwise {
        /// The name of the file.
        file: String,
        /// The way in which it is open.
        how: &'static str,
    },
    /// The same store is already open in this memory, so it was not emptied.
    #[error("{file}: is open already, so it is not emptied; close it first")]
    NotEmptied {
        /// The name of the file.
        file: String,
    },
}

impl OpenError {
    /// Returns whether a group was full: waiting, or freeing memory, may help.
    pub fn is_limit(&self) -> bool {
        matches!(self, OpenError::File(error) if error.is_limit())
    }

    /// Returns the nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            OpenError::Path(error) => error.kind(),
            OpenError::File(error) => error.kind(),
            OpenError::OtherMemorysGroup | OpenError::BlockTooLarge { .. } => {
                io::ErrorKind::InvalidInput
            }
            OpenError::OpenOtherwise { .. } | OpenError::NotEmptied { .. } => {
                io::ErrorKind::ResourceBusy
            }
        }
    }
}

into_io_error!(OpenError);

/// Values that are dropped when a file ends. While the heap bytes are charged, the group's number
/// is not reused, as [`FileBlocks::begin`] requires.
type Ending = (FileBlocks, HeapBytes);

/// Options for opening a file of a memory; made by [`Memory::file_options`].
///
/// ```
/// # use innerspace::{KIB, MIB, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data.bin");
/// let memory = Memory::with_limit(4 * MIB)?;
/// let tenant = memory.create_group("tenant", MIB)?;
/// let options = memory.file_options().group(&tenant).block_size(64 * KIB);
/// let file = options.create_new(&path)?;
/// assert_eq!((file.block_size(), file.group().name().as_str()), (64 * KIB, "tenant"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it only has the choices"]
pub struct FileOpener {
    memory: Memory,
    options: FileOptions,
    lock: FileLock,
    cache_mode: CacheMode,
}

impl Memory {
    /// Opens an existing file for reading.
    ///
    /// If the file is already open in this memory, the result is the same [`PagedFile`]: one cache,
    /// one set of dirty blocks. It is writable if it was first opened for writing, and the group
    /// for which it was first opened pays for it. A call that names another group
    /// ([`FileOpener::group`]) is refused, unless both calls set [`FileOpener::share`]. The file's
    /// length is the one that the file system reports: files of /proc report 0, and appear empty.
    ///
    /// # Errors
    /// See [`OpenError`]; for example if the file is missing, unreadable or not a regular file.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.file_options().open(path)
    }

    /// Opens an existing file for reading and writing, with an advisory lock that keeps out other
    /// processes that lock the file.
    ///
    /// # Errors
    /// See [`OpenError`]; also if another process has the file open for writing.
    pub fn open_rw(&self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.file_options().access(FileAccess::ReadWrite).open(path)
    }

    /// Creates a file, or empties an existing one, and opens it for reading and writing.
    ///
    /// # Errors
    /// See [`OpenError`]: [`OpenError::NotEmptied`] if the file is already open in this memory
    /// ([`OpenError::OpenOtherwise`] if it is open for direct access). A file that is in use keeps
    /// its content.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.file_options().create(path)
    }

    /// Returns the options for a file: block size, group, write order. The file is then opened by
    /// path or over a store.
    pub fn file_options(&self) -> FileOpener {
        FileOpener {
            memory: self.clone(),
            options: FileOptions::new(),
            lock: FileLock::default(),
            cache_mode: CacheMode::default(),
        }
    }
}

impl FileOpener {
    /// Sets the unit of caching in bytes: a power of two from 4 KiB (the default) to 2 MiB. A
    /// block, and four pages for the index, must fit in the limit of the group that pays. Otherwise
    /// opening fails with [`OpenError::BlockTooLarge`]. If the file is already open, the size must
    /// be the one that the file has: otherwise opening fails with [`OpenError::OpenOtherwise`].
    pub fn block_size(mut self, bytes: u64) -> FileOpener {
        self.options.block_size = bytes;
        self
    }

    /// Sets whether the file is opened only for reading (the default), or for writing too. A file
    /// that is open only for reading stays so until it is closed: opening it for writing meanwhile
    /// fails with [`OpenError::OpenOtherwise`].
    pub fn access(mut self, access: FileAccess) -> FileOpener {
        self.options.access = access;
        self
    }

    /// Sets when dirty blocks are written. If the file is already open, [`WriteOrder::Background`],
    /// the default, accepts whatever order it has. Any other order must be the one that the file
    /// has: otherwise opening fails with [`OpenError::OpenOtherwise`].
    pub fn write_order(mut self, order: WriteOrder) -> FileOpener {
        self.options.write_order = order;
        self
    }

    /// Sets the group that pays for the file's blocks; the root group by default. Opening fails if
    /// the group belongs to another `Memory` ([`OpenError::OtherMemorysGroup`]). It also fails if
    /// the file is already open for another group ([`OpenError::OpenOtherwise`]), unless both calls
    /// set [`share`](FileOpener::share). A call that names no group accepts the group of a file
    /// that is already open.
    pub fn group(mut self, group: &Group) -> FileOpener {
        self.options.group = Some(group.clone());
        self
    }

    /// Shares the file with other groups. If the file is already open, the call uses it, whichever
    /// group it was first opened for; that group pays. The first call and this one must both set
    /// the option, because both sides then trust each other with the file. If a call to the file's
    /// store, a waker or a session does not end on one side, the other side's calls that use the
    /// file wait.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(8 * MIB)?;
    /// # let store = std::sync::Arc::new(MemoryStore::new());
    /// let (a, b) = (memory.create_group("a", MIB)?, memory.create_group("b", MIB)?);
    /// let first = memory.file_options().group(&a).share().open_store(store.clone())?;
    /// memory.file_options().group(&b).open_store(store.clone()).unwrap_err();
    /// let second = memory.file_options().group(&b).share().open_store(store)?;
    /// assert_eq!(second.group().name(), "a");
    /// # Ok(()) }
    /// ```
    pub fn share(mut self) -> FileOpener {
        self.options.shared = true;
        self
    }

    /// Sets which advisory lock a file of the file system has while it is open. By default it is an
    /// exclusive one if the file is opened for writing, and none otherwise. A file that is already
    /// open in this memory keeps the lock that it has.
    pub fn lock(mut self, lock: FileLock) -> FileOpener {
        self.lock = lock;
        self
    }

    /// Sets how the pages of a file of the file system are kept out of the kernel's page cache. If
    /// a mode other than `Auto`, the default, does not work, opening fails. A file that is already
    /// open in this memory keeps the mode that it has.
    pub fn cache_mode(mut self, mode: CacheMode) -> FileOpener {
        self.cache_mode = mode;
        self
    }

    /// Sets the name that messages use. The default is the store's own name.
    pub fn name(mut self, name: &str) -> FileOpener {
        self.options.name = Some(name.to_owned());
        self
    }

    /// Opens a file over any store, including one in an [`Arc`] that has other holders. If a store
    /// with the same identity is already open in this memory, the result is the same file.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_store(self, store: impl Store) -> Result<PagedFile, OpenError> {
        self.over_store(Arc::new(store))
    }

    fn over_store(self, store: Arc<dyn Store>) -> Result<PagedFile, OpenError> {
        let inner = &*self.memory.0;
        self.check_process(|| store.name())?;
        self.check_group()?;
        let same = |listed: Listed| {
            let name = || store::shown_name(&store.name()).into_owned();
            self.same_file(listed, &name)
        };
        let Some(identity) = store.identity() else {
            let heap = self.charge(&|| store.name())?;
            let file = PagedFile::open(&inner.cache, store, &self.options)?;
            file.core().keep(Box::new(heap));
            return Ok(told(file));
        };
        loop {
            let mark = match inner.files.look(&inner.cache, identity, same)? {
                Found::Same(open) => return Ok(open),
                Found::Nothing(mut files) => inner.files.note_opening(&mut files, identity),
            };
            let heap = self.charge(&|| store.name())?;
            let asked = StoreProbe::new((&inner.pool, &inner.root), store.clone(), &self.options)?;
            let mut files = match inner.files.look(&inner.cache, identity, same)? {
                Found::Same(open) => return Ok(open),
                Found::Nothing(files) => files,
            };
            if files.is_opening(identity, &mark) {
                let file = PagedFile::over(&inner.cache, asked);
                let open = OpenFile::cached(&file);
                inner.files.note_open(&mut files, identity, open, heap);
                drop(files);
                return Ok(told(file));
            }
        }
    }

    /// Opens an existing file by path.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.with_create(path.as_ref(), Create::Never)
    }

    /// Opens a file for which the program already has a `File`, for example one without a name, or
    /// one that another process passed on. The file must permit the access that
    /// [`FileOpener::access`] sets.
    ///
    /// ```
    /// # use std::io::Write;
    /// # use innerspace::{MIB, Memory, file::FileAccess};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = Memory::with_limit(4 * MIB)?;
    /// let mut unnamed = tempfile::tempfile()?;
    /// unnamed.write_all(b"as it was")?;
    /// let file = memory.file_options().access(FileAccess::ReadWrite).open_file(unnamed)?;
    /// assert_eq!(file.read_to_vec(..)?, b"as it was");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`OpenError`]; also if the file was opened for appending, or with `O_DIRECT`.
    pub fn open_file(self, file: std::fs::File) -> Result<PagedFile, OpenError> {
        let path = Opened::path_of(&file);
        self.check(&path)?;
        let opened = Opened::given(file, &path, self.options.access)?;
        self.with_opened(opened, &path, Create::Never)
    }

    /// Creates a file, which must not exist yet, and opens it for reading and writing.
    ///
    /// # Errors
    /// See [`OpenError`]: [`store::FileOpenError::AlreadyExists`].
    pub fn create_new(self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.access(FileAccess::ReadWrite)
            .with_create(path.as_ref(), Create::New)
    }

    /// Creates a file, or empties an existing one, and opens it for reading and writing.
    ///
    /// # Errors
    /// See [`OpenError`]: [`OpenError::NotEmptied`] if the file is already open in this memory
    /// ([`OpenError::OpenOtherwise`] if it is open for direct access).
    pub fn create(self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.access(FileAccess::ReadWrite)
            .with_create(path.as_ref(), Create::Truncate)
    }

    /// Opens a file for reading and writing, and keeps its content; creates an empty file if there
    /// is none.
    ///
    /// # Errors
    /// See [`OpenError`]; also if another process has the file open for writing.
    pub fn open_or_create(self, path: impl AsRef<Path>) -> Result<PagedFile, OpenError> {
        self.access(FileAccess::ReadWrite)
            .with_create(path.as_ref(), Create::IfMissing)
    }

    fn with_create(self, path: &Path, create: Create) -> Result<PagedFile, OpenError> {
        self.check(path)?;
        let opened = Opened::begin(path, self.options.access, create)?;
        self.with_opened(opened, path, create)
    }

    /// Refuses invalid options, and calls in a child of fork(2), before anything is done to the
    /// file.
    fn check(&self, path: &Path) -> Result<(), OpenError> {
        self.check_process(|| store::shown(path))?;
        self.check_group()?;
        Ok(self.options.check(path)?)
    }

    fn with_opened(
        self,
        opened: Opened<'_>,
        path: &Path,
        create: Create,
    ) -> Result<PagedFile, OpenError> {
        let inner = &*self.memory.0;
        let name = || store::shown(path);
        let same = |listed: Listed| match (listed, create) {
            (Listed::Cached(_), Create::Truncate) => Err(OpenError::NotEmptied {
                file: self.shown_name(&name),
            }),
            (listed, _) => self.same_file(listed, &name),
        };
        // The heap is charged while the table of files is unlocked. If the file is already open,
        // the charge is given back.
        let heap = self.charge(&name);
        let make = |locked: Opened<'_>| {
            let heap = heap?;
            let store = Arc::new(locked.into_store(self.cache_mode)?);
            let file = PagedFile::open(&inner.cache, store, &self.options)?;
            let open = OpenFile::cached(&file);
            Ok((file, open, heap))
        };
        let opened = opened.locked_by(self.lock);
        let file = inner.files.open_once(&inner.cache, opened, same, make)?;
        Ok(told(file))
    }

    /// Returns the group that pays.
    fn payer(&self) -> &Group {
        let root = &self.memory.0.root;
        self.options.group.as_ref().unwrap_or(root)
    }

    /// Charges the group for an open file. Fails if the block size is not allowed, if a block does
    /// not fit in the group's limit, or if the group is full.
    fn charge(&self, name: &dyn Fn() -> String) -> Result<Ending, OpenError> {
        let name: Arc<str> = self.shown_name(name).into();
        let order = self.options.block_order(&name)?;
        let blocks = FileBlocks::begin(self.payer(), order);
        let blocks = blocks.map_err(|why| OpenError::BlockTooLarge {
            file: name.to_string(),
            why,
        })?;
        let names = 2 * self.options.name.as_ref().map_or(0, String::len);
        let bytes = PagedFile::HEAP + names;
        let heap = self.payer().charge_heap(bytes, MayReclaim::Yes);
        Ok((blocks, heap.map_err(FileError::from)?))
    }

    fn check_process(&self, name: impl Fn() -> String) -> Result<(), OpenError> {
        let pool = &self.memory.0.pool;
        let file = || name().into();
        Ok(pool.check_process(|pid| FileError::OtherProcess { file: file(), pid })?)
    }

    fn check_group(&self) -> Result<(), OpenError> {
        let own = &self.memory.0.pool.groups;
        match &self.options.group {
            Some(group) if !group.belongs_to(own) => Err(OpenError::OtherMemorysGroup),
            _ => Ok(()),
        }
    }

    /// Returns the name of the file for this caller's errors. Another caller may have opened the
    /// file under a different name, which this caller must not see.
    fn shown_name(&self, own: &dyn Fn() -> String) -> String {
        match &self.options.name {
            Some(name) => store::shown_name(name).into_owned(),
            None => own(),
        }
    }

    /// Returns a handle to a file that is already open, unless its options conflict with those of
    /// this call. `name` returns the name of the caller's path or store.
    fn same_file(&self, listed: Listed, name: &dyn Fn() -> String) -> Result<PagedFile, OpenError> {
        let file = || self.shown_name(name);
        let refuse = |how| Err(OpenError::OpenOtherwise { file: file(), how });
        let open = match listed {
            Listed::Cached(open) => open,
            Listed::Direct(_) => return refuse("for direct access"),
        };
        let options = &self.options;
        let both_share = options.shared && open.id.shared;
        if !both_share && is_another(options.group.as_ref(), &open.id.group) {
            return refuse(OF_ANOTHER_GROUP);
        }
        if options.access == FileAccess::ReadWrite && !open.writable() {
            return refuse("read-only");
        }
        if options.block_size != open.block_bytes() {
            return refuse("with another block size");
        }
        let order = options.write_order;
        // `Background` asks for no order, so any order is accepted.
        if order != WriteOrder::Background && order != open.id.write_order {
            return refuse("with another write order");
        }
        Ok(PagedFile::new(&open))
    }
}

/// The reason given when a group is refused a file that is already open.
pub(super) const OF_ANOTHER_GROUP: &str = "for another group, and not shared by both";

/// Returns whether the call named a group other than the one that pays.
pub(super) fn is_another(named: Option<&Group>, payer: &Group) -> bool {
    named.is_some_and(|group| group.id() != payer.id())
}

/// Reports the opened file to the program's `tracing` subscriber, and returns it.
fn told(file: PagedFile) -> PagedFile {
    tell!(
        debug,
        file = file.name(),
        len = file.len(),
        block_size = file.block_size(),
        group = %file.group().path(),
        "file opened"
    );
    file
}
