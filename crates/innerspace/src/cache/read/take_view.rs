//! Takes views of a file: a hit is inlined in the caller, and everything else is one call.

use std::hint::cold_path;
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::core::handle::Handle;
use crate::cache::errors::FileError;
use crate::cache::index::Word;
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::Get;
use crate::cache::map::mappers::Revoke;
use crate::cache::read::fill::{Miss, Present};
use crate::cache::read::view::{MAX_COPY, View};
use crate::cache::wait::Wait;
use crate::frame::{
    Dropped, FlagSet, Grip, Guessed, Here, HoldState, Kind, Pinned, Taken, Try, Uses, Writing,
};
use crate::reclaim::{Evictable, Pool};
use crate::stats::Event;
use crate::sync::raw;
use crate::sync::{Arc, failpoint};
use crate::units::PAGE_SIZE;

/// The result of a second look at the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// The block is still there.
    Still,
    /// Another block is there, or no block.
    Changed,
}

impl Handle {
    /// Returns a view of `range`, which is inside the file's size at some moment of the call. A hit
    /// is compiled into the caller, so that the view's parts stay in registers: moving them through
    /// memory costs more than the lookup.
    #[inline(always)]
    pub(crate) fn view(
        self: &Arc<Handle>,
        range: Range<u64>,
        wait: Wait,
    ) -> Result<View, FileError> {
        if let Some(pinned) = self.hit(&range) {
            return Ok(View(pinned));
        }
        // The length, which a caller often knows at compile time, and the error, which has to be
        // distinguished from a view, are handled here. So checking either of them after a hit costs
        // nothing.
        let len = (range.end - range.start) as usize;
        match Pinned::of_len(len, move || self.view_missed(range, wait)) {
            Ok(pinned) => Ok(View(pinned)),
            Err(error) => Err(error),
        }
    }

    /// Returns a view of a range of one block, if it is cached and hot.
    ///
    /// How many views a processor has under way at a time depends on the number of instructions,
    /// which are counted (see `BENCHMARKS.md`). So every unusual case is left to a call.
    #[inline(always)]
    fn hit(&self, range: &Range<u64>) -> Option<Pinned<Pool>> {
        let core = &*self.core;
        if range.is_empty() || range.end > core.size() {
            cold_path();
            return None;
        }
        let len = usize::try_from(range.end - range.start).ok()?;
        // A file with tags has blocks of one page.
        let tag = core
            .blocks
            .index
            .tags()
            .sought(range.start / PAGE_SIZE as u64);
        Pinned::find(&*core.pool, range.start as usize % PAGE_SIZE, len, |pool| {
            pool.take_hot(tag)
        })
    }

    /// Takes a view that misses.
    #[cold]
    #[inline(never)]
    fn view_missed(
        self: &Arc<Handle>,
        range: Range<u64>,
        wait: Wait,
    ) -> Result<Pinned<Pool>, FileError> {
        if let Some(pinned) = self.cool_hit(&range) {
            self.note_ahead_view(&pinned, range.start);
            return Ok(pinned);
        }
        let View(pinned) = self.view_without_hit(range, wait)?;
        Ok(pinned)
    }

    /// Notes that a view was found. If that is the first use of its block since the block was read
    /// ahead, the stream continues.
    fn note_ahead_view(&self, pinned: &Pinned<Pool>, start: u64) {
        if let Some(uses) = pinned.uses()
            && uses.has(Uses::AHEAD)
        {
            let block = start >> self.core.block_shift();
            (self.core).go_on(block, uses, &self.stream, Get::NONE, drop);
        }
    }

    /// Like [`Handle::hit`], for a block that is not hot, or not where it was last found.
    fn cool_hit(&self, range: &Range<u64>) -> Option<Pinned<Pool>> {
        let core = &*self.core;
        if range.is_empty() || range.end > core.size() {
            return None;
        }
        let len = usize::try_from(range.end - range.start).ok()?;
        Pinned::find(&*core.pool, range.start as usize % PAGE_SIZE, len, |pool| {
            core.cool_hit(pool, range.start)
        })
    }

