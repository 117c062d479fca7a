//! Calls of foreign code, left by threads that could not make them where they were.
//!
//! The last reference to a file may be dropped in an odd place: below reclaim, with a block locked,
//! in a call of the file's own store. To close the file there would wait for what that very thread
//! holds. A waker or a hook may be due in such a place, too.
//!
//! **Who makes the calls.** Where a memory has threads, each payer has a lane for them: a call that
//! hangs holds one of its payer's [`AT_A_TIME`] places and no thread of anybody else's. Otherwise
//! they wait in a queue for a thread that makes them with no lock held and no store being called.
//!
//! **The end of a memory** waits for them ([`Deferred::wait`]), as long as one of them ends, or
//! makes progress, now and then.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::after::is_in_job;
use super::keyed::{About, Lanes};
use super::lanes::{Job, Lane, Served, Turn, Workers};
use crate::sync::{Arc, Condvar, Mutex};

/// Calls of one payer that are made at a time.
const AT_A_TIME: u32 = 4;

crate::sync::thread_local! {
    /// Whether this thread makes a call of a queue.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

type Call = Box<dyn FnOnce() + Send>;

/// See the module.
pub(crate) struct Deferred {
    lanes: Lanes,
    left: Arc<Left>,
}

/// The calls that are left. A leaf lock; nothing is called or dropped under it.
#[derive(Default)]
struct Left {
    state: Mutex<State>,
    /// Notified when a call is over.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Calls that no thread of the memory makes, oldest first, with the file that each concerns.
    queue: VecDeque<(Option<u32>, Open, Call)>,
    /// Calls so far: their numbers.
    begun: u64,
    /// Those that are not over, the queue's included.
    open: BTreeSet<u64>,
    /// Threads that wait for the end.
    waiting: u32,
}

/// A call that is not over until this is dropped, also if it panics.
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

/// Restores what [`RUNNING`] was.
struct Running(bool);

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.with(|running| running.set(self.0));
    }
}

/// A call in its payer's lane, which it keeps.
struct InLane {
    call: Call,
    _open: Open,
    _lane: Arc<Lane>,
}

impl Job for InLane {
    fn run(self: Box<Self>) {
        let InLane { call, _open, _lane } = *self;
        call();
    }
}

impl Deferred {
    pub(crate) fn new(workers: &Workers) -> Deferred {
        Deferred {
            lanes: Lanes::new(workers),
            left: Arc::default(),
        }
    }

    /// Leaves a call to the threads of the memory, on behalf of `payer`. Never waits.
    pub(crate) fn push(&self, payer: usize, call: Call) -> Served {
        let open = Open::begin(&self.left);
        let lane = self.lanes.get(About::Payer(payer), payer, AT_A_TIME);
        let job = InLane {
            call,
            _open: open,
            _lane: lane.clone(),
        };
        lane.push(Turn::Shared, Box::new(job))
    }

    /// Leaves a call, which concerns the file with the number `of` if any, to a caller of
    /// [`Deferred::take`]. Never waits.
    pub(crate) fn queue(&self, of: Option<u32>, call: Call) {
        let open = Open::begin(&self.left);
        self.left.state.lock().queue.push_back((of, open, call));
    }

    /// Whether no call is in the queue.
    pub(crate) fn is_queue_empty(&self) -> bool {
        self.left.state.lock().queue.is_empty()
    }

    /// The oldest call in the queue; of those that concern the file `of`, if one is named.
    pub(crate) fn take(&self, of: Option<u32>) -> Option<impl FnOnce() + use<>> {
        let mut state = self.left.state.lock();
        let is_wanted = |about: Option<u32>| of.is_none() || about == of;
        let at = (state.queue.iter()).position(|(about, ..)| is_wanted(*about))?;
        let (_, open, call) = state.queue.remove(at)?;
        Some(move || {
            let _open = open;
            let _running = Running(RUNNING.with(|running| running.replace(true)));
            call();
        })
    }

    /// Whether this thread makes a call that was in a queue.
    pub(crate) fn is_running() -> bool {
        RUNNING.with(Cell::get)
    }

    /// Waits until the calls that were left before are over, or until for so long none of them has
    /// ended and `progress` has not changed. Does not wait in a job, which may be such a call.
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
            state.waiting += 1;
            (state, _) = self.left.ended.wait_timeout(state, left);
            state.waiting -= 1;
        }
    }

    /// Whether a thread waits for the end of the calls.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.left.state.lock().waiting > 0
    }
}
