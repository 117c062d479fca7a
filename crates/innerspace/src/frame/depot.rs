//! The depot: half magazines of free frames. A full magazine gives one away and an empty one takes
//! one, without the buddy lists.
//!
//! A magazine first takes the half that it gave away last: if those frames are in a cache at all,
//! then in that of its thread's processor.
//!
//! Above a bound the oldest half goes to the buddy lists. So scattered frames do not circulate here
//! for ever: in the lists they join their neighbours again.

use std::collections::VecDeque;

use super::stack::CAPACITY;
use crate::FrameId;

/// Frames of a half, at most.
pub(crate) const HALF: usize = CAPACITY / 2;

/// The most halves kept: 16 MiB. So few that the list of givers, which a magazine searches, takes
/// four cache lines.
const MOST: usize = 64;

/// Half of a magazine's frames, from the first place on.
pub(super) type Half = [FrameId; HALF];

/// Half magazines of free frames, in the order in which they were given.
#[derive(Debug)]
pub(super) struct Depot {
    halves: VecDeque<Half>,
    /// The number of the magazine that gave each.
    givers: VecDeque<u32>,
    most: usize,
}

impl Depot {
    /// An empty depot, which takes at most a sixteenth of the arena's frames.
    pub(super) fn new(frames: usize) -> Depot {
        let most = (frames / (16 * HALF)).min(MOST);
        Depot {
            halves: VecDeque::with_capacity(most),
            givers: VecDeque::with_capacity(most),
            most,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.halves.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Half> + Clone {
        self.halves.iter()
    }

    /// Keeps a half of magazine `giver`. Returns the oldest half if there are too many.
    pub(super) fn push(&mut self, giver: usize, half: Half) -> Option<Half> {
        if self.most == 0 {
            return Some(half);
        }
        let mut oldest = None;
        if self.halves.len() == self.most {
            self.givers.pop_front();
            oldest = self.halves.pop_front();
        }
        self.halves.push_back(half);
        self.givers.push_back(giver as u32);
        oldest
    }

    /// Takes the last half that `taker` gave, or else the last one.
    pub(super) fn pop(&mut self, taker: usize) -> Option<Half> {
        let last = self.givers.len().checked_sub(1)?;
        let mut givers = self.givers.iter();
        let own = givers.rposition(|giver| *giver == taker as u32);
        let place = own.unwrap_or(last);
        self.givers.remove(place);
        self.halves.remove(place)
    }
}

#[cfg(all(test, not(shuttle), not(loom)))]
mod tests {
    use super::*;

    fn half(number: u32) -> Half {
        [FrameId(number); HALF]
    }

    #[test]
    fn a_magazine_gets_its_own_half_back_before_those_of_others() {
        let mut depot = Depot::new(1 << 20);
        for (number, giver) in [(1, 7), (2, 8), (3, 7), (4, 8)] {
            assert_eq!(depot.push(giver, half(number)), None);
        }
        assert_eq!(depot.pop(7), Some(half(3)));
        assert_eq!(depot.pop(7), Some(half(1)));
        assert_eq!(depot.len(), 2);
        assert_eq!(depot.pop(7), Some(half(4)));
        assert_eq!(depot.pop(7), Some(half(2)));
        assert_eq!(depot.pop(7), None);
    }

    #[test]
    fn a_sixteenth_of_the_arena_is_kept_at_most_and_the_oldest_goes() {
        let mut depot = Depot::new(32 * HALF);
        for (number, oldest) in [(1, None), (2, None), (3, Some(1)), (4, Some(2))] {
            assert_eq!(depot.push(number as usize, half(number)), oldest.map(half));
        }
        assert_eq!(depot.len(), 2);
        assert_eq!(depot.pop(3), Some(half(3)));
        assert_eq!(depot.push(9, half(9)), None);
        assert_eq!(depot.push(9, half(10)), Some(half(4)));
    }

    #[test]
    fn a_small_arena_keeps_none() {
        let mut depot = Depot::new(16 * HALF - 1);
        assert_eq!(depot.push(0, half(1)), Some(half(1)));
        assert_eq!((depot.len(), depot.pop(0)), (0, None));
    }
}
