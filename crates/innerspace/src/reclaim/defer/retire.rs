//! The queue of things that are unreachable already but may be freed only after a grace period
//! (I6).

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, Rank};

/// Entries at which the queue asks to be flushed at the next safe point.
const FLUSH_AT: usize = 64;

/// Things that wait for a grace period. Frames among them stay charged. Aligned to lines of its
/// own: every fault looks at the length.
#[repr(align(128))]
pub(crate) struct RetireQueue<T> {
    entries: Mutex<Vec<T>>,
    /// The length, readable without the mutex; a hint.
    len: AtomicUsize,
}

impl<T> Default for RetireQueue<T> {
    fn default() -> RetireQueue<T> {
        RetireQueue {
            entries: Mutex::ranked(Rank::Retire, Vec::new()),
            len: AtomicUsize::new(0),
        }
    }
}

impl<T> RetireQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether the queue is so long that it should be flushed.
    #[inline]
    pub(crate) fn is_flush_due(&self) -> bool {
        self.len() >= FLUSH_AT
    }

    /// Adds an entry. Returns whether the queue has just become long.
    pub(crate) fn push(&self, entry: T) -> bool {
        let mut entries = self.entries.lock();
        entries.push(entry);
        self.len.store(entries.len(), Ordering::Relaxed);
        entries.len() == FLUSH_AT
    }

    pub(crate) fn take(&self) -> Vec<T> {
        if self.len() == 0 {
            return Vec::new();
        }
        let mut entries = self.entries.lock();
        self.len.store(0, Ordering::Relaxed);
        std::mem::take(&mut *entries)
    }
}
