//! The dirty index: which blocks of a file are dirty, which are being written, and which may be
//! written when.

use std::ops::Range;

pub(crate) use crate::cache::dirty::runs::Dirty;
use crate::cache::dirty::runs::Runs;
use crate::cache::errors::HeldReason;

/// When a file's dirty blocks go to its store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum WriteOrder {
    /// In the background: after a while, under memory pressure, and on sync.
    #[default]
    Background,
    /// Only on sync and on the last drop. New writes are refused when half of the group's limit is
    /// unwritten.
    OnSync,
    /// Like `Background`, but a block written after `set_barrier(n)` stays until
    /// `release_through(n)`.
    Ordered,
}

/// Why dirty blocks are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteReason {
    /// The flusher: blocks that have been dirty since before this tick.
    Flusher {
        /// The last tick that is old enough.
        through: u64,
    },
    /// Reclaim, or a writer over the dirty limit: any block that may go.
    Pressure,
    /// A sync, or the drop of the last handle.
    Sync,
}

/// The dirty blocks of one file by number, and those whose write is under way. Kept under one
/// mutex, which is inside the block lock and held for a few map operations: one for each run of
/// blocks with the same entry, and one for each block of a write; never one for each block of a
/// file.
///
/// At rest a block is in `dirty` exactly when its frame carries DIRTY, and in `writing` exactly
/// when it carries WRITEBACK.
#[derive(Debug, Default)]
pub(crate) struct DirtyIndex {
    dirty: Runs<Dirty>,
    /// The number of each block's write.
    writing: Runs<u64>,
    writes: u64,
    /// Blocks so far whose writes have ended without success.
    unwritten: u64,
    /// Clean blocks that the store has accepted and no sync has covered, with the number of their
    /// acceptance.
    accepted: Runs<u64>,
    acceptances: u64,
    /// Blocks that a failed sync may have dropped: to become dirty again.
    doubted: Runs<()>,
    /// No block has been dirty since before this tick.
    oldest: u64,
    /// No write of this block or one after it begins: they are being cut off.
    cut: Option<u64>,
    /// The result of [`DirtyIndex::recount_behind`].
    behind: u64,
    /// Cuts that are over.
    cuts: u64,
    /// A cut has locked the file: pages come in through it alone.
    cutting: bool,
    /// The file is being closed: only the closing thread writes the rest.
    closing: bool,
}

impl DirtyIndex {
    /// Notes a write to a block: the age of its first write and the highest barrier stay.
    pub(crate) fn insert(&mut self, block: u64, entry: Dirty) {
        self.note_age(entry);
        self.dirty.note(block, entry);
    }

    /// Notes the first writes to blocks, of which none is dirty.
    pub(crate) fn insert_run(&mut self, blocks: Range<u64>, entry: Dirty) {
        self.note_age(entry);
        self.dirty.note_run(blocks, entry);
    }

    /// Blocks are about to become dirty.
    fn note_age(&mut self, entry: Dirty) {
        self.oldest = match self.dirty.is_empty() {
            true => entry.since,
            false => self.oldest.min(entry.since),
        };
    }

    /// Forgets a block that was removed from the file.
    pub(crate) fn remove(&mut self, block: u64) -> Option<Dirty> {
        self.accepted.remove(block);
        self.doubted.remove(block);
        self.dirty.remove(block)
    }

    /// Notes that the store has accepted blocks that it may lose before a sync.
    pub(crate) fn accept(&mut self, blocks: Range<u64>) {
        self.acceptances += 1;
        self.accepted.remove_all(blocks.clone());
        self.accepted.note_run(blocks, self.acceptances);
    }

    /// The number of the latest acceptance: a sync that begins now covers those up to it.
    pub(crate) fn last_acceptance(&self) -> u64 {
        self.acceptances
    }

    /// A sync has succeeded that began when `through` was the latest acceptance.
    pub(crate) fn synced(&mut self, through: u64) {
        self.accepted.retain(|number| number > through);
    }

    /// A sync has failed: anything accepted before the failure may be gone. For a write under way,
    /// nobody knows whether the store has accepted it already.
    pub(crate) fn doubt_accepted(&mut self) {
        let accepted = std::mem::take(&mut self.accepted);
        for (blocks, _) in accepted.all().chain(self.writing.all()) {
            self.doubted.remove_all(blocks.clone());
            self.doubted.note_run(blocks, ());
        }
    }

    /// Blocks that were accepted have to be written again in any case.
    pub(crate) fn doubt(&mut self, blocks: Range<u64>) {
        self.accepted.remove_all(blocks.clone());
        self.doubted.remove_all(blocks.clone());
        self.doubted.note_run(blocks, ());
    }

    /// The blocks that must become dirty again, run by run.
    pub(crate) fn doubted(&self) -> Vec<Range<u64>> {
        self.doubted.all().map(|(blocks, ())| blocks).collect()
    }

