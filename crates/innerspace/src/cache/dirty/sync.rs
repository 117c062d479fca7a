//! Syncs the store, and handles what a failed sync may have lost (P18).
//!
//! If the store may lose what it has accepted (`Accepted::UntilSync`), a block that was written and
//! not synced since is kept in memory although it is clean: eviction skips it, or syncs first. A
//! sync that succeeds releases the blocks accepted before it began. A sync that fails leaves all
//! accepted blocks in doubt. They become dirty and are written again. The failure is reported to
//! every handle, even if a later sync that had waited for the failed one succeeds. A punch leaves
//! no block to keep. It is noted, and repeated ([`punched`](crate::cache::dirty::punched)). The
//! argument is in `docs/protocols/durability.md`.
//!
//! `sync_turns` makes sure that syncs of a file run one at a time.

use std::time::Duration;

use crate::cache::core::FileCore;
use crate::cache::dirty::index::Dirty;
use crate::cache::dirty::marks::{dirty_entry, mark_dirty_as, publish};
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::Get;
use crate::cache::wait::Wait;
use crate::store::{Accepted, SyncWhat};
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::sync::panics::Panics;
use crate::units::FrameId;

/// How long eviction waits for a sync that another thread began. The bound is for stores that hang.
const OTHERS_WAIT: Duration = Duration::from_millis(500);

/// Makes accepted blocks durable, unless a sync by another thread has done so meanwhile. A failure
/// is recorded in the error sequence, and blocks that it leaves in doubt become dirty again. If the
/// store panics, the panic resumes once the failure is recorded, and the blocks stay in doubt.
/// Returns an error only if the file is closed. The caller has no block locked.
pub(crate) fn sync_store(core: &FileCore, what: SyncWhat) -> Result<(), FileError> {
    sync_store_as(core, what, Wait::Yes)
}

/// Like [`sync_store`]. With [`Wait::No`], waits at most [`OTHERS_WAIT`] for a sync of another
/// thread to end, and then gives up without an error. If its own sync fails, blocks that are locked
/// stay in doubt.
fn sync_store_as(core: &FileCore, what: SyncWhat, mode: Wait) -> Result<(), FileError> {
    let patience = (mode == Wait::No).then_some(OTHERS_WAIT);
    let Some(mut running) = core.writes.syncs.begin(what, patience) else {
        return Ok(());
    };
    let through = core.dirty().progress().acceptances;
    let punched = core.blocks.extents.lock().punched.begin_sync();
    let changes = core.writes.syncs.changes();
    let mut panics = Panics::default();
    let sync = || core.change_store(StoreAction::Sync, (0, 0), |store| store.sync(what));
    match core.caught(&mut panics, StoreAction::Sync, (0, 0), sync) {
        Ok(()) => {
            let mut dirty = core.dirty();
            dirty.synced(through);
            publish(core, &mut dirty);
            drop(dirty);
            core.blocks.extents.lock().punched.synced(punched);
            running.good = Some((what, changes));
        }
        Err(closed @ FileError::Closed { .. }) => return Err(closed),
        Err(error) => {
            if core.id.accepted == Accepted::UntilSync {
                // Blocks accepted since the sync began are also put in doubt: the store may have
                // dropped any of them.
                let mut dirty = core.dirty();
                dirty.doubt_accepted();
                publish(core, &mut dirty);
                drop(dirty);
                core.blocks.extents.lock().punched.sync_failed();
            }
            // The failure is recorded before another thread can sync: that thread's sync may
            // succeed, and must still report this failure.
            core.writes.errors.record(error);
            drop(running);
            panics.go_on();
            failpoint!(SyncFailed);
            take_doubted_back(core, mode);
        }
    }
    Ok(())
}

/// Marks blocks that a failed sync left in doubt as dirty again. With [`Wait::No`], those that are
/// locked stay in doubt.
pub(crate) fn take_doubted_back(core: &FileCore, mode: Wait) {
    if core.id.accepted == Accepted::Kept {
        return;
    }
    let get = Get::waiting(mode);
    let doubted = core.dirty().doubted();
    failpoint!(DoubtListed);
    for block in doubted.into_iter().flatten() {
        // If this fails, the block was removed from the file and is no longer in doubt, or another
        // thread has locked it.
        if let Ok(Some(locked)) = core.find_lock(block, get) {
            let mut dirty = core.dirty();
            // Another thread may have made the block dirty again, or a new block may have taken its
            // place. The answer is stable only under the mutex of the index.
            if dirty.settle_doubt(block) {
                // The write order does not hold these bytes back: the store already had them.
                let entry = Dirty {
                    barrier: 0,
                    ..dirty_entry(core)
                };
                mark_dirty_as(core, &mut dirty, entry, block, locked.frame());
            }
        }
    }
}

/// Removes from `locked` the blocks that the store has accepted and may still lose, or may have
/// lost. The caller ensures that all of the blocks are stable.
pub(crate) fn retain_synced(core: &FileCore, locked: &mut Vec<Locked<'_>>) {
    if core.id.accepted == Accepted::UntilSync {
        let dirty = core.dirty();
        locked.retain(|one| !dirty.is_unsynced(one.block()));
    }
}

/// Makes the sync that was requested by a thread that could not make it itself, if there is such a
/// request. Called by the service, and by jobs that flush. If this thread may not call the store
/// either, asks the service again. Returns an error only if the file is closed. Waits at most
/// [`OTHERS_WAIT`] for a sync of another thread.
pub(crate) fn sync_if_wanted(core: &FileCore) -> Result<(), FileError> {
    let wanted = &core.writes.syncs.wanted;
    if !wanted.load(Ordering::Relaxed) {
        return Ok(());
    }
    if !core.may_call_unasked() {
        core.cache.want_writes();
        return Ok(());
    }
    wanted.store(false, Ordering::Relaxed);
    sync_store_as(core, SyncWhat::Data, Wait::No)
}

/// Syncs the store before frames are evicted, if it has accepted some of their blocks and may still
/// lose them, or may have lost them. If there are such blocks and `may_call` is false, requests a
/// sync in the background instead, and returns false. Otherwise returns true, even if the sync
/// fails.
pub(crate) fn sync_before_eviction(core: &FileCore, frames: &[FrameId], may_call: bool) -> bool {
    if core.id.accepted == Accepted::Kept {
        return true;
    }
    let is_unsynced = {
        let dirty = core.dirty();
        frames.iter().any(|frame| {
            let meta = core.frames().meta(*frame);
            meta.owner() == core.id.owner.0 && dirty.is_unsynced(meta.index())
        })
    };
    if is_unsynced && may_call {
        take_doubted_back(core, Wait::No);
        sync_for_room(core);
    } else if is_unsynced {
        core.writes.syncs.wanted.store(true, Ordering::Relaxed);
        core.cache.want_writes();
    }
    !is_unsynced || may_call
}

/// If the store may lose blocks that it has accepted, syncs it, so that they can be evicted. Waits
/// at most [`OTHERS_WAIT`] for a sync of another thread.
pub(crate) fn sync_for_room(core: &FileCore) {
    if core.id.accepted == Accepted::UntilSync {
        // The store of a closed file is gone: there is nothing to sync, and nothing to evict.
        let _ = sync_store_as(core, SyncWhat::Data, Wait::No);
    }
}
