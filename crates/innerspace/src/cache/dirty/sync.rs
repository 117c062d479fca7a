//! Makes the store durable, and handles what a failed sync may have lost (P18).
//!
//! A block that was written and not synced since is kept in memory although it is clean: eviction
//! passes it over, or syncs first. A sync that succeeds releases the blocks accepted before it
//! began. A sync that fails leaves all accepted blocks in doubt. They become dirty and are written
//! again. The failure is reported to every handle, even by a later sync that had waited for the
//! failed one and succeeds. For a punch there is no block to keep: it is noted, and made again
//! ([`punched`](crate::cache::dirty::punched)). The argument is in `docs/protocols/durability.md`.
//!
//! `sync_turns` makes sure that syncs of a file run one at a time.

use std::io;
use std::ops::Range;
use std::time::Duration;

use crate::cache::core::FileCore;
use crate::cache::dirty::index::{Dirty, WriteReason};
use crate::cache::dirty::sync_turns::Running;
use crate::cache::dirty::writeback::LockMode;
use crate::cache::errors::{FileError, StoreAction, store_panicked};
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::{Get, Got};
use crate::store::FileAccess;
use crate::store::{Accepted, SyncWhat};
use crate::sync::failpoint;
use crate::units::FrameId;

/// How long eviction waits for a sync that another thread began. The bound is for stores that hang.
const OTHERS_WAIT: Duration = Duration::from_millis(500);

/// A call of the store that makes accepted blocks durable. If this is dropped, the call has failed,
/// or, without an error, panicked.
struct Unsure<'f> {
    file: &'f FileCore,
    error: Option<io::Error>,
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        if self.file.id.accepted == Accepted::UntilSync {
            // Blocks accepted since the sync began are put in doubt as well: the store may have
            // dropped any of them.
            let mut dirty = self.file.dirty();
            self.file.list_flushable(&mut dirty);
            dirty.doubt_accepted();
            self.file.count_behind(&mut dirty);
            drop(dirty);
            self.file.blocks.extents.lock().punched.sync_failed();
        }
        let error = self.error.take().unwrap_or_else(store_panicked);
        let error = self.file.store_error(StoreAction::Sync, 0, 0, error);
        self.file.writes.errors.record(error);
    }
}

impl FileCore {
    /// Returns the result of a sync of these blocks if it has nothing to do, and otherwise "would
    /// block".
    pub(crate) fn try_sync_blocks(
        &self,
        blocks: Range<u64>,
        what: SyncWhat,
    ) -> Result<(), FileError> {
        if self.id.access == FileAccess::ReadOnly {
            return Ok(());
        }
        self.check_not_reentrant()?;
        let rules = self.rules(WriteReason::Sync);
        // Both are read under one lock: blocks released between two locks could then be written by
        // other threads, and not be durable.
        let (first, held) = {
            let dirty = self.dirty();
            let first = dirty.first_to_sync(blocks.clone(), &rules);
            (first, dirty.held(blocks.clone(), &rules))
        };
        if let Some(block) = first {
            return Err(self.would_block_in(block));
        }
        if self.blocks.extents.lock().punched.has_lost() {
            return Err(self.would_block_in(blocks.start));
        }
        // Checked last: a write that ended before this has noted its change.
        if !self.writes.syncs.has_covered_all(what) {
            return Err(self.would_block_in(blocks.start));
        }
        held.map_or(Ok(()), |held| Err(self.held(held)))
    }

    /// Makes accepted blocks durable. A failure is entered in the error sequence, and blocks that
    /// it leaves in doubt become dirty again. The caller has no block locked.
    pub(crate) fn sync_store(&self, what: SyncWhat) -> Result<(), FileError> {
        if let Some(running) = self.writes.syncs.begin(what, None) {
            self.run_sync(running, what, LockMode::Sleep)?;
        }
        Ok(())
    }

