//! Catches panics of foreign code (wakers, stores, deferred calls), which must not stop the rest of
//! the work.

use std::any::Any;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Runs `work` and catches its panic. Everything that `work` changes must be valid at each point
/// where it calls foreign code.
///
/// This is a separate function that is never inlined: where `catch_unwind` was inlined into a loop,
/// the compiler (rustc 1.95, LLVM 22.1, optimisation level 1) took the panic's address from a
/// register that held another value, and std's clean-up crashed.
#[inline(never)]
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(work))
}

/// Keeps the first of the panics that were caught.
#[derive(Debug, Default)]
#[must_use = "the panic is lost without `go_on`"]
pub(crate) struct Panics(Option<Box<dyn Any + Send>>);

impl Panics {
    /// Runs `work` and catches its panic. Everything that `work` changes must be valid at each
    /// point where it calls foreign code.
    pub(crate) fn catch(&mut self, work: impl FnOnce()) {
        let Err(panic) = caught(work) else {
            return;
        };
        match self.0 {
            None => self.0 = Some(panic),
            // The panic's value is also foreign: dropping it could panic again.
            Some(_) => forget(panic),
        }
    }

    /// Returns whether a panic was caught.
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// Discards the panic. The panic hook has reported it, and no caller is to see it.
    pub(crate) fn forget(self) {
        forget(self.0);
    }

    /// Resumes the first panic, if there was one. While another panic unwinds, resuming would abort
    /// the process, so the caught panic is then discarded.
    pub(crate) fn go_on(self) {
        match self.0 {
            Some(panic) if std::thread::panicking() => forget(panic),
            Some(panic) => resume_unwind(panic),
            None => {}
        }
    }
}
