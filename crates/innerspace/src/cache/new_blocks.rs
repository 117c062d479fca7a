//! New blocks of a writer: complete before anybody can see them, up to date, referenced, dirty, and not locked.
//!
//! What the lock would keep others from, the mutex of the dirty index does: the blocks are in the index first, then the file
//! is long enough for them, then they are in the dirty index. Nobody writes them back before that, and since they are flagged
//! DIRTY all the time, nobody evicts them. Another writer of one finds it dirty; if that one syncs, it waits here.
//!
//! **Runs.** A long write takes what it needs for up to [`MOST_SINGLES`] whole pages at once: charge, frames, places in the index, in the
//! dirty index and on the list. Where it cannot be had without more ado, the first of the pages is written by itself, and waits, reclaims
//! or fails for itself: so a write that fails half-way has made what came before the page that it failed at, and no more.

use std::ops::Range;

use super::core::{FileCore, Steady};
use super::errors::FileError;
use super::index::RunInserted;
use super::lookup::{Basis, marks_after_publishing};
use super::spare_nodes::SpareNodes;
use super::write::Source;
use crate::frame::{Dropped, FlagSet, HoldState, Kind, MOST_SINGLES};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::sys::copy::Quarter;
use crate::units::FrameId;

/// Blocks that were published for the places from `first` on, of which `done` are in the index.
struct NewRun<'a> {
    first: u64,
    frames: &'a [FrameId],
    done: usize,
}

impl NewRun<'_> {
    /// Where the next one belongs.
    fn next(&self) -> u64 {
        self.first + self.done as u64
    }

    fn blocks(&self) -> Range<u64> {
        self.first..self.next()
    }
}

impl FileCore {
    /// Makes a block where there is nothing to read, with `source` in it and zeros around.
    pub(super) fn write_over_hole(
        &self,
        block: u64,
        inside: Range<usize>,
        source: Source<'_>,
        basis: Basis,
    ) -> Result<bool, FileError> {
        if self.mappers.is_empty() {
            return self.write_new_block(block, inside, source, basis);
        }
        let end = (block << self.block_shift()) + inside.end as u64;
        let made = self.create_over_hole(block, basis, |bytes| {
            bytes[..inside.start].fill(0);
            bytes[inside.end..].fill(0);
            source.store_into(&mut bytes[inside]);
        })?;
        if made.is_some() {
            self.grow_to(end);
        }
        Ok(made.is_some())
    }

    /// Makes a block from `source` and zeros. False when another thread made one first, or `basis` does not hold any more.
    pub(super) fn write_new_block(
        &self,
        block: u64,
        inside: Range<usize>,
        source: Source<'_>,
        basis: Basis,
    ) -> Result<bool, FileError> {
        self.prefetch_next(Quarter::Third);
        let mut owned = self
            .pool
            .alloc(self.group.id(), self.order, AllocMode::Wait)?;
        if self.order == 0 {
            let frame = owned.id();
            self.frames().prefetch_free(frame, Quarter::Fourth);
        }
        let bytes = owned.bytes_mut();
        if inside.len() < bytes.len() {
            bytes[..inside.start].fill(0);
            bytes[inside.end..].fill(0);
        }
        source.store_into(&mut bytes[inside.clone()]);
        self.prefetch_next(Quarter::First);
        let frame = self.publish_complete(owned, block);
        let end = (block << self.block_shift()) + inside.end as u64;
        let (made, result) = self.insert_complete(block, &[frame], end, basis);
        self.prefetch_next(Quarter::Second);
        result.map(|()| made > 0)
    }

    /// Has a quarter of the next new block on its way to the processor while there is other work to do: fetched in one go, its lines
    /// would be waited for. The first two come after a block was filled, the others before the next is.
    #[inline]
    fn prefetch_next(&self, quarter: Quarter) {
        if self.order == 0 {
            self.frames().prefetch_next(quarter);
        }
    }

    /// Writes the whole pages that `bytes` begins with, as many as go at once, if they are not cached; returns the bytes written. 0
    /// where the first of them has to be written by itself.
    pub(super) fn write_new_run(
        &self,
        offset: u64,
        bytes: &[u8],
        _steady: &Steady<'_>,
    ) -> Result<usize, FileError> {
        let whole = bytes.len() as u64 >> self.block_shift();
        // A mapping may show a hole there, which has to go before the bytes change.
        if whole < 2 || self.order > 0 || self.inside_block(offset) > 0 || !self.mappers.is_empty()
        {
            return Ok(0);
        }
        let first = offset >> self.block_shift();
        let room = self.dirty_room(whole.min(MOST_SINGLES as u64));
        let absent = self.absent_from(first, room);
        if absent < 2 {
            return Ok(0);
        }
        self.clear_tail_before((first + absent) << self.block_shift())?;
        let Some(mut frames) = self.pool.alloc_some(self.group.id(), absent as usize) else {
            return Ok(0);
        };
        let mut ids = [FrameId(0); MOST_SINGLES];
        let mut count = 0;
        for (id, bytes) in ids
            .iter_mut()
            .zip(bytes.chunks(self.block_bytes() as usize))
        {
            let Some(mut owned) = frames.next() else {
                break;
            };
            owned.bytes_mut().copy_from_slice(bytes);
            *id = self.publish_complete(owned, first + count as u64);
            count += 1;
        }
        let end = (first + count as u64) << self.block_shift();
        let (made, result) = self.insert_complete(first, &ids[..count], end, Basis::Nothing);
        result.map(|()| made << self.block_shift())
    }

