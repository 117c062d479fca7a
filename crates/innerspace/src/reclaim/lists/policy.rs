//! The eviction policies: the choices in which eviction algorithms differ.
//!
//! All policies share the mechanism: two lists for each group, frames isolated in clusters, owners
//! that age, write and evict. A policy decides what a second use does, from which list frames are
//! taken, and what happens to a frame at the tail of either list. It keeps no state, and decides by
//! flags, uses and list sizes alone.
//!
//! S3-FIFO is after J. Yang, Y. Zhang, Z. Qiu, Y. Yue and K. V. Rashmi, "FIFO Queues are All You
//! Need for Cache Eviction", SOSP 2023:
//!
//! | paper | here |
//! |---|---|
//! | small queue S, a tenth | the inactive list |
//! | main queue M | the active list |
//! | ghost queue G, as many entries as M has | shadows in the files' indexes, judged by distance |
//! | frequency | one bit in either queue: used since it came, used since reclaim last looked |
//!
//! The paper counts up to three uses. The flags have room for one bit, and the paper's own
//! measurements find little difference. Unlike in the paper, a block dropped from M leaves a
//! shadow, too.

use super::state::ListSizes;
use crate::frame::End;
use crate::units::PageCount;

/// The policy by which a [`Memory`](crate::Memory) chooses pages to evict.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// Two lists, as in Linux: blocks used twice are protected from blocks used once, and a block
    /// that returns soon after its eviction is protected immediately.
    #[default]
    TwoLists,
    /// S3-FIFO: a small first queue that drops blocks used once, a main queue that gives used
    /// blocks another round, and a record of the blocks that were dropped.
    S3Fifo,
}

/// With two lists, a refault distance is short if it is less than 1 / `SHORT_PART` of both lists
/// together.
const SHORT_PART: u64 = 8;

/// With S3-FIFO, the small queue is 1 / `SMALL_PART` of both queues together.
const SMALL_PART: u64 = 10;

impl EvictionPolicy {
    /// Returns whether a second use moves a block from the inactive list to the active one at once.
    /// If not, the use is remembered, and the block moves when it reaches the tail.
    pub(super) fn activates_now(self) -> bool {
        self == EvictionPolicy::TwoLists
    }

    /// Returns whether frames are to be moved from the active list to the inactive one: with two
    /// lists, while the active list is the longer one; with S3-FIFO, while the small queue is no
    /// larger than its part.
    pub(crate) fn takes_from_active(self, sizes: &ListSizes) -> bool {
        match self {
            EvictionPolicy::TwoLists => sizes.inactive < sizes.active,
            EvictionPolicy::S3Fifo => sizes.inactive.0 * SMALL_PART <= sizes.evictable(),
        }
    }

    /// Returns the end of the inactive list to which a frame from the tail of the active list goes,
    /// if it was not used since reclaim last looked at it. At the front, it passes through the list
    /// once more; at the back, it is evicted next.
    pub(crate) fn demotes_to(self) -> End {
        match self {
            EvictionPolicy::TwoLists => End::Front,
            EvictionPolicy::S3Fifo => End::Back,
        }
    }

    /// Returns whether a block that comes back after this many evictions and activations belongs on
    /// the active list.
    ///
    /// With two lists, the distance must be shorter than the active list: had that list been
    /// shorter by the distance, the block would have stayed, so it competes with the active blocks.
    /// A distance that is short compared with both lists is enough, too: a loop slightly larger
    /// than memory has no active block, and keeping some part of the loop is better than keeping
    /// none.
    pub(super) fn missed(self, distance: PageCount, sizes: &ListSizes) -> bool {
        let active = sizes.active.0;
        match self {
            EvictionPolicy::TwoLists => distance.0 < active.max(sizes.evictable() / SHORT_PART),
            EvictionPolicy::S3Fifo => distance.0 < active,
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    /// Returns the sizes of lists of this many pages, besides others that cannot be evicted.
    fn sizes(inactive: u64, active: u64) -> ListSizes {
        ListSizes {
            inactive: PageCount(inactive),
            active: PageCount(active),
            unevictable: PageCount(1_000),
        }
    }

    #[test]
    fn of_two_lists_the_longer_gives() {
        let takes =
            |inactive, active| EvictionPolicy::TwoLists.takes_from_active(&sizes(inactive, active));
        assert_eq!(
            [(9, 10), (10, 10), (11, 10)].map(|(a, b)| takes(a, b)),
            [true, false, false]
        );
    }

    #[test]
    fn two_lists_miss_a_distance_below_the_active_pages_or_short_of_all() {
        let missed = |distance, inactive, active| {
            EvictionPolicy::TwoLists.missed(PageCount(distance), &sizes(inactive, active))
        };
        assert!(missed(49, 50, 50) && !missed(50, 50, 50));
        // No page is active, so a distance is short up to an eighth of all pages.
        assert!(missed(9, 80, 0) && !missed(10, 80, 0));
        assert!(!missed(0, 0, 0));
    }

    #[test]
    fn the_small_queue_of_s3_fifo_is_a_tenth() {
        let takes =
            |inactive, active| EvictionPolicy::S3Fifo.takes_from_active(&sizes(inactive, active));
        assert_eq!(
            [(10, 90), (11, 89)].map(|(a, b)| takes(a, b)),
            [true, false]
        );
        assert!(takes(0, 1));
    }

    #[test]
    fn s3_fifo_misses_what_it_would_still_remember() {
        let missed = |distance| EvictionPolicy::S3Fifo.missed(PageCount(distance), &sizes(10, 90));
        assert_eq!([0, 89, 90].map(missed), [true, true, false]);
    }
}
