//! The dirty limits of groups: writers over them write back themselves.

use crate::cache::core::FileCore;
use crate::cache::dirty::index::WriteOrder;
use crate::cache::errors::FileError;
use crate::cache::wait::Wait;

/// A group's dirty pages are written in the background from this part of its limit on.
const BACKGROUND_PART: u64 = 5;
/// Writers write themselves from this part on, and are refused if nothing can be written.
const HARD_PART: u64 = 2;

/// How much of a group is dirty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum DirtyLevel {
    /// Blocks are written when they are old enough.
    Low,
    /// Blocks of any age are written in the background.
    Background,
    /// Writers make room themselves.
    Hard,
}

impl FileCore {
    /// How near the groups that pay for the file are to their dirty limits: the nearest counts.
    #[inline]
    fn dirty_level(&self) -> DirtyLevel {
        let mut nearest = DirtyLevel::Low;
        for group in &self.id.groups {
            let Some(max) = self.pool.groups.max(*group) else {
                continue;
            };
            let dirty = self.cache.dirty_pages(*group).0;
            if dirty * BACKGROUND_PART > max.0 {
                nearest = nearest.max(match dirty * HARD_PART > max.0 {
                    true => DirtyLevel::Hard,
                    false => DirtyLevel::Background,
                });
            }
        }
        nearest
    }

    /// Whether some group has more dirty pages than are left to age.
    pub(crate) fn has_too_much_dirty(&self) -> bool {
        self.dirty_level() > DirtyLevel::Low
    }

    /// How many of `wanted` blocks may become dirty before the groups are at their hard limit; at
    /// least one, for which [`FileCore::make_dirty_room`] was asked.
    pub(crate) fn dirty_room(&self, wanted: u64) -> u64 {
        let rooms = self.id.groups.iter().filter_map(|group| {
            let most = self.pool.groups.max(*group)?.0 / HARD_PART;
            let dirty = self.cache.dirty_pages(*group).0;
            Some((most.saturating_sub(dirty) >> self.id.order) + 1)
        });
        rooms.min().map_or(wanted, |room| room.min(wanted))
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
        loop {
            match level {
                DirtyLevel::Low => break,
                DirtyLevel::Background => {
                    self.cache.want_flush();
                    break;
                }
                DirtyLevel::Hard if wait == Wait::No => {
                    self.cache.want_flush();
                    return Err(self.would_block(offset));
                }
                DirtyLevel::Hard => {}
            }
            let written = self.write_some();
            if written > 0 || self.cache.write_some_of(&self.id.groups, self) > 0 {
                level = self.dirty_level();
                continue;
            }
            if self.id.write_order != WriteOrder::Background
                && let Some(error) = self.held_error()
            {
                return Err(error);
            }
            if let Some(error) = self.cache.unwritten_error(&self.id.groups) {
                return Err(error);
            }
            // Others are writing: the group's limit decides.
            break;
        }
        Ok(())
    }
}
