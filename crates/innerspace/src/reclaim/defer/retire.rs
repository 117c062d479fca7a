//! The queue of things that are unreachable already but may be freed only after a grace period
//! (I6).
//!
//! A flush waits for no session for long. An entry of a space with a session that does not end is
//! held back until that has; it does not count towards the length at which a flush is due.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, Rank};

/// Entries at which the queue asks to be flushed at the next safe point.
const FLUSH_AT: usize = 64;

crate::sync::thread_local! {
    /// How many batches this thread is freeing.
    static FREEING: Cell<u32> = const { Cell::new(0) };
}

/// Things that wait for a grace period, each with the space whose sessions may hold it. Frames
/// among them stay charged. Aligned to lines of its own: every fault looks at the length.
#[repr(align(128))]
pub(crate) struct RetireQueue<T> {
    state: Mutex<State<T>>,
    /// The number of fresh entries, readable without the mutex; a hint.
    fresh: AtomicUsize,
    /// The same of those that are held back.
    held: AtomicUsize,
    /// Notified when a batch has been freed.
    freed: Condvar,
}

/// An owner, and what is retired.
pub(crate) type Entry<T> = (u64, T);

struct State<T> {
    fresh: Vec<Entry<T>>,
    /// Those that are held back, by owner.
    held: BTreeMap<u64, Vec<T>>,
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
            fresh: Vec::new(),
            held: BTreeMap::new(),
            taken: 0,
            open: Vec::new(),
            waiting: 0,
        };
        RetireQueue {
            state: Mutex::ranked(Rank::Retire, state),
            fresh: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            freed: Condvar::new(),
        }
    }
}

/// Entries taken out of the queue; they count as freed when this is dropped.
#[must_use = "the entries count as freed when this is dropped"]
pub(crate) struct Batch<'q, T> {
    queue: &'q RetireQueue<T>,
    number: u64,
    pub(crate) entries: Vec<Entry<T>>,
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
        self.fresh.load(Ordering::Relaxed) + self.held()
    }

    /// Entries that are held back.
    #[inline]
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether the queue is so long that it should be flushed.
    #[inline]
    pub(crate) fn is_flush_due(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) >= FLUSH_AT
    }

    /// Adds an entry. Returns whether the queue has just become long.
    pub(crate) fn push(&self, entry: Entry<T>) -> bool {
        let mut state = self.state.lock();
        state.fresh.push(entry);
        self.note(&state);
        state.fresh.len() == FLUSH_AT
    }

    /// Puts entries back whose owners have a session open.
    pub(crate) fn hold_back(&self, back: Vec<Entry<T>>) {
        let mut state = self.state.lock();
        self.held.fetch_add(back.len(), Ordering::Relaxed);
        for (owner, entry) in back {
            state.held.entry(owner).or_default().push(entry);
        }
    }

    /// Whether an entry of this owner is held back.
    pub(crate) fn holds(&self, owner: u64) -> bool {
        self.held() > 0 && self.state.lock().held.contains_key(&owner)
    }

    fn note(&self, state: &State<T>) {
        self.fresh.store(state.fresh.len(), Ordering::Relaxed);
    }

    /// Takes what is in the queue, if there is something.
    pub(crate) fn take(&self) -> Option<Batch<'_, T>> {
        if self.len() == 0 {
            return None;
        }
        let mut state = self.state.lock();
        let held = std::mem::take(&mut state.held).into_iter();
        let held = held.flat_map(|(owner, of)| of.into_iter().map(move |entry| (owner, entry)));
        let mut entries: Vec<_> = held.collect();
        entries.append(&mut state.fresh);
        self.held.store(0, Ordering::Relaxed);
        self.note(&state);
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
