//! Errors of a direct-access file or its device.

use std::io;
use std::ops::Range;

use thiserror::Error;

use crate::group::LimitError;
use crate::store;
use crate::store::KnownSince;
use crate::sync::Arc;
use crate::sys::process::OtherProcess;
use crate::texts::{into_io_error, texts};
use crate::units::{ByteSize, Bytes, Grouped, PAGE_SIZE};

texts! {
    /// An operation on a direct-access file, its device or the file system below.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub enum DaxAction {
        /// Mapping the bytes into the process.
        Map = "map",
        /// Reading bytes by a file call.
        Read = "read",
        /// Writing bytes by a file call.
        Write = "write",
        /// Allocating a block for a hole.
        Allocate = "allocate",
        /// Making a hole.
        Punch = "punch",
        /// Changing the length.
        Resize = "resize",
        /// Making written bytes durable.
        Sync = "sync",
        /// Asking for the length, or for the ranges of data and holes.
        Query = "query",
    }
}

texts! {
    /// A feature that direct access needs and that a file system may lack.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub enum DaxFeature {
        /// Mapping a file so that stores reach the file.
        SharedMapping = "shared mappings",
        /// Making holes.
        Punching = "punching holes",
        /// Allocating blocks before the first write, so that a full file system is an error then
        /// and not a signal later.
        Allocating = "allocating blocks ahead of writes",
        /// Blocks of at least a page. With smaller ones, a store to a page could need another block
        /// and find none.
        PageBlocks = "blocks of at least 4096 bytes",
        /// Files in memory that can be sealed.
        SealedMemory = "sealed files in memory",
    }
}

/// Which thread has pinned bytes that were to be removed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PinHolder {
    /// The calling thread made a pin in the way, so it would wait for itself. A pin that was handed
    /// to another thread still counts as made by the first.
    ThisThread,
    /// Other threads or tasks made the pins, and some pin was not dropped in time.
    Other,
}

