//! Event counters, striped by thread.

use super::totals::{EVENTS, Event, Totals};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{raw, thread_local};

/// Threads that count at once without sharing a cache line; more share stripes and stay right.
const STRIPES: usize = 16;

#[repr(align(128))]
struct Stripe([AtomicU64; EVENTS]);

/// The event counters of one memory. Counting touches a line of the thread's own; reading adds all stripes up.
pub(crate) struct Counters {
    stripes: Box<[Stripe]>,
}

impl Counters {
    /// All zero.
    pub(crate) fn new() -> Counters {
        let stripe = || Stripe(std::array::from_fn(|_| AtomicU64::new(0)));
        Counters {
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
        }
    }

    /// Counts `event` once.
    #[inline]
    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// Counts `event` `times` times.
    #[inline]
    pub(crate) fn add(&self, event: Event, times: u64) {
        let stripe = &self.stripes[thread_number() % STRIPES];
        stripe.0[event as usize].fetch_add(times, Ordering::Relaxed);
    }

    /// How often `event` happened.
    pub(crate) fn sum(&self, event: Event) -> u64 {
        let of_stripe = |stripe: &Stripe| stripe.0[event as usize].load(Ordering::Relaxed);
        self.stripes
            .iter()
            .map(of_stripe)
            .fold(0, u64::wrapping_add)
    }

    /// All sums; gauges are left at 0 for the caller to fill in.
    pub(crate) fn totals(&self) -> Totals {
        let mut sums = [0u64; EVENTS];
        for stripe in &self.stripes {
            for (sum, counter) in sums.iter_mut().zip(&stripe.0) {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
        Totals::from_sums(sums)
    }
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.totals().fmt(f)
    }
}

/// A small number of the calling thread, the same for its whole life: for choosing a stripe. Numbers are given out in the order in
/// which threads first ask, so that neighbours land on different stripes; they are not unique for ever.
#[inline]
pub(crate) fn thread_number() -> usize {
    // std's: a static outlives one explored schedule, and is shared by models that run side by side.
    static NEXT: raw::AtomicU32 = raw::AtomicU32::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed) as usize;
    }
    // A thread that is ending may count once more; any stripe will do.
    NUMBER.try_with(|number| *number).unwrap_or(0)
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
}
