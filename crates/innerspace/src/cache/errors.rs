//! The errors of a cached file, the record of failed writes, and the list of failures that no
//! handle was left to report.

use std::collections::VecDeque;
use std::{fmt, io};

use thiserror::Error;

use crate::group::LimitError;
use crate::store::{KnownSince, Version, WithCauses};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};
use crate::sys::process::OtherProcess;
use crate::texts::{into_io_error, texts};
use crate::units::{ByteSize, Bytes, Grouped};

texts! {
    /// The kind of store call that failed.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[non_exhaustive]
    pub enum StoreAction {
        /// Reading bytes to fill a block.
        Read = "read",
        /// Writing dirty bytes back.
        Write = "write",
        /// Making written data durable.
        Sync = "sync",
        /// Changing the length.
        Resize = "resize",
        /// Freeing a range.
        Punch = "punch",
        /// Reading the length, the version, or the ranges of data and holes.
        Query = "query",
    }
}

/// The error of an operation on a [`PagedFile`](crate::cache::PagedFile).
///
/// Offsets and lengths are in bytes. Cloning is cheap: one failed read gives its error to all
/// waiters.
///
/// The documentation of a call does not list errors that many calls have in common:
/// [`FileError::BadRange`] where a range is given, [`FileError::OtherProcess`], and in a callback
/// [`FileError::Reentered`].
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// A `try_` form would have had to wait. The file was not changed.
    #[error("{file}: the operation would block at {}", Grouped(*offset))]
    WouldBlock {
        /// The file.
        file: Arc<str>,
        /// An offset for which the call would have had to wait, or the beginning of the block that
        /// contains it.
        offset: u64,
    },
    /// The range is not inside the file.
    #[error(
        "{file}: wanted {} at {} but the file ends at {}",
        Bytes(*len), Grouped(*offset), Grouped(*size)
    )]
    PastEnd {
        /// The file.
        file: Arc<str>,
        /// Where the range starts.
        offset: u64,
        /// The length of the range.
        len: u64,
        /// Where the file ends.
        size: u64,
    },
    /// The store was cut short by another process.
    #[error(
        "{file}: wanted {} at {} but the file now ends at {} (it was {} {since})",
        Bytes(*len), Grouped(*offset), Grouped(*now), Grouped(*was)
    )]
    Shrank {
        /// The file.
        file: Arc<str>,
        /// The offset at which the read started.
        offset: u64,
        /// The number of bytes requested.
        len: u64,
        /// The store's length now.
        now: u64,
        /// The store's length before.
        was: u64,
        /// When the former length was learned.
        since: KnownSince,
    },
    /// Another process changed the store since it was opened, so old and new bytes would be mixed.
    /// [`PagedFile::invalidate`](crate::cache::PagedFile::invalidate) makes the new contents
    /// readable.
    #[error(
        "{file}: wanted {} at {} but another program has changed the file since it was opened; invalidate it to read the new bytes",
        Bytes(*len), Grouped(*offset)
    )]
    Changed {
        /// The file.
        file: Arc<str>,
        /// The offset at which the read started.
        offset: u64,
        /// The number of bytes requested.
        len: u64,
    },
    /// Another program has changed the store since the file was opened, as the store's
    /// [`version`](crate::store::Store::version) says. The cached blocks have the old contents, and
    /// nothing more is read from the store, so that the two are not mixed. To read the new
    /// contents, open the file again or call
    /// [`PagedFile::invalidate`](crate::cache::PagedFile::invalidate).
    #[error(
        "{file}: another program has changed it: it has version {now}, and what is cached is of {was}"
    )]
    ChangedInPlace {
        /// The file.
        file: Arc<str>,
        /// The version of the cached contents.
        was: Version,
        /// The first other version that the store has reported, or `was` if it has reported none.
        now: Version,
    },
    /// The store returned fewer bytes than its own length promises.
    #[error(
        "{file}: wanted {} at {} but the store gave {got}, although it says that it ends at {}",
        Bytes(*len), Grouped(*offset), Grouped(*size)
    )]
    Short {
        /// The file.
        file: Arc<str>,
        /// The offset at which the read started.
        offset: u64,
        /// The number of bytes requested.
        len: u64,
        /// The number of bytes returned.
        got: u64,
        /// The length that the store reports.
        size: u64,
    },
    /// A call to the store failed.
    #[error(
        "{file}: {} failed: {}",
        Attempt { action: *action, offset: *offset, len: *len }, WithCauses(&**source)
    )]
    Store {
        /// The file.
        file: Arc<str>,
        /// The call that failed.
        action: StoreAction,
        /// The offset of the call; for [`StoreAction::Resize`], the new length.
        offset: u64,
        /// The number of bytes that the call was for; 0 if the call has no range.
        len: u64,
        /// The store's error.
        r#source: Arc<io::Error>,
    },
    /// The file's group, or a group above it, has no room for the memory that the operation needs.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The file was opened for reading only.
    #[error("{file}: is open read-only; nothing was written")]
    ReadOnly {
        /// The file.
        file: Arc<str>,
    },
    /// The store takes no writes: its [`Store::writable`](crate::store::Store::writable) is false.
    #[error("{file}: its store takes no writes (Store::writable); open it read-only")]
    NotWritable {
        /// The file.
        file: Arc<str>,
    },
    /// Offset plus length exceeds the size of the largest file, 2^63 - 1 bytes.
    #[error("{file}: {} at {} reach past the largest file", Bytes(*len), Grouped(*offset))]
    TooLarge {
        /// The file.
        file: Arc<str>,
        /// The offset.
        offset: u64,
        /// The length.
        len: u64,
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
    /// The blocks of the view, which must be in memory all at once, would exceed the nearest limit.
    #[error(
        "{file}: a view of {} takes {} of blocks, and the limit is {}; use chunks, scan or read_at, or raise the limit",
        ByteSize(*len), ByteSize(*blocks), ByteSize(*max)
    )]
    ViewTooLarge {
        /// The file.
        file: Arc<str>,
        /// The length requested.
        len: u64,
        /// The total size of the blocks that the view needs.
        blocks: u64,
        /// The limit.
        max: u64,
    },
    /// There is no memory outside the arena for the copy that the operation needs.
    #[error("{file}: there is no memory for a copy of {}", ByteSize(*len))]
    NoMemory {
        /// The file.
        file: Arc<str>,
        /// The length requested.
        len: u64,
    },
    /// The block size is not a power of two from 4 KiB to 2 MiB.
    #[error("{file}: block size {size} is not a power of two between 4 KiB and 2 MiB")]
    BadBlockSize {
        /// The file.
        file: Arc<str>,
        /// The size requested.
        size: u64,
    },
    /// The array is over a file whose length is not a multiple of the element's size.
    #[error("{file}: {} bytes are not a whole number of elements of {element} bytes", Grouped(*size))]
    NotWhole {
        /// The file.
        file: Arc<str>,
        /// The file's length.
        size: u64,
        /// The size of an element.
        element: u64,
    },
    /// The array index is past the end.
    #[error("{file}: element {} is past the end; there are {}", Grouped(*index), Grouped(*len))]
    NoSuchElement {
        /// The file.
        file: Arc<str>,
        /// The index requested; for a range, the first index that does not exist.
        index: u64,
        /// The number of elements.
        len: u64,
    },
    /// The file's write order holds blocks back: either a sync needs them written, or a write would
    /// exceed the limit for unwritten data. Those blocks were not written to the store.
    #[error("{file}: {} of unwritten data may not be written yet; {reason}", ByteSize(*dirty))]
    Held {
        /// The file.
        file: Arc<str>,
        /// The number of bytes held back.
        dirty: u64,
        /// The event that will allow the bytes held back to be written.
        reason: HeldReason,
    },
    /// Too much data is unwritten, and the store refuses to take it. A write that gets this error
    /// may have written its first bytes. The unwritten data is kept; its write is retried from time
    /// to time, and by each sync.
    #[error(
        "{file}: {} of unwritten data cannot be written ({source}); new writes are refused until that data is written. Sync again, or discard it",
        ByteSize(*dirty)
    )]
    Unwritten {
        /// The file whose data cannot be written. It may be another file of the same group, or of a
        /// group below it.
        file: Arc<str>,
        /// The number of unwritten bytes of that file.
        dirty: u64,
        /// The store's last error.
        r#source: Arc<FileError>,
    },
    /// During a call to the file's store, the store made a call on the file that may wait for that
    /// first call: for example to read a block that is not cached, to write, truncate or sync. The
    /// store may read, view and evict cached blocks, and load from them through a mapping.
    #[error("{file}: its store made a call of the file that would wait for the store")]
    Reentered {
        /// The file.
        file: Arc<str>,
    },
    /// The calling process is a child of fork(2), and the file's memory belongs to the process that
    /// created it. Nothing was done.
    #[error("{file}: {}", OtherProcess(*pid))]
    OtherProcess {
        /// The file.
        file: Arc<str>,
        /// The process ID of the process that created the memory.
        pid: u32,
    },
    /// The file was closed: its last handle or mapping was dropped.
    #[error("{file}: the file was closed")]
    Closed {
        /// The file.
        file: Arc<str>,
    },
}

