//! The shim itself: std, loom and shuttle under one set of names. The parent module describes its
//! limits.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, TryLockError, TryLockResult};
use std::time::Duration;

use super::order::{Held, Rank, may_wait};

#[cfg(loom)]
use loom::sync as base;
#[cfg(shuttle)]
use shuttle::sync as base;
#[cfg(not(any(loom, shuttle)))]
use std::sync as base;

pub(crate) use base::Arc;
#[cfg(not(loom))]
pub(crate) use base::Weak;
pub(crate) use std::sync::OnceLock;

/// Atomic integers and fences: std's or the model checker's.
pub(crate) mod atomic {
    pub(crate) use super::base::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
        fence,
    };

    #[cfg(not(any(loom, shuttle)))]
    pub(crate) use std::sync::atomic::compiler_fence;

    /// Performs the strongest fence, because loom has no compiler fence.
    #[cfg(loom)]
    pub(crate) fn compiler_fence(_: Ordering) {
        fence(Ordering::SeqCst);
    }

    /// Does nothing: shuttle explores sequentially consistent interleavings only.
    #[cfg(shuttle)]
    pub(crate) fn compiler_fence(_: Ordering) {}
}

/// std's atomics in every build, for words that live in raw memory and are reached by `from_ptr`.
///
/// The model checkers do not see these accesses. Where the position of such an access in the
/// schedule matters, call [`interleave`] next to it.
pub(crate) mod raw {
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::AtomicU32;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}

/// Functions that spawn, park and name threads.
pub(crate) mod thread {
    #[cfg(loom)]
    pub(crate) use loom::thread::*;
    #[cfg(shuttle)]
    pub(crate) use shuttle::thread::*;
    #[cfg(shuttle)]
    pub(crate) use std::thread::available_parallelism;
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) use std::thread::*;
}

/// The processor's hint for a busy loop; a scheduling point under the checkers.
pub(crate) mod hint {
    #[cfg(loom)]
    pub(crate) use loom::hint::spin_loop;
    #[cfg(shuttle)]
    pub(crate) use shuttle::hint::spin_loop;
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) use std::hint::spin_loop;
}