    fn view_without_hit(
        self: &Arc<Handle>,
        range: Range<u64>,
        wait: Wait,
    ) -> Result<View, FileError> {
        let core = &self.core;
        core.check_process()?;
        let size = core.size();
        if range.end > size {
            return Err(core.past_end(range.start, range.end - range.start, size));
        }
        if range.is_empty() {
            return Ok(View::zeros(0));
        }
        let shift = core.block_shift();
        let block = range.start >> shift;
        if block != (range.end - 1) >> shift {
            return self.copied_view(range, wait);
        }
        let start = core.inside_block(range.start) as usize;
        let inside = start..start + (range.end - range.start) as usize;
        match self.pin_slowly(block, inside) {
            Some(pinned) => {
                self.note_ahead_view(&pinned, range.start);
                Ok(View(pinned))
            }
            None => self.view_slowly(range, wait),
        }
    }

    /// Like [`Handle::hit`], but also walks the index, in a section.
    fn pin_slowly(&self, block: u64, inside: Range<usize>) -> Option<Pinned<Pool>> {
        let core = &*self.core;
        Pinned::find(
            &*core.pool,
            inside.start % PAGE_SIZE,
            inside.len(),
            |pool| {
                let section = pool.owner().domain.reader();
                let found = core.take_in_section(pool, block, Try::Again);
                drop(section);
                let (taken, seen) = found?;
                core.take_seen(taken, seen, block, inside.start)
            },
        )
    }

    /// Takes a view of a range of one block that did not hit. Without waiting, only of a hole.
    #[cold]
    fn view_slowly(self: &Arc<Handle>, range: Range<u64>, wait: Wait) -> Result<View, FileError> {
        let core = &self.core;
        let block = range.start >> core.block_shift();
        let start = core.inside_block(range.start) as usize;
        let inside = start..start + (range.end - range.start) as usize;
        loop {
            match core.read_block(range.start, Miss::of(&self.stream), wait)? {
                Present::Hole => return Ok(View::zeros(inside.len())),
                Present::Block(_held) => {
                    if let Some(pinned) = self.pin_slowly(block, inside.clone()) {
                        return Ok(View(pinned));
                    }
                }
            }
            // The block is being written, or mapped writable.
            if wait == Wait::No {
                return Err(core.would_block(range.start));
            }
            core.check_not_reentrant()?;
            let Some(locked) = core.find_lock(block)? else {
                continue;
            };
            core.end_write_mappings(&locked);
            if let Some(pinned) = Pinned::try_new(&core.pool, locked.frame(), inside.clone()) {
                return Ok(View(pinned));
            }
            // The block's count of views is full. The copy has a count of its own.
            drop(locked);
            return self.copied_view(range, Wait::Yes);
        }
    }

    /// A view over several blocks: one frame or block of frames, filled by copying.
    fn copied_view(self: &Arc<Handle>, range: Range<u64>, wait: Wait) -> Result<View, FileError> {
        let core = &*self.core;
        let len = range.end - range.start;
        if len > MAX_COPY {
            return Err(FileError::ViewTooLarge {
                file: core.id.name.clone(),
                len,
                max: MAX_COPY,
            });
        }
        let pages = len.div_ceil(PAGE_SIZE as u64).next_power_of_two();
        let order = pages.trailing_zeros() as u8;
        let group = core.id.group.id();
        let alloc = || Ok(core.pool.alloc(group, order, wait.alloc_mode())?);
        let mut copy = match wait {
            Wait::Yes => core.with_room(alloc)?,
            Wait::No => alloc()?,
        };
        let mut done = 0;
        while done < len {
            let offset = range.start + done;
            let part = core
                .left_in_block(offset)
                .min((range.end - offset) as usize);
            let into = &mut copy.bytes_mut()[done as usize..done as usize + part];
            let last = (range.end - 1) >> core.block_shift();
            let wanted = last - (offset >> core.block_shift()) + 1;
            self.read_part(offset, into, wait, wanted)?;
            done += part as u64;
        }
        count(&core.counters.copied_views, 1);
        core.pool.counters.add(Event::ViewCopy, pages);
        // Published as a block of no file, viewed, and taken out again: then only the view keeps
        // it.
        copy.set_flags(FlagSet::UPTODATE);
        copy.set_kind(Kind::Cached);
        let frame = copy.publish(HoldState::cached(1));
        core.pool.lru_add(frame);
        let pinned = Pinned::try_new(&core.pool, frame, 0..len as usize);
        let dropped = core.pool.uncache(frame);
        let pinned = pinned.expect("nobody else takes the frame out or writes to it");
        debug_assert_eq!(dropped, Dropped::Held);
        core.pool.lru_set(frame, Evictable::No);
        Ok(View(pinned))
    }
}

