//! The dirty limits of groups: a writer over one writes back itself, and data that cannot be
//! written never takes memory that the `min` of other groups protects.
//!
//! **Memory owed to other groups.** A group gets the memory of its `min` when it needs it. Clean
//! pages of other groups are evicted for it, but pages that are unwritten, or written and not
//! synced, cannot be. So each group limits such pages: they must fit into the part of its limit
//! that is left beside the `min` of all groups right below it. Pages that fit into the `min` of the
//! group right below to which they belong are not counted, since they take memory from that group
//! alone. So, whatever the stores of its neighbours do, a group inside its `min` finds free pages,
//! clean pages, or its own.
//!
//! A writer at that limit writes and syncs the files of its own group and of those below it. It
//! calls no store of other groups: it waits a while for the threads of the memory, which call them,
//! and is then refused. Each thread may pass the limit by the pages that it writes in one step.

use std::time::Duration;

use crate::cache::core::FileCore;
use crate::cache::dirty::index::WriteOrder;
use crate::cache::errors::FileError;
use crate::cache::wait::Wait;
use crate::group::{GroupId, LimitReason};
use crate::units::PageCount;

/// Dirty pages above this part of a group's limit are written in the background.
const BACKGROUND_PART: u64 = 5;
/// Above this part, writers write pages themselves, and are refused if nothing can be written.
const HARD_PART: u64 = 2;

/// How long a writer waits for a flush of the background, and how many flushes may bring nothing.
const FLUSH_WAIT: Duration = Duration::from_millis(500);
const FLUSHES: u32 = 3;

/// How many dirty pages a group has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum DirtyLevel {
    /// Blocks are written when they are old enough.
    Low,
    /// Blocks of any age are written in the background.
    Background,
    /// Writers make room themselves.
    Hard,
    /// More unwritten pages would take memory owed to other groups. This group has too many.
    Owed(GroupId),
}

impl FileCore {
    /// Returns the dirty level of the file: the highest of those of the groups that pay for it.
    #[inline]
    fn dirty_level(&self) -> DirtyLevel {
        let mut nearest = DirtyLevel::Low;
        let mut below = None;
        for group in &self.id.groups {
            nearest = nearest.max(self.dirty_level_at(*group, below));
            below = Some(*group);
        }
        nearest
    }

    /// Returns the level at a group. `below` is the group right below it through which the file
    /// belongs to it.
    #[inline]
    fn dirty_level_at(&self, group: GroupId, below: Option<GroupId>) -> DirtyLevel {
        let groups = &self.pool.groups;
        let Some(max) = groups.max(group) else {
            return DirtyLevel::Low;
        };
        let owed = groups.owed(group);
        if owed.0 > 0 && self.unwritten_room(group, below, max, owed).is_none() {
            return DirtyLevel::Owed(below.unwrap_or(group));
        }
        let dirty = self.cache.dirty_pages(group).0;
        if dirty * BACKGROUND_PART <= max.0 {
            return DirtyLevel::Low;
        }
        // Pages that a group has inside its `min` take nothing from others.
        let is_inside = |below| {
            let (_, min) = groups.protection(below);
            self.cache.dirty_pages(below).0 * HARD_PART <= min.0
        };
        match dirty * HARD_PART > max.0 && !below.is_some_and(is_inside) {
            true => DirtyLevel::Hard,
            false => DirtyLevel::Background,
        }
    }

    /// Returns how many more pages may become unwritten beside the memory `owed` to the groups
    /// right below `group`, or `None` if there are too many already.
    #[cold]
    fn unwritten_room(
        &self,
        group: GroupId,
        below: Option<GroupId>,
        max: PageCount,
        owed: PageCount,
    ) -> Option<u64> {
        let unwritten = |group| self.cache.unwritten_pages(group).0;
        if let Some(below) = below {
            let (_, min) = self.pool.groups.protection(below);
            if unwritten(below) < min.0 {
                return Some(min.0 - unwritten(below));
            }
        }
        let most = max.0.saturating_sub(owed.0);
        let mut beside = unwritten(group);
        if beside > most {
            // The sum is not exact while pages change. The next writer sees the change.
            for (creditor, min) in self.pool.groups.creditors(group) {
                beside = beside.saturating_sub(unwritten(creditor).min(min.0));
            }
        }
        most.checked_sub(beside)
    }

