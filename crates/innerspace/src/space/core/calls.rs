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
    begun: Mutex<Begun>,
    ended: Condvar,
}

/// The calls that have begun, numbered in order.
#[derive(Default)]
struct Begun {
    /// The number of the call that began last; 0 before the first call.
    last: u64,
    /// The numbers of the calls under way. A thread has one, or two for a store of a value that
    /// lies in two pages.
    under_way: Vec<u64>,
}

/// One counted call, under way until this value is dropped.
pub(crate) struct UnderWay {
    calls: Arc<Calls>,
    number: u64,
}

impl Calls {
    /// Counts a call. The caller is in the section in which it found the mapping. The mutex that is
    /// taken here is an innermost lock.
    pub(crate) fn begin(self: &Arc<Calls>) -> UnderWay {
        let mut begun = self.begun.lock();
        begun.last += 1;
        let number = begun.last;
        begun.under_way.push(number);
        drop(begun);
        UnderWay {
            calls: self.clone(),
            number,
        }
    }

    /// Waits until all calls that have begun so far are over. Later ones are not waited for. The
    /// caller is outside every section.
    pub(crate) fn wait(&self) {
        let mut begun = self.begun.lock();
        let last = begun.last;
        while begun.under_way.iter().any(|number| *number <= last) {
            failpoint!(CallsAwaited);
            begun = self.ended.wait(begun);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut begun = self.calls.begun.lock();
        begun.under_way.retain(|number| *number != self.number);
        drop(begun);
        self.calls.ended.notify_all();
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
