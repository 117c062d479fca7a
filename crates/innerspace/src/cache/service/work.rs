//! The work that a service thread, or `tick()`, does for the files of a memory.

use crate::cache::dirty::flush::{flush_in_its_lane, write_some};
use crate::cache::dirty::limits::has_too_much_dirty;
use crate::cache::dirty::sync::sync_if_wanted;
use crate::cache::service::Cache;
use crate::exec::{Served, reentry};
use crate::group::GroupId;
use crate::reclaim::{FlushRequest, Step, StoreScope};
use crate::sync::atomic::Ordering;
use crate::sync::panics::Panics;

/// The most rounds of background writes in one tick.
const TICK_FLUSHES: usize = 16;

impl Cache {
    /// Requests a step that writes dirty blocks of groups that have too many. Does nothing if the
    /// step was already requested, or was futile in this tick because the blocks are held back or
    /// their store fails.
    #[inline]
    pub(crate) fn want_flush(&self) {
        let futile = self.flush_futile_at.load(Ordering::Relaxed) == self.pool.background.now() + 1;
        if !futile && !self.writes_wanted.load(Ordering::Relaxed) {
            self.want_writes();
        }
    }

    /// Requests a step that writes dirty blocks of groups that have too many, and syncs the files
    /// that need it.
    pub(crate) fn want_writes(&self) {
        self.writes_wanted.store(true, Ordering::Release);
        self.pool.background.kick();
    }

    /// Makes the syncs that eviction requested, and lets each file of a group with too many dirty
    /// pages write one run, so that no file waits for the others. If the memory has worker threads,
    /// this is left to them, so that a store that hangs does not keep other files from being
    /// written. The results of the syncs are ignored: a failure is recorded in the file's error
    /// sequence, and a closed file needs no sync. Does nothing unless writes were requested
    /// ([`Cache::want_writes`]). Returns [`Step::More`] if this thread has written blocks.
    fn run_writes(&self) -> Step {
        if !self.writes_wanted.swap(false, Ordering::Acquire) {
            return Step::Idle;
        }
        let has_threads = self.workers.has_threads();
        let (mut over, mut written, mut panics) = (0, 0, Panics::default());
        for file in self.unwritten_files(GroupId::ROOT) {
            let is_over = has_too_much_dirty(&file) && file.may_call_unasked();
            if has_threads {
                if is_over || file.writes.syncs.wanted.load(Ordering::Relaxed) {
                    flush_in_its_lane(&file, FlushRequest::ANY);
                }
                continue;
            }
            panics.catch(|| drop(sync_if_wanted(&file)));
            if is_over {
                over += 1;
                panics.catch(|| written += write_some(&file));
            }
        }
        if written > 0 {
            self.writes_wanted.store(true, Ordering::Release);
        }
        panics.go_on();
        if written > 0 {
            return Step::More;
        }
        if !has_threads && StoreScope::is_any_open() {
            // In a call to a store, this skips files that can be written as soon as the call ends.
            self.want_writes();
        } else if over > 0 {
            self.note_futile_flush();
        }
        Step::Idle
    }

    /// Notes that nothing could be written in the current tick.
    pub(crate) fn note_futile_flush(&self) {
        let tick = self.pool.background.now() + 1;
        self.flush_futile_at.store(tick, Ordering::Relaxed);
    }

    /// Does a bounded piece of work for the files and for the pool below them. The caller has no
    /// section open and holds no lock. A panic does not keep the rest of the work from being done.
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
        let (mut flushed, mut stepped) = (Step::Idle, Step::Idle);
        panics.catch(|| flushed = self.run_writes());
        panics.catch(|| stepped = self.pool.background_step());
        panics.go_on();
        match (flushed, stepped) {
            (Step::Idle, Step::Idle) => Step::Idle,
            _ => Step::More,
        }
    }

    /// Does everything that is due at a tick of the clock (P31), in the calling thread except for
    /// work that is left to threads of the memory. A panic does not keep the rest of the work from
    /// being done.
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
        // The number of rounds is bounded: writers may make blocks dirty as fast as they are
        // written.
        panics.catch(|| {
            for _ in 0..TICK_FLUSHES {
                if self.run_writes() == Step::Idle {
                    break;
                }
            }
        });
        panics.catch(|| self.pool.tick());
        panics.catch(|| self.call_watchers());
        panics.catch(|| self.run_deferred());
        panics.go_on();
    }

    /// Takes the views and makes the calls that futures wait for, unless threads of the memory do
    /// so, and makes the deferred calls. Called by a thread that waits for one of these futures,
    /// and, once there is no service, by one that polls a future or completes a request.
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

    /// Runs the jobs that are queued now and that no other thread runs. Does nothing in a call to a
    /// store or in a callback.
    pub(crate) fn run_jobs(&self) {
        if StoreScope::is_any_open() || reentry::callback_depth() > 0 {
            return;
        }
        let _here = self.serving();
        let mut panics = Panics::default();
        // Runs only as many jobs as there are now, since a job may queue more.
        for _ in 0..self.workers.queued() {
            panics.catch(|| {
                self.workers.run_one();
            });
        }
        // A job may have had to wait for another job of its lane that has ended meanwhile, perhaps
        // in this thread. The service then runs the job that waited.
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

    /// Defers the callbacks of watchers whose groups have counted events.
    fn call_watchers(&self) {
        for (group, call) in self.pool.groups.due_watchers() {
            self.defer(group, None, call);
        }
    }
}
