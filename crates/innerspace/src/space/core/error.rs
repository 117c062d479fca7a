//! The errors of changes to a space's mappings.

use std::io;

use thiserror::Error;

use super::fault::Explanation;
use crate::VirtAddr;
use crate::cache::FileError;
use crate::dax::DaxError;
use crate::group::LimitError;
use crate::space::vma::protection::Protection;
use crate::sys::process::OtherProcess;
use crate::texts::into_io_error;
use crate::units::Bytes;

/// Why an operation on a space failed. The space is unchanged, unless the call's documentation says
/// otherwise.
///
/// The documentation of a call does not always list the errors that many calls share:
/// [`SpaceError::OtherProcess`], [`SpaceError::Frozen`] for the space of a snapshot's accessor, and
/// in a callback [`SpaceError::Reentered`].
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// The length is zero.
    #[error("{what} of 0 bytes at {at}: the range, or the file, is empty")]
    Empty {
        /// The operation.
        what: &'static str,
        /// The start of the range.
        at: VirtAddr,
    },
    /// An address or file offset is not a multiple of the page size.
    #[error("{what} at {at}: not a multiple of the page size, 4096")]
    Unaligned {
        /// The operation.
        what: &'static str,
        /// The address or offset.
        at: VirtAddr,
    },
    /// The range ends past the space's last address, or would map a file beyond the largest offset.
    #[error("{what} of {} at {at}: the space ends at {end}", Bytes(*len))]
    OutOfRange {
        /// The operation.
        what: &'static str,
        /// The start of the range.
        at: VirtAddr,
        /// The length of the range.
        len: u64,
        /// The end of the space: the first address past its last.
        end: VirtAddr,
    },
    /// The range contains page 0, which stays unmapped so that a null pointer is an error; see
    /// [`Map::with_null`](crate::Map::with_null).
    #[error("{what} at {at}: page 0 is kept free, so that null is an error")]
    NullPage {
        /// The operation.
        what: &'static str,
        /// The start of the range.
        at: VirtAddr,
    },
    /// A device's handler, or a store's callback, used the very space for which it was called.
    #[error("{what} of {} at {at}: a callback of the space may not use it", Bytes(*len))]
    Reentered {
        /// The operation.
        what: &'static str,
        /// The start of the range: 0 if the operation is about the whole space; if the space
        /// chooses the address, the first address that it would try.
        at: VirtAddr,
        /// The length of the range.
        len: u64,
    },
    /// The calling process was forked (fork(2)) from the process that made the memory. Nothing was
    /// done.
    #[error("{what}: {}", OtherProcess(*pid))]
    OtherProcess {
        /// The operation.
        what: &'static str,
        /// The process ID of the process that made the memory.
        pid: u32,
    },
    /// No free range is large enough, or a mapping or region cannot grow that far in its place.
    #[error("no free range of {} is left in the space", Bytes(*len))]
    NoRoom {
        /// The length that was asked for.
        len: u64,
    },
    /// The range overlaps a mapping, but must be free; or the new range of a remap overlaps the
    /// old.
    #[error("map of {} at {at}: overlaps {mapping}", Bytes(*len))]
    Overlaps {
        /// The start of the range.
        at: VirtAddr,
        /// The length of the range.
        len: u64,
        /// The mapping, or the old range, that the range overlaps.
        mapping: String,
    },
    /// The range must be mapped, but at least a part is not; or a remap needs a range in one
    /// mapping, and this range is not.
    #[error("{what} of {} at {at}: not all of it is mapped", Bytes(*len))]
    NotMapped {
        /// The operation.
        what: &'static str,
        /// The start of the range.
        at: VirtAddr,
        /// The length of the range.
        len: u64,
    },
    /// The protection is ruled out by the way the file was opened, or by what is mapped.
    #[error("{mapping}: {wanted} is forbidden, {reason}")]
    Forbidden {
        /// The mapping. If a new mapping was refused, what it maps, with the address if one was
        /// asked for.
        mapping: String,
        /// The protection that was asked for.
        wanted: Protection,
        /// Why the protection is not possible.
        reason: &'static str,
    },
    /// Shared anonymous memory was asked for. Only forks could share it, and forks copy memory on
    /// write.
    #[error(
        "map of {} at {at}: anonymous memory cannot be shared; map a file of a DaxDevice instead",
        Bytes(*len)
    )]
    SharedAnonymous {
        /// The start of the range; if the space chooses the address, the first address that it
        /// would try.
        at: VirtAddr,
        /// The length of the range.
        len: u64,
    },
    /// Pages of the range are locked in memory, but must not be.
    #[error("{what} of {} at {at}: locked in memory; unlock it first", Bytes(*len))]
    Locked {
        /// The operation.
        what: &'static str,
        /// The start of the range.
        at: VirtAddr,
        /// The length of the range.
        len: u64,
    },
    /// A mapping of a device was to become longer: the device's handler knows only the offsets with
    /// which it was mapped. A file with [`OnShrink::Error`](crate::dax::OnShrink::Error) counts as
    /// a device.
    #[error("remap at {at} to {}: {mapping} cannot be longer than its device", Bytes(*len))]
    DeviceEnds {
        /// The address of the mapping.
        at: VirtAddr,
        /// The new length that was asked for.
        len: u64,
        /// The mapping.
        mapping: String,
    },
    /// A page could not be brought in or pinned.
    #[error("{what}: {explanation}")]
    Access {
        /// The operation.
        what: &'static str,
        /// The failure, with its address.
        explanation: Explanation,
    },
    /// The group is full.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// An operation on a mapped file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// An operation on a mapped direct-access file failed.
    #[error(transparent)]
    Dax(#[from] DaxError),
    /// The space is a snapshot, whose mappings never change. Fork it and change the fork.
    #[error("{what}: a snapshot never changes; fork it and change the fork")]
    Frozen {
        /// The operation.
        what: &'static str,
    },
    /// The snapshot of a restore was not taken of this space, and this space was not forked from
    /// it.
    #[error("restore: the snapshot belongs to another space")]
    OtherSpace,
    /// The snapshot or space to compare with belongs to another `Memory`.
    #[error("{what}: the snapshot belongs to another memory")]
    OtherMemory {
        /// The operation.
        what: &'static str,
    },
    /// The range to be pinned is not private writable memory.
    #[error("pin at {at}: {mapping} is not private writable memory")]
    NotPinnable {
        /// The first address that cannot be pinned.
        at: VirtAddr,
        /// The mapping there.
        mapping: String,
    },
    /// The operation would replace a pinned page or change its bytes.
    #[error("{what}: the page at {at} is pinned; unpin it first")]
    Pinned {
        /// The operation.
        what: &'static str,
        /// The address of the first pinned page.
        at: VirtAddr,
    },
    /// A page that is pinned with [`AtFork::Refuse`](crate::space::AtFork::Refuse) would have to be
    /// copied.
    #[error("{what}: the page at {at} is pinned and may not be copied; unpin it first")]
    PinnedAlone {
        /// The operation.
        what: &'static str,
        /// The address of the first page that may not be copied.
        at: VirtAddr,
    },
    /// The file is open in a `Memory` other than the space's.
    #[error("map of {file}: it is open in another memory")]
    OtherMemorysFile {
        /// The file.
        file: String,
    },
    /// The group that was to pay for the space or fork belongs to another `Memory`.
    #[error("{what} in the group {group}: the group belongs to another memory")]
    OtherMemorysGroup {
        /// The operation.
        what: &'static str,
        /// The path of the group: the names from the root to it, joined by `/`.
        group: String,
    },
    /// A part of the space has as many forks as can be counted.
    #[error("the space has as many live forks as can be counted; drop some")]
    TooManyForks,
}

