//! The state that the files of one memory share, such as the error list and the dirty counts per
//! group. The work that a service thread, or `tick()`, does for them is in `work`.

mod files;
#[cfg(any(test, feature = "test-util"))]
#[path = "tests/validate.rs"]
mod validate;
mod work;

use std::task::Waker;
use std::time::Duration;

use self::files::{Entry, Files};
use crate::cache::core::FileCore;
use crate::cache::errors::{ErrorLog, FileError};
use crate::exec::reentry::{self, Inside};
use crate::exec::{Deferred, Job, Lane, Lanes, Served, Turn, Workers, is_in_job, wake_after};
use crate::group::{Group, GroupId, Slab};
use crate::reclaim::{OwnerId, Pool, StoreScope, Untried};
use crate::stats::Event;
use crate::store::{Flights, Identity};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::panics::Panics;
use crate::sync::{Arc, Condvar, Mutex, RwLock, RwLockReadGuard, may_call_out};
use crate::units::PageCount;

/// How long a thread waits for a file to be closed before it checks whether it has to close the
/// file itself.
const CLOSE_WAIT: Duration = Duration::from_millis(20);

/// How long a caller that finds no memory waits for a request to land.
const LANDING_WAIT: Duration = Duration::from_millis(20);

/// How long the end of a memory waits for a deferred call that makes no progress.
const DEFERRED_WAIT: Duration = Duration::from_secs(5);

/// Stands for the payer of calls that no group pays for.
const MEMORY: GroupId = GroupId(u16::MAX);

/// A hook that is called for each failure that no handle can report.
// Not the shim's `Arc`, which cannot hold a closure as a trait object under a model checker.
pub(crate) type ErrorHook = std::sync::Arc<dyn Fn(&FileError) + Send + Sync>;

/// The cache of one memory: the state that its files share.
pub(crate) struct Cache {
    /// The pool from which the files' blocks come.
    pub(crate) pool: Arc<Pool>,
    /// The root group of the pool.
    pub(super) root: Group,
    /// Failures that no handle was left to report (P30).
    errors: ErrorLog,
    /// The hook that is called for each failure, and the failures for which it was not called yet.
    hook: Mutex<Option<ErrorHook>>,
    unheard: ErrorLog,
    /// Whether a service thread does the background work.
    served: AtomicBool,
    /// Set when there is no longer a service: neither a service thread, nor a `Memory` whose `tick`
    /// could be called.
    abandoned: AtomicBool,
    files: Mutex<Files<FileCore>>,
    /// Notified when a file has been closed. Used with the mutex of `files`.
    closed: Condvar,
    /// The dirty pages of each group's files.
    pub(super) dirty: GroupPages,
    /// Pages that cannot be evicted, dirty or not, because their write is under way, or because no
    /// sync has covered that write.
    pub(super) behind: GroupPages,
    /// Pages in requests to stores.
    pub(super) in_flight: GroupPages,
    /// Notified when a request has landed, for callers that find no memory.
    landed: Condvar,
    landing: Mutex<()>,
    /// The threads that make the calls that may wait.
    pub(super) workers: Workers,
    flights: Arc<Flights>,
    /// Whether jobs are left to the service: no thread could be started for them, or they had to
    /// wait for their turn.
    unserved: AtomicBool,
    /// The lanes for calls of futures, by the file or space that they use.
    task_lanes: Lanes,
    /// Calls to foreign code (closings, wakers, hooks, callbacks of watchers), to be made where no
    /// lock is held.
    deferred: Deferred,
    /// The number of store calls that wrote for files that were being closed.
    written_at_end: AtomicU64,
    /// Held shared by threads that briefly keep a space alive without a handle: such a thread may
    /// turn out to be the last user of the space.
    visits: RwLock<()>,
    /// Whether writes are requested: some group has so many dirty pages that blocks of any age are
    /// written, or some file has to be synced before its blocks can be evicted.
    writes_wanted: AtomicBool,
    /// One more than the number of the last tick in which nothing could be written; 0 if there was
    /// none.
    flush_futile_at: AtomicU64,
}

