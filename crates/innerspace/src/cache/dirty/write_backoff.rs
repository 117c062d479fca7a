//! How often a failing store is called again to write.
//!
//! After a failure, writes that no sync asked for (by the flusher, a writer over the dirty limit,
//! or reclaim) are skipped: the next attempt, then the next three, seven and so on, until a write
//! succeeds. In each new tick of the clock, attempts are allowed in any case until one fails. Until
//! a write succeeds, a writer over the dirty limit gets the failure as its error. A sync always
//! tries.

use crate::sync::Mutex;

/// The number of consecutive failures after which the backoff stops growing: `2^MOST_FAILURES - 1`
/// attempts are then skipped.
const MOST_FAILURES: u32 = 10;

/// A backoff for writes of one file. An innermost lock, held briefly.
#[derive(Debug, Default)]
pub(crate) struct WriteBackoff(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of consecutive attempts that wrote nothing and failed, at most [`MOST_FAILURES`].
    failures: u32,
    /// The number of attempts that are still to be skipped.
    left_out: u32,
    /// The tick of the last failure.
    at: u64,
}

impl WriteBackoff {
    /// Whether a write that is not for a sync may be attempted at tick `now`. If not, counts one
    /// attempt as skipped.
    pub(crate) fn may_try(&self, now: u64) -> bool {
        let mut state = self.0.lock();
        if state.left_out == 0 || now != state.at {
            return true;
        }
        state.left_out -= 1;
        false
    }

    /// Notes the result of an attempt at tick `now`, in blocks. An attempt counts as failed if it
    /// wrote none.
    pub(crate) fn note(&self, written: u64, failed: u64, now: u64) {
        if written == 0 && failed == 0 {
            return;
        }
        let mut state = self.0.lock();
        if written > 0 {
            *state = State::default();
        } else {
            state.failures = (state.failures + 1).min(MOST_FAILURES);
            state.left_out = (1 << state.failures) - 1;
            state.at = now;
        }
    }

    /// Whether the last attempt failed and wrote nothing.
    pub(crate) fn is_on(&self) -> bool {
        self.0.lock().failures > 0
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rare_until_one_succeeds_or_time_passes() {
        let trouble = WriteBackoff::default();
        let mut made = Vec::new();
        for attempt in 0..1000 {
            if trouble.may_try(7) {
                made.push(attempt);
                trouble.note(0, 3, 7);
            }
        }
        assert_eq!(made, [0, 2, 6, 14, 30, 62, 126, 254, 510]);
        assert!(trouble.is_on() && !trouble.may_try(7));
        assert!(trouble.may_try(8), "a tick later");
        trouble.note(0, 1, 8);
        assert!(!trouble.may_try(8));
        trouble.note(1, 5, 8);
        assert!(trouble.may_try(8) && !trouble.is_on());
    }
}
