//! The failure of an access to a space: [`Fault`].
//!
//! A fault is eight bytes and `Copy`, so that `Result<u64, Fault>` is returned in registers. It
//! contains the kind, the access and its size, and the address; of an address too large for any
//! space, it contains only the upper part. [`crate::space::Space::explain`] adds the rest: the
//! nearest mapping, or the error that caused the fault.

use std::sync::Arc;
use std::{fmt, io};

use thiserror::Error;

use super::address::ADDRESS_BITS;
use crate::VirtAddr;
use crate::cache::FileError;
use crate::dax::DaxError;
use crate::group::LimitError;
use crate::texts::into_io_error;
use crate::units::Bytes;

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum AccessKind {
    /// A load: reads.
    Load = 0,
    /// A store: writes.
    Store = 1,
    /// An atomic read-modify-write: reads and writes in one step.
    Exchange = 2,
    /// An instruction fetch: executes.
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
#[repr(u8)]
#[non_exhaustive]
pub enum FaultKind {
    /// Nothing is mapped there.
    #[error("not mapped")]
    NotMapped,
    /// The mapping's protection forbids the access, or the access was an atomic read-modify-write
    /// of a file with [`OnShrink::Error`](crate::dax::OnShrink::Error), which supports none.
    #[error("forbidden by the mapping's protection")]
    Forbidden,
    /// The page is past the end of the mapped file, or another process has truncated the file. With
    /// `mmap` this is a SIGBUS.
    #[error("past the end of the mapped file")]
    PastEnd,
    /// The file's store failed, or the device or host file of a direct-access file did.
    #[error("the mapped file's store failed")]
    Io,
    /// The group is full and nothing can be evicted.
    #[error("the group is full")]
    Limit,
    /// The address of an atomic access is not a multiple of the access's size.
    #[error("an atomic access must be aligned to its size")]
    Misaligned,
    /// A page has too many owners to count: drop some forks, mappings or pins.
    #[error("the page has as many owners as can be counted")]
    TooManyOwners,
    /// The space is a snapshot, which never changes and calls no device; fork the snapshot and use
    /// the fork.
    #[error("a snapshot never changes, and has no devices; fork it")]
    Frozen,
    /// The device that is mapped there refused, or the access was an atomic read-modify-write,
    /// which devices do not support. An atomic load or store of a device is an ordinary call.
    #[error("the device refused")]
    Device,
    /// The device that is mapped there ends before the access does.
    #[error("past the end of the device")]
    PastDevice,
    /// A device's handler, or a store's callback, made the access to the very space for which it
    /// was called.
    #[error("a callback of the space may not use it")]
    Reentered,
    /// A `try_` form would have had to wait. [`Space::ready`](crate::Space::ready) waits until the
    /// access can be made.
    #[error("it would block")]
    WouldBlock,
    /// The calling process was forked (fork(2)) from the process that made the memory.
    #[error("this memory belongs to the process that made it")]
    OtherProcess,
}

/// An access that failed. No byte at or after the address was changed; a value is stored wholly or
/// not at all (for devices see [`Accessor::store`](crate::Accessor::store)).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The low 32 bits of the address. If [`BEYOND`] is set, the address was first shifted right by
    /// [`LOST`].
    address_low: u32,
    address_high: u16,
    kind: FaultKind,
    /// The `AccessKind` in the two high bits, then [`BEYOND`]; the other bits are the number of
    /// bytes, 0 for a buffer.
    what: u8,
}

/// The bit of [`Fault::what`] that is set if the address is too large for any space.
const BEYOND: u8 = 1 << 5;
/// The bits of [`Fault::what`] that are the number of bytes of the access; 0 for a buffer.
const BYTES: u8 = BEYOND - 1;
/// The number of low bits that are dropped from an address too large for any space, to leave 48
/// bits.
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

    /// Returns the fault of the same access with another kind.
    pub(crate) fn of_kind(self, kind: FaultKind) -> Fault {
        Fault { kind, ..self }
    }

    /// Returns the address that could not be accessed: the first failing byte of a buffer; the
    /// first byte of a value; or, of a value that lies in two pages, the first byte in the page
    /// that failed.
    ///
    /// An address of more than 48 bits, which no space has, is rounded down to a multiple of 64
    /// KiB; it still has more than 48 bits.
    pub fn address(self) -> VirtAddr {
        let address = u64::from(self.address_high) << 32 | u64::from(self.address_low);
        let lost = if self.is_beyond() { LOST } else { 0 };
        VirtAddr(address << lost)
    }

    /// Returns whether the address is too large for any space.
    pub(crate) fn is_beyond(self) -> bool {
        self.what & BEYOND != 0
    }

    /// Returns the size of the value that was to be accessed; 0 for a buffer.
    pub(crate) fn bytes(self) -> usize {
        (self.what & BYTES).into()
    }

    /// Returns why the access failed.
    pub fn kind(self) -> FaultKind {
        self.kind
    }

    /// Returns the kind of the access.
    pub fn access(self) -> AccessKind {
        match self.what >> 6 {
            0 => AccessKind::Load,
            1 => AccessKind::Store,
            2 => AccessKind::Exchange,
            _ => AccessKind::Fetch,
        }
    }

    /// Returns whether a `try_` form would have had to wait.
    pub fn would_block(self) -> bool {
        self.kind == FaultKind::WouldBlock
    }

    /// Returns whether a group was full: waiting, or freeing memory, may help.
    pub fn is_limit(self) -> bool {
        self.kind == FaultKind::Limit
    }
}

