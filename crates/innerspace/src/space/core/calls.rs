//! Counts of calls under way: those by which accesses reach devices and guarded files. A thread can
//! wait for the end of these calls.
//!
//! A call is made with no section open, so no grace period waits for it. But an access counts its
//! call in the section in which it finds the mapping. So after the grace period of a change, each
//! call to which the old mappings led is counted or over; see
//! `docs/protocols/structural-changes.md`.

use crate::sync::{Arc, Condvar, Mutex, failpoint};

/// The calls of one space's accesses that are under way.
#[derive(Default)]
pub(crate) struct Calls {
    turns: Mutex<Turns>,
    ended: Condvar,
}

/// The counts of calls, by the turn in which each call began. A turn ends only when no call of the
/// turn before it is left, so two counts are enough, and new calls never delay a wait.
#[derive(Default)]
struct Turns {
    turn: u64,
    /// The numbers of calls under way that began in the current turn and in the one before:
    /// element 0 is for the even turn, element 1 for the odd one.
    under_way: [usize; 2],
}

impl Turns {
    fn current(&self) -> usize {
        (self.turn % 2) as usize
    }

    /// Begins the next turns, up to the turn `to`, as far as the calls under way allow.
    fn advance(&mut self, to: u64) {
        while self.turn < to && self.under_way[1 - self.current()] == 0 {
            self.turn += 1;
        }
    }
}

/// One counted call, under way until this value is dropped.
pub(crate) struct UnderWay {
    calls: Arc<Calls>,
    turn: usize,
}

impl Calls {
    /// Counts a call, in the section that found its mapping. The mutex is an innermost lock.
    pub(crate) fn begin(self: &Arc<Calls>) -> UnderWay {
        let mut turns = self.turns.lock();
        let turn = turns.current();
        turns.under_way[turn] += 1;
        drop(turns);
        UnderWay {
            calls: self.clone(),
            turn,
        }
    }

    /// Waits for all calls that have begun. The caller is outside every section.
    pub(crate) fn wait(&self) {
        let mut turns = self.turns.lock();
        // Once the next turn has begun, all calls that began before this wait are of earlier turns;
        // once the turn after that has begun, none of them is left.
        let wanted = turns.turn + 2;
        loop {
            turns.advance(wanted);
            if turns.turn >= wanted {
                return;
            }
            failpoint!(CallsAwaited);
            turns = self.ended.wait(turns);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut turns = self.calls.turns.lock();
        turns.under_way[self.turn] -= 1;
        let was_last = turns.under_way[self.turn] == 0;
        drop(turns);
        if was_last {
            self.calls.ended.notify_all();
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::Calls;
    use crate::sync::{Arc, failpoint, thread};

    #[test]
    fn a_wait_is_for_the_calls_that_began_before_it() {
        let calls = Arc::new(Calls::default());
        let before = calls.begin();
        let (waiting, awaited) = std::sync::mpsc::channel();
        let waiter = {
            let calls = calls.clone();
            thread::spawn(move || {
                let _there = failpoint::on("CallsAwaited", move || waiting.send(()).unwrap());
                calls.wait();
            })
        };
        awaited.recv().unwrap();
        let later = calls.begin();
        drop(before);
        waiter.join().unwrap();
        drop(later);
        calls.wait();
    }
}
