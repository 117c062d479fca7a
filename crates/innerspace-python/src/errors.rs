//! The library's errors as exceptions. The classes are Python's (`innerspace/_errors.py`).

use std::error::Error;
use std::io;

use innerspace::error::{
    Explanation, FileError, FileOpenError, GroupError, LimitError, MemoryError, OpenError,
    SpaceError, causes, raw_os_error,
};
use innerspace::space::FaultKind;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

/// A failed call to the library. It becomes an exception when the interpreter's lock is held again.
#[derive(Debug)]
pub(crate) enum Failure {
    File(FileError),
    Open(OpenError),
    Limit(LimitError),
    Group(GroupError),
    Memory(MemoryError),
    Space(SpaceError),
    Access(Explanation),
}

macro_rules! from {
    ($($variant:ident: $error:ty),*) => { $(
        impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::$variant(error)
            }
        }
    )* };
}

from! {
    File: FileError, Open: OpenError, Limit: LimitError, Group: GroupError, Memory: MemoryError,
    Space: SpaceError, Access: Explanation
}

/// The exception of a failed call.
pub(crate) trait Raise<T> {
    fn raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T, E: Into<Failure>> Raise<T> for Result<T, E> {
    fn raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error.into()))
    }
}

/// Makes the exception.
fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    if let Some(cause) = python_cause(py, failure)
        && !cause.is_instance_of::<pyo3::exceptions::PyException>(py)
    {
        // KeyboardInterrupt, SystemExit: not a failure of the file.
        return cause;
    }
    let made = match failure {
        Failure::File(error) => file(py, error),
        Failure::Open(OpenError::File(error)) => file(py, error),
        Failure::Open(error) => match error {
            OpenError::Path(error) => os(py, errno(error, error.kind()), error, path(error), None),
            OpenError::BlockTooLarge { .. } => limit(py, error, None),
            OpenError::OtherMemorysGroup => Ok(PyValueError::new_err(error.to_string())),
            error => os(py, libc::EBUSY, error, None, None),
        },
        Failure::Limit(error) => limit(py, error, Some(error)),
        Failure::Group(GroupError::Limit(error)) => limit(py, error, Some(error)),
        Failure::Group(error) => Ok(PyValueError::new_err(error.to_string())),
        Failure::Memory(error) => Ok(match error {
            MemoryError::System { .. } | MemoryError::AboveMachine { .. } => {
                PyMemoryError::new_err(error.to_string())
            }
            error => PyValueError::new_err(error.to_string()),
        }),
        Failure::Space(error) => match error {
            SpaceError::File(error) => file(py, error),
            SpaceError::Limit(error) => limit(py, error, Some(error)),
            error if error.is_limit() => limit(py, error, None),
            error => match error.kind() {
                io::ErrorKind::InvalidInput => Ok(PyValueError::new_err(error.to_string())),
                kind => os(py, errno(error, kind), error, None, None),
            },
        },
        Failure::Access(error) => match error.fault().is_limit() {
            true => limit(py, error, None),
            false => access(py, error),
        },
    };
    let made = made.unwrap_or_else(|error| error);
    if let Some(cause) = python_cause(py, failure) {
        made.set_cause(py, Some(cause));
    }
    made
}

/// Returns the exception that a store written in Python raised, if that is the reason.
fn python_cause(py: Python<'_>, failure: &Failure) -> Option<PyErr> {
    let error: &(dyn Error + 'static) = match failure {
        Failure::File(error) => error,
        Failure::Open(error) => error,
        Failure::Limit(error) => error,
        Failure::Group(error) => error,
        Failure::Memory(error) => error,
        Failure::Space(error) => error,
        Failure::Access(error) => error,
    };
    let raised = causes(error).find_map(|cause| cause.downcast_ref::<PyErr>());
    raised.map(|raised| raised.clone_ref(py))
}