    /// Whether some group has more dirty pages than are left to age.
    pub(crate) fn has_too_much_dirty(&self) -> bool {
        self.dirty_level() > DirtyLevel::Low
    }

    /// Returns how many of `wanted` blocks may become dirty before the groups are at their hard
    /// limit. At least one may, for which [`FileCore::make_dirty_room`] was called.
    pub(crate) fn dirty_room(&self, wanted: u64) -> u64 {
        let mut room = wanted;
        let mut below = None;
        for group in &self.id.groups {
            if let Some(max) = self.pool.groups.max(*group) {
                let most = max.0 / HARD_PART;
                let mut pages = most.saturating_sub(self.cache.dirty_pages(*group).0);
                let owed = self.pool.groups.owed(*group);
                if owed.0 > 0 {
                    let left = self.unwritten_room(*group, below, max, owed);
                    pages = pages.min(left.unwrap_or(0));
                }
                room = room.min((pages >> self.id.order) + 1);
            }
            below = Some(*group);
        }
        room
    }

    /// Makes room for one more dirty block. A writer over the limit writes back itself, and is
    /// refused if nothing may be written (P25).
    ///
    /// A writer that may not wait is refused at the limit, and another thread is requested to
    /// write.
    #[inline]
    pub(crate) fn make_dirty_room(&self, offset: u64, wait: Wait) -> Result<(), FileError> {
        match self.dirty_level() {
            DirtyLevel::Low => Ok(()),
            level => self.make_dirty_room_at(level, offset, wait),
        }
    }

    #[cold]
    fn make_dirty_room_at(
        &self,
        mut level: DirtyLevel,
        offset: u64,
        wait: Wait,
    ) -> Result<(), FileError> {
        let own = self.id.group.id();
        let mut flushes = FLUSHES;
        loop {
            match level {
                DirtyLevel::Low => break,
                DirtyLevel::Background => {
                    self.cache.want_flush();
                    break;
                }
                _ if wait == Wait::No => {
                    self.cache.want_flush();
                    return Err(self.would_block(offset));
                }
                DirtyLevel::Hard | DirtyLevel::Owed(_) => {}
            }
            let before = self.pool.flushes();
            if self.write_some() > 0 || self.clean_some_of(own, level) {
                level = self.dirty_level();
                continue;
            }
            if self.id.write_order != WriteOrder::Background
                && let Some(error) = self.held_error()
            {
                return Err(error);
            }
            if let Some(error) = self.cache.unwritten_error(own) {
                return Err(error);
            }
            let DirtyLevel::Owed(group) = level else {
                // Other threads are writing, so the group's limit decides.
                break;
            };
            self.pool.want_flush();
            if flushes == 0 || !self.pool.wait_for_flush(before, FLUSH_WAIT) {
                let pages = PageCount(self.block_pages());
                let reason = LimitReason::Unwritten;
                return Err(self.pool.limit_error(group, pages, reason).into());
            }
            flushes -= 1;
            level = self.dirty_level();
        }
        Ok(())
    }

    /// Writes some blocks of another file that `own` or a group below it pays for. If there are
    /// none, and memory is owed to other groups, syncs these files and this one. Returns whether
    /// that helped.
    fn clean_some_of(&self, own: GroupId, level: DirtyLevel) -> bool {
        let files = self.cache.unwritten_files(own);
        let others = files
            .iter()
            .filter(|file| !std::ptr::eq(&***file, self) && file.may_call_unasked());
        if others.clone().any(|file| file.write_some() > 0) {
            return true;
        }
        if !matches!(level, DirtyLevel::Owed(_)) {
            return false;
        }
        let before = self.cache.unwritten_pages(own);
        self.sync_for_room();
        others.for_each(|file| file.sync_for_room());
        self.cache.unwritten_pages(own) < before
    }
}
