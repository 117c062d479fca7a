//! The steps of opening a file, each with its errors.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::direct::{DIRECT_ALIGNMENT, Direct};
use super::file_io::{Cached, DirectWrites, FileIo};
use super::lock::LockedFile;
use super::options::{CacheMode, Create, FileAccess, FileLock, FileOpenError};
use crate::sys::file as sys;

/// The choices of an open that is under way.
#[derive(Clone, Copy)]
pub(crate) struct Opening<'a> {
    /// The caller's path, or the path of a file that the caller has opened, for messages.
    pub(crate) path: &'a Path,
    pub(crate) access: FileAccess,
    pub(super) create: Create,
    pub(super) lock: FileLock,
    /// Whether the caller has opened the file, so that its path does not matter.
    pub(super) is_given: bool,
}

impl Opening<'_> {
    /// Returns the length that the file will have when it is open.
    pub(crate) fn len(&self, metadata: &Metadata) -> u64 {
        match self.create {
            Create::Truncate => 0,
            _ => metadata.len(),
        }
    }

    /// Empties the file, if it is to be emptied. This is done last, when only reading the metadata
    /// can still fail.
    pub(crate) fn empty(&self, file: &LockedFile) -> Result<(), FileOpenError> {
        match self.create {
            Create::Truncate => file.set_len(0).map_err(|error| self.io("empty it", error)),
            _ => Ok(()),
        }
    }

    pub(super) fn io(&self, step: &'static str, source: io::Error) -> FileOpenError {
        FileOpenError::Io {
            path: self.path.to_owned(),
            step,
            source,
        }
    }

    fn options(&self) -> OpenOptions {
        let mut options = File::options();
        options
            .read(true)
            .write(self.access == FileAccess::ReadWrite);
        options
    }

    /// Checks that a file opened by the caller is a regular one, and was opened for the access
    /// wanted. It must not be open with `O_DIRECT`, nor for appending if it is to be written.
    pub(super) fn check_given(&self, file: &File) -> Result<Metadata, FileOpenError> {
        let metadata = self.examine_regular(file)?;
        let opened = sys::opened_for(file).map_err(|error| self.io("examine it", error))?;
        let writes = self.access == FileAccess::ReadWrite;
        let unfit =
            |text| Err(self.io("use it", io::Error::new(io::ErrorKind::InvalidInput, text)));
        match opened {
            sys::OpenedFor { reads: false, .. } => Err(self.denied(FileAccess::ReadOnly)),
            sys::OpenedFor { writes: false, .. } if writes => Err(self.denied(self.access)),
            sys::OpenedFor { appends: true, .. } if writes => {
                unfit("it was opened for appending: all writes would go to its end")
            }
            sys::OpenedFor { direct: true, .. } => {
                unfit("it was opened with O_DIRECT: the store opens it so where that helps")
            }
            _ => Ok(metadata),
        }
    }

    /// Opens or creates the file as `create` says, but does not empty it. It must be a regular one.
    pub(super) fn open_regular(&self) -> Result<(File, Metadata), FileOpenError> {
        let mut options = self.options();
        match self.create {
            Create::Never => {}
            Create::IfMissing | Create::Truncate => drop(options.create(true).truncate(false)),
            Create::New => drop(options.create_new(true)),
        }
        sys::without_waiting(&mut options);
        let file = options
            .open(self.path)
            .map_err(|error| self.explain(error))?;
        let metadata = self.examine_regular(&file)?;
        Ok((file, metadata))
    }

    /// Turns the error of a failed open into a [`FileOpenError`]. If the file is missing, or exists
    /// already, the result says so. Otherwise, if the path names something other than a regular
    /// file, the result says that, because the system's own error for it varies.
    fn explain(&self, error: io::Error) -> FileOpenError {
        let path = self.path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound if self.create != Create::Never => {
                return FileOpenError::NoFolder { path };
            }
            io::ErrorKind::NotFound => return FileOpenError::NotFound { path },
            io::ErrorKind::AlreadyExists => return FileOpenError::AlreadyExists { path },
            _ => {}
        }
        let metadata = std::fs::metadata(self.path).ok();
        if let Some(wrong) = metadata.and_then(|metadata| self.wrong_kind(&metadata)) {
            return wrong;
        }
        match error.kind() {
            io::ErrorKind::PermissionDenied => self.denied(self.access),
            io::ErrorKind::ReadOnlyFilesystem => FileOpenError::ReadOnlyFileSystem { path },
            io::ErrorKind::IsADirectory => FileOpenError::IsDirectory { path },
            _ => self.io("open it", error),
        }
    }

    fn denied(&self, access: FileAccess) -> FileOpenError {
        let path = self.path.to_owned();
        FileOpenError::PermissionDenied { path, access }
    }

    /// Returns the metadata of a file. Fails if it is not a regular file.
    fn examine_regular(&self, file: &File) -> Result<Metadata, FileOpenError> {
        let metadata = self.examine(file)?;
        self.wrong_kind(&metadata).map_or(Ok(metadata), Err)
    }

    fn wrong_kind(&self, metadata: &Metadata) -> Option<FileOpenError> {
        let path = self.path.to_owned();
        if metadata.is_dir() {
            Some(FileOpenError::IsDirectory { path })
        } else if !metadata.is_file() {
            Some(FileOpenError::NotRegular {
                path,
                kind: sys::special_kind(metadata.file_type()),
            })
        } else {
            None
        }
    }

    pub(super) fn examine(&self, file: &File) -> Result<Metadata, FileOpenError> {
        file.metadata()
            .map_err(|source| self.io("examine it", source))
    }

    /// Returns whether the path still names the file with this metadata, as far as the system
    /// tells. Always true for a file that the caller has opened.
    pub(super) fn still_names(&self, metadata: &Metadata) -> bool {
        self.is_given
            || std::fs::metadata(self.path)
                .is_ok_and(|now| sys::identity(&now) == sys::identity(metadata))
    }

    /// Makes the file's [`FileIo`] for a cache mode. For `Auto`, chooses the mode.
    pub(super) fn file_io(
        &self,
        file: &File,
        metadata: &Metadata,
        cache: CacheMode,
    ) -> Result<FileIo, FileOpenError> {
        if cache == CacheMode::Auto
            && let Some(forced) = forced_mode()
            && let Ok(file_io) = self.file_io(file, metadata, forced)
        {
            return Ok(file_io);
        }
        let refused = || FileOpenError::CacheMode {
            path: self.path.to_owned(),
            mode: cache,
        };
        let cached = match cache {
            CacheMode::Kernel => Cached::Kept,
            CacheMode::DropAfterUse if sys::CAN_DROP => Cached::Dropped,
            CacheMode::DropAfterUse => return Err(refused()),
            _ if sys::enable_dontcache(file) => Cached::Nothing,
            CacheMode::DontCache => return Err(refused()),
            // In modes `Auto` and `Direct`, `cached` is for the transfers that do not bypass the
            // page cache.
            _ if sys::CAN_DROP => Cached::Dropped,
            _ => Cached::Kept,
        };
        if cached != Cached::Kept {
            sys::expect_random(file);
        }
        let file_io = FileIo::new(cached);
        let writes = match (cache, cached) {
            (CacheMode::Direct, _) => DirectWrites::All,
            (CacheMode::Auto | CacheMode::DontCache, Cached::Nothing) => DirectWrites::Long,
            (CacheMode::Auto, _) => DirectWrites::All,
            _ => DirectWrites::Never,
        };
        let reads = matches!(cache, CacheMode::Auto | CacheMode::Direct);
        let is_written = self.access == FileAccess::ReadWrite && writes != DirectWrites::Never;
        let direct = match reads || is_written {
            true => self.open_direct(file, metadata),
            false => None,
        };
        // Without direct reads only long writes are direct. If one is refused, it goes through the
        // page cache. So only reads need a probe.
        match direct.filter(|direct| !reads || direct.probe().is_ok()) {
            Some(direct) => Ok(file_io.with_direct(direct, reads, writes)),
            None if cache == CacheMode::Direct => Err(refused()),
            None => Ok(file_io),
        }
    }

    /// Opens a second descriptor for direct I/O, if the file system supports it and the path still
    /// names the same file.
    fn open_direct(&self, file: &File, metadata: &Metadata) -> Option<Direct> {
        let path: PathBuf = match self.is_given {
            true => sys::path_again(file)?,
            false => self.path.to_owned(),
        };
        let file = sys::open_direct(&path, &self.options()).ok()?;
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

/// Returns the name of the fallback that a test forces, if there is one.
fn forced_fallback() -> Option<OsString> {
    let may_be = cfg!(any(test, feature = "test-util"));
    may_be.then(|| std::env::var_os("INNERSPACE_FALLBACK"))?
}

/// Returns the mode that a test forces in place of [`CacheMode::Auto`], if there is one.
fn forced_mode() -> Option<CacheMode> {
    match forced_fallback()?.to_str()? {
        "dontcache" => Some(CacheMode::DontCache),
        "dropped" => Some(CacheMode::DropAfterUse),
        _ => None,
    }
}

/// Returns whether a test forces all reads to be plain calls.
pub(super) fn is_ring_forbidden() -> bool {
    forced_fallback().is_some_and(|fallback| fallback == "pool")
}
