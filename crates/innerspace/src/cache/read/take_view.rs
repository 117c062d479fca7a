//! Takes views of a file: a hit is inlined in the caller, and everything else is one call.

use std::hint::cold_path;
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::handle::Handle;
use crate::cache::errors::FileError;
use crate::cache::index::Word;
use crate::cache::lookup::get::Get;
use crate::cache::read::fill::Miss;
use crate::cache::read::view::View;
use crate::cache::wait::Wait;
use crate::cache::write::in_place::end_write_mappings;
use crate::frame::{Pinned, Uses};
use crate::reclaim::Pool;
use crate::sync::{Arc, failpoint, raw};
use crate::units::{FrameId, PAGE_SIZE};

impl Handle {
    /// Returns a view of `range`, which must be inside the file at some moment of the call. A hit
    /// is inlined in the caller, so that the view's parts stay in registers: moving them through
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

    /// Returns a view of a range inside one page, if the file has blocks of one page, and the page
    /// is cached and hot.
    ///
    /// The fewer instructions a view takes, the more views a processor has under way at a time. The
    /// instructions are counted (see `BENCHMARKS.md`), so every unusual case is left to a call.
    #[inline(always)]
    fn hit(&self, range: &Range<u64>) -> Option<Pinned<Pool>> {
        let core = &*self.core;
        if range.is_empty() || range.end > core.size() {
            cold_path();
            return None;
        }
        let len = usize::try_from(range.end - range.start).ok()?;
        let in_page = range.start as usize % PAGE_SIZE;
        // A file with tags has blocks of one page, so a longer view is no hit here.
        if len > PAGE_SIZE - in_page {
            cold_path();
            return None;
        }
        let tag = core
            .blocks
            .index
            .tags()
            .sought(range.start / PAGE_SIZE as u64);
        Pinned::find_hot(&*core.pool, tag, in_page, len)
    }

    /// Returns a view across the boundary of two pages, if both are cached and hot, and their
    /// frames are consecutive.
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

    /// Takes a view that is not a hit: of a block that is not hot, that is not where it was last
    /// found, or that has to be filled; or of several blocks. With [`Wait::No`], fails for a block
    /// that has to be filled, is being written, or is mapped writable, and for a view longer than
    /// `MAX_ZEROS` whose blocks are not cached in consecutive frames.
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
        if len == 0 {
            return Ok(View::zeros(0).0);
        }
        let start = core.inside_block(range.start);
        if start + len > core.block_bytes() {
            return self.view_across(range, wait).map(|View(pinned)| pinned);
        }
        let block = range.start >> core.block_shift();
        let inside = start as usize..(start + len) as usize;
        if let Some(pinned) = take_cached(core, block, inside.clone()) {
            // At the first use since the block was read ahead, its stream continues.
            if let Some(meta) = pinned.meta()
                && meta.uses.has(Uses::AHEAD)
            {
                core.go_on(block, &meta.uses, &self.stream, Get::NONE, drop);
            }
            return Ok(pinned);
        }
        let take = |frame| take_held(core, (block, frame), inside.clone());
        loop {
            match core.read_block(range.start, Miss::of(&self.stream), wait)? {
                None => return Ok(View::zeros(len as usize).0),
                Some(held) => {
                    if let Some(pinned) = take(held.frame) {
                        return Ok(pinned);
                    }
                    if !held.meta().hold.load().is_cached() {
                        // The block was moved or cut off. The block that the index has now can
                        // perhaps be viewed.
                        continue;
                    }
                }
            }
            // The block is being written, or mapped writable.
            if wait == Wait::No {
                return Err(core.would_block(range.start));
            }
            core.check_not_reentrant()?;
            let Some(locked) = core.find_lock(block, Get::NONE)? else {
                continue;
            };
            end_write_mappings(core, std::slice::from_ref(&locked));
            if let Some(pinned) = take(locked.frame()) {
                return Ok(pinned);
            }
            // The block's count of views is full. The copy has a count of its own.
            drop(locked);
            return self.copied_view(range, wait).map(|View(pinned)| pinned);
        }
    }
}

/// Returns a view of the bytes `inside` of a cached block, without a reference to the block: by a
/// guess of its frame, or, in a file without tags, by one look at the index. Marks the block used,
/// and makes it hot if it then has all marks. Returns `None` if the block was not found in this
/// way, is not up to date, is being written or is mapped writable.
pub(super) fn take_cached(
    core: &FileCore,
    block: u64,
    inside: Range<usize>,
) -> Option<Pinned<Pool>> {
    let (index, pool) = (&core.blocks.index, &*core.pool);
    let tag = index.tags().sought(block);
    let (frame, taken) = if tag.is_somewhere() {
        Pinned::take_guessed(pool, tag)?
    } else {
        let section = pool.domain.reader();
        let slot = index.slot(core.frames(), block)?;
        let word = slot.load(raw::Ordering::Acquire);
        let Word::Block(frame) = Word::decode(word) else {
            return None;
        };
        failpoint!(WordRead);
        let taken = Pinned::take(pool, frame)?;
        let is_there = slot.load(raw::Ordering::Acquire) == word;
        // A view of another block is dropped outside the section.
        drop(section);
        (frame, is_there.then_some(taken)?)
    };
    let view = taken.up_to_date(inside)?;
    pool.mark_accessed(frame);
    pool.warm_if_marked(frame);
    Some(view)
}

/// Returns a view of the bytes `inside` of a block which the caller holds in the given frame. Marks
/// the block used, and makes it hot if it then has all marks. Enters the frame in the lookaside
/// table, so that the next view guesses it. Returns `None` if the block has left the frame, is not
/// up to date, is being written or is mapped writable, or if its count of views is full.
///
/// The block may be moved meanwhile. Its old frame stays CACHED until the index leads to the new
/// one, and leaves the cache before the new one is written. So the view shows the block's bytes as
/// they were when it was found, or later (I10).
pub(super) fn take_held(
    core: &FileCore,
    (block, frame): (u64, FrameId),
    inside: Range<usize>,
) -> Option<Pinned<Pool>> {
    let view = Pinned::try_new(&core.pool, frame, inside)?;
    core.note_found(block, frame);
    core.pool.mark_accessed(frame);
    core.pool.warm_if_marked(frame);
    Some(view)
}
