//! Telling store failures apart: [`StoreErrorKind`] for any `io::Error`, [`StoreError`] for
//! failures that std has no word for.

use std::{fmt, io};

use crate::units::{Bytes, Grouped};

/// When the length of a store was learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownSince {
    /// When the store was opened.
    Opened,
    /// It was learned at a write or a change of length through the handle that reports the error.
    Changed,
}

impl fmt::Display for KnownSince {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KnownSince::Opened => "when opened",
            KnownSince::Changed => "after it was last changed here",
        })
    }
}

/// A failure that `io::ErrorKind` cannot express. It travels inside an `io::Error`; the store's
/// name is added above.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store ends before bytes that it once had.
    #[error(
        "wanted {} at {} but the file now ends at {} (it was {} {since})",
        Bytes(*wanted), Grouped(*offset), Grouped(*now), Grouped(*was)
    )]
    Shrank {
        /// Where the failed read began, in bytes.
        offset: u64,
        /// How many bytes it wanted.
        wanted: u64,
        /// The length now.
        now: u64,
        /// The length before.
        was: u64,
        /// When `was` was learned.
        since: KnownSince,
    },
    /// The store says that it has the bytes, yet delivered fewer.
    #[error(
        "wanted {} at {} and got {got}, although the file has {}",
        Bytes(*wanted), Grouped(*offset), Grouped(*len)
    )]
    ShortRead {
        /// Where the read began, in bytes.
        offset: u64,
        /// How many bytes it wanted.
        wanted: u64,
        /// How many bytes came.
        got: u64,
        /// The store's length.
        len: u64,
    },
    /// The store took none of the bytes and gave no reason.
    #[error("the store wrote 0 of {} at {}", Bytes(*wanted), Grouped(*offset))]
    WriteZero {
        /// Where the write began, in bytes.
        offset: u64,
        /// How many bytes were offered.
        wanted: u64,
    },
    /// Another program changed the bytes since they were read.
    #[error("another program changed the file while it was open")]
    Changed,
    /// The store takes no writes.
    #[error("opened read-only")]
    ReadOnly,
    /// The device below reported a failure of its own.
    #[error("input/output error")]
    Device,
    /// The store's power was cut; see `FaultyStore`.
    #[error("the device has no power")]
    NoPower,
    /// A store dropped a request of `submit` without completing it.
    #[error("the store dropped the request without finishing it")]
    Abandoned,
}

impl StoreError {
    /// Whether a request failed because it was dropped.
    pub(crate) fn is_abandoned(error: &io::Error) -> bool {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        matches!(inner, Some(StoreError::Abandoned))
    }
}

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> io::Error {
        let kind = match &error {
            StoreError::Shrank { .. } | StoreError::ShortRead { .. } => {
                io::ErrorKind::UnexpectedEof
            }
            StoreError::WriteZero { .. } => io::ErrorKind::WriteZero,
            StoreError::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            StoreError::Changed
            | StoreError::Device
            | StoreError::NoPower
            | StoreError::Abandoned => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// The kind of a store's failure, as far as a caller can act on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The device, file system or quota is full: the write can succeed after space was freed.
    NoSpace,
    /// The device failed (EIO and its like).
    Io,
    /// The store takes no writes.
    ReadOnly,
    /// The store ends before bytes that it once had.
    Shrank,
    /// The store delivered fewer bytes than it has.
    ShortRead,
    /// Another program changed the bytes.
    Changed,
    /// The device or the network did not answer in time.
    TimedOut,
    /// The store refused the alignment of offset, length or memory.
    Unaligned,
    /// Anything else.
    Other,
}

impl StoreErrorKind {
    /// Sorts an error that a store returned.
    pub fn of(error: &io::Error) -> StoreErrorKind {
        match error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<StoreError>())
        {
            Some(StoreError::Shrank { .. }) => return StoreErrorKind::Shrank,
            Some(StoreError::ShortRead { .. }) => return StoreErrorKind::ShortRead,
            Some(StoreError::Changed) => return StoreErrorKind::Changed,
            Some(StoreError::ReadOnly) => return StoreErrorKind::ReadOnly,
            Some(StoreError::Device | StoreError::NoPower) => return StoreErrorKind::Io,
            Some(StoreError::WriteZero { .. } | StoreError::Abandoned) => {
                return StoreErrorKind::Other;
            }
            None => {}
        }
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreErrorKind::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                StoreErrorKind::ReadOnly
            }
            io::ErrorKind::TimedOut => StoreErrorKind::TimedOut,
            io::ErrorKind::UnexpectedEof => StoreErrorKind::ShortRead,
            io::ErrorKind::InvalidInput if error.raw_os_error().is_some() => {
                StoreErrorKind::Unaligned
            }
            _ if error
                .raw_os_error()
                .is_some_and(crate::sys::file::is_device_error) =>
            {
                StoreErrorKind::Io
            }
            _ => StoreErrorKind::Other,
        }
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            StoreErrorKind::NoSpace | StoreErrorKind::Io | StoreErrorKind::TimedOut
        )
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreErrorKind::NoSpace => "no space left",
            StoreErrorKind::Io => "input/output error",
            StoreErrorKind::ReadOnly => "read-only",
            StoreErrorKind::Shrank => "shrank",
            StoreErrorKind::ShortRead => "short read",
            StoreErrorKind::Changed => "changed by another program",
            StoreErrorKind::TimedOut => "timed out",
            StoreErrorKind::Unaligned => "unaligned request",
            StoreErrorKind::Other => "failed",
        })
    }
}