/// An operation on a direct-access file or a device that failed.
///
/// Offsets and lengths are in bytes. Cheap to clone.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum DaxError {
    /// The range is not inside the file.
    #[error(
        "{file}: wanted {} at {} but the file ends at {}",
        Bytes(*len), Grouped(*offset), Grouped(*size)
    )]
    PastEnd {
        /// The file.
        file: Arc<str>,
        /// The start of the range.
        offset: u64,
        /// The length of the range.
        len: u64,
        /// The end of the file.
        size: u64,
    },
    /// The range ends before it starts.
    #[error("{file}: range {start}..{end} ends before it starts")]
    BadRange {
        /// The file.
        file: Arc<str>,
        /// The start of the range.
        start: u64,
        /// The end of the range.
        end: u64,
    },
    /// The length of a device is less than one page.
    #[error("a device of {len} bytes is too small: the least is one page of {PAGE_SIZE}")]
    DeviceTooSmall {
        /// The requested length.
        len: u64,
    },
    /// The length of a device is not a whole number of pages.
    #[error("a device of {} bytes is not a whole number of pages of {PAGE_SIZE}", Grouped(*len))]
    DeviceNotPages {
        /// The length that was asked for.
        len: u64,
    },
    /// The device has no free block for a hole. The hole stays, and so does everything written
    /// before.
    #[error(
        "{file}: no block for offset {}: the device of {} is full",
        Grouped(*offset), ByteSize(*device_len)
    )]
    DeviceFull {
        /// The file.
        file: Arc<str>,
        /// The offset at which a block was needed.
        offset: u64,
        /// The device's length.
        device_len: u64,
    },
    /// The file system below, or the platform, lacks something that direct access needs.
    #[error("{file}: no direct access without {what}: {source}")]
    Unsupported {
        /// The file.
        file: Arc<str>,
        /// The missing feature.
        what: DaxFeature,
        /// The system's error.
        r#source: Arc<io::Error>,
    },
    /// Another process has cut the host file short.
    #[error(
        "{file}: wanted {} at {} but the file now ends at {} (it was {} {since})",
        Bytes(*wanted), Grouped(*offset), Grouped(*now), Grouped(*was)
    )]
    Shrank {
        /// The file.
        file: Arc<str>,
        /// The start of the bytes that were wanted.
        offset: u64,
        /// The number of bytes that were wanted.
        wanted: u64,
        /// The host file's length now.
        now: u64,
        /// The host file's length before.
        was: u64,
        /// When `was` was learned.
        since: KnownSince,
    },
    /// Pinned bytes were to be removed. Nothing was changed.
    #[error("{file}: cannot {what} bytes {}..{}: {}", Grouped(range.start), Grouped(range.end), pinned(*holder))]
    Busy {
        /// The file.
        file: Arc<str>,
        /// The bytes of the pin in the way that begins first, in whole pages. With
        /// [`PinHolder::ThisThread`], only pins of the calling thread count.
        range: Range<u64>,
        /// The operation that was to remove pinned bytes.
        what: DaxAction,
        /// Whether the calling thread made one of the pins in the way.
        holder: PinHolder,
    },
    /// This memory has the host file open already, in a different way.
    #[error("{file}: is open already {how}; close it first, or open it the same way")]
    OpenOtherwise {
        /// The file.
        file: Arc<str>,
        /// The way in which it is open.
        how: &'static str,
    },
    /// This memory has the host file open already, so it was not emptied.
    #[error("{file}: is open already, so it is not emptied; close it first")]
    NotEmptied {
        /// The file.
        file: Arc<str>,
    },
    /// A mapping of a file with [`OnShrink::Error`](crate::dax::OnShrink::Error) was to be changed
    /// by an atomic read-modify-write: each access there is a call to the host, and no such call
    /// reads and writes in one step.
    #[error("{file}: no atomic read-modify-write at {}: each access is a call of the host", Grouped(*offset))]
    NotAtomic {
        /// The file.
        file: Arc<str>,
        /// The offset of the access.
        offset: u64,
    },
    /// The file was opened for reading only.
    #[error("{file}: is open read-only; nothing was written at {}", Grouped(*offset))]
    ReadOnly {
        /// The file.
        file: Arc<str>,
        /// The offset of the refused change; for a resize, the new length.
        offset: u64,
    },
    /// The file's group, or a group above it, has no room for the memory that the operation needs.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The calling process was forked (fork(2)) from the process that made the file's memory.
    /// Nothing was done.
    #[error("{file}: {}", OtherProcess(*pid))]
    OtherProcess {
        /// The file.
        file: Arc<str>,
        /// The process ID of the process that made the memory.
        pid: u32,
    },
    /// A `try_` form would have had to wait.
    #[error("{file}: the operation would block at {}", Grouped(*offset))]
    WouldBlock {
        /// The file.
        file: Arc<str>,
        /// The offset of the access, or of its page.
        offset: u64,
    },
    /// The file would become longer than it may.
    #[error(
        "{file}: {} at {} reach past {}, the most this file can have",
        Bytes(*len), Grouped(*offset), Grouped(*most)
    )]
    TooLong {
        /// The file.
        file: Arc<str>,
        /// The start of the range.
        offset: u64,
        /// The length of the range.
        len: u64,
        /// The most bytes that the file can have.
        most: u64,
    },
    /// The group that was given belongs to another memory.
    #[error("the group given for the file belongs to another memory")]
    OtherMemorysGroup,
    /// The host file could not be opened: for example, it is missing, of the wrong kind, not
    /// permitted, or in use.
    #[error(transparent)]
    Open(Arc<store::FileOpenError>),
    /// The system or the file system reported an error.
    #[error("{file}: {} failed: {source}", asked(*what, *offset))]
    Io {
        /// The file.
        file: Arc<str>,
        /// The operation.
        what: DaxAction,
        /// The offset; the new length of a resize; 0 if neither applies.
        offset: u64,
        /// The system's error.
        r#source: Arc<io::Error>,
    },
}

fn pinned(holder: PinHolder) -> &'static str {
    match holder {
        PinHolder::ThisThread => "this thread itself has pinned them; unpin them first",
        PinHolder::Other => {
            "another thread or a task has pinned them and did not unpin them in time; try again \
             once they are unpinned"
        }
    }
}

/// Formats the operation with its offset, if it has one: for example `allocate at 8,192`.
fn asked(action: DaxAction, offset: u64) -> String {
    match action {
        DaxAction::Map => action.to_string(),
        DaxAction::Resize => format!("{action} to {} bytes", Grouped(offset)),
        _ => format!("{action} at {}", Grouped(offset)),
    }
}

