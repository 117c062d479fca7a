//! Futures without a runtime: [`Ready`] becomes a view once the bytes are there.
//!
//! A future that finds its bytes missing puts the missing blocks in flight itself, if that takes no
//! waiting, and is woken when they have landed: so thousands of them take no thread each. Otherwise
//! (what the store has is not known, memory is short, a writer is at it) it queues a job in the
//! file's lane, which takes the view in the blocking way and hands it over. It is woken also when
//! somebody else fills one of its blocks, when the file is cut, and when it is closed; a dropped
//! future takes its request along. A future that is polled by a job (in a store that reads by it,
//! say) takes the view there and then: nobody else might.
//!
//! A waker is foreign code, which may make another call of the same file at once: it runs with no
//! lock held. Who fills or cuts notes who is due to be woken, and wakes when the operation has let
//! go of everything; who closes, when the store can be opened again. Requests that land leave it to
//! the end of their job, or to another one
//! ([`wake_due_elsewhere`](crate::cache::core::FileCore::wake_due_elsewhere)). So does who may hold locks
//! of another file, in a call of its store or below reclaim ([`Cache::wake`](crate::cache::Cache::wake)).

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::cache::errors::{FileError, StoreAction, store_panicked};
use crate::cache::file::handle::Handle;
use crate::cache::read::view::{MAX_COPY, View};
use crate::cache::wait::Wait;
use crate::cache::waiting::{TimedOut, wait_for};
use crate::exec::reentry;
use crate::exec::{Job, Lane, Turn};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use crate::sync::due::Due;
use crate::sync::panics::Panics;
use crate::sync::{Arc, Mutex, Weak};
use crate::units::PAGE_SIZE;

/// One future's request, shared with the service's queue and the file's list, which hold it weakly.
#[derive(Debug)]
pub(super) struct Request {
    handle: Arc<Handle>,
    range: Range<u64>,
    /// To be woken by whoever comes next to the end of an operation.
    due: Due,
    /// None: the future is gone. Nothing is left here then, for the last to let go of the request
    /// may have a block locked.
    state: Mutex<Option<State>>,
}

#[derive(Debug, Default)]
struct State {
    result: Option<Result<View, FileError>>,
    waker: Option<Waker>,
}

impl State {
    /// Takes in the first result alone, and gives back the other.
    fn settle(&mut self, result: Result<View, FileError>) -> Option<Result<View, FileError>> {
        if self.result.is_some() {
            return Some(result);
        }
        self.result = Some(result);
        None
    }
}

impl Request {
    /// Takes the view, waiting for whatever it needs, and wakes the future; also if the store
    /// panics, for nobody runs it again.
    pub(super) fn run(&self) {
        let (core, range) = (&self.handle.core, self.range.clone());
        let mut result = None;
        let mut panics = Panics::default();
        panics.catch(|| result = Some(self.handle.view(range.clone(), Wait::Yes)));
        panics.catch(|| {
            self.settle(result.unwrap_or_else(|| {
                let (at, len) = (range.start, range.end - range.start);
                Err(core.store_error(StoreAction::Read, at, len, store_panicked()))
            }))
        });
        panics.go_on();
    }

    fn settle(&self, result: Result<View, FileError>) {
        let (waker, _unwanted) = match &mut *self.state.lock() {
            Some(state) => (state.waker.take(), state.settle(result)),
            None => (None, Some(result)),
        };
        self.call(waker);
    }

    fn take_result(&self) -> Option<Result<View, FileError>> {
        let mut state = self.state.lock();
        state.as_mut().and_then(|state| state.result.take())
    }

    fn wake(&self) {
        let waker = match &mut *self.state.lock() {
            Some(state) => state.waker.take(),
            None => None,
        };
        self.call(waker);
    }

    fn call(&self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.handle.core.cache.wake(waker);
        }
    }
}

/// The most blocks that one request asks for: those of a view that is copied, and one more.
const MOST_BLOCKS: u64 = MAX_COPY / PAGE_SIZE as u64 + 1;

/// The requests of one file. Leaf locks, not held while a waker is called.
#[derive(Debug, Default)]
pub(crate) struct ReadyList {
    count: AtomicUsize,
    /// Some request may be due to be woken.
    any_due: AtomicBool,
    closed: AtomicBool,
    /// By first block, and by address.
    requests: Mutex<BTreeMap<(u64, usize), Weak<Request>>>,
    due: Mutex<Vec<Weak<Request>>>,
}

impl Request {
    fn key(self: &Arc<Request>) -> (u64, usize) {
        let first = self.range.start >> self.handle.core.block_shift();
        (first, Arc::as_ptr(self) as usize)
    }
}

