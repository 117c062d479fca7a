//! The forms that a page lock may take: prototypes that do not use the library.
//!
//! Each lock is a byte on a cache line of its own, with a bit for the lock and a bit for waiters.
//! All locks share one wait queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

/// Set while the lock is held.
const LOCKED: u8 = 1;
/// Set while a thread may be in the queue. This is the sign bit of the byte.
const WAITERS: u8 = 1 << 7;

/// How a lock is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unlock {
    /// By one atomic operation, whose sign tells whether a thread waits.
    OneOperation,
    /// By clearing the lock bit, then testing the waiters bit in the byte that was just changed.
    ClearThenTest,
    /// By clearing the lock bit, then searching the wait queue, whether a thread waits or not.
    ClearThenLook,
}

#[repr(align(64))]
#[derive(Default)]
struct Line(AtomicU8);

struct Waiter {
    lock: usize,
    thread: Thread,
    /// How many times a thread that came later took the lock first.
    passed: u32,
    handed: Arc<AtomicBool>,
}

/// Locks of one form.
pub(super) struct Locks {
    lines: Vec<Line>,
    unlock: Unlock,
    patience: u32,
    queue: Mutex<VecDeque<Waiter>>,
}

impl Locks {
    /// Creates locks at which a waiter loses its turn at most `patience` times to a thread that
    /// came later. With 0, the order is first come, first served.
    pub(super) fn new(locks: usize, unlock: Unlock, patience: u32) -> Locks {
        Locks {
            lines: std::iter::repeat_with(Line::default).take(locks).collect(),
            unlock,
            patience,
            queue: Mutex::default(),
        }
    }

    #[inline(always)]
    pub(super) fn lock(&self, lock: usize) {
        let byte = &self.lines[lock].0;
        let taken = byte.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            self.wait(lock);
        }
    }

    #[inline(always)]
    pub(super) fn unlock(&self, lock: usize) {
        let byte = &self.lines[lock].0;
        let may_wait = match self.unlock {
            Unlock::OneOperation => clear_lock(byte),
            Unlock::ClearThenTest | Unlock::ClearThenLook => {
                byte.fetch_and(!LOCKED, Ordering::Release);
                // The waiters bit must not be read before all threads can see the lock bit clear.
                fence(Ordering::SeqCst);
                self.unlock == Unlock::ClearThenLook || byte.load(Ordering::Relaxed) & WAITERS != 0
            }
        };
        if may_wait {
            self.wake(lock);
        }
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Waiter>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock bit if it is clear.
    fn take(&self, lock: usize) -> bool {
        self.lines[lock].0.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0
    }

    /// Clears the waiters bit when no thread is in the queue any more.
    fn tidy(&self, lock: usize, queue: &VecDeque<Waiter>) {
        if !queue.iter().any(|waiter| waiter.lock == lock) {
            self.lines[lock].0.fetch_and(!WAITERS, Ordering::Relaxed);
        }
    }

    #[cold]
    fn wait(&self, lock: usize) {
        let mut queue = self.queue();
        self.lines[lock].0.fetch_or(WAITERS, Ordering::Relaxed);
        let head = queue.iter_mut().find(|waiter| waiter.lock == lock);
        let may_take = head.as_ref().is_none_or(|head| head.passed < self.patience);
        if may_take && self.take(lock) {
            if let Some(head) = head {
                head.passed += 1;
            }
            self.tidy(lock, &queue);
            return;
        }
        let handed = Arc::new(AtomicBool::new(false));
        queue.push_back(Waiter {
            lock,
            thread: std::thread::current(),
            passed: 0,
            handed: handed.clone(),
        });
        drop(queue);
        loop {
            std::thread::park();
            if handed.load(Ordering::Acquire) {
                return;
            }
            let mut queue = self.queue();
            let head = queue.iter().position(|waiter| waiter.lock == lock);
            let is_own = |at: &usize| Arc::ptr_eq(&queue[*at].handed, &handed);
            let Some(own) = head.filter(is_own) else {
                continue;
            };
            if self.take(lock) {
                queue.remove(own);
                self.tidy(lock, &queue);
                return;
            }
        }
    }

    /// Hands the lock over if the first waiter has no patience left. Otherwise wakes the waiter,
    /// which tries again.
    #[cold]
    fn wake(&self, lock: usize) {
        let mut queue = self.queue();
        let Some(head) = queue.iter().position(|waiter| waiter.lock == lock) else {
            return self.tidy(lock, &queue);
        };
        if queue[head].passed < self.patience || !self.take(lock) {
            return queue[head].thread.unpark();
        }
        if let Some(waiter) = queue.remove(head) {
            self.tidy(lock, &queue);
            waiter.handed.store(true, Ordering::Release);
            waiter.thread.unpark();
        }
    }
}

/// Clears the lock bit and returns whether a thread may wait, in one instruction. For an atomic AND
/// whose result is used, the compiler would generate a loop.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn clear_lock(byte: &AtomicU8) -> bool {
    let sign: u8;
    // SAFETY: a locked operation on a live atomic byte; the block may touch memory, so the compiler
    // moves nothing out of the locked region.
    unsafe {
        std::arch::asm!(
            "lock and byte ptr [{byte}], {keep}",
            "sets {sign}",
            byte = in(reg) byte.as_ptr(),
            keep = const !LOCKED as i8,
            sign = out(reg_byte) sign,
            options(nostack),
        );
    }
    sign != 0
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn clear_lock(byte: &AtomicU8) -> bool {
    byte.fetch_and(!LOCKED, Ordering::Release) & WAITERS != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_loses_a_waiter() {
        for unlock in [
            Unlock::OneOperation,
            Unlock::ClearThenTest,
            Unlock::ClearThenLook,
        ] {
            for patience in [0, 5] {
                let locks = Locks::new(2, unlock, patience);
                let inside = [AtomicBool::new(false), AtomicBool::new(false)];
                std::thread::scope(|scope| {
                    for _ in 0..3 {
                        scope.spawn(|| {
                            for round in 0..2_000 {
                                let lock = round % 2;
                                locks.lock(lock);
                                assert!(!inside[lock].swap(true, Ordering::Relaxed));
                                inside[lock].store(false, Ordering::Relaxed);
                                locks.unlock(lock);
                            }
                        });
                    }
                });
                assert!(locks.queue().is_empty(), "{unlock:?}");
            }
        }
    }
}
