//! The work that a service thread, or `tick()`, does for the files of a memory.

use crate::cache::service::Cache;
use crate::exec::{Served, reentry};
use crate::reclaim::{FlushRequest, Step, StoreScope};
use crate::sync::atomic::Ordering;
use crate::sync::panics::Panics;

/// Rounds of background writes one tick makes.
const TICK_FLUSHES: usize = 16;

impl Cache {
    /// Asks for a step that writes dirty blocks of groups that have too many. Cheap if it was asked
    /// for already, or was no use at this tick: the blocks are held back, or their store fails.
    #[inline]
    pub(crate) fn want_flush(&self) {
        let futile = self.flush_futile_at.load(Ordering::Relaxed) == self.pool.now() + 1;
        if !futile && !self.flush_wanted.load(Ordering::Relaxed) {
            self.flush_wanted.store(true, Ordering::Release);
            self.pool.kick();
        }
    }

    /// Makes each file of a group with too much dirty write a run, so that none waits for the
    /// others.
    fn run_flushes(&self) -> Step {
        if !self.flush_wanted.swap(false, Ordering::Acquire) {
            return Step::Idle;
        }
        let mut written = 0;
        let has_threads = self.workers.has_threads();
        for file in self.files() {
            if !file.has_too_much_dirty() || !file.may_call_unasked() {
                continue;
            }
            // A store that hangs does not keep other files from being written.
            match has_threads {
                true => file.flush_in_its_lane(FlushRequest::ANY),
                false => written += file.write_some(),
            }
        }
        if has_threads {
            return Step::Idle;
        }
        // In a call of a store, some files are skipped that can be written as soon as it ends.
        if written == 0 && StoreScope::is_any_open() {
            self.flush_wanted.store(true, Ordering::Release);
            self.pool.kick();
            return Step::Idle;
        }
        if written == 0 {
            self.note_futile_flush();
            return Step::Idle;
        }
        self.flush_wanted.store(true, Ordering::Release);
        Step::More
    }

    /// There was nothing that could be written at this tick.
    pub(crate) fn note_futile_flush(&self) {
        let tick = self.pool.now() + 1;
        self.flush_futile_at.store(tick, Ordering::Relaxed);
    }

    /// Asks for a step that syncs the files that want it.
    pub(crate) fn want_syncs(&self) {
        self.syncs_wanted.store(true, Ordering::Release);
        self.pool.kick();
    }

    /// Does a bounded piece of work for the files and for the pool below them. No section is open,
    /// no lock held. A panic does not keep the rest from being done.
    pub(crate) fn step(&self) -> Step {
        if self.is_foreign() {
            return Step::Idle;
        }
        let _here = self.serving();
        let mut panics = Panics::default();
        if self.unserved.swap(false, Ordering::Acquire) {
            panics.catch(|| self.run_jobs());
        }
        panics.catch(|| self.call_watchers());
        panics.catch(|| self.run_deferred());
        panics.catch(|| self.run_syncs());
        let (mut flushed, mut stepped) = (Step::Idle, Step::Idle);
        panics.catch(|| flushed = self.run_flushes());
        panics.catch(|| stepped = self.pool.background_step());
        panics.go_on();
        match (flushed, stepped) {
            (Step::Idle, Step::Idle) => Step::Idle,
            _ => Step::More,
        }
    }

    /// Does everything that is due at a tick of the clock, in the calling thread (P31). A panic
    /// does not keep the rest from being done.
    pub(crate) fn tick(&self) {
        if self.is_foreign() {
            return;
        }
        let _here = self.serving();
        let mut panics = Panics::default();
        self.flights.look_after();
        if self.is_served() && self.workers.look_after() == Served::ByCallers {
            self.leave_jobs_to_service();
        }
        self.serve_queued(&mut panics);
        panics.catch(|| self.run_syncs());
        panics.catch(|| self.flush_in_rounds());
        panics.catch(|| self.pool.tick());
        panics.catch(|| self.call_watchers());
        panics.catch(|| self.run_deferred());
        panics.go_on();
    }

    /// Takes the views and makes the calls that futures wait for, in a thread that waits for one of
    /// them.
    pub(crate) fn serve_waiting(&self) {
        if self.is_foreign() {
            return;
        }
        let _here = self.serving();
        let mut panics = Panics::default();
        self.serve_queued(&mut panics);
        panics.catch(|| self.run_deferred());
        panics.go_on();
    }

    /// Runs the jobs that are queued now, if no thread does.
    pub(crate) fn run_jobs(&self) {
        if StoreScope::is_any_open() || reentry::callback_depth() > 0 {
            return;
        }
        let _here = self.serving();
        let mut panics = Panics::default();
        // Only as many as there are at the beginning: a job may queue more at once.
        for _ in 0..self.workers.queued() {
            panics.catch(|| {
                self.workers.run_one();
            });
        }
        // A job may have had to wait for another of its lane, which has ended since, perhaps in
        // this thread.
        if self.workers.is_ready() {
            self.leave_jobs_to_service();
        }
        panics.go_on();
    }

    fn serve_queued(&self, panics: &mut Panics) {
        if !self.is_served() {
            panics.catch(|| self.run_jobs());
        }
    }

    fn flush_in_rounds(&self) {
        // Bounded: writers may make blocks dirty as fast as they are written.
        for _ in 0..TICK_FLUSHES {
            if self.run_flushes() == Step::Idle {
                break;
            }
        }
    }

    /// Makes the syncs that eviction asked for, or has threads make them. A failure is in the
    /// file's error sequence; a closed file needs none.
    fn run_syncs(&self) {
        if !self.syncs_wanted.swap(false, Ordering::Acquire) {
            return;
        }
        for file in self.files() {
            if !file.writes.syncs.is_wanted() {
                continue;
            }
            match self.workers.has_threads() {
                true => file.flush_in_its_lane(FlushRequest::ANY),
                false => drop(file.sync_if_wanted()),
            }
        }
    }

    /// Has those called who watch groups in which something has happened.
    fn call_watchers(&self) {
        for (group, call) in self.pool.groups.due_watchers() {
            self.defer(group, None, call);
        }
    }
}
