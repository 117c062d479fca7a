//! The futures that wait for bytes of a file: which of them are due to be woken, and which
//! operation wakes them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::task::{Context, Poll, Waker};

use crate::cache::errors::FileError;
use crate::cache::read::view::View;
use crate::cache::service::Cache;
use crate::exec::WakerSlot;
use crate::group::GroupId;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::due::Due;
use crate::sync::panics::Panics;
use crate::sync::{Arc, Mutex, Weak};

/// The request of one future. The future owns it. The file's list, and the job that takes the view
/// for it, have weak references to it.
#[derive(Debug)]
pub(crate) struct Request {
    cache: Arc<Cache>,
    /// The group that pays for the file.
    payer: GroupId,
    /// The blocks with the requested bytes.
    blocks: Range<u64>,
    /// Set while the future is due: the next operation on the file wakes the future when it ends.
    due: Due,
    answer: WakerSlot<Answer>,
}

/// The answer to a request.
#[derive(Debug)]
enum Answer {
    /// There is no answer yet, or it was taken.
    None,
    Some(Result<View, FileError>),
    /// The future is dropped. A result that comes later is not kept: the last reference to the
    /// request, and so the result too, might be dropped with a block locked.
    Unwanted,
}

impl Answer {
    /// Keeps the result if no other is kept and the future still wants one. Otherwise returns it.
    fn settle(&mut self, result: Result<View, FileError>) -> Option<Result<View, FileError>> {
        match self {
            Answer::None => {
                *self = Answer::Some(result);
                None
            }
            Answer::Some(_) | Answer::Unwanted => Some(result),
        }
    }