/// A count of pages for each group, which includes the pages of the groups below it.
pub(super) struct GroupPages(Slab<AtomicU64>);

impl GroupPages {
    fn new() -> GroupPages {
        GroupPages(Slab::new())
    }

    /// Adds `pages` to the count of each of these groups. To subtract, pass the wrapping negative.
    #[inline]
    pub(super) fn add(&self, groups: &[GroupId], pages: u64) {
        for group in groups {
            let number = self.0.get_or_make(group.0, || AtomicU64::new(0));
            number.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// Returns the count of a group.
    pub(super) fn of(&self, group: GroupId) -> u64 {
        let number = self.0.get(group.0);
        number.map_or(0, |pages| pages.load(Ordering::Relaxed))
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache")
            .field("files", &self.files().len())
            .finish_non_exhaustive()
    }
}

impl Cache {
    /// Creates a cache on a pool, with no files yet. `root` is the pool's root group.
    pub(crate) fn with_root(pool: &Arc<Pool>, root: Group) -> Arc<Cache> {
        let workers = Workers::new();
        Arc::new(Cache {
            pool: pool.clone(),
            root,
            errors: ErrorLog::default(),
            hook: Mutex::default(),
            unheard: ErrorLog::default(),
            served: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            files: Mutex::default(),
            closed: Condvar::new(),
            dirty: GroupPages::new(),
            behind: GroupPages::new(),
            in_flight: GroupPages::new(),
            landed: Condvar::new(),
            landing: Mutex::default(),
            task_lanes: Lanes::new(&workers),
            deferred: Deferred::new(&workers),
            written_at_end: AtomicU64::new(0),
            visits: RwLock::new(()),
            workers,
            flights: Arc::default(),
            unserved: AtomicBool::new(false),
            writes_wanted: AtomicBool::new(false),
            flush_futile_at: AtomicU64::new(0),
        })
    }

    /// Whether another process created the memory. If so, the calling process is a child of
    /// fork(2).
    pub(crate) fn is_foreign(&self) -> bool {
        self.pool.foreign_maker().is_some()
    }

    /// Returns and removes the failures that no handle was left to report, oldest first.
    pub(crate) fn take_errors(&self) -> Vec<FileError> {
        self.errors.take()
    }

    pub(super) fn log_error(self: &Arc<Cache>, error: FileError) {
        #[cfg(feature = "tracing_0_1")]
        self.defer_event({
            let error = error.clone();
            move || tracing::warn!(target: "innerspace", %error, "write lost")
        });
        if self.hook.lock().is_some() {
            // `unheard` is bounded, in case a store keeps failing and the hook is never called. A
            // failure that is dropped from it is counted.
            if self.unheard.push(error.clone()).is_some() {
                self.pool.counters.count(Event::ErrorUntold);
            }
            let cache = self.clone();
            self.defer(MEMORY, None, move || cache.run_hook());
        }
        if self.errors.push(error).is_some() {
            self.pool.counters.count(Event::ErrorUntaken);
        }
    }

    /// Sets the hook that is called, from now on, for each failure that no handle can report.
    pub(crate) fn set_error_hook(&self, hook: ErrorHook) {
        // A hook is foreign code, so the old one is dropped with the lock released.
        let before = self.hook.lock().replace(hook);
        drop(before);
    }

    fn run_hook(&self) {
        let mut panics = Panics::default();
        while let Some(error) = self.unheard.pop() {
            let hook = self.hook.lock().clone();
            if let Some(hook) = hook {
                panics.catch(move || hook(&error));
            }
        }
        panics.go_on();
    }

    /// Defers the report of an event: a thread that may run foreign code passes it to the program's
    /// subscriber.
    #[cfg(feature = "tracing_0_1")]
    pub(crate) fn defer_event(&self, tell: impl FnOnce() + Send + 'static) {
        self.defer(MEMORY, None, tell);
    }

    /// Defers a call to foreign code. It is made later, by a thread that may make such calls.
    /// `payer` pays for the call, and `of` is the file that the call concerns, if any. Never waits.
    pub(crate) fn defer(
        &self,
        payer: GroupId,
        of: Option<OwnerId>,
        call: impl FnOnce() + Send + 'static,
    ) {
        let call = Box::new(call);
        if !self.is_served() {
            self.deferred.queue(of.map(|owner| owner.0), call);
            self.pool.background.kick();
        } else if self.deferred.push(payer.0.into(), call) == Served::ByCallers {
            self.leave_jobs_to_service();
        }
    }

    /// Makes those deferred calls that no thread of the memory makes. The caller holds no lock.
    /// Does nothing in a call to a store, whose caller may hold locks.
    pub(crate) fn run_deferred(&self) {
        // If this thread is making a deferred call, the loop that made it makes the rest, too.
        if self.deferred.is_queue_empty() || Deferred::is_running() || StoreScope::is_any_open() {
            return;
        }
        may_call_out();
        let _untried = Untried::begin();
        let mut panics = Panics::default();
        while let Some(call) = self.deferred.take(None) {
            panics.catch(call);
        }
        panics.go_on();
    }

    /// Waits for the calls that were left to threads of the memory. Gives up if, for
    /// [`DEFERRED_WAIT`], no such call ends and no store of a file that is being closed accepts any
    /// bytes. In a job, it does not wait for these calls.
    pub(crate) fn wait_deferred(&self) {
        // This waits for threads that briefly keep a space alive: they may defer its end.
        drop(self.visits.write());
        let written = || self.written_at_end.load(Ordering::Relaxed);
        self.deferred.wait(DEFERRED_WAIT, written);
    }

    /// Notes that the store of a file that is being closed has taken some bytes.
    pub(super) fn note_written_at_end(&self) {
        self.written_at_end.fetch_add(1, Ordering::Relaxed);
    }

    /// Marks this thread as briefly keeping a space alive without a handle.
    pub(crate) fn visit(&self) -> RwLockReadGuard<'_, ()> {
        self.visits.read()
    }

    /// Leaves the background work to a service thread from now on.
    pub(crate) fn begin_service(&self) {
        // Relaxed: no thread has a file yet.
        self.served.store(true, Ordering::Relaxed);
        self.workers.begin_threads();
        self.pool.background.begin_service();
    }

    pub(super) fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// Whether neither a service nor the program's ticks do the work of this cache any more.
    #[inline]
    pub(super) fn is_abandoned(&self) -> bool {
        // Relaxed: a thread that sees the flag too late leaves the work to the next one.
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Ends the service: closes files whose closing was deferred, serves the futures, and calls
    /// wakers and the hook for the last time. From now on, this work is done by the threads that
    /// poll futures or close files.
    pub(crate) fn abandon(&self) {
        // Relaxed: the locks of the queues order the flag. A thread that adds to a queue after this
        // thread has looked at it sees the flag.
        self.abandoned.store(true, Ordering::Relaxed);
        let mut panics = Panics::default();
        panics.catch(|| self.pool.finish_retired());
        panics.catch(|| self.run_deferred());
        panics.catch(|| self.serve_waiting());
        panics.go_on();
    }

    /// Calls [`Cache::serve_waiting`] if there is no longer a service, and this thread is not doing
    /// the work of this cache already. The caller has queued a future, or completed a request.
    /// Returns whether the work was done here.
    pub(super) fn serve_waiting_if_abandoned(&self) -> bool {
        let wanted = self.is_abandoned() && !self.is_served_here();
        if wanted {
            self.serve_waiting();
        }
        wanted
    }

    /// Frees what was retired, after a grace period, if there is no longer a service. The caller
    /// has released a direct-access file, and holds no lock.
    pub(crate) fn flush_if_abandoned(&self) {
        if self.is_abandoned() {
            self.pool.flush_retired();
        }
    }

    /// Makes the calls that were deferred, if there is no longer a service. Called after a call to
    /// a store, or a closing, where no lock is held.
    #[inline]
    pub(super) fn run_deferred_if_abandoned(&self) {
        if self.is_abandoned() {
            self.run_deferred();
        }
    }

    /// Marks this thread as doing the work of this cache until the result is dropped.
    pub(super) fn serving(&self) -> Inside {
        Inside::serving(std::ptr::from_ref(self) as usize)
    }

    /// Whether this thread is doing the work of this cache, so that waiting for that work here
    /// would never end.
    pub(super) fn is_served_here(&self) -> bool {
        reentry::is_serving(std::ptr::from_ref(self) as usize)
    }

    /// Calls the waker of a future that `payer` pays for. Where locks may be held (in a call to a
    /// store, in reclaim, with a file locked), leaves the call to another thread. Locks may be held
    /// in a job, too: an operation that has a file locked and finds no memory runs jobs that free
    /// some.
    pub(super) fn wake(&self, payer: GroupId, waker: Waker) {
        let may_call = reentry::is_outermost() && !StoreScope::is_any_open();
        // If the memory has threads of its own, a thread of the program leaves the waker to them.
        // Otherwise it could be held up by a waker that hangs, perhaps that of another tenant with
        // which it shares a file.
        if !may_call || self.is_served() && !is_in_job() {
            return self.defer(payer, None, move || waker.wake());
        }
        // A worker calls the waker after its job, where the call may take any amount of time.
        let Err(waker) = wake_after(waker) else {
            return;
        };
        may_call_out();
        let _untried = Untried::begin();
        waker.wake();
    }

    pub(super) fn add_file(&self, file: &Arc<FileCore>) {
        let (id, in_use) = (&file.id, file.store.in_use());
        self.files.lock().add(id.number, id.identity, file, in_use);
    }

    /// Returns a number for a new file.
    pub(super) fn next_file(&self) -> u64 {
        self.files.lock().next()
    }

    pub(super) fn remove_file(&self, file: &FileCore) {
        let mut files = self.files.lock();
        files.set_unwritten(file.id.number, &file.id.groups, false);
        // If a call to the store is under way, the file does not count as closed until the call has
        // ended.
        files.remove(file.id.number);
        drop(files);
        self.closed.notify_all();
    }

    /// Waits until no file on the store with this identity is being closed. While a file is being
    /// closed, its unwritten data is being written, and its locks are held. Used to open the store
    /// again after the last handle on the old file was dropped.
    pub(crate) fn wait_closed(&self, identity: Identity) {
        loop {
            // The last reference may be waiting for a grace period, or may have been dropped where
            // a file cannot be closed.
            self.pool.finish_retired();
            self.run_deferred();
            // `run_deferred` does nothing in a call to a store. But this file has to be closed, so
            // its own deferred calls are made here.
            let files = self.files.lock();
            let cores: Vec<_> = files.open_as(identity).map(Entry::core).collect();
            drop(files);
            for core in cores.into_iter().flatten() {
                while let Some(call) = self.deferred.take(Some(core.id.owner.0)) {
                    call();
                }
            }
            let files = self.files.lock();
            if files.open_as(identity).next().is_none() {
                return;
            }
            let (files, _) = self.closed.wait_timeout(files, CLOSE_WAIT);
            drop(files);
        }
    }

    /// Whether [`Cache::wait_closed`] would wait for any file. The caller may have locked the
    /// memory's own table of open files: no file is dropped here.
    pub(crate) fn is_closing(&self, identity: Identity) -> bool {
        self.files.lock().open_as(identity).next().is_some()
    }

    /// Returns the files that are open or being closed.
    pub(crate) fn files(&self) -> Vec<Arc<FileCore>> {
        self.files.lock().open()
    }

    /// Adds a file to the list of files with unwritten blocks, or removes it from there. Called
    /// under the mutex of the file's dirty index.
    pub(super) fn list_unwritten(&self, file: &FileCore, listed: bool) {
        let id = &file.id;
        self.files
            .lock()
            .set_unwritten(id.number, &id.groups, listed);
    }

    /// Returns the files with blocks that are not written, or not synced, for which `group` or a
    /// group below it pays.
    pub(super) fn unwritten_files(&self, group: GroupId) -> Vec<Arc<FileCore>> {
        let mut files = self.files.lock().unwritten(group);
        files.retain(|file| file.has_unwritten_blocks());
        files
    }

    /// Returns the ring for the memory's reads, if threads of the memory do the work.
    pub(super) fn flights(&self) -> Option<Arc<Flights>> {
        self.is_served().then(|| self.flights.clone())
    }

    /// Queues a job in a lane.
    pub(super) fn push(&self, lane: &Lane, turn: Turn, job: Box<dyn Job>) {
        if lane.push(turn, job) == Served::ByCallers {
            self.leave_jobs_to_service();
        }
    }

    /// Leaves jobs to the service, or to the next tick. Called if no thread of the memory will run
    /// them, or if a job had to wait for its turn.
    fn leave_jobs_to_service(&self) {
        self.unserved.store(true, Ordering::Release);
        self.pool.background.kick();
    }

    pub(super) fn count_landed(&self, groups: &[GroupId], pages: u64) {
        self.in_flight.add(groups, pages.wrapping_neg());
        // The mutex is not taken: a waiter that misses this waits slightly longer.
        self.landed.notify_all();
    }

    /// Waits until a request has landed, but at most [`LANDING_WAIT`].
    pub(super) fn wait_for_landing(&self) {
        let landing = self.landing.lock();
        drop(self.landed.wait_timeout(landing, LANDING_WAIT));
    }

    /// Returns the number of pages that can only be evicted after a call to a store, in files for
    /// which `group` or a group below it pays. A page that became dirty again after its write began
    /// counts twice.
    pub(crate) fn unwritten_pages(&self, group: GroupId) -> PageCount {
        PageCount(self.dirty.of(group) + self.behind.of(group))
    }

    /// Returns the number of dirty pages of the files for which `group` or a group below it pays.
    pub(crate) fn dirty_pages(&self, group: GroupId) -> PageCount {
        PageCount(self.dirty.of(group))
    }

    /// Returns the error of a file whose store keeps failing to take its dirty blocks. Looks at the
    /// files for which `group` or a group below it pays. Returns `None` while a block of any of
    /// them is being written, or if no store keeps failing. Called when the calling thread could
    /// write none of these blocks.
    pub(super) fn unwritten_error(&self, group: GroupId) -> Option<FileError> {
        let files = self.unwritten_files(group);
        if files.iter().any(|file| file.is_writing()) {
            return None;
        }
        files.iter().find_map(|file| file.unwritten_error())
    }

    /// Returns the lane for the calls of futures on the object at `address`. At most `limit` calls
    /// run at a time. The lane lasts as long as some caller keeps it. In a child of fork(2),
    /// returns a new lane each time.
    pub(super) fn task_lane(&self, address: usize, payer: GroupId, limit: u32) -> Arc<Lane> {
        let payer = payer.0.into();
        if self.is_foreign() {
            return Arc::new(self.workers.lane(payer, limit));
        }
        self.task_lanes.get(address, payer, limit)
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Cache {
        /// Creates a cache with no files on a pool.
        pub(crate) fn new(pool: &Arc<Pool>) -> Arc<Cache> {
            Cache::with_root(pool, pool.root_group())
        }

        /// Whether a thread is waiting in [`Cache::wait_deferred`].
        #[cfg(not(shuttle))]
        pub(crate) fn is_deferred_waited_for(&self) -> bool {
            self.deferred.is_waited_for()
        }

        /// Returns the number of jobs in queues, wanted or not.
        #[cfg(not(shuttle))]
        pub(crate) fn queued(&self) -> usize {
            self.workers.queued()
        }
    }
}
