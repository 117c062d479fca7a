//! Who waits for a locked entry.
//!
//! Queues by key: the first page that the entry covers, so that who asks for any page of a large
//! entry waits where its holder wakes. Unlocking wakes one waiter, which takes the lock in its turn
//! or passes the wake-up on; an entry that was changed or removed wakes all, since each may find
//! something else to do.
//!
//! | | waiter | holder |
//! |---|---|---|
//! | 1 | locks the queue | exchanges the locked word without WAITERS for the unlocked one: done, nobody waits |
//! | 2 | sets WAITERS in the word, if it is still locked | else locks the queue, takes waiters out |
//! | 3 | goes into the queue | stores the unlocked word, with WAITERS if some are left |
//! | 4 | unlocks the queue, leaves its section, sleeps | unlocks the queue, wakes them |
//!
//! WAITERS is set and cleared under the queue's mutex alone, so a holder that found it clear has
//! nobody to wake.

use std::collections::{BTreeMap, VecDeque};

use super::entry::{LOCKED, SharedWord, WAITERS};
use crate::frame::Sleeper;
use crate::sync::{Arc, Mutex, Rank};

/// The number of queues.
const QUEUES: usize = if cfg!(loom) { 1 } else { 16 };

/// How many waiters an unlock wakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wake {
    /// The entry is what it was.
    One,
    /// The entry is another one, or gone.
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

/// A place in a queue.
#[must_use = "who is in a queue sleeps"]
pub(super) struct Asleep(Arc<Sleeper>);

impl Asleep {
    /// Sleeps until woken. No section is open, no lock held.
    pub(super) fn sleep(self) {
        self.0.sleep(None);
    }
}

impl Waits {
    fn queue(&self, key: u64) -> &Mutex<Queue> {
        &self.0[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % QUEUES]
    }

    /// Queues for `word`, whose key this is; nothing if it is not locked any more. In the section
    /// in which the word was found.
    pub(super) fn enqueue(&self, word: &impl SharedWord, key: u64) -> Option<Asleep> {
        let mut queue = self.queue(key).lock();
        let mut now = word.load();
        loop {
            if now & LOCKED == 0 {
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

    /// Unlocks a word: from `locked` (as its holder knows it, without WAITERS) to `unlocked`. The
    /// word is the holder's. `wake` is asked if somebody waits.
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

    /// The same where somebody waits.
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

    /// Wakes the next one, on behalf of one who was woken and does not want the lock after all.
    pub(super) fn pass_on(&self, key: u64) {
        let woken = take(&mut self.queue(key).lock(), key, Wake::One);
        woken.iter().for_each(|sleeper| sleeper.unpark());
    }

    /// Waiters in all queues.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let waiters =
            |queue: &Mutex<Queue>| queue.lock().values().map(VecDeque::len).sum::<usize>();
        self.0.iter().map(waiters).sum()
    }
}

/// Takes waiters out and makes them runnable; the caller unparks them without the mutex.
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
