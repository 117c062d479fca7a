//! The choices of an open, and its errors.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::store::shown_name;

/// A path in messages; see [`shown_name`].
pub(crate) fn shown(path: &Path) -> String {
    shown_name(&path.to_string_lossy()).into_owned()
}

/// Whether a store may write to its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    /// Read.
    #[default]
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// Which advisory lock (`flock`) a file has while it is open. Programs that ask for no lock are not
/// kept out by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum FileLock {
    /// [`FileLock::Exclusive`] for a file that is opened for writing, [`FileLock::None`] for one
    /// that is only read.
    #[default]
    Auto,
    /// No lock, for files that a protocol of the program's own protects. If another program writes
    /// the file meanwhile, reads fail with
    /// [`FileError::ChangedInPlace`](crate::FileError::ChangedInPlace) as far as that is noticed.
    None,
    /// A lock that others may share: it keeps out those who want an exclusive one.
    Shared,
    /// A lock that nobody else may have, not even to read.
    Exclusive,
}

/// What to do when the file exists, and when it does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Create {
    /// The file must exist; its content is kept.
    #[default]
    Never,
    /// Make an empty file when there is none; keep the content of an existing one.
    IfMissing,
    /// The file must not exist.
    New,
    /// Make an empty file, or empty the existing one.
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
    /// The kernel itself drops the pages of each transfer when it is done, and written (Linux 6.14
    /// on file systems that support it; macOS). Long writes bypass the page cache where that is
    /// possible, see `Direct`.
    DontCache,
    /// Transfers bypass the page cache (O_DIRECT). Writes of parts of a block go through it, and
    /// their pages are dropped.
    Direct,
    /// Transfers go through the page cache, which is then told to drop the range, including pages
    /// that other programs have cached.
    DropAfterUse,
    /// The kernel caches as it likes. Its cache is not part of any limit of this library.
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

/// The holder of a lock that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Holder {
    /// Another store of this process.
    ThisProcess,
    /// The process with this id.
    Process(u32),
    /// Some process, perhaps this one: the system does not say which.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::ThisProcess => f.write_str("this process: it is open for writing already"),
            Holder::Process(pid) => write!(f, "another process (pid {pid})"),
            Holder::Unknown => f.write_str("some process: the system does not say which"),
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
    /// The file was to be made, and its folder does not exist.
    #[error("{}: the folder to make it in does not exist", shown(path))]
    NoFolder {
        /// The path as given.
        path: PathBuf,
    },
    /// The file, or a folder on the way to it, does not permit such access.
    #[error("{}: no permission to {} it", shown(path), verb(*access))]
    PermissionDenied {
        /// The path as given.
        path: PathBuf,
        /// The access wanted.
        access: Access,
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
        /// The kind of thing that it names.
        kind: &'static str,
    },
    /// The file was to be new, and exists.
    #[error("{}: exists already", shown(path))]
    AlreadyExists {
        /// The path as given.
        path: PathBuf,
    },
    /// The file was to be written, and its file system is mounted read-only.
    #[error("{}: is on a read-only file system", shown(path))]
    ReadOnlyFileSystem {
        /// The path as given.
        path: PathBuf,
    },
    /// Another handle, of this process or another, has a lock on the file. An open for writing
    /// takes one ([`FileLock::Auto`]).
    #[error("{} is in use by {holder}", shown(path))]
    InUse {
        /// The path as given.
        path: PathBuf,
        /// The holder of the lock.
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
        /// The system's error.
        source: io::Error,
    },
}

fn verb(access: Access) -> &'static str {
    match access {
        Access::ReadOnly => "read",
        Access::ReadWrite => "write",
    }
}

/// How several reads of a file are under way at once.
///
/// With either, a read that a thread waits for is a system call of that thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FileEngine {
    /// Through io_uring(7), without a thread for each read: on Linux with the feature `io-uring`,
    /// where reads are in mode [`CacheMode::Direct`] and the kernel permits it.
    IoUring,
    /// Through system calls, each in a thread.
    Calls,
}

impl fmt::Display for FileEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileEngine::IoUring => "io-uring",
            FileEngine::Calls => "calls",
        })
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
