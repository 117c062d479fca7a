//! Calls as futures: [`LaterCalls`] has those of a file that may wait, each as a [`Later`]. The
//! layers above have their own.
//!
//! Where a [`Ready`](super::Ready) asks for bytes that anybody may bring, a `Later` is a call of
//! its own: queued in its file's lane ([`crate::exec`]) at the first poll, run there in the
//! blocking way, once. A future that is dropped before its turn takes the call along; one under way
//! runs to its end. The call keeps what it is of (its file open), for what it wrote has to be kept
//! by somebody.

use std::future::Future;
use std::ops::{Range, RangeBounds};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::PagedFile;
use super::calls;
use super::errors::FileError;
use super::service::Cache;
use super::serving::Serving;
use super::waiting::{TimedOut, wait_for};
use crate::exec::{Job, Lane, Turn};
use crate::sync::{Arc, Mutex, Weak};
use crate::units::PageCount;

/// The calls of a file that may wait, as futures; see [`PagedFile::later`].
///
/// Each does what the call of the same name does, on a thread of the memory's (or in `tick()`).
/// Calls of one file are made in the order in which they were first polled; those that only read
/// run side by side, as many as the store serves at a time
/// ([`Limits::requests`](crate::store::Limits::requests)), the others alone. Nothing happens before
/// the first poll. A call that waits long, for a slow store, keeps those of its file waiting and no
/// others. An open end of a range is the end of the file when the future is made. With
/// [`Threads::None`](crate::Threads::None), when the `Memory` is gone, the calls are made by
/// whoever polls one.
///
/// What such a thread itself runs (a store, an error hook, a waker) may poll a future for the first
/// time, which makes the call there and then, but must not wait for one that was polled elsewhere:
/// that waits for this thread.
#[derive(Debug)]
pub struct LaterCalls<'file>(&'file PagedFile);

impl<'file> LaterCalls<'file> {
    pub(super) fn new(file: &'file PagedFile) -> LaterCalls<'file> {
        LaterCalls(file)
    }

    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&PagedFile) -> Result<T, FileError> + Send + 'static,
    ) -> Later<T> {
        self.call_in(Turn::Alone, work)
    }

    fn call_in<T: Send + 'static>(
        &self,
        turn: Turn,
        work: impl FnOnce(&PagedFile) -> Result<T, FileError> + Send + 'static,
    ) -> Later<T> {
        let file = self.0.same_handle();
        let (cache, address) = (file.core().cache.clone(), file.core().address());
        let lane = cache.task_lane(address, file.core().at_a_time);
        Later::in_lane(cache, Some(address), (lane, turn), move || work(&file))
    }

    /// The bytes of a range, as [`PagedFile::read_exact_at`] reads them; any length, in memory of
    /// the caller's own.
    pub fn read(&self, range: impl RangeBounds<u64>) -> Later<Vec<u8>> {
        let range = self.0.bytes(range);
        self.call_in(Turn::Shared, move |file| {
            let Range { start, end } = range?;
            if end > file.len() {
                return Err(file.core().past_end(start, end - start, file.len()));
            }
            let mut bytes = Vec::new();
            let len = usize::try_from(end - start).unwrap_or(usize::MAX);
            if bytes.try_reserve_exact(len).is_err() {
                return Err(FileError::NoMemory {
                    file: file.core().name.clone(),
                    len: end - start,
                });
            }
            bytes.resize(len, 0);
            file.read_exact_at(&mut bytes, start)?;
            Ok(bytes)
        })
    }

    /// [`PagedFile::write_at`].
    pub fn write_at(&self, bytes: impl Into<Vec<u8>>, offset: u64) -> Later<()> {
        let bytes = bytes.into();
        self.call(move |file| file.write_at(&bytes, offset))
    }

    /// [`PagedFile::append`].
    pub fn append(&self, bytes: impl Into<Vec<u8>>) -> Later<u64> {
        let bytes = bytes.into();
        self.call(move |file| file.append(&bytes))
    }

    /// [`PagedFile::set_len`].
    pub fn set_len(&self, len: u64) -> Later<()> {
        self.call(move |file| file.set_len(len))
    }

    /// [`PagedFile::punch`].
    pub fn punch(&self, range: impl RangeBounds<u64>) -> Later<()> {
        let range = self.0.bytes(range);
        self.call(move |file| file.punch(range?))
    }

    /// [`PagedFile::sync_data`].
    pub fn sync_data(&self) -> Later<()> {
        self.call(PagedFile::sync_data)
    }

    /// [`PagedFile::sync_all`].
    pub fn sync_all(&self) -> Later<()> {
        self.call(PagedFile::sync_all)
    }

    /// [`PagedFile::sync_range`].
    pub fn sync_range(&self, range: impl RangeBounds<u64>) -> Later<()> {
        let range = self.0.bytes(range);
        self.call(move |file| file.sync_range(range?))
    }

    /// [`PagedFile::discard`].
    pub fn discard(&self) -> Later<()> {
        self.call(PagedFile::discard)
    }

    /// [`PagedFile::invalidate`].
    pub fn invalidate(&self, range: impl RangeBounds<u64>) -> Later<PageCount> {
        let range = self.0.bytes(range);
        self.call(move |file| file.invalidate(range?))
    }

    /// [`PagedFile::evict`].
    pub fn evict(&self, range: impl RangeBounds<u64>) -> Later<PageCount> {
        let range = self.0.bytes(range);
        self.call(move |file| file.evict(range?))
    }

    /// [`PagedFile::prefetch`].
    pub fn prefetch(&self, range: impl RangeBounds<u64>) -> Later<()> {
        let range = self.0.bytes(range);
        self.call_in(Turn::Shared, move |file| file.prefetch(range?))
    }
}

