//! Errors of saving and loading a snapshot.

use std::io;

use thiserror::Error;

use crate::space::core::error::{Explanation, SpaceError};
use crate::store::shown_name;
use crate::{Grouped, VirtAddr};

/// A snapshot that could not be saved or loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotFileError {
    /// The file could not be read or written.
    #[error("a snapshot could not be read or written at byte {}: {source}", Grouped(*offset))]
    Io {
        /// Bytes read or written before.
        offset: u64,
        /// The error of the reader or writer.
        source: io::Error,
    },
    /// The bytes do not begin as a snapshot does.
    #[error("the bytes are not a snapshot")]
    NotASnapshot,
    /// The file was written by another version of this library.
    #[error("the snapshot has version {version}; this library reads version {read}")]
    OtherVersion {
        /// The file's version.
        version: u32,
        /// The one that is read.
        read: u32,
    },
    /// The bytes differ from those that were written.
    #[error("the snapshot is damaged: {what} at byte {}", Grouped(*offset))]
    Damaged {
        /// What is wrong.
        what: &'static str,
        /// Where the record begins.
        offset: u64,
    },
    /// The snapshot maps a file that the caller has not provided.
    #[error(
        "the snapshot maps the file {}, which was not provided",
        shown_name(name)
    )]
    UnknownFile {
        /// The file's name when it was saved.
        name: String,
    },
    /// A mapped device: its state cannot be saved with the pages.
    #[error("a snapshot with a device at {at} cannot be saved; unmap it first")]
    Device {
        /// Where it is mapped.
        at: VirtAddr,
    },
    /// A mapped direct access file: a load opens cached files by name, and no others.
    #[error(
        "a snapshot that maps the direct access file {name} at {at} cannot be saved; unmap it first"
    )]
    Direct {
        /// The file's name.
        name: String,
        /// Where it is mapped.
        at: VirtAddr,
    },
    /// A mapped file whose name is longer than any that is read back.
    #[error(
        "a snapshot that maps a file at {at} cannot be saved: the file's name has {} bytes, and may have {}; unmap it first",
        Grouped(*bytes), Grouped(*most)
    )]
    LongName {
        /// Where it is mapped.
        at: VirtAddr,
        /// Bytes of the name.
        bytes: u64,
        /// The most that can be saved.
        most: u64,
    },
    /// The group that was given belongs to another `Memory`.
    #[error("the group given for the snapshot belongs to another memory")]
    OtherMemorysGroup,
    /// The mappings could not be made.
    #[error("snapshot: {0}")]
    Space(#[from] SpaceError),
    /// The pages could not be brought in.
    #[error("snapshot: {0}")]
    Pages(Explanation),
}

impl SnapshotFileError {
    /// Whether a group was full: waiting, or freeing memory, may help.
    pub fn is_limit(&self) -> bool {
        match self {
            SnapshotFileError::Space(error) => error.is_limit(),
            SnapshotFileError::Pages(explanation) => explanation.fault().is_limit(),
            _ => false,
        }
    }

    /// The nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            SnapshotFileError::Io { source, .. } => source.kind(),
            SnapshotFileError::NotASnapshot
            | SnapshotFileError::OtherVersion { .. }
            | SnapshotFileError::Damaged { .. } => ErrorKind::InvalidData,
            SnapshotFileError::UnknownFile { .. } => ErrorKind::NotFound,
            SnapshotFileError::Device { .. }
            | SnapshotFileError::Direct { .. }
            | SnapshotFileError::LongName { .. } => ErrorKind::Unsupported,
            SnapshotFileError::OtherMemorysGroup => ErrorKind::InvalidInput,
            SnapshotFileError::Space(error) => error.kind(),
            SnapshotFileError::Pages(explanation) => explanation.fault().kind().io_kind(),
        }
    }
}

impl From<SnapshotFileError> for io::Error {
    fn from(error: SnapshotFileError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}
