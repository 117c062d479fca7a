//! Opening a file as a store, step by step, with an error for each thing that can be wrong.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use super::direct::{DIRECT_ALIGNMENT, Direct};
use super::engine::{Cached, DirectWrites, Engine};
use super::opened::Opened;
use super::{FileStore, shown};
use crate::sys::file as sys;

/// What a store may do with its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Read; takes no lock.
    #[default]
    ReadOnly,
    /// Read and write; takes an exclusive advisory lock.
    ReadWrite,
}

/// What to do when the file does not exist, or does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Create {
    /// The file must exist; its content is kept.
    #[default]
    Never,
    /// Make an empty file when there is none; keep the content when there is one.
    IfMissing,
    /// The file must not exist.
    New,
    /// Make an empty file, or empty the one there is.
    Truncate,
}

/// How the kernel's page cache is kept free of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum CacheMode {
    /// Reads in the first mode that works of `Direct`, `DontCache`, `DropAfterUse`, `Kernel`;
    /// writes in the first of `DontCache`, `Direct`, `DropAfterUse`, `Kernel`.
    #[default]
    Auto,
    /// The kernel drops what a transfer brought in as soon as it is done, and written, by itself
    /// (Linux 6.14 on file systems that support it; macOS). Long writes go past the page cache
    /// where that is possible, see `Direct`.
    DontCache,
    /// Transfers go past the page cache (O_DIRECT), but for parts of a block that are written: they
    /// go through it and are dropped.
    Direct,
    /// Transfers go through the page cache, which is told to drop the range afterwards: also what
    /// other programs have cached of it.
    DropAfterUse,
    /// The kernel caches as it likes; its cache is not part of any limit of this library.
    Kernel,
}

impl fmt::Display for CacheMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CacheMode::Auto => "auto",
            CacheMode::DontCache => "dont-cache",
            CacheMode::Direct => "direct",
            CacheMode::DropAfterUse => "drop-after-use",
            CacheMode::Kernel => "kernel",
        })
    }
}

/// Who holds the lock that we wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Holder {
    /// Another store of this process.
    ThisProcess,
    /// The process with this id.
    Process(u32),
    /// Some process, which may be this one: the system does not tell which.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::ThisProcess => f.write_str("this process: it is open for writing already"),
            Holder::Process(pid) => write!(f, "another process (pid {pid})"),
            Holder::Unknown => f.write_str("some process: the system does not tell which"),
        }
    }
}

/// Why a file could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such file.
    #[error("{}: no such file", shown(path))]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The file was to be made, in a folder that there is not.
    #[error("{}: the folder to make it in does not exist", shown(path))]
    NoFolder {
        /// The path as given.
        path: PathBuf,
    },
    /// The file, or a folder on the way to it, is not ours to open so.
    #[error("{}: no permission to {} it", shown(path), verb(*access))]
    PermissionDenied {
        /// The path as given.
        path: PathBuf,
        /// What was wanted.
        access: Access,
    },
    /// The path names a directory.
    #[error("{}: is a directory, not a file", shown(path))]
    IsDirectory {
        /// The path as given.
        path: PathBuf,
    },
    /// The path names something that is neither a directory nor a regular file.
    #[error("{}: is a {kind}, not a regular file", shown(path))]
    NotRegular {
        /// The path as given.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The file was to be new.
    #[error("{}: exists already", shown(path))]
    AlreadyExists {
        /// The path as given.
        path: PathBuf,
    },
    /// The file was to be written and its file system is mounted read-only.
    #[error("{}: is on a read-only file system", shown(path))]
    ReadOnlyFileSystem {
        /// The path as given.
        path: PathBuf,
    },
    /// Someone else has the file open for writing.
    #[error("{} is in use by {holder}", shown(path))]
    InUse {
        /// The path as given.
        path: PathBuf,
        /// Who has it.
        holder: Holder,
    },
    /// The cache mode asked for does not work on this file.
    #[error("{}: cache mode {mode} does not work here", shown(path))]
    CacheMode {
        /// The path as given.
        path: PathBuf,
        /// The mode asked for.
        mode: CacheMode,
    },
    /// A step of opening failed in some other way.
    #[error("{}: cannot {step}: {source}", shown(path))]
    Io {
        /// The path as given.
        path: PathBuf,
        /// The step, as a verb.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn verb(access: Access) -> &'static str {
    match access {
        Access::ReadOnly => "read",
        Access::ReadWrite => "write",
    }
}

/// How to open a file as a store. The default: an existing file, read-only, cache mode `Auto`.
///
/// ```
/// use innerspace::store::{Create, FileOptions, Store};
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data.bin");
/// let store = FileOptions::new().create(Create::IfMissing).open(&path)?;
/// store.write_at(b"hello", 0)?;
/// println!("{} with cache mode {}", store.name(), store.cache_mode());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    access: Access,
    create: Create,
    cache: CacheMode,
}

