//! The state of a file's unwritten data besides the dirty index.

use crate::cache::dirty::sync_turns::Syncs;
use crate::cache::dirty::write_backoff::WriteBackoff;
use crate::cache::errors::ErrorSequence;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, OnDrop};

/// The state of a file's unwritten data, besides the dirty index.
#[derive(Debug, Default)]
pub(crate) struct WriteState {
    /// The failures of writes, syncs and repeated punches, and changes by other processes, for
    /// handles to which they were not yet reported.
    pub(crate) errors: ErrorSequence,
    pub(crate) barrier: Barrier,
    /// The backoff for every write that is not for a sync.
    pub(crate) backoff: WriteBackoff,
    /// An additional backoff for writes that reclaim requests. For this one, a write also counts as
    /// failed if the files below the store lack memory: they probably still lack it when reclaim
    /// calls again.
    pub(crate) clean_backoff: WriteBackoff,
    pub(crate) syncs: Syncs,
    /// Notified when a write of a block ends. Used with the mutex of the index.
    pub(crate) write_ended: Condvar,
    /// The block at which the next write by the flusher, or by a writer over the dirty limit,
    /// begins.
    next_block: AtomicU64,
    /// Whether a job that writes the file's dirty blocks was started and has not ended.
    is_flushing: AtomicBool,
}

impl WriteState {
    /// Returns the block at which the next write by the flusher, or by a writer over the dirty
    /// limit, begins.
    pub(crate) fn next_block(&self) -> u64 {
        self.next_block.load(Ordering::Relaxed)
    }

    pub(crate) fn set_next_block(&self, block: u64) {
        self.next_block.store(block, Ordering::Relaxed);
    }

    /// Marks a flush as begun, for a job to carry out. Returns false if a flush is already under
    /// way.
    pub(crate) fn begin_flush(&self) -> bool {
        !self.is_flushing.swap(true, Ordering::Acquire)
    }

    /// Returns a guard for the job of a flush. Dropping it ends the flush, even after a panic of a
    /// store.
    pub(crate) fn flush_of_job(&self) -> OnDrop<impl FnMut()> {
        debug_assert!(self.is_flushing.load(Ordering::Relaxed), "begun before");
        OnDrop(|| self.is_flushing.store(false, Ordering::Release))
    }
}

/// The barrier numbers of an ordered file: the number that writes carry now, and the highest that
/// is released.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    current: AtomicU64,
    released: AtomicU64,
}

impl Barrier {
    /// Returns the number that a write carries now. SeqCst: see `restamp_mappings`.
    pub(crate) fn current(&self) -> u64 {
        self.current.load(Ordering::SeqCst)
    }

    /// Makes writes carry at least this number from now on.
    pub(crate) fn raise(&self, number: u64) {
        self.current.fetch_max(number, Ordering::SeqCst);
    }

    /// Returns the highest number with which blocks may be written.
    pub(crate) fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    pub(crate) fn release_through(&self, number: u64) {
        self.released.fetch_max(number, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn one_flush_is_under_way_at_a_time() {
        let state = WriteState::default();
        assert!(state.begin_flush(), "none is under way");
        assert!(!state.begin_flush());
        assert!(!state.begin_flush(), "being refused ends nothing");
        drop(state.flush_of_job());
        assert!(state.begin_flush());
    }
}