/// Drops the `const` of initialisers, which loom's macro does not accept.
#[cfg(loom)]
macro_rules! loom_thread_local {
    ($($(#[$doc:meta])* static $name:ident: $type:ty = const { $value:expr };)+) => {
        loom::thread_local! { $($(#[$doc])* static $name: $type = $value;)+ }
    };
}
#[cfg(loom)]
pub(crate) use loom_thread_local as thread_local;
#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::thread_local;

/// Lets shuttle run another thread here. Does nothing in other builds.
#[inline(always)]
pub(crate) fn interleave() {
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
}

/// Leaves the sections of this thread's sessions. Called before the thread waits for another one,
/// which may itself be waiting for those sections (`domain::suspend_sessions`).
#[inline]
pub(crate) fn before_waiting() {
    #[cfg(not(loom))]
    super::domain::suspend_sessions();
}

/// Makes constructors `const`, except under loom, whose types have no `const` constructors.
macro_rules! const_unless_loom {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty $body:block)+) => {
        $(
            $(#[$doc])*
            #[cfg(not(loom))]
            pub(crate) const fn $name($($arg: $type),*) -> $result $body

            $(#[$doc])*
            #[cfg(loom)]
            pub(crate) fn $name($($arg: $type),*) -> $result $body
        )+
    };
}

/// Returns the guard of a lock, whether or not an earlier holder panicked.
#[inline(always)]
fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns the guard of a tried lock if the lock was free, whether or not an earlier holder
/// panicked.
#[inline(always)]
fn try_unpoisoned<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A lock with its place in the lock order. Locking returns no error: a panic of an earlier holder
/// is ignored.
#[derive(Default)]
pub(crate) struct Lock<L: ?Sized> {
    rank: Rank,
    inner: L,
}

/// A mutex.
pub(crate) type Mutex<T> = Lock<base::Mutex<T>>;
/// A lock that one writer or several readers can hold at a time.
pub(crate) type RwLock<T> = Lock<base::RwLock<T>>;

/// Holds a lock. Dropping it unlocks.
#[must_use = "the lock is released when the guard is dropped"]
pub(crate) struct Guard<G> {
    inner: G,
    held: Held,
}

/// Holds a [`Mutex`] locked.
pub(crate) type MutexGuard<'a, T> = Guard<base::MutexGuard<'a, T>>;
/// Holds a [`RwLock`] for reading.
pub(crate) type RwLockReadGuard<'a, T> = Guard<base::RwLockReadGuard<'a, T>>;
/// Holds a [`RwLock`] for writing.
pub(crate) type RwLockWriteGuard<'a, T> = Guard<base::RwLockWriteGuard<'a, T>>;

impl<G> Guard<G> {
    #[inline(always)]
    fn new(inner: G, rank: Rank) -> Guard<G> {
        let held = rank.hold();
        Guard { inner, held }
    }
}

/// Takes a lock of this rank. Tries it first, and then waits; builds for the checkers leave out the
/// try.
#[inline(always)]
#[track_caller]
fn acquire<G>(
    rank: Rank,
    attempt: impl FnOnce() -> TryLockResult<G>,
    wait: impl FnOnce() -> LockResult<G>,
) -> Guard<G> {
    may_wait(rank);
    if cfg!(not(any(loom, shuttle)))
        && let Some(inner) = try_unpoisoned(attempt())
    {
        return Guard::new(inner, rank);
    }
    before_waiting();
    Guard::new(unpoisoned(wait()), rank)
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<T> Mutex<T> {
    const_unless_loom! {
        /// Creates an unlocked mutex around `value`. It is innermost in the lock order.
        fn new(value: T) -> Mutex<T> {
            Mutex::ranked(Rank::Leaf, value)
        }

        /// Creates an unlocked mutex around `value`, with its place in the lock order.
        fn ranked(rank: Rank, value: T) -> Mutex<T> {
            Mutex {
                rank,
                inner: base::Mutex::new(value),
            }
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex. Sleeps while another thread holds it.
    #[inline]
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        acquire(self.rank, || self.inner.try_lock(), || self.inner.lock())
    }

    /// Locks the mutex if no thread holds it. Never sleeps.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        try_unpoisoned(self.inner.try_lock()).map(|inner| Guard::new(inner, self.rank))
    }

    /// Returns the value without locking: `&mut self` proves that no thread holds the mutex.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        unpoisoned(self.inner.get_mut())
    }
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock around `value`. It is innermost in the lock order.
    pub(crate) fn new(value: T) -> RwLock<T> {
        RwLock::ranked(Rank::Leaf, value)
    }

    /// Creates an unlocked lock around `value`, with its place in the lock order.
    pub(crate) fn ranked(rank: Rank, value: T) -> RwLock<T> {
        RwLock {
            rank,
            inner: base::RwLock::new(value),
        }
    }

    /// Locks for reading. Sleeps while a writer holds the lock.
    #[inline]
    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        acquire(self.rank, || self.inner.try_read(), || self.inner.read())
    }

    /// Locks for writing. Sleeps while any thread holds the lock.
    #[inline]
    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        acquire(self.rank, || self.inner.try_write(), || self.inner.write())
    }

    /// Locks for reading if no writer holds the lock. Never sleeps.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        try_unpoisoned(self.inner.try_read()).map(|inner| Guard::new(inner, self.rank))
    }
}

/// How a wait with a timeout ended. In either case, the caller checks its condition again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitEnd {
    /// A notification came, or the wait ended spuriously.
    Woken,
    /// The timeout passed.
    TimedOut,
}

/// A condition variable for [`Mutex`].
///
/// std's condition variable calls the system at each notification; this one only if a thread waits.
/// A waiter counts itself with the mutex held, before it stops checking the condition and sleeps.
/// The thread that changes the condition does so with the mutex held, or takes the mutex
/// afterwards, and then notifies. So either the waiter sees the change, or that thread sees the
/// waiter.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    inner: base::Condvar,
    /// The number of threads that wait. Relaxed: the waiters' mutex orders it.
    waiters: atomic::AtomicU32,
}

impl Condvar {
    const_unless_loom! {
        /// Creates a condition variable without waiters.
        fn new() -> Condvar {
            Condvar {
                inner: base::Condvar::new(),
                waiters: atomic::AtomicU32::new(0),
            }
        }
    }

    /// Unlocks the mutex, sleeps until this is notified (or wakes spuriously), and locks the mutex
    /// again.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        before_waiting();
        let Guard { inner, held } = guard;
        self.waiters.fetch_add(1, atomic::Ordering::Relaxed);
        let inner = unpoisoned(self.inner.wait(inner));
        self.waiters.fetch_sub(1, atomic::Ordering::Relaxed);
        Guard { inner, held }
    }

    /// Waits like [`Condvar::wait`], for at most `timeout`. Under the checkers no time passes.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, WaitEnd) {
        before_waiting();
        let Guard { inner, held } = guard;
        self.waiters.fetch_add(1, atomic::Ordering::Relaxed);
        let (inner, end) = unpoisoned(self.inner.wait_timeout(inner, timeout));
        self.waiters.fetch_sub(1, atomic::Ordering::Relaxed);
        let end = if end.timed_out() {
            WaitEnd::TimedOut
        } else {
            WaitEnd::Woken
        };
        (Guard { inner, held }, end)
    }

    /// Wakes all waiters.
    #[inline]
    pub(crate) fn notify_all(&self) {
        if self.is_waited_on() {
            self.inner.notify_all();
        }
    }

    /// Wakes one waiter.
    pub(crate) fn notify_one(&self) {
        if self.is_waited_on() {
            self.inner.notify_one();
        }
    }

    /// Returns whether a thread waits, or is about to wake. A caller that holds the mutex, or has
    /// held it since it changed the condition, misses no waiter.
    #[inline]
    pub(crate) fn is_waited_on(&self) -> bool {
        self.waiters.load(atomic::Ordering::Relaxed) > 0
    }
}