impl FileOptions {
    /// The default options.
    pub fn new() -> FileOptions {
        FileOptions::default()
    }

    /// Whether the file may be written.
    pub fn access(mut self, access: Access) -> FileOptions {
        self.access = access;
        self
    }

    /// What to do when there is no file, or is one. Anything but [`Create::Never`] opens writable.
    pub fn create(mut self, create: Create) -> FileOptions {
        self.create = create;
        self
    }

    /// How to keep the kernel's page cache free of the file. A mode other than `Auto` is used or
    /// the open fails.
    pub fn cache_mode(mut self, cache: CacheMode) -> FileOptions {
        self.cache = cache;
        self
    }

    /// Opens the file. Nothing of an existing file is changed before it is locked.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<FileStore, OpenError> {
        let opened = Opened::begin(path.as_ref(), self.effective_access(), self.create)?;
        opened.lock_any()?.into_store(self.cache)
    }

    fn effective_access(&self) -> Access {
        if self.create == Create::Never {
            self.access
        } else {
            Access::ReadWrite
        }
    }
}

/// One open under way.
pub(super) struct Opening<'a> {
    pub(super) path: &'a Path,
    pub(super) access: Access,
}

impl Opening<'_> {
    pub(super) fn io(&self, step: &'static str, source: io::Error) -> OpenError {
        OpenError::Io {
            path: self.path.to_owned(),
            step,
            source,
        }
    }

    fn options(&self) -> OpenOptions {
        let mut options = File::options();
        options.read(true).write(self.access == Access::ReadWrite);
        options
    }

    /// The file open, and regular.
    pub(super) fn open_regular(&self, create: Create) -> Result<(File, Metadata), OpenError> {
        let mut options = self.options();
        match create {
            Create::Never => {}
            Create::IfMissing | Create::Truncate => drop(options.create(true).truncate(false)),
            Create::New => drop(options.create_new(true)),
        }
        sys::without_waiting(&mut options);
        let file = options
            .open(self.path)
            .map_err(|error| self.explain(error, create))?;
        let metadata = file
            .metadata()
            .map_err(|source| self.io("examine it", source))?;
        match self.wrong_kind(&metadata) {
            Some(error) => Err(error),
            None => Ok((file, metadata)),
        }
    }

    /// Says why open failed; by the file's kind first, since each kind fails in its own way.
    fn explain(&self, error: io::Error, create: Create) -> OpenError {
        let path = self.path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound if create != Create::Never => {
                return OpenError::NoFolder { path };
            }
            io::ErrorKind::NotFound => return OpenError::NotFound { path },
            io::ErrorKind::AlreadyExists => return OpenError::AlreadyExists { path },
            _ => {}
        }
        let metadata = std::fs::metadata(self.path).ok();
        if let Some(wrong) = metadata.and_then(|metadata| self.wrong_kind(&metadata)) {
            return wrong;
        }
        match error.kind() {
            io::ErrorKind::PermissionDenied => OpenError::PermissionDenied {
                path,
                access: self.access,
            },
            io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnlyFileSystem { path },
            io::ErrorKind::IsADirectory => OpenError::IsDirectory { path },
            _ => self.io("open it", error),
        }
    }

    fn wrong_kind(&self, metadata: &Metadata) -> Option<OpenError> {
        let path = self.path.to_owned();
        if metadata.is_dir() {
            Some(OpenError::IsDirectory { path })
        } else if !metadata.is_file() {
            Some(OpenError::NotRegular {
                path,
                kind: sys::special_kind(metadata.file_type()),
            })
        } else {
            None
        }
    }

    /// Takes the exclusive lock, which lives until it is released, or `file` closed by everybody
    /// who has inherited it.
    pub(super) fn lock(&self, file: &File, metadata: &Metadata) -> Result<(), OpenError> {
        match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::Error(source)) => Err(self.io("lock it", source)),
            Err(TryLockError::WouldBlock) => {
                let holder = match sys::identity(metadata).and_then(sys::lock_holder) {
                    Some(pid) if pid == std::process::id() => Holder::ThisProcess,
                    Some(pid) => Holder::Process(pid),
                    None => Holder::Unknown,
                };
                Err(OpenError::InUse {
                    path: self.path.to_owned(),
                    holder,
                })
            }
        }
    }

    /// The engine for the mode asked for.
    pub(super) fn engine(
        &self,
        file: &File,
        metadata: &Metadata,
        cache: CacheMode,
    ) -> Result<Engine, OpenError> {
        if let Some(forced) = forced::mode(cache)
            && let Ok(engine) = self.engine_in(file, metadata, forced)
        {
            return Ok(engine);
        }
        self.engine_in(file, metadata, cache)
    }

    fn engine_in(
        &self,
        file: &File,
        metadata: &Metadata,
        cache: CacheMode,
    ) -> Result<Engine, OpenError> {
        let refused = || OpenError::CacheMode {
            path: self.path.to_owned(),
            mode: cache,
        };
        let cached = match cache {
            CacheMode::Kernel => Cached::Kept,
            CacheMode::DropAfterUse if sys::CAN_DROP => Cached::Dropped,
            CacheMode::DropAfterUse => return Err(refused()),
            _ if sys::enable_dontcache(file) => Cached::Nothing,
            CacheMode::DontCache => return Err(refused()),
            // For what does not go past the page cache.
            _ if sys::CAN_DROP => Cached::Dropped,
            _ => Cached::Kept,
        };
        if cached != Cached::Kept {
            sys::expect_random(file);
        }
        let engine = Engine::new(cached);
        let writes = match (cache, cached) {
            (CacheMode::Direct, _) => DirectWrites::All,
            (CacheMode::Auto | CacheMode::DontCache, Cached::Nothing) => DirectWrites::Long,
            (CacheMode::Auto, _) => DirectWrites::All,
            _ => DirectWrites::Never,
        };
        let reads = matches!(cache, CacheMode::Auto | CacheMode::Direct);
        let is_written = self.access == Access::ReadWrite && writes != DirectWrites::Never;
        let direct = match reads || is_written {
            true => self.open_direct(metadata),
            false => None,
        };
        // Writes that are refused go through the page cache one by one: only reads need a probe.
        match direct.filter(|direct| !reads || direct.probe().is_ok()) {
            Some(direct) => Ok(engine.with_direct(direct, reads, writes)),
            None if cache == CacheMode::Direct => Err(refused()),
            None => Ok(engine),
        }
    }

    /// A second descriptor for direct I/O, if there is such a thing and the path still names the
    /// same file.
    fn open_direct(&self, metadata: &Metadata) -> Option<Direct> {
        let file = sys::open_direct(self.path, &self.options()).ok()?;
        if sys::identity(&file.metadata().ok()?) != sys::identity(metadata) {
            return None;
        }
        let alignment = match sys::direct_alignment(&file) {
            Some(0) => return None,
            Some(needed) => DIRECT_ALIGNMENT.max(needed.next_power_of_two()),
            None => DIRECT_ALIGNMENT,
        };
        Some(Direct::new(file, alignment))
    }
}

