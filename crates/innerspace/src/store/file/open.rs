//! Opening a file in steps: the file is opened, locked, and then emptied if that was requested. The
//! caller can learn which file it is before the file is locked or changed.
//!
//! The file that a path names can change between any two steps, so a file is identified by its open
//! descriptor. Once the file is locked, two things are checked again: the path, because a process
//! that had the lock may have renamed another file there, and the length, because that process may
//! have written. The file is emptied last, when only reading its metadata can still fail.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::lock::LockedFile;
use super::opening::{Opening, is_ring_forbidden};
use super::options::{CacheMode, Create, FileAccess, FileLock, FileOpenError};
use super::store::{FileStore, identity_of};
use super::watch::Watch;
use crate::store::Identity;
use crate::sync::Arc;
use crate::sys::file as sys;

/// The options for opening a file as a store. Default: an existing file, read-only, with cache mode
/// `Auto`.
///
/// ```
/// use innerspace::store::{FileOptions, Store};
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data.bin");
/// let store = FileOptions::new().open_or_create(&path)?;
/// store.write_at(b"hello", 0)?;
/// println!("{} with cache mode {}", store.name(), store.cache_mode());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "it only has the choices"]
pub struct FileOptions {
    access: FileAccess,
    cache: CacheMode,
    lock: FileLock,
}

impl FileOptions {
    /// Returns the default options.
    pub fn new() -> FileOptions {
        FileOptions::default()
    }

    /// Sets whether the store may write to the file.
    pub fn access(mut self, access: FileAccess) -> FileOptions {
        self.access = access;
        self
    }

    /// Sets how the file's pages are kept out of the kernel's page cache. If a mode other than
    /// `Auto` does not work, the open fails.
    pub fn cache_mode(mut self, cache: CacheMode) -> FileOptions {
        self.cache = cache;
        self
    }

    /// Sets which advisory lock the file has while it is open.
    pub fn lock(mut self, lock: FileLock) -> FileOptions {
        self.lock = lock;
        self
    }

    /// Opens an existing file.
    ///
    /// # Errors
    /// See [`FileOpenError`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<FileStore, FileOpenError> {
        self.with_create(path.as_ref(), Create::Never)
    }

    /// Creates a file, or empties an existing one once it is locked, and opens it writable.
    ///
    /// # Errors
    /// See [`FileOpenError`]. A file that is in use keeps its content.
    pub fn create(self, path: impl AsRef<Path>) -> Result<FileStore, FileOpenError> {
        self.access(FileAccess::ReadWrite)
            .with_create(path.as_ref(), Create::Truncate)
    }

    /// Creates a file, which must not exist yet, and opens it writable.
    ///
    /// # Errors
    /// See [`FileOpenError`]: [`FileOpenError::AlreadyExists`] if the file exists.
    pub fn create_new(self, path: impl AsRef<Path>) -> Result<FileStore, FileOpenError> {
        self.access(FileAccess::ReadWrite)
            .with_create(path.as_ref(), Create::New)
    }

    /// Opens a file writable, and keeps its content. Creates an empty file if there is none.
    ///
    /// # Errors
    /// See [`FileOpenError`].
    pub fn open_or_create(self, path: impl AsRef<Path>) -> Result<FileStore, FileOpenError> {
        self.access(FileAccess::ReadWrite)
            .with_create(path.as_ref(), Create::IfMissing)
    }

    /// Makes a store of a file that is already open: for example a file without a name, one that
    /// another process passed on, or one that the program opened with options of its own.
    ///
    /// # Errors
    /// See [`FileOpenError`]. [`FileOpenError::PermissionDenied`] if the file was not opened for
    /// the access wanted. [`FileOpenError::Io`] if it was opened with `O_DIRECT`, or if it is to be
    /// written and was opened for appending.
    pub fn open_file(self, file: File) -> Result<FileStore, FileOpenError> {
        let path = Opened::path_of(&file);
        self.over(Opened::given(file, &path, self.access)?)
    }

    fn with_create(self, path: &Path, create: Create) -> Result<FileStore, FileOpenError> {
        self.over(Opened::begin(path, self.access, create)?)
    }

    fn over(&self, opened: Opened<'_>) -> Result<FileStore, FileOpenError> {
        let locked = opened.locked_by(self.lock).lock_any()?;
        locked.into_store(self.cache)
    }
}