impl<L: ?Sized> fmt::Debug for Lock<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock { .. }")
    }
}

impl<G: fmt::Debug> fmt::Debug for Guard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Paces a loop that waits for another thread's next few instructions: first it spins, then it
/// yields the processor.
///
/// It is for waits that soon end by themselves. A wait that may be long parks instead.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    round: u32,
}

impl Backoff {
    /// The number of spinning rounds before the first yield. These rounds execute 1, 2, 4, .. 64
    /// spin hints.
    const BUSY_ROUNDS: u32 = 7;
    /// The number of rounds after which parking would have been cheaper.
    const SPENT_ROUNDS: u32 = 12;

    /// Creates a backoff that starts by spinning.
    pub(crate) const fn new() -> Backoff {
        Backoff { round: 0 }
    }

    /// Waits a little: first spins, twice as long each time, then yields. Under the checkers every
    /// call yields.
    pub(crate) fn snooze(&mut self) {
        if cfg!(any(loom, shuttle)) || self.round >= Backoff::BUSY_ROUNDS {
            thread::yield_now();
        } else {
            for _ in 0..1u32 << self.round {
                hint::spin_loop();
            }
        }
        self.round = (self.round + 1).min(Backoff::SPENT_ROUNDS);
    }

    /// Returns whether the next wait spins. Never true under the checkers.
    pub(crate) fn is_busy(&self) -> bool {
        !cfg!(any(loom, shuttle)) && self.round < Backoff::BUSY_ROUNDS
    }

    /// Returns whether the loop has waited so long that it should park. Under the checkers, one
    /// round is enough.
    pub(crate) fn is_spent(&self) -> bool {
        self.round
            >= if cfg!(any(loom, shuttle)) {
                1
            } else {
                Backoff::SPENT_ROUNDS
            }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_holder_leaves_the_lock_usable() {
        let shared = Arc::new((Mutex::new(1), RwLock::new(2), Condvar::new()));
        let theirs = shared.clone();
        let end = thread::spawn(move || {
            let _a = theirs.0.lock();
            let _b = theirs.1.write();
            panic!("on purpose");
        })
        .join();
        assert!(end.is_err());
        assert_eq!(*shared.0.lock(), 1);
        assert_eq!(shared.0.try_lock().map(|guard| *guard), Some(1));
        assert_eq!(*shared.1.read(), 2);
        assert_eq!(shared.1.try_read().map(|guard| *guard), Some(2));
        assert_eq!(*shared.1.write(), 2);
        // std counts the mutex as poisoned, so every wait takes the branch for poisoned locks.
        let mut guard = shared.0.lock();
        let mut end = WaitEnd::Woken;
        while end == WaitEnd::Woken {
            (guard, end) = shared.2.wait_timeout(guard, Duration::from_nanos(1));
        }
        assert_eq!(*guard, 1);
    }

    #[test]
    fn backoff_is_spent_after_its_rounds() {
        let mut backoff = Backoff::new();
        for round in 0..Backoff::SPENT_ROUNDS {
            assert!(!backoff.is_spent());
            assert_eq!(backoff.is_busy(), round < Backoff::BUSY_ROUNDS);
            backoff.snooze();
        }
        assert!(backoff.is_spent());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::atomic::{AtomicU32, Ordering};
    use super::*;

    #[test]
    fn a_condition_variable_hands_over_a_value() {
        loom::model(|| {
            let shared = Arc::new((Mutex::new(0), Condvar::new(), AtomicU32::new(0)));
            let theirs = shared.clone();
            let giver = thread::spawn(move || {
                theirs.2.store(1, Ordering::Relaxed);
                *theirs.0.lock() = 1;
                theirs.1.notify_all();
            });
            let mut guard = shared.0.lock();
            while *guard == 0 {
                guard = shared.1.wait(guard);
            }
            assert_eq!(shared.2.load(Ordering::Relaxed), 1);
            drop(guard);
            giver.join().unwrap();
        });
    }
}

#[cfg(all(test, shuttle))]
mod models {
    use super::atomic::{AtomicU32, Ordering};
    use super::*;

    #[test]
    fn interleave_lets_another_thread_run_between_two_raw_accesses() {
        let torn = std::sync::Arc::new(raw::AtomicU32::new(0));
        let seen = torn.clone();
        shuttle::check_random(
            move || {
                let word = Arc::new(raw::AtomicU32::new(0));
                let started = Arc::new(AtomicU32::new(0));
                let (theirs, flag) = (word.clone(), started.clone());
                let writer = thread::spawn(move || {
                    theirs.store(1, Ordering::Relaxed);
                    interleave();
                    theirs.store(2, Ordering::Relaxed);
                    flag.store(1, Ordering::Relaxed);
                });
                if started.load(Ordering::Relaxed) == 0 && word.load(Ordering::Relaxed) == 1 {
                    seen.store(1, Ordering::Relaxed);
                }
                writer.join().unwrap();
            },
            100,
        );
        assert_eq!(
            torn.load(Ordering::Relaxed),
            1,
            "the state between the stores was never seen"
        );
    }
}
