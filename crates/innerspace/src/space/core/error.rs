//! What can go wrong with a space: [`SpaceError`] for changes of its mappings, [`Fault`] for
//! accesses.
//!
//! A fault is eight bytes and `Copy`, so that `Result<u64, Fault>` comes back in registers. It has
//! the address (only its upper part if no space has it), the kind and the access.
//! [`crate::space::Space::explain`] adds the rest: the nearest mapping, the file's error.

use std::ops::Range;
use std::sync::Arc;
use std::{fmt, io};

use thiserror::Error;

use super::address::ADDRESS_BITS;
use crate::cache::FileError;
use crate::dax::DaxError;
use crate::group::LimitError;
use crate::space::vma::protection::Protection;
use crate::sys::process::OtherProcess;
use crate::units::Bytes;
use crate::{PAGE_SIZE, VirtAddr};

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AccessKind {
    /// To read.
    Load = 0,
    /// To write.
    Store = 1,
    /// To read and write in one step.
    Exchange = 2,
    /// To execute.
    Fetch = 3,
}

impl AccessKind {
    #[inline]
    pub(crate) fn writes(self) -> bool {
        matches!(self, AccessKind::Store | AccessKind::Exchange)
    }

    fn name(self) -> &'static str {
        match self {
            AccessKind::Load => "load",
            AccessKind::Store => "store",
            AccessKind::Exchange => "exchange",
            AccessKind::Fetch => "fetch",
        }
    }
}

/// Why an access failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum FaultKind {
    /// Nothing is mapped there.
    NotMapped,
    /// The mapping's protection forbids it, or it was an atomic read-modify-write of a file with
    /// [`OnShrink::Error`](crate::OnShrink::Error), which has none.
    Forbidden,
    /// The mapping shows a part of its file that is past the file's end, or was cut off by another
    /// process: a SIGBUS with mmap.
    PastEnd,
    /// The file's store failed.
    Io,
    /// The group is full and nothing can be evicted.
    Limit,
    /// An atomic access at an address that is not a multiple of its size.
    Misaligned,
    /// A page has too many owners to count: drop some forks, mappings or pins.
    TooManyOwners,
    /// The space is a snapshot, which never changes and calls no device; fork it and use the fork.
    Frozen,
    /// The device that is mapped there refused, or the access was an atomic read-modify-write,
    /// which devices do not have. Atomic loads and stores are calls like the others.
    Device,
    /// An access from inside a device's handler, or a store's callback, to the space it works for.
    Reentered,
    /// A `try_` form met something it would have had to wait for:
    /// [`Space::ready`](crate::Space::ready) waits for it.
    WouldBlock,
    /// The calling process is a child of fork(2), and the memory is that of the process that made
    /// it.
    OtherProcess,
}

/// An access that failed. Nothing was changed at and after the address; a value is stored wholly or
/// not at all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// 48 bits: the address, or with [`BEYOND`] its upper ones.
    address_low: u32,
    address_high: u16,
    kind: FaultKind,
    /// AccessKind in the two high bits, then [`BEYOND`]; bytes in the others, 0 for a buffer.
    what: u8,
}

/// In [`Fault::what`]: the address has more bits than any space.
const BEYOND: u8 = 1 << 5;
/// The bits of [`Fault::what`] that count bytes.
const BYTES: u8 = BEYOND - 1;
/// Bits that an address beyond every space loses, so that the others are 48.
const LOST: u32 = 64 - ADDRESS_BITS;

impl Fault {
    pub(crate) fn new(kind: FaultKind, at: VirtAddr, access: AccessKind, bytes: usize) -> Fault {
        let bytes = if bytes <= 16 { bytes as u8 } else { 0 };
        let (address, beyond) = match at.0 >> ADDRESS_BITS {
            0 => (at.0, 0),
            _ => (at.0 >> LOST, BEYOND),
        };
        Fault {
            address_low: address as u32,
            address_high: (address >> 32) as u16,
            kind,
            what: (access as u8) << 6 | beyond | bytes,
        }
    }

    /// The same access, failed for another reason.
    pub(crate) fn of_kind(self, kind: FaultKind) -> Fault {
        Fault { kind, ..self }
    }

    /// The address that could not be accessed: the first failing byte of a buffer, the first byte
    /// of a value; of a value that lies in two pages, the first byte in the page that failed.
    ///
    /// An address of more than 48 bits, which no space has, is rounded down to a multiple of 64
    /// KiB; it still has more than 48 bits.
    pub fn address(self) -> VirtAddr {
        let address = u64::from(self.address_high) << 32 | u64::from(self.address_low);
        VirtAddr(if self.is_beyond() {
            address << LOST
        } else {
            address
        })
    }

