//! A call as a future: [`Task`].
//!
//! `defer` of a file or a space takes a closure, and makes a task of it. One type serves every
//! call, so a call needs no second form to be made in the background.
//!
//! **A task's way.** The first poll queues the call in the lane of its file or space
//! ([`crate::exec`]); a job makes it there once, in the blocking way, and wakes the task. A task
//! that is dropped before that takes the call with it; a call under way runs to its end. The call
//! holds its file or space, since its writes need an owner.
//!
//! **The calling thread** is one of the memory's, or the one that ticks; if there is neither any
//! more, the one that polls. The first poll makes the call itself if nobody else could: in a thread
//! that does the memory's work, or that is in a call of another file's store.
//!
//! [`Ready`](super::Ready) differs: any operation may bring its bytes.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::errors::FileError;
use super::service::Cache;
use super::waiting::{TimedOut, wait_for};
use crate::exec::reentry;
use crate::exec::{Job, Lane, Turn};
use crate::group::{Group, GroupId, HeapBytes, LimitError, MayReclaim};
use crate::sync::{Arc, Mutex, Weak};

type Work<T, E> = Box<dyn FnOnce() -> Result<T, E> + Send>;

enum Stage<T, E> {
    New(Work<T, E>),
    UnderWay,
    /// The result, or the panic.
    Done(std::thread::Result<Result<T, E>>),
    Taken,
}

struct State<T, E> {
    stage: Stage<T, E>,
    waker: Option<Waker>,
}

/// One call, shared by its task and, weakly, its job. The lock is a leaf, held neither while the
/// call runs nor while a waker is called.
struct Call<T, E> {
    /// Pays for what it is about.
    payer: GroupId,
    state: Mutex<State<T, E>>,
}

/// A call of any type, as its job sees it.
trait Run: Send + Sync {
    fn run(&self, cache: &Cache);
}

/// A call in its lane. Unwanted once its task is dropped.
struct Queued {
    cache: Weak<Cache>,
    call: std::sync::Weak<dyn Run>,
    /// For the call and for this.
    _heap: Option<(Arc<HeapBytes>, HeapBytes)>,
}

impl Job for Queued {
    fn run(self: Box<Self>) {
        if let (Some(cache), Some(call)) = (self.cache.upgrade(), self.call.upgrade()) {
            let _here = cache.serving();
            call.run(&cache);
        }
    }

    fn is_wanted(&self) -> bool {
        self.call.strong_count() > 0
    }
}

impl<T: Send, E: Send> Run for Call<T, E> {
    fn run(&self, cache: &Cache) {
        let stage = std::mem::replace(&mut self.state.lock().stage, Stage::UnderWay);
        let Stage::New(work) = stage else {
            unreachable!("a call is queued once");
        };
        // The poll that takes the result panics in turn, as a plain call would.
        let result = catch_unwind(AssertUnwindSafe(work));
        let waker = {
            let mut state = self.state.lock();
            state.stage = Stage::Done(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            cache.wake(self.payer, waker);
        }
    }
}

impl<T, E> Call<T, E> {
    /// Takes the result, or leaves the waker to be called when it is there.
    fn look(&self, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        // Foreign code, so cloned and dropped with the lock released.
        let waker = context.waker().clone();
        let before = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut state.stage, Stage::Taken) {
                Stage::Done(Ok(result)) => return Poll::Ready(result),
                Stage::Done(Err(panic)) => {
                    drop(state);
                    resume_unwind(panic);
                }
                Stage::Taken => {
                    drop(state);
                    panic!("polled after it was done");
                }
                stage => state.stage = stage,
            }
            state.waker.replace(waker)
        };
        drop(before);
        Poll::Pending
    }
}

impl<T: Send, E: Send> Call<T, E> {
    /// Makes the call here, in a child of fork(2): nobody else would, and the call itself reports
    /// that it is refused.
    fn refuse(&self, cache: &Cache, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let is_new = match &self.state.lock().stage {
            Stage::New(_) => true,
            Stage::UnderWay => panic!("under way in the process that made the memory"),
            Stage::Done(_) | Stage::Taken => false,
        };
        if is_new {
            self.run(cache);
        }
        self.look(context)
    }
}

/// A call in the background, as a future: made by [`PagedFile::defer`](super::PagedFile::defer),
/// [`DaxFile::defer`](crate::DaxFile::defer) and [`Space::defer`](crate::Space::defer).
///
/// Any executor can poll it, and [`Task::wait_timeout`] needs none. Nothing happens before the
/// first poll, which queues the call. A task that is dropped before its turn takes the call with
/// it; a call under way runs to its end. The call holds the file or the space: if no other handle
/// is left, the file is closed when the call is over, or when the task is dropped before its turn.
///
/// **Order.** Calls of one file or space are made in the order in which they were first polled, one
/// at a time unless they may be shared
/// ([`PagedFile::defer_shared`](super::PagedFile::defer_shared)). A call that waits long, for a
/// slow store, delays only those after it.
///
/// **Thread.** A thread of the memory makes the call, or with
/// [`Threads::None`](crate::Threads::None) the thread that calls
/// [`Memory::tick`](crate::Memory::tick) or waits in [`Task::wait_timeout`]; after the `Memory` is
/// gone, the thread that polls. If code that runs in such a thread (a store, an error hook, a
/// waker, another task's call) polls a task for the first time, that makes the call there and then.
/// It must not wait for a task that was first polled elsewhere, whose turn may come after its own.
/// In a child of fork(2) the first poll makes the call: its own code runs, and its calls of the
/// file or the space are refused.
///
/// **Memory.** The group of the file or the space pays for the task and for what the call captures.
/// If it is full when the task is made, the call is not made: the task ends with the
/// [`LimitError`], as an error of the call's type.
///
/// # Panics
/// When the call panicked, and when polled again after it gave its result; in a child of fork(2),
/// when the call was under way in the parent.
#[must_use = "futures do nothing unless polled"]
pub struct Task<T, E = FileError> {
    cache: Arc<Cache>,
    /// The address of the file or space that the call is about.
    address: usize,
    lane: Arc<Lane>,
    turn: Turn,
    is_queued: bool,
    // Not the shim's `Arc`: a model checker's makes no trait objects.
    call: std::sync::Arc<Call<T, E>>,
    /// Shared with its job. The refusal, if the group had no memory for it.
    heap: Result<Option<Arc<HeapBytes>>, LimitError>,
}

