//! Two lists with refault distances, in the manner of Linux's; see
//! [`workingset`](super::super::workingset).

use super::{Demotion, Policy, SecondUse};
use crate::reclaim::lru::ListSizes;
use crate::units::PageCount;

/// A distance up to this part of both lists is little.
const LITTLE: u64 = 8;

pub(super) struct TwoLists;

impl Policy for TwoLists {
    fn second_use(&self) -> SecondUse {
        SecondUse::Activate
    }

    /// While the inactive list is the shorter.
    fn takes_from_active(&self, sizes: &ListSizes) -> bool {
        sizes.inactive < sizes.active
    }

    fn demotion(&self) -> Demotion {
        Demotion::SecondChance
    }

    /// With an active list shorter by the distance it would have stayed: it competes with what is
    /// there. The same when it lacked little of all there is: a loop slightly larger than memory
    /// has nothing active, and keeping any part of it is better than none.
    fn missed(&self, distance: PageCount, sizes: &ListSizes) -> bool {
        let little = (sizes.active.0 + sizes.inactive.0) / LITTLE;
        distance.0 < sizes.active.0.max(little)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::super::tests::sizes;
    use super::*;

    #[test]
    fn the_longer_list_gives() {
        let takes = |inactive, active| TwoLists.takes_from_active(&sizes(inactive, active));
        assert_eq!(
            [(9, 10), (10, 10), (11, 10)].map(|(a, b)| takes(a, b)),
            [true, false, false]
        );
    }

    #[test]
    fn what_lacked_less_than_is_active_or_little_of_all_was_missed() {
        let missed = |distance, inactive, active| {
            TwoLists.missed(PageCount(distance), &sizes(inactive, active))
        };
        assert!(missed(49, 50, 50) && !missed(50, 50, 50));
        // Nothing is active: an eighth of all there is.
        assert!(missed(9, 80, 0) && !missed(10, 80, 0));
        assert!(!missed(0, 0, 0));
    }
}
