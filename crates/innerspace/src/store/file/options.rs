//! The options of an open, and its errors.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::store::shown_name;
use crate::texts::{into_io_error, texts};

/// Returns a path as messages show it; see [`shown_name`].
pub(crate) fn shown(path: &Path) -> String {
    shown_name(&path.to_string_lossy()).into_owned()
}

/// Whether a file may be written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum FileAccess {
    /// The file is open for reading only.
    #[default]
    ReadOnly,
    /// The file is open for reading and writing.
    ReadWrite,
}

/// The advisory lock (`flock`) that a file has while it is open. Programs that ask for no lock are
/// not affected by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum FileLock {
    /// [`FileLock::Exclusive`] for a file that is opened for writing, and [`FileLock::None`] for a
    /// file that is only read.
    #[default]
    Auto,
    /// No lock, for files that the program itself protects. If another program writes the file
    /// meanwhile and the change is noticed, reads fail with
    /// [`FileError::ChangedInPlace`](crate::file::FileError::ChangedInPlace).
    None,
    /// A shared lock. It excludes exclusive locks only.
    Shared,
    /// A lock that excludes every other lock, shared or exclusive.
    Exclusive,
}

/// Whether an open creates a file that does not exist, and keeps, refuses or empties one that does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Create {
    /// The file must exist. Its content is kept.
    #[default]
    Never,
    /// Creates an empty file if there is none. Keeps the content of an existing file.
    IfMissing,
    /// The file must not exist.
    New,
    /// Creates an empty file, or empties the existing file.
    Truncate,
}

texts! {
    /// Whether, and how, a file's pages are kept out of the kernel's page cache.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[non_exhaustive]
    pub enum CacheMode {
        /// Reads use the first of `Direct`, `DontCache`, `DropAfterUse`, `Kernel` that works.
        /// Writes use the first of `DontCache`, `Direct`, `DropAfterUse`, `Kernel`.
        #[default]
        Auto = "auto",
        /// The kernel itself drops the pages of each transfer once the transfer is done and its
        /// pages are written (Linux 6.14 on file systems that support it; macOS). Long writes
        /// bypass the page cache where that is possible, see `Direct`.
        DontCache = "dont-cache",
        /// Transfers bypass the page cache (O_DIRECT). Writes of parts of a block go through the
        /// page cache, and their pages are then dropped.
        Direct = "direct",
        /// Transfers go through the page cache. The kernel is then told to drop the range, which
        /// includes pages that other programs have cached.
        DropAfterUse = "drop-after-use",
        /// The kernel caches as much as it chooses. Its cache counts towards no limit of this
        /// library.
        Kernel = "kernel",
    }
}

/// The holder of a lock that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LockHolder {
    /// Another handle of this process, for example a store in another memory.
    ThisProcess,
    /// The process with this ID.
    Process(u32),
    /// Some process, which may be this one. The system does not say which.
    Unknown,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockHolder::ThisProcess => f.write_str("another handle of this process"),
            LockHolder::Process(pid) => write!(f, "another process (pid {pid})"),
            LockHolder::Unknown => f.write_str("some process: the system does not say which"),
        }
    }
}

/// The reason why a file could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileOpenError {
    /// There is no such file.
    #[error("{}: no such file", shown(path))]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The file was to be created, but its folder does not exist.
    #[error("{}: the folder to make it in does not exist", shown(path))]
    NoFolder {
        /// The path as given.
        path: PathBuf,
    },
    /// The file, or a folder on its path, does not permit this access. Or the file was passed in
    /// open, but not for this access.
    #[error("{}: no permission to {} it", shown(path), verb(*access))]
    PermissionDenied {
        /// The path as given.
        path: PathBuf,
        /// The access that was wanted.
        access: FileAccess,
    },
    /// The path names a directory.
    #[error("{}: is a directory, not a file", shown(path))]
    IsDirectory {
        /// The path as given.
        path: PathBuf,
    },
    /// The path names neither a directory nor a regular file.
    #[error("{}: is a {kind}, not a regular file", shown(path))]
    NotRegular {
        /// The path as given.
        path: PathBuf,
        /// The kind of thing that the path names.
        kind: &'static str,
    },
    /// The file was to be new, but exists.
    #[error("{}: exists already", shown(path))]
    AlreadyExists {
        /// The path as given.
        path: PathBuf,
    },
    /// The file was to be written, but its file system is mounted read-only.
    #[error("{}: is on a read-only file system", shown(path))]
    ReadOnlyFileSystem {
        /// The path as given.
        path: PathBuf,
    },
    /// Another handle, of this process or another, has a lock on the file. An open for writing
    /// takes a lock ([`FileLock::Auto`]).
    #[error("{} is in use by {holder}; close it there first", shown(path))]
    InUse {
        /// The path as given.
        path: PathBuf,
        /// The holder of the lock.
        holder: LockHolder,
    },
    /// The cache mode asked for does not work on this file.
    #[error("{}: cache mode {mode} does not work here", shown(path))]
    CacheMode {
        /// The path as given.
        path: PathBuf,
        /// The mode that was asked for.
        mode: CacheMode,
    },
    /// A step of opening failed in some other way.
    #[error("{}: cannot {step}: {source}", shown(path))]
    Io {
        /// The path as given.
        path: PathBuf,
        /// The step that failed, such as "lock it".
        step: &'static str,
        /// The system's error.
        r#source: io::Error,
    },
}

fn verb(access: FileAccess) -> &'static str {
    match access {
        FileAccess::ReadOnly => "read",
        FileAccess::ReadWrite => "write",
    }
}

texts! {
    /// The way in which several reads of a file are in flight at the same time.
    ///
    /// With either engine, a read for which a thread waits is a system call made by that thread.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub enum FileEngine {
        /// Reads go through io_uring(7), without a thread for each read. This needs Linux, the
        /// feature `io-uring`, reads in mode [`CacheMode::Direct`], and the kernel's permission.
        IoUring = "io-uring",
        /// Reads are system calls, each in a thread.
        Calls = "calls",
    }
}

impl FileOpenError {
    /// Returns the [`io::ErrorKind`] that fits this error best.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            FileOpenError::NotFound { .. } | FileOpenError::NoFolder { .. } => {
                io::ErrorKind::NotFound
            }
            FileOpenError::PermissionDenied { .. } => io::ErrorKind::PermissionDenied,
            FileOpenError::IsDirectory { .. } => io::ErrorKind::IsADirectory,
            FileOpenError::NotRegular { .. } => io::ErrorKind::InvalidInput,
            FileOpenError::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
            FileOpenError::ReadOnlyFileSystem { .. } => io::ErrorKind::ReadOnlyFilesystem,
            FileOpenError::InUse { .. } => io::ErrorKind::ResourceBusy,
            FileOpenError::CacheMode { .. } => io::ErrorKind::Unsupported,
            FileOpenError::Io { source, .. } => source.kind(),
        }
    }
}

into_io_error!(FileOpenError);