type Work<T, E> = Box<dyn FnOnce() -> Result<T, E> + Send>;

enum Stage<T, E> {
    New(Work<T, E>),
    UnderWay,
    /// What it gave, or how it panicked.
    Done(std::thread::Result<Result<T, E>>),
    Taken,
}

struct State<T, E> {
    stage: Stage<T, E>,
    waker: Option<Waker>,
}

/// One call, shared by its future and, weakly, the service's queue. The lock is a leaf, held
/// neither while the call runs nor while a waker is called.
struct Call<T, E> {
    state: Mutex<State<T, E>>,
}

/// What a job runs.
trait Run: Send + Sync {
    fn run(&self, cache: &Cache);
}

/// A call in its lane. It is gone with its future.
struct Queued {
    cache: Weak<Cache>,
    call: std::sync::Weak<dyn Run>,
}

impl Job for Queued {
    fn run(self: Box<Self>) {
        if let (Some(cache), Some(call)) = (self.cache.upgrade(), self.call.upgrade()) {
            let _here = Serving::begin(&cache);
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
        // A panic is its caller's, as that of a plain call would be.
        let result = catch_unwind(AssertUnwindSafe(work));
        let waker = {
            let mut state = self.state.lock();
            state.stage = Stage::Done(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            cache.wake(waker);
        }
    }
}

impl<T, E> Call<T, E> {
    /// What it gave, or who is to be woken.
    fn look(&self, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        // Foreign code, too: cloned and dropped outside the lock.
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
    /// In a child of fork(2), where nobody else makes the call: it is made here, and says why it is
    /// not to be had.
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

/// A call of a file, or of a space, as a future; see [`LaterCalls`],
/// [`LaterDaxCalls`](crate::LaterDaxCalls) and [`LaterSpaceCalls`](crate::LaterSpaceCalls).
///
/// It needs no runtime: any executor can poll it. Dropped before its turn, it takes the call along;
/// a call under way runs to its end. Dropped before its turn, it closes the file if no other handle
/// is left, as a handle does.
///
/// # Panics
/// When the call panicked, and when polled again after it gave its result; in a child of fork(2),
/// when the call was under way in the parent.
#[must_use = "futures do nothing unless polled"]
pub struct Later<T, E = FileError> {
    cache: Arc<Cache>,
    /// Where the file is, which the call keeps there, if it is the call of one.
    file: Option<usize>,
    /// Where it is queued, and beside what it runs there.
    lane: (Arc<Lane>, Turn),
    is_queued: bool,
    // Not the shim's `Arc`: a model checker's makes no trait objects.
    call: std::sync::Arc<Call<T, E>>,
}

impl<T, E> Later<T, E> {
    /// `work`, done once in the background, after the calls of whatever is at `address` that were
    /// polled before it.
    pub(crate) fn new(
        cache: Arc<Cache>,
        address: usize,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Later<T, E> {
        let lane = cache.task_lane(address, 1);
        Later::in_lane(cache, None, (lane, Turn::Alone), work)
    }

    /// `work`, done once by a job of a lane: a call of the file at this address, if of a file.
    fn in_lane(
        cache: Arc<Cache>,
        file: Option<usize>,
        lane: (Arc<Lane>, Turn),
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Later<T, E> {
        Later {
            cache,
            file,
            lane,
            is_queued: false,
            call: std::sync::Arc::new(Call {
                state: Mutex::new(State {
                    stage: Stage::New(Box::new(work)),
                    waker: None,
                }),
            }),
        }
    }
}

impl<T, E> std::fmt::Debug for Later<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Later")
            .field("is_queued", &self.is_queued)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static, E: Send + 'static> Later<T, E> {
    /// Waits in place, without an executor, until the call is done or `timeout` is over. It can be
    /// waited for again then; dropped, it ends as it says above. For who must not wait for ever for
    /// a store that hangs.
    ///
    /// With [`Threads::None`](crate::Threads::None) this thread makes the call, and those that were
    /// polled before, unless another is in a `tick()`, and calls the wakers and the error hook that
    /// are due; a store that hangs in a call of its own keeps it for longer. In the handler of a
    /// [`Device`](crate::Device) it makes its own call alone, if that was not polled before.
    ///
    /// ```
    /// # use innerspace::{FileAccess, MIB, Memory, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(4 * MIB)?;
    /// # let options = memory.options().access(FileAccess::ReadWrite);
    /// # let file = options.open(MemoryStore::new())?;
    /// let mut sync = file.later().sync_all();
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
    /// When the time is over; inside, those of the call.
    ///
    /// # Panics
    /// When the call panicked, and when waited for again after it gave its result. With
    /// [`Threads::None`](crate::Threads::None) also when a waker of another future, or the error
    /// hook, panicked that this thread called.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Result<T, E>, TimedOut> {
        let cache = self.cache.clone();
        wait_for(self, &cache, timeout)
    }
}

impl<T: Send + 'static, E: Send + 'static> Future for Later<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let is_first = !std::mem::replace(&mut self.is_queued, true);
        if self.cache.is_foreign() {
            return self.call.refuse(&self.cache, context);
        }
        if is_first && (self.cache.is_served_here() || calls::is_below_others(self.file)) {
            self.call.run(&self.cache);
        }
        if let Poll::Ready(result) = self.call.look(context) {
            return Poll::Ready(result);
        }
        if is_first {
            let call: std::sync::Arc<dyn Run> = self.call.clone();
            let (lane, turn) = &self.lane;
            let job = Box::new(Queued {
                cache: Arc::downgrade(&self.cache),
                call: std::sync::Arc::downgrade(&call),
            });
            self.cache.push(lane, *turn, job);
        }
        match self.cache.serve_waiting_if_abandoned() {
            true => self.call.look(context),
            false => Poll::Pending,
        }
    }
}
