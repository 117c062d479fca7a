//! Views over several blocks: one slice, of blocks whose frames are consecutive.
//!
//! ```text
//! view_across
//!  |- a view of each block, and they lie in a row ---------------------> Row: nothing is copied
//!  |- only a hole, of 2 MiB at most ------------------------------------> static zeros
//!  |- at most a page, or the call may not wait -> copied_view ----------> a copy, page by page
//!  `- line_up, with the file's turn
//!      window of holes as long as the view            frame/window.rs
//!      for each block, in order:
//!       |- cached: lock it, STABLE, no write mapping; move it into the window; view; unlock
//!       |- absent: make it and the absent ones behind it in the window; one request; view
//!       `- a hole: make it there, of zeros; view -----------------------> Row
//! ```
//!
//! A call that may not wait copies at most 2 MiB; for a longer view, it returns "would block".
//!
//! **Placement.** Blocks that are read together get consecutive frames where the allocator has
//! them. So the first line of the diagram serves blocks that were read in order, and a small view
//! across a block's end costs as much as two views. Otherwise the blocks move once, and stay: they
//! are the file's blocks at their new place, the next view finds them consecutive, and no byte is
//! resident twice. A whole file that is not cached is read straight into its window. Fragmentation
//! never makes a window fail as long as addresses are left: free frames anywhere are exchanged for
//! the holes of the window.
//!
//! An alternative was measured: a window onto a memfd, mapped block by block (`mmap` with
//! `MAP_FIXED`), without any copy. It is slower. With blocks of 4 KiB, every block needs its own
//! mapping, and a process may have only 65,530. Mapping a block, faulting it in and unmapping it
//! takes 12 microseconds at each view. A copy takes 5 microseconds, and only once. With blocks of 2
//! MiB, mapping 1 GiB takes 1 ms, but faulting in its pages takes 110 ms at each view, while
//! touching the pages of a row takes 8 ms. Also, a memfd's memory cannot have `MADV_WIPEONFORK`,
//! and gets huge pages only where the host allows them.
//!
//! **A view shows one moment for each block**, as a read does: each block's bytes are as they were
//! when its view was taken, and do not change. A writer that comes while the row is being made
//! moves its block away, and leaves the row's frame to the view (P28).
//!
//! **Dirty blocks** move as they do for a writer (`move_block`): the mark moves with the frame,
//! under the block's lock, and a block under writeback is waited for. **Mapped blocks**: write
//! translations are revoked first, as for every view, and all translations of the old frame when
//! the block has moved, before another thread can write to the new one. **Cuts** exclude fills by
//! `invalidate`, and wait for block locks; a row that meets the file's new end fails, and blocks
//! that were viewed before are left to the views. **Errors** leave everything as it was, except for
//! blocks that were read, and blocks that have moved, which are as good at their new place: views,
//! frames without a block and the window are released when they are dropped.
//!
//! **The turn.** One thread at a time lines up a file's blocks; two would take them from each
//! other. Readers do not wait for the turn, and may fill a block just before this thread does. In
//! that case the block's place in the window is lost (its frame was freed, and may be in use
//! elsewhere), and the view is a copy, charged page by page. That is rare.
//!
//! **Memory.** Frames are charged as they are needed, some blocks at a time, with no block locked,
//! and a block that moves gives its old frame back immediately. So a view takes the memory of its
//! blocks, and for a short time a little more. If a view meets a limit, the error gives the pages
//! of the whole view, and counts memory after the view has released its blocks.

use std::collections::VecDeque;
use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::core::counters::count;
use crate::cache::core::gate::ROOMS;
use crate::cache::core::handle::Handle;
use crate::cache::errors::FileError;
use crate::cache::index::spare_nodes::SpareNodes;
use crate::cache::lookup::block::{BlockRef, NewBlock};
use crate::cache::lookup::get::{Basis, Get};
use crate::cache::read::content::content;
use crate::cache::read::fill::Miss;
use crate::cache::read::holes::Content;
use crate::cache::read::take_view::{take_cached, take_held};
use crate::cache::read::view::{MAX_ZEROS, View};
use crate::cache::wait::Wait;
use crate::cache::write::in_place::{end_write_mappings, move_block};
use crate::cache::write::write_at::end_operation;
use crate::frame::{Dropped, FlagSet, HoldState, Kind, Pinned, Row, Uses, Window};
use crate::group::{GroupId, LimitError, LimitReason};
use crate::reclaim::{AllocMode, Evictable, Io, Pool, PoolFrame};
use crate::stats::Event;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::units::{MIB, PAGE_SHIFT, PAGE_SIZE, PageCount};

