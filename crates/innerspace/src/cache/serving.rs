//! Who does the work of a cache ([`super::service`]): [`Serving`] says that this thread does.

use std::cell::RefCell;

use super::service::Cache;

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

impl Cache {
    /// Whether this thread is doing the work of this cache: who waits for that work here waits for
    /// ever.
    pub(super) fn is_served_here(&self) -> bool {
        let here = std::ptr::from_ref(self) as usize;
        SERVED
            .try_with(|served| served.borrow().contains(&here))
            .unwrap_or(false)
    }
}