impl FileStore {
    /// Opens an existing file for reading, in the default cache mode.
    ///
    /// # Errors
    /// See [`FileOpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<FileStore, FileOpenError> {
        FileOptions::new().open(path)
    }

    /// Opens an existing file for reading and writing, in the default cache mode.
    ///
    /// # Errors
    /// See [`FileOpenError`]: [`FileOpenError::InUse`] if the file is already open for writing.
    pub fn open_rw(path: impl AsRef<Path>) -> Result<FileStore, FileOpenError> {
        FileOptions::new().access(FileAccess::ReadWrite).open(path)
    }

    /// Creates a file, or empties an existing one once it is locked, and opens it writable.
    ///
    /// # Errors
    /// See [`FileOpenError`]. A file that is in use keeps its content.
    pub fn create(path: impl AsRef<Path>) -> Result<FileStore, FileOpenError> {
        FileOptions::new().create(path)
    }

    /// Returns the identity that a store on `path` would have, without opening the file, or `None`
    /// if it is unknown. Call this before a writable open of a file that may be open already: a
    /// second writable open in the same process is refused.
    ///
    /// # Errors
    /// The file cannot be examined, for example because it does not exist.
    pub fn identify(path: impl AsRef<Path>) -> io::Result<Option<Identity>> {
        Ok(identity_of(&std::fs::metadata(path)?))
    }
}

/// The maximum number of times that a file is opened again because, when it is locked, its path
/// already names another file.
const TRIES: u32 = 16;

/// An open file. It is neither locked nor emptied at first.
pub(crate) struct Opened<'a> {
    pub(crate) opening: Opening<'a>,
    pub(crate) file: LockedFile,
    /// The file's metadata, read after it was opened, and again after it was locked.
    pub(crate) metadata: Metadata,
    tries: u32,
}

/// The outcome of locking an open file.
pub(crate) enum Locking {
    /// The file is locked, and its path still names it; or no lock was wanted.
    Done,
    /// The path names another file by now. That file is open in place of the first one, and is not
    /// locked. Nothing that was known about the first file holds for it.
    Other,
}