/// The most bytes of frames that are taken at a time, before their blocks are read or moved. They
/// also take at most `1 / AT_ONCE_PART` of the nearest limit. But the frames of at least one block
/// are taken.
const AT_ONCE: u64 = 2 * MIB;
const AT_ONCE_PART: u64 = 16;

/// The progress of `line_up`, which brings the blocks of a range into the consecutive frames of a
/// window.
struct LineUp<'f> {
    core: &'f FileCore,
    blocks: Range<u64>,
    window: Window<'f>,
    /// Frames that already have the window's next addresses.
    frames: VecDeque<PoolFrame<'f>>,
    /// The block after the last one that was made in the window or moved there.
    placed: u64,
    /// Keeps blocks that were made in the window until they are viewed.
    made: Vec<BlockRef<'f>>,
    row: Row<'f, Pool>,
}

impl Handle {
    /// Returns a view over several blocks.
    pub(super) fn view_across(
        self: &Arc<Handle>,
        range: Range<u64>,
        wait: Wait,
    ) -> Result<View, FileError> {
        let core = &*self.core;
        if let Some(view) = self.view_in_row(&range) {
            return Ok(view);
        }
        let (blocks, len) = (core.blocks_of(range.clone()), range.end - range.start);
        if len <= MAX_ZEROS && are_holes(core, blocks.clone(), wait)? {
            return Ok(View::zeros(len as usize));
        }
        if wait == Wait::No {
            return match len <= MAX_ZEROS {
                true => self.copied_view(range, wait),
                false => Err(core.would_block(range.start)),
            };
        }
        core.check_not_reentrant()?;
        let pages = PageCount((blocks.end - blocks.start) << core.id.order);
        let max = core.nearest_limit();
        if pages.bytes() > max {
            let file = core.id.name.clone();
            return Err(FileError::ViewTooLarge {
                file,
                len,
                blocks: pages.bytes(),
                max,
            });
        }
        if len <= PAGE_SIZE as u64 {
            // Blocks that are read here usually get consecutive frames, and then need no copy.
            for block in blocks.clone() {
                let miss = Miss::of(&self.stream).wanting(blocks.end - block);
                core.read_block(block << core.block_shift(), miss, Wait::Yes)?;
            }
            return match self.view_in_row(&range) {
                Some(view) => Ok(view),
                None => self.copied_view(range, wait),
            };
        }
        let view = core.with_room(|| {
            let _turn = core.locks.long_view();
            end_writes(core, blocks.clone())?;
            match self.view_in_row(&range) {
                Some(view) => Ok(Some(view)),
                None => self.line_up(&range),
            }
        });
        end_operation(core);
        core.cache.run_deferred_if_abandoned();
        match view? {
            Some(view) => Ok(view),
            None => self.copied_view(range, wait),
        }
    }

    /// Returns a view over several blocks, if they are cached and their frames are consecutive.
    fn view_in_row(&self, range: &Range<u64>) -> Option<View> {
        let core = &*self.core;
        let mut row = Row::new(&core.pool, core.id.order);
        for block in core.blocks_of(range.clone()) {
            let tag = core.blocks.index.tags().sought(block);
            let cached = Pinned::find_hot(&*core.pool, tag, 0, PAGE_SIZE);
            let cached = cached.or_else(|| take_cached(core, block, 0..PAGE_SIZE));
            let view = cached.or_else(|| {
                let held = core.lookup(block)?;
                take_held(core, (block, held.frame), 0..PAGE_SIZE)
            });
            if !row.add(view?) {
                return None;
            }
            let uses = &core.frames().meta(row.last()).uses;
            if uses.has(Uses::AHEAD) {
                core.go_on(block, uses, &self.stream, Get::NONE, drop);
            }
        }
        let inside = core.inside_block(range.start) as usize;
        let len = (range.end - range.start) as usize;
        Some(View(row.into_view(inside..inside + len)))
    }