/// Which engine tests have in force where there is a choice: `INNERSPACE_ENGINE` names one to begin
/// the fallback at.
#[cfg(any(test, feature = "test-util"))]
pub(super) mod forced {
    use super::CacheMode;

    fn is_told(engine: &str) -> bool {
        std::env::var_os("INNERSPACE_ENGINE").is_some_and(|told| told == engine)
    }

    /// The mode in place of [`CacheMode::Auto`], where it works.
    pub(super) fn mode(asked: CacheMode) -> Option<CacheMode> {
        match asked {
            CacheMode::Auto if is_told("dontcache") => Some(CacheMode::DontCache),
            CacheMode::Auto if is_told("dropped") => Some(CacheMode::DropAfterUse),
            _ => None,
        }
    }

    /// Whether reads go by calls from the beginning on.
    pub(in super::super) fn no_ring() -> bool {
        is_told("pool")
    }
}

#[cfg(not(any(test, feature = "test-util")))]
pub(super) mod forced {
    use super::CacheMode;

    pub(super) fn mode(_: CacheMode) -> Option<CacheMode> {
        None
    }

    pub(in super::super) fn no_ring() -> bool {
        false
    }
}

impl OpenError {
    /// The nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            OpenError::NotFound { .. } | OpenError::NoFolder { .. } => io::ErrorKind::NotFound,
            OpenError::PermissionDenied { .. } => io::ErrorKind::PermissionDenied,
            OpenError::IsDirectory { .. } => io::ErrorKind::IsADirectory,
            OpenError::NotRegular { .. } => io::ErrorKind::InvalidInput,
            OpenError::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
            OpenError::ReadOnlyFileSystem { .. } => io::ErrorKind::ReadOnlyFilesystem,
            OpenError::InUse { .. } => io::ErrorKind::ResourceBusy,
            OpenError::CacheMode { .. } => io::ErrorKind::Unsupported,
            OpenError::Io { source, .. } => source.kind(),
        }
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