    /// How many blocks from `first` on, of `most`, are not cached now.
    fn absent_from(&self, first: u64, most: u64) -> u64 {
        let _section = self.pool.domain.reader();
        let end = first + most;
        let next = self.index.next_block(self.frames(), first, end);
        next.map_or(end, |(block, _)| block) - first
    }

    /// Publishes a block that has its bytes. Nobody finds it yet.
    fn publish_complete(&self, mut owned: PoolFrame<'_>, block: u64) -> FrameId {
        let referenced = !marks_after_publishing();
        owned.set_flags(match referenced {
            true => FlagSet::UPTODATE | FlagSet::DIRTY | FlagSet::REFERENCED,
            false => FlagSet::UPTODATE | FlagSet::DIRTY,
        });
        owned.set_kind(Kind::Cached);
        owned.set_owner(self.owner.0);
        owned.set_index(block);
        // Who marks it later has to hold it; else it is not touched once others can find it.
        owned.publish(HoldState::cached(if referenced { 1 } else { 2 }))
    }

    /// Puts complete blocks where `first` and those behind it belong, and makes the file as long as they are, or `end` bytes if the
    /// last is shorter. Returns how many went in: not all where another thread has made one, `basis` does not hold any more, or (that is
    /// the error) a node could not be had. The others are freed.
    fn insert_complete(
        &self,
        first: u64,
        frames: &[FrameId],
        end: u64,
        basis: Basis,
    ) -> (usize, Result<(), FileError>) {
        // Reclaim may find them from here on, and see that they are not (yet) what the index says.
        self.pool.lru_add_run(frames);
        let mut run = NewRun {
            first,
            frames,
            done: 0,
        };
        let mut shadows = Vec::new();
        let result = self.insert_dirty(&mut run, end, basis, &mut shadows);
        for frame in &frames[run.done..] {
            self.pool.lru_remove(*frame);
            // A lookup with an old word may hold it for a moment.
            if self.pool.uncache(*frame) == Dropped::Last {
                self.pool.free(*frame);
            }
        }
        if marks_after_publishing() {
            for frame in frames {
                self.pool.mark_accessed(*frame);
                self.put(*frame);
            }
        }
        for shadow in shadows {
            // To be written, so it stays inactive: its frame, which may be gone, is not touched.
            let _where_a_read_would_be = self.count_refault(shadow);
        }
        if run.done > 0 {
            // For a mapping that came up meanwhile; a hole that is not mapped costs nothing.
            self.end_hole(run.blocks());
            self.ready.filled(run.blocks());
        }
        (run.done, result)
    }

    /// Puts complete blocks into the index and the dirty index, and makes the file long enough, as one step to whoever writes back.
    fn insert_dirty(
        &self,
        run: &mut NewRun<'_>,
        end: u64,
        basis: Basis,
        shadows: &mut Vec<u64>,
    ) -> Result<(), FileError> {
        let mut spares = SpareNodes::new(&self.pool, self.group.id());
        loop {
            let from = run.next();
            let mut dirty = self.dirty.lock();
            let inserted = self.try_insert_run(run, basis, &mut spares, shadows);
            if inserted.blocks > 0 {
                run.done += inserted.blocks;
                self.grow_to(end.min(run.next() << self.block_shift()));
                self.count_dirty_run(inserted.blocks);
                dirty.insert_run(from..run.next(), self.dirty_entry());
            }
            drop(dirty);
            let Some(count) = inserted.need_nodes else {
                return Ok(());
            };
            spares.have(count, AllocMode::Wait)?;
        }
    }

    /// One attempt to put the rest of a run into the index.
    fn try_insert_run(
        &self,
        run: &NewRun<'_>,
        basis: Basis,
        spares: &mut SpareNodes<'_>,
        shadows: &mut Vec<u64>,
    ) -> RunInserted {
        let mut writer = self.index.write();
        if !self.holds(basis) {
            return RunInserted {
                blocks: 0,
                need_nodes: None,
            };
        }
        let frames = &run.frames[run.done..];
        writer.insert_run(self.frames(), run.next(), frames, spares.nodes(), shadows)
    }
}
