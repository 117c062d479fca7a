//! Lanes of jobs, and the threads that run them.
//!
//! **Fairness.** A job of a lane may start while fewer jobs of the lane run than its limit allows.
//! Jobs start in the order of the queue. A job that wants the lane to itself ([`Turn::Alone`])
//! waits until no other job of the lane runs.
//!
//! A lane with a job that may start is in the list `ready`, once. When one of its jobs is taken,
//! the lane moves to the list's end, so lanes take turns.
//!
//! There are at most [`MOST_THREADS`] threads, with one exception: a lane with no running job gets
//! one more thread, even if all the others are blocked. Even if a hundred stores hang, one more
//! store can still be read.
//!
//! **Bounds.** A call that hangs keeps its thread and its place in its lane. A waker that hangs
//! also keeps its thread; a lane has at most [`MOST_WAKING`] jobs whose wakers are still being
//! called. A payer has a maximum number of threads (`payers`), however many lanes it has. Its
//! further jobs wait for its own earlier ones.
//!
//! **If the system refuses a thread**, and there are others, the job waits for the first of them
//! that becomes free. The service thread also calls [`Workers::look_after`] once a second, which
//! tries again to start a thread. If there are no other threads, the service thread runs the job.

use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::time::Duration;

use super::after::{call, collect};
use super::payers::Payers;
use crate::sync::panics::Panics;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, WaitEnd};
use crate::sys::process::Process;

/// The maximum number of threads of one memory, not counting those that were started for a lane
/// with no running job.
const MOST_THREADS: usize = if cfg!(loom) { 1 } else { 64 };

/// The maximum number of jobs of a lane that are over while their wakers are still being called.
const MOST_WAKING: u32 = 16;

/// How long a thread waits for more work before it ends.
const LINGER: Duration = Duration::from_secs(1);

/// The smallest capacity of a queue.
const LEAST_QUEUE: usize = 16;

/// A job, which runs at most once. A job that is dropped while it is in a queue does not run.
pub(crate) trait Job: Send {
    /// Runs the job. If the job panics in one of the memory's threads, the panic goes no further
    /// than the panic hook. From [`Workers::run_one`] and [`Lane::run_one`] the panic goes on to
    /// the caller.
    fn run(self: Box<Self>);

    /// Returns whether the job is still wanted. An unwanted job may be dropped to make room in a
    /// queue.
    fn is_wanted(&self) -> bool {
        true
    }
}

impl<F: FnOnce() + Send> Job for F {
    fn run(self: Box<Self>) {
        self();
    }
}

/// Which other jobs of its lane may run at the same time as a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// All other shared jobs.
    Shared,
    /// No other job: it runs after all jobs queued before it, and before all queued after it.
    Alone,
}

/// Whether the memory's threads run a job that was pushed.
#[must_use = "if no thread runs the job, the caller has to arrange it"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// A thread of the memory runs the job.
    ByThreads,
    /// Callers of [`Workers::run_one`] run the job: there are no threads, or none could be started.
    ByCallers,
}

/// The threads of one memory, and its lanes. Clones share them.
// A type around the `Arc` is needed, because under loom no method can take `self` as an `Arc`.
#[derive(Clone)]
pub(crate) struct Workers(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Notified once for each idle thread that is claimed.
    work: Condvar,
    /// Notified when a job is over, and again when the wakers that it has left were called.
    ended: Condvar,
    /// The process that has the threads.
    maker: Process,
}

#[derive(Default)]
struct State {
    /// Whether threads may be started.
    has_threads: bool,
    /// The lanes by key. A key is never reused, because a job may outlive its lane.
    lanes: BTreeMap<u64, LaneState>,
    next_key: u64,
    /// The number of jobs that run, including those whose lane is gone.
    running: usize,
    /// The lanes that have a job that may start, each once. A lane whose payer has no room is held
    /// back instead, at the latest when its turn comes.
    ready: VecDeque<u64>,
    payers: Payers,
    threads: usize,
    /// The number of threads that have not looked for their first job yet.
    starting: usize,
    /// The number of threads that wait for work and are not claimed.
    idle: usize,
    /// The number of waiting threads that were notified and have not woken yet.
    claimed: usize,
}

struct LaneState {
    payer: usize,
    limit: u32,
    running: u32,
    /// The number of jobs that are over except for their wakers.
    waking: u32,
    /// Whether a job that wants the lane to itself is running.
    is_alone: bool,
    /// Whether the lane is in the list `ready`, or held back because its payer has no room.
    is_ready: bool,
    queue: VecDeque<(Turn, Box<dyn Job>)>,
}

