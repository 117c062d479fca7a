//! Punches that a failed sync may undo (P18), and how they are made again.
//!
//! A store may punch by writing zeros, and a sync that fails may drop those. For a punched block
//! the cache keeps nothing, so it notes the range. A noted block that is not cached is a hole,
//! whatever the store says.
//!
//! - *Emptied*: the store has answered a punch. The number of the next sync is noted with it. A
//!   good sync that began since ends the state; a failed sync makes it lost.
//! - *Lost*: a sync failed, perhaps beside the punch, or a write into an emptied block may have
//!   failed half-way. Punching again makes it emptied.
//!
//! Two events end both states: the store accepts a write of the block (from then on it is the
//! cache's to keep), or a cut takes the block off the file. A file has [`MOST`] ranges at most when
//! a punch begins. How a lost punch is made again, and what writes do to a range, is in
//! `docs/protocols/durability.md`.
//!
//! Nothing is noted for a store that keeps what it has accepted (`Accepted::Kept`), nor are
//! lengths: it is a rule of [`Store::set_len`](crate::store::Store::set_len) that a failed sync
//! does not undo them.

use std::ops::Range;

use crate::cache::dirty::runs::Runs;

/// The most ranges that are noted for a file when a punch begins.
const MOST: usize = 256;

/// The blocks that the store was told to punch and no sync has covered. Kept with the file's
/// extents, under their mutex.
#[derive(Debug, Default)]
pub(crate) struct Punched {
    /// Blocks that are holes in the store, if no sync fails, with the number of syncs that had
    /// begun.
    emptied: Runs<u64>,
    /// Blocks that a failed sync may have brought back.
    lost: Runs<()>,
    /// Syncs begun.
    begun: u64,
    /// Syncs failed.
    pub(crate) failed: u64,
}

impl Punched {
    /// Whether the block is a hole if it is not cached.
    pub(crate) fn contains(&self, block: u64) -> bool {
        self.emptied.contains(block) || self.lost.contains(block)
    }

    /// The end of the range that has the block.
    pub(crate) fn end_of(&self, block: u64) -> Option<u64> {
        let emptied = self.emptied.run_end(block);
        emptied.or_else(|| self.lost.run_end(block))
    }

    /// Whether one of the blocks is noted.
    pub(crate) fn meets(&self, blocks: Range<u64>) -> bool {
        self.emptied.runs_in(blocks.clone()).next().is_some() || self.is_lost_in(blocks)
    }

    /// Whether one of the blocks has to be punched again.
    pub(crate) fn is_lost_in(&self, blocks: Range<u64>) -> bool {
        self.lost.runs_in(blocks).next().is_some()
    }

    /// Whether any block has to be punched again.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// The parts of a range that have to be punched again.
    pub(crate) fn lost_in(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        self.lost.runs_in(blocks).map(|(run, ())| run).collect()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.emptied.runs() + self.lost.runs() >= MOST
    }

    /// The store has punched blocks; the call began when `failed` syncs had failed.
    pub(crate) fn note(&mut self, blocks: Range<u64>, failed: u64) {
        self.forget(blocks.clone());
        match self.failed == failed {
            true => self.emptied.note_run(blocks, self.begun),
            // The order of punch and failure is unknown.
            false => self.lost.note_run(blocks, ()),
        }
    }

    /// The blocks have gone from the file, or are the cache's to keep.
    pub(crate) fn forget(&mut self, blocks: Range<u64>) {
        self.emptied.remove_all(blocks.clone());
        self.lost.remove_all(blocks);
    }

    /// The store has accepted a write to blocks; false if they are to be punched again all the
    /// same.
    #[must_use]
    pub(crate) fn written(&mut self, blocks: Range<u64>) -> bool {
        self.emptied.remove_all(blocks.clone());
        if self.lost.runs() >= MOST && self.is_lost_in(blocks.clone()) {
            return false;
        }
        self.lost.remove_all(blocks);
        true
    }

    /// A write to blocks has failed, and the store may have a part of it.
    pub(crate) fn written_in_part(&mut self, blocks: Range<u64>) {
        let parts: Vec<_> = self.emptied.runs_in(blocks).collect();
        for (part, _) in parts {
            self.forget(part.clone());
            self.lost.note_run(part, ());
        }
    }

    /// A sync begins. Returns its number, for [`Punched::synced`].
    pub(crate) fn begin_sync(&mut self) -> u64 {
        self.begun += 1;
        self.begun - 1
    }

    /// The sync has succeeded.
    pub(crate) fn synced(&mut self, through: u64) {
        self.emptied.retain(|number| number > through);
    }

    /// A sync has failed.
    pub(crate) fn sync_failed(&mut self) {
        self.failed += 1;
        for (blocks, _) in std::mem::take(&mut self.emptied).all() {
            self.lost.note_run(blocks, ());
        }
    }

    /// Checks the entries for a file of `blocks` blocks at rest.
    pub(crate) fn validate(&self, blocks: u64) {
        let lost = self.lost.all().map(|(run, ())| run);
        let emptied = self.emptied.all().map(|(run, _)| run);
        for run in lost.chain(emptied) {
            assert!(run.end <= blocks, "P18: {run:?} is noted past the end");
        }
        let is_lost = |(run, _): (Range<u64>, u64)| self.is_lost_in(run);
        assert!(!self.emptied.all().any(is_lost), "P18: noted twice");
    }
}
