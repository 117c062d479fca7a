//! The locks of a file that callers may sleep on.

use crate::cache::dirty::index::DirtyIndex;
use crate::cache::index::Index;
use crate::exec::reentry::FileLocked;
use crate::sync::{Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The locks of one file. All are taken before locks of blocks.
pub(crate) struct FileLocks {
    /// Held by appends, and by the cuts that may move the end (`set_len`, discard, invalidate), one
    /// at a time.
    append: Mutex<()>,
    /// Serialises moves of blocks to consecutive frames, so that no two views take blocks from each
    /// other.
    long_view: Mutex<()>,
    /// Held shared by fills and writes, except by one-step appends (see `new_blocks`). Held
    /// exclusively by truncate, punch, discard and invalidate.
    invalidate: RwLock<()>,
}

/// Proof that no other thread truncates, punches, discards or invalidates the file while this
/// exists.
#[must_use]
pub(crate) enum InvalidateGuard<'f> {
    /// Other threads may also fill and write.
    Shared {
        _guard: RwLockReadGuard<'f, ()>,
        _holding: FileLocked,
    },
    /// No other thread may fill or write. The fields are dropped in this order.
    Alone {
        _cutting: CuttingMark<'f>,
        _guard: RwLockWriteGuard<'f, ()>,
        _holding: FileLocked,
    },
}

/// A mark, set until this is dropped, that the file is locked exclusively. One-step appends check
/// the mark, because they do not take the lock.
pub(crate) struct CuttingMark<'f>(&'f Index<DirtyIndex>);

impl Drop for CuttingMark<'_> {
    fn drop(&mut self) {
        self.0.lock().set_cut(None);
    }
}

impl Default for FileLocks {
    fn default() -> FileLocks {
        FileLocks {
            append: Mutex::ranked(Rank::Append, ()),
            long_view: Mutex::ranked(Rank::LongView, ()),
            invalidate: RwLock::ranked(Rank::Invalidate, ()),
        }
    }
}

impl FileLocks {
    /// Excludes other appends, and cuts that may move the end of the file.
    pub(crate) fn append(&self) -> MutexGuard<'_, ()> {
        self.append.lock()
    }

    /// Like [`FileLocks::append`], without waiting.
    pub(crate) fn try_append(&self) -> Option<MutexGuard<'_, ()>> {
        self.append.try_lock()
    }

    /// Keeps other threads from moving blocks to consecutive frames.
    pub(crate) fn long_view(&self) -> (MutexGuard<'_, ()>, FileLocked) {
        (self.long_view.lock(), FileLocked::begin())
    }

    /// Excludes truncate, punch, discard and invalidate.
    pub(crate) fn shared(&self) -> InvalidateGuard<'_> {
        InvalidateGuard::Shared {
            _guard: self.invalidate.read(),
            _holding: FileLocked::begin(),
        }
    }

    /// Like [`FileLocks::shared`], without waiting.
    pub(crate) fn try_shared(&self) -> Option<InvalidateGuard<'_>> {
        let guard = self.invalidate.try_read()?;
        Some(InvalidateGuard::Shared {
            _guard: guard,
            _holding: FileLocked::begin(),
        })
    }

    /// Excludes all fills and writes. `index` is the index of this file.
    pub(crate) fn alone<'f>(&'f self, index: &'f Index<DirtyIndex>) -> InvalidateGuard<'f> {
        let guard = self.invalidate.write();
        index.lock().set_cut(Some(u64::MAX));
        InvalidateGuard::Alone {
            _cutting: CuttingMark(index),
            _guard: guard,
            _holding: FileLocked::begin(),
        }
    }

    /// Waits until every fill and write that is under way has ended, except one-step appends. Also
    /// waits for a truncate, punch, discard or invalidate.
    pub(crate) fn wait_shared(&self) {
        drop(self.invalidate.write());
    }
}