/// Returns the view from `inside` bytes in the found block. Marks the block used, and hot if there
/// was no mark to make. Returns `None` if the block is not up to date.
#[inline]
fn take_found<'id>(taken: Taken<'id, Pool>, inside: usize) -> Option<Grip<'id, Pool>> {
    let (pool, frame, flags) = (taken.owner(), taken.frame(), taken.flags());
    let grip = taken.up_to_date(inside)?;
    pool.mark_accessed_at(frame, flags);
    pool.warm_if_marked(frame);
    Some(grip)
}

impl FileCore {
    /// Returns a view from `start`, which is inside the file, of the block there, if that needs no
    /// waiting.
    fn cool_hit<'id>(&self, pool: Here<'id, Pool>, start: u64) -> Option<Grip<'id, Pool>> {
        let inside = self.inside_block(start) as usize;
        let tag = self.blocks.index.tags().sought(start / PAGE_SIZE as u64);
        if tag.is_somewhere() {
            match pool.take_guessed(tag) {
                Guessed::Sought(taken) => return take_found(taken, inside),
                Guessed::Other(taken) => taken.give_back(),
                Guessed::Nothing => {}
            }
        }
        let block = start >> self.block_shift();
        let section = pool.owner().domain.look()?;
        let found = self.take_in_section(pool, block, Try::Once);
        drop(section);
        let (taken, seen) = found?;
        self.take_seen(taken, seen, block, inside)
    }

    /// Returns the view from `inside` bytes in the block that the index led to, if it was still
    /// there. The next lookup guesses its frame.
    fn take_seen<'id>(
        &self,
        taken: Taken<'id, Pool>,
        seen: Seen,
        block: u64,
        inside: usize,
    ) -> Option<Grip<'id, Pool>> {
        if seen == Seen::Changed {
            taken.give_back();
            return None;
        }
        self.note_found(block, taken.frame());
        take_found(taken, inside)
    }

    /// Returns a view of the block that is cached at `block`, and whether it still was that block
    /// when the view was taken (I10). The caller is in a section of the file's pool.
    #[inline(always)]
    fn take_in_section<'id>(
        &self,
        pool: Here<'id, Pool>,
        block: u64,
        try_: Try,
    ) -> Option<(Taken<'id, Pool>, Seen)> {
        let slot = self.blocks.index.slot(&pool.owner().frames, block)?;
        let word = slot.load(raw::Ordering::Acquire);
        failpoint!(WordRead);
        let taken = pool.take(Word::block_at(word), try_)?;
        let seen = match slot.load(raw::Ordering::Acquire) == word {
            true => Seen::Still,
            false => Seen::Changed,
        };
        Some((taken, seen))
    }

    /// Takes the right to store away from every mapping of a locked block, and waits until no
    /// access uses it.
    pub(crate) fn end_write_mappings(&self, locked: &Locked<'_>) {
        if locked.meta().hold.load().is_wmapped() {
            self.revoke_and_wait(locked.block()..locked.block() + 1, Revoke::Write);
            self.zero_past_end(locked);
            locked.meta().hold.clear_wmapped();
        }
    }

    /// Clears bytes that were stored past the end of the file through mappings of a locked block,
    /// whose right to store has just been taken away. WMAPPED is still set, so there is no view of
    /// the block.
    pub(crate) fn zero_past_end(&self, locked: &Locked<'_>) {
        let start = locked.block() << self.block_shift();
        let inside = self.size().saturating_sub(start).min(self.block_bytes()) as usize;
        if inside < self.block_bytes() as usize
            && let Some(mut writing) = Writing::begin(self.frames(), locked.frame())
        {
            let rest = inside..self.block_bytes() as usize;
            writing.zero(rest.clone());
            drop(writing);
            locked.written_in_place(&rest);
        }
    }
}
