//! Who does the work of a cache ([`super::service`]): [`Serving`] says that this thread does, [`Turn`] that nobody else makes calls.

use std::cell::RefCell;

use super::service::Cache;
use crate::sync::atomic::{AtomicBool, Ordering};

crate::sync::thread_local! {
    /// The caches whose work this thread is doing, by address.
    static SERVED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// While it lives, this thread does the work of a cache.
#[must_use = "the work ends when this is dropped"]
pub(super) struct Serving;

impl Serving {
    pub(super) fn begin(cache: &Cache) -> Serving {
        let cache = std::ptr::from_ref(cache) as usize;
        // A thread that is ending has no list.
        let _ = SERVED.try_with(|served| served.borrow_mut().push(cache));
        Serving
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = SERVED.try_with(|served| served.borrow_mut().pop());
    }
}

/// While it lives, nobody else makes the calls of futures, so that they are made in their order.
#[must_use = "the turn ends when this is dropped"]
pub(super) struct Turn<'a>(&'a AtomicBool);

impl<'a> Turn<'a> {
    pub(super) fn take(taken: &'a AtomicBool) -> Option<Turn<'a>> {
        // Acquire, and Release at the end: whoever makes the next call has what the last one did.
        (!taken.swap(true, Ordering::Acquire)).then_some(Turn(taken))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Cache {
    /// Whether this thread is doing the work of this cache: who waits for that work here waits for ever.
    pub(super) fn is_served_here(&self) -> bool {
        let here = std::ptr::from_ref(self) as usize;
        SERVED
            .try_with(|served| served.borrow().contains(&here))
            .unwrap_or(false)
    }
}
