//! How a space is used: [`Space::accessor`] makes a handle for accesses, [`Space::defer`] makes any
//! call in the background, [`Space::ready`] waits until an access can be made without waiting.
//!
//! `ready` brings in pages as accesses do, through an accessor of its own. The first poll does so
//! without waiting. If a page would block, a [`Task`] brings in all of them again, by the blocking
//! form. The future leaves words in the page table, as any access does, and nothing else.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::VirtAddr;
use crate::cache::{Task, TimedOut, call_and_drop, wait_for};
use crate::exec::Turn;
use crate::group::LimitError;
use crate::reclaim::AllocMode;
use crate::space::access::accessor::Accessor;
use crate::space::access::single::{Sectioned, Single};
use crate::space::core::error::SpaceError;
use crate::space::core::fault::{AccessKind, Fault};
use crate::space::core::space::Space;
use crate::sync::Arc;

impl Space {
    /// Creates an accessor: the handle through which one thread at a time loads and stores. It
    /// takes the memory of two pages, for which the space's group is charged.
    ///
    /// # Errors
    /// [`LimitError`] if the group has no room for it.
    pub fn accessor(&self) -> Result<Accessor, LimitError> {
        Accessor::new(self, AllocMode::Wait)
    }

    /// Makes `call` with this space in the background, once: see [`Task`].
    ///
    /// Calls on one space are made one at a time, in the order in which their tasks were first
    /// polled. If a task is first polled in a callback of a store, its call is made inside that
    /// poll. If the call uses the space or file for which the callback runs, it is refused
    /// ([`SpaceError::Reentered`], or the file's error of that name). A task that is first polled
    /// in the handler of a device waits for its turn. With [`Threads::None`](crate::Threads::None),
    /// a handler that waits for a task in place ([`Task::wait_timeout`]) makes the call itself.
    ///
    /// Besides waiting for their turn, these calls may wait:
    ///
    /// - `sync`, and `advise` to read or to evict: for a store
    /// - `populate`, `lock` and `pin`, and an accessor's `copy_from`, `gather` and `watch_code`:
    ///   for a store, for memory, for other changes of the space and for open sections
    /// - `unmap`, `map` over other mappings, `remap` and `restore`: for memory, for other changes
    ///   and open sections, and for a store if they are the last to keep a file open
    /// - `protect`, `fork` and `freeze`: for memory, and for other changes and open sections
    ///
    /// Waiting for memory includes waiting for a store, if pages have to be written first. A
    /// section is open during an access, or in a [`Session`](crate::space::Session) until its next
    /// safepoint. So if groups have room, a fork or a restore takes microseconds and is best called
    /// directly.
    ///
    /// ```
    /// # use innerspace::{Accessor, VirtAddr};
    /// type Error = Box<dyn std::error::Error>;
    ///
    /// async fn save(a: &mut Accessor, at: VirtAddr, bytes: &[u8]) -> Result<(), Error> {
    ///     let (space, len) = (a.space(), bytes.len() as u64);
    ///     loop {
    ///         match a.try_write(at, bytes) {
    ///             Err(fault) if fault.would_block() => {
    ///                 space.ready(fault.address(), 1, fault.access()).await?;
    ///             }
    ///             written => break written?,
    ///         }
    ///     }
    ///     Ok(space.defer(move |space| space.sync(at, len)).await?)
    /// }
    /// ```
    pub fn defer<T: Send + 'static, E: From<LimitError> + Send + 'static>(
        &self,
        call: impl FnOnce(&Space) -> Result<T, E> + Send + 'static,
    ) -> Task<T, E> {
        let space = self.clone();
        let about = (Arc::as_ptr(&self.0) as usize, self.group());
        let turn = (Turn::Alone, 1);
        Task::new(&self.0.cache, about, turn, move || {
            call_and_drop(space, call)
        })
    }

