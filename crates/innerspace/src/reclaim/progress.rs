//! Work under way, and waits for its end.

use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, MutexGuard, WaitEnd};

/// Pieces of work of one kind that are under way now, in any thread.
#[derive(Default)]
pub(crate) struct Progress {
    state: Mutex<State>,
    /// Notified when the count of ends rises.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Tickets of the pieces that are under way.
    working: Vec<u64>,
    /// The number of tickets issued so far.
    started: u64,
    /// The count of ends: pieces of work that have ended, plus the calls to [`Progress::note_idle`]
    /// while none was under way.
    finished: u64,
}

/// A piece of work, which is under way until this is dropped.
#[must_use = "dropping it says that the work is done"]
pub(crate) struct Working<'a> {
    progress: &'a Progress,
    ticket: u64,
}

impl Progress {
    pub(crate) fn begin(&self) -> Working<'_> {
        Working {
            progress: self,
            ticket: self.enter(),
        }
    }

    /// Begins a piece of work that ends by [`Progress::leave`], and returns its ticket.
    pub(super) fn enter(&self) -> u64 {
        let mut state = self.state.lock();
        let ticket = state.started;
        state.started += 1;
        state.working.push(ticket);
        ticket
    }

    /// Ends the piece of work with this ticket.
    pub(super) fn leave(&self, ticket: u64) {
        let mut state = self.state.lock();
        state.working.retain(|other| *other != ticket);
        state.finished += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// If no work is under way, counts one more end, so that threads in [`Progress::wait_for_end`]
    /// return.
    pub(super) fn note_idle(&self) {
        let mut state = self.state.lock();
        if state.working.is_empty() {
            state.finished += 1;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Returns the count of ends so far, to be passed to the waits below.
    pub(super) fn finished(&self) -> u64 {
        self.state.lock().finished
    }

    /// Waits, at most for `timeout`, until the count of ends is no longer `finished`.
    pub(super) fn wait_for_end(&self, finished: u64, timeout: Duration) {
        let is_over = |state: &State| state.finished != finished;
        self.wait(self.state.lock(), Some(timeout), is_over);
    }

    /// Waits, at most for `timeout`, until all work that is under way now has ended. Does not wait
    /// for work that begins later. The caller has no work under way itself. Returns false if there
    /// was nothing to wait for, and nothing has ended since the count was `finished`.
    pub(super) fn wait_for_others(&self, finished: u64, timeout: Option<Duration>) -> bool {
        let state = self.state.lock();
        let now = state.started;
        let others = state.finished != finished || !state.working.is_empty();
        let is_over = |state: &State| state.working.iter().all(|ticket| *ticket >= now);
        self.wait(state, timeout, is_over);
        others
    }

    fn wait(
        &self,
        mut state: MutexGuard<'_, State>,
        timeout: Option<Duration>,
        is_over: impl Fn(&State) -> bool,
    ) {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut end = WaitEnd::Woken;
        while !is_over(&state) && end == WaitEnd::Woken {
            (state, end) = match deadline {
                None => (self.changed.wait(state), WaitEnd::Woken),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.changed.wait_timeout(state, left)
                }
            };
        }
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.progress.leave(self.ticket);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod for_tests {
    use super::*;

    impl Progress {
        /// Returns whether a thread is waiting for the end of work.
        pub(crate) fn is_waited_for(&self) -> bool {
            self.changed.is_waited_on()
        }
    }
}
