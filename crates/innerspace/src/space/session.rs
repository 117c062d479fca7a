//! Sessions: one section over many accesses.

use std::marker::PhantomData;

use super::access::{Core, Sectioned};
use super::accessor::accesses;
use super::translate::Translator;

/// An accessor with its section kept open from access to access.
///
/// Made by [`Accessor::session`](crate::Accessor::session). Everybody who takes a translation away (eviction, unmap, fork,
/// truncation) waits for the next *safepoint* of every open session: its next access, its end, a fault in it, or a call of
/// this library in the same thread that has to wait. So keep a session for a run of accesses, and do not sleep or wait for
/// another thread by other means while one is open.
///
/// A session stays on the thread that opened it, whose other calls may have to close it for a while:
///
/// ```compile_fail,E0277
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let memory = innerspace::Memory::with_limit(innerspace::MIB)?;
/// # let space = memory.space()?;
/// # let at = space.map(innerspace::Map::anonymous(4096).writable())?;
/// space.accessor().session(|session| {
///     std::thread::scope(|scope| {
///         scope.spawn(|| session.store(at, 1_u64));
///     });
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Session<'accessor> {
    pub(super) core: &'accessor mut Core,
    /// Not `Send`: while it is registered, whoever waits on this thread closes its section.
    _of_thread: PhantomData<*const ()>,
}

/// The section is open already.
pub(super) enum InSession {}

impl Sectioned for InSession {
    #[inline(always)]
    fn enter(_: &mut Translator) {}

    #[inline(always)]
    fn leave(_: &mut Translator) {}

    fn pause(translator: &mut Translator) {
        translator.sections.end_session();
        if translator.sections.has_mail() {
            // A safepoint: somebody waits, or this thread waited for somebody and has left the section meanwhile.
            translator.sections.leave();
            translator.sections.enter();
        }
    }

    fn resume(translator: &mut Translator) {
        translator.sections.begin_session();
    }

    fn suspend(translator: &mut Translator) {
        translator.sections.end_session();
        translator.sections.leave();
    }

    fn unsuspend(translator: &mut Translator) {
        translator.sections.enter();
        translator.sections.begin_session();
    }
}

impl<'accessor> Session<'accessor> {
    pub(super) fn new(core: &'accessor mut Core) -> Session<'accessor> {
        // Registered first: that panics in a thread that is ending, and nobody would close the section.
        core.translator.sections.begin_session();
        core.translator.sections.enter();
        Session {
            core,
            _of_thread: PhantomData,
        }
    }

    /// Lets those go on who wait for this session; as an access would.
    pub fn safepoint(&mut self) {
        if self.core.translator.sections.has_mail() {
            // The mail itself is read by the next access, which then looks at the gate as well.
            InSession::pause(&mut self.core.translator);
            InSession::resume(&mut self.core.translator);
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.core.translator.sections.end_session();
        if self.core.translator.sections.is_open() {
            self.core.translator.sections.leave();
        }
    }
}

accesses!(Session<'_>, InSession);
