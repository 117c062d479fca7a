//! The wait table: the waiters for bits of frames.
//!
//! There are 256 queues, each on a cache line of its own. A hash of the frame chooses the queue.
//! Inside a queue the waiters are kept by their key (frame, bit). A wake-up therefore reaches only
//! its own waiters, whatever else is in the queue, and finds them in logarithmic time. The waiters
//! of a key are ordered by ticket, which is the order of their arrival.
//!
//! There are two kinds of waiters. An *exclusive* waiter wants to take the lock. It stays queued
//! until it has the lock or gives up, even while it is awake and tries. So the frame's WAITERS bit
//! stays set, every unlock meanwhile visits the queue, and no waiter is overlooked. A *shared*
//! waiter wants to see the bit clear, and is unlinked when it is woken. Futures do not wait here:
//! `exec/waker_slot.rs` stores their wakers.
//!
//! A waiter is a sleeping thread. It is represented by an `Arc<Sleeper>`, which the thread and the
//! queue share. The waking thread may touch the `Sleeper` after the woken thread has gone on, and
//! the last reference frees it. Nothing here points to a thread's stack.
//!
//! Invariants, which hold whenever a queue's mutex is free:
//! - If a frame has an entry in the queue, its WAITERS bit is set.
//! - The state of a queued exclusive sleeper changes only under the mutex.
//!
//! Locks: a queue's mutex, inside which no other lock is taken. Threads are unparked after it
//! is released.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Instant;

use super::flags::FlagSet;
use crate::FrameId;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, Rank, WaitEnd, thread};

/// The number of queues.
#[cfg(not(loom))]
const QUEUES: usize = 256;
#[cfg(loom)]
const QUEUES: usize = 1;

/// The default number of times that a waiter may lose the lock to a thread that came later.
pub(crate) const DEFAULT_PATIENCE: u32 = 5;

/// A bit of the flags byte for which a thread can wait.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Bit {
    /// The frame's lock.
    Locked,
    /// The frame is being written to the store.
    Writeback,
}

impl Bit {
    /// Returns the bit in the flags byte.
    pub(crate) const fn flag(self) -> FlagSet {
        match self {
            Bit::Locked => FlagSet::LOCKED,
            Bit::Writeback => FlagSet::WRITEBACK,
        }
    }
}

/// The key of an entry: the frame, and the bit for which the entry's thread waits.
pub(super) type Key = (FrameId, Bit);

const SLEEPING: u8 = 0;
const WOKEN: u8 = 1;
const HANDED: u8 = 2;

/// A thread that sleeps or is about to sleep.
///
/// | state | changed to by | meaning |
/// |---|---|---|
/// | SLEEPING | `new`, `rest` | keep sleeping |
/// | WOKEN | `rouse` | shared: the bit was clear; exclusive: try to set it |
/// | HANDED | `hand_over` | exclusive: this thread has the lock, and is no longer queued |
pub(crate) struct Sleeper {
    state: AtomicU8,
    thread: thread::Thread,
}

impl Sleeper {
    /// Makes a sleeper for the calling thread, which is about to sleep.
    pub(crate) fn new() -> Arc<Sleeper> {
        Arc::new(Sleeper {
            state: AtomicU8::new(SLEEPING),
            thread: thread::current(),
        })
    }

