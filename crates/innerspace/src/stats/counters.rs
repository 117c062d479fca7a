//! Event counters, striped by thread.
//!
//! A thread with a small number has a stripe of its own, which no other thread writes. It counts
//! with a load and a store, because a read-modify-write would make every counted operation wait for
//! the thread's earlier stores. Threads with larger numbers share the last stripe. When a thread
//! ends, it gives its number back with a Release, so the next owner of the stripe sees the counts
//! of the previous one.

use std::cell::Cell;

use super::totals::{EVENTS, Event, Totals};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread_local;

/// The number of threads that have a stripe of their own.
const OWN: usize = 32;

#[repr(align(128))]
struct Stripe([AtomicU64; EVENTS]);

/// The event counters of one memory. Counting writes only the thread's stripe. Reading adds up all
/// stripes.
pub(crate) struct Counters {
    /// One stripe for each thread number below [`OWN`], and a last one that all other threads
    /// share.
    stripes: Box<[Stripe; OWN + 1]>,
}

impl Counters {
    /// Creates counters that are all 0.
    pub(crate) fn new() -> Counters {
        let stripe = |_| Stripe(std::array::from_fn(|_| AtomicU64::new(0)));
        // Built on the heap: the stripes are too large for a small stack.
        let stripes: Box<[Stripe]> = (0..=OWN).map(stripe).collect();
        Counters {
            stripes: stripes.try_into().unwrap_or_else(|_| unreachable!()),
        }
    }

    /// Counts `event` once.
    #[inline(always)]
    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// Counts `event` `times` times.
    #[inline(always)]
    pub(crate) fn add(&self, event: Event, times: u64) {
        self.add_each([event], times);
    }

    /// Counts each event once. The thread's stripe is looked up once for all.
    #[inline(always)]
    pub(crate) fn count_each<const N: usize>(&self, events: [Event; N]) {
        self.add_each(events, 1);
    }

    #[inline(always)]
    fn add_each<const N: usize>(&self, events: [Event; N], times: u64) {
        let number = thread_number();
        let stripe = &self.stripes[number.min(OWN)].0;
        for event in events {
            let counter = &stripe[event as usize];
            if number < OWN {
                // Relaxed: no other thread writes this counter. The previous owner of this number
                // gave it back with a Release, which pairs with the Acquire in `Number::take`.
                let sum = counter.load(Ordering::Relaxed).wrapping_add(times);
                counter.store(sum, Ordering::Relaxed);
            } else {
                counter.fetch_add(times, Ordering::Relaxed);
            }
        }
    }

    /// Returns how many times `event` happened.
    pub(crate) fn sum(&self, event: Event) -> u64 {
        self.sum_at(event as usize)
    }

    fn sum_at(&self, event: usize) -> u64 {
        let stripes = self.stripes.iter();
        let counts = stripes.map(|stripe| stripe.0[event].load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    /// Returns all sums of events. The other fields (gauges, and sums that are counted elsewhere)
    /// are 0: the caller fills them in.
    pub(crate) fn totals(&self) -> Totals {
        Totals::from_sums(std::array::from_fn(|event| self.sum_at(event)))
    }
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.totals().fmt(f)
    }
}

/// A thread's number, given back when the thread ends.
struct Number(usize);

// `FREE` and `NEXT` are atomic words, and not under a mutex, because threads of a child of fork(2)
// take and give back numbers too: they would wait for ever for a mutex that a thread of the parent
// held. They are std's atomics, because statics outlive a schedule that a model explores, and
// models that run at the same time share them.
/// One bit for each number below `OWN`, set while no thread has that number.
static FREE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(u32::MAX);
/// The number for the next thread that finds no bit set in `FREE`.
static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(OWN);

impl Number {
    fn take() -> Number {
        let without_lowest = |free: u32| (free != 0).then(|| free & (free - 1));
        // Acquire: pairs with the Release in `drop`, even if other threads changed `FREE` in
        // between: every change is a read-modify-write.
        match FREE.fetch_update(Ordering::Acquire, Ordering::Relaxed, without_lowest) {
            Ok(free) => Number(free.trailing_zeros() as usize),
            Err(_) => Number(NEXT.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // From now on the thread counts as one of those that share the last stripe.
        let _ = KNOWN.try_with(|known| known.set(usize::MAX));
        if self.0 < OWN {
            // Release: pairs with the Acquire in `take`. The next owner of the number sees what
            // this thread wrote to everything that the number selects, for example the stripe.
            FREE.fetch_or(1 << self.0, Ordering::Release);
        }
    }
}

/// The value of `KNOWN` in a thread that has no number yet.
const UNKNOWN: usize = usize::MAX - 1;

thread_local! {
    /// The owner of the thread's number. When it is dropped, it gives the number back.
    static NUMBER: Number = Number::take();
    /// The number itself. It needs no destructor, so reading it costs one load.
    static KNOWN: Cell<usize> = const { Cell::new(UNKNOWN) };
}

/// Returns the thread's number, which stays the same and which no other living thread has. It
/// selects the thread's stripe. The 32 smallest numbers are given out first, and again after their
/// threads have ended. In a thread whose thread locals are being destroyed, returns `usize::MAX`.
#[inline(always)]
pub(crate) fn thread_number() -> usize {
    match KNOWN.try_with(Cell::get) {
        Ok(UNKNOWN) => first_number(),
        Ok(known) => known,
        Err(_) => usize::MAX,
    }
}

#[cold]
fn first_number() -> usize {
    let number = NUMBER.try_with(|number| number.0).unwrap_or(usize::MAX);
    let _ = KNOWN.try_with(|known| known.set(number));
    number
}

#[cfg(all(test, not(loom)))]
pub(super) mod for_tests {
    use super::KNOWN;

    /// Runs `work` as the thread with this number, which no other thread has.
    pub(crate) fn as_thread<T>(number: usize, work: impl FnOnce() -> T) -> T {
        let before = KNOWN.with(|known| known.replace(number));
        let done = work();
        KNOWN.with(|known| known.set(before));
        done
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::{Arc, thread};

    #[test]
    fn sums_add_up_whoever_counted() {
        let counters = Arc::new(Counters::new());
        let threads: Vec<_> = (0..40u64)
            .map(|n| {
                let counters = counters.clone();
                thread::spawn(move || {
                    counters.add(Event::PgAlloc, n);
                    counters.count(Event::MailboxFlush);
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let totals = counters.totals();
        assert_eq!(
            (totals.pgalloc, totals.mailbox_flush, totals.pgfree),
            (780, 40, 0)
        );
        assert_eq!(counters.sum(Event::PgAlloc), 780);
    }

    #[test]
    fn living_threads_have_numbers_of_their_own_and_the_dead_give_theirs_back() {
        for _ in 0..3 {
            let all_there = Arc::new(std::sync::Barrier::new(50));
            let threads: Vec<_> = (0..50)
                .map(|_| {
                    let all_there = all_there.clone();
                    thread::spawn(move || {
                        let number = thread_number();
                        all_there.wait();
                        number
                    })
                })
                .collect();
            let mut numbers: Vec<usize> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), 50);
        }
    }
}
