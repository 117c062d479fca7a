//! Syncs a file: writes its dirty blocks, waits for the writes of other threads, and syncs the
//! store.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::dirty::index::{WriteReason, WriteRules};
use crate::cache::dirty::marks::rules;
use crate::cache::dirty::punch::punch_again;
use crate::cache::dirty::sync::{sync_store, take_doubted_back};
use crate::cache::dirty::write_depth::write_range;
use crate::cache::dirty::writeback::RunEnd;
use crate::cache::errors::{FileError, HeldReason};
use crate::cache::map::mappers::Revoke;
use crate::cache::wait::Wait;
use crate::store::{FileAccess, SyncWhat};
use crate::sync::failpoint;

/// Writes the blocks in `blocks` that are dirty now, waits for other threads' writes in `blocks`,
/// and repeats those that failed. Then, if `what` is given, makes the store durable. Failures are
/// recorded in the error sequence. Returns an error if the write order holds a block back, if the
/// file is closed, or if [`FileCore::check_not_reentrant`] returns one. Does nothing for a file
/// that is open read-only.
pub(crate) fn sync_blocks(
    core: &FileCore,
    blocks: Range<u64>,
    what: Option<SyncWhat>,
) -> Result<(), FileError> {
    if core.id.access == crate::store::FileAccess::ReadOnly {
        return Ok(());
    }
    core.check_not_reentrant()?;
    // A change by another process does not stop the sync: it is reported to each handle.
    let _unanswered = core.ask_version();
    // The order matters: repeating a punch may put blocks in doubt that were written into its
    // range.
    punch_again(core);
    take_doubted_back(core, Wait::Yes);
    // The released barrier is read once: blocks released from here on may be written too late for
    // this sync.
    let rules = rules(core, WriteReason::Sync);
    let before = core.dirty().progress();
    let mut unwritten = before.unwritten + write_dirty_now(core, &blocks).failed;
    let put_off = core.dirty().was_put_off(before);
    if put_off {
        failpoint!(PutOff);
        // A cut may have put off writes. Once the lock is held, that cut has ended and no other can
        // begin, so the writes below are not put off again.
        let _steady = core.locks.shared();
        unwritten += write_dirty_now(core, &blocks).failed;
    }
    // `held` is computed before the wait for other threads' writes. So a block that is not dirty at
    // this point will have been written once those writes have ended.
    let mut held = held_in(core, blocks.clone(), &rules);
    failpoint!(OwnWritten);
    wait_written(core, blocks.clone());
    failpoint!(OthersWritten);
    if core.dirty().progress().unwritten != unwritten {
        // Other threads' failed writes are repeated: those threads may have given up in cases in
        // which a sync does not.
        write_dirty_now(core, &blocks);
        held = held_in(core, blocks.clone(), &rules);
        failpoint!(OwnWritten);
        wait_written(core, blocks);
    }
    if let Some(what) = what {
        sync_store(core, what)?;
    }
    held.map_or(Ok(()), Err)
}

/// Writes the blocks in `blocks` that are dirty now. Blocks appended later are left out: they could
/// be appended as fast as they are written, and the sync would not end.
fn write_dirty_now(core: &FileCore, blocks: &Range<u64>) -> RunEnd {
    let end = core.dirty().last().map_or(0, |last| last + 1);
    let blocks = blocks.start..blocks.end.min(end);
    write_range(core, blocks, WriteReason::Sync, Wait::Yes, u64::MAX)
}

/// Returns the error for a writer if some dirty blocks of the file are held back.
pub(crate) fn held_error(core: &FileCore) -> Option<FileError> {
    held_in(core, 0..u64::MAX, &rules(core, WriteReason::Pressure))
}

/// Returns the error for a caller if some dirty blocks in `blocks` are held back.
fn held_in(core: &FileCore, blocks: Range<u64>, rules: &WriteRules) -> Option<FileError> {
    let held = core.dirty().held(blocks, rules);
    held.map(|held| held_back(core, held))
}

/// Returns the error for a number of blocks that are held back.
pub(crate) fn held_back(core: &FileCore, (blocks, reason): (u64, HeldReason)) -> FileError {
    FileError::Held {
        file: core.id.name.clone(),
        dirty: blocks << core.block_shift(),
        reason,
    }
}

/// Waits until every write of a block in `blocks` that is under way now has ended.
pub(crate) fn wait_written(core: &FileCore, blocks: Range<u64>) {
    let mut dirty = core.dirty();
    let through = dirty.progress().writes;
    while dirty.is_writing(blocks.clone(), through) {
        failpoint!(Awaiting);
        dirty = core.writes.write_ended.wait(dirty);
    }
}

/// Makes stores through mappings take the slow path again, so that they carry the current barrier
/// number. The caller has set the number, and has no block locked.
///
/// A fault marks its block with the number. Later it makes the page writable, in a section in which
/// it checks the number again. A section that does not see the new number began before the first
/// grace period. So it makes its page writable before that period ends, and the right to store is
/// revoked afterwards. A mapper that is not in the list yet makes no page writable until it is, and
/// then sees the new number.
pub(crate) fn restamp_mappings(core: &FileCore) {
    if !core.mappers.is_empty() {
        core.grace();
        core.mappers.revoke(0..u64::MAX, Revoke::Write);
        core.grace();
    }
}

/// Returns the result of a sync of these blocks if the sync would have nothing to do. Otherwise
/// returns "would block".
pub(crate) fn try_sync_blocks(
    core: &FileCore,
    blocks: Range<u64>,
    what: SyncWhat,
) -> Result<(), FileError> {
    if core.id.access == FileAccess::ReadOnly {
        return Ok(());
    }
    core.check_not_reentrant()?;
    let rules = rules(core, WriteReason::Sync);
    // `first` and `held` are read under one lock. Otherwise, blocks released between the two reads
    // could be written by other threads, and not be durable.
    let (first, held) = {
        let dirty = core.dirty();
        let first = dirty.first_to_sync(blocks.clone(), &rules);
        (first, dirty.held(blocks.clone(), &rules))
    };
    if let Some(block) = first {
        return Err(core.would_block_in(block));
    }
    if core.blocks.extents.lock().punched.has_lost() {
        return Err(core.would_block_in(blocks.start));
    }
    // The changes are checked last: a write that ended before this check has already counted its
    // change.
    if !core.writes.syncs.has_covered_all(what) {
        return Err(core.would_block_in(blocks.start));
    }
    held.map_or(Ok(()), |held| Err(held_back(core, held)))
}
