//! Making the store durable, and what a failed sync may have cost (P18).
//!
//! A kernel that writes behind may drop what it accepted when it cannot write it; the sync that
//! fails says so once, and the next one succeeds. So a block that was written and not synced since
//! is kept in memory although it is clean: eviction passes it over, or syncs first. A sync that
//! succeeds releases what was accepted before it began. One that fails leaves all that was accepted
//! in doubt; what is in doubt becomes dirty again, and is written again. Every handle hears of it,
//! also by a good sync of its own that had waited for this one: what it has written may be lost. Of
//! what was punched there is no block to keep: that is noted, and punched again
//! ([`punched`](crate::cache::dirty::punched)).
//!
//! One sync of a file runs at a time: of two at once, one could take the other's error along.
//! Whoever comes meanwhile waits for the running one to end, and takes part in the next.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::time::Duration;

use crate::cache::core::FileCore;
use crate::cache::dirty::index::{Dirty, WriteReason};
use crate::cache::dirty::writeback::LockMode;
use crate::cache::errors::{FileError, StoreAction, store_panicked};
use crate::cache::file::options::FileAccess;
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::{Get, Got};
use crate::store::{Accepted, SyncWhat};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex, WaitEnd, failpoint};
use crate::units::FrameId;

/// How long eviction waits for a sync that others began: a store may hang.
const OTHERS_WAIT: Duration = Duration::from_millis(500);

/// The first is that of whoever had the store before: nobody knows whether he synced.
#[derive(Debug)]
struct Changes(AtomicU64);

impl Default for Changes {
    fn default() -> Changes {
        Changes(AtomicU64::new(1))
    }
}

/// The syncs of one file. A leaf lock, not held while the store syncs.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    state: Mutex<State>,
    ended: Condvar,
    /// Calls of the store that may have changed it, counted when they have ended; one more for
    /// those before the file was opened.
    changes: Changes,
    /// Somebody who may not call the store would evict more after a sync.
    wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    running: bool,
    /// Syncs begun so far: their numbers.
    begun: u64,
    /// The last good one.
    good: u64,
    /// The last good one of [`SyncWhat::All`].
    good_all: u64,
    /// How many changes of the store those two have covered.
    covered: u64,
    covered_all: u64,
    /// Those who wait for the running one to end.
    waiting: u32,
}

impl State {
    /// Whether a sync that began after the first `arrived` has done what is wanted.
    fn has_done(&self, what: SyncWhat, arrived: u64) -> bool {
        match what {
            SyncWhat::Data => self.good > arrived,
            SyncWhat::All => self.good_all > arrived,
        }
    }
}

/// A sync under way; dropped, it has ended, and has failed unless it was noted as good.
struct Running<'s> {
    syncs: &'s Syncs,
    number: u64,
    /// What it has made durable, and how many changes of the store came before it.
    good: Option<(SyncWhat, u64)>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.syncs.state.lock();
        state.running = false;
        if let Some((what, changes)) = self.good {
            (state.good, state.covered) = (self.number, changes);
            if what == SyncWhat::All {
                (state.good_all, state.covered_all) = (self.number, changes);
            }
        }
        drop(state);
        self.syncs.ended.notify_all();
    }
}

/// A call that may change the store, and has when this is dropped, also if it panics: before
/// anybody is told that it is over.
#[must_use = "the change is noted when this is dropped"]
pub(crate) struct Changing<'s>(&'s Syncs);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        // Release: pairs with the load of the next sync, which covers the change.
        self.0.changes.0.fetch_add(1, Ordering::Release);
    }
}