/// A call to a store, with its range if it has one: `write of 4096 bytes at 8,192`.
struct Attempt {
    action: StoreAction,
    offset: u64,
    len: u64,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (action, offset) = (self.action, Grouped(self.offset));
        match (action, self.len) {
            (StoreAction::Resize, _) => write!(f, "{action} to {offset} bytes"),
            (_, 0) => write!(f, "{action}"),
            (_, len) => write!(f, "{action} of {} at {offset}", Bytes(len)),
        }
    }
}

/// Why unwritten data is held back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum HeldReason {
    /// [`WriteOrder::OnSync`](crate::cache::WriteOrder::OnSync): only a sync writes the data.
    UntilSync,
    /// [`WriteOrder::Ordered`](crate::cache::WriteOrder::Ordered): the data waits for the release
    /// of a barrier number.
    UntilRelease {
        /// The lowest barrier number that is not yet released.
        barrier: u64,
    },
}

impl fmt::Display for HeldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeldReason::UntilSync => f.write_str("sync the file first"),
            HeldReason::UntilRelease { barrier } => write!(f, "release barrier {barrier} first"),
        }
    }
}

impl FileError {
    /// Whether a call to a `try_` form failed because it would have had to wait.
    pub fn would_block(&self) -> bool {
        match self {
            FileError::WouldBlock { .. } => true,
            FileError::Limit(limit) => limit.would_block(),
            _ => false,
        }
    }