    fn run_sync(
        &self,
        mut running: Running<'_>,
        what: SyncWhat,
        mode: LockMode,
    ) -> Result<(), FileError> {
        let store = self.store()?;
        let through = self.dirty().last_acceptance();
        let punched = self.blocks.extents.lock().punched.begin_sync();
        let changes = self.writes.syncs.changes();
        let mut unsure = Unsure {
            file: self,
            error: None,
        };
        let result = {
            let _call = self.store_change();
            store.sync(what)
        };
        match result {
            Ok(()) => {
                std::mem::forget(unsure);
                let mut dirty = self.dirty();
                dirty.synced(through);
                self.count_behind(&mut dirty);
                drop(dirty);
                self.blocks.extents.lock().punched.synced(punched);
                running.good = Some((what, changes));
            }
            Err(error) => {
                unsure.error = Some(error);
                // The failure is recorded before other threads sync: their syncs may succeed, and
                // they have to report it.
                drop(unsure);
                drop(running);
                failpoint!(SyncFailed);
                self.take_doubted_back(mode);
            }
        }
        Ok(())
    }

    /// Makes blocks that a failed sync left in doubt dirty again. With [`LockMode::Try`], blocks
    /// that are locked stay in doubt.
    pub(crate) fn take_doubted_back(&self, mode: LockMode) {
        if self.id.accepted == Accepted::Kept {
            return;
        }
        let get = match mode {
            LockMode::Sleep => Get::LOCK,
            LockMode::Try => Get::LOCK | Get::NOWAIT,
        };
        let doubted = self.dirty().doubted();
        failpoint!(DoubtListed);
        for block in doubted.into_iter().flatten() {
            // If this fails, the block was removed from the file and is no longer in doubt, or
            // another thread has its lock.
            if let Ok(Got::Locked(locked)) = self.get_page(block, get) {
                // Another thread may have made the block dirty again, or another block may be in
                // its place. The answer is only stable under the lock.
                if !self.dirty().is_doubted(block) {
                    continue;
                }
                // The write order does not hold these bytes back: the store already had them.
                let entry = Dirty {
                    barrier: 0,
                    ..self.dirty_entry()
                };
                self.mark_dirty_as(entry, block, locked.frame());
                let mut dirty = self.dirty();
                dirty.settle_doubt(block);
                self.count_behind(&mut dirty);
            }
        }
    }

    /// Removes blocks from `locked` that are clean, but of which the cache has the only reliable
    /// copy. All of them are stable.
    pub(crate) fn retain_synced(&self, locked: &mut Vec<Locked<'_>>) {
        if self.id.accepted == Accepted::UntilSync {
            let dirty = self.dirty();
            locked.retain(|one| !dirty.is_unsynced(one.block()));
        }
    }

    /// Makes the sync that another thread requested because it could not make it itself. Called by
    /// the service, which does not wait long for other syncs.
    pub(crate) fn sync_if_wanted(&self) -> Result<(), FileError> {
        if !self.writes.syncs.is_wanted() {
            return Ok(());
        }
        if !self.may_call_unasked() {
            self.cache.want_syncs();
            return Ok(());
        }
        self.writes.syncs.take_wanted();
        match self.writes.syncs.begin(SyncWhat::Data, Some(OTHERS_WAIT)) {
            Some(running) => self.run_sync(running, SyncWhat::Data, LockMode::Try),
            None => Ok(()),
        }
    }

    /// Syncs before frames are evicted, if some of them are accepted and not synced. A thread that
    /// may not call the store requests a background sync instead, and gets false.
    pub(crate) fn sync_before_eviction(&self, frames: &[FrameId], may_call: bool) -> bool {
        if self.id.accepted == Accepted::Kept {
            return true;
        }
        let is_unsynced = {
            let dirty = self.dirty();
            frames.iter().any(|frame| {
                let meta = self.frames().meta(*frame);
                meta.owner() == self.id.owner.0 && dirty.is_unsynced(meta.index())
            })
        };
        if is_unsynced && may_call {
            self.take_doubted_back(LockMode::Try);
            self.sync_for_room();
        } else if is_unsynced {
            self.writes.syncs.want();
            self.cache.want_syncs();
        }
        !is_unsynced || may_call
    }

    /// Makes written blocks evictable by a sync. Does not wait long for syncs of other threads.
    pub(crate) fn sync_for_room(&self) {
        if self.id.accepted == Accepted::Kept {
            return;
        }
        if let Some(running) = self.writes.syncs.begin(SyncWhat::Data, Some(OTHERS_WAIT)) {
            // The store of a closed file is gone: there is nothing to sync, and nothing to evict.
            let _ = self.run_sync(running, SyncWhat::Data, LockMode::Try);
        }
    }
}
