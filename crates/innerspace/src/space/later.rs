//! The calls of a space that may wait, as futures: [`LaterSpaceCalls`], each as a [`Later`] of the
//! cache below.

use super::{
    Advice, AtFork, CodePage, Fault, Map, Pinned, Protection, Remap, Snapshot, Space, SpaceError,
};
use crate::VirtAddr;
use crate::cache::Later;

/// The calls of a space that may wait, as futures; see [`Space::later`].
///
/// Each does what the call of the same name does, in the memory's service thread (or `tick()`), one
/// after another with those of files ([`LaterCalls`](crate::LaterCalls)), in the order in which
/// they were first polled. Nothing happens before that. A call that waits long, for a slow store,
/// keeps the thread from the others.
///
/// A call that is first polled in a callback of a store is made there and then, and refused where
/// it would come back to the space or the file that the callback is for ([`SpaceError::Reentered`],
/// or the file's of that name). In the handler of a device it waits for its turn; with
/// [`Threads::None`](crate::Threads::None), who waits for it there in place
/// ([`Later::wait_timeout`]) makes it there.
///
/// What they may wait for, besides their turn:
///
/// | call | a store | memory | other changes of the space, and open sections |
/// |---|---|---|---|
/// | `sync`; `advise` to read or to evict | yes | | |
/// | `populate`, `lock`, `pin`, `copy`, `gather`, `watch_code` | yes | yes | yes |
/// | `unmap`, `map` in place of something, `remap`, `restore` | if they are the last to keep a file open | yes | yes |
/// | `protect`, `fork`, `freeze` | | yes | yes |
///
/// Waiting for memory is waiting for a store where it has to be written first. Sections are open
/// for the time of an access, or of a [`Session`](crate::Session) up to its next safepoint. So
/// where groups have room a fork or a restore takes microseconds, and is best called as it is:
/// these calls have no `try_` forms, but for those of accessors, which
/// [`Accessor`](crate::Accessor) has.
#[derive(Debug)]
pub struct LaterSpaceCalls<'space>(&'space Space);

impl Space {
    /// The calls that may wait, as futures. They need no runtime; the memory's service thread (or
    /// `tick()`) makes the calls.
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
    ///     Ok(space.later().sync(at, len).await?)
    /// }
    /// ```
    pub fn later(&self) -> LaterSpaceCalls<'_> {
        LaterSpaceCalls(self)
    }

    /// `work` in its turn. It keeps the space.
    pub(super) fn call<T>(
        &self,
        work: impl FnOnce(&Space) -> Result<T, SpaceError> + Send + 'static,
    ) -> Later<T, SpaceError> {
        let space = self.clone();
        let address = crate::sync::Arc::as_ptr(&self.0) as usize;
        Later::new(self.0.cache.clone(), address, move || work(&space))
    }

    /// An access that such a call made has failed.
    pub(super) fn refused(&self, what: &'static str, fault: Fault) -> SpaceError {
        SpaceError::Access {
            what,
            explanation: self.explain(fault),
        }
    }
}

impl LaterSpaceCalls<'_> {
    /// [`Space::sync`].
    pub fn sync(&self, at: VirtAddr, len: u64) -> Later<(), SpaceError> {
        self.0.call(move |space| space.sync(at, len))
    }

    /// [`Space::advise`].
    pub fn advise(&self, at: VirtAddr, len: u64, advice: Advice) -> Later<(), SpaceError> {
        self.0.call(move |space| space.advise(at, len, advice))
    }

    /// [`Space::populate`].
    pub fn populate(&self, at: VirtAddr, len: u64) -> Later<(), SpaceError> {
        self.0.call(move |space| space.populate(at, len))
    }

    /// [`Space::lock`].
    pub fn lock(&self, at: VirtAddr, len: u64) -> Later<(), SpaceError> {
        self.0.call(move |space| space.lock(at, len))
    }

    /// [`Space::pin`].
    pub fn pin(&self, at: VirtAddr, len: u64, at_fork: AtFork) -> Later<Pinned, SpaceError> {
        self.0.call(move |space| space.pin(at, len, at_fork))
    }

    /// Copies bytes of another space, or of the same one, into this one, as
    /// [`Accessor::copy_from`](crate::Accessor::copy_from) does.
    pub fn copy(
        &self,
        to: VirtAddr,
        source: &Space,
        from: VirtAddr,
        len: usize,
    ) -> Later<(), SpaceError> {
        let source = source.clone();
        self.0.call(move |space| {
            let (mut here, mut there) = (space.accessor(), source.accessor());
            let copied = here.copy_from(to, &mut there, from, len);
            copied.map_err(|fault| match fault.access().writes() {
                true => space.refused("copy", fault),
                false => source.refused("copy", fault),
            })
        })
    }

    /// [`Accessor::gather`](crate::Accessor::gather) into buffers of its own, which come back full,
    /// in the order given.
    pub fn gather(&self, mut reads: Vec<(VirtAddr, Vec<u8>)>) -> Later<Vec<Vec<u8>>, SpaceError> {
        self.0.call(move |space| {
            let buffers = reads.iter_mut().map(|(at, buffer)| (*at, &mut buffer[..]));
            let gathered = space.accessor().gather(&mut buffers.collect::<Vec<_>>());
            gathered.map_err(|fault| space.refused("gather", fault))?;
            Ok(reads.into_iter().map(|(_, buffer)| buffer).collect())
        })
    }

    /// [`Accessor::watch_code`](crate::Accessor::watch_code).
    pub fn watch_code(&self, at: VirtAddr) -> Later<CodePage, SpaceError> {
        self.0.call(move |space| {
            let watched = space.accessor().watch_code(at);
            watched.map_err(|fault| space.refused("watch", fault))
        })
    }

    /// [`Space::map`].
    pub fn map(&self, map: Map) -> Later<VirtAddr, SpaceError> {
        self.0.call(move |space| space.map(map))
    }

    /// [`Space::unmap`].
    pub fn unmap(&self, at: VirtAddr, len: u64) -> Later<(), SpaceError> {
        self.0.call(move |space| space.unmap(at, len))
    }

    /// [`Space::remap`].
    pub fn remap(
        &self,
        at: VirtAddr,
        old_len: u64,
        new_len: u64,
        to: Remap,
    ) -> Later<VirtAddr, SpaceError> {
        self.0
            .call(move |space| space.remap(at, old_len, new_len, to))
    }

    /// [`Space::protect`].
    pub fn protect(&self, at: VirtAddr, len: u64, protection: Protection) -> Later<(), SpaceError> {
        self.0.call(move |space| space.protect(at, len, protection))
    }

    /// [`Space::fork`].
    pub fn fork(&self) -> Later<Space, SpaceError> {
        self.0.call(Space::fork)
    }

    /// [`Space::freeze`].
    pub fn freeze(&self) -> Later<Snapshot, SpaceError> {
        self.0.call(Space::freeze)
    }

    /// [`Space::restore`].
    pub fn restore(&self, snapshot: &Snapshot) -> Later<(), SpaceError> {
        let snapshot = snapshot.clone();
        self.0.call(move |space| space.restore(&snapshot))
    }
}
