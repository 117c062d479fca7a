//! The interface between the stock and the tree.

use super::GroupId;

/// The operations on a tree's counters that the stock needs.
pub(super) trait Levels {
    /// Adds `pages` at every level from `group` upwards. Returns false, with no change, if a level
    /// would then exceed its `max` or `high`. The `stocked` pages do not count towards peaks.
    /// Counts no event.
    fn add_batch(&self, group: GroupId, pages: u32, stocked: u32) -> bool;

    /// Returns how many pages can be added at every level from `group` upwards before one exceeds
    /// its `max` or `high`.
    fn margin(&self, group: GroupId) -> u64;

    /// Subtracts `pages`, which were in stock, at every level from `group` upwards.
    fn take_off(&self, group: GroupId, pages: u64);

    /// Notes a peak at every level from `group` upwards: the level's present usage, less the
    /// `stocked` pages.
    fn note_peak(&self, group: GroupId, stocked: u32);

    /// Returns whether `group` is `top` or below it.
    fn is_below(&self, group: GroupId, top: GroupId) -> bool;

    /// Returns whether the group is deleted, and so may keep no stock.
    fn is_deleted(&self, group: GroupId) -> bool;
}
