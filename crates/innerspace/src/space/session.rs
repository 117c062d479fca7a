//! Sessions: one section over many accesses.

use std::marker::PhantomData;

use super::accessor::{Core, Sectioned, accesses};
use super::translate::Translator;

/// An accessor with its section kept open from access to access.
///
/// Everybody who takes a translation away (eviction, unmap, fork, truncation) waits for the next *safepoint* of every open
/// session: its next access, its end, or a fault in it. So keep a session for a run of accesses, and do not block, sleep or
/// wait for another thread while one is open. The thread that has it open may itself unmap or fork.
#[derive(Debug)]
pub struct Session<'accessor> {
    pub(super) core: &'accessor mut Core,
    /// Bound to the thread: a revoker of the same thread does not wait for its own session.
    thread: PhantomData<*const ()>,
}

/// The section is open already.
pub(super) enum InSession {}

impl Sectioned for InSession {
    #[inline(always)]
    fn enter(_: &mut Translator) {}

    #[inline(always)]
    fn leave(_: &mut Translator) {}

    fn pass_safepoint(translator: &mut Translator) {
        translator.sections.leave();
        translator.sections.enter();
    }
}

impl<'accessor> Session<'accessor> {
    pub(super) fn new(core: &'accessor mut Core) -> Session<'accessor> {
        core.translator.sections.enter();
        core.translator.sections.begin_session();
        Session {
            core,
            thread: PhantomData,
        }
    }

    /// Lets those go on who wait for this session; as an access would.
    pub fn safepoint(&mut self) {
        if self.core.translator.sections.has_mail() {
            InSession::pass_safepoint(&mut self.core.translator);
            self.core.translator.drain();
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