impl LaneState {
    fn may_start(&self) -> bool {
        match self.queue.front() {
            _ if self.waking >= MOST_WAKING => false,
            Some((Turn::Shared, _)) => self.running < self.limit && !self.is_alone,
            Some((Turn::Alone, _)) => self.running == 0,
            None => false,
        }
    }
}

/// A queue of jobs. Dropping it drops the jobs that have not begun.
pub(crate) struct Lane {
    workers: Workers,
    key: u64,
}

/// A job that was taken out of its lane to be run.
struct Started {
    lane: u64,
    payer: usize,
    job: Box<dyn Job>,
}

impl State {
    fn lane(&mut self, key: u64) -> Option<&mut LaneState> {
        self.lanes.get_mut(&key)
    }

    /// Puts the lane in the list `ready`, if one of its jobs may start and it is not in the list.
    /// If its payer has no room, holds it back instead.
    fn list(&mut self, key: u64) {
        if let Some(lane) = self.lanes.get_mut(&key)
            && !lane.is_ready
            && lane.may_start()
        {
            lane.is_ready = true;
            match self.payers.has_room(lane.payer) {
                true => self.ready.push_back(key),
                false => self.payers.hold_back(lane.payer, key),
            }
        }
    }

    /// Takes the first job of the lane, if it may start, and counts it as running.
    fn start(&mut self, key: u64) -> Option<Started> {
        let lane = self.lane(key)?;
        if !lane.may_start() {
            return None;
        }
        let (turn, job) = lane.queue.pop_front()?;
        lane.running += 1;
        lane.is_alone = turn == Turn::Alone;
        let payer = lane.payer;
        self.running += 1;
        self.payers.begin(payer);
        Some(Started {
            lane: key,
            payer,
            job,
        })
    }

    /// Takes the first job of the lane that has waited longest for its turn. Holds back lanes whose
    /// payer has no room.
    fn next(&mut self) -> Option<Started> {
        while let Some(key) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(&key) else {
                continue;
            };
            if !self.payers.has_room(lane.payer) {
                self.payers.hold_back(lane.payer, key);
                continue;
            }
            lane.is_ready = false;
            if let Some(started) = self.start(key) {
                self.list(key);
                return Some(started);
            }
        }
        None
    }

    /// Notes that a job of the lane is over. `leaves_wakers` says whether wakers remain to be
    /// called.
    fn end(&mut self, key: u64, payer: usize, leaves_wakers: bool) {
        self.running -= 1;
        if let Some(lane) = self.lane(key) {
            lane.running -= 1;
            lane.is_alone = false;
            lane.waking += u32::from(leaves_wakers);
        }
        self.list(key);
        if !leaves_wakers {
            self.end_of_payer(payer);
        }
    }

    /// Notes that the wakers of a job were called.
    fn end_waking(&mut self, key: u64, payer: usize) {
        if let Some(lane) = self.lane(key) {
            lane.waking -= 1;
        }
        self.list(key);
        self.end_of_payer(payer);
    }

    fn end_of_payer(&mut self, payer: usize) {
        let lanes = &self.lanes;
        if let Some(next) = self.payers.end(payer, |key| lanes.contains_key(&key)) {
            self.ready.push_back(next);
        }
    }

    /// Returns whether the caller must start a thread for a ready lane; if so, already counts that
    /// thread. If an idle thread waits for work, claims it instead and returns false.
    fn wants_thread(&mut self, work: &Condvar) -> bool {
        // Each thread that is starting or claimed takes one job, and asks for another thread if
        // more are left.
        if self.ready.len() <= self.starting + self.claimed {
            return false;
        }
        if self.idle > 0 {
            self.idle -= 1;
            self.claimed += 1;
            work.notify_one();
            return false;
        }
        let is_full = self.threads >= MOST_THREADS;
        let wants =
            self.has_threads && (!is_full || self.starting == 0 && self.move_idle_lane_up());
        self.threads += usize::from(wants);
        self.starting += usize::from(wants);
        wants
    }

    /// Moves a ready lane with no running job to the front. Returns whether there is one.
    fn move_idle_lane_up(&mut self) -> bool {
        let lanes = &self.lanes;
        let is_idle = |key: &u64| lanes.get(key).is_some_and(|lane| lane.running == 0);
        let Some(at) = self.ready.iter().position(is_idle) else {
            return false;
        };
        let key = self.ready.remove(at);
        self.ready.extend(key);
        self.ready.rotate_right(1);
        true
    }
}

