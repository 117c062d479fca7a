//! The dirty limits of groups: a writer over a limit writes blocks back itself, and data that
//! cannot be written never takes memory that the `min` of other groups protects.
//!
//! **Memory owed to other groups.** A group gets the memory of its `min` when it needs it. Clean
//! pages of other groups are evicted for it, but pages that are unwritten, or written and not
//! synced, cannot be. So each group limits such pages: they must fit into its limit less the `min`
//! of all groups directly below it. Pages of a group directly below do not count if they fit into
//! that group's own `min`, since they take memory from that group alone. So, whatever the stores of
//! its neighbours do, a group inside its `min` finds free pages, clean pages, or its own.
//!
//! A writer at that limit writes and syncs the files of its own group and of those below it. It
//! calls no store of other groups' files. It waits a while for the threads of the memory, which do
//! call those stores, and is then refused. Each thread may exceed the limit by the pages that it
//! writes in one step.

use crate::cache::core::FileCore;
use crate::group::GroupId;
use crate::units::PageCount;

/// When more than `1 / BACKGROUND_PART` of a group's limit is dirty, blocks of any age are written
/// in the background.
const BACKGROUND_PART: u64 = 5;
/// When more than `1 / HARD_PART` of a group's limit is dirty, writers write blocks back
/// themselves. A writer is refused if no block can be written, because the write order holds blocks
/// back or a store keeps failing.
const HARD_PART: u64 = 2;

/// How close a group is to its limits on dirty and unwritten pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum DirtyLevel {
    /// Blocks are written when they are old enough.
    Low,
    /// Blocks of any age are written in the background.
    Background,
    /// Writers make room themselves.
    Hard,
    /// More unwritten pages would take memory owed to other groups. The value is the group that has
    /// too many such pages.
    Owed(GroupId),
}

/// Returns the dirty level of the file: the highest of those of the groups that pay for it.
#[inline]
pub(super) fn dirty_level(core: &FileCore) -> DirtyLevel {
    let mut nearest = DirtyLevel::Low;
    let mut below = None;
    for group in &core.id.groups {
        nearest = nearest.max(dirty_level_at(core, *group, below));
        below = Some(*group);
    }
    nearest
}

/// Returns the level at a group of the file. `below` is the group directly below it that also pays
/// for the file, if any.
#[inline]
fn dirty_level_at(core: &FileCore, group: GroupId, below: Option<GroupId>) -> DirtyLevel {
    let groups = &core.pool.groups;
    let Some(max) = groups.max(group) else {
        return DirtyLevel::Low;
    };
    let owed = groups.owed(group);
    if owed.0 > 0 && unwritten_room(core, group, below, max, owed).is_none() {
        return DirtyLevel::Owed(below.unwrap_or(group));
    }
    let dirty = core.cache.dirty_pages(group).0;
    if dirty * BACKGROUND_PART <= max.0 {
        return DirtyLevel::Low;
    }
    // Pages that a group has inside its `min` take nothing from others.
    let is_inside = |below| {
        let (_, min) = groups.protection(below);
        core.cache.dirty_pages(below).0 * HARD_PART <= min.0
    };
    match dirty * HARD_PART > max.0 && !below.is_some_and(is_inside) {
        true => DirtyLevel::Hard,
        false => DirtyLevel::Background,
    }
}

/// Returns how many more pages may become unwritten without using the memory `owed` to the groups
/// directly below `group`, or `None` if there are too many already. While `below` is inside its own
/// `min`, only the room there counts.
#[cold]
fn unwritten_room(
    core: &FileCore,
    group: GroupId,
    below: Option<GroupId>,
    max: PageCount,
    owed: PageCount,
) -> Option<u64> {
    let unwritten = |group| core.cache.unwritten_pages(group).0;
    if let Some(below) = below {
        let (_, min) = core.pool.groups.protection(below);
        if unwritten(below) < min.0 {
            return Some(min.0 - unwritten(below));
        }
    }
    let most = max.0.saturating_sub(owed.0);
    let mut beside = unwritten(group);
    if beside > most {
        // The sum is not exact while counts change. The next writer sees the change.
        for (creditor, min) in core.pool.groups.creditors(group) {
            beside = beside.saturating_sub(unwritten(creditor).min(min.0));
        }
    }
    most.checked_sub(beside)
}

/// Whether some group has so many dirty pages that blocks of any age are to be written.
pub(crate) fn has_too_much_dirty(core: &FileCore) -> bool {
    dirty_level(core) > DirtyLevel::Low
}

/// Returns how many of `wanted` blocks may become dirty before a group is at its hard limit, or
/// uses memory that it owes. At least one may: the caller has called
/// [`make_dirty_room`](crate::cache::dirty::room::make_dirty_room) for it.
pub(crate) fn dirty_room(core: &FileCore, wanted: u64) -> u64 {
    let mut room = wanted;
    let mut below = None;
    for group in &core.id.groups {
        if let Some(max) = core.pool.groups.max(*group) {
            let most = max.0 / HARD_PART;
            let mut pages = most.saturating_sub(core.cache.dirty_pages(*group).0);
            let owed = core.pool.groups.owed(*group);
            if owed.0 > 0 {
                let left = unwritten_room(core, *group, below, max, owed);
                pages = pages.min(left.unwrap_or(0));
            }
            room = room.min((pages >> core.id.order) + 1);
        }
        below = Some(*group);
    }
    room
}
