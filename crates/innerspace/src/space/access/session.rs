//! Sessions: one section over many accesses.

use std::marker::PhantomData;

use super::single::{Core, Paused, Sectioned};
use crate::cache::Wait;

/// An accessor with its section kept open from access to access.
///
/// [`Accessor::session`](crate::Accessor::session) opens one. An operation that removes
/// translations of the space (unmap, fork) waits for the next *safepoint* of each open session of
/// the space: the session's next access, its end, a fault in it, or a call to this library on the
/// same thread, if the call has to wait. An operation that takes away pages of a file (truncate,
/// punch), or the right to store to them (writeback of bytes that were stored through a mapping),
/// waits for the sessions of all spaces that map the file. Sessions of other spaces do not delay
/// it. Eviction skips pages that a session may hold for a long time. So use a session for a run of
/// accesses, and while it is open do not sleep, and do not wait for another thread by means outside
/// this library.
///
/// Each access has a `try_` form that never waits, like the accesses of an
/// [`Accessor`](crate::Accessor#without-waiting).
///
/// A session stays on the thread that opened it, because other calls on that thread may have to
/// close it for a while:
///
/// ```compile_fail,E0277
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let memory = innerspace::Memory::with_limit(innerspace::MIB)?;
/// # let space = memory.create_space()?;
/// # let at = space.map(innerspace::Map::anonymous(4096).writable())?;
/// space.accessor()?.session(|session| {
///     std::thread::scope(|scope| {
///         scope.spawn(|| session.store(at, 1_u64));
///     });
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Session<'accessor> {
    pub(crate) core: &'accessor mut Core,
    /// Not `Send`: while the session is registered, a wait on this thread closes its section.
    _of_thread: PhantomData<*const ()>,
}

/// The mode of an access in a session, whose section is open already.
pub(crate) enum InSession<const WAITS: bool = true> {}

impl<const WAITS: bool> Sectioned for InSession<WAITS> {
    const IN_SESSION: bool = true;
    const WAIT: Wait = Wait::if_may(WAITS);
}

impl<'accessor> Session<'accessor> {
    pub(crate) fn new(core: &'accessor mut Core) -> Session<'accessor> {
        let sections = &mut core.translator.sections;
        loop {
            // The session is registered before the section is opened, because registering panics
            // in a thread that is ending, and an open section would then stay open.
            sections.begin_session();
            sections.enter();
            // If this reader was taken offline (`sync::domain::offline`), `enter` may wait for the
            // list of readers. That leaves the section, like any other wait.
            if sections.is_open() {
                break;
            }
        }
        sections.narrow();
        Session {
            core,
            _of_thread: PhantomData,
        }
    }

    /// Lets threads that wait for this session proceed, as an access would.
    pub fn safepoint(&mut self) {
        if self.core.translator.sections.has_mail() {
            // The mail stays unread here. The next access reads it, and then also checks the gate.
            drop(Paused::<InSession>::new(self.core));
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.core.translator.sections.end_session();
        if self.core.translator.sections.is_open() {
            self.core.translator.sections.leave();
        }
        let space = &self.core.space;
        space.pool.session_ended(space.id);
    }
}
