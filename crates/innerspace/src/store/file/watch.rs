//! Detects changes to the file by other processes: a length below the known one, and a modification
//! that was not made through this store.
//!
//! A file has one modification time for all its writers. So `version` counts a new time, or a new
//! length, as a change from outside only if no change of our own was under way at the last check,
//! and none has begun since. It misses a change from outside between a change of ours and the next
//! check, and a change that the file system's clock cannot tell from the previous one.

use std::fs::{File, Metadata};
use std::io;
use std::time::SystemTime;

use crate::store::{KnownSince, StoreError, Version};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, OnDrop};

/// The known state of a file. Reads in flight share it with the store, because the store may be
/// dropped before they complete.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) len: KnownLen,
    /// The number of our own changes that have begun, and the number that have ended. These are
    /// counters and not a lock, so that a change need not wait for a check, which may wait for the
    /// file system for a long time.
    begun: AtomicU64,
    ended: AtomicU64,
    seen: Mutex<Seen>,
    /// Whether the kernel has refused a read by io_uring(7). From then on all reads are plain
    /// system calls. Relaxed, because no other data depends on it.
    pub(super) fell_back: AtomicBool,
}

/// The length that a file has at least, unless another process has cut it.
#[derive(Debug)]
pub(crate) struct KnownLen {
    /// The length when the file was opened.
    opened: u64,
    /// The length now: `opened`, with the changes that were noted here.
    now: AtomicU64,
}

impl KnownLen {
    pub(crate) fn new(len: u64) -> KnownLen {
        KnownLen {
            opened: len,
            now: AtomicU64::new(len),
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Notes that a write of our own reached up to the offset `end`.
    pub(crate) fn grew_to(&self, end: u64) {
        self.now.fetch_max(end, Ordering::Relaxed);
    }

    /// Runs a change of length. During the change, the known length is never above the real one.
    pub(crate) fn resizing(
        &self,
        file: &File,
        len: u64,
        resize: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let before = self.now.fetch_min(len, Ordering::Relaxed);
        let result = resize();
        match &result {
            Ok(()) => self.now.store(len, Ordering::Relaxed),
            // The file may have kept its length or have been cut in part; its metadata shows which.
            Err(_) => {
                let now = file.metadata().map_or(len, |metadata| metadata.len());
                self.grew_to(before.min(now));
            }
        }
        result
    }

    /// Makes the error of a request for `wanted` bytes at `offset`, after which the file was found
    /// to end at `now`.
    pub(crate) fn shrank(&self, offset: u64, wanted: u64, now: u64) -> io::Error {
        let was = self.get();
        let since = match was == self.opened {
            true => KnownSince::Opened,
            false => KnownSince::Changed,
        };
        StoreError::Shrank {
            offset,
            wanted,
            now,
            was,
            since,
        }
        .into()
    }
}

/// The state of the file at the last check.
#[derive(Debug)]
struct Seen {
    stamp: Stamp,
    /// The number of our own changes that had begun at the last check, if all of them had ended;
    /// otherwise `None`.
    settled_at: Option<u64>,
    /// The number of changes from outside so far.
    generation: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            len: metadata.len(),
            modified: metadata.modified().ok(),
        }
    }
}

impl Watch {
    pub(super) fn new(metadata: &Metadata, fell_back: bool) -> Watch {
        let stamp = Stamp::of(metadata);
        Watch {
            len: KnownLen::new(stamp.len),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            seen: Mutex::new(Seen {
                stamp,
                settled_at: Some(0),
                generation: 0,
            }),
            fell_back: AtomicBool::new(fell_back),
        }
    }

    /// Begins a change of our own, which lasts until the result is dropped.
    pub(super) fn own_change(&self) -> OnDrop<impl FnMut()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        OnDrop(|| {
            self.ended.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// Checks a read of `wanted` bytes at `offset` that found the end of the file. Returns an error
    /// if the file is known to have had bytes at `offset`, or if its length cannot be read.
    pub(super) fn check_end(&self, file: &File, offset: u64, wanted: u64) -> io::Result<()> {
        if offset >= self.len.get() {
            return Ok(());
        }
        let now = file.metadata()?.len();
        if now <= offset {
            return Err(self.len.shrank(offset, wanted, now));
        }
        // The file was cut before the read and has grown again since, so its bytes are no longer
        // those that it had.
        Err(StoreError::Changed.into())
    }

    /// Returns the number of changes from outside that have been noticed so far.
    pub(super) fn version(&self, file: &File) -> io::Result<Version> {
        let mut seen = self.seen.lock();
        // Pairs with `own_change`. `ended` is loaded first, so that equality means that no change
        // was under way.
        let ended = self.ended.load(Ordering::SeqCst);
        let begun = self.begun.load(Ordering::SeqCst);
        let stamp = Stamp::of(&file.metadata()?);
        // The stamp may include a change of our own that began after the loads.
        let begun_after = self.begun.load(Ordering::SeqCst);
        if stamp != seen.stamp && seen.settled_at == Some(begun_after) {
            seen.generation += 1;
        }
        seen.stamp = stamp;
        seen.settled_at = (begun == ended).then_some(begun);
        Ok(Version::new(seen.generation))
    }
}

#[cfg(all(test, not(loom), not(shuttle), not(miri)))]
mod tests {
    use super::*;

    fn watched(len: u64) -> (File, Watch) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        let watch = Watch::new(&file.metadata().unwrap(), false);
        (file, watch)
    }

    fn told(watch: &Watch, file: &File, offset: u64) -> Option<StoreError> {
        let error = watch.check_end(file, offset, 10).err()?;
        Some(error.downcast().expect("a store's own"))
    }

    #[test]
    fn a_length_that_could_not_be_changed_is_still_the_files() {
        let (file, watch) = watched(8192);
        let refuse = || Err(io::ErrorKind::StorageFull.into());
        watch.len.resizing(&file, 100, refuse).unwrap_err();
        assert!(told(&watch, &file, 8192).is_none(), "the end");
        file.set_len(50).unwrap();
        let shrank = |offset| match told(&watch, &file, offset) {
            Some(StoreError::Shrank { now, was, .. }) => Some((now, was)),
            _ => None,
        };
        assert_eq!([50, 4096].map(shrank), [Some((50, 8192)); 2]);
    }

    #[test]
    fn an_end_that_is_none_any_more_is_a_change() {
        let (file, watch) = watched(8192);
        let changed = told(&watch, &file, 4096);
        assert!(matches!(changed, Some(StoreError::Changed)), "{changed:?}");
        file.set_len(4096).unwrap();
        let shrank = told(&watch, &file, 4096);
        assert!(
            matches!(shrank, Some(StoreError::Shrank { .. })),
            "{shrank:?}"
        );
    }
}
