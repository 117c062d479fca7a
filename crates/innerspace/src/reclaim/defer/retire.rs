//! The queue of entries that are already unreachable, but may be freed only after a grace period
//! (I6).
//!
//! A flush waits for sessions only briefly. If a session does not end, the entries that it may hold
//! are *held back* until it has ended. They do not count towards the length at which a flush is
//! due. Entries held back are grouped by owner (the space), so a flush looks at each owner, and not
//! at each entry.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::reclaim::progress::{Progress, Working};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, Rank, failpoint};

/// The number of fresh entries (those not held back) at which the queue is to be flushed at the
/// next safe point.
const FLUSH_AT: usize = 64;

crate::sync::thread_local! {
    /// The number of batches that this thread is freeing.
    static FREEING: Cell<u32> = const { Cell::new(0) };
}

/// Entries that wait for a grace period, each with the space whose sessions may hold it. Frames
/// among them stay charged. The queue is aligned to cache lines of its own, since every fault reads
/// its length.
#[repr(align(128))]
pub(crate) struct RetireQueue<T> {
    state: Mutex<State<T>>,
    /// The number of fresh entries, readable without the mutex. A hint.
    fresh: AtomicUsize,
    /// The number of entries that are held back. Also a hint.
    held: AtomicUsize,
    /// The batches that were taken and are not freed yet.
    freeing: Progress,
}

/// The space whose sessions may hold an entry, and the entry.
pub(crate) type Entry<T> = (u64, T);

struct State<T> {
    fresh: Vec<Entry<T>>,
    /// The entries that are held back, by owner, each with the number of batches taken before it
    /// was held back.
    held: BTreeMap<u64, Vec<(u64, T)>>,
    /// The number of batches taken so far, which is the number of the next one.
    taken: u64,
}

impl<T> Default for RetireQueue<T> {
    fn default() -> RetireQueue<T> {
        let state = State {
            fresh: Vec::new(),
            held: BTreeMap::new(),
            taken: 0,
        };
        RetireQueue {
            state: Mutex::ranked(Rank::Retire, state),
            fresh: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            freeing: Progress::default(),
        }
    }
}

/// Entries taken from the queue. They count as freed when this is dropped.
#[must_use = "the entries count as freed when this is dropped"]
pub(crate) struct Batch<'q, T> {
    queue: &'q RetireQueue<T>,
    number: u64,
    entries: Vec<Entry<T>>,
    _freeing: Working<'q>,
}

impl<T> Batch<'_, T> {
    /// Returns the entries whose owners are free, and holds the others back. The caller has waited
    /// for a grace period since the batch was taken. `is_free` tells which owners had no session
    /// that was still open after the wait.
    ///
    /// Also returns entries of free owners that were held back before the batch was taken. Entries
    /// that another thread has held back since stay: they may have been retired after the grace
    /// period began.
    pub(crate) fn take_free(&mut self, is_free: impl Fn(u64) -> bool) -> Vec<T> {
        let mut fresh = std::mem::take(&mut self.entries);
        let back: Vec<_> = fresh
            .extract_if(.., |(owner, _)| !is_free(*owner))
            .collect();
        let fresh = fresh.into_iter().map(|(_, entry)| entry);
        // Entries held back before the batch was taken were counted under the mutex that `take`
        // locked later, so this load sees them.
        if back.is_empty() && self.queue.held() == 0 {
            return fresh.collect();
        }
        let mut free = Vec::new();
        let mut state = self.queue.state.lock();
        state.held.retain(|owner, held| {
            if is_free(*owner) {
                let before = held.partition_point(|(taken, _)| *taken <= self.number);
                free.extend(held.drain(..before).map(|(_, entry)| entry));
            }
            !held.is_empty()
        });
        self.queue.held.fetch_sub(free.len(), Ordering::Relaxed);
        self.queue.held.fetch_add(back.len(), Ordering::Relaxed);
        let taken = state.taken;
        for (owner, entry) in back {
            failpoint!(HeldBack);
            state.held.entry(owner).or_default().push((taken, entry));
        }
        free.extend(fresh);
        free
    }
}