/// Bytes of the counts beside a call, and of the charge that it shares with its job.
const CALL_BYTES: usize = 16 + 16 + size_of::<HeapBytes>();

/// Bytes on the heap of a job and of its place in a queue.
const QUEUED_BYTES: usize = size_of::<Queued>() + 48;

impl<T, E: From<LimitError>> Task<T, E> {
    /// `call`, about the file or space at `address` that `payer` pays for, of whose shared calls
    /// `limit` run at a time.
    pub(crate) fn new(
        cache: &Arc<Cache>,
        (address, payer): (usize, &Group),
        (turn, limit): (Turn, u32),
        call: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Task<T, E> {
        let bytes = size_of::<Call<T, E>>() + size_of_val(&call) + CALL_BYTES;
        // In a child of fork(2) the call itself says that it is refused.
        let heap = (!cache.is_foreign())
            .then(|| payer.charge_heap(bytes, MayReclaim::Clean).map(Arc::new))
            .transpose();
        let refused = heap.as_ref().err().cloned();
        let stage = match refused {
            None => Stage::New(Box::new(call)),
            Some(full) => Stage::Done(Ok(Err(full.into()))),
        };
        Task {
            cache: cache.clone(),
            address,
            lane: cache.task_lane(address, payer.id(), limit),
            turn,
            is_queued: false,
            call: std::sync::Arc::new(Call {
                payer: payer.id(),
                state: Mutex::new(State { stage, waker: None }),
            }),
            heap,
        }
    }
}

impl<T, E> std::fmt::Debug for Task<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task")
            .field("is_queued", &self.is_queued)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static, E: From<LimitError> + Send + 'static> Task<T, E> {
    /// Waits in place, without an executor, until the call is done or `timeout` is over. The task
    /// can be waited for again then, or dropped. Use this when a store that hangs must not block
    /// the caller for ever.
    ///
    /// With [`Threads::None`](crate::Threads::None) this thread makes the call, and those that were
    /// polled before it, unless another thread is in a `tick()`; it also calls the wakers and the
    /// error hook that are due. A store that hangs in a call made here blocks it for longer than
    /// `timeout`. In the handler of a [`Device`](crate::Device) this thread makes only its own
    /// call, if that was not polled before.
    ///
    /// ```
    /// # use innerspace::{FileAccess, MIB, Memory, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(4 * MIB)?;
    /// # let options = memory.options().access(FileAccess::ReadWrite);
    /// # let file = options.open(MemoryStore::new())?;
    /// let mut sync = file.defer(|file| file.sync_all());
    /// loop {
    ///     match sync.wait_timeout(std::time::Duration::from_secs(5)) {
    ///         Ok(done) => break done?,
    ///         Err(slow) => eprintln!("{}: {slow}", file.name()),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`TimedOut`] when the time is over; inside, the errors of the call.
    ///
    /// # Panics
    /// When the call panicked, and when waited for again after it gave its result. With
    /// [`Threads::None`](crate::Threads::None) also when the waker of another future, or the error
    /// hook, panics in this thread.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Result<T, E>, TimedOut> {
        let cache = self.cache.clone();
        wait_for(self, &cache, timeout)
    }
}

impl<T: Send + 'static, E: From<LimitError> + Send + 'static> Future for Task<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let is_first = !std::mem::replace(&mut self.is_queued, true);
        if self.cache.is_foreign() {
            return self.call.refuse(&self.cache, context);
        }
        if is_first
            && self.heap.is_ok()
            && (self.cache.is_served_here() || reentry::is_in_other_store_calls(self.address))
        {
            self.call.run(&self.cache);
        }
        if let Poll::Ready(result) = self.call.look(context) {
            return Poll::Ready(result);
        }
        if is_first && let Ok(heap) = &self.heap {
            let heap = match heap {
                None => None,
                Some(heap) => match heap.more(QUEUED_BYTES, MayReclaim::Clean) {
                    Ok(more) => Some((heap.clone(), more)),
                    Err(full) => {
                        // It is dropped with the lock released.
                        let mut state = self.call.state.lock();
                        let call = std::mem::replace(&mut state.stage, Stage::Taken);
                        drop(state);
                        drop(call);
                        return Poll::Ready(Err(full.into()));
                    }
                },
            };
            let call: std::sync::Arc<dyn Run> = self.call.clone();
            let job = Box::new(Queued {
                cache: Arc::downgrade(&self.cache),
                call: std::sync::Arc::downgrade(&call),
                _heap: heap,
            });
            self.cache.push(&self.lane, self.turn, job);
        }
        match self.cache.serve_waiting_if_abandoned() {
            true => self.call.look(context),
            false => Poll::Pending,
        }
    }
}