impl Syncs {
    /// Begins a sync when none is running; `None` when another did meanwhile what is wanted, or
    /// took longer than `patience`.
    fn begin(&self, what: SyncWhat, patience: Option<Duration>) -> Option<Running<'_>> {
        let mut state = self.state.lock();
        let arrived = state.begun;
        while state.running {
            state.waiting += 1;
            let end;
            (state, end) = match patience {
                None => (self.ended.wait(state), WaitEnd::Woken),
                Some(patience) => self.ended.wait_timeout(state, patience),
            };
            state.waiting -= 1;
            if end == WaitEnd::TimedOut {
                return None;
            }
        }
        if state.has_done(what, arrived) {
            return None;
        }
        state.running = true;
        state.begun += 1;
        Some(Running {
            syncs: self,
            number: state.begun,
            good: None,
        })
    }

    /// Begins a call that may change the store.
    pub(crate) fn changing(&self) -> Changing<'_> {
        Changing(self)
    }

    fn changes(&self) -> u64 {
        self.changes.0.load(Ordering::Acquire)
    }

    /// Whether a good sync has begun since the last change of the store that somebody was told of.
    fn has_covered_all(&self, what: SyncWhat) -> bool {
        let changes = self.changes();
        let state = self.state.lock();
        match what {
            SyncWhat::Data => state.covered >= changes,
            SyncWhat::All => state.covered_all >= changes,
        }
    }

    /// Those who wait for the running sync to end.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn waiting(&self) -> u32 {
        self.state.lock().waiting
    }
}

crate::sync::thread_local! {
    /// How many requests of this thread forbid I/O now.
    static NO_IO: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, eviction by this thread calls no store.
#[must_use = "the scope ends when this is dropped"]
pub(crate) struct NoIo(std::marker::PhantomData<*const ()>);

impl NoIo {
    pub(crate) fn begin() -> NoIo {
        NO_IO.with(|depth| depth.set(depth.get() + 1));
        NoIo(std::marker::PhantomData)
    }
}

impl Drop for NoIo {
    fn drop(&mut self) {
        NO_IO.with(|depth| depth.set(depth.get() - 1));
    }
}

/// A call of the store that makes durable what it has accepted. Dropped, it has failed; without an
/// error, it panicked.
struct Unsure<'f> {
    file: &'f FileCore,
    error: Option<io::Error>,
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        if self.file.accepted == Accepted::UntilSync {
            // Also what was accepted since it began: who knows when the store dropped what.
            self.file.dirty().doubt_accepted();
            self.file.extents.lock().punched.sync_failed();
        }
        let error = self.error.take().unwrap_or_else(store_panicked);
        let error = self.file.store_error(StoreAction::Sync, 0, 0, error);
        self.file.errors.record(error);
    }
}

impl FileCore {
    /// What a sync of these blocks would come to that has nothing to do; "would block" if it had.
    pub(crate) fn try_sync_blocks(
        &self,
        blocks: Range<u64>,
        what: SyncWhat,
    ) -> Result<(), FileError> {
        if self.access == FileAccess::ReadOnly {
            return Ok(());
        }
        self.check_not_reentrant()?;
        let rules = self.rules(WriteReason::Sync);
        // In one look: what is released in between may be written by others then, and not be
        // durable.
        let (first, held) = {
            let dirty = self.dirty();
            let first = dirty.first_to_sync(blocks.clone(), &rules);
            (first, dirty.held(blocks.clone(), &rules))
        };
        if let Some(block) = first {
            return Err(self.would_block_in(block));
        }
        if self.extents.lock().punched.has_lost() {
            return Err(self.would_block_in(blocks.start));
        }
        // Asked afterwards: whose write had ended before has noted it.
        if !self.syncs.has_covered_all(what) {
            return Err(self.would_block_in(blocks.start));
        }
        held.map_or(Ok(()), |held| Err(self.held(held)))
    }

