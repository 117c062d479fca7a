//! Makes room for a writer that has reached a dirty limit: see `limits`.

use std::time::Duration;

use crate::cache::core::FileCore;
use crate::cache::dirty::flush::write_some;
use crate::cache::dirty::index::WriteOrder;
use crate::cache::dirty::limits::{DirtyLevel, dirty_level};
use crate::cache::dirty::sync::sync_for_room;
use crate::cache::dirty::sync_file::held_error;
use crate::cache::errors::FileError;
use crate::cache::wait::Wait;
use crate::group::{GroupId, LimitReason};
use crate::units::PageCount;

/// How long a writer waits for one background flush, and for how many flushes it waits at most.
const FLUSH_WAIT: Duration = Duration::from_millis(500);
const FLUSHES: u32 = 3;

/// Makes room for one more dirty block. A writer over the limit writes blocks back itself. If no
/// block can be written, the writer is refused in three cases: the write order holds blocks back, a
/// store keeps failing, or more unwritten pages would take memory owed to other groups (P25).
///
/// With [`Wait::No`], a writer at the limit gets "would block", and another thread is asked to
/// write.
#[inline]
pub(crate) fn make_dirty_room(core: &FileCore, offset: u64, wait: Wait) -> Result<(), FileError> {
    match dirty_level(core) {
        DirtyLevel::Low => Ok(()),
        level => make_dirty_room_at(core, level, offset, wait),
    }
}

#[cold]
fn make_dirty_room_at(
    core: &FileCore,
    mut level: DirtyLevel,
    offset: u64,
    wait: Wait,
) -> Result<(), FileError> {
    let own = core.id.group.id();
    let mut flushes = FLUSHES;
    loop {
        match level {
            DirtyLevel::Low => break,
            DirtyLevel::Background => {
                core.cache.want_flush();
                break;
            }
            _ if wait == Wait::No => {
                core.cache.want_flush();
                return Err(core.would_block(offset));
            }
            DirtyLevel::Hard | DirtyLevel::Owed(_) => {}
        }
        let before = core.pool.background.flushes();
        if write_some(core) > 0 || clean_some_of(core, own, level) {
            level = dirty_level(core);
            continue;
        }
        if core.id.write_order != WriteOrder::Background
            && let Some(error) = held_error(core)
        {
            return Err(error);
        }
        if let Some(error) = core.cache.unwritten_error(own) {
            return Err(error);
        }
        let DirtyLevel::Owed(group) = level else {
            // Other threads may be writing. So the writer continues, and only the limit of its
            // group can refuse it.
            break;
        };
        core.pool.background.want_flush();
        if flushes == 0 || !core.pool.background.wait_for_flush(before, FLUSH_WAIT) {
            let pages = PageCount(core.block_pages());
            let reason = LimitReason::Unwritten;
            return Err(core.pool.limit_error(group, pages, reason).into());
        }
        flushes -= 1;
        level = dirty_level(core);
    }
    Ok(())
}

/// Writes some blocks of another file for which `own` or a group below it pays, and whose store
/// this thread may call. If no blocks can be written, and the level is [`DirtyLevel::Owed`], syncs
/// these files and this one. Returns whether blocks were written, or a sync left fewer unwritten
/// pages.
fn clean_some_of(core: &FileCore, own: GroupId, level: DirtyLevel) -> bool {
    let files = core.cache.unwritten_files(own);
    let others = files
        .iter()
        .filter(|file| !std::ptr::eq(&***file, core) && file.may_call_unasked());
    if others.clone().any(|file| write_some(file) > 0) {
        return true;
    }
    if !matches!(level, DirtyLevel::Owed(_)) {
        return false;
    }
    let before = core.cache.unwritten_pages(own);
    sync_for_room(core);
    others.for_each(|file| sync_for_room(file));
    core.cache.unwritten_pages(own) < before
}
