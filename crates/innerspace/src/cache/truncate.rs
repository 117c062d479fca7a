//! Taking parts of a file away: truncation, punching, discarding, invalidating. All of it with the
//! file to itself.
//!
//! Order (I9): fills and writes are kept out (`alone`); no write back begins past the new end
//! ([`Cutting`]); those under way end; the store; the size; blocks out of the index under their
//! locks; translations revoked; one grace period for a batch of blocks; the frames freed. When the
//! call returns, no read, view taken later, or access through a mapping sees what was removed.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::locks::InvalidateGuard;
use crate::cache::core::store_probe::MAX_SIZE;
use crate::cache::dirty::writeback::LockMode;
use crate::cache::errors::{FileError, StoreAction};
use crate::cache::lookup::block::{BlockRef, Locked};
use crate::cache::lookup::get::{Get, Got};
use crate::cache::map::mappers::Revoke;
use crate::cache::wait::Wait;
use crate::cache::write::write_at::Source;
use crate::frame::{Dropped, FlagSet};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::store::SyncWhat;
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::units::{PAGE_SIZE, PageCount};

/// Blocks that one grace period serves.
const BATCH: usize = 64;

/// While it lives, no write back of a block that is being cut off begins.
///
/// Whether one begins is decided under the mutex of `dirty`, with the block locked and its length
/// taken from the size under that lock. One that begins before this is waited for, before the store
/// is cut. One that would begin later does not: should the store refuse, the block is as dirty as
/// before. This ends after every block it is about was removed, or had its tail cleared, under its
/// lock; so a thread that locks one after that takes its length from the new size.
#[must_use = "the cut ends when this is dropped"]
struct Cutting<'f>(&'f FileCore);

impl Drop for Cutting<'_> {
    fn drop(&mut self) {
        self.0.dirty().end_cut();
    }
}

/// Locked blocks that the store is punching. Dropped, the punch has failed, half-way perhaps, or
/// panicked.
struct Punching<'f> {
    file: &'f FileCore,
    batch: Vec<Locked<'f>>,
}

impl Drop for Punching<'_> {
    fn drop(&mut self) {
        self.file.show_what_is_left(std::mem::take(&mut self.batch));
    }
}

impl FileCore {
    /// Cuts or lengthens the file. On an error of the store nothing has changed.
    pub(super) fn set_len(&self, new: u64) -> Result<(), FileError> {
        self.check_writable()?;
        self.check_range(new, 0)?;
        // An append goes where the end was when it began, and is over before the end moves.
        let appending = self.locks.append();
        let alone = self.locks.alone(&self.blocks.index);
        let old = self.size();
        let result = match new.cmp(&old) {
            Greater => self.extend(old, new),
            Less => self.truncate(new, &alone),
            Equal => Ok(()),
        };
        drop((alone, appending));
        self.end_operation();
        result
    }

    /// Does `work` with the file to itself, and then, with nothing held, what comes after an
    /// operation.
    fn while_alone<T>(&self, work: impl FnOnce(&InvalidateGuard<'_>) -> T) -> T {
        let alone = self.locks.alone(&self.blocks.index);
        let result = work(&alone);
        drop(alone);
        self.end_operation();
        result
    }

    fn extend(&self, old: u64, new: u64) -> Result<(), FileError> {
        self.clear_tail_before(new)?;
        self.resize_store(new)?;
        self.blocks.extents.lock().clear();
        debug_assert_eq!(self.size(), old, "the file is ours alone");
        self.set_size(new);
        Ok(())
    }

    fn resize_store(&self, new: u64) -> Result<(), FileError> {
        let store = self.store()?;
        let _call = self.store_call();
        let changing = self.writes.syncs.changing();
        let result = store.set_len(new);
        drop(changing);
        result.map_err(|error| self.store_error(StoreAction::Resize, new, 0, error))?;
        self.blocks.stored.store(new, Ordering::Release);
        Ok(())
    }

    /// Keeps writes back of the blocks from `first` on from beginning, and waits for those under
    /// way.
    fn cut_from<'f>(&'f self, first: u64, _alone: &InvalidateGuard<'_>) -> Cutting<'f> {
        self.dirty().begin_cut(first);
        let cutting = Cutting(self);
        self.wait_written(first..u64::MAX);
        failpoint!(Cutting);
        cutting
    }

    fn truncate(&self, new: u64, alone: &InvalidateGuard<'_>) -> Result<(), FileError> {
        let _cutting = self.cut_from(new >> self.block_shift(), alone);
        self.wait_landed(&(new >> self.block_shift()..u64::MAX));
        let spare = self.spare_for_tail(new)?;
        self.resize_store(new)?;
        self.blocks.extents.lock().clear();
        // From here on no read or fault goes past the new end.
        self.set_size(new);
        self.cut_blocks(new);
        let cleared = self.cut_tail(new, spare);
        self.end_holes(new.div_ceil(PAGE_SIZE as u64)..u64::MAX);
        self.blocks
            .index
            .write()
            .drop_shadows(self.frames(), new.div_ceil(self.block_bytes()));
        self.ready.changed();
        cleared
    }

    /// Clears what was cut off of the last block. If that is viewed, and there is no memory to move
    /// it, it is cleared later: before the file grows again, or a mapping shows it.
    fn cut_tail<'p>(&'p self, size: u64, spare: Option<PoolFrame<'p>>) -> Result<(), FileError> {
        let cleared = self.zero_tail(size, spare);
        if !matches!(cleared, Err(FileError::Limit(_))) {
            return cleared;
        }
        self.blocks.tail_left.store(true, Ordering::Release);
        // Faults look at that with the file steady, and install with the block locked.
        let block = size >> self.block_shift();
        if let Ok(Got::Locked(locked)) = self.get_page(block, Get::LOCK)
            && locked.meta().hold.load().mapped() > 0
        {
            let last = size / PAGE_SIZE as u64;
            self.mappers.revoke(last..last + 1, Revoke::All);
            self.pool.domain.synchronize();
        }
        Ok(())
    }