impl SpaceError {
    /// Returns whether a group was full: waiting, or freeing memory, may help.
    pub fn is_limit(&self) -> bool {
        match self {
            SpaceError::Limit(_) => true,
            SpaceError::File(error) => error.is_limit(),
            SpaceError::Dax(error) => error.is_limit(),
            SpaceError::Access { explanation, .. } => explanation.fault().is_limit(),
            _ => false,
        }
    }

    /// Returns the nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            SpaceError::Overlaps { .. } => ErrorKind::AlreadyExists,
            SpaceError::Forbidden { .. } => ErrorKind::PermissionDenied,
            SpaceError::Limit(limit) => limit.kind(),
            SpaceError::NoRoom { .. } => ErrorKind::OutOfMemory,
            SpaceError::Access { explanation, .. } => explanation.fault().kind().io_kind(),
            SpaceError::File(error) => error.kind(),
            SpaceError::Dax(error) => error.kind(),
            SpaceError::Frozen { .. } => ErrorKind::ReadOnlyFilesystem,
            SpaceError::Reentered { .. } => ErrorKind::Deadlock,
            SpaceError::OtherProcess { .. } => ErrorKind::Unsupported,
            SpaceError::Locked { .. }
            | SpaceError::Pinned { .. }
            | SpaceError::PinnedAlone { .. }
            | SpaceError::TooManyForks => ErrorKind::ResourceBusy,
            SpaceError::Empty { .. }
            | SpaceError::Unaligned { .. }
            | SpaceError::OutOfRange { .. }
            | SpaceError::NullPage { .. }
            | SpaceError::NotMapped { .. }
            | SpaceError::DeviceEnds { .. }
            | SpaceError::SharedAnonymous { .. }
            | SpaceError::OtherSpace
            | SpaceError::OtherMemory { .. }
            | SpaceError::NotPinnable { .. }
            | SpaceError::OtherMemorysFile { .. }
            | SpaceError::OtherMemorysGroup { .. } => ErrorKind::InvalidInput,
        }
    }
}

into_io_error!(SpaceError);

#[cfg(test)]
mod tests;
