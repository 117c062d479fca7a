//! From a failure to SQLite's result code, with the reason for SQLite's log.

use std::ffi::c_int;
use std::io;

use innerspace::error::raw_os_error;
use innerspace::store::StoreErrorKind;
use innerspace::{OpenError, file::FileError};

use crate::ffi::raw;

/// A call that did not succeed, in the form in which SQLite is told of it.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The result code.
    pub(crate) code: c_int,
    /// The reason for the log. Empty if nothing has failed, for example if another connection has
    /// the lock.
    pub(crate) reason: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: c_int, reason: impl Into<String>) -> Failure {
        Failure {
            code,
            reason: reason.into(),
        }
    }

    /// A lock that another connection has. SQLite waits or reports it, so the log does not.
    pub(crate) fn busy() -> Failure {
        Failure::new(raw::BUSY, "")
    }

    /// An input or output error. `code` is the one for the call that failed; a full disk and a
    /// missing memory have codes of their own, as in SQLite's own VFS.
    pub(crate) fn io(code: c_int, what: &str, name: &str, error: &io::Error) -> Failure {
        let code = code_of(code, error);
        Failure::new(code, format!("{what} {name}: {error}{}", advice(code)))
    }

    /// A failed call of a cached file.
    pub(crate) fn file(code: c_int, error: &FileError) -> Failure {
        let code = match error {
            FileError::Limit(_) | FileError::NoMemory { .. } => raw::IOERR_NOMEM,
            FileError::Store { source, .. } => code_of(code, source),
            _ => code,
        };
        Failure::new(code, format!("{error}{}", advice(code)))
    }

    /// A database that cannot be opened.
    pub(crate) fn open(error: &OpenError) -> Failure {
        let code = match error.is_limit() {
            true => raw::NOMEM,
            false => raw::CANTOPEN,
        };
        Failure::new(code, error.to_string())
    }
}

/// Says what to do about a failure that the user can fix.
fn advice(code: c_int) -> &'static str {
    match code {
        raw::FULL => "; make room on the disk, and try again",
        _ => "",
    }
}

fn code_of(code: c_int, error: &io::Error) -> c_int {
    match (StoreErrorKind::of(error), error.kind()) {
        (StoreErrorKind::NoSpace, _) => raw::FULL,
        (_, io::ErrorKind::QuotaExceeded) => raw::FULL,
        (_, io::ErrorKind::OutOfMemory) => raw::IOERR_NOMEM,
        _ => code,
    }
}

/// Whether the system refused to open a file for writing, so that it may still be read.
pub(crate) fn is_read_only(error: &io::Error) -> bool {
    matches!(
        raw_os_error(error),
        Some(libc::EACCES | libc::EROFS | libc::EPERM)
    ) || matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}
