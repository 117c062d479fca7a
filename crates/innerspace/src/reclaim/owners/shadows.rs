//! The shadows that evicted blocks left in the indexes of their files, oldest first. Only as many
//! are kept as can be useful.
//!
//! A shadow takes a word of an index node that exists anyway, but a file with long-lived nodes
//! would collect shadows for ever. A shadow that is older than as many evictions as half the memory
//! has pages says nothing: no active list is longer than that. So the pool keeps one queue of the
//! latest shadows of all files. An eviction appends its shadows. When a shadow is dropped at the
//! front, its owner takes it out of its index, if it is still there. If the block has come back
//! meanwhile, or the node is gone, the entry still stays in the queue until then. So there are
//! never more shadows than entries, except for evictions under way.
//!
//! The queue is one allocation, made with the pool. The documented overhead of a frame includes it.

use std::collections::VecDeque;

use super::owner::{LeftShadow, OwnerId};
use crate::sync::{Mutex, Rank};

#[derive(Clone, Copy)]
struct Entry {
    block: u64,
    mark: u32,
    owner: OwnerId,
}

/// The bytes of the queue for each frame of the pool.
pub(crate) const SHADOW_BYTES_PER_FRAME: u64 = (size_of::<Entry>() / FRAMES_PER_ENTRY) as u64;

/// The number of frames of the pool for each entry of the queue.
const FRAMES_PER_ENTRY: usize = 2;

/// The queue of one pool.
pub(crate) struct Shadows {
    entries: Mutex<VecDeque<Entry>>,
    most: usize,
}

impl Shadows {
    pub(crate) fn new(frames: u32) -> Shadows {
        let most = (frames as usize / FRAMES_PER_ENTRY).max(1);
        Shadows {
            entries: Mutex::ranked(Rank::Retire, VecDeque::with_capacity(most)),
            most,
        }
    }

    /// Appends shadows, and returns those that were dropped at the front to make room.
    pub(crate) fn push(&self, owner: OwnerId, left: &[LeftShadow]) -> Vec<(OwnerId, LeftShadow)> {
        let mut fallen = Vec::new();
        let mut entries = self.entries.lock();
        for LeftShadow { block, mark } in left.iter().copied() {
            if entries.len() == self.most
                && let Some(Entry { block, mark, owner }) = entries.pop_front()
            {
                fallen.push((owner, LeftShadow { block, mark }));
            }
            entries.push_back(Entry { block, mark, owner });
        }
        fallen
    }
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl Shadows {
        /// Returns how many shadows all files together may have.
        pub(crate) fn most(&self) -> usize {
            self.most
        }
    }
}
