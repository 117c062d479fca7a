//! Loads: what a full magazine gives away for an empty one to take, on their way past the buddy lists.
//!
//! A magazine takes the last load that it gave itself, before those of others: its frames are in the cache of the processor that
//! its thread is on, if they are in one. The search for it looks at the last few alone.

use super::stack::CAPACITY;
use crate::FrameId;

/// Frames of a load, at most.
pub(super) const LOAD: usize = CAPACITY / 2;

/// The most loads that are kept: 16 MiB.
const MOST: usize = 256;

/// Loads among which a magazine looks for its own: their givers are in four lines.
const SEARCHED: usize = 64;

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

    /// Keeps a load of magazine `giver`; gives it back if there are as many as there may be.
    pub(super) fn push(&mut self, giver: usize, load: Load) -> Result<(), Load> {
        if self.loads.len() == self.most {
            return Err(load);
        }
        self.loads.push(load);
        self.givers.push(giver as u32);
        Ok(())
    }

    /// Takes the last that `taker` gave, or else the last.
    pub(super) fn pop(&mut self, taker: usize) -> Option<Load> {
        let last = self.givers.len().checked_sub(1)?;
        let searched = self.givers.len().saturating_sub(SEARCHED);
        let mut own = self.givers[searched..].iter();
        let own = own.rposition(|giver| *giver == taker as u32);
        let place = own.map_or(last, |place| searched + place);
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
            loads.push(giver, load(number)).unwrap();
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
    fn what_is_beyond_the_search_is_found_as_anybodys() {
        let mut loads = Loads::new(1 << 20);
        loads.push(1, load(1)).unwrap();
        (0..SEARCHED).for_each(|_| loads.push(2, load(2)).unwrap());
        let taken: Vec<Load> = std::iter::from_fn(|| loads.pop(1)).collect();
        assert_eq!(taken.len(), SEARCHED + 1);
        assert_eq!(taken.iter().filter(|one| **one == load(1)).count(), 1);
    }

    #[test]
    fn a_sixteenth_of_the_arena_is_kept_at_most() {
        let mut loads = Loads::new(32 * LOAD);
        assert_eq!(loads.push(0, load(1)), Ok(()));
        assert_eq!(loads.push(0, load(2)), Ok(()));
        assert_eq!(loads.push(0, load(3)), Err(load(3)));
        assert_eq!(loads.len(), 2);
    }
}
