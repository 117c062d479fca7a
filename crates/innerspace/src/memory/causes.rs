//! The causes of an error of any type.

use std::error::Error;
use std::{io, iter};

use super::{MemoryError, OpenError};
use crate::cache::{CloseError, FileError};
use crate::dax::DaxError;
use crate::group::GroupError;
use crate::space::{Explanation, SnapshotFileError, SpaceError};
use crate::store::FileOpenError;

type AnyError = dyn Error + 'static;

/// Returns an iterator over an error and the errors that caused it. An error of this library
/// includes the texts of its causes in its own text, so [`Error::source`] does not return them;
/// this function does. For any other error it follows [`Error::source`], and it looks inside an
/// [`io::Error`].
///
/// ```
/// use std::io;
/// use innerspace::{MIB, Memory, error::causes};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(MIB)?;
/// let error = memory.open("x".repeat(10_000)).unwrap_err();
/// let system = causes(&error).find_map(|cause| cause.downcast_ref::<io::Error>());
/// assert_eq!(system.unwrap().kind(), io::ErrorKind::InvalidFilename);
/// # Ok(()) }
/// ```
pub fn causes(error: &AnyError) -> impl Iterator<Item = &AnyError> {
    iter::successors(Some(error), |error| below(*error))
}

/// Returns the number of the system's error (`errno` on Unix) behind an error, if there is one.
///
/// The errors of this library convert into [`io::Error`] with their text and their kind, but
/// [`io::Error::raw_os_error`] returns `None` for them. This function finds the number, for a
/// program that passes such numbers on.
///
/// ```
/// use std::io;
/// use innerspace::{MIB, Memory, error::raw_os_error};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(MIB)?;
/// let too_long = "x".repeat(10_000);
/// let error: io::Error = memory.open(too_long).unwrap_err().into();
/// # #[cfg(target_os = "linux")]
/// assert_eq!(raw_os_error(&error), Some(36)); // ENAMETOOLONG
/// # Ok(()) }
/// ```
pub fn raw_os_error(error: &(dyn Error + 'static)) -> Option<i32> {
    causes(error).find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

/// Returns the error that directly caused `error`, if there is one.
fn below(error: &AnyError) -> Option<&AnyError> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return error.get_ref().map(|inner| inner as _);
    }
    match error.downcast_ref() {
        Some(FileError::Store { source, .. }) => return Some(&**source),
        Some(FileError::Unwritten { source, .. }) => return Some(&**source),
        Some(FileError::Limit(error)) => return Some(error),
        _ => {}
    }
    match error.downcast_ref() {
        Some(DaxError::Io { source, .. } | DaxError::Unsupported { source, .. }) => {
            return Some(&**source);
        }
        Some(DaxError::Open(error)) => return Some(&**error),
        Some(DaxError::Limit(error)) => return Some(error),
        _ => {}
    }
    match error.downcast_ref() {
        Some(SpaceError::Access { explanation, .. }) => return Some(explanation),
        Some(SpaceError::File(error)) => return Some(error),
        Some(SpaceError::Dax(error)) => return Some(error),
        Some(SpaceError::Limit(error)) => return Some(error),
        _ => {}
    }
    match error.downcast_ref() {
        Some(OpenError::Path(error)) => return Some(error),
        Some(OpenError::File(error)) => return Some(error),
        Some(OpenError::BlockTooLarge { why, .. }) => return Some(why),
        _ => {}
    }
    match error.downcast_ref() {
        Some(SnapshotFileError::Io { source, .. }) => return Some(source),
        Some(SnapshotFileError::Space(error)) => return Some(error),
        Some(SnapshotFileError::Pages(explanation)) => return Some(explanation),
        _ => {}
    }
    if let Some(error) = error.downcast_ref::<Explanation>() {
        return error.cause().map(|cause| cause as _);
    }
    if let Some(error) = error.downcast_ref::<CloseError>() {
        return Some(error.error());
    }
    if let Some(FileOpenError::Io { source, .. }) = error.downcast_ref() {
        return Some(source);
    }
    if let Some(MemoryError::System { source, .. }) = error.downcast_ref() {
        return Some(source);
    }
    if let Some(GroupError::Limit(error)) = error.downcast_ref() {
        return Some(error);
    }
    error.source()
}