    /// Whether a group was full. Waiting, or freeing memory, may help then.
    pub fn is_limit(&self) -> bool {
        matches!(self, FileError::Limit(_))
    }

    /// Returns the nearest kind of [`io::Error`].
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            FileError::WouldBlock { .. } => ErrorKind::WouldBlock,
            FileError::PastEnd { .. } | FileError::Shrank { .. } | FileError::Short { .. } => {
                ErrorKind::UnexpectedEof
            }
            FileError::Changed { .. } | FileError::ChangedInPlace { .. } => {
                ErrorKind::StaleNetworkFileHandle
            }
            FileError::Store { source, .. } => source.kind(),
            FileError::Unwritten { source, .. } => source.kind(),
            FileError::OtherProcess { .. } => ErrorKind::Unsupported,
            FileError::Limit(limit) => limit.kind(),
            FileError::NoMemory { .. } => ErrorKind::OutOfMemory,
            FileError::ReadOnly { .. } | FileError::NotWritable { .. } => {
                ErrorKind::PermissionDenied
            }
            FileError::TooLarge { .. } => ErrorKind::FileTooLarge,
            FileError::Held { .. } => ErrorKind::ResourceBusy,
            FileError::Reentered { .. } => ErrorKind::Deadlock,
            FileError::Closed { .. } => ErrorKind::NotConnected,
            FileError::BadRange { .. }
            | FileError::ViewTooLarge { .. }
            | FileError::BadBlockSize { .. }
            | FileError::NotWhole { .. }
            | FileError::NoSuchElement { .. } => ErrorKind::InvalidInput,
        }
    }
}

