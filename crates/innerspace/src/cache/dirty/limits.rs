//! The dirty limits of groups: writers over them write back themselves, and data that cannot be
//! written takes nothing that other groups are owed.
//!
//! **What is owed.** A group's `min` is memory that it gets when it wants it. Clean pages of others
//! are evicted for it; what others have not written, or not synced, is not. So at each group above
//! a file, all that is unwritten there and not inside the `min` of the group right below that it
//! counts for stays within what the group has beside the sum of those `min`. Of what is inside,
//! each group keeps another from nothing but its own. So whatever its neighbours' stores do, a
//! group inside its `min` finds free or clean pages, or its own.
//!
//! A writer at that limit writes and syncs the files of its own group and of those below it. It
//! calls no store of others: it waits a while for the threads of the memory, which do, and then is
//! refused. Each thread may pass the limit by what it writes in one step.

use std::time::Duration;

use crate::cache::core::FileCore;
use crate::cache::dirty::index::WriteOrder;
use crate::cache::errors::FileError;
use crate::cache::wait::Wait;
use crate::group::{GroupId, LimitReason};
use crate::units::PageCount;

/// A group's dirty pages are written in the background from this part of its limit on.
const BACKGROUND_PART: u64 = 5;
/// Writers write themselves from this part on, and are refused if nothing can be written.
const HARD_PART: u64 = 2;

/// How long a writer waits for a flush of the background, and how often one that brings nothing.
const FLUSH_WAIT: Duration = Duration::from_millis(500);
const FLUSHES: u32 = 3;

/// How much of a group is dirty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum DirtyLevel {
    /// Blocks are written when they are old enough.
    Low,
    /// Blocks of any age are written in the background.
    Background,
    /// Writers make room themselves.
    Hard,
    /// More would take what other groups are owed; this group is the one that has too much.
    Owed(GroupId),
}

impl FileCore {
    /// How near the groups that pay for the file are to their dirty limits: the nearest counts.
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

    /// The level at a group; `below`: the group right below it through which the file belongs to
    /// it.
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
        // What a group has inside its `min` is not in the way of the others.
        let is_inside = |below| {
            let (_, min) = groups.protection(below);
            self.cache.dirty_pages(below).0 * HARD_PART <= min.0
        };
        match dirty * HARD_PART > max.0 && !below.is_some_and(is_inside) {
            true => DirtyLevel::Hard,
            false => DirtyLevel::Background,
        }
    }

    /// Pages that may become unwritten beside what is `owed` to the groups right below `group`:
    /// `None` if there are too many already.
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
            // Not exact where pages change meanwhile: the next writer sees it.
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

    /// How many of `wanted` blocks may become dirty before the groups are at their hard limit; at
    /// least one, for which [`FileCore::make_dirty_room`] was asked.
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

    /// Makes room for one more dirty block: a writer over the limit writes back itself, and is
    /// refused when nothing may be written (P25).
    ///
    /// Without waiting it is refused at the limit, and another thread is asked to write.
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
                // Others are writing: the group's limit decides.
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

    /// Writes something of another file that `own` or a group below it pays for; if there is
    /// nothing, and it matters at this level, syncs them and this one. Whether that helped.
    fn clean_some_of(&self, own: GroupId, level: DirtyLevel) -> bool {
        let files = self.cache.paid_by(own);
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
