//! The queue of things that are unreachable already but may be freed only after a grace period
//! (I6).

use super::pool::Pool;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::panics::Panics;
use crate::sync::{Mutex, Rank};
use crate::units::FrameId;

/// Entries at which the queue asks to be flushed at the next safe point.
const FLUSH_AT: usize = 64;

/// Something nobody can find any more, but somebody may still be using.
pub(crate) enum Retired {
    /// A frame whose hold word is 0: [`Pool::free`] it.
    Frame(FrameId),
    /// A frame of which a reference is left to drop.
    Put(FrameId),
    /// A frame, or a part of a block, that counts one page table too many as mapping it.
    Unmap(FrameId),
    /// Anything else: called once, outside sections. Whoever wants memory calls it, with whatever
    /// locked: it must come to no store and no waker ([`Pool::defer`] is for those).
    Call(Box<dyn FnOnce(&Pool) + Send>),
}

impl std::fmt::Debug for Retired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Retired::Frame(id) => write!(f, "Frame({})", id.0),
            Retired::Put(id) => write!(f, "Put({})", id.0),
            Retired::Unmap(id) => write!(f, "Unmap({})", id.0),
            Retired::Call(_) => f.write_str("Call"),
        }
    }
}

/// What waits for a grace period. Frames in it stay charged. On lines of its own: every fault looks
/// at the length.
#[repr(align(128))]
pub(super) struct RetireQueue {
    entries: Mutex<Vec<Retired>>,
    /// The length, readable without the mutex; a hint.
    len: AtomicUsize,
}

impl Default for RetireQueue {
    fn default() -> RetireQueue {
        RetireQueue {
            entries: Mutex::ranked(Rank::Retire, Vec::new()),
            len: AtomicUsize::new(0),
        }
    }
}

impl RetireQueue {
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn push(&self, entry: Retired) -> usize {
        let mut entries = self.entries.lock();
        entries.push(entry);
        self.len.store(entries.len(), Ordering::Relaxed);
        entries.len()
    }

    fn take(&self) -> Vec<Retired> {
        let mut entries = self.entries.lock();
        self.len.store(0, Ordering::Relaxed);
        std::mem::take(&mut *entries)
    }
}

impl Pool {
    /// Frees `entry` after a grace period. Never waits; may be called in a section and with locks
    /// held.
    pub(crate) fn retire(&self, entry: Retired) {
        if self.retired.push(entry) == FLUSH_AT {
            self.kick();
        }
    }

    /// Whether the queue has grown so long that a [`Pool::safe_point`] would flush it.
    #[inline]
    pub(crate) fn is_flush_due(&self) -> bool {
        self.retired.len() >= FLUSH_AT
    }

    /// A point outside every section, with no lock held that a section may take: flushes a queue
    /// that has grown long.
    #[inline]
    pub(crate) fn safe_point(&self) {
        if self.is_flush_due() {
            self.flush_retired();
        }
    }

    /// Waits for one grace period and frees everything that was retired before the call; returns
    /// how many things that were. Outside every section, with no lock held that a section may take.
    pub(crate) fn flush_retired(&self) -> usize {
        if self.retired.len() == 0 {
            return 0;
        }
        // Others that are short of memory wait for this rather than fail.
        let _working = self.progress.begin();
        self.run_retired()
    }

    /// [`Pool::flush_retired`] for who is counted as working already.
    pub(super) fn run_retired(&self) -> usize {
        if self.retired.len() == 0 {
            return 0;
        }
        let entries = self.retired.take();
        if entries.is_empty() {
            return 0;
        }
        let count = entries.len();
        self.domain.synchronize();
        // If a call panics, the rest is done nevertheless.
        let mut panics = Panics::default();
        for entry in entries {
            panics.catch(|| match entry {
                Retired::Frame(id) => self.free(id),
                Retired::Put(id) => self.put(id),
                Retired::Unmap(id) => self.unmap(id),
                Retired::Call(call) => call(self),
            });
        }
        panics.go_on();
        count
    }
}
