//! Panics of foreign code (wakers, stores, calls of others) that must not keep us from what is left
//! to do.

use std::any::Any;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first of the panics that were caught on the way.
#[derive(Debug, Default)]
#[must_use = "the panic is lost without `go_on`"]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Does `work`. What it touches must be valid wherever it calls foreign code.
    pub(crate) fn catch(&mut self, work: impl FnOnce()) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(work)) else {
            return;
        };
        match self.0 {
            None => self.0 = Some(panic),
            // Foreign, too: to drop it may be the next panic.
            Some(_) => forget(panic),
        }
    }

    /// Ends it here: it was reported when it happened, and is nobody's to hear of.
    pub(crate) fn forget(self) {
        forget(self.0);
    }

    /// Lets the first panic go on, if there was one. In a drop on the way out of another panic it
    /// would end the process: that one goes on alone.
    pub(crate) fn go_on(self) {
        match self.0 {
            Some(panic) if std::thread::panicking() => forget(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}