into_io_error!(FileError);

/// Returns the error for a call to a store that panicked.
pub(super) fn store_panicked() -> io::Error {
    io::Error::other("the store panicked")
}

/// The numbered failures of one file: of writes, syncs and repeated punches, and changes by other
/// processes. A failure is reported once to each handle, whichever thread met it (P18). If several
/// were not yet reported to a handle, it gets only the latest.
#[derive(Debug)]
pub(crate) struct ErrorSequence<E = FileError> {
    /// The number of failures so far. Written under the lock of `last`.
    count: AtomicU64,
    last: Mutex<Option<E>>,
}

impl<E> Default for ErrorSequence<E> {
    fn default() -> ErrorSequence<E> {
        ErrorSequence {
            count: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }
}

/// The number of the file's failures that were already reported to one handle.
#[derive(Debug)]
pub(crate) struct ErrorCursor(AtomicU64);

impl ErrorCursor {
    /// Creates a cursor to which the first `count` failures count as reported.
    pub(crate) fn behind(count: u64) -> ErrorCursor {
        ErrorCursor(AtomicU64::new(count))
    }
}

impl<E: Clone> ErrorSequence<E> {
    /// Records a failure, which is reported to every open handle.
    pub(crate) fn record(&self, error: E) {
        let mut last = self.last.lock();
        *last = Some(error);
        // Release pairs with the Acquire load in `check`. The error itself is read under the lock.
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Creates a cursor to which all failures so far count as reported.
    pub(crate) fn sample(&self) -> ErrorCursor {
        ErrorCursor(AtomicU64::new(self.count.load(Ordering::Acquire)))
    }

    /// Returns the latest failure as an error if it was not yet reported to the cursor, and marks
    /// it as reported.
    pub(crate) fn check(&self, cursor: &ErrorCursor) -> Result<(), E> {
        if self.count.load(Ordering::Acquire) == cursor.0.load(Ordering::Relaxed) {
            return Ok(());
        }
        let last = self.last.lock();
        let count = self.count.load(Ordering::Relaxed);
        // If two threads use one handle, the lock makes sure that only one of them gets the
        // failure.
        if cursor.0.swap(count, Ordering::Relaxed) == count {
            return Ok(());
        }
        match &*last {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Returns the latest failure, reported or not.
    pub(crate) fn latest(&self) -> Option<E> {
        self.last.lock().clone()
    }

    /// Returns the number of failures so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Failures that no handle was left to report: those found when the last handle of a file is
/// dropped. The log is bounded, and the oldest failures are dropped first.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog(Mutex<VecDeque<FileError>>);

impl ErrorLog {
    /// The most errors that the log keeps.
    pub(crate) const CAPACITY: usize = 64;

    /// Adds an error. A full log drops its oldest error, and returns it for the caller to count.
    #[must_use = "what is lost is counted"]
    pub(crate) fn push(&self, error: FileError) -> Option<FileError> {
        let mut errors = self.0.lock();
        let is_full = errors.len() == ErrorLog::CAPACITY;
        let oldest = is_full.then(|| errors.pop_front()).flatten();
        errors.push_back(error);
        oldest
    }

    /// Removes and returns the oldest error.
    pub(crate) fn pop(&self) -> Option<FileError> {
        self.0.lock().pop_front()
    }

    /// Removes and returns all errors, oldest first.
    pub(crate) fn take(&self) -> Vec<FileError> {
        self.0.lock().drain(..).collect()
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