    /// Whether a block must become dirty again.
    pub(crate) fn is_doubted(&self, block: u64) -> bool {
        self.doubted.contains(block)
    }

    /// The block is dirty again.
    pub(crate) fn settle_doubt(&mut self, block: u64) {
        self.doubted.remove(block);
    }

    /// Whether the cache has the only copy of a block that can be relied on, although it may be
    /// clean.
    pub(crate) fn is_unsynced(&self, block: u64) -> bool {
        self.accepted.contains(block) || self.doubted.contains(block)
    }

    /// The blocks of a range for which [`DirtyIndex::is_unsynced`] holds, run by run.
    pub(crate) fn unsynced(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let accepted = self.accepted.runs_in(range.clone());
        let doubted = self.doubted.runs_in(range);
        let accepted = accepted.map(|(blocks, _)| blocks);
        accepted.chain(doubted.map(|(blocks, ())| blocks))
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.dirty.contains(block)
    }

    /// Dirty blocks.
    pub(crate) fn len(&self) -> usize {
        self.dirty.len()
    }

    /// Whether some block may be dirty since this tick or before, or has to become dirty again.
    pub(crate) fn has_since(&self, tick: u64) -> bool {
        !self.doubted.is_empty() || !self.dirty.is_empty() && self.oldest <= tick
    }

    /// Blocks that are not dirty and yet stay: their write is under way, or no sync has covered it.
    /// Blocks that are dirty, too, are counted. With it, the number of the last call.
    pub(crate) fn recount_behind(&mut self) -> (u64, u64) {
        let now = self.writing.len() + self.accepted.len() + self.doubted.len();
        let before = std::mem::replace(&mut self.behind, now as u64);
        (now as u64, before)
    }

    /// Blocks whose write is under way.
    pub(crate) fn writing(&self) -> usize {
        self.writing.len()
    }

    /// The dirty blocks, run by run; and whether the store has accepted older bytes of one of them
    /// that no sync has covered.
    pub(crate) fn all_dirty(&self) -> (Vec<Range<u64>>, bool) {
        let runs: Vec<_> = self.dirty.all().map(|(blocks, _)| blocks).collect();
        let is_unsynced = |run: &Range<u64>| self.accepted.runs_in(run.clone()).next().is_some();
        let is_over_unsynced = runs.iter().any(is_unsynced);
        (runs, is_over_unsynced)
    }

    /// The highest dirty block.
    pub(crate) fn last(&self) -> Option<u64> {
        self.dirty.last()
    }

    /// The highest block that the store may not have: it is dirty, in doubt, or its write is under
    /// way.
    pub(crate) fn last_unwritten(&self) -> Option<u64> {
        self.dirty
            .last()
            .max(self.writing.last())
            .max(self.doubted.last())
    }

    /// The file is locked exclusively from now on, or no more.
    pub(crate) fn set_cutting(&mut self, cutting: bool) {
        debug_assert_ne!(self.cutting, cutting, "one thread has the file alone");
        self.cutting = cutting;
    }

    /// Whether the file is locked exclusively.
    #[inline]
    pub(crate) fn is_cutting(&self) -> bool {
        self.cutting
    }

    /// The blocks from `first` on are about to be cut off: no write of them begins until
    /// [`DirtyIndex::end_cut`]. One cut at a time.
    pub(crate) fn begin_cut(&mut self, first: u64) {
        debug_assert_eq!(self.cut, None, "whoever cuts has the file alone");
        self.cut = Some(first);
    }

    /// The cut is over: the blocks are cut off, or stay.
    pub(crate) fn end_cut(&mut self) {
        self.cut = None;
        self.cuts += 1;
    }