fn file(py: Python<'_>, error: &FileError) -> PyResult<PyErr> {
    let (name, offset) = match error {
        FileError::Limit(error) => return limit(py, error, Some(error)),
        FileError::ViewTooLarge { .. } => return limit(py, error, None),
        FileError::NoMemory { .. } => return Ok(PyMemoryError::new_err(error.to_string())),
        FileError::TooLarge { .. }
        | FileError::BadRange { .. }
        | FileError::BadBlockSize { .. } => {
            return Ok(PyValueError::new_err(error.to_string()));
        }
        FileError::WouldBlock { file, offset }
        | FileError::PastEnd { file, offset, .. }
        | FileError::Shrank { file, offset, .. }
        | FileError::Changed { file, offset, .. }
        | FileError::Short { file, offset, .. }
        | FileError::Store { file, offset, .. } => (file, Some(*offset)),
        FileError::ChangedInPlace { file, .. }
        | FileError::ReadOnly { file }
        | FileError::NotWritable { file }
        | FileError::Held { file, .. }
        | FileError::Unwritten { file, .. }
        | FileError::Reentered { file }
        | FileError::OtherProcess { file, .. }
        | FileError::Closed { file } => (file, None),
        error => return os(py, errno(error, error.kind()), error, None, None),
    };
    os(
        py,
        errno(error, error.kind()),
        error,
        Some(name.to_string()),
        offset,
    )
}

fn path(error: &FileOpenError) -> Option<String> {
    match error {
        FileOpenError::NotFound { path }
        | FileOpenError::NoFolder { path }
        | FileOpenError::PermissionDenied { path, .. }
        | FileOpenError::IsDirectory { path }
        | FileOpenError::NotRegular { path, .. }
        | FileOpenError::AlreadyExists { path }
        | FileOpenError::ReadOnlyFileSystem { path }
        | FileOpenError::InUse { path, .. }
        | FileOpenError::CacheMode { path, .. }
        | FileOpenError::Io { path, .. } => Some(path.to_string_lossy().into_owned()),
        _ => None,
    }
}

/// Returns the system's number of an error, or the nearest.
fn errno(error: &(dyn Error + 'static), kind: io::ErrorKind) -> i32 {
    use io::ErrorKind;
    raw_os_error(error).unwrap_or(match kind {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::AlreadyExists => libc::EEXIST,
        ErrorKind::IsADirectory => libc::EISDIR,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::StorageFull => libc::ENOSPC,
        ErrorKind::ReadOnlyFilesystem => libc::EROFS,
        ErrorKind::ResourceBusy => libc::EBUSY,
        ErrorKind::StaleNetworkFileHandle => libc::ESTALE,
        ErrorKind::Unsupported => libc::ENOTSUP,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::Deadlock => libc::EDEADLK,
        _ => libc::EIO,
    })
}

/// Makes a `FileError`, or the subclass that is also Python's own class for the number.
fn os(
    py: Python<'_>,
    errno: i32,
    error: &dyn Error,
    file: Option<String>,
    offset: Option<u64>,
) -> PyResult<PyErr> {
    let text = error.to_string();
    // Python's text ends with the name of the file, so the library's, which begins with it, is cut.
    let cut = file
        .as_ref()
        .and_then(|name| text.strip_prefix(&format!("{name}: ")));
    let text = cut.unwrap_or(&text).to_owned();
    let made = classes(py)?.call_method1("file_error", (errno, text, file, offset))?;
    Ok(PyErr::from_value(made))
}

/// Makes the exception of an access to a space.
fn access(py: Python<'_>, error: &Explanation) -> PyResult<PyErr> {
    let fault = error.fault();
    let number = match fault.kind() {
        FaultKind::NotMapped | FaultKind::Forbidden => libc::EFAULT,
        kind => errno(error, kind.io_kind()),
    };
    let parts = (number, error.to_string(), fault.address().0);
    let made = classes(py)?.call_method1("access_error", parts)?;
    Ok(PyErr::from_value(made))
}

/// Makes the exception of a child of fork(2) that uses a space of its parent.
pub(crate) fn other_process(py: Python<'_>) -> PyErr {
    let text = "this space belongs to the process that made it; make a memory of your own here";
    let parts = (libc::ENOTSUP, text, None::<&str>, None::<u64>);
    let made = classes(py).and_then(|classes| classes.call_method1("file_error", parts));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Makes a `LimitError` for what would not fit, though no group has refused it.
pub(crate) fn limit_error(py: Python<'_>, text: &str) -> PyErr {
    let made = classes(py).and_then(|classes| classes.call_method1("limit_error", (text,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

fn limit(py: Python<'_>, error: &dyn Error, full: Option<&LimitError>) -> PyResult<PyErr> {
    let group = full.map(|full| {
        let details = full.details();
        (
            details.group.clone(),
            details.max.bytes(),
            details.usage.bytes(),
        )
    });
    let made = classes(py)?.call_method1("limit_error", (error.to_string(), group))?;
    Ok(PyErr::from_value(made))
}

fn classes(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("innerspace._errors")
}