impl ReadyList {
    fn add(&self, request: &Arc<Request>) {
        let mut requests = self.requests.lock();
        requests.insert(request.key(), Arc::downgrade(request));
        self.count.store(requests.len(), Ordering::SeqCst);
        drop(requests);
        // Pairs with that of `filled`.
        fence(Ordering::SeqCst);
    }

    fn remove(&self, request: &Arc<Request>) {
        let mut requests = self.requests.lock();
        requests.remove(&request.key());
        self.count.store(requests.len(), Ordering::SeqCst);
    }

    /// Requests under way.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    pub(super) fn live(&self) -> Vec<Arc<Request>> {
        self.live_in(0..u64::MAX)
    }

    /// Those that may want one of the blocks.
    fn live_in(&self, blocks: Range<u64>) -> Vec<Arc<Request>> {
        let first = blocks.start.saturating_sub(MOST_BLOCKS);
        let requests = self.requests.lock();
        let near = requests.range((first, 0)..(blocks.end, 0));
        near.filter_map(|(_, request)| request.upgrade()).collect()
    }

    /// Blocks were filled, or their fill failed. [`ReadyList::wake_due`] has to follow.
    ///
    /// A future that registers at this moment is not missed. The blocks were changed before the
    /// fence here, and the count is read behind it; the future is counted before the fence of
    /// [`ReadyList::add`], and looks at the blocks once more behind that one ([`Ready::poll`]). So
    /// it is counted here, or it sees the blocks.
    #[inline]
    pub(super) fn filled(&self, blocks: Range<u64>) {
        fence(Ordering::SeqCst);
        if self.len() > 0 {
            self.note(&blocks);
        }
    }

    /// The file changed as a whole. [`ReadyList::wake_due`] has to follow.
    pub(super) fn changed(&self) {
        self.filled(0..u64::MAX);
    }

    #[cold]
    fn note(&self, blocks: &Range<u64>) {
        for request in self.live_in(blocks.clone()) {
            let wanted = request.handle.core.blocks_of(request.range.clone());
            if wanted.start < blocks.end && blocks.start < wanted.end && request.due.note() {
                self.due.lock().push(Arc::downgrade(&request));
                // Release: pairs with the swap of who wakes, who then sees which.
                self.any_due.store(true, Ordering::Release);
            }
        }
    }

    /// A block could not be filled: those who wait for it hear why. [`ReadyList::wake_due`] has to
    /// follow.
    pub(super) fn failed(&self, block: u64, error: &FileError) {
        if self.len() == 0 {
            return;
        }
        for request in self.live_in(block..block + 1) {
            let wanted = request.handle.core.blocks_of(request.range.clone());
            let unwanted = match &mut *request.state.lock() {
                Some(state) if wanted.contains(&block) => state.settle(Err(error.clone())),
                _ => None,
            };
            drop(unwanted);
        }
        self.filled(block..block + 1);
    }

    /// Whether somebody is due.
    pub(super) fn is_any_due(&self) -> bool {
        self.any_due.load(Ordering::Relaxed)
    }

    /// Wakes those who are due, whoever noted it. No lock is held.
    #[inline]
    pub(super) fn wake_due(&self) {
        if self.any_due.load(Ordering::Relaxed) {
            self.wake_noted();
        }
    }

    #[cold]
    fn wake_noted(&self) {
        if !self.any_due.swap(false, Ordering::Acquire) {
            return;
        }
        let due = std::mem::take(&mut *self.due.lock());
        let mut panics = Panics::default();
        for request in due.iter().filter_map(Weak::upgrade) {
            request.due.take();
            panics.catch(|| request.wake());
        }
        panics.go_on();
    }

    /// The last handle is gone: who looks from now on hears of it. [`ReadyList::wake_closed`] has
    /// to follow.
    pub(super) fn begin_close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Wakes all who wait for the file, which is closed. One who is not in the list yet looks at
    /// the file once more when it is.
    pub(super) fn wake_closed(&self, panics: &mut Panics) {
        for request in self.live() {
            panics.catch(|| request.settle(Err(request.handle.core.closed())));
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

/// A future that becomes a [`View`]; see [`PagedFile::ready`](crate::cache::PagedFile::ready).
///
/// It needs no runtime: any executor can poll it. The blocks that are missing are read side by
/// side, as many as the store serves at a time, by threads of the memory's or by `tick()`; what
/// those run (a store, an error hook, a waker) may poll it, too, which then does the work at once.
#[must_use = "futures do nothing unless polled"]
pub struct Ready {
    handle: Arc<Handle>,
    range: Result<Range<u64>, FileError>,
    request: Option<Arc<Request>>,
    /// How often the missing blocks were put in flight.
    flights: u32,
    /// A job takes the view.
    is_queued: bool,
    /// The lane that the job is in.
    lane: Option<Arc<Lane>>,
}

/// Takes the view of a request, unless its future is gone.
struct Take(Weak<Request>);

impl Job for Take {
    fn run(self: Box<Self>) {
        if let Some(request) = self.0.upgrade() {
            let cache = request.handle.core.cache.clone();
            let _here = cache.serving();
            request.run();
        }
    }

    fn is_wanted(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// How often a future puts blocks in flight that are gone again when it comes to look, before a job
/// holds on to them.
const MOST_FLIGHTS: u32 = 2;

impl Ready {
    pub(super) fn new(handle: Arc<Handle>, range: Result<Range<u64>, FileError>) -> Ready {
        Ready {
            handle,
            range,
            request: None,
            flights: 0,
            is_queued: false,
            lane: None,
        }
    }

    /// Has a job take the view.
    fn queue(&mut self, request: &Arc<Request>) {
        if !std::mem::replace(&mut self.is_queued, true) {
            let core = &self.handle.core;
            let lane = core.cache.task_lane(core.address(), core.at_a_time);
            let take = Box::new(Take(Arc::downgrade(request)));
            core.cache.push(&lane, Turn::Shared, take);
            self.lane = Some(lane);
        }
    }

    /// Waits in place, without an executor, until the view is there or `timeout` is over. It can be
    /// waited for again then, or dropped at any time; see
    /// [`Task::wait_timeout`](crate::cache::Task::wait_timeout).
    ///
    /// # Errors
    /// When the time is over; inside, those of [`PagedFile::view`](crate::cache::PagedFile::view).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Result<View, FileError>, TimedOut> {
        let core = self.handle.core.clone();
        wait_for(self, &core.cache, timeout)
    }

    fn forget_request(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.core.ready.remove(&request);
            // The result is a view, and what a waker does when it is dropped nobody knows: here,
            // with nothing locked.
            let state = request.state.lock().take();
            drop(state);
        }
    }

    fn look(&self, range: &Range<u64>) -> Poll<Result<View, FileError>> {
        if self.handle.core.ready.is_closed() {
            return Poll::Ready(Err(self.handle.core.closed()));
        }
        match self.handle.view(range.clone(), Wait::No) {
            Err(error) if error.would_block() => Poll::Pending,
            result => Poll::Ready(result),
        }
    }
}

impl Future for Ready {
    type Output = Result<View, FileError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = self.handle.core.check_process() {
            return Poll::Ready(Err(error));
        }
        let range = match &self.range {
            Ok(range) => range.clone(),
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        if let Poll::Ready(result) = self.look(&range) {
            self.forget_request();
            return Poll::Ready(result);
        }
        if self.handle.core.cache.is_served_here()
            || reentry::is_in_other_store_calls(self.handle.core.address())
        {
            // A request's turn would come after whatever waits for it here.
            let known = self.request.as_ref().and_then(|of| of.take_result());
            let result = known.unwrap_or_else(|| self.handle.view(range, Wait::Yes));
            self.forget_request();
            return Poll::Ready(result);
        }
        let (request, is_new) = match &self.request {
            Some(request) => (request.clone(), false),
            None => {
                let state = Mutex::new(Some(State::default()));
                let handle = self.handle.clone();
                (
                    Arc::new(Request {
                        handle,
                        range: range.clone(),
                        due: Due::default(),
                        state,
                    }),
                    true,
                )
            }
        };
        // Foreign code, too: cloned and dropped outside the lock.
        let waker = context.waker().clone();
        let before = {
            let mut state = request.state.lock();
            let known = state.as_mut().expect("its future is here");
            if let Some(result) = known.result.take() {
                drop(state);
                self.forget_request();
                return Poll::Ready(result);
            }
            known.waker.replace(waker)
        };
        drop(before);
        let core = self.handle.core.clone();
        let blocks = core.blocks_of(range.clone());
        if is_new {
            core.ready.add(&request);
            self.request = Some(request.clone());
        }
        if !self.is_queued {
            match self.flights < MOST_FLIGHTS && core.begin_fills(blocks.clone()) {
                true => self.flights += 1,
                false => self.queue(&request),
            }
        }
        // What was filled, or closed, between the first look and the registration; or here, with
        // nobody left to do it.
        core.cache.serve_waiting_if_abandoned();
        match self.look(&range) {
            Poll::Ready(result) => {
                self.forget_request();
                Poll::Ready(result)
            }
            Poll::Pending => {
                // Who waits for what has landed by now is not woken again.
                if !core.is_in_flight(&blocks) {
                    self.queue(&request);
                }
                Poll::Pending
            }
        }
    }
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready")
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        match self.handle.core.check_process() {
            Ok(()) => self.forget_request(),
            // A lock of the parent's may be held for good.
            Err(_) => std::mem::forget((self.request.take(), self.lane.take())),
        }
    }
}
