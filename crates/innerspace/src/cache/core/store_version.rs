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

    /// Whether the store tells versions.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Whether the store is to be asked before more is read from it in the tick `tick`.
    fn is_due(&self, tick: u64) -> bool {
        self.is_told && self.asked_at.load(Ordering::Relaxed) != tick + 1
    }

    /// Whether the caller is to ask the store, as the first in the tick `tick`.
    pub(crate) fn begins_to_ask(&self, tick: u64) -> bool {
        // Relaxed: one of two threads asks, and the other may read as if it had come before.
        self.is_due(tick) && self.asked_at.swap(tick + 1, Ordering::Relaxed) != tick + 1
    }

    /// Whether the store was changed.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed.load(Ordering::Acquire)
    }

    /// The store says that this is its version. Returns whether that is the first word of a change.
    pub(crate) fn note(&self, now: Option<Version>) -> bool {
        let mut state = self.state.lock();
        let is_news = state.now.is_none() && now != state.known;
        if is_news {
            state.now = now;
            self.is_changed.store(true, Ordering::Release);
        }
        is_news
    }

    /// What is cached from now on is of this version.
    pub(crate) fn accept(&self, known: Option<Version>) {
        *self.state.lock() = State { known, now: None };
        self.is_changed.store(false, Ordering::Release);
    }

    /// The version that is cached, and the one that the store has now.
    pub(crate) fn known_and_now(&self) -> (Version, Version) {
        let state = self.state.lock();
        let known = state.known.unwrap_or(Version::new(0));
        (known, state.now.unwrap_or(known))
    }
}
