//! The lock bit and the writeback bit of a frame: taking, releasing, waiting.
//!
//! Waiting is rare, so the fast paths touch only the flags byte. Locking is one compare-exchange.
//! Unlocking is one read-modify-write, whose result tells whether WAITERS is set; both bits are in
//! one byte for that reason. All other cases use the wait table.
//!
//! **No wake-up is lost.** A waiter holds its queue's mutex. It sets WAITERS *first*, then tries
//! the bit once, and only then enqueues. All three bits are in one atomic byte, so there are two
//! cases. If the try comes after the release, it succeeds. If the release comes after WAITERS was
//! set, the releaser sees WAITERS, locks the queue's mutex and finds the waiter's entry.
//!
//! **Fairness is bounded.** Any thread may take a released lock. But while WAITERS is set every
//! thread takes it under the queue's mutex, because the compare-exchange of the fast path expects
//! WAITERS to be clear. A thread that passes the first waiter increments a count in the queue. Once
//! the count has reached `patience`, the next thread does not pass but hands the lock over: it
//! takes the bit for the first waiter, unlinks the waiter and unparks its thread.
//!
//! The unlocker, too, hands the lock over if the count has reached `patience` when the unlocker
//! gets to the queue. If another thread wants the lock earlier, it takes the lock or hands it over,
//! so the lock is not idle meanwhile. So the unlocker need not look at the queue *before* it
//! releases the lock. With `patience` 0 the order is strictly first come, first served.
//!
//! **A thread that takes the lock, for itself or for the first waiter, wakes none of the waiters
//! that only want to see the bit clear.** Waking many would take long, with the lock held. The
//! thread instead notes in the queue, under the mutex, that these waiters have seen the bit clear.
//! The unlocker that released the lock wakes these waiters. It saw WAITERS, because they had
//! enqueued while the bit was still set. It has not been to the queue since, or they would no
//! longer be there.
//!
//! **A wake-up is never stale.** The unlocker checks the bit again under the queue's mutex. If the
//! bit was set again, the next release will see WAITERS and wake the waiters that are not noted as
//! having seen the bit clear. So the bit of a woken waiter was clear at some moment after the wait
//! began, and the waiter need not check it (after `put_and_wait` it must not).
//!
//! **The frame is not freed until its unlocker has been to the queue**, so that the flags byte and
//! the queue's key still belong to the same use of the frame. Every caller of an unlocking function
//! holds the frame until the function returns.
//!
//! There is one exception. In fault-around the unlocker's hold on a neighbouring block passes to
//! the page that it installs. The index holds that frame until the lock is released. After that the
//! frame may be evicted and reused before its unlocker is at the queue. That does no harm:
//! - No entry in the queue is older than the reuse. Exclusive waiters hold the frame. Some shared
//!   waiters do not (`put_and_wait`), but the thread that removed the block from the index had the
//!   lock, and held the frame while it released the lock. It saw WAITERS and woke them all.
//! - For waiters on the reused frame, the late unlocker is just one more visitor to the queue.
//!   Waking them, or handing the lock over, is right whenever LOCKED is clear, and waking noted
//!   waiters is always right.
//! - If there is no waiter, WAITERS is cleared by an atomic operation on one bit, which undoes no
//!   store of the new owner.
//!
//! No thread sleeps while it holds a queue's mutex. A thread that finds the lock taken and the
//! queue empty first spins for a few hundred pause instructions.

use std::time::{Duration, Instant};

use super::flags::{FlagSet, Flags};
use super::hold::Dropped;
use super::wait_table::{Bit, Key, Queue, Sleeper, WaitTable};
use crate::FrameId;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Arc, Backoff, MutexGuard, Rank, WaitEnd, order};

const LOCKED: u8 = FlagSet::LOCKED.0;
const WRITEBACK: u8 = FlagSet::WRITEBACK.0;
const WAITERS: u8 = FlagSet::WAITERS.0;
const UPTODATE: u8 = FlagSet::UPTODATE.0;
const ERROR: u8 = FlagSet::ERROR.0;

/// The outcome of reading a block from its store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadEnd {
    /// The bytes are the store's, so UPTODATE is set.
    Filled,
    /// The read failed, so ERROR is set.
    Failed,
}

/// A frame's flags byte, with the table in which its waiters sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameLock<'a> {
    pub(super) id: FrameId,
    pub(super) flags: &'a Flags,
    pub(super) waits: &'a WaitTable,
}

