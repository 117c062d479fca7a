//! Loads: batches of frames that a full magazine gives away and an empty one takes, past the buddy
//! lists.
//!
//! A magazine first takes the last load that it gave itself: if its frames are in a cache at all,
//! then in that of its thread's processor.
//!
//! Above a bound the oldest load goes to the buddy lists. So scattered frames do not circulate here
//! for ever: in the lists they join their neighbours again.

use std::collections::VecDeque;

use super::stack::CAPACITY;
use crate::FrameId;

/// Frames of a load, at most.
pub(crate) const LOAD: usize = CAPACITY / 2;

/// The most loads kept: 16 MiB. Few enough that the list of givers, which a magazine searches for
/// itself, takes four cache lines.
const MOST: usize = 64;

/// Half of what a magazine holds, from the first place on.
pub(super) type Load = [FrameId; LOAD];

/// Loads of free frames, in the order in which they were given.
#[derive(Debug)]
pub(super) struct Loads {
    loads: VecDeque<Load>,
    /// The number of the magazine that gave each.
    givers: VecDeque<u32>,
    most: usize,
}

impl Loads {
    /// No loads yet. At most a sixteenth of the arena's frames will be in loads.
    pub(super) fn new(frames: usize) -> Loads {
        let most = (frames / (16 * LOAD)).min(MOST);
        Loads {
            loads: VecDeque::with_capacity(most),
            givers: VecDeque::with_capacity(most),
            most,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.loads.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Load> + Clone {
        self.loads.iter()
    }

    /// Keeps a load of magazine `giver`. Returns the oldest load if there are too many.
    pub(super) fn push(&mut self, giver: usize, load: Load) -> Option<Load> {
        if self.most == 0 {
            return Some(load);
        }
        let mut oldest = None;
        if self.loads.len() == self.most {
            self.givers.pop_front();
            oldest = self.loads.pop_front();
        }
        self.loads.push_back(load);
        self.givers.push_back(giver as u32);
        oldest
    }

    /// Takes the last load that `taker` gave, or else the last one.
    pub(super) fn pop(&mut self, taker: usize) -> Option<Load> {
        let last = self.givers.len().checked_sub(1)?;
        let mut givers = self.givers.iter();
        let own = givers.rposition(|giver| *giver == taker as u32);
        let place = own.unwrap_or(last);
        self.givers.remove(place);
        self.loads.remove(place)
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
            assert_eq!(loads.push(giver, load(number)), None);
        }
        assert_eq!(loads.pop(7), Some(load(3)));
        assert_eq!(loads.pop(7), Some(load(1)));
        assert_eq!(loads.len(), 2);
        assert_eq!(loads.pop(7), Some(load(4)));
        assert_eq!(loads.pop(7), Some(load(2)));
        assert_eq!(loads.pop(7), None);
    }

    #[test]
    fn a_sixteenth_of_the_arena_is_kept_at_most_and_the_oldest_goes() {
        let mut loads = Loads::new(32 * LOAD);
        for (number, oldest) in [(1, None), (2, None), (3, Some(1)), (4, Some(2))] {
            assert_eq!(loads.push(number as usize, load(number)), oldest.map(load));
        }
        assert_eq!(loads.len(), 2);
        assert_eq!(loads.pop(3), Some(load(3)));
        assert_eq!(loads.push(9, load(9)), None);
        assert_eq!(loads.push(9, load(10)), Some(load(4)));
    }

    #[test]
    fn a_small_arena_keeps_none() {
        let mut loads = Loads::new(16 * LOAD - 1);
        assert_eq!(loads.push(0, load(1)), Some(load(1)));
        assert_eq!((loads.len(), loads.pop(0)), (0, None));
    }
}
