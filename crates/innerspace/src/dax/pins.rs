//! Pinned ranges. Foreign code has their addresses, so their blocks stay in place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

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
    /// The pins, each with the thread that made it, or `None` if a task did. That thread would wait
    /// for itself in a cut of the range.
    pins: BTreeMap<u64, (Range<u64>, Option<thread::ThreadId>)>,
}

pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl State {
    fn first_in(&self, pages: &Range<u64>) -> Option<&Range<u64>> {
        let pins = self.pins.values().map(|(pin, _)| pin);
        pins.filter(|pin| overlap(pin, pages))
            .min_by_key(|pin| pin.start)
    }
}

impl Pins {
    /// Adds a pin. It is the calling thread's own, unless it is made in a task.
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

    /// Returns the first pin that contains any of these pages.
    pub(super) fn first_in(&self, pages: &Range<u64>) -> Option<Range<u64>> {
        self.state.lock().first_in(pages).cloned()
    }

    /// Returns whether the calling thread made a pin that contains any of these pages, so that it
    /// would wait for itself.
    pub(super) fn holds_own(&self, pages: &Range<u64>) -> bool {
        let own = thread::current().id();
        let state = self.state.lock();
        let mut pins = state.pins.values();
        pins.any(|(pin, by)| *by == Some(own) && overlap(pin, pages))
    }

    /// Waits until no pin contains any of these pages. Returns false if the deadline passes first.
    pub(super) fn wait_for_end(&self, pages: &Range<u64>, deadline: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        while state.first_in(pages).is_some() {
            let Some(deadline) = deadline else {
                state = self.ended.wait(state);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (state, _) = self.ended.wait_timeout(state, left);
        }
        true
    }

    /// Returns the number of pins.
    pub(super) fn len(&self) -> usize {
        self.state.lock().pins.len()
    }
}