    /// Sleeps until the state changes or the deadline passes. `None` means no deadline.
    pub(crate) fn sleep(&self, deadline: Option<Instant>) -> WaitEnd {
        // Acquire: pairs with the Release of `rouse` and `hand_over`, so that this thread sees what
        // the waking thread did before.
        if self.state.load(Ordering::Acquire) == SLEEPING {
            crate::sync::before_waiting();
        }
        while self.state.load(Ordering::Acquire) == SLEEPING {
            match deadline {
                None => thread::park(),
                #[cfg(not(any(loom, shuttle)))]
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return WaitEnd::TimedOut;
                    }
                    thread::park_timeout(left);
                }
                // Under a model checker no time passes. The deadline passes after other threads
                // have had a chance to run.
                #[cfg(any(loom, shuttle))]
                Some(_) => {
                    thread::yield_now();
                    if self.state.load(Ordering::Acquire) == SLEEPING {
                        return WaitEnd::TimedOut;
                    }
                }
            }
        }
        WaitEnd::Woken
    }

    /// Makes the thread runnable. Returns whether it was asleep; if so, the caller unparks it.
    pub(crate) fn rouse(&self) -> bool {
        let was_asleep = self.state.load(Ordering::Relaxed) == SLEEPING;
        if was_asleep {
            self.state.store(WOKEN, Ordering::Release);
        }
        was_asleep
    }

    /// Tells the thread that it has the lock. The caller unparks it afterwards.
    pub(super) fn hand_over(&self) {
        self.state.store(HANDED, Ordering::Release);
    }

    /// Returns whether the lock was handed to this thread.
    pub(super) fn was_handed(&self) -> bool {
        self.state.load(Ordering::Acquire) == HANDED
    }

    /// Prepares to sleep again after an attempt that failed.
    pub(super) fn rest(&self) {
        self.state.store(SLEEPING, Ordering::Relaxed);
    }

    /// Wakes the thread, which then checks the state.
    pub(crate) fn unpark(&self) {
        self.thread.unpark();
    }
}

/// A waiter that wants the lock.
pub(super) struct Exclusive {
    pub(super) sleeper: Arc<Sleeper>,
    /// The number of times that a later thread took the lock while this waiter was the first.
    pub(super) passed: u32,
}

/// The waiters of one key, by ticket.
#[derive(Default)]
struct Waiters {
    exclusive: BTreeMap<u64, Exclusive>,
    /// The waiters that want to see the bit clear.
    shared: BTreeMap<u64, Arc<Sleeper>>,
    /// The last ticket that had been given out when the bit was last noted as clear. Shared waiters
    /// with tickets up to this one have seen the bit clear, and have yet to be woken.
    cleared: u64,
}

/// One queue of the table.
#[derive(Default)]
pub(super) struct Queue {
    keys: BTreeMap<Key, Waiters>,
    next_ticket: u64,
    visits: u64,
}

impl Queue {
    /// Adds a waiter that wants the lock, at the tail. Returns its ticket.
    pub(super) fn push_exclusive(&mut self, key: Key, sleeper: Arc<Sleeper>) -> u64 {
        let (ticket, waiters) = self.newcomer(key);
        let waiter = Exclusive { sleeper, passed: 0 };
        waiters.exclusive.insert(ticket, waiter);
        ticket
    }

    /// Adds a waiter that wants to see the bit clear. Returns its ticket.
    pub(super) fn push_shared(&mut self, key: Key, sleeper: Arc<Sleeper>) -> u64 {
        let (ticket, waiters) = self.newcomer(key);
        waiters.shared.insert(ticket, sleeper);
        ticket
    }

    fn newcomer(&mut self, key: Key) -> (u64, &mut Waiters) {
        self.next_ticket += 1;
        (self.next_ticket, self.keys.entry(key).or_default())
    }

    /// Returns the exclusive waiter of a key that came first, and its ticket.
    pub(super) fn head(&mut self, key: Key) -> Option<(u64, &mut Exclusive)> {
        let (ticket, head) = self.keys.get_mut(&key)?.exclusive.iter_mut().next()?;
        Some((*ticket, head))
    }

    /// Removes one exclusive waiter, and returns it.
    pub(super) fn remove_exclusive(&mut self, key: Key, ticket: u64) -> Option<Exclusive> {
        self.change(key, |waiters| waiters.exclusive.remove(&ticket))
    }

    /// Removes one shared waiter, and returns it. Returns `None` if it was already removed to be
    /// woken.
    pub(super) fn remove_shared(&mut self, key: Key, ticket: u64) -> Option<Arc<Sleeper>> {
        self.change(key, |waiters| waiters.shared.remove(&ticket))
    }

