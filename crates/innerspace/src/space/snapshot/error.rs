//! Errors of saving and loading a snapshot.

use std::io;

use thiserror::Error;

use crate::space::core::error::SpaceError;
use crate::space::core::fault::Explanation;
use crate::store::{WithCauses, shown_name};
use crate::texts::into_io_error;
use crate::{Grouped, VirtAddr};

/// Why a snapshot could not be saved or loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotFileError {
    /// The file could not be read or written.
    #[error("a snapshot could not be read or written at byte {}: {}", Grouped(*offset), WithCauses(source))]
    Io {
        /// The position at which the failed read or write began.
        offset: u64,
        /// The error of the reader or writer.
        r#source: io::Error,
    },
    /// The bytes do not begin as a snapshot does.
    #[error("the bytes are not a snapshot")]
    NotASnapshot,
    /// The file was written by another version of this library.
    #[error("the snapshot has version {version}; this library reads version {read}")]
    OtherVersion {
        /// The file's version.
        version: u32,
        /// The version that this library reads.
        read: u32,
    },
    /// The bytes differ from those that were written.
    #[error("the snapshot is damaged: {what} at byte {}", Grouped(*offset))]
    Damaged {
        /// A description of the damage.
        what: &'static str,
        /// The position at which the damaged record, or the missing part, begins.
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
    /// A device is mapped: its state cannot be saved with the pages.
    #[error("a snapshot with a device at {at} cannot be saved; unmap it first")]
    Device {
        /// The address at which the device is mapped.
        at: VirtAddr,
    },
    /// A direct-access file is mapped: loading a snapshot can open only cached files by name.
    #[error(
        "a snapshot that maps the direct access file {name} at {at} cannot be saved; unmap it first"
    )]
    Dax {
        /// The file's name.
        name: String,
        /// The address at which the file is mapped.
        at: VirtAddr,
    },
    /// A file is mapped whose name is too long to be read back.
    #[error(
        "a snapshot that maps a file at {at} cannot be saved: the file's name has {} bytes, and may have {}; unmap it first",
        Grouped(*bytes), Grouped(*most)
    )]
    LongName {
        /// The address at which the file is mapped.
        at: VirtAddr,
        /// The number of bytes of the name.
        bytes: u64,
        /// The most bytes of a name that can be saved.
        most: u64,
    },
    /// The group that was given belongs to another `Memory`.
    #[error("the group given for the snapshot belongs to another memory")]
    OtherMemorysGroup,
    /// The new space or its mappings could not be created, or the space could not be frozen.
    #[error("snapshot: {0}")]
    Space(SpaceError),
    /// The pages could not be stored in the new space.
    #[error("snapshot: {0}")]
    Pages(Explanation),
}

impl SnapshotFileError {
    /// Returns whether a group was full: waiting, or freeing memory, may help.
    pub fn is_limit(&self) -> bool {
        match self {
            SnapshotFileError::Space(error) => error.is_limit(),
            SnapshotFileError::Pages(explanation) => explanation.fault().is_limit(),
            _ => false,
        }
    }

    /// Returns the nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            SnapshotFileError::Io { source, .. } => source.kind(),
            SnapshotFileError::NotASnapshot
            | SnapshotFileError::OtherVersion { .. }
            | SnapshotFileError::Damaged { .. } => ErrorKind::InvalidData,
            SnapshotFileError::UnknownFile { .. } => ErrorKind::NotFound,
            SnapshotFileError::Device { .. }
            | SnapshotFileError::Dax { .. }
            | SnapshotFileError::LongName { .. } => ErrorKind::Unsupported,
            SnapshotFileError::OtherMemorysGroup => ErrorKind::InvalidInput,
            SnapshotFileError::Space(error) => error.kind(),
            SnapshotFileError::Pages(explanation) => explanation.fault().kind().io_kind(),
        }
    }
}

impl From<SpaceError> for SnapshotFileError {
    fn from(error: SpaceError) -> SnapshotFileError {
        SnapshotFileError::Space(error)
    }
}

into_io_error!(SnapshotFileError);
