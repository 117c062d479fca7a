//! Takes views of a file: a hit is inlined in the caller, and everything else is one call.

use std::hint::cold_path;
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::handle::Handle;
use crate::cache::errors::FileError;
use crate::cache::index::Word;
use crate::cache::lookup::get::Get;
use crate::cache::read::fill::{Miss, Present};
use crate::cache::read::view::View;
use crate::cache::wait::Wait;
use crate::cache::write::in_place::end_write_mappings;
use crate::frame::{Grip, Here, Pinned, Taken, Uses};
use crate::reclaim::Pool;
use crate::sync::{Arc, failpoint, raw};
use crate::units::PAGE_SIZE;

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
        let in_page = range.start % PAGE_SIZE as u64;
        if range.end - range.start > PAGE_SIZE as u64 - in_page
            && let Some(pinned) = self.hit_pair(&range)
        {
            return Ok(View(pinned));
        }
        // The length, which a caller often knows at compile time, and the error, which has to be
        // distinguished from a view, are handled here. So checking either of them after a hit costs
        // nothing.
        let len = (range.end - range.start) as usize;
        match self.view_missed(range, wait) {
            Ok(pinned) => Ok(View(pinned.of_len(len))),
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
        let in_page = range.start as usize % PAGE_SIZE;
        // A file with tags has blocks of one page.
        if len > PAGE_SIZE - in_page {
            cold_path();
            return None;
        }
        let tag = core
            .blocks
            .index
            .tags()
            .sought(range.start / PAGE_SIZE as u64);
        Pinned::find(&*core.pool, in_page, len, |pool| pool.take_hot(tag))
    }

    /// Returns a view over the end of a page, if its two pages are cached, hot, and in a row.
    #[inline(never)]
    fn hit_pair(&self, range: &Range<u64>) -> Option<Pinned<Pool>> {
        let core = &*self.core;
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        let (page, in_page) = (
            range.start / PAGE_SIZE as u64,
            range.start as usize % PAGE_SIZE,
        );
        // A file with tags has blocks of one page.
        if len > 2 * PAGE_SIZE - in_page || range.end > core.size() {
            return None;
        }
        let tags = core.blocks.index.tags();
        let tags = [tags.sought(page), tags.sought(page + 1)];
        Pinned::find_pair(&*core.pool, tags, in_page, len)
    }

    /// Takes a view that misses.
    #[cold]
    #[inline(never)]
    fn view_missed(
        self: &Arc<Handle>,
        range: Range<u64>,
        wait: Wait,
    ) -> Result<Pinned<Pool>, FileError> {
        let core = &*self.core;
        core.check_process()?;
        let (len, size) = (range.end - range.start, core.size());
        if range.end > size {
            return Err(core.past_end(range.start, len, size));
        }
        let start = core.inside_block(range.start);
        let View(pinned) = if len == 0 {
            View::zeros(0)
        } else if start + len > core.block_bytes() {
            self.view_across(range, wait)?
        } else {
            let block = range.start >> core.block_shift();
            let inside = start as usize..(start + len) as usize;
            match self.pin(block, &inside) {
                Some(pinned) => {
                    self.note_ahead_view(&pinned, block);
                    View(pinned)
                }
                None => self.view_slowly(block, inside, wait)?,
            }
        };
        Ok(pinned)
    }

    /// Notes that a view was found. If that is the first use of its block since the block was read
    /// ahead, the stream continues.
    fn note_ahead_view(&self, pinned: &Pinned<Pool>, block: u64) {
        if let Some(uses) = pinned.uses()
            && uses.has(Uses::AHEAD)
        {
            (self.core).go_on(block, uses, &self.stream, Get::NONE, drop);
        }
    }

    /// Like [`Handle::hit`], for a block that is not hot, or not where it was last found.
    fn pin(&self, block: u64, inside: &Range<usize>) -> Option<Pinned<Pool>> {
        let (pool, start) = (&*self.core.pool, inside.start % PAGE_SIZE);
        Pinned::find(pool, start, inside.len(), |pool| {
            take_block(&self.core, pool, block, inside.start)
        })
    }

    /// Takes a view of a range of one block that was not a hit. If it may not wait, this fails for
    /// a block that has to be filled, is being written, or is mapped writable.
    #[cold]
    fn view_slowly(
        self: &Arc<Handle>,
        block: u64,
        inside: Range<usize>,
        wait: Wait,
    ) -> Result<View, FileError> {
        let core = &self.core;
        let start = (block << core.block_shift()) + inside.start as u64;
        loop {
            match core.read_block(start, Miss::of(&self.stream), wait)? {
                Present::Hole => return Ok(View::zeros(inside.len())),
                Present::Block(_held) => {
                    if let Some(pinned) = self.pin(block, &inside) {
                        return Ok(View(pinned));
                    }
                }
            }
            // The block is being written, or mapped writable.
            if wait == Wait::No {
                return Err(core.would_block(start));
            }
            core.check_not_reentrant()?;
            let Some(locked) = core.find_lock(block, Get::NONE)? else {
                continue;
            };
            end_write_mappings(core, std::slice::from_ref(&locked));
            if let Some(pinned) = Pinned::try_new(&core.pool, locked.frame(), inside.clone()) {
                return Ok(View(pinned));
            }
            // The block's count of views is full. The copy has a count of its own.
            drop(locked);
            let range = start..start + inside.len() as u64;
            return self.copied_view(range, Wait::Yes);
        }
    }
}