const _: () = assert!(size_of::<Result<u64, Fault>>() <= 16);

/// Prints the access of a fault, without the outcome: `load of 8 bytes at 0x1000`.
pub(crate) struct Wanted(pub(crate) Fault);

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wanted(fault) = self;
        f.write_str(fault.access().name())?;
        if fault.bytes() > 0 {
            write!(f, " of {}", Bytes(fault.bytes() as u64))?;
        }
        let after = if fault.is_beyond() { "or after " } else { "" };
        write!(f, " at {after}{}", fault.address())
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

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Fault {}

impl FaultKind {
    /// Returns the nearest kind of [`io::Error`].
    pub fn io_kind(self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            FaultKind::NotMapped | FaultKind::Misaligned => ErrorKind::InvalidInput,
            FaultKind::Forbidden => ErrorKind::PermissionDenied,
            FaultKind::PastEnd | FaultKind::PastDevice => ErrorKind::UnexpectedEof,
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

/// Makes the fault of a task whose group has no memory for it
/// ([`Space::defer`](crate::Space::defer)): nothing was accessed, and the address is 0.
impl From<LimitError> for Fault {
    fn from(_full: LimitError) -> Fault {
        Fault::new(FaultKind::Limit, VirtAddr(0), AccessKind::Load, 0)
    }
}

into_io_error!(FaultKind, |kind| kind.io_kind());

into_io_error!(Fault, |fault| fault.kind.io_kind());

/// Why a device refused an access.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0}")]
pub struct DeviceError(String);

impl DeviceError {
    /// Makes a refusal for this reason. [`Space::explain`](crate::Space::explain) prints it as
    /// `load of 4 bytes at 0x1000: REASON`.
    pub fn new(reason: impl Into<String>) -> DeviceError {
        DeviceError(reason.into())
    }
}

into_io_error!(DeviceError, |error| io::ErrorKind::Other);

/// The cause of a fault.
#[derive(Clone, Debug, Error)]
pub(crate) enum Cause {
    #[error("{0}")]
    File(Arc<FileError>),
    #[error("{0}")]
    Direct(Arc<DaxError>),
    #[error("{0}")]
    Limit(LimitError),
    #[error("{0}")]
    Device(DeviceError),
    #[error("the device has {len} bytes")]
    PastDevice { len: u64 },
}

impl From<DaxError> for Cause {
    fn from(error: DaxError) -> Cause {
        Cause::Direct(Arc::new(error))
    }
}

impl Cause {
    /// Returns the kind of the fault that this error caused.
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
            Cause::PastDevice { .. } => FaultKind::PastDevice,
        }
    }

    /// Returns whether the access failed because the caller may not wait.
    pub(crate) fn would_block(&self) -> bool {
        match self {
            Cause::File(error) => error.would_block(),
            Cause::Direct(error) => error.would_block(),
            Cause::Limit(error) => error.would_block(),
            Cause::Device(_) | Cause::PastDevice { .. } => false,
        }
    }
}

/// A fault with all that its space can say about it. It converts to an [`io::Error`] of the fault's
/// kind.
#[derive(Clone, Debug, Error)]
#[error("{text}")]
pub struct Explanation {
    pub(crate) fault: Fault,
    /// The whole text, including the text of the cause.
    pub(crate) text: String,
    pub(crate) cause: Option<Cause>,
}

impl Explanation {
    /// Returns the fault that is explained.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// Returns the error that caused the fault: a [`FileError`], a [`DaxError`], a [`LimitError`]
    /// or a [`DeviceError`]. Returns `None` if no error did, or if the space no longer had the
    /// error: it keeps those of its last few faults.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        match self.cause.as_ref()? {
            Cause::File(error) => Some(&**error),
            Cause::Direct(error) => Some(&**error),
            Cause::Limit(error) => Some(error),
            Cause::Device(error) => Some(error),
            Cause::PastDevice { .. } => None,
        }
    }
}

into_io_error!(Explanation, |explanation| explanation.fault.kind.io_kind());