impl<'a> FrameLock<'a> {
    fn byte(&self) -> &'a AtomicU8 {
        self.flags.byte()
    }

    fn queue(&self) -> MutexGuard<'a, Queue> {
        self.waits.queue(self.id)
    }

    fn key(&self, bit: Bit) -> Key {
        (self.id, bit)
    }

    /// Takes the lock if it is free and no thread waits. Never sleeps, takes no mutex and wakes no
    /// thread. A WAITERS bit that is out of date makes it fail too.
    #[inline]
    pub(crate) fn try_lock_alone(&self) -> bool {
        self.try_at_once().is_ok()
    }

    /// Takes the lock if it is free and the first waiter may be passed. It must not be called in a
    /// section, because it may take the queue's mutex for a moment.
    #[inline]
    pub(crate) fn try_lock(&self) -> bool {
        match self.try_at_once() {
            Ok(()) => true,
            Err(seen) => seen & LOCKED == 0 && self.try_lock_past_waiters(),
        }
    }

    /// Takes the lock unless LOCKED or WAITERS is set. On failure, returns the byte that it saw.
    #[inline]
    fn try_at_once(&self) -> Result<(), u8> {
        let take = |now: u8| (now & (LOCKED | WAITERS) == 0).then_some(now | LOCKED);
        // Acquire: pairs with the Release of the previous unlock.
        let taken = (self.byte()).fetch_update(Ordering::Acquire, Ordering::Relaxed, take);
        taken.map(drop)
    }

    /// Tries to take the lock although WAITERS is set. WAITERS does not say whether the first
    /// waiter may be passed, whether the waiters wait for this bit or for WRITEBACK, or whether
    /// they are still there. If the first waiter may not be passed, a free lock is handed to it.
    #[cold]
    fn try_lock_past_waiters(&self) -> bool {
        let mut queue = self.queue();
        if self.take_in_turn(&mut queue, None) {
            return true;
        }
        let next = self.hand_over_idle(&mut queue);
        self.tidy(&queue);
        drop(queue);
        next.iter().for_each(|sleeper| sleeper.unpark());
        false
    }

    /// Takes the lock. Sleeps until it is free.
    #[inline]
    pub(crate) fn lock(&self) {
        order::may_wait(Rank::Block);
        if !self.try_lock() {
            let end = self.lock_slow(None);
            debug_assert_eq!(end, WaitEnd::Woken, "no deadline, no timeout");
        }
    }

    /// Takes the lock. Sleeps for at most `timeout`. The caller has the lock unless `TimedOut` is
    /// returned. If the timeout races with a handoff of the lock, the caller gets the lock.
    #[cfg_attr(
        not(test),
        expect(
            dead_code,
            reason = "part of the page lock's specification and models; unused so far"
        )
    )]
    #[must_use = "the lock may not be held"]
    pub(super) fn lock_timeout(&self, timeout: Duration) -> WaitEnd {
        order::may_wait(Rank::Block);
        match self.try_lock() {
            true => WaitEnd::Woken,
            false => self.lock_slow(deadline(timeout)),
        }
    }

    /// Spins for the lock while the queue is empty, because most locks are held for less time than
    /// a wake-up takes. Returns whether it took the lock. Does not spin if the order is strict,
    /// since spinning threads have no order.
    fn lock_soon(&self) -> bool {
        let mut backoff = Backoff::new();
        while self.waits.patience() > 0 && backoff.is_busy() {
            match self.try_at_once() {
                Ok(()) => return true,
                Err(seen) if seen & WAITERS != 0 => return false,
                Err(_) => backoff.snooze(),
            }
        }
        false
    }

    #[cold]
    fn lock_slow(&self, deadline: Option<Instant>) -> WaitEnd {
        if self.lock_soon() {
            return WaitEnd::Woken;
        }
        let key = self.key(Bit::Locked);
        let sleeper = Sleeper::new();
        let (ticket, next) = {
            let mut queue = self.queue();
            if self.set_waiters_then_try(&mut queue) {
                return WaitEnd::Woken;
            }
            // WAITERS stays set for this waiter.
            let next = self.hand_over_idle(&mut queue);
            (queue.push_exclusive(key, sleeper.clone()), next)
        };
        next.iter().for_each(|sleeper| sleeper.unpark());
        loop {
            let end = sleeper.sleep(deadline);
            let mut queue = self.queue();
            if sleeper.was_handed() {
                return WaitEnd::Woken;
            }
            // Only the first exclusive waiter in the queue is ever roused. So a waiter tries once
            // more even after its deadline: if a waiter that was roused gave up without trying,
            // those behind it would sleep on although the lock is free.
            if self.take_in_turn(&mut queue, Some(ticket)) {
                return WaitEnd::Woken;
            }
            if end == WaitEnd::TimedOut {
                // WAITERS may now be out of date; the next unlock clears it.
                queue.remove_exclusive(key, ticket);
                return WaitEnd::TimedOut;
            }
            sleeper.rest();
        }
    }

    /// Sets WAITERS, and then tries once to take the lock. If that fails, the caller enqueues. In
    /// this order no wake-up is lost (see the module).
    fn set_waiters_then_try(&self, queue: &mut Queue) -> bool {
        // Relaxed: WAITERS and LOCKED are in one atomic byte, whose changes have one order for all
        // threads. The queue's mutex guards the waiter's entry.
        self.byte().fetch_or(WAITERS, Ordering::Relaxed);
        self.take_in_turn(queue, None)
    }

    /// Tries once to take the lock, under the queue's mutex. With a ticket, tries for the waiter
    /// that has it, which must be the first. Without a ticket, tries for a thread that is not in
    /// the queue. Such threads may pass the first waiter `patience` times.
    fn take_in_turn(&self, queue: &mut Queue, ticket: Option<u64>) -> bool {
        let (key, patience) = (self.key(Bit::Locked), self.waits.patience());
        let may_take = match (queue.head(key), ticket) {
            (Some((first, _)), Some(own)) => first == own,
            (Some((_, head)), None) => head.passed < patience,
            (None, ticket) => ticket.is_none(),
        };
        if !may_take || !self.take() {
            return false;
        }
        if let Some(own) = ticket {
            queue.remove_exclusive(key, own);
        } else if let Some((_, head)) = queue.head(key) {
            head.passed += 1;
        }
        queue.note_cleared(key);
        self.tidy(queue);
        true
    }

    /// Tries once to set LOCKED, under the queue's mutex. Returns whether the caller has set it.
    /// Acquire: pairs with the Release of the previous unlock.
    fn take(&self) -> bool {
        self.byte().fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0
    }

    /// Clears WAITERS if no thread waits for this frame any more.
    fn tidy(&self, queue: &Queue) {
        if !queue.has_waiters(self.id) {
            self.byte().fetch_and(!WAITERS, Ordering::Relaxed);
        }
    }

    /// Releases the lock, and wakes waiters if there are any.
    ///
    /// # Panics
    /// If the lock is not held.
    #[inline]
    pub(crate) fn unlock(&self) {
        let seen = self.byte().load(Ordering::Relaxed);
        if seen & LOCKED == 0 {
            self.not_locked();
        }
        let before = self.flags.unlock().0;
        // One test for two cases: LOCKED was clear, which is an error, or WAITERS was set.
        if before & (LOCKED | WAITERS) != LOCKED {
            self.unlocked(before);
        }
    }

    /// Wakes waiters after the lock was released. Panics if another thread released it too.
    #[cold]
    fn unlocked(&self, before: u8) {
        if before & LOCKED == 0 {
            self.not_locked();
        }
        self.wake_cleared(Bit::Locked);
    }

    #[cold]
    #[inline(never)]
    fn not_locked(&self) -> ! {
        panic!("unlock of {:?}, which is not locked", self.id)
    }

    /// Releases the lock of a block that was read and is not UPTODATE yet. Sets UPTODATE (or ERROR)
    /// in the same atomic operation. Wakes waiters if there are any.
    ///
    /// # Panics
    /// If the block is not locked, or is UPTODATE already.
    pub(crate) fn end_read(&self, end: ReadEnd) {
        let check = |seen: u8| {
            assert!(
                seen & (LOCKED | UPTODATE) == LOCKED,
                "end_read of {:?}, which is not being read: {:?}",
                self.id,
                FlagSet(seen)
            );
        };
        let seen = self.byte().load(Ordering::Relaxed);
        check(seen);
        if end == ReadEnd::Filled && seen & ERROR != 0 {
            self.byte().fetch_and(!ERROR, Ordering::Relaxed);
        }
        // Release, as in `Flags::unlock`: pairs with the Acquire of the next holder.
        let fail = |now: u8| Some((now | ERROR) & !LOCKED);
        let fail = || (self.byte()).fetch_update(Ordering::Release, Ordering::Relaxed, fail);
        let before = match end {
            ReadEnd::Filled => self.flags.end_read().0,
            ReadEnd::Failed => fail().unwrap_or(seen),
        };
        check(before);
        if before & WAITERS != 0 {
            self.wake_cleared(Bit::Locked);
        }
    }

    /// Marks the block as being written. The caller holds the block's lock.
    pub(crate) fn set_writeback(&self) {
        let before = self.byte().fetch_or(WRITEBACK, Ordering::Relaxed);
        debug_assert!(
            before & WRITEBACK == 0,
            "{:?} is under writeback already",
            self.id
        );
    }

    /// Ends the writeback that `set_writeback` began. The caller holds the frame, but not its lock.
    pub(super) fn end_writeback(&self) {
        // Release: pairs with the Acquire of a thread that sees the bit clear. That thread may
        // change the bytes, so the backing store's reads of them must come before.
        let before = self.byte().fetch_and(!WRITEBACK, Ordering::Release);
        debug_assert!(
            before & WRITEBACK != 0,
            "{:?} is not under writeback",
            self.id
        );
        if before & WAITERS != 0 {
            self.wake_cleared(Bit::Writeback);
        }
    }

    /// Hands a free lock to the head of the queue if the caller may not overtake that waiter.
    /// Returns the waiter; the caller unparks it after it has released the mutex.
    #[must_use]
    fn hand_over_idle(&self, queue: &mut Queue) -> Option<Arc<Sleeper>> {
        let (key, patience) = (self.key(Bit::Locked), self.waits.patience());
        let (ticket, head) = queue.head(key)?;
        if head.passed < patience || !self.take() {
            return None;
        }
        head.sleeper.hand_over();
        let sleeper = head.sleeper.clone();
        queue.note_cleared(key);
        queue.remove_exclusive(key, ticket);
        Some(sleeper)
    }

    /// Wakes waiters after a bit was cleared.
    #[cold]
    pub(super) fn wake_cleared(&self, bit: Bit) {
        let key = self.key(bit);
        let mut queue = self.queue();
        let mut next = None;
        // Acquire: pairs with the Release that cleared the bit. Another thread may have set and
        // cleared the bit since. The waiters woken here then also see what that thread did.
        let now = self.byte().load(Ordering::Acquire);
        let shared = if now & bit.flag().0 != 0 {
            // Another thread has set the bit again. That thread woke no waiter, and its release
            // will see WAITERS.
            queue.take_cleared(key)
        } else {
            let shared = queue.take_shared(key);
            if bit == Bit::Locked {
                next = self.hand_over_idle(&mut queue).or_else(|| {
                    // The lock is free for any thread. The first exclusive waiter is woken to try
                    // for it.
                    let (_, head) = queue.head(key)?;
                    head.sleeper.rouse().then(|| head.sleeper.clone())
                });
            }
            shared
        };
        self.tidy(&queue);
        drop(queue);
        next.iter().for_each(|sleeper| sleeper.unpark());
        let woken = shared.values().filter(|sleeper| sleeper.rouse());
        woken.for_each(|sleeper| sleeper.unpark());
    }

    /// Sleeps until the bit has been clear at some moment since the call, or the deadline passes.
    /// Does not set the bit. Another thread may set it again immediately.
    pub(crate) fn wait(&self, bit: Bit, deadline: Option<Instant>) -> WaitEnd {
        order::may_wait(Rank::Block);
        let sleeper = Sleeper::new();
        let Some(ticket) = self.enqueue_shared(bit, &sleeper) else {
            return WaitEnd::Woken;
        };
        match sleeper.sleep(deadline) {
            WaitEnd::TimedOut if self.queue().remove_shared(self.key(bit), ticket).is_none() => {
                WaitEnd::Woken
            }
            end => end,
        }
    }

    /// Enqueues the caller, drops its reference by `put`, then waits until the bit has been clear
    /// at some moment. Returns the result of `put`. After `put`, nothing here touches the frame
    /// again: it may be freed and reused once this waiter is removed from the queue.
    #[cfg_attr(
        not(test),
        expect(
            dead_code,
            reason = "part of the page lock's specification and models; unused so far"
        )
    )]
    pub(super) fn put_and_wait(&self, bit: Bit, put: impl FnOnce() -> Dropped) -> Dropped {
        let sleeper = Sleeper::new();
        let ticket = self.enqueue_shared(bit, &sleeper);
        let dropped = put();
        if ticket.is_some() {
            // The frame is not freed before the entry is removed from the queue: see the module's
            // documentation.
            let end = sleeper.sleep(None);
            debug_assert_eq!(end, WaitEnd::Woken, "no deadline, no timeout");
        }
        dropped
    }

    /// Enqueues a waiter that wants to see the bit clear, and returns its ticket. Returns `None` if
    /// the bit is clear now.
    pub(super) fn enqueue_shared(&self, bit: Bit, sleeper: &Arc<Sleeper>) -> Option<u64> {
        // Acquire, here and below: pairs with the Release that cleared the bit.
        if !self.flags.load().contains(bit.flag()) {
            return None;
        }
        let mut queue = self.queue();
        self.byte().fetch_or(WAITERS, Ordering::Relaxed);
        if self.byte().load(Ordering::Acquire) & bit.flag().0 == 0 {
            self.tidy(&queue);
            drop(queue);
            return None;
        }
        Some(queue.push_shared(self.key(bit), sleeper.clone()))
    }
}

/// Returns the moment `timeout` from now, or `None` (no deadline) if an [`Instant`] cannot express
/// it.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}
