//! The shadows that evicted blocks left in the indexes of their files, oldest first, and only as
//! many as are of use.
//!
//! A shadow is a word of an index node that exists anyway, but a file whose nodes live long would
//! collect them for ever. A shadow older than half the memory's worth of evictions says nothing: no
//! active list is longer than that. So the pool keeps a queue of the latest shadows of all files
//! together. An eviction appends its shadows; the owner of a shadow that is dropped at the front
//! takes it out of its index, if it is still there. The entry of a block that came back, or went
//! with its node, stays in the queue until then. So there are never more shadows than entries,
//! except for evictions under way.
//!
//! The queue is one allocation, made with the pool, and counted in the stated overhead of a frame.

use std::collections::VecDeque;

use super::owner::{LeftShadow, OwnerId};
use crate::sync::{Mutex, Rank};

#[derive(Clone, Copy)]
struct Entry {
    block: u64,
    mark: u32,
    owner: OwnerId,
}

/// Bytes of the queue for each frame of the pool.
pub(crate) const SHADOW_BYTES_PER_FRAME: u64 = (size_of::<Entry>() / FRAMES_PER_ENTRY) as u64;

/// Frames of the pool for each entry of the queue.
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

    /// The most shadows that the files have together.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Appends shadows. Returns those that were dropped at the front for them.
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