impl Workers {
    /// Creates a set of workers without lanes. It has no threads until [`Workers::begin_threads`].
    pub(crate) fn new() -> Workers {
        Workers(Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
            maker: Process::current(),
        }))
    }

    /// Lets threads run the jobs from now on.
    pub(crate) fn begin_threads(&self) {
        self.0.state.lock().has_threads = true;
    }

    /// Returns whether threads run the jobs.
    pub(crate) fn has_threads(&self) -> bool {
        self.0.state.lock().has_threads
    }

    /// Creates a lane for which `payer` pays. At most `limit` of its jobs run at a time; 0 counts
    /// as 1.
    pub(crate) fn lane(&self, payer: usize, limit: u32) -> Lane {
        if !self.0.maker.is_current() {
            // Nothing is ever pushed to this lane; see `Lane::push`.
            return Lane {
                workers: self.clone(),
                key: u64::MAX,
            };
        }
        let new = LaneState {
            payer,
            limit: limit.max(1),
            running: 0,
            waking: 0,
            is_alone: false,
            is_ready: false,
            queue: VecDeque::new(),
        };
        let mut state = self.0.state.lock();
        let key = state.next_key;
        state.next_key += 1;
        state.lanes.insert(key, new);
        drop(state);
        Lane {
            workers: self.clone(),
            key,
        }
    }

    /// Returns the number of jobs in queues.
    pub(crate) fn queued(&self) -> usize {
        let state = self.0.state.lock();
        state.lanes.values().map(|lane| lane.queue.len()).sum()
    }

    /// Starts a thread that could not be started before, if it is still wanted. Returns who runs
    /// the ready jobs.
    pub(crate) fn look_after(&self) -> Served {
        self.serve(self.0.state.lock())
    }

    /// Returns whether a lane is in the list `ready`.
    pub(crate) fn is_ready(&self) -> bool {
        !self.0.state.lock().ready.is_empty()
    }

    /// Waits until no job runs or is queued. In a memory without threads, returns immediately: the
    /// caller runs queued jobs itself.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn wait_quiet(&self) {
        let mut state = self.0.state.lock();
        while state.has_threads
            && (state.running > 0 || state.lanes.values().any(|lane| !lane.queue.is_empty()))
        {
            state = self.0.ended.wait(state);
        }
    }

    /// Runs the next job of any lane in this thread. Returns whether there was one that may start.
    /// A panic of the job, or of a waker that it has left, propagates once all these wakers were
    /// called.
    pub(crate) fn run_one(&self) -> bool {
        let started = self.0.state.lock().next();
        let runs = started.is_some();
        if let Some(started) = started {
            self.run_here(started).go_on();
        }
        runs
    }

    /// Runs a job that was taken from a lane. Then gives its share of the lane back, and calls the
    /// wakers that the job has left. Returns the first panic of a waker or, if none panicked, that
    /// of the job.
    fn run_here(&self, started: Started) -> Panics {
        let Started { lane, payer, job } = started;
        let mut panics = Panics::default();
        let (wakers, result) = collect(|| job.run());
        let leaves_wakers = !wakers.is_empty();
        self.note(|state| state.end(lane, payer, leaves_wakers));
        call(wakers, &mut panics);
        if leaves_wakers {
            self.note(|state| state.end_waking(lane, payer));
        }
        panics.catch(|| result.unwrap_or_else(|panic| resume_unwind(panic)));
        panics
    }

    /// Applies `change` after a job has made progress, and starts a thread if one is now wanted.
    fn note(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.state.lock();
        change(&mut state);
        self.0.ended.notify_all();
        let _ = self.serve(state);
    }

    /// Starts a thread if one is wanted. Returns who runs the ready jobs.
    fn serve(&self, mut state: MutexGuard<'_, State>) -> Served {
        let starts = state.wants_thread(&self.0.work);
        let has_some = state.has_threads && (state.threads > 0 || state.ready.is_empty());
        drop(state);
        if !starts {
            return match has_some {
                true => Served::ByThreads,
                false => Served::ByCallers,
            };
        }
        let workers = self.clone();
        let thread = crate::sync::thread::Builder::new().name("innerspace-io".to_owned());
        if thread.spawn(move || workers.work()).is_ok() {
            return Served::ByThreads;
        }
        let mut state = self.0.state.lock();
        state.threads -= 1;
        state.starting -= 1;
        match state.threads {
            0 => Served::ByCallers,
            _ => Served::ByThreads,
        }
    }

    /// Runs jobs until none comes for a while; the main loop of a thread.
    fn work(&self) {
        let mut state = self.0.state.lock();
        state.starting -= 1;
        loop {
            if let Some(started) = state.next() {
                // Starts another thread if other lanes are ready.
                let _ = self.serve(state);
                // The panic hook has reported the panic, and no caller waits for the job.
                self.run_here(started).forget();
                state = self.0.state.lock();
                continue;
            }
            #[cfg(any(loom, shuttle))]
            if !state.has_threads {
                state.threads -= 1;
                self.0.ended.notify_all();
                return;
            }
            state.idle += 1;
            let end;
            (state, end) = self.0.work.wait_timeout(state, LINGER);
            if state.claimed > 0 {
                // This thread takes the claim even if its wait timed out, because the notification
                // may have been meant for it.
                state.claimed -= 1;
                continue;
            }
            state.idle -= 1;
            if end == WaitEnd::TimedOut && state.ready.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl Lane {
    /// Queues a job, and returns who runs it. Unwanted jobs of the lane may be dropped to make
    /// room. In a child of fork(2) the job is dropped.
    pub(crate) fn push(&self, turn: Turn, job: Box<dyn Job>) -> Served {
        // A child of fork(2) runs no jobs. Its callers are refused before they come here.
        if !self.workers.0.maker.is_current() {
            return Served::ByCallers;
        }
        let mut unwanted = Vec::new();
        let mut state = self.workers.0.state.lock();
        let lane = state
            .lane(self.key)
            .expect("a lane lives as long as its handle");
        if lane.queue.len() == lane.queue.capacity() {
            // Drops unwanted jobs, so that they never take more than a few times the room of the
            // others.
            let all = std::mem::take(&mut lane.queue);
            for (turn, job) in all {
                match job.is_wanted() {
                    true => lane.queue.push_back((turn, job)),
                    false => unwanted.push(job),
                }
            }
            let more = lane.queue.len().max(LEAST_QUEUE);
            lane.queue.reserve(more);
        }
        lane.queue.push_back((turn, job));
        state.list(self.key);
        let served = self.workers.serve(state);
        drop(unwanted);
        served
    }

    /// Runs the lane's next job in this thread. Returns whether there was one that may start.
    /// Panics as [`Workers::run_one`] does.
    pub(crate) fn run_one(&self) -> bool {
        let started = self.workers.0.state.lock().start(self.key);
        let runs = started.is_some();
        if let Some(started) = started {
            self.workers.run_here(started).go_on();
        }
        runs
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // In a child of fork(2) the lock may have been held by a thread that exists only in the
        // parent.
        if !self.workers.0.maker.is_current() {
            return;
        }
        let mut state = self.workers.0.state.lock();
        let left = state.lanes.remove(&self.key);
        drop(state);
        // Dropped with the lock released, because the jobs may contain foreign code.
        drop(left);
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Workers {
        /// Returns the number of threads.
        #[cfg(not(loom))]
        pub(crate) fn threads(&self) -> usize {
            self.0.state.lock().threads
        }

        /// Ends the threads once they find nothing to do, and waits for that. In a model no time
        /// passes, so the threads cannot end by themselves after lingering.
        #[cfg(any(loom, shuttle))]
        pub(crate) fn end_threads(&self) {
            let mut state = self.0.state.lock();
            state.has_threads = false;
            self.0.work.notify_all();
            while state.threads > 0 {
                state = self.0.ended.wait(state);
            }
        }
    }

    impl Lane {
        /// Queues a job as if no thread could be started for it.
        #[cfg(not(loom))]
        pub(crate) fn push_without_thread(&self, job: Box<dyn Job>) {
            let mut state = self.workers.0.state.lock();
            let lane = state
                .lane(self.key)
                .expect("a lane lives as long as its handle");
            lane.queue.push_back((Turn::Shared, job));
            state.list(self.key);
        }

        /// Returns the number of jobs in the queue.
        #[cfg(not(loom))]
        pub(crate) fn queued(&self) -> usize {
            let mut state = self.workers.0.state.lock();
            state.lane(self.key).map_or(0, |lane| lane.queue.len())
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
