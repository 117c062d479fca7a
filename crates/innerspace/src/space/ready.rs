//! A future to wait for what an access would have waited for: [`Space::ready`].
//!
//! The pages are had as accesses have them, by an accessor of the future's own: at the first poll
//! those that take no waiting; if there are others, then all once more by whoever serves the
//! memory's futures, in the blocking way, as one call of the space ([`Later`]). What that leaves
//! are words in the page table, as any access does: nothing is held for the future.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::access::{Core, Sectioned, Single};
use super::at_once::AtOnce;
use super::error::{AccessKind, Fault};
use super::{Space, SpaceError};
use crate::VirtAddr;
use crate::cache::{Later, TimedOut, wait_for};

impl Space {
    /// A future that is done when `len` bytes at `at`, at any alignment, can be so accessed without
    /// waiting: what to wait for when a `try_` form of an [`Accessor`](crate::Accessor) says that
    /// it would block. It needs no runtime; the memory's service thread (or `tick()`) does the
    /// work.
    ///
    /// The pages are in memory and mapped then, as after such an access. For stores that means that
    /// private pages are copied, new ones taken, and those of shared mappings counted as dirty.
    /// They are kept by nothing: under pressure they may be gone again before the access comes,
    /// which then waits once more, and a range that does not fit in memory is never there as a
    /// whole.
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
    /// [`SpaceError::Access`] for the first page that cannot be so accessed, with its address and
    /// why.
    pub fn ready(&self, at: VirtAddr, len: usize, access: AccessKind) -> SpaceReady {
        SpaceReady {
            space: self.clone(),
            at,
            len,
            access,
            call: None,
        }
    }

    fn have_ready<S: Sectioned>(
        &self,
        at: VirtAddr,
        len: usize,
        access: AccessKind,
    ) -> Result<(), Fault> {
        let mut accessor = self.accessor();
        accessor.core.have_all::<S>(at, len, access)
    }
}

impl Core {
    fn have_all<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        len: usize,
        access: AccessKind,
    ) -> Result<(), Fault> {
        for (start, _) in self.space.pieces(at, len) {
            if let Err(fault) = self.have_in::<S>(VirtAddr(start), access) {
                // Of what is answered by calls there is nothing to be had before.
                self.device_of(fault)?;
            }
        }
        Ok(())
    }
}

/// A future that waits for pages of a space; see [`Space::ready`].
///
/// Any executor can poll it. Dropped before its turn, it leaves nothing to be done.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct SpaceReady {
    space: Space,
    at: VirtAddr,
    len: usize,
    access: AccessKind,
    /// Once it has to wait.
    call: Option<Later<(), SpaceError>>,
}

impl SpaceReady {
    /// Waits in place, without an executor, until the pages are there or `timeout` is over. It can
    /// be waited for again then, or dropped at any time; see [`Later::wait_timeout`].
    ///
    /// # Errors
    /// When the time is over; inside, those of the future.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Result<(), SpaceError>, TimedOut> {
        let cache = self.space.0.cache.clone();
        wait_for(self, &cache, timeout)
    }
}

impl Future for SpaceReady {
    type Output = Result<(), SpaceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let SpaceReady {
            space,
            at,
            len,
            access,
            call,
        } = &mut *self;
        let (at, len, access) = (*at, *len, *access);
        let error = |space: &Space, fault| space.refused("ready", fault);
        let call = match call {
            Some(call) => call,
            None => match space.have_ready::<AtOnce<Single>>(at, len, access) {
                Err(fault) if fault.would_block() => call.insert(space.call(move |space| {
                    let had = space.have_ready::<Single>(at, len, access);
                    had.map_err(|fault| error(space, fault))
                })),
                had => return Poll::Ready(had.map_err(|fault| error(space, fault))),
            },
        };
        Pin::new(call).poll(context)
    }
}
