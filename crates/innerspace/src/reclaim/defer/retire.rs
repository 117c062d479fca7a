//! The queue of things that are unreachable already but may be freed only after a grace period
//! (I6).

use std::cell::Cell;

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, Rank};

/// Entries at which the queue asks to be flushed at the next safe point.
const FLUSH_AT: usize = 64;

crate::sync::thread_local! {
    /// How many batches this thread is freeing.
    static FREEING: Cell<u32> = const { Cell::new(0) };
}

/// Things that wait for a grace period. Frames among them stay charged. Aligned to lines of its
/// own: every fault looks at the length.
#[repr(align(128))]
pub(crate) struct RetireQueue<T> {
    state: Mutex<State<T>>,
    /// The length, readable without the mutex; a hint.
    len: AtomicUsize,
    /// Notified when a batch has been freed.
    freed: Condvar,
}

struct State<T> {
    entries: Vec<T>,
    /// Batches taken so far: their numbers.
    taken: u64,
    /// The numbers of the batches that are not freed yet.
    open: Vec<u64>,
    /// Threads that wait for one.
    waiting: u32,
}

impl<T> Default for RetireQueue<T> {
    fn default() -> RetireQueue<T> {
        let state = State {
            entries: Vec::new(),
            taken: 0,
            open: Vec::new(),
            waiting: 0,
        };
        RetireQueue {
            state: Mutex::ranked(Rank::Retire, state),
            len: AtomicUsize::new(0),
            freed: Condvar::new(),
        }
    }
}

/// Entries taken out of the queue; they count as freed when this is dropped.
#[must_use = "the entries count as freed when this is dropped"]
pub(crate) struct Batch<'q, T> {
    queue: &'q RetireQueue<T>,
    number: u64,
    pub(crate) entries: Vec<T>,
}

impl<T> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        let _ = FREEING.try_with(|depth| depth.set(depth.get() - 1));
        let mut state = self.queue.state.lock();
        state.open.retain(|number| *number != self.number);
        drop(state);
        self.queue.freed.notify_all();
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
        let mut state = self.state.lock();
        state.entries.push(entry);
        self.len.store(state.entries.len(), Ordering::Relaxed);
        state.entries.len() == FLUSH_AT
    }

    /// Takes what is in the queue, if there is something.
    pub(crate) fn take(&self) -> Option<Batch<'_, T>> {
        if self.len() == 0 {
            return None;
        }
        let mut state = self.state.lock();
        self.len.store(0, Ordering::Relaxed);
        let entries = std::mem::take(&mut state.entries);
        if entries.is_empty() {
            return None;
        }
        let number = state.taken;
        state.taken += 1;
        // This happens in the step that takes the entries: each of them is in the queue, or in a
        // batch listed here.
        state.open.push(number);
        drop(state);
        let _ = FREEING.try_with(|depth| depth.set(depth.get() + 1));
        Some(Batch {
            queue: self,
            number,
            entries,
        })
    }

    /// Waits until the batches are freed that were taken before. A thread that is freeing one waits
    /// for none: two such threads would wait for each other.
    pub(crate) fn wait_taken(&self) {
        if FREEING.try_with(Cell::get).unwrap_or(1) > 0 {
            return;
        }
        let mut state = self.state.lock();
        let through = state.taken;
        while state.open.iter().any(|number| *number < through) {
            state.waiting += 1;
            state = self.freed.wait(state);
            state.waiting -= 1;
        }
    }

    /// Whether a thread waits for a batch that another one frees.
    #[cfg(all(test, not(loom), not(shuttle)))]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.state.lock().waiting > 0
    }
}
