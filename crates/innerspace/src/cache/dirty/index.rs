//! The dirty index: which blocks of a file are dirty, which are being written, and which may be
//! written when.

use std::ops::Range;

pub(crate) use crate::cache::dirty::runs::Dirty;
use crate::cache::dirty::runs::Runs;
use crate::cache::errors::HeldReason;

/// When a file's dirty blocks are written to its store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum WriteOrder {
    /// Blocks are written in the background: after a while, under memory pressure, and on sync.
    #[default]
    Background,
    /// Blocks are written only on sync, and when the last handle is dropped. New writes are refused
    /// when half of the group's limit is unwritten.
    OnSync,
    /// Like `Background`, but a block written after `set_barrier(n)` stays in memory until
    /// `release_through(n)`.
    Ordered,
}

/// The reason why dirty blocks are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteReason {
    /// The flusher writes blocks that became dirty at an early tick.
    Flusher {
        /// The last tick that is early enough.
        through: u64,
    },
    /// Reclaim, or a writer over the dirty limit, writes any block that may be written.
    Pressure,
    /// A sync, or the drop of the last handle, writes all blocks that the write order allows.
    Sync,
}

/// The dirty blocks of one file by number, and those whose write is under way. One mutex guards
/// them. It is taken inside block locks, and held for a few map operations: at most one for each
/// run of blocks with the same entry, or for each block of one write, never one for each block of
/// the file.
///
/// At rest a block is in `dirty` exactly when its frame carries DIRTY, and in `writing` exactly
/// when it carries WRITEBACK.
#[derive(Debug, Default)]
pub(crate) struct DirtyIndex {
    dirty: Runs<Dirty>,
    /// The blocks that are being written, each with the number of its write.
    writing: Runs<u64>,
    /// The blocks that the store has accepted and no sync has covered, each with the number of its
    /// acceptance. Some may be dirty again.
    accepted: Runs<u64>,
    /// The blocks whose bytes a failed sync may have dropped, and that have to become dirty again.
    doubted: Runs<()>,
    /// The earliest tick in which a block that is still dirty may have become dirty.
    oldest: u64,
    /// Set while a thread has locked the file exclusively, so that only that thread can add blocks.
    /// The value is the first block of that thread's cut, or `u64::MAX` while it makes no cut. No
    /// write of that block, or of a block after it, begins.
    cut: Option<u64>,
    /// The counts of this file that are included in those of its groups. See
    /// [`publish`](crate::cache::dirty::marks::publish).
    published: Counts,
    progress: Progress,
    /// Set while the file is being closed, before the last attempt to write its data. From then on,
    /// only the closing thread may begin a write.
    closing: bool,
    /// Whether the cache lists the file among those with unwritten blocks.
    listed: bool,
    /// Whether the pool lists the file among the owners to flush.
    flushable: bool,
}

/// Numbers that only grow. A caller keeps a copy, and compares it with a later one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The number of writes begun, which is also the number of the latest write.
    pub(crate) writes: u64,
    /// The number of block writes that have failed or were given up.
    pub(crate) unwritten: u64,
    /// The number of the latest acceptance. A sync that begins now covers all up to this one.
    pub(crate) acceptances: u64,
    /// The number of cuts that have ended.
    pub(crate) cuts: u64,
}

/// Counts of blocks of one file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) dirty: u64,
    /// The blocks that must stay in memory although they need not be dirty: their write is under
    /// way, no sync has covered it, or they are in doubt. A block counts once for each of these
    /// that holds. Blocks that are also dirty are counted here too.
    pub(crate) behind: u64,
}

impl DirtyIndex {
    /// Notes a write to a block. If the block is already dirty, its entry keeps the tick of the
    /// first write, and the highest barrier number.
    pub(crate) fn insert(&mut self, block: u64, entry: Dirty) {
        self.note_age(entry);
        self.dirty.note(block, entry);
    }

    /// Notes the first writes to blocks. None of the blocks is dirty yet.
    pub(crate) fn insert_run(&mut self, blocks: Range<u64>, entry: Dirty) {
        self.note_age(entry);
        self.dirty.note_run(blocks, entry);
    }

    /// Updates `oldest` for blocks that are about to become dirty with this entry.
    fn note_age(&mut self, entry: Dirty) {
        self.oldest = match self.dirty.is_empty() {
            true => entry.since,
            false => self.oldest.min(entry.since),
        };
    }

    /// Removes a block that is leaving the file. Returns its entry if it was dirty.
    pub(crate) fn remove(&mut self, block: u64) -> Option<Dirty> {
        self.accepted.remove(block);
        self.doubted.remove(block);
        self.dirty.remove(block)
    }

