//! Sleeping on a word: a thread sleeps as long as a word of 32 bits has a given value.
//!
//! The protocol is the futex's: the sleeper names the value it saw; the waker changes the word, then
//! wakes. A change before the sleeper is asleep makes [`sleep`] return at once, so no wake-up is
//! lost. Every return may be for no reason; callers look at the word again.
//!
//! Waking takes an address and never reads what is there: the sleeper may have seen the change,
//! returned and given its stack frame away before the wake-up is sent. At worst somebody else, who
//! sleeps at the same address by now, wakes for no reason.
//!
//! - Linux: futex(2), private to the process.
//! - Elsewhere, and under the model checkers, Miri and `--cfg portable`: a table of 64 buckets of a
//!   mutex and a condition variable, chosen by the address; a wake-up wakes the whole bucket. Under
//!   the checkers one bucket, and a timeout never passes.
//!
//! Orderings: [`sleep`] reads the word with acquire where it reads it itself, but promises nothing;
//! what the change publishes, the caller acquires by its own load of the word.

use std::time::Duration;

use crate::sync::WaitEnd;
use crate::sync::atomic::AtomicU32;

/// Sleeps while `word` has the value `expected`, until woken, for `timeout` if there is one.
///
/// Returns at once when the word has another value, and sometimes for no reason.
pub(crate) fn sleep(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitEnd {
    platform::sleep(word, expected, timeout)
}

/// Wakes at least one of those who sleep on the word at `address`, if any do.
///
/// The word was changed before. The address need not be valid any more.
pub(crate) fn wake_one(address: *const AtomicU32) {
    platform::wake(address, 1);
}

/// Wakes all who sleep on the word at `address`. As for [`wake_one`].
pub(crate) fn wake_all(address: *const AtomicU32) {
    platform::wake(address, i32::MAX);
}

#[cfg(all(target_os = "linux", not(any(portable, loom, shuttle, miri))))]
mod platform {
    use super::{AtomicU32, Duration, WaitEnd};

    pub(super) fn sleep(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitEnd {
        let timeout = timeout.and_then(|timeout| {
            // A time that does not fit is as good as none: it is longer than the machine will run.
            Some(libc::timespec {
                tv_sec: timeout.as_secs().try_into().ok()?,
                tv_nsec: timeout.subsec_nanos().into(),
            })
        });
        let timeout = timeout
            .as_ref()
            .map_or(std::ptr::null(), |timeout| timeout as *const _);
        // SAFETY: the word lives for the time of the call, and so does the time, which the kernel
        // copies at its beginning.
        let result = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                timeout,
            )
        };
        let timed_out =
            result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ETIMEDOUT);
        if timed_out {
            WaitEnd::TimedOut
        } else {
            WaitEnd::Woken
        }
    }

    pub(super) fn wake(address: *const AtomicU32, count: i32) {
        // SAFETY: the kernel uses a private futex's address as a name and does not access it. It
        // refuses addresses that cannot be words of ours; then nobody sleeps there.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                address,
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                count,
            );
        }
    }
}

#[cfg(any(test, not(target_os = "linux"), portable, loom, shuttle, miri))]
mod table {
    use super::{AtomicU32, Duration, WaitEnd};
    use crate::sync::atomic::Ordering;
    use crate::sync::{Condvar, Mutex};

    /// Those who sleep on words whose addresses lead here. The mutex guards nothing but the moment
    /// between looking at the word and sleeping.
    #[derive(Default)]
    struct Bucket {
        gate: Mutex<()>,
        woken: Condvar,
    }

    #[cfg(not(any(loom, shuttle)))]
    fn bucket(address: *const AtomicU32) -> &'static Bucket {
        const BUCKETS: usize = 64;
        static TABLE: [Bucket; BUCKETS] = [const {
            Bucket {
                gate: Mutex::new(()),
                woken: Condvar::new(),
            }
        }; BUCKETS];
        // Fibonacci hashing: the upper bits of the product depend on all of the address.
        let hash = (address.addr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &TABLE[(hash >> 58) as usize]
    }

    #[cfg(loom)]
    use loom::lazy_static;
    #[cfg(shuttle)]
    use shuttle::lazy_static;

    // Made anew for every schedule that is explored.
    #[cfg(any(loom, shuttle))]
    lazy_static! {
        static ref BUCKET: Bucket = Bucket::default();
    }