impl DaxError {
    /// Returns whether a `try_` form would have had to wait.
    pub fn would_block(&self) -> bool {
        match self {
            DaxError::WouldBlock { .. } => true,
            DaxError::Limit(limit) => limit.would_block(),
            _ => false,
        }
    }

    /// Returns whether a group was full: waiting, or freeing memory, may help.
    pub fn is_limit(&self) -> bool {
        matches!(self, DaxError::Limit(_))
    }

    /// Returns the [`io::ErrorKind`] that fits this error best.
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            DaxError::PastEnd { .. } | DaxError::Shrank { .. } => ErrorKind::UnexpectedEof,
            DaxError::BadRange { .. }
            | DaxError::DeviceTooSmall { .. }
            | DaxError::DeviceNotPages { .. }
            | DaxError::OtherMemorysGroup => ErrorKind::InvalidInput,
            DaxError::DeviceFull { .. } => ErrorKind::StorageFull,
            DaxError::Unsupported { .. }
            | DaxError::NotAtomic { .. }
            | DaxError::OtherProcess { .. } => ErrorKind::Unsupported,
            DaxError::Busy { holder, .. } => match holder {
                PinHolder::ThisThread => ErrorKind::Deadlock,
                PinHolder::Other => ErrorKind::ResourceBusy,
            },
            DaxError::OpenOtherwise { .. } | DaxError::NotEmptied { .. } => ErrorKind::ResourceBusy,
            DaxError::ReadOnly { .. } => ErrorKind::PermissionDenied,
            DaxError::Limit(limit) => limit.kind(),
            DaxError::WouldBlock { .. } => ErrorKind::WouldBlock,
            DaxError::TooLong { .. } => ErrorKind::FileTooLarge,
            DaxError::Open(error) => error.kind(),
            DaxError::Io { source, .. } => source.kind(),
        }
    }

    /// Makes the error for a missing feature.
    pub(super) fn unsupported(file: Arc<str>, what: DaxFeature, source: io::Error) -> DaxError {
        let source = Arc::new(source);
        DaxError::Unsupported { file, what, source }
    }

    /// Makes the error of `what` at `offset` of `file`.
    pub(crate) fn io(file: &Arc<str>, what: DaxAction, offset: u64, source: io::Error) -> DaxError {
        DaxError::Io {
            file: file.clone(),
            what,
            offset,
            source: Arc::new(source),
        }
    }
}

impl From<store::FileOpenError> for DaxError {
    fn from(error: store::FileOpenError) -> DaxError {
        DaxError::Open(Arc::new(error))
    }
}

