//! Futures without a runtime: [`Ready`] resolves to a view once the bytes are in memory.
//!
//! A future that finds bytes missing puts the missing blocks in flight itself, if it can do so
//! without waiting, and is woken when they have landed. So thousands of futures need no threads.
//! Otherwise (for example, the store has to be asked for its version first, memory is short, or a
//! block is being written) the future queues a job in the file's lane. The job takes the view in
//! the blocking way and hands it over. The future is also woken when one of its blocks is filled by
//! another operation, when the file is cut, and when it is closed. Dropping the future drops its
//! request. A future that is polled by a job (for example in a store that reads through it) takes
//! the view in that poll, since there may be no other thread to do it.
//!
//! A waker is foreign code, which may immediately make another call on the same file. So wakers are
//! called with no lock held. An operation that fills or cuts notes which futures are due, and wakes
//! them after it has released everything. A close wakes them when the store can be opened again. In
//! three cases the waking is left to a job:
//!
//! - After a request has landed. The request's own job wakes the futures at its end, or another job
//!   does ([`wake_due_elsewhere`](crate::cache::core::FileCore::wake_due_elsewhere)).
//! - After an operation that may hold locks of another file, because it is in a call to that file's
//!   store or in reclaim ([`Cache::wake`](crate::cache::Cache::wake)).
//! - After an operation on a thread of the program, if the memory has threads (also `Cache::wake`).
//!
//! So if the memory has threads, a waker that hangs holds up only one of them, which counts against
//! the share of the group that pays for the future.

use std::future::Future;
use std::ops::{Range, RangeBounds};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::cache::core::handle::Handle;
use crate::cache::core::ready_list::Request;
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::file::handle::PagedFile;
use crate::cache::read::view::View;
use crate::cache::wait::Wait;
use crate::cache::waiting::{TimedOut, wait_for};
use crate::exec::{Job, Lane, Turn, reentry};
use crate::group::{HeapBytes, MayReclaim};
use crate::sync::panics::Panics;
use crate::sync::{Arc, Weak};

/// A future that resolves to a [`View`]; see [`PagedFile::ready`](crate::cache::PagedFile::ready).
///
/// It needs no runtime: any executor can poll it. Missing blocks are read concurrently, as many as
/// the store serves at a time, by threads of the memory or by `tick()`. Code that these threads
/// call (a store, an error hook, a waker) may also poll the future. The future then does the work
/// in that poll.
#[must_use = "futures do nothing unless polled"]
pub struct Ready {
    handle: Arc<Handle>,
    range: Result<Range<u64>, FileError>,
    request: Option<Arc<Request>>,
    /// The charge for the request and its job.
    heap: Option<HeapBytes>,
    /// How many times the missing blocks were put in flight.
    flights: u32,
    /// Whether a job that takes the view was queued.
    is_queued: bool,
    /// The lane that the job is in.
    lane: Option<Arc<Lane>>,
}

impl PagedFile {
    /// Returns a future that resolves to a view of the range. It needs no runtime: threads of the
    /// memory (or `tick()`) do the work.
    ///
    /// The file's group pays for the future while it waits. If the group is full, the future
    /// resolves to [`FileError::Limit`].
    pub fn ready(&self, range: impl RangeBounds<u64>) -> Ready {
        Ready::new(self.handle().clone(), self.bytes(range))
    }
}

/// A job that takes the view of a request, unless its future was dropped.
struct Take {
    request: Weak<Request>,
    handle: Weak<Handle>,
    range: Range<u64>,
}

impl Job for Take {
    fn run(self: Box<Self>) {
        let Some((request, handle)) = self.request.upgrade().zip(self.handle.upgrade()) else {
            return;
        };
        let core = &handle.core;
        let _here = core.cache.serving();
        let bytes = (self.range.start, self.range.end - self.range.start);
        let mut panics = Panics::default();
        // A result is set even if the store panicked, since the job is not run again.
        let view = || handle.view(self.range.clone(), Wait::Yes);
        let result = core.caught(&mut panics, StoreAction::Read, bytes, view);
        panics.catch(|| request.settle(result));
        panics.go_on();
    }

