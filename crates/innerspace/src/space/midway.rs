//! A place in the middle of a structural change, with the gate closed, where a test has something else happen.

use std::cell::RefCell;

thread_local! {
    static NEXT: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// Has `work` done the next time that this thread is in the middle of a change.
pub(super) fn then(work: impl FnOnce() + 'static) {
    NEXT.set(Some(Box::new(work)));
}

/// The middle of a change.
pub(super) fn reached() {
    if let Some(work) = NEXT.take() {
        work();
    }
}