into_io_error!(DaxError);

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::store::{FileOpenError, LockHolder};

    fn all_but_limits() -> [(DaxError, &'static str, io::ErrorKind); 18] {
        use io::ErrorKind::*;
        let file: Arc<str> = "data.bin".into();
        let full = io::Error::new(StorageFull, "no space left");
        let no = Arc::new(io::Error::new(Unsupported, "not here"));
        let busy = |what, holder| DaxError::Busy {
            file: file.clone(),
            range: 4096..8192,
            what,
            holder,
        };
        let unsupported = |what| DaxError::Unsupported {
            file: file.clone(),
            what,
            source: no.clone(),
        };
        [
            (
                DaxError::OtherMemorysGroup,
                "the group given for the file belongs to another memory",
                InvalidInput,
            ),
            (
                DaxError::PastEnd {
                    file: file.clone(),
                    offset: 1_048_576,
                    len: 8,
                    size: 524_288,
                },
                "data.bin: wanted 8 bytes at 1,048,576 but the file ends at 524,288",
                UnexpectedEof,
            ),
            (
                DaxError::BadRange {
                    file: file.clone(),
                    start: 9,
                    end: 7,
                },
                "data.bin: range 9..7 ends before it starts",
                InvalidInput,
            ),
            (
                DaxError::DeviceTooSmall { len: 100 },
                "a device of 100 bytes is too small: the least is one page of 4096",
                InvalidInput,
            ),
            (
                DaxError::DeviceNotPages { len: 10_000 },
                "a device of 10,000 bytes is not a whole number of pages of 4096",
                InvalidInput,
            ),
            (
                DaxError::DeviceFull {
                    file: file.clone(),
                    offset: 8192,
                    device_len: 1 << 20,
                },
                "data.bin: no block for offset 8,192: the device of 1.0 MiB is full",
                StorageFull,
            ),
            (
                unsupported(DaxFeature::SharedMapping),
                "data.bin: no direct access without shared mappings: not here",
                Unsupported,
            ),
            (
                unsupported(DaxFeature::Punching),
                "data.bin: no direct access without punching holes: not here",
                Unsupported,
            ),
            (
                DaxError::Shrank {
                    file: file.clone(),
                    offset: 1_048_576,
                    wanted: 4096,
                    now: 524_288,
                    was: 1_073_741_824,
                    since: KnownSince::Opened,
                },
                "data.bin: wanted 4096 bytes at 1,048,576 but the file now ends at 524,288 (it was \
                 1,073,741,824 when opened)",
                UnexpectedEof,
            ),
            (
                busy(DaxAction::Punch, PinHolder::ThisThread),
                "data.bin: cannot punch bytes 4,096..8,192: this thread itself has pinned them; unpin \
                 them first",
                Deadlock,
            ),
            (
                busy(DaxAction::Resize, PinHolder::Other),
                "data.bin: cannot resize bytes 4,096..8,192: another thread or a task has pinned \
                 them and did not unpin them in time; try again once they are unpinned",
                ResourceBusy,
            ),
            (
                DaxError::NotAtomic {
                    file: file.clone(),
                    offset: 4096,
                },
                "data.bin: no atomic read-modify-write at 4,096: each access is a call of the host",
                Unsupported,
            ),
            (
                DaxError::OpenOtherwise {
                    file: file.clone(),
                    how: "read-only",
                },
                "data.bin: is open already read-only; close it first, or open it the same way",
                ResourceBusy,
            ),
            (
                DaxError::ReadOnly {
                    file: file.clone(),
                    offset: 4096,
                },
                "data.bin: is open read-only; nothing was written at 4,096",
                PermissionDenied,
            ),
            (
                DaxError::WouldBlock {
                    file: file.clone(),
                    offset: 4096,
                },
                "data.bin: the operation would block at 4,096",
                WouldBlock,
            ),
            (
                DaxError::TooLong {
                    file: file.clone(),
                    offset: 1_048_576,
                    len: 8,
                    most: 1_048_576,
                },
                "data.bin: 8 bytes at 1,048,576 reach past 1,048,576, the most this file can have",
                FileTooLarge,
            ),
            (
                FileOpenError::InUse {
                    path: "data.bin".into(),
                    holder: LockHolder::Process(77),
                }
                .into(),
                "data.bin is in use by another process (pid 77); close it there first",
                ResourceBusy,
            ),
            (
                DaxError::io(&file, DaxAction::Allocate, 8192, full),
                "data.bin: allocate at 8,192 failed: no space left",
                StorageFull,
            ),
        ]
    }

    #[test]
    fn each_error_is_one_clear_line() {
        for (error, text, kind) in all_but_limits() {
            assert_eq!(error.to_string(), text);
            assert_eq!(error.kind(), kind, "{text}");
            assert_eq!(error.would_block(), kind == io::ErrorKind::WouldBlock);
            let error = io::Error::from(error.clone());
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
        }
    }

    #[test]
    fn an_action_is_named_with_its_place() {
        let file: Arc<str> = "data.bin".into();
        let text = |what| {
            let source = io::Error::other("broken");
            DaxError::io(&file, what, 12_288, source).to_string()
        };
        for (what, expected) in [
            (DaxAction::Map, "data.bin: map failed: broken"),
            (DaxAction::Read, "data.bin: read at 12,288 failed: broken"),
            (DaxAction::Write, "data.bin: write at 12,288 failed: broken"),
            (DaxAction::Punch, "data.bin: punch at 12,288 failed: broken"),
            (
                DaxAction::Resize,
                "data.bin: resize to 12,288 bytes failed: broken",
            ),
            (DaxAction::Sync, "data.bin: sync at 12,288 failed: broken"),
            (DaxAction::Query, "data.bin: query at 12,288 failed: broken"),
        ] {
            assert_eq!(text(what), expected);
        }
        assert_eq!(
            DaxFeature::Allocating.to_string(),
            "allocating blocks ahead of writes"
        );
        assert_eq!(
            DaxFeature::PageBlocks.to_string(),
            "blocks of at least 4096 bytes"
        );
        assert_eq!(
            DaxFeature::SealedMemory.to_string(),
            "sealed files in memory"
        );
    }
}
