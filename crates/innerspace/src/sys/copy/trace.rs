//! A record of the shared accesses that one thread makes in the portable form, for tests to count.

use std::cell::RefCell;

std::thread_local! {
    /// (address, size) of each access in order; `None` while no test asks.
    static ACCESSES: RefCell<Option<Vec<(usize, usize)>>> = const { RefCell::new(None) };
}

pub(super) fn record(address: usize, size: usize) {
    ACCESSES.with_borrow_mut(|accesses| {
        if let Some(accesses) = accesses {
            accesses.push((address, size));
        }
    });
}

/// Runs `work` and returns the shared accesses it made, in order.
#[cfg(all(not(loom), not(shuttle)))]
pub(super) fn of(work: impl FnOnce()) -> Vec<(usize, usize)> {
    ACCESSES.set(Some(Vec::new()));
    work();
    ACCESSES.take().unwrap_or_default()
}
