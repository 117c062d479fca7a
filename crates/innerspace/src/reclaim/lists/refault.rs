//! Refaults: the shadow that an evicted block leaves behind, and the meaning of its return.
//!
//! After the published idea of refault distances (J. Weiner, "Thrash detection-based file cache
//! sizing", 2012, and LWN's account of it): a group's clock counts its evictions and activations in
//! pages. An evicted block leaves the clock's value in its file's index, as a *shadow*. When the
//! block comes back, the difference is the number of inactive pages too few there were: with an
//! active list so much shorter, the block would have stayed. If the active list is at least as long
//! as that distance, the newcomer competes with it, and becomes active at once.

use super::lru::Lru;
use crate::group::GroupId;
use crate::sync::atomic::Ordering;
use crate::units::PageCount;

pub(crate) const CLOCK_BITS: u32 = 40;
const CLOCK_MASK: u64 = (1 << CLOCK_BITS) - 1;

/// Bits of a shadow, which an index must be able to keep.
#[cfg(all(test, not(shuttle)))]
pub(crate) const SHADOW_BITS: u32 = CLOCK_BITS + 16;

/// How to treat a block that came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refault {
    /// The block came back soon: publish it with the flag ACTIVE.
    Activate,
    /// Publish it inactive, as any new block.
    Inactive,
}

/// The two parts of a shadow.
pub(crate) fn shadow_unpack(shadow: u64) -> (GroupId, u64) {
    (GroupId((shadow >> CLOCK_BITS) as u16), shadow & CLOCK_MASK)
}

impl Lru {
    /// Moves the clock of `group` by the pages of a block that is being evicted. Returns the
    /// block's shadow, less than `1 << SHADOW_BITS`.
    pub(crate) fn shadow_pack(&self, group: GroupId, pages: PageCount) -> u64 {
        let clock = &self.group(group).clock;
        let now = clock.fetch_add(pages.0, Ordering::Relaxed) + pages.0;
        u64::from(group.0) << CLOCK_BITS | now & CLOCK_MASK
    }

    /// How to treat a block that had left `shadow`.
    pub(crate) fn refault(&self, shadow: u64) -> Refault {
        let (group, evicted_at) = shadow_unpack(shadow);
        let lists = self.group(group);
        let now = lists.clock.load(Ordering::Relaxed);
        let distance = PageCount(now.wrapping_sub(evicted_at) & CLOCK_MASK);
        match self.policy.missed(distance, &lists.sizes()) {
            true => Refault::Activate,
            false => Refault::Inactive,
        }
    }
}