    /// Notes that the store has accepted blocks, which it may lose before a sync.
    pub(crate) fn accept(&mut self, blocks: Range<u64>) {
        self.progress.acceptances += 1;
        self.accepted.set(blocks, self.progress.acceptances);
    }

    /// Notes the success of a sync that began when `through` was the latest acceptance.
    pub(crate) fn synced(&mut self, through: u64) {
        self.accepted.retain(|number| number > through);
    }

    /// Notes that a sync has failed: all blocks accepted before the failure may be lost. That
    /// includes blocks whose write is under way, since the store may have accepted them already.
    pub(crate) fn doubt_accepted(&mut self) {
        let accepted = std::mem::take(&mut self.accepted);
        for (blocks, _) in accepted.all().chain(self.writing.all()) {
            self.doubted.set(blocks, ());
        }
    }

    /// Puts accepted blocks in doubt, because a punch that covers some of them will be repeated:
    /// they have to be written again.
    pub(crate) fn doubt(&mut self, blocks: Range<u64>) {
        self.accepted.remove_all(blocks.clone());
        self.doubted.set(blocks, ());
    }

    /// Returns the blocks that must become dirty again, run by run.
    pub(crate) fn doubted(&self) -> Vec<Range<u64>> {
        self.doubted.all().map(|(blocks, ())| blocks).collect()
    }

    /// Notes that a block is dirty again, or about to be. Returns whether it was in doubt.
    pub(crate) fn settle_doubt(&mut self, block: u64) -> bool {
        self.doubted.remove(block).is_some()
    }

    /// Whether the store may lose a block that it has accepted, or may have lost it: no sync has
    /// covered the block, or it is in doubt. The block may be clean.
    pub(crate) fn is_unsynced(&self, block: u64) -> bool {
        self.accepted.contains(block) || self.doubted.contains(block)
    }

