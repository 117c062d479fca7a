//! Which threads are freeing memory now, and a wait for them.

use std::time::{Duration, Instant};

use crate::sync::{Condvar, Mutex, WaitEnd};

/// The threads that are freeing memory or aging pages now. A request that finds nothing to free
/// waits for them before it fails, because the frames that they have isolated are on no list.
#[derive(Default)]
pub(crate) struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Tickets of the threads that may be about to free something.
    working: Vec<u64>,
    /// Tickets given out.
    started: u64,
    /// Tickets given back.
    finished: u64,
}

/// Counts the calling thread as working until this is dropped.
#[must_use = "dropping it says that the work is done"]
pub(crate) struct Working<'a> {
    progress: &'a Progress,
    ticket: u64,
}

impl Progress {
    pub(crate) fn begin(&self) -> Working<'_> {
        let mut state = self.state.lock();
        let ticket = state.started;
        state.started += 1;
        state.working.push(ticket);
        Working {
            progress: self,
            ticket,
        }
    }

    /// Returns how many threads have finished so far.
    pub(super) fn finished(&self) -> u64 {
        self.state.lock().finished
    }

    /// Waits until all threads that are working now have finished, at most for `timeout`. Threads
    /// that begin later are not waited for, and the caller is not working. Returns false if no
    /// thread is working and none has finished since the count was `finished`.
    pub(super) fn wait_for_others(&self, finished: u64, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        let now = state.started;
        let others = state.finished != finished || !state.working.is_empty();
        while state.working.iter().any(|ticket| *ticket < now) {
            let left = deadline.saturating_duration_since(Instant::now());
            let (woken, end) = self.changed.wait_timeout(state, left);
            state = woken;
            if end == WaitEnd::TimedOut {
                break;
            }
        }
        others
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.progress.state.lock();
        state.working.retain(|ticket| *ticket != self.ticket);
        state.finished += 1;
        self.progress.changed.notify_all();
    }
}
