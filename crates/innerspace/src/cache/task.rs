//! [`Task`]: a call as a future.
//!
//! `defer` of a file or a space takes a closure and makes a task of it. One type serves every call,
//! so that no call needs a second form for the background.
//!
//! **The course of a task.** The first poll queues the call in the lane of its file or space
//! ([`crate::exec`]). A job makes the call there once, in the blocking way, and wakes the task. If
//! the task is dropped before that, the call is not made; a call under way runs to its end. The
//! call keeps its file or space open, since the data that it writes needs an owner.
//!
//! **The thread that makes the call** is a thread of the memory. Without such threads, it is one
//! that calls `tick` or waits in [`Task::wait_timeout`]; after the `Memory` is dropped, one that
//! polls. The first poll makes the call itself if no other thread could: in a thread that does the
//! memory's work, or that is in a call to another file's store.
//!
//! [`Ready`](super::Ready) differs: any operation may bring its bytes into memory.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::errors::FileError;
use super::service::Cache;
use super::waiting::{TimedOut, wait_for};
use crate::exec::{Job, Lane, Turn, WakerSlot, reentry};
use crate::group::{Group, GroupId, HeapBytes, LimitError, MayReclaim};
use crate::sync::panics::caught;
use crate::sync::{Arc, Weak};

type Work<T, E> = Box<dyn FnOnce() -> Result<T, E> + Send>;

enum Stage<T, E> {
    New(Work<T, E>),
    UnderWay,
    /// The result of the call, or its panic.
    Done(std::thread::Result<Result<T, E>>),
    Taken,
}

impl<T, E> Stage<T, E> {
    fn replace(&mut self, next: Stage<T, E>) -> Stage<T, E> {
        std::mem::replace(self, next)
    }
}

/// One call. Its task owns it, and its job has a weak reference to it.
struct Call<T, E> {
    /// The group that pays for the file or space of the call.
    payer: GroupId,
    stage: WakerSlot<Stage<T, E>>,
}

/// Makes a call on a file or space, and then drops `handle`, which may be the last one. If that
/// closes a file, its store may panic here. The handle is not dropped together with the closure,
/// because a panic in that drop would leak the closure's result. Here the result is a local value,
/// which unwinding drops.
pub(crate) fn call_and_drop<H, R>(handle: H, call: impl FnOnce(&H) -> R) -> R {
    let result = call(&handle);
    drop(handle);
    result
}

/// A call whose types are erased, for its job.
trait Run: Send + Sync {
    fn run(&self, cache: &Cache);
}

/// A job that makes a call in its lane. It is no longer wanted once the task of the call is
/// dropped.
struct Queued {
    cache: Weak<Cache>,
    call: std::sync::Weak<dyn Run>,
    /// The charges for the call and for this job.
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
        let Stage::New(work) = self.stage.change(|stage| stage.replace(Stage::UnderWay)) else {
            unreachable!("a call is queued once");
        };
        // If the call panics, the poll that takes the result panics in turn, as a plain call would.
        let result = caught(work);
        let (_, waker) = self
            .stage
            .settle(|stage| stage.replace(Stage::Done(result)));
        if let Some(waker) = waker {
            cache.wake(self.payer, waker);
        }
    }
}

impl<T, E> Call<T, E> {
    /// Takes the result, or stores the waker to be called when there is a result. Panics if the
    /// call panicked, or if the result was taken before.
    fn look(&self, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let take = |stage: &mut Stage<T, E>| match stage {
            Stage::New(_) | Stage::UnderWay => Poll::Pending,
            Stage::Done(_) | Stage::Taken => Poll::Ready(stage.replace(Stage::Taken)),
        };
        self.stage.poll(context, take).map(|stage| match stage {
            Stage::Done(Ok(result)) => result,
            Stage::Done(Err(panic)) => resume_unwind(panic),
            _ => panic!("polled after it was done"),
        })
    }
}

impl<T: Send, E: Send> Call<T, E> {
    /// Polls the task in a child of fork(2), where no other thread would make its call: makes the
    /// call in this thread, unless it has already been made. The call itself reports that it is
    /// refused. Panics if the call was under way in the parent.
    fn refuse(&self, cache: &Cache, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let is_new = self.stage.change(|stage| match stage {
            Stage::New(_) => true,
            Stage::UnderWay => panic!("under way in the process that made the memory"),
            Stage::Done(_) | Stage::Taken => false,
        });
        if is_new {
            self.run(cache);
        }
        self.look(context)
    }
}

