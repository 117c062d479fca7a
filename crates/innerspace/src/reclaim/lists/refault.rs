//! Refaults: the shadow that an evicted block leaves behind, and what its return means.
//!
//! This is the published idea of refault distances (J. Weiner, "Thrash detection-based file cache
//! sizing", 2012, and LWN's account of it). A group's clock counts its evictions and activations in
//! pages. An evicted block leaves the clock's value in its file's index, as a *shadow*. When the
//! block comes back, the clock has advanced by the *distance*: if the inactive list had been longer
//! by that many pages, and the active list shorter, the block would have stayed. So if the active
//! list is longer than the distance, the block competes with the active ones, and becomes active
//! immediately. The distance counts the group's own evictions and activations: while the group
//! evicts nothing, its shadows stay young.

use super::lru::Lru;
use crate::group::GroupId;
use crate::sync::atomic::Ordering;
use crate::units::PageCount;

const CLOCK_BITS: u32 = 40;
const CLOCK_MASK: u64 = (1 << CLOCK_BITS) - 1;

/// The number of bits of a shadow, for which an index must have room.
#[cfg(all(test, not(shuttle)))]
pub(crate) const SHADOW_BITS: u32 = CLOCK_BITS + 16;

/// How a block that came back is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refault {
    /// With the flag ACTIVE, because it came back soon.
    Activate,
    /// Inactive, as any new block.
    Inactive,
}

/// Splits a shadow into the group and the value of its clock.
pub(crate) fn shadow_unpack(shadow: u64) -> (GroupId, u64) {
    (GroupId((shadow >> CLOCK_BITS) as u16), shadow & CLOCK_MASK)
}

impl Lru {
    /// Advances the clock of `group` by the pages of a block that is being evicted. Returns the
    /// block's shadow, which is less than `1 << SHADOW_BITS`.
    pub(crate) fn shadow_pack(&self, group: GroupId, pages: PageCount) -> u64 {
        let clock = &self.group(group).clock;
        let now = clock.fetch_add(pages.0, Ordering::Relaxed) + pages.0;
        u64::from(group.0) << CLOCK_BITS | now & CLOCK_MASK
    }

    /// Decides how a block that had left `shadow` is published.
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
