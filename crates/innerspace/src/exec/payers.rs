//! The number of running jobs of each payer, and the lanes that wait until that number falls.

use std::collections::{BTreeMap, VecDeque};

/// The maximum number of jobs of one payer that run or whose wakers are still being called. A payer
/// can lose that many threads to calls that hang.
const AT_A_TIME: u32 = 128;

/// The payers with a job that runs or whose wakers are still being called, by number.
#[derive(Default)]
pub(super) struct Payers(BTreeMap<usize, Payer>);

#[derive(Default)]
struct Payer {
    running: u32,
    /// The payer's lanes that are held back.
    lanes: VecDeque<u64>,
}

impl Payers {
    /// Returns whether a job of the payer may start.
    pub(super) fn has_room(&self, payer: usize) -> bool {
        self.0.get(&payer).is_none_or(|of| of.running < AT_A_TIME)
    }

    /// Holds a lane back until a job of the payer is over. Called only if the payer has no room.
    pub(super) fn hold_back(&mut self, payer: usize, lane: u64) {
        self.0.entry(payer).or_default().lanes.push_back(lane);
    }

    pub(super) fn begin(&mut self, payer: usize) {
        self.0.entry(payer).or_default().running += 1;
    }

    /// Notes that a job is over and its wakers were called. Of the payer's lanes that are held back
    /// and still exist, removes and returns the one that was held back longest.
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