impl<'a> Opened<'a> {
    /// Opens or creates a file as `create` says. The file is neither locked nor emptied yet. Fails
    /// like the methods of [`FileOptions`].
    pub(crate) fn begin(
        path: &'a Path,
        access: FileAccess,
        create: Create,
    ) -> Result<Opened<'a>, FileOpenError> {
        let opening = Opening {
            path,
            access,
            create,
            lock: FileLock::default(),
            is_given: false,
        };
        Opened::try_again(opening, TRIES)
    }

    fn try_again(opening: Opening<'a>, tries: u32) -> Result<Opened<'a>, FileOpenError> {
        let (file, metadata) = opening.open_regular()?;
        #[cfg(all(test, unix, not(loom), not(shuttle), not(miri)))]
        hook::run(&file);
        Ok(Opened {
            file: LockedFile::unlocked(file, opening.path, opening.create),
            opening,
            metadata,
            tries,
        })
    }

    /// Takes over a file that the caller has opened. Messages call it `path`.
    pub(crate) fn given(
        file: File,
        path: &'a Path,
        access: FileAccess,
    ) -> Result<Opened<'a>, FileOpenError> {
        let opening = Opening {
            path,
            access,
            create: Create::Never,
            lock: FileLock::default(),
            is_given: true,
        };
        Ok(Opened {
            metadata: opening.check_given(&file)?,
            file: LockedFile::unlocked(file, path, Create::Never),
            opening,
            tries: 0,
        })
    }

    /// Returns the name of a file that the caller has opened.
    pub(crate) fn path_of(file: &File) -> PathBuf {
        sys::path_of(file).unwrap_or_else(|| PathBuf::from("open file"))
    }

    /// Sets which lock [`Opened::lock`] takes.
    pub(crate) fn locked_by(mut self, lock: FileLock) -> Opened<'a> {
        self.opening.lock = lock;
        self
    }

    /// Returns the identity of the file that was opened, even if its path names another file by
    /// now.
    pub(crate) fn identity(&self) -> Option<Identity> {
        identity_of(&self.metadata)
    }

    /// Locks the file, unless the chosen [`FileLock`] means no lock for this access, and then reads
    /// its metadata again. If the path names another file by then, opens that file instead
    /// ([`Locking::Other`]).
    ///
    /// # Errors
    /// [`FileOpenError::InUse`] if the path names the file and another handle has the lock.
    /// [`FileOpenError::Io`] for other failures, and if the path names another file at every
    /// attempt.
    pub(crate) fn lock(&mut self) -> Result<Locking, FileOpenError> {
        let opening = self.opening;
        let shared = match opening.lock {
            FileLock::Auto if opening.access == FileAccess::ReadWrite => Some(false),
            FileLock::Auto | FileLock::None => None,
            FileLock::Shared => Some(true),
            FileLock::Exclusive => Some(false),
        };
        if let Some(shared) = shared {
            let locked = self.file.lock(shared, &self.metadata);
            let in_use = locked.map_err(|error| opening.io("lock it", error))?;
            // The path is checked even if another handle has the lock: the path may name another
            // file by now, which is not locked.
            if !opening.still_names(&self.metadata) {
                let Some(tries) = self.tries.checked_sub(1) else {
                    let text = "it was replaced by another file each time";
                    let error = io::Error::new(io::ErrorKind::ResourceBusy, text);
                    return Err(opening.io("lock it", error));
                };
                *self = Opened::try_again(opening, tries)?;
                return Ok(Locking::Other);
            }
            if let Some(holder) = in_use {
                let path = opening.path.to_owned();
                return Err(FileOpenError::InUse { path, holder });
            }
        }
        // A process that had the lock before may have changed the file since it was opened.
        self.metadata = opening.examine(&self.file)?;
        Ok(Locking::Done)
    }

    /// Locks like [`Opened::lock`], for a caller that accepts whatever file the path names.
    pub(crate) fn lock_any(mut self) -> Result<Opened<'a>, FileOpenError> {
        while let Locking::Other = self.lock()? {}
        Ok(self)
    }

    /// Makes a store over the file. The caller has locked the file, if it is to be locked.
    ///
    /// # Errors
    /// [`FileOpenError::CacheMode`] or [`FileOpenError::Io`]. The file then keeps its content,
    /// unless it was emptied and could not be examined afterwards.
    pub(crate) fn into_store(self, cache: CacheMode) -> Result<FileStore, FileOpenError> {
        let (opening, file) = (self.opening, self.file);
        let file_io = opening.file_io(&file, &self.metadata, cache)?;
        opening.empty(&file)?;
        let metadata = opening.examine(&file)?;
        Ok(FileStore {
            file_io,
            access: opening.access,
            identity: identity_of(&metadata),
            name: opening.path.to_string_lossy().into_owned(),
            watch: Arc::new(Watch::new(&metadata, is_ring_forbidden())),
            file,
        })
    }
}

/// Lets a test act between opening and locking.
#[cfg(all(test, unix, not(loom), not(shuttle), not(miri)))]
pub(crate) mod hook {
    use std::cell::Cell;
    use std::fs::File;

    type Hook = Box<dyn FnOnce(&File)>;

    thread_local! {
        static OPENED: Cell<Option<Hook>> = const { Cell::new(None) };
    }

    /// Runs `what` the next time that this thread opens a file, before the caller can identify or
    /// lock the file.
    pub(crate) fn when_opened(what: impl FnOnce(&File) + 'static) {
        OPENED.set(Some(Box::new(what)));
    }

    pub(super) fn run(file: &File) {
        if let Some(what) = OPENED.take() {
            what(file);
        }
    }
}
