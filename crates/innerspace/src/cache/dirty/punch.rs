//! Punches blocks of the store. Repeats punches that a failed sync may have undone: see
//! [`punched`](crate::cache::dirty::punched).

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::locks::InvalidateGuard;
use crate::cache::dirty::sync::sync_store;
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::lookup::batch::lock_batch;
use crate::store::{Accepted, SyncWhat};
use crate::sync::failpoint;
use crate::sync::panics::Panics;

/// Punches blocks in the store, up to the end of the file or to `known`, an upper bound on the
/// store's length, whichever is smaller. Records them if the store may lose the punch before a
/// sync. The caller has locked the file exclusively, and the cached blocks.
pub(crate) fn punch_store(
    core: &FileCore,
    blocks: Range<u64>,
    known: u64,
    _alone: &InvalidateGuard<'_>,
) -> Result<(), FileError> {
    let start = blocks.start << core.block_shift();
    let end = (blocks.end << core.block_shift())
        .min(known)
        .min(core.size());
    if end <= start {
        return Ok(());
    }
    let failed = core.blocks.extents.lock().punched.failed;
    let (what, bytes) = (StoreAction::Punch, (start, end - start));
    let punched = core.change_store(what, bytes, |store| store.punch(start, end - start));
    failpoint!(Punched);
    punched?;
    if core.id.accepted == Accepted::UntilSync {
        let blocks = core.blocks_of(start..end);
        core.blocks.extents.lock().punched.note(blocks, failed);
    }
    Ok(())
}

/// Repeats the punches that a failed sync may have undone. Stops at the first failure, and records
/// it in the error sequence. The caller holds no lock.
pub(crate) fn punch_again(core: &FileCore) {
    if !core.blocks.extents.lock().punched.has_lost() {
        return;
    }
    let alone = core.locks.alone(&core.blocks.index);
    let mut lost = core
        .blocks
        .extents
        .lock()
        .punched
        .lost_in(0..u64::MAX)
        .into_iter();
    let mut panics = Panics::default();
    let punch = || lost.try_for_each(|run| punch_lost(core, run, &alone));
    if let Err(error) = core.caught(&mut panics, StoreAction::Punch, (0, 0), punch) {
        core.writes.errors.record(error);
    }
    panics.go_on();
}

/// Like [`punch_again`], for one range, but returns a failure instead of recording it. Locks the
/// cached blocks batch by batch.
fn punch_lost(
    core: &FileCore,
    run: Range<u64>,
    alone: &InvalidateGuard<'_>,
) -> Result<(), FileError> {
    let mut next = run.start;
    while next < run.end {
        let start = next;
        let _locked = lock_batch(core, &mut next, run.end);
        // Writes that were under way may have removed blocks from the record.
        let lost = core.blocks.extents.lock().punched.lost_in(start..next);
        for part in lost {
            // A failed sync, or a write, may have left the store longer than `stored` says.
            punch_store(core, part, u64::MAX, alone)?;
        }
    }
    Ok(())
}

/// Makes punches durable if the record of them is full. Returns an error if a failure is recorded
/// meanwhile, or if the file is closed. The caller holds no lock.
pub(crate) fn make_room_for_punch(core: &FileCore) -> Result<(), FileError> {
    if !core.blocks.extents.lock().punched.is_full() {
        return Ok(());
    }
    let failures = core.writes.errors.count();
    punch_again(core);
    sync_store(core, SyncWhat::Data)?;
    match core.writes.errors.latest() {
        Some(error) if core.writes.errors.count() != failures => Err(error),
        _ => Ok(()),
    }
}

/// Whether the store may lack bytes of the file, or has to be punched again.
pub(crate) fn has_unwritten(core: &FileCore) -> bool {
    core.dirty().last_unwritten().is_some() || core.blocks.extents.lock().punched.has_lost()
}