/// Returns the view that begins `inside` bytes into the found block. Marks the block used, and hot
/// if there was no mark to make. Returns `None` if the block is not up to date.
#[inline]
pub(super) fn take_found<'id>(taken: Taken<'id, Pool>, inside: usize) -> Option<Grip<'id, Pool>> {
    let (pool, frame, flags) = (taken.owner(), taken.frame(), taken.flags());
    let grip = taken.up_to_date(inside)?;
    pool.mark_accessed_at(frame, flags);
    pool.warm_if_marked(frame);
    Some(grip)
}

/// Returns a view that begins `inside` bytes into the block, if it is cached, up to date, and not
/// being written or mapped writable. Neither fills nor locks it.
pub(super) fn take_block<'id>(
    core: &FileCore,
    pool: Here<'id, Pool>,
    block: u64,
    inside: usize,
) -> Option<Grip<'id, Pool>> {
    let tag = core.blocks.index.tags().sought(block);
    if tag.is_somewhere()
        && let Some(taken) = pool.take_guessed(tag)
    {
        return take_found(taken, inside);
    }
    let domain = &pool.owner().domain;
    loop {
        let taken = match domain.look() {
            Some(_section) => take_in_section(core, pool, block),
            None => {
                let _section = domain.reader();
                take_in_section(core, pool, block)
            }
        }?;
        match taken {
            Ok(taken) => {
                // The next lookup guesses the frame.
                core.note_found(block, taken.frame());
                return take_found(taken, inside);
            }
            Err(other) => other.give_back(),
        }
    }
}

/// Returns a view of the block that is cached at `block`, or `Err` with a view of a block that no
/// longer was there when the view was taken (I10). The caller is in a section of the file's pool.
fn take_in_section<'id>(
    core: &FileCore,
    pool: Here<'id, Pool>,
    block: u64,
) -> Option<Result<Taken<'id, Pool>, Taken<'id, Pool>>> {
    let slot = core.blocks.index.slot(&pool.owner().frames, block)?;
    let word = slot.load(raw::Ordering::Acquire);
    failpoint!(WordRead);
    let taken = pool.take(Word::block_at(word))?;
    let is_there = slot.load(raw::Ordering::Acquire) == word;
    Some(if is_there { Ok(taken) } else { Err(taken) })
}
