//! The interface between the stock and the tree.

use super::GroupId;

/// The counters of a tree, as the stock needs them.
pub(super) trait Levels {
    /// Adds `pages` at every level from `group` up, if none of them then passes a limit of either
    /// kind. No event is counted.
    fn add_batch(&self, group: GroupId, pages: u32, stocked: u32) -> bool;

    /// Pages that every level from `group` up may be charged besides, before one of them passes a
    /// limit of either kind.
    fn margin(&self, group: GroupId) -> u64;

    /// Takes `pages`, which were in stock, off every level.
    fn take_off(&self, group: GroupId, pages: u64);

    /// Notes that usage was as high as it is now, less `stocked`.
    fn note_peak(&self, group: GroupId, stocked: u32);

    /// Whether `group` is `top` or below it.
    fn is_below(&self, group: GroupId, top: GroupId) -> bool;

    /// Whether the group is deleted: it keeps no stock.
    fn is_deleted(&self, group: GroupId) -> bool;
}
