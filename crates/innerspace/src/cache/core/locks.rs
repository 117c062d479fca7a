//! The locks of a file that callers may sleep on.

use crate::cache::dirty::index::DirtyIndex;
use crate::cache::index::Index;
use crate::exec::reentry::FileLocked;
use crate::sync::{Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// See the module. Both are outside the locks of blocks.
pub(crate) struct FileLocks {
    /// Serialises appends, and keeps the length of the file the same meanwhile.
    append: Mutex<()>,
    /// Shared: filling blocks and writing, but for appends that are one step (`new_blocks`).
    /// Exclusive: truncate, punch, discard, invalidate.
    invalidate: RwLock<()>,
}

/// Proof that no truncate, punch, discard or invalidate of the file runs meanwhile, or that the
/// caller makes it.
#[must_use]
pub(crate) enum InvalidateGuard<'f> {
    /// Other threads may fill and write, too.
    Shared {
        _guard: RwLockReadGuard<'f, ()>,
        _holding: FileLocked,
    },
    /// No other thread may fill or write. Dropped in this order.
    Alone {
        _cutting: CuttingMark<'f>,
        _guard: RwLockWriteGuard<'f, ()>,
        _holding: FileLocked,
    },
}

/// While it lives, appends that take no shared lock see that the file is locked exclusively.
pub(crate) struct CuttingMark<'f>(&'f Index<DirtyIndex>);

impl Drop for CuttingMark<'_> {
    fn drop(&mut self) {
        self.0.lock().set_cutting(false);
    }
}

impl Default for FileLocks {
    fn default() -> FileLocks {
        FileLocks {
            append: Mutex::ranked(Rank::Append, ()),
            invalidate: RwLock::ranked(Rank::Invalidate, ()),
        }
    }
}

impl FileLocks {
    /// Keeps other appends and changes of the length away.
    pub(crate) fn append(&self) -> MutexGuard<'_, ()> {
        self.append.lock()
    }

    /// Like [`FileLocks::append`] without waiting.
    pub(crate) fn try_append(&self) -> Option<MutexGuard<'_, ()>> {
        self.append.try_lock()
    }

    /// Keeps truncate, punch and their like away.
    pub(crate) fn shared(&self) -> InvalidateGuard<'_> {
        InvalidateGuard::Shared {
            _guard: self.invalidate.read(),
            _holding: FileLocked::begin(),
        }
    }

    /// Like [`FileLocks::shared`] without waiting.
    pub(crate) fn try_shared(&self) -> Option<InvalidateGuard<'_>> {
        let guard = self.invalidate.try_read()?;
        Some(InvalidateGuard::Shared {
            _guard: guard,
            _holding: FileLocked::begin(),
        })
    }

    /// Keeps all fills and writes away. `index` is the file's.
    pub(crate) fn alone<'f>(&'f self, index: &'f Index<DirtyIndex>) -> InvalidateGuard<'f> {
        let guard = self.invalidate.write();
        index.lock().set_cutting(true);
        InvalidateGuard::Alone {
            _cutting: CuttingMark(index),
            _guard: guard,
            _holding: FileLocked::begin(),
        }
    }

    /// Waits until every fill and write that is under way has ended.
    pub(crate) fn wait_shared(&self) {
        drop(self.invalidate.write());
    }
}
