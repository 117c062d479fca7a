//! Wakers that a job leaves behind.
//!
//! A waker is foreign code, and may take as long as it likes. A worker therefore calls the wakers
//! of a job after it has given the job's share of its lane back.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::sync::may_call_out;

crate::sync::thread_local! {
    /// What the job under way has left; `None` on threads that are no workers.
    static AFTER: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Whether this thread is one of a memory's workers.
pub(crate) fn is_worker() -> bool {
    AFTER
        .try_with(|after| after.borrow().is_some())
        .unwrap_or(false)
}

/// Leaves a waker to be called when the job is over; given back on threads that are no workers.
pub(crate) fn wake_after(waker: Waker) -> Result<(), Waker> {
    let mut waker = Some(waker);
    let _ = AFTER.try_with(|after| {
        if let Some(left) = &mut *after.borrow_mut() {
            left.extend(waker.take());
        }
    });
    waker.map_or(Ok(()), Err)
}

/// This thread is a worker from now on.
pub(super) fn begin_worker() {
    AFTER.with(|after| *after.borrow_mut() = Some(Vec::new()));
}

/// Calls what the last job has left. A panic of one waker is reported by the panic hook, and keeps
/// no other from being called.
pub(super) fn call_wakers() {
    let wakers = AFTER.with(|after| std::mem::take(after.borrow_mut().as_mut()?).into());
    let wakers: Option<Vec<Waker>> = wakers;
    for waker in wakers.into_iter().flatten() {
        may_call_out();
        // What a foreign panic carries may panic when it is dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake())).map_err(std::mem::forget);
    }
}
