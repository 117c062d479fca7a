//! All errors, one type for each family, and what they contain. Each converts into
//! [`std::io::Error`].
//!
//! The text of an error is complete: it names the place, the reason and what helps, on one line. It
//! includes the text of the error below it, such as the system's.
//! [`source`](std::error::Error::source) does not return errors whose text is included, so a report
//! that prints all sources repeats nothing. To look at the error below, match the variant, or call
//! [`causes`].
//!
//! - [`MemoryError`]: creating a memory; [`OpenError`]: opening a file, with [`FileOpenError`] for
//!   its path
//! - [`FileError`]: a cached file; [`CloseError`] gives back the file that could not be closed
//! - [`DaxError`]: a direct-access file
//! - [`SpaceError`]: changing a space; [`Fault`]: an access, in 8 bytes; [`Explanation`]: its
//!   details; [`SnapshotFileError`]: a snapshot in a file
//! - [`GroupError`]: changing a group; [`LimitError`]: a group refused memory
//! - [`StoreError`]: a store's failure, inside an `io::Error`; [`StoreErrorKind`]: the kind of any
//!   error that a store returned
//! - [`causes`]: an error and those below it; [`raw_os_error`]: the system's number among them

pub use crate::cache::{CloseError, FileError, HeldReason, StoreAction, TimedOut};
pub use crate::dax::{DaxAction, DaxError, DaxFeature, PinHolder};
pub use crate::group::{GroupError, Holders, LimitDetails, LimitError, LimitReason};
pub use crate::memory::{MemoryError, OpenError, causes, raw_os_error};
pub use crate::space::{
    AccessKind, DeviceError, Explanation, Fault, FaultKind, SnapshotFileError, SpaceError,
};
pub use crate::store::{FileOpenError, KnownSince, StoreError, StoreErrorKind};
pub use crate::units::ParseVirtAddrError;
