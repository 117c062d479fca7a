//! Whether another process changed the store: see [`Store::version`](crate::store::Store::version).
//!
//! **When the store is asked for its version.** When the file is opened, at the first fill in each
//! tick of the memory's clock, at the beginning of each sync of a writable file, and by
//! `invalidate`. So a scan makes one such call per tick.
//!
//! **What follows from a change.** Once a change is known, nothing more is read from the store
//! until the caller confirms, by `invalidate`, that it knows of the change too: cached blocks have
//! the old contents, which must not be mixed with the new ones. The change is reported to each
//! handle once, at its next sync. A change after the first fill of a tick is found at the first
//! fill of a later tick. Until then, blocks with new contents may be cached beside blocks with old
//! contents. If the store's version does not reflect a change, the cache does not notice it either.

use crate::store::Version;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The version of one file's store, as far as it is known.
pub(crate) struct StoreVersion {
    /// Whether the store reports versions.
    is_told: bool,
    /// One more than the number of the tick in which the store was last asked for its version.
    asked_at: AtomicU64,
    /// Whether the store is known to have been changed. Set and cleared only with `state` locked.
    is_changed: AtomicBool,
    state: Mutex<State>,
}

/// Known versions. Under an innermost lock, which is not held while the store is called.
struct State {
    /// The version of the cached contents.
    known: Option<Version>,
    /// The first version other than `known` that the store has reported; `None` if it has reported
    /// none. A store that no longer reports versions also counts as changed.
    now: Option<Version>,
}

impl StoreVersion {
    /// Creates the state for a store that reported `known` when it was opened, in the tick `tick`.
    pub(crate) fn new(known: Option<Version>, tick: u64) -> StoreVersion {
        StoreVersion {
            is_told: known.is_some(),
            asked_at: AtomicU64::new(tick + 1),
            is_changed: AtomicBool::new(false),
            state: Mutex::new(State { known, now: None }),
        }
    }

    /// Whether nothing may be read ahead in the tick `tick`, because the store was changed, or has
    /// to be asked for its version first.
    pub(crate) fn stops_hints(&self, tick: u64) -> bool {
        self.is_due(tick) || self.is_changed.load(Ordering::Relaxed)
    }

    /// Whether the store reports versions.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Whether the store has to be asked for its version before more is read in the tick `tick`.
    fn is_due(&self, tick: u64) -> bool {
        self.is_told && self.asked_at.load(Ordering::Relaxed) != tick + 1
    }

    /// Whether the caller must ask the store for its version. True for the first caller in the tick
    /// `tick`, if the store reports versions.
    pub(crate) fn begins_to_ask(&self, tick: u64) -> bool {
        // Relaxed: of two threads, one asks the store. The other may read meanwhile, as if it had
        // read before the store was asked.
        self.is_due(tick) && self.asked_at.swap(tick + 1, Ordering::Relaxed) != tick + 1
    }

    /// Whether the store is known to have been changed.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed.load(Ordering::Acquire)
    }

    /// Notes the version that the store reports now. Returns whether this is the first sign of a
    /// change.
    pub(crate) fn note(&self, now: Option<Version>) -> bool {
        let mut state = self.state.lock();
        let differs = now != state.known;
        // The first version that is reported after a change is kept for the error. An earlier query
        // may have noticed the change because the store reported no version.
        if differs && state.now.is_none() {
            state.now = now;
        }
        let is_news = differs && !self.is_changed();
        if is_news {
            self.is_changed.store(true, Ordering::Release);
        }
        is_news
    }

    /// Sets the version of the blocks that are cached from now on. The store no longer counts as
    /// changed.
    pub(crate) fn accept(&self, known: Option<Version>) {
        let mut state = self.state.lock();
        *state = State { known, now: None };
        self.is_changed.store(false, Ordering::Release);
    }

    /// Returns the version of the cached contents, and the first different one that the store has
    /// reported. If it has reported none, both are the same. A store that reports no versions has
    /// version 0.
    pub(crate) fn known_and_now(&self) -> (Version, Version) {
        let state = self.state.lock();
        let known = state.known.unwrap_or(Version::new(0));
        (known, state.now.unwrap_or(known))
    }
}
