//! How many jobs of each payer run, and which of its lanes wait for that to become less.

use std::collections::{BTreeMap, VecDeque};

/// Jobs of one payer that run at a time, with wakers that were not over yet: so many threads it can
/// lose to calls that hang.
const AT_A_TIME: u32 = 128;

/// The payers of which some job runs, by number.
#[derive(Default)]
pub(super) struct Payers(BTreeMap<usize, Payer>);

#[derive(Default)]
struct Payer {
    running: u32,
    /// Lanes that are held back.
    lanes: VecDeque<u64>,
}

impl Payers {
    /// Whether a job of the payer may start.
    pub(super) fn has_room(&self, payer: usize) -> bool {
        self.0.get(&payer).is_none_or(|of| of.running < AT_A_TIME)
    }

    /// Keeps a lane until a job of the payer is over. The payer has no room.
    pub(super) fn hold_back(&mut self, payer: usize, lane: u64) {
        self.0.entry(payer).or_default().lanes.push_back(lane);
    }

    pub(super) fn begin(&mut self, payer: usize) {
        self.0.entry(payer).or_default().running += 1;
    }

    /// A job is over: the lane that was held back longest, of those that are there.
    pub(super) fn end(&mut self, payer: usize, is_there: impl Fn(u64) -> bool) -> Option<u64> {
        let of = self.0.get_mut(&payer)?;
        of.running -= 1;
        let next = loop {
            match of.lanes.pop_front() {
                Some(lane) if !is_there(lane) => {}
                next => break next,
            }
        };
        if of.running == 0 && of.lanes.is_empty() {
            self.0.remove(&payer);
        }
        next
    }
}
