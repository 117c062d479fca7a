//! Two lists with refault distances, in the manner of Linux's; see [`workingset`](super::super::workingset).

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

    /// With an active list shorter by the distance it would have stayed: it competes with what is there. The same when it lacked little
    /// of all there is: a loop slightly larger than memory has nothing active, and keeping any part of it is better than none.
    fn missed(&self, distance: PageCount, sizes: &ListSizes) -> bool {
        let little = (sizes.active.0 + sizes.inactive.0) / LITTLE;
        distance.0 < sizes.active.0.max(little)
    }
}