impl<T> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        let _ = FREEING.try_with(|depth| depth.set(depth.get() - 1));
    }
}

impl<T> RetireQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.fresh.load(Ordering::Relaxed) + self.held()
    }

    /// Returns the number of entries that are held back.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns whether the queue is so long that it should be flushed.
    #[inline]
    pub(crate) fn is_flush_due(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) >= FLUSH_AT
    }

    /// Adds an entry. Returns whether a flush has just become due.
    pub(crate) fn push(&self, entry: Entry<T>) -> bool {
        let mut state = self.state.lock();
        state.fresh.push(entry);
        self.note(&state);
        state.fresh.len() == FLUSH_AT
    }

    /// Returns whether an entry of this owner is held back.
    pub(crate) fn holds(&self, owner: u64) -> bool {
        self.held() > 0 && self.state.lock().held.contains_key(&owner)
    }

    fn note(&self, state: &State<T>) {
        self.fresh.store(state.fresh.len(), Ordering::Relaxed);
    }

    /// Takes the fresh entries as a batch, which is empty if all entries are held back. Returns
    /// `None` if there are no entries at all.
    pub(crate) fn take(&self) -> Option<Batch<'_, T>> {
        if self.len() == 0 {
            return None;
        }
        // The batch counts as under way before it takes the entries. So each of them is in the
        // queue, or in a batch that is waited for.
        let freeing = self.freeing.begin();
        let mut state = self.state.lock();
        if state.fresh.is_empty() && state.held.is_empty() {
            return None;
        }
        let entries = std::mem::take(&mut state.fresh);
        self.note(&state);
        let number = state.taken;
        state.taken += 1;
        drop(state);
        let _ = FREEING.try_with(|depth| depth.set(depth.get() + 1));
        Some(Batch {
            queue: self,
            number,
            entries,
            _freeing: freeing,
        })
    }

    /// Waits until all batches taken before this call are freed. A thread that is itself freeing a
    /// batch does not wait: two such threads would wait for each other.
    pub(crate) fn wait_taken(&self) {
        if FREEING.try_with(Cell::get).unwrap_or(1) > 0 {
            return;
        }
        self.freeing.wait_for_others(0, None);
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod for_tests {
    use super::*;

    impl<T> RetireQueue<T> {
        /// Returns whether a thread is waiting for a batch that another one frees.
        pub(crate) fn is_waited_for(&self) -> bool {
            self.freeing.is_waited_for()
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    /// Flushes the queue while the owners in `open` have sessions open.
    fn flush(queue: &RetireQueue<u64>, open: &[u64]) -> Vec<u64> {
        let batch = queue.take();
        batch.map_or(Vec::new(), |mut batch| {
            batch.take_free(|owner| !open.contains(&owner))
        })
    }

    // spec: N7, N9
    #[test]
    fn entries_that_are_held_back_cost_a_flush_nothing() {
        let queue = RetireQueue::default();
        for entry in 0..100 {
            queue.push((1, entry));
        }
        let flush = |open: &'static [u64]| flush(&queue, open);
        assert_eq!(failpoint::count("HeldBack", || drop(flush(&[1]))), 100);
        let steps = failpoint::count("HeldBack", || {
            for entry in 200..300 {
                queue.push((2, entry));
                assert_eq!(flush(&[1]), [entry]);
            }
        });
        assert_eq!((steps, queue.held()), (0, 100));
        queue.push((1, 100));
        let all: Vec<u64> = (0..=100).collect();
        assert_eq!(flush(&[]), all, "the oldest first");
        assert_eq!((queue.len(), queue.holds(1)), (0, false));
    }

    #[test]
    fn a_flush_leaves_what_was_held_back_after_it_began() {
        let queue = RetireQueue::default();
        queue.push((1, 7));
        let mut first = queue.take().unwrap();
        queue.push((2, 8));
        let mut second = queue.take().unwrap();
        assert!(first.take_free(|_| false).is_empty());
        assert_eq!(second.take_free(|_| true), [8]);
        drop((first, second));
        assert_eq!(flush(&queue, &[]), [7]);
    }
}
