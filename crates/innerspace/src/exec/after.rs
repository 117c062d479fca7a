//! Wakers that a job leaves behind.
//!
//! A waker is foreign code, and may take as long as it likes. A worker therefore calls the wakers
//! of a job only after it has given the job's share of its lane back.

use std::cell::RefCell;
use std::task::Waker;

use crate::sync::may_call_out;
use crate::sync::panics::{Panics, caught};

crate::sync::thread_local! {
    /// The wakers that the running job has left. `None` while no job runs.
    static AFTER: RefCell<Option<Vec<Waker>>> = const { RefCell::new(None) };
}

/// Returns whether this thread is running a job.
pub(crate) fn is_in_job() -> bool {
    AFTER
        .try_with(|after| after.borrow().is_some())
        .unwrap_or(false)
}

/// Leaves a waker to be called when the job is over. If this thread runs no job, returns the waker
/// as an error.
pub(crate) fn wake_after(waker: Waker) -> Result<(), Waker> {
    let mut waker = Some(waker);
    let _ = AFTER.try_with(|after| {
        if let Some(left) = &mut *after.borrow_mut() {
            left.extend(waker.take());
        }
    });
    waker.map_or(Ok(()), Err)
}

/// Runs a job, and returns the wakers that it leaves and its result or panic.
pub(super) fn collect(job: impl FnOnce()) -> (Vec<Waker>, std::thread::Result<()>) {
    let before = AFTER.with(|after| after.replace(Some(Vec::new())));
    let result = caught(job);
    let left = AFTER.with(|after| after.replace(before));
    (left.unwrap_or_default(), result)
}

/// Runs `work` as a job. If it leaves wakers, runs `calls`, then calls the wakers. The panic hook
/// reports the panics of `work` and of the wakers; they go no further.
pub(crate) fn run_with_wakers(work: impl FnOnce(), calls: impl FnOnce()) {
    let mut panics = Panics::default();
    let (wakers, result) = collect(work);
    if !wakers.is_empty() {
        calls();
        call(wakers, &mut panics);
    }
    panics.forget();
    std::mem::forget(result);
}

/// Calls wakers. If one panics, the others are still called.
pub(super) fn call(wakers: Vec<Waker>, panics: &mut Panics) {
    for waker in wakers {
        may_call_out();
        panics.catch(|| waker.wake());
    }
}