    /// Whether the address has more bits than any space.
    pub(crate) fn is_beyond(self) -> bool {
        self.what & BEYOND != 0
    }

    /// Why it failed.
    pub fn kind(self) -> FaultKind {
        self.kind
    }

    /// What was wanted.
    pub fn access(self) -> AccessKind {
        match self.what >> 6 {
            0 => AccessKind::Load,
            1 => AccessKind::Store,
            2 => AccessKind::Exchange,
            _ => AccessKind::Fetch,
        }
    }

    /// Whether a `try_` form met something it would have had to wait for.
    pub fn would_block(self) -> bool {
        self.kind == FaultKind::WouldBlock
    }

    /// Whether a group was full: waiting, or freeing memory, may help.
    pub fn is_limit(self) -> bool {
        self.kind == FaultKind::Limit
    }
}

const _: () = assert!(size_of::<Result<u64, Fault>>() <= 16);

/// What a fault's access wanted, without the outcome: `load of 8 bytes at 0x1000`.
pub(crate) struct Wanted(pub(crate) Fault);

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wanted(fault) = self;
        f.write_str(fault.access().name())?;
        match fault.what & BYTES {
            0 => {}
            bytes => write!(f, " of {}", Bytes(bytes.into()))?,
        }
        let place = if fault.is_beyond() {
            "at or after"
        } else {
            "at"
        };
        write!(f, " {place} {}", fault.address())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", Wanted(*self))?;
        match self.kind {
            FaultKind::NotMapped if self.is_beyond() => {
                f.write_str("an address has at most 48 bits")
            }
            kind => kind.fmt(f),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultKind::NotMapped => "not mapped",
            FaultKind::Forbidden => "forbidden by the mapping's protection",
            FaultKind::PastEnd => "past the end of the mapped file",
            FaultKind::Io => "the mapped file's store failed",
            FaultKind::Limit => "the group is full",
            FaultKind::Misaligned => "an atomic access must be aligned to its size",
            FaultKind::TooManyOwners => "the page has as many owners as can be counted",
            FaultKind::Frozen => "a snapshot never changes, and has no devices; fork it",
            FaultKind::Device => "the device refused",
            FaultKind::Reentered => "a callback of the space may not use it",
            FaultKind::WouldBlock => "it would block",
            FaultKind::OtherProcess => "this memory belongs to the process that made it",
        })
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Fault {}

impl FaultKind {
    /// The nearest kind of [`io::Error`].
    pub fn io_kind(self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            FaultKind::NotMapped | FaultKind::Misaligned => ErrorKind::InvalidInput,
            FaultKind::Forbidden => ErrorKind::PermissionDenied,
            FaultKind::PastEnd => ErrorKind::UnexpectedEof,
            FaultKind::Io | FaultKind::Device => ErrorKind::Other,
            FaultKind::Limit => ErrorKind::OutOfMemory,
            FaultKind::TooManyOwners => ErrorKind::ResourceBusy,
            FaultKind::Frozen => ErrorKind::ReadOnlyFilesystem,
            FaultKind::Reentered => ErrorKind::Deadlock,
            FaultKind::WouldBlock => ErrorKind::WouldBlock,
            FaultKind::OtherProcess => ErrorKind::Unsupported,
        }
    }
}

/// For a task whose group has no memory for it ([`Space::defer`](crate::Space::defer)): nothing was
/// accessed, and the address is 0.
impl From<LimitError> for Fault {
    fn from(_full: LimitError) -> Fault {
        Fault::new(FaultKind::Limit, VirtAddr(0), AccessKind::Load, 0)
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> io::Error {
        io::Error::new(fault.kind.io_kind(), fault)
    }
}

/// Why a device refused an access.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct DeviceError(String);

impl DeviceError {
    /// A refusal for this reason, told as `load of 4 bytes at 0x1000: REASON`.
    pub fn new(reason: impl Into<String>) -> DeviceError {
        DeviceError(reason.into())
    }
}

/// The cause of a fault.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    File(Arc<FileError>),
    Direct(Arc<DaxError>),
    Limit(LimitError),
    Device(DeviceError),
}

impl Cause {
    /// The kind of the fault that it caused.
    pub(crate) fn kind(&self) -> FaultKind {
        match self {
            Cause::File(error) => match &**error {
                FileError::PastEnd { .. } | FileError::Shrank { .. } => FaultKind::PastEnd,
                FileError::Limit(_) => FaultKind::Limit,
                _ => FaultKind::Io,
            },
            Cause::Direct(error) => match &**error {
                DaxError::PastEnd { .. } | DaxError::Shrank { .. } => FaultKind::PastEnd,
                DaxError::Limit(_) => FaultKind::Limit,
                DaxError::ReadOnly { .. } | DaxError::NotAtomic { .. } => FaultKind::Forbidden,
                _ => FaultKind::Io,
            },
            Cause::Limit(_) => FaultKind::Limit,
            Cause::Device(_) => FaultKind::Device,
        }
    }
}

