//! Calls to foreign code, deferred by threads that could not make them at that point.
//!
//! The last reference to a file may be dropped at an awkward point: below reclaim, with a block
//! locked, or in a call to the file's own store. Closing the file there would wait for something
//! that this very thread holds. A waker or a hook may become due at such a point, too.
//!
//! **The threads that make the calls.** If a memory has threads, each payer has a lane for its
//! calls. A call that hangs then occupies one of its payer's [`AT_A_TIME`] places, and no other
//! payer's thread. If a memory has no threads, the calls are queued until some thread makes them
//! with no lock held and outside every store call.
//!
//! **The end of a memory.** The end waits for the calls ([`Deferred::wait`]), but only as long as
//! some call ends or makes progress from time to time.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::after::is_in_job;
use super::keyed::Lanes;
use super::lanes::{Served, Turn, Workers};
use crate::sync::{Arc, Condvar, Mutex, OnDrop};

/// The maximum number of calls of one payer that run at a time.
const AT_A_TIME: u32 = 4;

crate::sync::thread_local! {
    /// Whether this thread is making a call from a queue.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

type Call = Box<dyn FnOnce() + Send>;

/// The deferred calls of one memory.
pub(crate) struct Deferred {
    lanes: Lanes,
    left: Arc<Left>,
}

/// The calls that are not over. The mutex is an innermost lock: nothing is called or dropped under
/// it.
#[derive(Default)]
struct Left {
    state: Mutex<State>,
    /// Notified when a call is over.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// The calls that no thread of the memory makes, oldest first, each with the number of the file
    /// that it concerns, if any.
    queue: VecDeque<(Option<u32>, Open, Call)>,
    /// The number of calls deferred so far, which is also the number of the next call.
    begun: u64,
    /// The numbers of the calls that are not over, including those in the queue.
    open: BTreeSet<u64>,
}

/// Marks a call as not over until this is dropped, which also happens if the call panics.
struct Open {
    left: Arc<Left>,
    number: u64,
}

impl Open {
    fn begin(left: &Arc<Left>) -> Open {
        let mut state = left.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.open.insert(number);
        Open {
            left: left.clone(),
            number,
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.left.state.lock().open.remove(&self.number);
        self.left.ended.notify_all();
    }
}

impl Deferred {
    pub(crate) fn new(workers: &Workers) -> Deferred {
        Deferred {
            lanes: Lanes::new(workers),
            left: Arc::default(),
        }
    }

    /// Hands a call to the memory's threads, on behalf of `payer`. Never waits.
    pub(crate) fn push(&self, payer: usize, call: Call) -> Served {
        let open = Open::begin(&self.left);
        let lane = self.lanes.get(payer, payer, AT_A_TIME);
        let kept = lane.clone();
        let job = move || {
            let _kept = (open, kept);
            call();
        };
        lane.push(Turn::Shared, Box::new(job))
    }

    /// Queues a call, which the caller of [`Deferred::take`] will make. If the call concerns a
    /// file, `of` is the file's number. Never waits.
    pub(crate) fn queue(&self, of: Option<u32>, call: Call) {
        let open = Open::begin(&self.left);
        self.left.state.lock().queue.push_back((of, open, call));
    }

    pub(crate) fn is_queue_empty(&self) -> bool {
        self.left.state.lock().queue.is_empty()
    }

    /// Removes and returns the oldest call in the queue or, if `of` is the number of a file, the
    /// oldest call that concerns it.
    pub(crate) fn take(&self, of: Option<u32>) -> Option<impl FnOnce() + use<>> {
        let mut state = self.left.state.lock();
        let is_wanted = |about: Option<u32>| of.is_none() || about == of;
        let at = (state.queue.iter()).position(|(about, ..)| is_wanted(*about))?;
        let (_, open, call) = state.queue.remove(at)?;
        Some(move || {
            let _open = open;
            let before = RUNNING.with(|running| running.replace(true));
            let _running = OnDrop(|| RUNNING.with(|running| running.set(before)));
            call();
        })
    }

    /// Returns whether this thread is making a call that was in a queue.
    pub(crate) fn is_running() -> bool {
        RUNNING.with(Cell::get)
    }

    /// Waits until all calls that are deferred now are over. Gives up once, for as long as
    /// `patience`, none of them has ended and `progress` has not changed. Does not wait in a job,
    /// which may itself be such a call.
    pub(crate) fn wait(&self, patience: Duration, progress: impl Fn() -> u64) {
        if is_in_job() {
            return;
        }
        let mut state = self.left.state.lock();
        let through = state.begun;
        let mut before = None;
        let mut until = Instant::now();
        loop {
            let now = (state.open.range(..through).count(), progress());
            if before != Some(now) {
                before = Some(now);
                until = Instant::now() + patience;
            }
            let left = until.saturating_duration_since(Instant::now());
            if now.0 == 0 || left.is_zero() {
                return;
            }
            (state, _) = self.left.ended.wait_timeout(state, left);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl Deferred {
        /// Returns whether a thread waits for the calls to end.
        pub(crate) fn is_waited_for(&self) -> bool {
            self.left.ended.is_waited_on()
        }
    }
}
