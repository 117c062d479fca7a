//! Refaults: what an evicted page leaves behind, and what its return says.
//!
//! After the published idea of refault distances (J. Weiner, "Thrash detection-based file cache
//! sizing", 2012, and LWN's account of it): a group's clock counts its evictions and activations in
//! pages. An evicted block leaves the clock's value in its file's index. When it comes back, the
//! difference is the number of inactive slots it lacked; had the active list been that much shorter
//! it would have stayed. If the active list is at least as long as the distance, the newcomer
//! competes with it: it becomes active at once.

use super::pool::Pool;
use crate::group::GroupId;
use crate::stats::Event;
use crate::sync::atomic::Ordering;
use crate::units::PageCount;

pub(super) const CLOCK_BITS: u32 = 40;
const CLOCK_MASK: u64 = (1 << CLOCK_BITS) - 1;

/// Bits of a shadow: what an index must be able to keep.
#[cfg(all(test, not(shuttle)))]
pub(crate) const SHADOW_BITS: u32 = CLOCK_BITS + 16;

/// What to do with a block that came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refault {
    /// Publish it with the flag ACTIVE: it was missed soon.
    Activate,
    /// Publish it inactive, as any new block.
    Inactive,
}

/// The two parts of a shadow.
pub(super) fn shadow_unpack(shadow: u64) -> (GroupId, u64) {
    (GroupId((shadow >> CLOCK_BITS) as u16), shadow & CLOCK_MASK)
}

impl Pool {
    /// A block of `pages` pages of `group` is being evicted: moves the clock and returns the shadow
    /// to leave in the index, less than `1 << SHADOW_BITS`.
    pub(crate) fn shadow_pack(&self, group: GroupId, pages: PageCount) -> u64 {
        let lists = self.lru.group(group);
        let clock = lists.clock.fetch_add(pages.0, Ordering::Relaxed) + pages.0;
        u64::from(group.0) << CLOCK_BITS | clock & CLOCK_MASK
    }

    /// A block of `pages` pages that had left `shadow` is read again. Counts it. A caller that is
    /// about to write the whole block ignores the answer: such a refault is no sign of use.
    pub(crate) fn refault_decision(&self, shadow: u64, pages: PageCount) -> Refault {
        let (group, evicted_at) = shadow_unpack(shadow);
        let lists = self.lru.group(group);
        let now = lists.clock.load(Ordering::Relaxed);
        let distance = now.wrapping_sub(evicted_at) & CLOCK_MASK;
        self.counters.add(Event::Refault, pages.0);
        let sizes = self.lru.sizes(group);
        if self.policy.missed(PageCount(distance), &sizes) {
            Refault::Activate
        } else {
            Refault::Inactive
        }
    }

    /// A block of `pages` pages begins on the active list because it was missed soon.
    pub(crate) fn count_active_refault(&self, pages: PageCount) {
        self.counters.add(Event::RefaultActivate, pages.0);
    }
}
