//! The record of punches that a failed sync may undo (P18), and that must then be repeated.
//!
//! A store may punch by writing zeros, and a sync that fails may drop those zeros. The cache keeps
//! nothing for a punched block, so it notes the range here. A noted block that is not cached is a
//! hole, whatever the store says.
//!
//! - *Emptied*: the store has carried out a punch. The number of the next sync is noted with the
//!   block. If that sync or a later one succeeds, the state ends. If a sync fails, the block
//!   becomes lost.
//! - *Lost*: a sync failed, perhaps concurrently with the punch, or a write into an emptied block
//!   may have failed half-way. Punching again makes the block emptied.
//!
//! Two events end either state: the store accepts a write of the block (from then on the cache
//! keeps the block until a sync), or a cut removes the block from the file. A file has at most
//! [`MOST`] ranges when a punch begins. How a lost punch is repeated, and how writes change a
//! range, is in `docs/protocols/durability.md`.
//!
//! Nothing is noted for a store that keeps what it has accepted (`Accepted::Kept`). Changes of
//! length are not noted either: by the contract of
//! [`Store::set_len`](crate::store::Store::set_len), a failed sync does not undo them.

use std::ops::Range;

use crate::cache::dirty::runs::Runs;

/// The number of recorded ranges at which the record is full: a sync has to empty it before another
/// punch begins.
const MOST: usize = 256;

/// The blocks that the store was told to punch and that no sync has covered. Kept with the file's
/// extents, under their mutex.
#[derive(Debug, Default)]
pub(crate) struct Punched {
    /// Blocks that are holes in the store unless a sync fails, each with the number of syncs that
    /// had begun when it was noted.
    emptied: Runs<u64>,
    /// Blocks that a failed sync may have brought back.
    lost: Runs<()>,
    /// The number of syncs that have begun.
    begun: u64,
    /// The number of syncs that have failed.
    pub(crate) failed: u64,
}

impl Punched {
    /// Whether the block is in the record. Such a block is a hole as long as it is not cached.
    pub(crate) fn contains(&self, block: u64) -> bool {
        self.emptied.contains(block) || self.lost.contains(block)
    }

    /// Returns the end of the recorded range that contains the block.
    pub(crate) fn end_of(&self, block: u64) -> Option<u64> {
        let emptied = self.emptied.run_end(block);
        emptied.or_else(|| self.lost.run_end(block))
    }

    /// Whether any of the blocks is in the record.
    pub(crate) fn meets(&self, blocks: Range<u64>) -> bool {
        self.emptied.first_in(blocks.clone()).is_some() || self.is_lost_in(blocks)
    }

    /// Whether any of the blocks has to be punched again.
    pub(crate) fn is_lost_in(&self, blocks: Range<u64>) -> bool {
        self.lost.first_in(blocks).is_some()
    }

    /// Whether any block has to be punched again.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns the parts of a range that have to be punched again, run by run.
    pub(crate) fn lost_in(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        self.lost.runs_in(blocks).map(|(run, ())| run).collect()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.emptied.runs() + self.lost.runs() >= MOST
    }

    /// Notes that the store has punched blocks. The call began when `failed` syncs had failed.
    pub(crate) fn note(&mut self, blocks: Range<u64>, failed: u64) {
        self.forget(blocks.clone());
        match self.failed == failed {
            true => self.emptied.note_run(blocks, self.begun),
            // A sync has failed meanwhile, perhaps after the punch.
            false => self.lost.note_run(blocks, ()),
        }
    }

    /// Removes blocks that are no longer in the file, or that the cache keeps now.
    pub(crate) fn forget(&mut self, blocks: Range<u64>) {
        self.emptied.remove_all(blocks.clone());
        self.lost.remove_all(blocks);
    }

    /// Notes that the store has accepted a write to blocks. Returns false if some of them must
    /// still be punched again, because the record is too full for a range to be split.
    #[must_use]
    pub(crate) fn written(&mut self, blocks: Range<u64>) -> bool {
        self.emptied.remove_all(blocks.clone());
        if self.lost.runs() >= MOST && self.is_lost_in(blocks.clone()) {
            return false;
        }
        self.lost.remove_all(blocks);
        true
    }

    /// Notes that a write to blocks has failed, and that the store may have a part of it.
    pub(crate) fn written_in_part(&mut self, blocks: Range<u64>) {
        let parts: Vec<_> = self.emptied.runs_in(blocks).collect();
        for (part, _) in parts {
            self.forget(part.clone());
            self.lost.note_run(part, ());
        }
    }

    /// Begins a sync. Returns its number, for [`Punched::synced`].
    pub(crate) fn begin_sync(&mut self) -> u64 {
        self.begun += 1;
        self.begun - 1
    }

    /// Notes that the sync with this number has succeeded.
    pub(crate) fn synced(&mut self, through: u64) {
        self.emptied.retain(|number| number > through);
    }

    /// Notes that a sync has failed.
    pub(crate) fn sync_failed(&mut self) {
        self.failed += 1;
        for (blocks, _) in std::mem::take(&mut self.emptied).all() {
            self.lost.note_run(blocks, ());
        }
    }
}

#[cfg(any(test, feature = "test-util"))]
#[path = "tests/punched.rs"]
mod validate;
