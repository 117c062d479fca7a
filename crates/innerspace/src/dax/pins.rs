//! Pinned ranges. Foreign code has their addresses, so their blocks stay in place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::error::PinHolder;
use crate::exec::reentry::is_in_task;
use crate::sync::{Condvar, Mutex, thread};

/// The pins of one file.
#[derive(Default)]
pub(super) struct Pins {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    /// The pins, each with the thread that made it, or `None` if a task did. If that thread cut the
    /// range, it would wait for itself.
    pins: BTreeMap<u64, (Range<u64>, Option<thread::ThreadId>)>,
}

pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Pins {
    /// Adds a pin, and returns its number. The pin belongs to the calling thread, unless it is made
    /// in a task.
    pub(super) fn add(&self, pages: Range<u64>) -> u64 {
        let thread = (!is_in_task()).then(|| thread::current().id());
        let mut state = self.state.lock();
        let id = state.next;
        state.next += 1;
        state.pins.insert(id, (pages, thread));
        id
    }

    pub(super) fn remove(&self, id: u64) {
        self.state.lock().pins.remove(&id);
        self.ended.notify_all();
    }

    /// Returns the pins that contain any of these pages.
    pub(super) fn in_range(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        let state = self.state.lock();
        let pins = state.pins.values().map(|(pin, _)| pin);
        pins.filter(|pin| overlap(pin, pages)).cloned().collect()
    }

    /// Waits until no pin contains any of these pages. Fails if the deadline passes first. Fails
    /// immediately if the calling thread made one of these pins, because it would wait for itself.
    /// The error has the pin that begins first, in the second case the first of the thread's own
    /// pins; and it has the holder, which tells the two cases apart.
    pub(super) fn wait_for_end(
        &self,
        pages: &Range<u64>,
        deadline: Option<Instant>,
    ) -> Result<(), (Range<u64>, PinHolder)> {
        let own = thread::current().id();
        let mut state = self.state.lock();
        loop {
            let pins = state.pins.values().filter(|(pin, _)| overlap(pin, pages));
            // A pin of this thread comes before all others.
            let first = pins.min_by_key(|(pin, by)| (*by != Some(own), pin.start));
            let Some((first, by)) = first else {
                return Ok(());
            };
            if *by == Some(own) {
                return Err((first.clone(), PinHolder::ThisThread));
            }
            let now = Instant::now();
            state = match deadline.map(|deadline| deadline.saturating_duration_since(now)) {
                None => self.ended.wait(state),
                Some(Duration::ZERO) => return Err((first.clone(), PinHolder::Other)),
                Some(left) => self.ended.wait_timeout(state, left).0,
            };
        }
    }

    /// Returns the number of pins.
    pub(super) fn len(&self) -> usize {
        self.state.lock().pins.len()
    }
}
