//! What evicted blocks left in the indexes of their files, oldest first: so many, and no more.
//!
//! A shadow is a word of an index node that is there anyway, but a file whose nodes live long would
//! collect them for ever, and one that is older than half the memory's worth of evictions says
//! nothing: no active list is longer. So the pool keeps a queue of the last ones, of all files
//! together. Who evicts puts its shadows at the end; what falls out at the front is taken out of
//! its index by its owner, if it is there still. A block that came back, or went with its node,
//! leaves its place in the queue until then; so there are never more shadows than places (but for
//! those of evictions under way).
//!
//! The queue is one allocation of the pool's, made at the start and part of what [`Pool`] says it
//! takes by frame.

use std::collections::VecDeque;

use super::owners::OwnerId;
use super::pool::Pool;
use super::workingset::CLOCK_BITS;
use crate::sync::{Mutex, Rank};

/// A shadow that [`Pool::shadow_pack`] made, and where it was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeftShadow {
    /// The block's number in its file.
    pub(crate) block: u64,
    /// The low half of the shadow. Two of one block that agree in it are 2^32 evictions apart.
    pub(crate) mark: u32,
}

impl LeftShadow {
    /// The shadow left for `block`.
    pub(crate) fn new(block: u64, shadow: u64) -> LeftShadow {
        const { assert!(CLOCK_BITS >= 32, "the low half is of the clock alone") };
        LeftShadow {
            block,
            mark: shadow as u32,
        }
    }
}

#[derive(Clone, Copy)]
struct Place {
    block: u64,
    mark: u32,
    owner: OwnerId,
}

/// Bytes of the queue for each frame of the pool.
pub(crate) const SHADOW_BYTES_PER_FRAME: u64 = (size_of::<Place>() / FRAMES_PER_PLACE) as u64;

/// Frames of the pool for each place in the queue.
const FRAMES_PER_PLACE: usize = 2;

/// The queue.
pub(super) struct Shadows {
    places: Mutex<VecDeque<Place>>,
    most: usize,
}

impl Shadows {
    pub(super) fn new(frames: u32) -> Shadows {
        let most = (frames as usize / FRAMES_PER_PLACE).max(1);
        Shadows {
            places: Mutex::ranked(Rank::Retire, VecDeque::with_capacity(most)),
            most,
        }
    }

    /// Puts shadows at the end; what fell out at the front for that.
    fn push(&self, owner: OwnerId, left: &[LeftShadow]) -> Vec<(OwnerId, LeftShadow)> {
        let mut fallen = Vec::new();
        let mut places = self.places.lock();
        for LeftShadow { block, mark } in left.iter().copied() {
            if places.len() == self.most
                && let Some(Place { block, mark, owner }) = places.pop_front()
            {
                fallen.push((owner, LeftShadow { block, mark }));
            }
            places.push_back(Place { block, mark, owner });
        }
        fallen
    }
}

impl Pool {
    /// The most shadows that the files have together.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn most_shadows(&self) -> usize {
        self.shadows.most
    }

    /// `owner` evicted blocks and left these shadows in its index, oldest first. For each that is
    /// too many, the oldest of all is forgotten by its owner ([`super::Owner::forget`]). No lock is
    /// held.
    pub(crate) fn shadows_left(&self, owner: OwnerId, left: &[LeftShadow]) {
        let fallen = self.shadows.push(owner, left);
        for of_one in fallen.chunk_by(|a, b| a.0 == b.0) {
            let Some(owner) = self.owners.get(of_one[0].0) else {
                continue;
            };
            let shadows: Vec<LeftShadow> = of_one.iter().map(|(_, shadow)| *shadow).collect();
            owner.forget(&shadows);
        }
    }
}
