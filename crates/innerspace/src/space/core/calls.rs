//! Accesses that are calls, of devices and of guarded files: how many are under way, for a thread
//! that has to wait for their end.
//!
//! A call is made with no section open, so no grace period waits for it. An access counts its call
//! in the section in which it finds the mapping. So after the grace period of a change, all calls
//! that the old mappings led to are counted or over; see `docs/protocols/structural-changes.md`.

use crate::sync::{Arc, Condvar, Mutex, failpoint};

/// The calls of one space that are under way.
#[derive(Default)]
pub(crate) struct Calls {
    turns: Mutex<Turns>,
    ended: Condvar,
}

/// Calls are counted by the turn in which they began. A turn ends only when no call of the one
/// before it is left, so two counts are enough, and calls that keep coming never delay a wait.
#[derive(Default)]
struct Turns {
    turn: u64,
    /// Of the even turn and the odd turn among the current one and the one before.
    under_way: [usize; 2],
}

impl Turns {
    fn current(&self) -> usize {
        (self.turn % 2) as usize
    }

    /// Begins turns, up to this one, as far as the calls under way allow.
    fn advance(&mut self, to: u64) {
        while self.turn < to && self.under_way[1 - self.current()] == 0 {
            self.turn += 1;
        }
    }
}

/// One call, under way until this is dropped.
pub(crate) struct UnderWay {
    calls: Arc<Calls>,
    turn: usize,
}

impl Calls {
    /// Counts a call. In the section that found its mapping; the mutex is a leaf.
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

    /// Waits for all calls that have begun. Outside any section.
    pub(crate) fn wait(&self) {
        let mut turns = self.turns.lock();
        // When the next turn begins, the calls that have begun are of the one before it, and when
        // the turn after it begins, none of those is left.
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

impl std::fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UnderWay")
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