    /// Makes what the store has accepted durable. A failure is left in the error sequence, and what
    /// it leaves in doubt is dirty again. No block is locked.
    pub(crate) fn sync_store(&self, what: SyncWhat) -> Result<(), FileError> {
        if let Some(running) = self.syncs.begin(what, None) {
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
        let punched = self.extents.lock().punched.begin_sync();
        let changes = self.syncs.changes();
        let mut unsure = Unsure {
            file: self,
            error: None,
        };
        let result = {
            let _call = self.store_call();
            store.sync(what)
        };
        match result {
            Ok(()) => {
                std::mem::forget(unsure);
                self.dirty().synced(through);
                self.extents.lock().punched.synced(punched);
                running.good = Some((what, changes));
            }
            Err(error) => {
                unsure.error = Some(error);
                // Before others sync: theirs may be good, and they have to hear of this one.
                drop(unsure);
                drop(running);
                failpoint!(SyncFailed);
                self.take_doubted_back(mode);
            }
        }
        Ok(())
    }

    /// Makes blocks that a failed sync left in doubt dirty again; those whose locks are not to be
    /// waited for stay in doubt.
    pub(crate) fn take_doubted_back(&self, mode: LockMode) {
        if self.accepted == Accepted::Kept {
            return;
        }
        let get = match mode {
            LockMode::Sleep => Get::LOCK,
            LockMode::Try => Get::LOCK | Get::NOWAIT,
        };
        let doubted = self.dirty().doubted();
        failpoint!(DoubtListed);
        for block in doubted.into_iter().flatten() {
            // Otherwise it was removed from the file meanwhile, and is in doubt no more; or its
            // lock is taken.
            if let Ok(Got::Locked(locked)) = self.get_page(block, get) {
                // Somebody else may have taken it back, or another block may be in its place; only
                // under the lock it stays so.
                if !self.dirty().is_doubted(block) {
                    continue;
                }
                // Nothing holds these bytes back: the store had them already.
                let entry = Dirty {
                    barrier: 0,
                    ..self.dirty_entry()
                };
                self.mark_dirty_as(entry, block, locked.frame());
                self.dirty().settle_doubt(block);
            }
        }
    }

    /// Leaves out those of locked, stable blocks that are clean and yet the only copy that can be
    /// relied on.
    pub(crate) fn retain_synced(&self, locked: &mut Vec<Locked<'_>>) {
        if self.accepted == Accepted::UntilSync {
            let dirty = self.dirty();
            locked.retain(|one| !dirty.is_unsynced(one.block()));
        }
    }

    /// Makes the sync that somebody asked for who could not make it. For the service, which does
    /// not wait long for others.
    pub(crate) fn sync_if_wanted(&self) -> Result<(), FileError> {
        if !self.syncs.wanted.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !self.may_call_unasked() {
            self.cache.want_syncs();
            return Ok(());
        }
        self.syncs.wanted.store(false, Ordering::Relaxed);
        match self.syncs.begin(SyncWhat::Data, Some(OTHERS_WAIT)) {
            Some(running) => self.run_sync(running, SyncWhat::Data, LockMode::Try),
            None => Ok(()),
        }
    }

    /// Before frames are evicted: syncs, if some of them hold what no sync has covered. A thread
    /// that may not do I/O asks for a background sync instead.
    pub(crate) fn sync_before_eviction(&self, frames: &[FrameId]) {
        if self.accepted == Accepted::Kept {
            return;
        }
        let is_unsynced = {
            let dirty = self.dirty();
            frames.iter().any(|frame| {
                let meta = self.frames().meta(*frame);
                meta.owner() == self.owner.0 && dirty.is_unsynced(meta.index())
            })
        };
        if !is_unsynced {
            return;
        }
        if NO_IO.with(Cell::get) > 0 || !self.may_call_unasked() {
            self.syncs.wanted.store(true, Ordering::Relaxed);
            return self.cache.want_syncs();
        }
        self.take_doubted_back(LockMode::Try);
        self.sync_for_room();
    }

    /// Has what is written be evictable. Does not wait long for the syncs of others.
    pub(crate) fn sync_for_room(&self) {
        if self.accepted == Accepted::Kept {
            return;
        }
        if let Some(running) = self.syncs.begin(SyncWhat::Data, Some(OTHERS_WAIT)) {
            // A closed file has no store: nothing to sync, nothing to evict either.
            let _ = self.run_sync(running, SyncWhat::Data, LockMode::Try);
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_sync_of_data_does_not_do_for_all() {
        let syncs = Syncs::default();
        let run = |what| {
            let mut running = syncs.begin(what, None).expect("nobody else syncs");
            running.good = Some((what, syncs.changes()));
        };
        let done = |what, arrived| syncs.state.lock().has_done(what, arrived);
        run(SyncWhat::All);
        let arrived = syncs.state.lock().begun;
        assert!(!done(SyncWhat::Data, arrived), "it began before");
        run(SyncWhat::Data);
        assert!(done(SyncWhat::Data, arrived));
        assert!(!done(SyncWhat::All, arrived));
        assert!(syncs.has_covered_all(SyncWhat::All), "nothing has changed");
        drop(syncs.changing());
        run(SyncWhat::Data);
        assert!(syncs.has_covered_all(SyncWhat::Data));
        assert!(!syncs.has_covered_all(SyncWhat::All));
        run(SyncWhat::All);
        assert!(done(SyncWhat::All, arrived));
        assert!(syncs.has_covered_all(SyncWhat::All));
    }
}