/// A call in the background, as a future. Created by [`PagedFile::defer`](super::PagedFile::defer),
/// [`DaxFile::defer`](crate::DaxFile::defer) and [`Space::defer`](crate::Space::defer).
///
/// Any executor can poll it, and [`Task::wait_timeout`] needs none. Nothing happens before the
/// first poll, which queues the call. If the task is dropped before its turn, the call is not made;
/// a call under way runs to its end. The call holds the file or the space: if no other handle is
/// left, the file is closed when the call ends, or when the task is dropped before its turn.
///
/// **Order.** Calls on one file or space are made in the order in which they were first polled, one
/// at a time unless they may be shared
/// ([`PagedFile::defer_shared`](super::PagedFile::defer_shared)). A call that waits a long time for
/// a slow store delays only the calls after it.
///
/// **Thread.** A thread of the memory makes the call. With [`Threads::None`](crate::Threads::None),
/// the thread that calls [`Memory::tick`](crate::Memory::tick) or waits in [`Task::wait_timeout`]
/// makes it; after the `Memory` is dropped, the thread that polls. If code in such a thread (a
/// store, an error hook, a waker, another task's call) polls a task for the first time, that poll
/// makes the call. Such code must not wait for a task that was first polled elsewhere, whose turn
/// may come after its own. In a child of fork(2), the first poll makes the call: its own code runs,
/// and its calls on the file or the space are refused.
///
/// **Memory.** The group of the file or the space pays for the task and for the values that the
/// call captures. If the group is full when the task is created or first polled, the call is not
/// made: the task ends with the [`LimitError`], as an error of the call's type.
///
/// # Panics
/// If the call panicked, and if polled again after it has given its result. In a child of fork(2),
/// if the call was under way in the parent.
#[must_use = "futures do nothing unless polled"]
pub struct Task<T, E = FileError> {
    cache: Arc<Cache>,
    /// The address of the file or space that the call uses.
    address: usize,
    lane: Arc<Lane>,
    turn: Turn,
    is_queued: bool,
    // Not the shim's `Arc`, which cannot hold a trait object under a model checker.
    call: std::sync::Arc<Call<T, E>>,
    /// The charge, shared with the job; or the refusal, if the group had no memory for it. `None`
    /// in a child of fork(2), where nothing is charged.
    heap: Result<Option<Arc<HeapBytes>>, LimitError>,
}

/// The heap bytes of the reference counts next to a call, and of the charge that it shares with its
/// job.
const CALL_BYTES: usize = 16 + 16 + size_of::<HeapBytes>();

/// The heap bytes of a job and of its place in a queue.
const QUEUED_BYTES: usize = size_of::<Queued>() + 48;

impl<T, E: From<LimitError>> Task<T, E> {
    /// Creates a task for `call`, which uses the file or space at `address`. `payer` pays for the
    /// task. At most `limit` shared calls on the file or space run at a time.
    pub(crate) fn new(
        cache: &Arc<Cache>,
        (address, payer): (usize, &Group),
        (turn, limit): (Turn, u32),
        call: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Task<T, E> {
        let bytes = size_of::<Call<T, E>>() + size_of_val(&call) + CALL_BYTES;
        // Nothing is charged in a child of fork(2), where the call itself reports that it is
        // refused.
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
                stage: WakerSlot::new(stage),
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
    /// Waits in place, without an executor, until the call is done or `timeout` has passed. After a
    /// timeout, the task can be waited for again, or dropped. Use this when a store that hangs must
    /// not block the caller for ever.
    ///
    /// With [`Threads::None`](crate::Threads::None), this thread makes the call, unless another
    /// thread is in a `tick()`. It also makes the other calls that are queued, for any file or
    /// space of the memory, and calls the wakers and the error hook that are due. A store that
    /// hangs in a call made here blocks this thread for longer than `timeout`. In the handler of a
    /// [`Device`](crate::space::Device), this thread makes only this task's call, and only if the
    /// task was not polled before.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, file::FileAccess, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(4 * MIB)?;
    /// # let options = memory.file_options().access(FileAccess::ReadWrite);
    /// # let file = options.open_store(MemoryStore::new())?;
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
    /// [`TimedOut`] if the timeout passes first. The inner result has the errors of the call.
    ///
    /// # Panics
    /// If the call panicked, and if waited for again after it has given its result. With
    /// [`Threads::None`](crate::Threads::None), also if other code of the program panics in this
    /// thread, such as the waker of another future or the error hook.
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
                        // The call is dropped only after the lock is released.
                        let taken = self.call.stage.change(|stage| stage.replace(Stage::Taken));
                        drop(taken);
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