    /// Removes all shared waiters of a key, without a walk over them, and returns them. The caller
    /// wakes them after it has released the mutex.
    pub(super) fn take_shared(&mut self, key: Key) -> BTreeMap<u64, Arc<Sleeper>> {
        self.change(key, |waiters| std::mem::take(&mut waiters.shared))
    }

    /// Notes for the shared waiters of a key that the bit is clear now.
    pub(super) fn note_cleared(&mut self, key: Key) {
        let now = self.next_ticket;
        self.change(key, |waiters| waiters.cleared = now);
    }

    /// Removes the shared waiters of a key that are noted as having seen the bit clear, and returns
    /// them.
    pub(super) fn take_cleared(&mut self, key: Key) -> BTreeMap<u64, Arc<Sleeper>> {
        self.change(key, |waiters| {
            let later = waiters.shared.split_off(&(waiters.cleared + 1));
            std::mem::replace(&mut waiters.shared, later)
        })
    }

    /// Changes the waiters of a key, if there are any, and removes the key if none is left. Returns
    /// the result of `change`, or the default value if there were no waiters.
    fn change<T: Default>(&mut self, key: Key, change: impl FnOnce(&mut Waiters) -> T) -> T {
        let Entry::Occupied(mut entry) = self.keys.entry(key) else {
            return T::default();
        };
        let waiters = entry.get_mut();
        let changed = change(waiters);
        if waiters.exclusive.is_empty() && waiters.shared.is_empty() {
            entry.remove();
        }
        changed
    }

    /// Returns whether there is a waiter for any bit of the frame.
    pub(super) fn has_waiters(&self, id: FrameId) -> bool {
        self.keys.contains_key(&(id, Bit::Locked)) || self.keys.contains_key(&(id, Bit::Writeback))
    }
}

#[repr(align(64))]
#[derive(Debug)]
struct Padded(Mutex<Queue>);

/// The table of waiters that this module describes.
#[derive(Debug)]
pub(crate) struct WaitTable {
    queues: Box<[Padded]>,
    patience: u32,
}

impl WaitTable {
    /// Makes an empty table. A waiter loses the lock to later threads at most `patience` times.
    /// With 0 the order is strictly first come, first served.
    pub(crate) fn new(patience: u32) -> WaitTable {
        WaitTable {
            queues: (0..QUEUES)
                .map(|_| Padded(Mutex::ranked(Rank::WaitQueue, Queue::default())))
                .collect(),
            patience,
        }
    }

    /// Returns the number of times that a waiter may be overtaken.
    #[inline]
    pub(super) fn patience(&self) -> u32 {
        self.patience
    }

    /// Returns the number of the queue for a frame's waiters. The hash is Fibonacci hashing:
    /// neighbours, and frames a power of two apart, go to different queues.
    pub(super) fn bucket(id: FrameId) -> usize {
        (u64::from(id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % QUEUES
    }

    /// Locks the queue of a frame and counts the visit.
    pub(super) fn queue(&self, id: FrameId) -> MutexGuard<'_, Queue> {
        let mut queue = self.queues[WaitTable::bucket(id)].0.lock();
        queue.visits += 1;
        queue
    }

    /// Returns how many times the lock protocol has locked a queue. Uncontended operations never
    /// lock one.
    pub(crate) fn visits(&self) -> u64 {
        self.queues.iter().map(|queue| queue.0.lock().visits).sum()
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Sleeper {
        /// Returns whether the waiter was woken.
        pub(crate) fn is_woken(&self) -> bool {
            self.state.load(Ordering::Acquire) == WOKEN
        }
    }

    impl WaitTable {
        /// Returns the number of entries in the table.
        pub(crate) fn entries(&self) -> usize {
            let count = |queue: &Queue| -> usize {
                queue
                    .keys
                    .values()
                    .map(|w| w.exclusive.len() + w.shared.len())
                    .sum()
            };
            self.queues.iter().map(|queue| count(&queue.0.lock())).sum()
        }
    }
}
