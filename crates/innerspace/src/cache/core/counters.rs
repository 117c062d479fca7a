//! A file's event counters.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Counters that a cache hit never changes. All threads share them, and access them with relaxed
/// ordering.
#[derive(Debug, Default)]
pub(crate) struct FileCounters {
    /// Blocks read from the store.
    pub(crate) filled: AtomicU64,
    /// The blocks among `filled` that were read ahead.
    pub(crate) ahead: AtomicU64,
    /// The blocks among `ahead` that were evicted before their first use.
    pub(crate) unused: AtomicU64,
    /// Calls that read bytes from the store.
    pub(crate) store_reads: AtomicU64,
    /// Blocks written back.
    pub(crate) written: AtomicU64,
    /// Calls that wrote bytes to the store.
    pub(crate) store_writes: AtomicU64,
    /// Blocks whose write failed.
    pub(crate) write_errors: AtomicU64,
    /// Blocks that moved to a new frame: they were viewed, or a view over several blocks needed
    /// consecutive frames.
    pub(crate) moved: AtomicU64,
    /// Blocks evicted.
    pub(crate) evicted: AtomicU64,
    /// Blocks cached again after eviction, if the index still had their shadows.
    pub(crate) refaulted: AtomicU64,
    /// Views over several blocks that had to be copied.
    pub(crate) copied_views: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
