//! Futures without a runtime: [`Ready`] becomes a view once the bytes are there.
//!
//! A future that finds its bytes missing queues a request with the service ([`super::service`]), which takes the view in the
//! blocking way and hands it over. It is woken also when somebody else fills one of its blocks, when the file is cut, and
//! when it is closed; a dropped future takes its request along. A future that is polled by who runs the requests (in a store that reads
//! by it, say) takes the view there and then: nobody else would.
//!
//! A waker is foreign code, which may make another call of the same file at once: it runs with no lock held. Who fills or cuts notes
//! who is due to be woken, and wakes when the operation has let go of everything; who closes, when the store can be opened again.
//! Page faults do not, for they end with a block locked: they leave it to the service, which has each request in its queue. So does
//! who may hold locks of another file, in a call of its store or below reclaim ([`Cache::wake`](super::Cache::wake)).

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::calls;
use super::errors::{FileError, StoreAction, store_panicked};
use super::file::Handle;
use super::view::{View, Wait};
use super::waiting::{TimedOut, wait_for};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::panics::Panics;
use crate::sync::{Arc, Mutex, Weak};

/// One future's request, shared with the service's queue and the file's list, which hold it weakly.
#[derive(Debug)]
pub(super) struct Request {
    handle: Arc<Handle>,
    range: Range<u64>,
    /// To be woken by whoever comes next to the end of an operation.
    due: AtomicBool,
    /// None: the future is gone. Nothing is left here then, for the last to let go of the request may have a block locked.
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
    /// Whether this thread may be the one to do that.
    pub(super) fn may_run(&self) -> bool {
        self.handle.core.may_call_unasked()
    }

    /// Takes the view, waiting for whatever it needs, and wakes the future; also if the store panics, for nobody runs it again.
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

/// The requests of one file. A leaf lock, not held while a waker is called.
#[derive(Debug, Default)]
pub(super) struct ReadyList {
    count: AtomicUsize,
    /// Some request may be due to be woken.
    any_due: AtomicBool,
    closed: AtomicBool,
    requests: Mutex<Vec<Weak<Request>>>,
}

impl ReadyList {
    fn add(&self, request: &Arc<Request>) {
        let mut requests = self.requests.lock();
        requests.push(Arc::downgrade(request));
        self.count.store(requests.len(), Ordering::SeqCst);
    }

    fn remove(&self, request: &Arc<Request>) {
        let mut requests = self.requests.lock();
        requests.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(request)));
        self.count.store(requests.len(), Ordering::SeqCst);
    }

    /// Requests under way.
    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    pub(super) fn live(&self) -> Vec<Arc<Request>> {
        self.requests
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Blocks were filled, or their fill failed. A future that registers at this moment looks at them afterwards, and has
    /// its request in the service's queue in any case. [`ReadyList::wake_due`] has to follow.
    #[inline]
    pub(super) fn filled(&self, blocks: Range<u64>) {
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
        for request in self.live() {
            let wanted = request.handle.core.blocks_of(request.range.clone());
            if wanted.start < blocks.end && blocks.start < wanted.end {
                request.due.store(true, Ordering::Relaxed);
                // Release: pairs with the swap of who wakes, who then sees which.
                self.any_due.store(true, Ordering::Release);
            }
        }
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
        let mut panics = Panics::default();
        for request in self.live() {
            if request.due.swap(false, Ordering::Relaxed) {
                panics.catch(|| request.wake());
            }
        }
        panics.go_on();
    }

    /// The last handle is gone: who looks from now on hears of it. [`ReadyList::wake_closed`] has to follow.
    pub(super) fn begin_close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Wakes all who wait for the file, which is closed. One who is not in the list yet looks at the file once more when it is.
    pub(super) fn wake_closed(&self, panics: &mut Panics) {
        for request in self.live() {
            panics.catch(|| request.settle(Err(request.handle.core.closed())));
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

/// A future that becomes a [`View`]; see [`PagedFile::ready`](super::PagedFile::ready).
///
/// It needs no runtime: any executor can poll it. The work is done by the memory's service thread, or by `tick()`; what that runs
/// (a store, an error hook, a waker) may poll it, too, which then does the work at once.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Ready {
    handle: Arc<Handle>,
    range: Result<Range<u64>, FileError>,
    request: Option<Arc<Request>>,
}

impl Ready {
    pub(super) fn new(handle: Arc<Handle>, range: Result<Range<u64>, FileError>) -> Ready {
        Ready {
            handle,
            range,
            request: None,
        }
    }

    /// Waits in place, without an executor, until the view is there or `timeout` is over. It can be waited for again then, or dropped
    /// at any time; see [`Later::wait_timeout`](super::Later::wait_timeout).
    ///
    /// # Errors
    /// When the time is over; inside, those of [`PagedFile::view`](super::PagedFile::view).
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Result<View, FileError>, TimedOut> {
        let core = self.handle.core.clone();
        wait_for(self, &core.cache, timeout)
    }

    fn forget_request(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.core.ready.remove(&request);
            // The result is a view, and what a waker does when it is dropped nobody knows: here, with nothing locked.
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
        let range = match &self.range {
            Ok(range) => range.clone(),
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        if let Poll::Ready(result) = self.look(&range) {
            self.forget_request();
            return Poll::Ready(result);
        }
        if self.handle.core.cache.is_served_here()
            || calls::is_below_others(Some(self.handle.core.address()))
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
                        due: AtomicBool::new(false),
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
        if is_new {
            self.handle.core.ready.add(&request);
            self.request = Some(request.clone());
            self.handle.core.cache.queue(&request);
        }
        // What was filled, or closed, between the first look and the registration; or here, with nobody left to do it.
        self.handle.core.cache.serve_waiting_if_abandoned();
        match self.look(&range) {
            Poll::Ready(result) => {
                self.forget_request();
                Poll::Ready(result)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        self.forget_request();
    }
}