    /// A frame for the block that the file is to end in, if that is viewed and the cache has its
    /// only copy: it will have to move.
    fn spare_for_tail(&self, size: u64) -> Result<Option<PoolFrame<'_>>, FileError> {
        let block = size >> self.block_shift();
        let is_only_copy = |held: &BlockRef<'_>| {
            let flags = held.meta().flags.load();
            flags.contains(FlagSet::DIRTY) || self.dirty().is_unsynced(block)
        };
        match self.lookup(block) {
            Some(held)
                if self.inside_block(size) > 0
                    && held.meta().hold.load().views() > 0
                    && is_only_copy(&held) =>
            {
                let group = self.id.group.id();
                Ok(Some(self.pool.alloc(
                    group,
                    self.id.order,
                    AllocMode::Wait,
                )?))
            }
            _ => Ok(None),
        }
    }

    /// Takes the mappings of holes in these pages away. The size says already that they are gone.
    fn end_holes(&self, pages: Range<u64>) {
        self.move_hole_epoch();
        if !self.mappers.is_empty() {
            self.pool.domain.synchronize();
            self.mappers.revoke(pages, Revoke::Holes);
            self.pool.domain.synchronize();
        }
    }

    /// Makes a range read as zeros. What lies past the end of the file is left out.
    pub(super) fn punch(&self, range: Range<u64>) -> Result<(), FileError> {
        self.check_writable()?;
        self.make_room_for_punch()?;
        let result = self
            .with_room(|| self.punch_alone(range.clone(), &self.locks.alone(&self.blocks.index)));
        // Users are woken, whose requests are no part of what is tried.
        self.end_operation();
        result
    }

    fn punch_alone(&self, range: Range<u64>, alone: &InvalidateGuard<'_>) -> Result<(), FileError> {
        let size = self.size();
        let range = range.start..range.end.min(size);
        if range.is_empty() {
            return Ok(());
        }
        self.wait_landed(&self.blocks_of(range.clone()));
        let bytes = self.block_bytes();
        let first_whole = range.start.div_ceil(bytes);
        // The last block of the file counts as whole when all of it that is inside the file goes.
        let end_whole = if range.end == size {
            size.div_ceil(bytes)
        } else {
            range.end / bytes
        };
        if first_whole >= end_whole {
            // Inside one block, or across one border.
            let border = (first_whole * bytes).clamp(range.start, range.end);
            self.write_zeros(range.start..border, alone)?;
            return self.write_zeros(border..range.end, alone);
        }
        // What made the file longer may go unwritten: the store has to know the length by itself.
        if range.end == size && self.blocks.stored.load(Ordering::Acquire) < size {
            self.resize_store(size)?;
        }
        // The edges first: they may fail, and then nothing else has happened.
        self.write_zeros(range.start..first_whole * bytes, alone)?;
        self.write_zeros((end_whole * bytes).min(range.end)..range.end, alone)?;
        let result = self.punch_blocks(first_whole..end_whole, alone);
        self.blocks.extents.lock().clear();
        self.ready.changed();
        result
    }

    /// Takes whole blocks away, in the store first: where that fails, unwritten data is still in
    /// the cache. The blocks' locks keep the writing back of old bytes out from before the store's
    /// part until they are gone.
    fn punch_blocks(
        &self,
        blocks: Range<u64>,
        alone: &InvalidateGuard<'_>,
    ) -> Result<(), FileError> {
        let mut next = blocks.start;
        while next < blocks.end {
            let start = next;
            let mut punching = Punching {
                file: self,
                batch: self.lock_batch(&mut next, blocks.end),
            };
            // A write that failed may have left more in the store than is known of.
            let has_failed = |one: &Locked<'_>| one.meta().flags.load().contains(FlagSet::ERROR);
            let known = match punching.batch.iter().any(has_failed) {
                true => u64::MAX,
                false => self.blocks.stored.load(Ordering::Acquire),
            };
            self.punch_store(start..next, known, alone)?;
            self.drop_batch(std::mem::take(&mut punching.batch));
        }
        Ok(())
    }

    /// A punch of locked blocks has not come to its end: of what the cache has, nothing may differ
    /// from the store and be clean.
    fn show_what_is_left(&self, mut batch: Vec<Locked<'_>>) {
        batch.retain(|one| !one.meta().flags.load().contains(FlagSet::DIRTY));
        let is_unsynced = |one: &Locked<'_>| self.dirty().is_unsynced(one.block());
        let (kept, gone): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_unsynced);
        for one in kept {
            self.mark_dirty(one.block(), one.frame());
        }
        self.drop_batch(gone);
    }

    /// Stores zeros in part of one block.
    fn write_zeros(
        &self,
        range: Range<u64>,
        steady: &InvalidateGuard<'_>,
    ) -> Result<(), FileError> {
        if range.is_empty() {
            return Ok(());
        }
        let len = (range.end - range.start) as usize;
        self.write_part(range.start, Source::Zeros(len), steady, Wait::Yes)
    }

    /// Forgets all unwritten data: the file is what the store has.
    pub(super) fn discard(&self) -> Result<(), FileError> {
        self.check_writable()?;
        // What a failed sync left in doubt is unwritten, too; what was punched is not to come back.
        self.punch_again();
        self.take_doubted_back(LockMode::Sleep);
        self.while_alone(|alone| self.discard_alone(alone))
    }

    fn discard_alone(&self, alone: &InvalidateGuard<'_>) -> Result<(), FileError> {
        let _cutting = self.cut_from(0, alone);
        self.wait_landed(&(0..u64::MAX));
        // A store that does not answer is met before anything goes: after it, the file would be
        // longer than what it has.
        let told = self.store_len()?;
        let (given_up, is_over_unsynced) = self.dirty().all_dirty();
        if is_over_unsynced {
            // The store has older bytes, which could not be written again. What this leaves in
            // doubt was written, and stays.
            self.sync_store(SyncWhat::Data)?;
        }
        let mut blocks = given_up.into_iter().flatten();
        loop {
            let batch: Vec<u64> = blocks.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                break;
            }
            let locked: Vec<_> = batch
                .into_iter()
                .filter_map(|block| self.lock_stable(block))
                .collect();
            self.drop_batch(locked);
        }
        self.adopt_store_len(self.unwritten_end(), Some(told))
    }

    /// Where the last block ends that the store may not have, or the file does: what is being
    /// written counts, for the store may be asked for its length before it has the bytes.
    fn unwritten_end(&self) -> u64 {
        let last = self.dirty().last_unwritten();
        let end = last.map_or(0, |block| (block + 1) << self.block_shift());
        end.min(self.size())
    }

    /// Forgets what is cached of a range of blocks and not dirty, and takes the store's length
    /// over. Blocks with unwritten data stay: they are newer than any change from outside. So do
    /// those that the store may lose yet. Pages dropped.
    pub(super) fn invalidate(&self, blocks: Range<u64>) -> Result<PageCount, FileError> {
        self.check_not_reentrant()?;
        // A good sync does not bring back what the store may have lost before it.
        self.punch_again();
        self.take_doubted_back(LockMode::Sleep);
        // What no sync has covered may be dropped by the store yet, and would be gone for good: it
        // is synced, or dirty again.
        let is_unsynced = self.dirty().unsynced(blocks.clone()).next().is_some();
        if is_unsynced || self.blocks.extents.lock().punched.meets(blocks.clone()) {
            self.sync_store(SyncWhat::Data)?;
        }
        self.while_alone(|alone| self.invalidate_alone(blocks, alone))
    }

    fn invalidate_alone(
        &self,
        blocks: Range<u64>,
        _alone: &InvalidateGuard<'_>,
    ) -> Result<PageCount, FileError> {
        self.wait_landed(&(0..u64::MAX));
        let dropped = self.forget_clean(blocks);
        self.adopt_store_len(self.unwritten_end(), None)?;
        Ok(PageCount(dropped << self.id.order))
    }

    /// Takes blocks out of the file that the store has as they are, and cannot lose any more; how
    /// many.
    pub(super) fn forget_clean(&self, blocks: Range<u64>) -> u64 {
        let mut dropped = 0;
        let mut next = blocks.start;
        loop {
            let mut batch = self.lock_batch(&mut next, blocks.end);
            if batch.is_empty() {
                return dropped;
            }
            batch.retain(|locked| !locked.meta().flags.load().contains(FlagSet::DIRTY));
            // What was written since the last sync began, or has come into doubt.
            self.retain_synced(&mut batch);
            dropped += batch.len() as u64;
            self.drop_batch(batch);
        }
    }

    /// Makes the file as long as the store is now, but at least `kept` bytes. `told`: what it said
    /// before, good if it does not answer now.
    fn adopt_store_len(&self, kept: u64, told: Option<u64>) -> Result<(), FileError> {
        let or_told = |len: Result<u64, FileError>| len.or_else(|error| told.ok_or(error));
        let (len, old) = (or_told(self.store_len())?, self.size());
        failpoint!(LengthRead);
        self.blocks.extents.lock().clear();
        let noted = self.blocks.stored.swap(len, Ordering::AcqRel);
        // A write back that ended since may have noted more than was asked for: that is lost now,
        // and the store has it. One that ends from here on notes it afterwards.
        let again = or_told(self.store_len());
        let noted = again.as_ref().map_or(noted, |len| *len);
        self.blocks.stored.fetch_max(noted, Ordering::AcqRel);
        again?;
        // What the store has, as it is noted: it may have grown between the two.
        let new = self
            .blocks
            .stored
            .load(Ordering::Acquire)
            .min(MAX_SIZE)
            .max(kept);
        if new > old && self.inside_block(old) > 0 {
            // The store has more of what was the last block than is cached. Where that is
            // unwritten, zeros follow it.
            let last = old >> self.block_shift();
            self.forget_clean(last..last + 1);
            self.clear_tail_before(new)?;
        }
        self.set_size(new);
        if new < old {
            self.cut_blocks(new);
            self.cut_tail(new, None)?;
        }
        self.end_holes(0..u64::MAX);
        self.ready.changed();
        Ok(())
    }

    fn store_len(&self) -> Result<u64, FileError> {
        let store = self.store()?;
        let _call = self.store_call();
        let len = store.len();
        let len = len.map_err(|error| self.store_error(StoreAction::Query, 0, 0, error))?;
        Ok(len.min(MAX_SIZE))
    }

    /// Takes what is past the new end out of the file.
    fn cut_blocks(&self, size: u64) {
        let cut = size.div_ceil(self.block_bytes())..u64::MAX;
        self.remove_blocks(cut.clone());
        self.blocks.extents.lock().punched.forget(cut);
    }

    /// Takes all blocks of a range out of the file, dirty or not.
    pub(super) fn remove_blocks(&self, blocks: Range<u64>) {
        let mut next = blocks.start;
        loop {
            let batch = self.lock_batch(&mut next, blocks.end);
            if batch.is_empty() {
                return;
            }
            self.drop_batch(batch);
        }
    }

    /// Locks the next cached blocks in `next..end`, ascending, each when no write of it is under
    /// way; moves `next` on.
    pub(super) fn lock_batch(&self, next: &mut u64, end: u64) -> Vec<Locked<'_>> {
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            let found = {
                let _section = self.pool.domain.reader();
                self.blocks.index.next_block(self.frames(), *next, end)
            };
            let Some((block, _)) = found else {
                *next = end;
                break;
            };
            *next = block + 1;
            batch.extend(self.lock_stable(block));
        }
        batch
    }

    fn lock_stable(&self, block: u64) -> Option<Locked<'_>> {
        // An error is that of a fill which has taken the block away.
        let locked = self.find_lock(block).ok().flatten()?;
        locked.wait_stable();
        Some(locked)
    }

    /// Takes locked, stable blocks out of the file.
    fn drop_batch(&self, batch: Vec<Locked<'_>>) {
        let (Some(first), Some(last)) = (batch.first(), batch.last()) else {
            return;
        };
        let range = first.block()..last.block() + 1;
        let mut mapped = false;
        for locked in &batch {
            self.forget_dirty(locked.block(), locked.frame());
            self.unlink(locked.block(), locked.frame(), None);
            mapped |= locked.meta().hold.load().mapped() > 0;
        }
        if mapped {
            if range.end - range.start == batch.len() as u64 {
                self.revoke(range, Revoke::All);
            } else {
                for locked in &batch {
                    self.revoke(locked.block()..locked.block() + 1, Revoke::All);
                }
            }
            self.pool.domain.synchronize();
        }
        failpoint!(CutOff);
        // The last first: frames come back in reverse, so in the order of these blocks, and what is
        // written next lies in a row.
        for locked in batch.into_iter().rev() {
            let dropped = self.pool.uncache(locked.frame());
            debug_assert_eq!(dropped, Dropped::Held, "our own reference is left");
        }
        failpoint!(BlocksGone);
    }
}