    /// The number of the cuts that are over.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts
    }

    /// Whether a write may have been put off for a cut since `cuts` of them were over.
    pub(crate) fn was_put_off(&self, cuts: u64) -> bool {
        self.cut.is_some() || self.cuts != cuts
    }

    /// From here on only the closing thread may begin a write.
    pub(crate) fn begin_closing(&mut self) {
        self.closing = true;
    }

    /// Whether a write for this reason may begin: nothing but the close syncs a file that is being
    /// closed.
    fn may_write(&self, reason: WriteReason) -> bool {
        !self.closing || reason == WriteReason::Sync
    }

    /// The part of a range in which writes may begin.
    fn uncut(&self, blocks: Range<u64>) -> Range<u64> {
        match self.cut {
            Some(first) => blocks.start..blocks.end.min(first).max(blocks.start),
            None => blocks,
        }
    }

    /// The first run of adjacent dirty blocks in `range`, at most `max` of them, that the rules let
    /// be written now.
    pub(crate) fn next_run(
        &mut self,
        range: Range<u64>,
        max: usize,
        rules: &WriteRules,
    ) -> Vec<u64> {
        let mut run: Vec<u64> = Vec::new();
        if matches!(rules.reason, WriteReason::Flusher { through } if through < self.oldest)
            || !self.may_write(rules.reason)
        {
            return run;
        }
        let range = self.uncut(range);
        let everything = range.start == 0 && self.last().is_none_or(|last| last < range.end);
        let mut oldest = u64::MAX;
        for (blocks, entry) in self.dirty.runs_in(range) {
            oldest = oldest.min(entry.since);
            let adjacent = run.last().is_none_or(|last| last + 1 == blocks.start);
            match (adjacent, rules.allow(&entry)) {
                (true, true) => run.extend(blocks.take(max - run.len())),
                _ if !run.is_empty() => break,
                _ => {}
            }
            if run.len() == max {
                break;
            }
        }
        if everything && run.is_empty() {
            // All blocks were examined: the flusher need not do so again before the oldest is old
            // enough.
            self.oldest = oldest;
        }
        run
    }

    /// Moves the first blocks of a range, as far as they have the same entry, from dirty to being
    /// written if the rules allow it. Returns the block after them, and their entry, for the case
    /// that the write fails. `None` if the first block is not dirty, may not be written, or is
    /// being cut off.
    pub(crate) fn begin_write_if(
        &mut self,
        blocks: Range<u64>,
        rules: &WriteRules,
    ) -> Option<(u64, Dirty)> {
        let blocks = self.uncut(blocks);
        if blocks.is_empty() || !self.may_write(rules.reason) {
            return None;
        }
        let first = self.dirty.get(blocks.start);
        first.filter(|entry| rules.allow(entry))?;
        let (end, entry) = self.dirty.take_run(blocks.clone())?;
        self.writes += 1;
        // I5: two writes of one block at once would be noted twice.
        self.writing.note_run(blocks.start..end, self.writes);
        Some((end, entry))
    }

    /// The write of blocks is over.
    pub(crate) fn end_write(&mut self, blocks: Range<u64>) {
        self.writing.remove_all(blocks);
    }

    /// The write of a block is over, and it is dirty again.
    pub(crate) fn insert_unwritten(&mut self, block: u64, entry: Dirty) {
        self.unwritten += 1;
        self.insert(block, entry);
    }

    /// Blocks so far whose writes have failed or were not tried.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// The number of the latest write that has begun.
    pub(crate) fn last_write(&self) -> u64 {
        self.writes
    }

    /// Whether a write in `range` that was numbered at most `through` is still under way.
    pub(crate) fn is_writing(&self, range: Range<u64>, through: u64) -> bool {
        self.writing
            .runs_in(range)
            .any(|(_, number)| number <= through)
    }

    /// The first block of a range that a sync under `rules` would write, or wait for.
    pub(crate) fn first_to_sync(&self, range: Range<u64>, rules: &WriteRules) -> Option<u64> {
        let mut dirty = self.dirty.runs_in(range.clone());
        let dirty = dirty.find(|(_, entry)| rules.order_allows(entry));
        let writing = self.writing.runs_in(range.clone()).next();
        let doubted = self.doubted.runs_in(range).next();
        [
            dirty.map(|(blocks, _)| blocks.start),
            writing.map(|(blocks, _)| blocks.start),
            doubted.map(|(blocks, ())| blocks.start),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Why blocks in `range` may not be written under `rules`: how many, and what would release the
    /// first of them.
    pub(crate) fn held(&self, range: Range<u64>, rules: &WriteRules) -> Option<(u64, HeldReason)> {
        let mut held = 0;
        let mut lowest = u64::MAX;
        for (blocks, entry) in self.dirty.runs_in(range) {
            if !rules.order_allows(&entry) {
                held += blocks.end - blocks.start;
                lowest = lowest.min(entry.barrier);
            }
        }
        let reason = match rules.order {
            WriteOrder::Ordered => HeldReason::UntilRelease { barrier: lowest },
            _ => HeldReason::UntilSync,
        };
        (held > 0).then_some((held, reason))
    }
}

/// The write order of a file as one writer meets it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRules {
    pub(crate) order: WriteOrder,
    /// Barrier numbers up to this one are released.
    pub(crate) released: u64,
    pub(crate) reason: WriteReason,
}

impl WriteRules {
    /// Whether the file's order lets the block be written.
    fn order_allows(&self, entry: &Dirty) -> bool {
        match self.order {
            WriteOrder::Background => true,
            WriteOrder::OnSync => self.reason == WriteReason::Sync,
            WriteOrder::Ordered => entry.barrier <= self.released,
        }
    }

    fn allow(&self, entry: &Dirty) -> bool {
        let old_enough = match self.reason {
            WriteReason::Flusher { through } => entry.since <= through,
            WriteReason::Pressure | WriteReason::Sync => true,
        };
        old_enough && self.order_allows(entry)
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;
