//! Who keeps truncate, punch, discard and invalidate of a file away, or is the one.

use crate::cache::core::FileCore;
use crate::exec::reentry::FileLocked;
use crate::sync::{RwLockReadGuard, RwLockWriteGuard};

/// Proof that no truncate, punch, discard or invalidate of the file runs meanwhile, or that the
/// caller is the one.
#[must_use]
pub(crate) enum Steady<'f> {
    /// Others may fill and write, too.
    Shared {
        _guard: RwLockReadGuard<'f, ()>,
        _holding: FileLocked,
    },
    /// Nobody else may. Dropped in this order.
    Alone {
        _cutting: SaidSo<'f>,
        _guard: RwLockWriteGuard<'f, ()>,
        _holding: FileLocked,
    },
}

/// While it lives, appends that do not keep the file steady see that somebody has it alone.
pub(crate) struct SaidSo<'f>(&'f FileCore);

impl Drop for SaidSo<'_> {
    fn drop(&mut self) {
        self.0.dirty().set_cutting(false);
    }
}

impl FileCore {
    /// Keeps truncate, punch and their like away.
    pub(crate) fn steady(&self) -> Steady<'_> {
        Steady::Shared {
            _guard: self.invalidate.read(),
            _holding: FileLocked::begin(),
        }
    }

    /// Like [`FileCore::steady`] without waiting.
    pub(crate) fn try_steady(&self) -> Option<Steady<'_>> {
        self.invalidate.try_read().map(|guard| Steady::Shared {
            _guard: guard,
            _holding: FileLocked::begin(),
        })
    }

    /// Keeps all fills and writes away.
    pub(crate) fn alone(&self) -> Steady<'_> {
        let guard = self.invalidate.write();
        self.dirty().set_cutting(true);
        Steady::Alone {
            _cutting: SaidSo(self),
            _guard: guard,
            _holding: FileLocked::begin(),
        }
    }
}