    /// Returns a future that waits until `len` bytes at `at`, at any alignment, can be accessed
    /// without waiting, by an access of this kind. Await it when a `try_` form of an [`Accessor`]
    /// would block. It needs no runtime; the memory's service thread (or `tick()`) does the work.
    ///
    /// The pages are then in memory and mapped, as after such an access. For stores this means that
    /// private pages are copied, new ones are allocated, and pages of shared mappings count as
    /// dirty. The future does not keep the pages in memory: under pressure they may be evicted
    /// before the access, which then blocks again. A range that does not fit in memory is never
    /// present as a whole.
    ///
    /// ```
    /// # use innerspace::{Accessor, VirtAddr};
    /// type Error = Box<dyn std::error::Error>;
    ///
    /// async fn load(a: &mut Accessor, at: VirtAddr) -> Result<u64, Error> {
    ///     loop {
    ///         match a.try_load::<u64>(at) {
    ///             Err(fault) if fault.would_block() => {
    ///                 a.space().ready(at, 8, fault.access()).await?;
    ///             }
    ///             loaded => return Ok(loaded?),
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`SpaceError::Access`] for the first page that cannot be accessed, with its address and the
    /// reason; [`SpaceError::Limit`] if the group has no room for the [`Task`] that waits.
    pub fn ready(&self, at: VirtAddr, len: u64, access: AccessKind) -> SpaceReady {
        SpaceReady {
            space: self.clone(),
            wanted: (at, usize::try_from(len).unwrap_or(usize::MAX), access),
            call: None,
        }
    }
}

/// Brings in the pages of `len` bytes at `at` for this kind of access.
fn ensure_ready<S: Sectioned>(
    space: &Space,
    (at, len, access): (VirtAddr, usize, AccessKind),
) -> Result<(), Fault> {
    let accessor = Accessor::new(space, S::WAIT.alloc_mode());
    let mut accessor = accessor.map_err(|error| space.0.limit_fault(at, access, error))?;
    let core = &mut accessor.core;
    for (start, _) in space.0.pieces(at, len) {
        if let Err(fault) = core.ensure_page_in::<S>(VirtAddr(start), access) {
            // Each access to a device's page is a call, so there is nothing to prepare.
            core.device_of(fault)?;
        }
    }
    Ok(())
}

/// A future that waits for pages of a space; see [`Space::ready`].
///
/// Any executor can poll it. If it is dropped before the turn of its blocking call, that call is
/// not made.
///
/// # Panics
/// Panics if the store of a mapped file panics. Once the first poll has found that a page would
/// block, it also panics, as a [`Task`] does, if polled again after it has returned its result.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct SpaceReady {
    space: Space,
    wanted: (VirtAddr, usize, AccessKind),
    /// The blocking call, which is made if the first poll finds that a page would block.
    call: Option<Task<(), SpaceError>>,
}

impl SpaceReady {
    /// Waits in place, without an executor, until the pages are present or `timeout` has passed.
    /// After a timeout the future can be waited for again; it can be dropped at any time. See
    /// [`Task::wait_timeout`].
    ///
    /// # Errors
    /// [`TimedOut`] if `timeout` has passed; the inner result has the errors of the future.
    ///
    /// # Panics
    /// As [`Task::wait_timeout`] does.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Result<(), SpaceError>, TimedOut> {
        let cache = self.space.0.cache.clone();
        wait_for(self, &cache, timeout)
    }
}

impl Future for SpaceReady {
    type Output = Result<(), SpaceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let wanted = self.wanted;
        let not_ready = |space: &Space, fault| space.0.access_error("ready", fault);
        let SpaceReady { space, call, .. } = &mut *self;
        let call = match call {
            Some(call) => call,
            None => match ensure_ready::<Single<false>>(space, wanted) {
                Err(fault) if fault.would_block() => call.insert(space.defer(move |space| {
                    ensure_ready::<Single>(space, wanted).map_err(|fault| not_ready(space, fault))
                })),
                taken => return Poll::Ready(taken.map_err(|fault| not_ready(space, fault))),
            },
        };
        Pin::new(call).poll(context)
    }
}
