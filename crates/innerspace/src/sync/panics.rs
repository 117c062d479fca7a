//! Panics of foreign code (wakers, stores, deferred calls) that must not stop the work that is
//! left.

use std::any::Any;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first of the panics caught so far.
#[derive(Debug, Default)]
#[must_use = "the panic is lost without `go_on`"]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Runs `work`. Everything it changes must be valid at each point where it calls foreign code.
    pub(crate) fn catch(&mut self, work: impl FnOnce()) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(work)) else {
            return;
        };
        match self.0 {
            None => self.0 = Some(panic),
            // Foreign as well: dropping it could panic again.
            Some(_) => forget(panic),
        }
    }

    /// Discards the panic, which the panic hook has reported and no caller is to see.
    pub(crate) fn forget(self) {
        forget(self.0);
    }

    /// Resumes the first panic, if there was one. During the unwinding of another panic that would
    /// abort the process, so it is discarded then.
    pub(crate) fn go_on(self) {
        match self.0 {
            Some(panic) if std::thread::panicking() => forget(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}
