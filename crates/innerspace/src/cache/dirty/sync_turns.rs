//! The order of a file's syncs, and the changes that they have covered.
//!
//! Syncs of a file run one at a time: of two concurrent ones, one could consume the other's error.
//! A caller that arrives while one is running waits for its end. The next sync then serves all
//! callers that have waited.

use std::time::Duration;

use crate::store::SyncWhat;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, OnDrop, WaitEnd};

/// The syncs of one file. Under an innermost lock, which is not held while the store syncs.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    state: Mutex<State>,
    ended: Condvar,
    /// The number of ended calls that may have changed the store.
    changes: AtomicU64,
    /// Set by a thread that may not call the store, but could evict more blocks after a sync.
    pub(crate) wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// The number of syncs begun, which is also the number of the latest sync.
    begun: u64,
    /// The last sync that made data durable, and the last one that made everything durable, indexed
    /// by [`SyncWhat`]. A sync of [`SyncWhat::All`] is entered in both places.
    good: [Good; 2],
    /// The number of threads that wait for the running sync to end.
    waiting: u32,
}

/// A sync that succeeded.
#[derive(Clone, Copy, Debug, Default)]
struct Good {
    number: u64,
    /// How many changes of the store it has covered.
    covered: u64,
}

/// A sync under way. Dropping this ends the sync, as a failure unless `good` is set.
pub(crate) struct Running<'s> {
    syncs: &'s Syncs,
    number: u64,
    /// If the sync has succeeded: its kind, and the number of changes of the store before it.
    pub(crate) good: Option<(SyncWhat, u64)>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.syncs.state.lock();
        state.running = false;
        if let Some((what, covered)) = self.good {
            let number = self.number;
            state.good[..=what as usize].fill(Good { number, covered });
        }
        drop(state);
        self.syncs.ended.notify_all();
    }
}

impl Syncs {
    /// Begins a sync when none is running. Returns `None` if a sync that covers `what` and began
    /// after this call has succeeded meanwhile, or if the running sync takes longer than
    /// `patience`.
    pub(crate) fn begin(&self, what: SyncWhat, patience: Option<Duration>) -> Option<Running<'_>> {
        let mut state = self.state.lock();
        let arrived = state.begun;
        while state.running {
            state.waiting += 1;
            let end;
            (state, end) = match patience {
                None => (self.ended.wait(state), WaitEnd::Woken),
                Some(patience) => self.ended.wait_timeout(state, patience),
            };
            state.waiting -= 1;
            if end == WaitEnd::TimedOut {
                return None;
            }
        }
        if state.good[what as usize].number > arrived {
            return None;
        }
        state.running = true;
        state.begun += 1;
        Some(Running {
            syncs: self,
            number: state.begun,
            good: None,
        })
    }

    /// Begins a call that may change the store. Dropping the result counts the change, even after a
    /// panic, before any other thread learns that the call is over.
    pub(crate) fn changing(&self) -> OnDrop<impl FnMut()> {
        // Release pairs with the Acquire in `changes`: a sync that counts the change also covers
        // it.
        OnDrop(|| {
            self.changes.fetch_add(1, Ordering::Release);
        })
    }

    /// Returns the number of changes so far. One is added for changes by a previous user of the
    /// store, which may not have been synced.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire) + 1
    }

    /// Whether a successful sync that covers `what` began after the last counted change of the
    /// store.
    pub(crate) fn has_covered_all(&self, what: SyncWhat) -> bool {
        let changes = self.changes();
        self.state.lock().good[what as usize].covered >= changes
    }
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl Syncs {
        /// Returns how many threads wait for the running sync to end.
        pub(crate) fn waiting(&self) -> u32 {
            self.state.lock().waiting
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_sync_of_data_does_not_do_for_all() {
        let syncs = Syncs::default();
        let run = |what| {
            let mut running = syncs.begin(what, None).expect("nobody else syncs");
            running.good = Some((what, syncs.changes()));
        };
        let done = |what, arrived| syncs.state.lock().good[what as usize].number > arrived;
        run(SyncWhat::All);
        let arrived = syncs.state.lock().begun;
        assert!(!done(SyncWhat::Data, arrived), "it began before");
        run(SyncWhat::Data);
        assert!(done(SyncWhat::Data, arrived));
        assert!(!done(SyncWhat::All, arrived));
        assert!(syncs.has_covered_all(SyncWhat::All), "nothing has changed");
        drop(syncs.changing());
        run(SyncWhat::Data);
        assert!(syncs.has_covered_all(SyncWhat::Data));
        assert!(!syncs.has_covered_all(SyncWhat::All));
        run(SyncWhat::All);
        assert!(done(SyncWhat::All, arrived));
        assert!(syncs.has_covered_all(SyncWhat::All));
    }
}