    /// Moves or reads the blocks of a range into consecutive frames. Returns `None` if the arena
    /// has no windows, or another thread interfered.
    fn line_up(&self, range: &Range<u64>) -> Result<Option<View>, FileError> {
        let core = &*self.core;
        let blocks = core.blocks_of(range.clone());
        let (order, count) = (core.id.order, blocks.end - blocks.start);
        let pages = PageCount(count << order);
        if !core.pool.frames.has_windows() {
            return Ok(None);
        }
        let window = window(core, order, count)?;
        let mut line_up = LineUp {
            core,
            placed: blocks.start,
            blocks,
            window,
            frames: VecDeque::new(),
            made: Vec::new(),
            row: Row::new(&core.pool, order),
        };
        let ended = line_up.run(self);
        let LineUp {
            row,
            frames,
            made,
            window,
            ..
        } = line_up;
        drop((made, frames, window));
        match ended {
            Ok(true) => {
                let inside = core.inside_block(range.start) as usize;
                let len = (range.end - range.start) as usize;
                Ok(Some(View(row.into_view(inside..inside + len))))
            }
            Ok(false) => Ok(None),
            Err(FileError::Limit(full)) => {
                drop(row);
                let details = full.details();
                let full = (core.pool).limit_error(details.id, pages, details.reason);
                Err(FileError::Limit(full))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns a view of new pages, to which the bytes of the range are copied.
    pub(super) fn copied_view(
        self: &Arc<Handle>,
        range: Range<u64>,
        wait: Wait,
    ) -> Result<View, FileError> {
        let core = &*self.core;
        let len = range.end - range.start;
        let pages = len.div_ceil(PAGE_SIZE as u64);
        let alloc = || Ok(pages_in_row(core, pages, wait.alloc_mode())?);
        let mut copy = match wait {
            Wait::Yes => core.with_room(alloc)?,
            Wait::No => alloc()?,
        };
        let last = (range.end - 1) >> core.block_shift();
        let mut at = range.start;
        for page in &mut copy {
            let mut into = &mut page.bytes_mut()[..];
            while !into.is_empty() && at < range.end {
                let part = core.left_in_block(at).min((range.end - at) as usize);
                let (now, rest) = into.split_at_mut(part.min(into.len()));
                let wanted = last - (at >> core.block_shift()) + 1;
                self.read_part(at, now, wait, wanted)?;
                at += now.len() as u64;
                into = rest;
            }
        }
        count(&core.counters.copied_views, 1);
        core.pool.counters.add(Event::ViewCopy, pages);
        // The copy's pages are published as cached blocks without a file, viewed, and then removed
        // from the cache. After that only the view keeps them.
        let order = (copy[0].len() / PAGE_SIZE).trailing_zeros() as u8;
        let mut row = Row::new(&core.pool, order);
        for mut page in copy {
            page.set_flags(FlagSet::UPTODATE);
            page.set_kind(Kind::Cached);
            let frame = page.publish(HoldState::cached(1));
            core.pool.lru_add(frame);
            let view = Pinned::try_new(&core.pool, frame, 0..PAGE_SIZE);
            let follows = view.is_some_and(|view| row.add(view));
            assert!(follows, "nobody else takes it out or writes to it");
            let dropped = core.pool.uncache(frame);
            debug_assert_eq!(dropped, Dropped::Held);
            core.pool.lru_set(frame, Evictable::No);
        }
        Ok(View(row.into_view(0..len as usize)))
    }
}

/// Revokes the write translations of the blocks, so that blocks that are already consecutive can be
/// viewed without being moved.
fn end_writes(core: &FileCore, blocks: Range<u64>) -> Result<(), FileError> {
    if core.mappers.is_empty() {
        return Ok(());
    }
    for block in blocks {
        let held = core.lookup(block);
        if held.is_some_and(|held| held.meta().hold.load().is_wmapped())
            && let Some(locked) = core.find_lock(block, Get::NONE)?
        {
            end_write_mappings(core, std::slice::from_ref(&locked));
        }
    }
    Ok(())
}

/// Returns `pages` consecutive pages, charged to the file's group. If the arena has no windows, and
/// the pages have at most 2 MiB, they are one block, which may have more pages. Otherwise they are
/// single pages.
fn pages_in_row(
    core: &FileCore,
    pages: u64,
    mode: AllocMode,
) -> Result<Vec<PoolFrame<'_>>, LimitError> {
    let group = core.id.group.id();
    if !core.pool.frames.has_windows() && pages << PAGE_SHIFT <= MAX_ZEROS {
        let order = pages.next_power_of_two().trailing_zeros() as u8;
        return Ok(vec![core.pool.alloc(group, order, mode)?]);
    }
    let frames = (0..pages).map(|_| core.pool.alloc(group, 0, mode));
    let frames: Vec<PoolFrame<'_>> = frames.collect::<Result<_, _>>()?;
    let in_row = |pair: &[PoolFrame<'_>]| pair[0].id().0 + 1 == pair[1].id().0;
    if frames.windows(2).all(in_row) {
        return Ok(frames);
    }
    let window = core.pool.frames.window(0, pages);
    let mut window = window.ok_or_else(|| no_window(core, PageCount(pages)))?;
    Ok(PoolFrame::place(frames, &mut window))
}

/// Returns a window: addresses for `count` consecutive blocks. If pages in use leave no such
/// addresses free, evicts some of these pages.
fn window(core: &FileCore, order: u8, count: u64) -> Result<Window<'_>, LimitError> {
    let (pages, group) = (PageCount(count << order), core.id.group.id());
    for _ in 0..ROOMS {
        if let Some(window) = core.pool.frames.window(order, count) {
            return Ok(window);
        }
        let freed = (core.pool).reclaim_for(GroupId::ROOT, pages, Io::Of(group));
        if freed == PageCount(0) {
            break;
        }
    }
    Err(no_window(core, pages))
}

/// Returns the error that no free range of addresses is large enough for `pages` pages.
fn no_window(core: &FileCore, pages: PageCount) -> LimitError {
    let group = core.id.group.id();
    (core.pool).limit_error(group, pages, LimitReason::Fragmented)
}

/// Whether none of the blocks is cached, and the store has only holes there.
fn are_holes(core: &FileCore, blocks: Range<u64>, wait: Wait) -> Result<bool, FileError> {
    for block in blocks {
        if wait == Wait::Yes && core.lookup(block).is_none() {
            core.check_not_reentrant()?;
            content(core, block)?;
        }
        if !core.is_absent_hole(block) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the number of blocks whose frames are taken at a time, according to [`AT_ONCE`] and the
/// nearest limit.
fn blocks_at_once(core: &FileCore) -> u64 {
    let most = AT_ONCE.min(core.nearest_limit() / AT_ONCE_PART);
    (most >> core.block_shift()).max(1)
}

impl<'f> LineUp<'f> {
    /// Lines up all blocks. Returns false if another thread interfered.
    fn run(&mut self, handle: &Handle) -> Result<bool, FileError> {
        let mut is_noted = false;
        for block in self.blocks.clone() {
            loop {
                if block == self.placed && self.frames.is_empty() {
                    self.take_frames()?;
                }
                if let Some(locked) = self.core.find_lock(block, Get::STABLE)? {
                    end_write_mappings(self.core, std::slice::from_ref(&locked));
                    let locked = match block == self.placed {
                        true => {
                            let frame = self.frames.pop_front().expect("taken above");
                            self.placed += 1;
                            move_block(self.core, locked, frame)
                        }
                        false => locked,
                    };
                    let frame = locked.frame();
                    // The view is taken under the block's lock, so that no writer changes the block
                    // or moves it first.
                    let view = take_held(self.core, (block, frame), 0..PAGE_SIZE);
                    let follows = view.is_some_and(|view| self.row.add(view));
                    if !follows || !self.is_at_its_place(block) {
                        return Ok(false);
                    }
                    break;
                }
                if block != self.placed {
                    // The block was placed in the window, and has been removed since.
                    return Ok(false);
                }
                let ahead = (!std::mem::replace(&mut is_noted, true)).then_some(handle);
                if !self.make(ahead)? {
                    return Ok(false);
                }
            }
            if block + 1 == self.placed {
                self.made.clear();
            }
        }
        Ok(true)
    }

    /// Whether `block`, which was added last, is at its place in the window.
    fn is_at_its_place(&self, block: u64) -> bool {
        let behind = self.blocks.end - block - 1;
        let end = self.window.end().0 - ((behind as u32) << self.core.id.order);
        self.row.last().0 + (1 << self.core.id.order) == end
    }

    /// Takes frames, and gives them the window's next addresses.
    fn take_frames(&mut self) -> Result<(), FileError> {
        let core = self.core;
        let most = blocks_at_once(core).min(self.blocks.end - self.placed);
        let (group, order) = (core.id.group.id(), core.id.order);
        let mut frames = Vec::with_capacity(most as usize);
        for _ in 0..most {
            // Fewer frames than wanted are enough to go on.
            match core.pool.alloc(group, order, AllocMode::Wait) {
                Ok(frame) => frames.push(frame),
                Err(full) if frames.is_empty() => return Err(full.into()),
                Err(_) => break,
            }
        }
        self.frames
            .extend(PoolFrame::place(frames, &mut self.window));
        Ok(())
    }

    /// Makes the next block in the window. If it has data, also makes the absent blocks with data
    /// directly after it, as many as there are frames for and as fit in one request. Returns false
    /// if another thread made one of them, or if the block was in a hole that has ended meanwhile.
    /// With `ahead`, notes the miss in that handle's stream, which may read ahead.
    fn make(&mut self, ahead: Option<&Handle>) -> Result<bool, FileError> {
        let core = self.core;
        let steady = core.locks.shared();
        let start = self.placed << core.block_shift();
        let size = core.size();
        if start >= size {
            return Err(core.past_end(start, core.block_bytes(), size));
        }
        core.check_version()?;
        let epoch = core.blocks.hole_epoch.load(Ordering::SeqCst);
        let first = content(core, self.placed)?;
        let basis = match first {
            Content::Hole => core.hole_basis(self.placed, epoch),
            Content::Data => Basis::Nothing,
        };
        // The nodes are allocated first: this may wait, and no block may be locked meanwhile.
        let mut spares = SpareNodes::new(&core.pool, core.id.group.id());
        let most = (self.frames.len() as u64).min(core.store.request_blocks);
        let nodes = missing_nodes(core, [self.placed, self.placed + most - 1]);
        spares.ensure(nodes, AllocMode::Wait)?;
        let mut run: Vec<NewBlock<'f>> = Vec::new();
        while let Some(frame) = self.frames.pop_front() {
            self.placed += 1;
            let new = core.create_in(self.placed - 1, Get::NOIO, basis, frame, &mut spares)?;
            let Some(new) = new else {
                return Ok(false);
            };
            self.made.extend(new.reference());
            run.push(new);
            let next = self.placed;
            let goes_on = first == Content::Data
                && (run.len() as u64) < most
                && next < self.blocks.end
                && next << core.block_shift() < size
                && core.lookup(next).is_none()
                && matches!(content(core, next), Ok(Content::Data));
            if !goes_on {
                break;
            }
        }
        if first == Content::Hole {
            let mut new = run.pop().expect("one block");
            new.bytes_mut().fill(0);
            core.end_visible_holes(std::slice::from_ref(&new));
            drop(new.finish());
            return Ok(true);
        }
        if let Some(handle) = ahead {
            let wanted = self.blocks.end - run[0].block();
            let tuning = core.tuning();
            let stream = &handle.stream;
            let ahead = stream.miss(run[0].block(), wanted, stream.reading(), &tuning);
            core.read_ahead(stream, ahead, Get::NONE, &mut drop);
        }
        drop(core.read_run(run)?);
        drop(steady);
        Ok(true)
    }
}

/// Returns an upper bound on the number of nodes that the index lacks for these two blocks and
/// those between them. There must be no more blocks than a node has words.
fn missing_nodes(core: &FileCore, blocks: [u64; 2]) -> usize {
    let index = core.blocks.index.write();
    let missing = blocks.map(|block| index.missing_nodes(core.frames(), block));
    missing.into_iter().sum()
}
