//! Writes: into the block's frame if it is not viewed, otherwise into a new frame.
//!
//! A write to one block has these steps: make room under the dirty limit; lock the block when it is
//! stable (a missing one is made, and filled first if only a part of it is written and the store
//! has the rest, P22); store the bytes under the WRITER bit; set DIRTY and enter the dirty index;
//! raise the file's size; unlock. A reader sees the size only after the bytes.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::core::locks::InvalidateGuard;
use crate::cache::core::store_probe::MAX_SIZE;
use crate::cache::errors::FileError;
use crate::cache::lookup::batch::forget_clean;
use crate::cache::lookup::block::{INDEX_AND_USER, Locked};
use crate::cache::lookup::get::{Basis, Get, Got};
use crate::cache::map::mappers::Revoke;
use crate::cache::read::fill::{Filled, Miss};
use crate::cache::read::holes::Content;
use crate::cache::wait::Wait;
use crate::frame::{Dropped, FlagSet, Kind, Writing};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::stats::Event;
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::units::PAGE_SIZE;

/// The new content of a part of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'b> {
    /// Writes these bytes.
    Bytes(&'b [u8]),
    /// Writes this many zeros.
    Zeros(usize),
}

/// How the bytes of a write are copied into new pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caches {
    /// Through the processor's caches, for readers that come soon.
    Through,
    /// Past the processor's caches.
    Past,
}

impl Caches {
    /// The length from which source and destination together fill a core's second-level cache of
    /// one or two MiB. (On a Zen 4 with 1 MiB, writing 16 or 128 MiB by calls of 512 KiB and 1 MiB
    /// takes 185 to 217 ns a page in place of 385 to 493. With reading the bytes back, immediately
    /// or at the end, it takes 487 to 561 in place of 591 to 854. Shorter writes that reuse the
    /// same few frames, 2 MiB for example, are faster through the caches.)
    const LONG: usize = match cfg!(any(shuttle, miri)) {
        true => 2 * PAGE_SIZE, // so that the checkers get here
        false => 512 << 10,
    };

    fn of_write(bytes: &[u8]) -> Caches {
        match bytes.len() < Caches::LONG {
            true => Caches::Through,
            false => Caches::Past,
        }
    }
}

impl Source<'_> {
    fn len(self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Zeros(len) => len,
        }
    }

    pub(crate) fn store_into(self, into: &mut [u8]) {
        match self {
            Source::Bytes(bytes) => into.copy_from_slice(bytes),
            Source::Zeros(_) => into.fill(0),
        }
    }
}

