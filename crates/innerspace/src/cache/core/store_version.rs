//! Whether the store was changed by others: see [`Store::version`](crate::store::Store::version).
//!
//! **When it is asked.** When the file is opened, at the first fill in each tick of the memory's
//! clock, and at the beginning of each sync. So a scan pays for one call a tick.
//!
//! **What follows.** Once a change is known, nothing is read from the store any more until the
//! caller says that it knows of the change too (`invalidate`): what is cached is of the old
//! contents, and the two are not mixed. Every handle hears of it at its next sync, once. A change
//! that a tick's first fill came before is seen by the first of the next tick: that much may be
//! mixed. A store whose version does not tell some change tells the cache of it neither.

use crate::cache::core::FileCore;
use crate::cache::errors::{FileError, StoreAction};
use crate::store::Version;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is known of the version of one file's store.
pub(crate) struct StoreVersion {
    /// The store tells versions.
    is_told: bool,
    /// The tick, plus 1, in which it was asked last.
    asked_at: AtomicU64,
    is_changed: AtomicBool,
    state: Mutex<State>,
}

/// A leaf lock, not held while the store is asked.
struct State {
    /// What is cached is of this one.
    known: Option<Version>,
    /// The store said this instead.
    now: Option<Version>,
}

impl StoreVersion {
    /// Of a store that said this when it was opened, in the tick `tick`.
    pub(crate) fn new(known: Option<Version>, tick: u64) -> StoreVersion {
        StoreVersion {
            is_told: known.is_some(),
            asked_at: AtomicU64::new(tick + 1),
            is_changed: AtomicBool::new(false),
            state: Mutex::new(State { known, now: None }),
        }
    }

    /// Whether nothing is to be read ahead in the tick `tick`: the store is to be asked first, or
    /// was changed.
    pub(crate) fn stops_hints(&self, tick: u64) -> bool {
        self.is_due(tick) || self.is_changed.load(Ordering::Relaxed)
    }

    /// Whether the store is to be asked before more is read from it in the tick `tick`.
    fn is_due(&self, tick: u64) -> bool {
        self.is_told && self.asked_at.load(Ordering::Relaxed) != tick + 1
    }
}

impl FileCore {
    /// Refuses to read from a store that was changed. May ask it; the caller holds no lock of a
    /// block.
    pub(crate) fn check_version(&self) -> Result<(), FileError> {
        let tick = self.pool.now();
        let version = &self.version;
        // Relaxed: one of two threads asks, and the other may read as if it had come before.
        if version.is_due(tick) && version.asked_at.swap(tick + 1, Ordering::Relaxed) != tick + 1 {
            self.ask_version()?;
        }
        match version.is_changed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(self.changed_in_place()),
        }
    }

    /// Asks the store for its version. A new one is noted, and in the error sequence.
    pub(crate) fn ask_version(&self) -> Result<(), FileError> {
        if !self.version.is_told {
            return Ok(());
        }
        let now = self.version_of_store()?;
        let is_news = {
            let mut state = self.version.state.lock();
            let is_news = state.now.is_none() && now != state.known;
            if is_news {
                state.now = now;
                self.version.is_changed.store(true, Ordering::Release);
            }
            is_news
        };
        if is_news {
            self.writes.errors.record(self.changed_in_place());
        }
        Ok(())
    }

    fn version_of_store(&self) -> Result<Option<Version>, FileError> {
        let store = self.store()?;
        let _call = self.store_call();
        let version = store.version();
        version.map_err(|error| self.store_error(StoreAction::Query, 0, 0, error))
    }

    /// The caller knows that others may have changed the store, and has forgotten, or is about to
    /// forget, what it wants to see anew.
    pub(crate) fn accept_version(&self) -> Result<(), FileError> {
        if !self.version.is_told {
            return Ok(());
        }
        let known = self.version_of_store()?;
        *self.version.state.lock() = State { known, now: None };
        self.version.is_changed.store(false, Ordering::Release);
        Ok(())
    }

    #[cold]
    fn changed_in_place(&self) -> FileError {
        let state = self.version.state.lock();
        let known = state.known.unwrap_or(Version::new(0));
        FileError::ChangedInPlace {
            file: self.id.name.clone(),
            was: known,
            now: state.now.unwrap_or(known),
        }
    }
}