    /// Returns the blocks of a range for which [`DirtyIndex::is_unsynced`] holds, run by run: first
    /// those that were accepted, then those in doubt. A block may be among both.
    pub(crate) fn unsynced(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let accepted = self.accepted.runs_in(range.clone());
        let doubted = self.doubted.runs_in(range);
        let accepted = accepted.map(|(blocks, _)| blocks);
        accepted.chain(doubted.map(|(blocks, ())| blocks))
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn contains(&self, block: u64) -> bool {
        self.dirty.contains(block)
    }

    /// Whether some dirty block may have become dirty in the tick `tick` or before, or some block
    /// has to become dirty again.
    pub(crate) fn has_since(&self, tick: u64) -> bool {
        !self.doubted.is_empty() || !self.dirty.is_empty() && self.oldest <= tick
    }

    /// Returns the counts as they are now.
    #[inline]
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            dirty: self.dirty.len() as u64,
            behind: (self.writing.len() + self.accepted.len() + self.doubted.len()) as u64,
        }
    }

    /// Returns the counts as they are now, and those that were published last. In the sums of the
    /// file's groups, the caller replaces the published counts by the present ones.
    #[inline]
    pub(crate) fn publish(&mut self) -> (Counts, Counts) {
        let now = self.counts();
        (now, std::mem::replace(&mut self.published, now))
    }

    /// Notes whether the cache lists the file among those with unwritten blocks. Returns whether
    /// that changes.
    #[inline]
    pub(crate) fn set_listed(&mut self, listed: bool) -> bool {
        std::mem::replace(&mut self.listed, listed) != listed
    }

    /// Notes whether the pool lists the file among the owners to flush. Returns whether this is a
    /// change.
    #[inline]
    pub(crate) fn set_flushable(&mut self, flushable: bool) -> bool {
        std::mem::replace(&mut self.flushable, flushable) != flushable
    }

    /// From now on, allows only the closing thread to begin a write.
    pub(crate) fn begin_close(&mut self) {
        self.closing = true;
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns the number of blocks whose write is under way.
    pub(crate) fn writing(&self) -> usize {
        self.writing.len()
    }

    /// Returns the dirty blocks, run by run, and whether the store has accepted older bytes of one
    /// of them that no sync has covered.
    pub(crate) fn all_dirty(&self) -> (Vec<Range<u64>>, bool) {
        let runs: Vec<_> = self.dirty.all().map(|(blocks, _)| blocks).collect();
        let is_unsynced = |run: &Range<u64>| self.accepted.first_in(run.clone()).is_some();
        let is_over_unsynced = runs.iter().any(is_unsynced);
        (runs, is_over_unsynced)
    }

    /// Returns the highest dirty block.
    pub(crate) fn last(&self) -> Option<u64> {
        self.dirty.last()
    }

    /// Returns the highest block that the store may not have: it is dirty, in doubt, or being
    /// written.
    pub(crate) fn last_unwritten(&self) -> Option<u64> {
        self.dirty
            .last()
            .max(self.writing.last())
            .max(self.doubted.last())
    }

    /// Begins or ends an exclusive lock of the file, or a cut under it: see [`DirtyIndex::cut`].
    /// When a cut ends, its blocks have been removed, or, if it failed, they stay.
    pub(crate) fn set_cut(&mut self, cut: Option<u64>) {
        debug_assert_ne!(self.cut, cut, "one thread has the file alone");
        // There is one cut at a time.
        debug_assert!(cut.is_none_or(|first| first == u64::MAX) || self.cut == Some(u64::MAX));
        self.progress.cuts += u64::from(self.is_cut_pending());
        self.cut = cut;
    }

    /// Whether the file is locked exclusively.
    #[inline]
    pub(crate) fn is_locked_alone(&self) -> bool {
        self.cut.is_some()
    }

    fn is_cut_pending(&self) -> bool {
        self.cut.is_some_and(|first| first != u64::MAX)
    }

    /// Whether a cut may have put off a write since `before`.
    pub(crate) fn was_put_off(&self, before: Progress) -> bool {
        self.is_cut_pending() || self.progress.cuts != before.cuts
    }

    /// Whether a write for this reason may begin. While a file is being closed, only the close
    /// itself writes with [`WriteReason::Sync`].
    fn may_write(&self, reason: WriteReason) -> bool {
        !self.closing || reason == WriteReason::Sync
    }

    /// Returns the part of a range in which writes may begin.
    fn uncut(&self, blocks: Range<u64>) -> Range<u64> {
        match self.cut {
            Some(first) => blocks.start..blocks.end.min(first).max(blocks.start),
            None => blocks,
        }
    }

    /// Returns the first run of adjacent dirty blocks in `range` that `rules` allow to be written
    /// now, at most `max` blocks. The run is empty if there is none. Blocks that are being cut off
    /// are left out.
    pub(crate) fn next_run(
        &mut self,
        range: Range<u64>,
        max: u64,
        rules: &WriteRules,
    ) -> Range<u64> {
        let mut run = 0..0;
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
            let allowed = rules.allow(&entry);
            if run.is_empty() && allowed {
                run = blocks;
            } else if run.end == blocks.start && allowed {
                run.end = blocks.end;
            } else if !run.is_empty() {
                break;
            }
            if run.end - run.start >= max {
                run.end = run.start + max;
                break;
            }
        }
        if everything && run.is_empty() {
            // All blocks were examined: the flusher need not examine them again before the oldest
            // is old enough.
            self.oldest = oldest;
        }
        run
    }

    /// Moves the first blocks of a range that have the same entry from dirty to being written, if
    /// `rules` allow it. Returns the block after them, and their entry, which the caller needs if
    /// the write fails. Returns `None` if the first block is not dirty, may not be written, or is
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
        self.progress.writes += 1;
        // I5: `note_run` asserts that no block has two writes under way.
        self.writing
            .note_run(blocks.start..end, self.progress.writes);
        Some((end, entry))
    }

    /// Notes that the write of these blocks is over.
    pub(crate) fn end_write(&mut self, blocks: Range<u64>) {
        self.writing.remove_all(blocks);
    }

    /// Notes that the write of a block has failed, and that the block is dirty again.
    pub(crate) fn insert_unwritten(&mut self, block: u64, entry: Dirty) {
        self.progress.unwritten += 1;
        self.insert(block, entry);
    }

    /// Whether a write in `range` with a number of at most `through` is still under way.
    pub(crate) fn is_writing(&self, range: Range<u64>, through: u64) -> bool {
        self.writing
            .runs_in(range)
            .any(|(_, number)| number <= through)
    }

    /// Returns the first block of a range that a sync under `rules` would write, or wait for.
    pub(crate) fn first_to_sync(&self, range: Range<u64>, rules: &WriteRules) -> Option<u64> {
        let mut dirty = self.dirty.runs_in(range.clone());
        let dirty = dirty.find(|(_, entry)| rules.order_allows(entry));
        let dirty = dirty.map(|(blocks, _)| blocks);
        let (writing, doubted) = (&self.writing, &self.doubted);
        let first = [
            dirty,
            writing.first_in(range.clone()),
            doubted.first_in(range),
        ];
        first.into_iter().flatten().map(|blocks| blocks.start).min()
    }

    /// Returns how many blocks in `range` may not be written under `rules`, and what they wait for:
    /// in an ordered file, the lowest barrier among them. Returns `None` if there are none.
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

/// The write order of a file, as it applies to one writeback.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteRules {
    pub(crate) order: WriteOrder,
    /// The highest barrier number that is released.
    pub(crate) released: u64,
    pub(crate) reason: WriteReason,
}

impl WriteRules {
    /// Whether the file's write order allows the block to be written.
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