impl FileCore {
    /// Refuses ranges that reach past the largest file.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), FileError> {
        match offset.checked_add(len) {
            Some(end) if end <= MAX_SIZE => Ok(()),
            _ => Err(FileError::TooLarge {
                file: self.id.name.clone(),
                offset,
                len,
            }),
        }
    }

    /// Writes all of `bytes` at `offset`.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), FileError> {
        self.write_all(bytes, offset, &mut 0)?;
        self.end_operation();
        Ok(())
    }

    /// Does the work that is due after an operation that fills, writes or cuts. No lock is held any
    /// more. A write that fails leaves this work to the next operation, and to the service.
    #[inline]
    pub(crate) fn end_operation(&self) {
        self.pool.flush_retired_if_due();
        self.ready.wake_due();
    }

    /// Writes the rest of `bytes` after the first `done`, and adds to `done` as it goes.
    pub(crate) fn write_all(
        &self,
        bytes: &[u8],
        offset: u64,
        done: &mut usize,
    ) -> Result<(), FileError> {
        self.check_writable()?;
        self.check_range(offset, bytes.len() as u64)?;
        let caches = Caches::of_write(bytes);
        while *done < bytes.len() {
            let (at, rest) = (offset + *done as u64, &bytes[*done..]);
            self.make_dirty_room(at, Wait::Yes)?;
            if self.append_page(at, rest)? {
                *done += PAGE_SIZE;
                continue;
            }
            *done +=
                self.with_room(|| self.write_steady(rest, at, caches, &self.locks.shared()))?;
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`, inside the file. The file does not get longer, even if it
    /// is cut meanwhile.
    pub(crate) fn overwrite_at(&self, bytes: &[u8], offset: u64) -> Result<(), FileError> {
        self.check_writable()?;
        self.check_range(offset, bytes.len() as u64)?;
        let caches = Caches::of_write(bytes);
        let mut done = 0;
        while done < bytes.len() {
            let (at, rest) = (offset + done as u64, &bytes[done..]);
            self.make_dirty_room(at, Wait::Yes)?;
            done += self.with_room(|| {
                let steady = self.locks.shared();
                let size = self.size();
                if at + rest.len() as u64 > size {
                    return Err(self.past_end(at, rest.len() as u64, size));
                }
                self.write_steady(rest, at, caches, &steady)
            })?;
        }
        self.end_operation();
        Ok(())
    }

    /// Writes the first of `bytes`: some new pages, or a part of one block. Returns how many bytes.
    fn write_steady(
        &self,
        bytes: &[u8],
        offset: u64,
        caches: Caches,
        steady: &InvalidateGuard<'_>,
    ) -> Result<usize, FileError> {
        let in_run = self.write_new_run(offset, bytes, caches, steady)?;
        if in_run > 0 {
            return Ok(in_run);
        }
        let part = &bytes[..bytes.len().min(self.left_in_block(offset))];
        self.clear_tail_before(offset + part.len() as u64)?;
        self.write_part(offset, Source::Bytes(part), steady, Wait::Yes)?;
        Ok(part.len())
    }

    /// Writes into cached blocks only: all of `bytes`, or nothing, and then returns "would block".
    pub(crate) fn try_write_at(&self, bytes: &[u8], offset: u64) -> Result<(), FileError> {
        self.check_writable()?;
        self.check_range(offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset + bytes.len() as u64;
        let blocks = self.blocks_of(offset..end);
        let steady = self
            .locks
            .try_shared()
            .ok_or_else(|| self.would_block(offset))?;
        // Only one block: a write over several could fail half-way.
        if blocks.end - blocks.start > 1 || end > self.size() {
            return Err(self.would_block(offset));
        }
        self.make_dirty_room(offset, Wait::No)?;
        self.write_part(offset, Source::Bytes(bytes), &steady, Wait::No)
    }

    /// Writes part of one block, and makes the file longer if the part ends past it. Without
    /// waiting, writes only into a cached block that nobody views.
    pub(crate) fn write_part(
        &self,
        offset: u64,
        source: Source<'_>,
        steady: &InvalidateGuard<'_>,
        wait: Wait,
    ) -> Result<(), FileError> {
        let block = offset >> self.block_shift();
        let start = self.inside_block(offset) as usize;
        let inside = start..start + source.len();
        let get = Get::LOCK | Get::ACCESSED | Get::WRITE | Get::STABLE | Get::waiting(wait);
        let mut spare = None;
        loop {
            // The epoch is read before the lookup: if a block is made from here on, the epoch
            // moves.
            let epoch = self.blocks.hole_epoch.load(Ordering::SeqCst);
            if let Got::Locked(locked) = self.get_page(block, get)? {
                if self.store_locked(locked, inside.clone(), source, &mut spare)? {
                    return Ok(());
                }
                if wait == Wait::No {
                    return Err(self.would_block(offset));
                }
                // The block is viewed. The frame to move it to is allocated with no lock held.
                spare = Some(self.pool.alloc(
                    self.id.group.id(),
                    self.id.order,
                    AllocMode::Wait,
                )?);
                continue;
            }
            if wait == Wait::No {
                return Err(self.would_block(offset));
            }
            let end = offset + source.len() as u64;
            let covers_block = inside.len() as u64 == self.block_bytes();
            failpoint!(NotCached);
            let is_new = covers_block && matches!(source, Source::Bytes(_));
            let done = if is_new && self.mappers.is_empty() {
                // All bytes that the store may have there are overwritten.
                self.write_new_block(block, inside.clone(), source, Basis::Nothing)?
            } else if self.content(block)? == Content::Hole {
                if matches!(source, Source::Zeros(_)) && end <= self.size() {
                    return Ok(());
                }
                failpoint!(HoleFound);
                let basis = match covers_block {
                    true => Basis::Nothing,
                    false => self.hole_basis(block, epoch),
                };
                self.write_over_hole(block, inside.clone(), source, basis)?
            } else if covers_block {
                self.write_new_block(block, inside.clone(), source, Basis::Nothing)?
            } else if start == 0 && end >= self.size() {
                // All bytes that the store has of the block are overwritten.
                self.write_new_block(block, inside.clone(), source, Basis::StoredUpTo(end))?
            } else {
                let filled = self.fill_absent(block, Get::WRITE, steady, Miss::of(&self.stream))?;
                debug_assert_eq!(filled, Filled::LookAgain, "data was found above");
                false
            };
            if done {
                return Ok(());
            }
        }
    }

    /// Stores into a locked block, after moving it to `spare` if it is viewed. Returns false if it
    /// is viewed and there is no spare.
    fn store_locked<'f>(
        &'f self,
        mut locked: Locked<'f>,
        inside: Range<usize>,
        source: Source<'_>,
        spare: &mut Option<PoolFrame<'_>>,
    ) -> Result<bool, FileError> {
        let mut writing = Writing::begin(self.frames(), locked.frame());
        if writing.is_none() {
            let Some(frame) = spare.take() else {
                return Ok(false);
            };
            locked = self.move_block(locked, frame);
            writing = Writing::begin(self.frames(), locked.frame());
        }
        match (&mut writing, source) {
            (Some(writing), Source::Bytes(bytes)) => writing.write(inside.start, bytes),
            (Some(writing), Source::Zeros(_)) => writing.zero(inside.clone()),
            // A view was taken between the move and the second attempt: the lock excludes writers,
            // not viewers.
            (None, _) => return Ok(false),
        }
        drop(writing);
        locked.written_in_place(&inside);
        self.mark_dirty(locked.block(), locked.frame());
        self.grow_to((locked.block() << self.block_shift()) + inside.end as u64);
        Ok(true)
    }

    /// Makes the file at least `end` bytes long. The caller has stored the bytes, and holds the
    /// lock of the block in which they end.
    pub(crate) fn grow_to(&self, end: u64) {
        if self.blocks.size.load(Ordering::Relaxed) < end {
            let _alone = self.dirty();
            self.grow_locked(end);
        }
    }

    /// Like [`FileCore::grow_to`], with the mutex of the index held. No thread cuts the file
    /// meanwhile: the caller holds `invalidate`, or has seen under the mutex that no thread holds
    /// it exclusively.
    #[inline]
    pub(crate) fn grow_locked(&self, end: u64) {
        if self.blocks.size.load(Ordering::Relaxed) < end {
            self.set_size(end);
        }
    }

    /// Moves a locked block to another frame, and returns it locked; the old frame is left to its
    /// views. The new frame is already charged, so this cannot fail.
    pub(crate) fn move_block<'f>(
        &'f self,
        old: Locked<'f>,
        mut spare: PoolFrame<'_>,
    ) -> Locked<'f> {
        let (block, old_frame) = (old.block(), old.frame());
        let old_meta = old.meta();
        debug_assert!(
            !old_meta.flags.load().contains(FlagSet::WRITEBACK),
            "I5: stable before it moves"
        );
        spare.copy_from(old_frame);
        let flags = old_meta.flags.load();
        let mut kept = FlagSet::LOCKED | FlagSet::UPTODATE;
        for flag in [
            FlagSet::DIRTY,
            FlagSet::REFERENCED,
            FlagSet::ACTIVE,
            FlagSet::ERROR,
        ] {
            if flags.contains(flag) {
                kept |= flag;
            }
        }
        spare.set_flags(kept);
        spare.set_kind(Kind::Cached);
        spare.set_owner(self.id.owner.0);
        spare.set_index(block);
        let frame = spare.publish(INDEX_AND_USER);
        self.blocks
            .index
            .write()
            .replace(self.frames(), block, old_frame, frame);
        let new = Locked::new(crate::cache::lookup::block::BlockRef::new(
            self, frame, block,
        ));
        // No fault installs the old frame from here on. Page tables that have it lose it before the
        // new frame can be written.
        if old_meta.hold.load().mapped() > 0 {
            self.revoke_and_wait(block..block + 1, Revoke::All);
        }
        self.pool.lru_set(old_frame, crate::reclaim::Evictable::No);
        self.pool.lru_add(frame);
        old_meta.flags.clear(FlagSet::DIRTY | FlagSet::ERROR);
        let dropped = self.pool.uncache(old_frame);
        debug_assert_eq!(dropped, Dropped::Held, "our own reference is left");
        count(&self.counters.moved, 1);
        self.pool.counters.add(Event::ViewMove, self.block_pages());
        drop(old);
        new
    }

    /// Clears bytes that were stored past the end of the file through a mapping: they must not
    /// become visible when the file grows to `new_end`.
    #[inline]
    pub(crate) fn clear_tail_before(&self, new_end: u64) -> Result<(), FileError> {
        let size = self.size();
        if new_end <= size || self.inside_block(size) == 0 {
            return Ok(());
        }
        self.clear_tail(size)
    }

    #[cold]
    pub(crate) fn clear_tail(&self, size: u64) -> Result<(), FileError> {
        // If no translation can store, the bytes past the end are already zeros (see
        // `zero_past_end`), except for a tail that was left uncleared.
        match self.lookup(size >> self.block_shift()) {
            Some(held)
                if held.meta().hold.load().is_wmapped()
                    || self.blocks.tail_left.load(Ordering::Acquire) =>
            {
                drop(held);
                self.zero_tail(size)?;
                self.blocks.tail_left.store(false, Ordering::Release);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Clears the cached part of the last block past `size`, and takes away the translations of
    /// pages wholly past it. If the block is viewed, it is moved first. If there is no memory to
    /// move it, the block is evicted if the store has its bytes; otherwise this fails.
    pub(crate) fn zero_tail(&self, size: u64) -> Result<(), FileError> {
        let mut spare = None;
        let block = size >> self.block_shift();
        let tail = self.inside_block(size) as usize;
        if tail == 0 {
            return Ok(());
        }
        loop {
            let Got::Locked(mut locked) = self.get_page(block, Get::LOCK | Get::STABLE)? else {
                return Ok(());
            };
            self.end_write_mappings(&locked);
            let first_past = size.div_ceil(PAGE_SIZE as u64);
            let pages = first_past..self.pages_in(block).end;
            if !pages.is_empty() && locked.meta().hold.load().mapped() > 0 {
                self.mappers.revoke(pages, Revoke::All);
                self.grace();
            }
            let mut writing = Writing::begin(self.frames(), locked.frame());
            if writing.is_none() {
                let Some(frame) = spare.take() else {
                    drop(locked);
                    let alloc = |mode| self.pool.alloc(self.id.group.id(), self.id.order, mode);
                    spare = match alloc(AllocMode::NoIo) {
                        Ok(frame) => Some(frame),
                        Err(_) if forget_clean(self, block..block + 1) > 0 => return Ok(()),
                        Err(_) => Some(alloc(AllocMode::Wait)?),
                    };
                    continue;
                };
                locked = self.move_block(locked, frame);
                writing = Writing::begin(self.frames(), locked.frame());
            }
            let Some(mut writing) = writing else {
                continue;
            };
            // Checked under the lock: a writer may have made the file longer meanwhile.
            let rest = tail..self.block_bytes() as usize;
            if self.size() == size {
                writing.zero(rest.clone());
            }
            drop(writing);
            locked.written_in_place(&rest);
            return Ok(());
        }
    }
}
