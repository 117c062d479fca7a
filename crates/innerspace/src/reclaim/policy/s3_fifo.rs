//! S3-FIFO, after J. Yang, Y. Zhang, Z. Qiu, Y. Yue and K. V. Rashmi, "FIFO Queues are All You Need
//! for Cache Eviction", SOSP 2023.
//!
//! | paper | here |
//! |---|---|
//! | small queue S, a tenth | the inactive list |
//! | main queue M | the active list |
//! | ghost queue G, as many entries as M has | shadows in the files' indexes, by distance |
//! | frequency | one bit in either queue: used since it came, used since it was last looked at |
//!
//! Uses move nothing. The paper counts up to three uses; one bit is what the flags have, and the
//! paper's own measurements find little between the two. What M drops leaves a shadow here, too.

use super::{Demotion, Policy, SecondUse};
use crate::reclaim::lru::ListSizes;
use crate::units::PageCount;

/// S is this part of the two queues.
const SMALL: u64 = 10;

pub(super) struct S3Fifo;

impl Policy for S3Fifo {
    fn second_use(&self) -> SecondUse {
        SecondUse::Remember
    }

    /// While S is no larger than its part.
    fn takes_from_active(&self, sizes: &ListSizes) -> bool {
        sizes.inactive.0 * SMALL <= sizes.inactive.0 + sizes.active.0
    }

    fn demotion(&self) -> Demotion {
        Demotion::Next
    }

    fn missed(&self, distance: PageCount, sizes: &ListSizes) -> bool {
        distance < sizes.active
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::super::tests::sizes;
    use super::*;

    #[test]
    fn a_tenth_of_the_pages_is_small() {
        let takes = |inactive, active| S3Fifo.takes_from_active(&sizes(inactive, active));
        assert_eq!(
            [(10, 90), (11, 89)].map(|(a, b)| takes(a, b)),
            [true, false]
        );
        assert!(takes(0, 1));
    }

    #[test]
    fn what_would_still_be_remembered_was_missed() {
        let missed = |distance| S3Fifo.missed(PageCount(distance), &sizes(10, 90));
        assert_eq!([0, 89, 90].map(missed), [true, true, false]);
    }
}