    fn take(&mut self) -> Option<Result<View, FileError>> {
        match std::mem::replace(self, Answer::None) {
            Answer::Some(result) => Some(result),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Request {
    pub(crate) fn new(cache: &Arc<Cache>, payer: GroupId, blocks: Range<u64>) -> Arc<Request> {
        Arc::new(Request {
            cache: cache.clone(),
            payer,
            blocks,
            due: Due::default(),
            answer: WakerSlot::new(Answer::None),
        })
    }

    pub(crate) fn settle(&self, result: Result<View, FileError>) {
        let (_unwanted, waker) = self.answer.settle(|answer| answer.settle(result));
        self.call(waker);
    }

    pub(crate) fn take_result(&self) -> Option<Result<View, FileError>> {
        self.answer.change(Answer::take)
    }

    /// Takes the result if there is one. Otherwise stores the waker.
    pub(crate) fn look(&self, context: &Context<'_>) -> Poll<Result<View, FileError>> {
        let take = |answer: &mut Answer| answer.take().map_or(Poll::Pending, Poll::Ready);
        self.answer.poll(context, take)
    }

    /// Drops the result and the waker. Called when the future is dropped.
    pub(crate) fn forget(&self) {
        // The result is a view, and dropping a waker may run any code: so both are dropped here,
        // with nothing locked.
        let forget = |answer: &mut Answer| std::mem::replace(answer, Answer::Unwanted);
        drop(self.answer.settle(forget));
    }

    fn wake(&self) {
        let ((), waker) = self.answer.settle(|_| {});
        self.call(waker);
    }

    fn call(&self, waker: Option<Waker>) {
        if let Some(waker) = waker {
            self.cache.wake(self.payer, waker);
        }
    }
}

/// The requests of one file. Its locks are innermost locks, and are not held while a waker is
/// called.
#[derive(Debug, Default)]
pub(crate) struct ReadyList {
    count: AtomicUsize,
    /// Whether some future may be due to be woken.
    any_due: AtomicBool,
    closed: AtomicBool,
    /// An upper bound on the number of blocks in a request. Changes under the mutex of `requests`.
    longest: AtomicU64,
    /// The requests by first block, then by address.
    requests: Mutex<BTreeMap<(u64, usize), Weak<Request>>>,
    due: Mutex<Vec<Weak<Request>>>,
}

impl Request {
    fn key(self: &Arc<Request>) -> (u64, usize) {
        (self.blocks.start, Arc::as_ptr(self) as usize)
    }
}

impl ReadyList {
    pub(crate) fn add(&self, request: &Arc<Request>) {
        let mut requests = self.requests.lock();
        let len = request.blocks.end - request.blocks.start;
        self.longest.fetch_max(len, Ordering::Relaxed);
        requests.insert(request.key(), Arc::downgrade(request));
        self.count.store(requests.len(), Ordering::SeqCst);
        drop(requests);
        // Pairs with the fence in `filled`, where it is explained why no fill is missed.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn remove(&self, request: &Arc<Request>) {
        let mut requests = self.requests.lock();
        requests.remove(&request.key());
        if requests.is_empty() {
            self.longest.store(0, Ordering::Relaxed);
        }
        self.count.store(requests.len(), Ordering::SeqCst);
    }

    /// Returns the number of requests in the list.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    pub(crate) fn live(&self) -> Vec<Arc<Request>> {
        self.live_in(0..u64::MAX)
    }

    /// Returns the requests in the list that may cover one of the blocks, except those whose
    /// futures are dropped.
    fn live_in(&self, blocks: Range<u64>) -> Vec<Arc<Request>> {
        let requests = self.requests.lock();
        let longest = self.longest.load(Ordering::Relaxed);
        let first = blocks.start.saturating_sub(longest);
        let near = requests.range((first, 0)..(blocks.end, 0));
        near.filter_map(|(_, request)| request.upgrade()).collect()
    }

    /// Notes that blocks were filled, or that their fill failed. The caller calls
    /// [`ReadyList::wake_due`] afterwards.
    ///
    /// A future that registers at this moment is not missed. The blocks were changed before the
    /// fence here, and the count is read after it. The future is counted before the fence of
    /// [`ReadyList::add`], and looks at the blocks again after that fence (`Ready::poll`). So
    /// either the future is counted here, or it sees the change.
    #[inline]
    pub(crate) fn filled(&self, blocks: Range<u64>) {
        fence(Ordering::SeqCst);
        if self.len() > 0 {
            self.note(&blocks);
        }
    }

    /// Marks all futures in the list as due, because any part of the file may have changed. The
    /// caller calls [`ReadyList::wake_due`] afterwards.
    pub(crate) fn changed(&self) {
        self.filled(0..u64::MAX);
    }

    #[cold]
    fn note(&self, blocks: &Range<u64>) {
        for request in self.live_in(blocks.clone()) {
            let wanted = &request.blocks;
            if wanted.start < blocks.end && blocks.start < wanted.end && request.due.note() {
                self.due.lock().push(Arc::downgrade(&request));
                // Release pairs with the Acquire in `wake_noted`: a thread that sees the flag there
                // also finds the request in `due`.
                self.any_due.store(true, Ordering::Release);
            }
        }
    }

    /// Gives the error to the futures that wait for a block that could not be filled. The caller
    /// calls [`ReadyList::wake_due`] afterwards.
    pub(crate) fn failed(&self, block: u64, error: &FileError) {
        if self.len() == 0 {
            return;
        }
        for request in self.live_in(block..block + 1) {
            if request.blocks.contains(&block) {
                drop((request.answer).change(|answer| answer.settle(Err(error.clone()))));
            }
        }
        self.filled(block..block + 1);
    }

    /// Whether some future may be due to be woken.
    pub(crate) fn is_any_due(&self) -> bool {
        self.any_due.load(Ordering::Relaxed)
    }

    /// Wakes the futures that are due. The caller holds no lock.
    #[inline]
    pub(crate) fn wake_due(&self) {
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

    /// Notes that the file is being closed. A future that is polled from now on sees that. The
    /// caller calls [`ReadyList::wake_closed`] afterwards.
    pub(crate) fn begin_close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Gives the error `closed` to all futures in the list that have no result yet, and wakes all
    /// of them. A panic of a waker is kept in `panics`. A future that is not yet in the list is not
    /// missed: it checks whether the file is closed after it has entered the list.
    pub(crate) fn wake_closed(&self, closed: &FileError, panics: &mut Panics) {
        for request in self.live() {
            panics.catch(|| request.settle(Err(closed.clone())));
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}
