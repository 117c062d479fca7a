//! Kinds of store failures: [`StoreErrorKind`] classifies any `io::Error`, and [`StoreError`] has
//! the failures for which `io::ErrorKind` has no name.

use std::error::Error;
use std::{fmt, io};

use crate::texts::texts;
use crate::units::{Bytes, Grouped};

texts! {
    /// The moment at which this process learned the length of a store.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub enum KnownSince {
        /// When the store was opened.
        Opened = "when opened",
        /// At a write or a change of length through the handle that reports the error.
        Changed = "after it was last changed here",
    }
}

/// Displays an error followed by its sources. A source whose text is already in the message is left
/// out, because a store's own error may include the texts of its sources.
pub(crate) struct WithCauses<'a>(pub(crate) &'a (dyn Error + 'static));

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut next = self.0.source();
        while let Some(error) = next {
            let cause = error.to_string();
            if !text.contains(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
            next = error.source();
        }
        f.write_str(&text)
    }
}

/// A failure that `io::ErrorKind` cannot express. It is wrapped in an `io::Error`. The layers above
/// add the store's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store has become shorter, and ends before bytes that it had earlier.
    #[error(
        "wanted {} at {} but the file now ends at {} (it was {} {since})",
        Bytes(*wanted), Grouped(*offset), Grouped(*now), Grouped(*was)
    )]
    Shrank {
        /// The offset at which the failed read began, in bytes.
        offset: u64,
        /// The number of bytes that the read wanted.
        wanted: u64,
        /// The present length.
        now: u64,
        /// The earlier length.
        was: u64,
        /// When `was` was learned.
        since: KnownSince,
    },
    /// The store delivered fewer bytes than it says it has.
    #[error(
        "wanted {} at {} and got {got}, although the file has {}",
        Bytes(*wanted), Grouped(*offset), Grouped(*len)
    )]
    ShortRead {
        /// The offset at which the read began, in bytes.
        offset: u64,
        /// The number of bytes that the read wanted.
        wanted: u64,
        /// The number of bytes that the store delivered.
        got: u64,
        /// The store's length.
        len: u64,
    },
    /// The store wrote none of the bytes and gave no reason.
    #[error("the store wrote 0 of {} at {}", Bytes(*wanted), Grouped(*offset))]
    WriteZero {
        /// The offset at which the write began, in bytes.
        offset: u64,
        /// The number of bytes that the caller offered.
        wanted: u64,
    },
    /// Another program has changed the file while it was open.
    #[error("another program changed the file while it was open")]
    Changed,
    /// The store cannot be written.
    #[error("opened read-only")]
    ReadOnly,
    /// The device under the store reported a failure of its own.
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
    /// Returns whether a request failed because the store dropped it.
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

texts! {
    /// The kinds of store failures that a caller may want to treat differently.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub enum StoreErrorKind {
        /// The device, file system or quota is full. The write can succeed once space has been
        /// freed.
        NoSpace = "no space left",
        /// The device failed (EIO and similar errors).
        Io = "input/output error",
        /// The store cannot be written.
        ReadOnly = "read-only",
        /// The store has become shorter, and ends before bytes that it had earlier.
        Shrank = "shrank",
        /// The store delivered fewer bytes than it has.
        ShortRead = "short read",
        /// Another program changed the bytes.
        Changed = "changed by another program",
        /// The device or the network did not answer in time.
        TimedOut = "timed out",
        /// The store refused the alignment of offset, length or memory.
        Unaligned = "unaligned request",
        /// Anything else.
        Other = "failed",
    }
}

impl StoreErrorKind {
    /// Returns the kind of an error that a store returned.
    pub fn of(error: &io::Error) -> StoreErrorKind {
        let own = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(own) = own {
            return match own {
                StoreError::Shrank { .. } => StoreErrorKind::Shrank,
                StoreError::ShortRead { .. } => StoreErrorKind::ShortRead,
                StoreError::Changed => StoreErrorKind::Changed,
                StoreError::ReadOnly => StoreErrorKind::ReadOnly,
                StoreError::Device | StoreError::NoPower => StoreErrorKind::Io,
                StoreError::WriteZero { .. } | StoreError::Abandoned => StoreErrorKind::Other,
            };
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

    /// Returns whether the same call may succeed later.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            StoreErrorKind::NoSpace | StoreErrorKind::Io | StoreErrorKind::TimedOut
        )
    }
}
