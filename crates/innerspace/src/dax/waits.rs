//! The waiters for locked entries.
//!
//! The key of a queue is the first page that the entry covers, so that a waiter for any page of a
//! large entry is in the queue that the entry's holder wakes. Unlocking wakes one waiter, which
//! takes the lock or passes the wake-up on. If the entry was changed or removed, unlocking wakes
//! all, because each may have to do something else now.
//!
//! The waiter
//!
//! 1. locks the queue,
//! 2. sets WAITERS in the word, if it still has a locked entry,
//! 3. goes into the queue,
//! 4. unlocks the queue, leaves its section, and sleeps.
//!
//! The holder
//!
//! 1. exchanges the locked word without WAITERS for the unlocked one; if that succeeds, no thread
//!    waits, and the holder is done;
//! 2. otherwise locks the queue and takes waiters out,
//! 3. stores the unlocked word, with WAITERS if some waiters are left,
//! 4. unlocks the queue and wakes the waiters it took out.
//!
//! WAITERS is set and cleared only under the queue's mutex, so a holder that finds it clear has no
//! waiter to wake.

use std::collections::{BTreeMap, VecDeque};

use super::entry::{SharedWord, WAITERS, Word};
use crate::frame::Sleeper;
use crate::sync::{Arc, Mutex, Rank};

/// The number of queues.
const QUEUES: usize = if cfg!(loom) { 1 } else { 16 };

/// How many waiters an unlock wakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wake {
    /// Wakes one waiter: the content is unchanged.
    One,
    /// Wakes all: the entry has changed, or is gone.
    All,
}

type Queue = BTreeMap<u64, VecDeque<Arc<Sleeper>>>;

/// The waiters of one file's entries.
pub(super) struct Waits([Mutex<Queue>; QUEUES]);

impl Default for Waits {
    fn default() -> Waits {
        Waits(std::array::from_fn(|_| {
            Mutex::ranked(Rank::WaitQueue, Queue::new())
        }))
    }
}

/// A waiter's place in a queue.
#[must_use = "a queued waiter has to sleep"]
pub(super) struct Asleep(Arc<Sleeper>);

impl Asleep {
    /// Sleeps until woken. The caller has no section open and no lock held.
    pub(super) fn sleep(self) {
        self.0.sleep(None);
    }
}

impl Waits {
    fn queue(&self, key: u64) -> &Mutex<Queue> {
        &self.0[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % QUEUES]
    }

    /// Queues for `word`, which has this key. Returns `None` if it has no locked entry any more.
    /// Called in the section in which the word was found.
    pub(super) fn enqueue(&self, word: &impl SharedWord, key: u64) -> Option<Asleep> {
        let mut queue = self.queue(key).lock();
        let mut now = word.load();
        loop {
            // The entry may have been removed since, and a node that is locked is not waited for.
            if !matches!(Word::decode(now), Word::Entry { locked: true, .. }) {
                return None;
            }
            if now & WAITERS != 0 {
                break;
            }
            match word.exchange(now, now | WAITERS) {
                Ok(()) => break,
                Err(other) => now = other,
            }
        }
        let sleeper = Sleeper::new();
        queue.entry(key).or_default().push_back(sleeper.clone());
        Some(Asleep(sleeper))
    }

    /// Unlocks a word: from `locked` (the word as its holder knows it, without WAITERS) to
    /// `unlocked`. Calls `wake` if there are waiters.
    #[inline]
    pub(super) fn release(
        &self,
        word: &impl SharedWord,
        key: u64,
        locked: u64,
        unlocked: u64,
        wake: impl FnOnce() -> Wake,
    ) {
        if let Err(found) = word.exchange(locked, unlocked) {
            self.release_to(word, key, (locked, found), unlocked, wake());
        }
    }

    /// Unlocks a word that has waiters.
    #[cold]
    fn release_to(
        &self,
        word: &impl SharedWord,
        key: u64,
        (locked, found): (u64, u64),
        unlocked: u64,
        wake: Wake,
    ) {
        assert_eq!(
            found,
            locked | WAITERS,
            "I7: a locked entry was changed by somebody else"
        );
        let mut queue = self.queue(key).lock();
        let woken = take(&mut queue, key, wake);
        let left = queue.contains_key(&key) && unlocked != 0;
        word.store(if left { unlocked | WAITERS } else { unlocked });
        drop(queue);
        woken.iter().for_each(|sleeper| sleeper.unpark());
    }

    /// Wakes the next waiter, on behalf of a waiter that was woken but does not take the lock.
    pub(super) fn pass_on(&self, key: u64) {
        let woken = take(&mut self.queue(key).lock(), key, Wake::One);
        woken.iter().for_each(|sleeper| sleeper.unpark());
    }
}

/// Takes waiters out and marks them as woken. The caller unparks them after releasing the mutex.
fn take(queue: &mut Queue, key: u64, wake: Wake) -> Vec<Arc<Sleeper>> {
    let Some(waiters) = queue.get_mut(&key) else {
        return Vec::new();
    };
    let count = match wake {
        Wake::One => 1,
        Wake::All => waiters.len(),
    };
    let taken: Vec<_> = waiters.drain(..count).collect();
    if waiters.is_empty() {
        queue.remove(&key);
    }
    for sleeper in &taken {
        sleeper.rouse();
    }
    taken
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Waits {
        /// Returns the number of waiters in all queues.
        pub(crate) fn len(&self) -> usize {
            let waiters =
                |queue: &Mutex<Queue>| queue.lock().values().map(VecDeque::len).sum::<usize>();
            self.0.iter().map(waiters).sum()
        }
    }
}
