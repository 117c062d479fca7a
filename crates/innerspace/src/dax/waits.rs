//! The waiters for locked entries.
//!
//! The key of a waiter is the first page that the entry covers, so that the holder of a large entry
//! wakes the waiters for any page of it. Unlocking wakes one waiter with the entry's key. That
//! waiter takes the lock, or finds that another thread has it and queues again. If the entry was
//! removed, or changed in more than DIRTY, unlocking wakes all waiters with its key, because each
//! may have to do something else now.
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
//! 2. otherwise locks the queue and removes waiters from it,
//! 3. stores the unlocked word, with WAITERS if some waiters are left,
//! 4. unlocks the queue and wakes the waiters that it removed.
//!
//! WAITERS is set and cleared only under the queue's mutex, so a holder that finds it clear has no
//! waiter to wake.

use super::entry::{DIRTY, LOCKED, SharedWord, WAITERS, Word};
use crate::frame::Sleeper;
use crate::sync::{Arc, Mutex, Rank};

/// The number of queues.
const QUEUES: usize = if cfg!(loom) { 1 } else { 16 };

/// Waiters, each with its key.
type Queue = Vec<(u64, Arc<Sleeper>)>;

/// The waiters for one file's entries.
pub(super) struct Waits([Mutex<Queue>; QUEUES]);

impl Default for Waits {
    fn default() -> Waits {
        Waits(std::array::from_fn(|_| {
            Mutex::ranked(Rank::WaitQueue, Queue::new())
        }))
    }
}

impl Waits {
    fn queue(&self, key: u64) -> &Mutex<Queue> {
        &self.0[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % QUEUES]
    }

    /// Queues the caller for `word`, which has this key. Returns `None` if the word has no locked
    /// entry any more. The caller must be in the section in which it found the word. It then leaves
    /// the section and sleeps on the result, holding no lock that comes after entries in the lock
    /// order.
    pub(super) fn enqueue(&self, word: &impl SharedWord, key: u64) -> Option<Arc<Sleeper>> {
        let mut queue = self.queue(key).lock();
        let mut now = word.load();
        // The entry may have been removed since, and a node that is locked is not waited for.
        while let Word::Entry { locked: true, .. } = Word::decode(now) {
            if let Err(other) = word.exchange(now, now | WAITERS) {
                now = other;
                continue;
            }
            let sleeper = Sleeper::new();
            queue.push((key, sleeper.clone()));
            return Some(sleeper);
        }
        None
    }

    /// Unlocks a word: from `locked` (the word as its holder knows it, without WAITERS) to
    /// `unlocked`. Wakes one waiter if the entry is unchanged except for DIRTY, and otherwise all.
    #[inline]
    pub(super) fn release(&self, word: &impl SharedWord, key: u64, locked: u64, unlocked: u64) {
        if let Err(found) = word.exchange(locked, unlocked) {
            self.release_to_waiters(word, key, (locked, found), unlocked);
        }
    }

    #[cold]
    fn release_to_waiters(
        &self,
        word: &impl SharedWord,
        key: u64,
        (locked, found): (u64, u64),
        unlocked: u64,
    ) {
        assert_eq!(
            found,
            locked | WAITERS,
            "I7: a locked entry was changed by somebody else"
        );
        let mut queue = self.queue(key).lock();
        let is_same = (locked ^ unlocked) & !(LOCKED | DIRTY) == 0;
        let most = if is_same { 1 } else { usize::MAX };
        let waiting = queue.extract_if(.., |(other, _)| *other == key);
        let woken: Vec<_> = waiting.take(most).collect();
        let left = queue.iter().any(|(other, _)| *other == key);
        word.store(if left { unlocked | WAITERS } else { unlocked });
        drop(queue);
        for (_, sleeper) in woken {
            sleeper.rouse();
            sleeper.unpark();
        }
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Waits {
        /// Returns the number of waiters in all queues.
        pub(crate) fn len(&self) -> usize {
            self.0.iter().map(|queue| queue.lock().len()).sum()
        }
    }
}