    #[cfg(any(loom, shuttle))]
    fn bucket(_: *const AtomicU32) -> &'static Bucket {
        &BUCKET
    }

    pub(super) fn sleep(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> WaitEnd {
        let bucket = bucket(word);
        let guard = bucket.gate.lock();
        if word.load(Ordering::Acquire) != expected {
            return WaitEnd::Woken;
        }
        match timeout {
            None => {
                drop(bucket.woken.wait(guard));
                WaitEnd::Woken
            }
            Some(timeout) => bucket.woken.wait_timeout(guard, timeout).1,
        }
    }

    /// Passing through the gate comes after the change of the word: a sleeper has either seen it or
    /// is in the condition variable by now. The bucket may be shared, so all of it wakes.
    pub(super) fn wake(address: *const AtomicU32, _: i32) {
        let bucket = bucket(address);
        drop(bucket.gate.lock());
        bucket.woken.notify_all();
    }
}

#[cfg(not(all(target_os = "linux", not(any(portable, loom, shuttle, miri)))))]
use table as platform;

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::atomic::Ordering;
    use crate::sync::{Arc, thread};

    type Sleep = fn(&AtomicU32, u32, Option<Duration>) -> WaitEnd;
    type Wake = fn(*const AtomicU32, i32);
    const FORMS: [(Sleep, Wake); 2] = [
        (platform::sleep, platform::wake),
        (table::sleep, table::wake),
    ];

    #[test]
    fn a_word_with_another_value_is_not_slept_on() {
        for (sleep, _) in FORMS {
            assert_eq!(sleep(&AtomicU32::new(1), 0, None), WaitEnd::Woken);
        }
    }

    #[test]
    fn a_timeout_passes() {
        let word = AtomicU32::new(0);
        for (sleep, _) in FORMS {
            let short = Some(Duration::from_nanos(1));
            while sleep(&word, 0, short) != WaitEnd::TimedOut {}
        }
        // A time that no clock can hold is no time.
        assert_eq!(sleep(&word, 1, Some(Duration::MAX)), WaitEnd::Woken);
    }

    #[test]
    fn two_threads_take_turns() {
        for (sleep, wake) in FORMS {
            let turn = Arc::new(AtomicU32::new(0));
            let play = move |turn: &AtomicU32, parity: u32, rounds: u32| {
                for _ in 0..rounds {
                    let mut seen = turn.load(Ordering::Acquire);
                    while seen % 2 != parity {
                        sleep(turn, seen, None);
                        seen = turn.load(Ordering::Acquire);
                    }
                    turn.store(seen + 1, Ordering::Release);
                    wake(turn, 1);
                }
            };
            let rounds = if cfg!(miri) { 20 } else { 2000 };
            let theirs = turn.clone();
            let other = thread::spawn(move || play(&theirs, 1, rounds));
            play(&turn, 0, rounds);
            other.join().expect("the other player");
            assert_eq!(turn.load(Ordering::Relaxed), 2 * rounds);
        }
    }

    #[test]
    fn all_sleepers_wake() {
        for (sleep, wake) in FORMS {
            let word = Arc::new(AtomicU32::new(0));
            let sleepers: Vec<_> = (0..4)
                .map(|_| {
                    let word = word.clone();
                    thread::spawn(move || {
                        while word.load(Ordering::Acquire) == 0 {
                            sleep(&word, 0, None);
                        }
                    })
                })
                .collect();
            word.store(1, Ordering::Release);
            wake(&*word, i32::MAX);
            for sleeper in sleepers {
                sleeper.join().expect("a sleeper");
            }
        }
    }

    #[test]
    fn waking_an_address_that_is_gone_does_no_harm() {
        for (_, wake) in FORMS {
            let gone = Box::into_raw(Box::new(AtomicU32::new(0)));
            // SAFETY: made by `into_raw` just now; nobody else has it.
            drop(unsafe { Box::from_raw(gone) });
            wake(gone, 1);
            wake(std::ptr::without_provenance(8), 1);
        }
    }
}

#[cfg(all(test, any(loom, shuttle)))]
mod models {
    use super::*;
    use crate::sync::atomic::Ordering;
    use crate::sync::{Arc, thread};

    /// A wake-up after a change always arrives, and the change is seen with what came before it.
    fn hand_over() {
        let shared = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        let theirs = shared.clone();
        let waker = thread::spawn(move || {
            theirs.1.store(7, Ordering::Relaxed);
            theirs.0.store(1, Ordering::Release);
            wake_one(&theirs.0);
        });
        while shared.0.load(Ordering::Acquire) == 0 {
            sleep(&shared.0, 0, None);
        }
        assert_eq!(shared.1.load(Ordering::Relaxed), 7);
        waker.join().unwrap();
    }

    #[test]
    fn no_wake_up_is_lost() {
        #[cfg(loom)]
        loom::model(hand_over);
        #[cfg(shuttle)]
        shuttle::check_random(hand_over, 500);
    }
}