    fn is_wanted(&self) -> bool {
        self.request.strong_count() > 0
    }
}

/// The heap bytes of a future that waits: its request, a place in the file's list, a job in a lane.
const READY_BYTES: usize = size_of::<Request>() + size_of::<Take>() + 90;

/// How many times, at most, a future puts its missing blocks in flight. If they are evicted each
/// time before the future looks at them, a job fills the blocks and holds them.
const MOST_FLIGHTS: u32 = 2;

impl Ready {
    pub(super) fn new(handle: Arc<Handle>, range: Result<Range<u64>, FileError>) -> Ready {
        Ready {
            handle,
            range,
            request: None,
            heap: None,
            flights: 0,
            is_queued: false,
            lane: None,
        }
    }

    /// Queues a job that takes the view.
    fn queue(&mut self, request: &Arc<Request>, range: &Range<u64>) {
        if !std::mem::replace(&mut self.is_queued, true) {
            let core = &self.handle.core;
            let lane =
                core.cache
                    .task_lane(core.address(), core.id.group.id(), core.store.at_a_time);
            let take = Box::new(Take {
                request: Arc::downgrade(request),
                handle: Arc::downgrade(&self.handle),
                range: range.clone(),
            });
            core.cache.push(&lane, Turn::Shared, take);
            self.lane = Some(lane);
        }
    }

    /// Waits in place, without an executor, until the view is ready or `timeout` has passed. After
    /// a timeout, the future can be waited for again, or dropped at any time; see
    /// [`Task::wait_timeout`](crate::cache::Task::wait_timeout).
    ///
    /// # Errors
    /// [`TimedOut`] if the timeout passes first. The inner result has the errors of
    /// [`PagedFile::view`](crate::cache::PagedFile::view).
    ///
    /// # Panics
    /// With [`Threads::None`](crate::Threads::None), if other code of the program panics in this
    /// thread, such as the waker of another future or the error hook.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Result<View, FileError>, TimedOut> {
        let core = self.handle.core.clone();
        wait_for(self, &core.cache, timeout)
    }

    fn forget_request(&mut self) {
        if let Some(request) = self.request.take() {
            self.handle.core.ready.remove(&request);
            request.forget();
            self.heap = None;
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
            // No other thread can serve the request before this one continues.
            let known = self.request.as_ref().and_then(|of| of.take_result());
            let result = known.unwrap_or_else(|| self.handle.view(range, Wait::Yes));
            self.forget_request();
            return Poll::Ready(result);
        }
        let core = self.handle.core.clone();
        let blocks = core.blocks_of(range.clone());
        let (request, is_new) = match &self.request {
            Some(request) => (request.clone(), false),
            None => {
                match core.id.group.charge_heap(READY_BYTES, MayReclaim::Clean) {
                    Ok(heap) => self.heap = Some(heap),
                    Err(full) => return Poll::Ready(Err(full.into())),
                }
                let group = core.id.group.id();
                (Request::new(&core.cache, group, blocks.clone()), true)
            }
        };
        if let Poll::Ready(result) = request.look(context) {
            self.forget_request();
            return Poll::Ready(result);
        }
        if is_new {
            core.ready.add(&request);
            self.request = Some(request.clone());
        }
        if !self.is_queued {
            match self.flights < MOST_FLIGHTS && core.begin_fills(blocks.clone()) {
                true => self.flights += 1,
                false => self.queue(&request, &range),
            }
        }
        // Does the work here if no other thread is left to do it. Then looks again, for fills and
        // closes that came between the first look and the registration.
        core.cache.serve_waiting_if_abandoned();
        match self.look(&range) {
            Poll::Ready(result) => {
                self.forget_request();
                Poll::Ready(result)
            }
            Poll::Pending => {
                // If the blocks have already landed, nothing wakes the future again. So a job takes
                // the view, unless one was already queued.
                if !self.is_queued && !core.is_in_flight(&blocks) {
                    self.queue(&request, &range);
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
            // In a child of fork(2), one of the parent's locks may be held for ever.
            Err(_) => std::mem::forget((self.request.take(), self.lane.take())),
        }
    }
}