impl Cause {
    /// Whether a caller that may not wait would have had to.
    pub(crate) fn would_block(&self) -> bool {
        match self {
            Cause::File(error) => error.would_block(),
            Cause::Limit(error) => error.would_block(),
            Cause::Direct(_) | Cause::Device(_) => false,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::File(error) => error.fmt(f),
            Cause::Direct(error) => error.fmt(f),
            Cause::Limit(error) => error.fmt(f),
            Cause::Device(error) => error.fmt(f),
        }
    }
}

/// A fault with everything its space can say about it. Becomes an [`io::Error`] of the kind of its
/// fault.
#[derive(Clone, Debug)]
pub struct Explanation {
    pub(crate) fault: Fault,
    pub(crate) text: String,
}

impl Explanation {
    /// The fault that is explained.
    pub fn fault(&self) -> Fault {
        self.fault
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Explanation {}

impl From<Explanation> for io::Error {
    fn from(explanation: Explanation) -> io::Error {
        io::Error::new(explanation.fault.kind.io_kind(), explanation)
    }
}

/// A change of a space's mappings that was refused. The space is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// A length of zero.
    #[error("{what} of 0 bytes at {at}: the range, or the file, is empty")]
    Empty {
        /// The operation.
        what: &'static str,
        /// Where.
        at: VirtAddr,
    },
    /// An address or file offset that is no multiple of the page size.
    #[error("{what} at {at}: not a multiple of the page size, 4096")]
    Unaligned {
        /// The operation.
        what: &'static str,
        /// The address or offset.
        at: VirtAddr,
    },
    /// A range that ends past the space's last address.
    #[error("{what} of {} at {at}: the space ends at {end}", Bytes(*len))]
    OutOfRange {
        /// The operation.
        what: &'static str,
        /// Where.
        at: VirtAddr,
        /// How much.
        len: u64,
        /// The first address that does not exist.
        end: VirtAddr,
    },
    /// Page 0, so that a null pointer stays an error; see
    /// [`Map::with_null`](crate::Map::with_null).
    #[error("{what} at {at}: page 0 is kept free, so that null is an error")]
    NullPage {
        /// The operation.
        what: &'static str,
        /// Where.
        at: VirtAddr,
    },
    /// A change from inside a device's handler, or a store's callback, of the space it works for.
    #[error("{what} of {} at {at}: a callback of the space may not use it", Bytes(*len))]
    Reentered {
        /// The operation.
        what: &'static str,
        /// The address; 0 for all of the space, and the first address looked at where the space was
        /// to choose.
        at: VirtAddr,
        /// How much.
        len: u64,
    },
    /// The calling process is a child of fork(2), and the memory is that of the process that made
    /// it. Nothing was done.
    #[error("{what}: {}", OtherProcess(*pid))]
    OtherProcess {
        /// The operation.
        what: &'static str,
        /// The number of the process that made the memory.
        pid: u32,
    },
    /// No free range is long enough.
    #[error("no free range of {} is left in the space", Bytes(*len))]
    NoRoom {
        /// The length wanted.
        len: u64,
    },
    /// A range that must be free holds a mapping.
    #[error("map of {} at {at}: overlaps {mapping}", Bytes(*len))]
    Overlaps {
        /// Where.
        at: VirtAddr,
        /// How much.
        len: u64,
        /// The mapping in the way.
        mapping: String,
    },
    /// A range that must be mapped is not, or not wholly.
    #[error("{what} of {} at {at}: not all of it is mapped", Bytes(*len))]
    NotMapped {
        /// The operation.
        what: &'static str,
        /// Where.
        at: VirtAddr,
        /// How much.
        len: u64,
    },
    /// A protection that the file's opening, or what is mapped, rules out.
    #[error("{mapping}: {wanted} is forbidden, {reason}")]
    Forbidden {
        /// The mapping, or the file and the address wanted.
        mapping: String,
        /// What was wanted.
        wanted: Protection,
        /// Why it is not possible.
        reason: &'static str,
    },
    /// A range that must not be locked in memory is.
    #[error("{what} of {} at {at}: locked in memory; unlock it first", Bytes(*len))]
    Locked {
        /// The operation.
        what: &'static str,
        /// Where.
        at: VirtAddr,
        /// How much.
        len: u64,
    },
    /// A mapping of a device that is to be longer: its handler knows the offsets it was mapped
    /// with.
    #[error("remap at {at} to {}: {mapping} cannot be longer than its device", Bytes(*len))]
    DeviceEnds {
        /// Where it is.
        at: VirtAddr,
        /// How long it was to be.
        len: u64,
        /// The mapping.
        mapping: String,
    },
    /// A page could not be brought in.
    #[error("{what}: {explanation}")]
    Access {
        /// The operation.
        what: &'static str,
        /// What happened at which address.
        explanation: Explanation,
    },
    /// The group is full.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The file refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// The direct access file refused.
    #[error(transparent)]
    Direct(#[from] DaxError),
    /// A change of a snapshot's mappings: it never changes. Fork it and change the fork.
    #[error("{what}: a snapshot never changes; fork it and change the fork")]
    Frozen {
        /// The operation.
        what: &'static str,
    },
    /// A restore from a snapshot that was not taken of this space, and from which it was not
    /// forked.
    #[error("restore: the snapshot belongs to another space")]
    OtherSpace,
    /// A comparison with a snapshot or space of another `Memory`.
    #[error("{what}: the snapshot belongs to another memory")]
    OtherMemory {
        /// The operation.
        what: &'static str,
    },
    /// A range to be pinned that is not private writable memory.
    #[error("pin at {at}: {mapping} is not private writable memory")]
    NotPinnable {
        /// The first address that cannot be pinned.
        at: VirtAddr,
        /// The mapping there.
        mapping: String,
    },
    /// A pinned page would have to move, or its bytes to change, while the pin exists.
    #[error("{what}: the page at {at} is pinned; unpin it first")]
    Pinned {
        /// The operation.
        what: &'static str,
        /// The first such page.
        at: VirtAddr,
    },
    /// A page would have to be copied that is pinned with
    /// [`AtFork::Refuse`](crate::AtFork::Refuse).
    #[error("{what}: the page at {at} is pinned and may not be copied; unpin it first")]
    PinnedAlone {
        /// The operation.
        what: &'static str,
        /// The first such page.
        at: VirtAddr,
    },
    /// A file that is open in another `Memory` than the space's.
    #[error("map of {file}: it is open in another memory")]
    OtherMemorysFile {
        /// The file.
        file: String,
    },
    /// A space or fork that a group of another `Memory` was to pay for.
    #[error("{what} in the group {group}: the group belongs to another memory")]
    OtherMemorysGroup {
        /// The operation.
        what: &'static str,
        /// The group: the names from the root to it, joined by `/`.
        group: String,
    },
    /// A part of the space has more forks than can be counted.
    #[error("the space has as many live forks as can be counted; drop some")]
    TooManyForks,
}

impl SpaceError {
    /// Whether a group was full: waiting, or freeing memory, may help.
    pub fn is_limit(&self) -> bool {
        match self {
            SpaceError::Limit(_) => true,
            SpaceError::File(error) => error.is_limit(),
            SpaceError::Direct(error) => error.is_limit(),
            SpaceError::Access { explanation, .. } => explanation.fault().is_limit(),
            _ => false,
        }
    }

    /// The nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            SpaceError::Overlaps { .. } => ErrorKind::AlreadyExists,
            SpaceError::Forbidden { .. } => ErrorKind::PermissionDenied,
            SpaceError::Limit(_) | SpaceError::NoRoom { .. } => ErrorKind::OutOfMemory,
            SpaceError::Access { explanation, .. } => explanation.fault().kind().io_kind(),
            SpaceError::File(error) => error.kind(),
            SpaceError::Direct(error) => error.kind(),
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
            | SpaceError::OtherSpace
            | SpaceError::OtherMemory { .. }
            | SpaceError::NotPinnable { .. }
            | SpaceError::OtherMemorysFile { .. }
            | SpaceError::OtherMemorysGroup { .. } => ErrorKind::InvalidInput,
        }
    }
}

impl From<SpaceError> for io::Error {
    fn from(error: SpaceError) -> io::Error {
        io::Error::new(error.kind(), error)
    }
}

/// Checks `at..at + len` and makes it whole pages.
pub(crate) fn checked_range(
    what: &'static str,
    at: VirtAddr,
    len: u64,
    end: u64,
) -> Result<Range<u64>, SpaceError> {
    if len == 0 {
        return Err(SpaceError::Empty { what, at });
    }
    if !at.is_page_aligned() {
        return Err(SpaceError::Unaligned { what, at });
    }
    let last = len
        .checked_next_multiple_of(PAGE_SIZE as u64)
        .and_then(|len| at.0.checked_add(len));
    match last {
        Some(last) if last <= end => Ok(at.0..last),
        _ => Err(SpaceError::OutOfRange {
            what,
            at,
            len,
            end: VirtAddr(end),
        }),
    }
}

#[cfg(test)]
mod tests;
