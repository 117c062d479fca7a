//! Loads: what a full magazine gives away for an empty one to take, on their way past the buddy lists.
//!
//! A magazine takes the last load that it gave itself, before those of others: its frames are in the cache of the processor that
//! its thread is on, if they are in one.

use super::stack::CAPACITY;
use crate::FrameId;

/// Frames of a load, at most.
pub(super) const LOAD: usize = CAPACITY / 2;

/// The most loads that are kept: 16 MiB. Few enough that their givers, among whom a magazine looks for itself, are in four lines.
const MOST: usize = 64;

/// Half of what a magazine holds, from the first place on.
pub(super) type Load = [FrameId; LOAD];

/// Loads of free frames; the warmest last, more or less.
#[derive(Debug)]
pub(super) struct Loads {
    loads: Vec<Load>,
    /// The number of the magazine that gave each.
    givers: Vec<u32>,
    most: usize,
}

impl Loads {
    /// None yet; of an arena of so many frames, a sixteenth at most is in loads.
    pub(super) fn new(frames: usize) -> Loads {
        let most = (frames / (16 * LOAD)).min(MOST);
        Loads {
            loads: Vec::with_capacity(most),
            givers: Vec::with_capacity(most),
            most,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.loads.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Load> + Clone {
        self.loads.iter()
    }

    /// Whether there are as many as there may be.
    pub(super) fn is_full(&self) -> bool {
        self.loads.len() == self.most
    }

    /// Keeps a load of magazine `giver`.
    pub(super) fn push(&mut self, giver: usize, load: Load) {
        debug_assert!(!self.is_full());
        self.loads.push(load);
        self.givers.push(giver as u32);
    }

    /// Takes the last that `taker` gave, or else the last.
    pub(super) fn pop(&mut self, taker: usize) -> Option<Load> {
        let last = self.givers.len().checked_sub(1)?;
        let mut givers = self.givers.iter();
        let own = givers.rposition(|giver| *giver == taker as u32);
        let place = own.unwrap_or(last);
        self.givers.swap_remove(place);
        Some(self.loads.swap_remove(place))
    }
}

#[cfg(all(test, not(shuttle), not(loom)))]
mod tests {
    use super::*;

    fn load(number: u32) -> Load {
        [FrameId(number); LOAD]
    }

    #[test]
    fn a_magazine_gets_its_own_load_back_before_those_of_others() {
        let mut loads = Loads::new(1 << 20);
        for (number, giver) in [(1, 7), (2, 8), (3, 7), (4, 8)] {
            loads.push(giver, load(number));
        }
        assert_eq!(loads.pop(7), Some(load(3)));
        assert_eq!(loads.pop(7), Some(load(1)));
        assert_eq!(loads.len(), 2);
        let mut others: Vec<_> = (0..2).map(|_| loads.pop(7).unwrap()).collect();
        others.sort_unstable();
        assert_eq!(others, [load(2), load(4)]);
        assert_eq!(loads.pop(7), None);
    }

    #[test]
    fn a_sixteenth_of_the_arena_is_kept_at_most() {
        let mut loads = Loads::new(32 * LOAD);
        for number in 0..2 {
            assert!(!loads.is_full());
            loads.push(0, load(number));
        }
        assert!(loads.is_full());
        assert_eq!(loads.len(), 2);
    }
}
