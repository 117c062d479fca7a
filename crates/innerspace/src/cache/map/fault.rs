//! Blocks for page faults: filled, locked, and, for a store to a shared mapping, prepared to be
//! written through the mapping.
//!
//! A fault that must not wait ([`Wait::No`]) takes the same steps, and gives up before the first
//! step that would read the store, evict, or wait for a lock, for writeback or for a grace period.
//! So it gets only cached blocks, and holes that are already known.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::dirty::marks::mark_dirty;
use crate::cache::dirty::room::make_dirty_room;
use crate::cache::errors::FileError;
use crate::cache::file::inner::FileInner;
use crate::cache::index::Word;
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::Get;
use crate::cache::read::content::known_content;
use crate::cache::read::fill::Miss;
use crate::cache::read::holes::Content;
use crate::cache::read::read_ahead::Reading;
use crate::cache::wait::Wait;
use crate::cache::write::in_place::{clear_tail, move_block};
use crate::frame::{FlagSet, Kind, Uses};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::stats::Event;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::units::{FrameId, PAGE_SHIFT};

/// Whether the faulting access reads or writes the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// The access loads, or copies the page for a private mapping.
    Read,
    /// The access stores through a shared mapping.
    Write,
}

/// The page to map.
#[derive(Debug)]
pub(crate) enum FaultPage {
    /// The page's block. While it is locked, no other thread removes, moves or evicts it.
    Block(LockedBlock),
    /// A hole of the store: the fault maps the zero frame, if [`hole_still`] holds in the section
    /// that maps the frame.
    Hole(Hole),
}

/// Pages of a file for which the store had no data at a certain hole epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hole {
    epoch: u64,
    pages: Range<u64>,
}

impl Hole {
    /// Returns the wanted page and those neighbours that are known to be holes.
    pub(crate) fn pages(&self) -> &Range<u64> {
        &self.pages
    }
}

/// An owned guard on a locked block that is up to date and in its file's index. Dropping it unlocks
/// the block.
#[derive(Debug)]
pub(crate) struct LockedBlock {
    pub(crate) core: Arc<FileCore>,
    /// The block's first frame, which has the block's hold word and flags.
    pub(crate) frame: FrameId,
    /// The block's number in the file.
    pub(crate) block: u64,
    /// The barrier number that was current just before the block was marked dirty for a write
    /// fault; `None` for a read fault.
    barrier: Option<u64>,
}

impl LockedBlock {
    fn new(core: &Arc<FileCore>, locked: Locked<'_>, barrier: Option<u64>) -> LockedBlock {
        let (frame, block) = locked.into_parts();
        LockedBlock {
            core: core.clone(),
            frame,
            block,
            barrier,
        }
    }

    /// Whether bytes that a store instruction writes from now on still carry the barrier number
    /// with which the block was marked. Always true for a read fault. Called in the section in
    /// which the page is made writable: see
    /// [`restamp_mappings`](crate::cache::dirty::sync_file::restamp_mappings).
    pub(crate) fn carries_barrier(&self) -> bool {
        let is_current = |marked| marked == self.core.writes.barrier.current();
        self.barrier.is_none_or(is_current)
    }

    /// Whether the locked block belongs to `file`.
    pub(crate) fn is_of(&self, file: &FileInner) -> bool {
        Arc::ptr_eq(&self.core, file.core())
    }

    /// Returns the frame of a page of the file that is in this block.
    pub(crate) fn frame_of_page(&self, file_page: u64) -> FrameId {
        debug_assert_eq!(
            file_page >> self.core.id.order,
            self.block,
            "the page is in another block"
        );
        FrameId(self.frame.0 + (file_page & (self.core.block_pages() - 1)) as u32)
    }

    /// Returns the host address of a page of the file that is in this block.
    pub(crate) fn host_of_page(&self, file_page: u64) -> u64 {
        self.core.frames().host(self.frame_of_page(file_page)) as u64
    }
}

impl Drop for LockedBlock {
    fn drop(&mut self) {
        self.core.frames().lock_of(self.frame).unlock();
        self.core.put(self.frame);
    }
}

/// Returns the block of a page of the file, for a fault. May sleep, allocate and read the store.
/// Called with no section open and no block locked. With [`Wait::No`], may return
/// [`FileError::WouldBlock`], with nothing changed.
///
/// A hole is returned with those of its neighbours in `around` that are also known to be holes.
/// `reading` decides about read-ahead.
///
/// With [`FaultKind::Write`], the returned block is dirty, WMAPPED and not under writeback, and any
/// views of it keep an older frame.
pub(crate) fn fault_block(
    core: &FileCore,
    page: u64,
    kind: FaultKind,
    around: &Range<u64>,
    reading: Reading,
    wait: Wait,
) -> Result<FaultPage, FileError> {
    core.check_not_reentrant()?;
    let shared = core.me.upgrade().ok_or_else(|| core.closed())?;
    if kind == FaultKind::Write {
        core.check_writable()?;
        make_dirty_room(core, page << PAGE_SHIFT, wait)?;
    }
    let fault = || fault_block_steady(core, &shared, page, kind, around, reading, wait);
    match wait {
        Wait::Yes => core.with_room(fault),
        Wait::No => fault(),
    }
}

fn fault_block_steady(
    core: &FileCore,
    shared: &Arc<FileCore>,
    page: u64,
    kind: FaultKind,
    around: &Range<u64>,
    reading: Reading,
    wait: Wait,
) -> Result<FaultPage, FileError> {
    let block = page >> core.id.order;
    let would_block = || core.would_block(page << PAGE_SHIFT);
    let mut get = Get::waiting(wait);
    if wait == Wait::No && kind == FaultKind::Write {
        get = get | Get::STABLE;
    }
    let mut spare = None;
    loop {
        let epoch = core.blocks.hole_epoch.load(Ordering::SeqCst);
        let visible = match kind {
            FaultKind::Read => core.blocks.visible_holes.now(),
            FaultKind::Write => 0..0,
        };
        let steady = match wait {
            Wait::Yes => core.locks.shared(),
            Wait::No => core.locks.try_shared().ok_or_else(would_block)?,
        };
        let size = core.size();
        if page >= size.div_ceil(1 << PAGE_SHIFT) {
            return Err(core.past_end(page << PAGE_SHIFT, 1 << PAGE_SHIFT, size));
        }
        if page == size >> PAGE_SHIFT && core.blocks.tail_left.load(Ordering::Acquire) {
            match wait {
                Wait::Yes => clear_tail(core, size)?,
                Wait::No => return Err(would_block()),
            }
        }
        // The block is not marked as used: the mapping's accessed bit will show the use.
        match core.find_lock(block, get)? {
            Some(locked) if wait == Wait::Yes && locked.meta().uses.has(Uses::AHEAD) => {
                // `note_ahead` is called with nothing locked, since reading ahead the next window
                // allocates memory.
                let held = locked.unlock();
                drop(steady);
                core.note_ahead(&held, &core.stream);
            }
            Some(locked) => match prepare(core, locked, kind, &mut spare) {
                Some((locked, barrier)) => {
                    let block = LockedBlock::new(shared, locked, barrier);
                    return Ok(FaultPage::Block(block));
                }
                // The block is viewed, so it has to move to another frame, while the views keep the
                // old one. The move revokes all translations, which waits.
                None if wait == Wait::No => return Err(would_block()),
                None => {
                    drop(steady);
                    spare = Some(core.alloc(AllocMode::Wait)?);
                }
            },
            None => {
                let content = match wait {
                    Wait::Yes => {
                        let miss = Miss {
                            reading,
                            ..Miss::of(&core.stream)
                        };
                        core.fill_absent(block, Get::NONE, &steady, miss, drop)?
                    }
                    // For a write fault, the hole's translations would first have to be revoked,
                    // which waits.
                    Wait::No if kind == FaultKind::Read && is_known_hole(core, block) => {
                        Content::Hole
                    }
                    Wait::No => return Err(would_block()),
                };
                match (content, kind) {
                    (Content::Data, _) => core.pool.counters.count(Event::PgMajFault),
                    (Content::Hole, FaultKind::Read) => {
                        let holes = known_holes(core, block, around);
                        // The holes were in the visible range before they were looked up. So an
                        // operation that makes a block there later revokes their translations.
                        if visible.start <= holes.start && holes.end <= visible.end {
                            let pages = hole_pages(core, page, &holes, around);
                            return Ok(FaultPage::Hole(Hole { epoch, pages }));
                        }
                        core.blocks.visible_holes.add(&holes);
                    }
                    (Content::Hole, FaultKind::Write) => {
                        let basis = core.hole_basis(block, epoch);
                        drop(core.create_over_hole(block, 0, basis, |bytes| bytes.fill(0))?);
                    }
                }
            }
        }
    }
}

fn is_known_hole(core: &FileCore, block: u64) -> bool {
    known_content(core, block) == Some(Content::Hole)
}

/// Returns the range of adjacent known holes of the store that contains the hole `block`, within
/// the pages `around`.
fn known_holes(core: &FileCore, block: u64, around: &Range<u64>) -> Range<u64> {
    let wanted = core.blocks_of_pages(around);
    let is_hole = |block: &u64| is_known_hole(core, *block);
    let before = (wanted.start..block).rev().take_while(is_hole);
    let behind = (block + 1..wanted.end).take_while(is_hole);
    block - before.count() as u64..block + 1 + behind.count() as u64
}

/// Returns `page` and the pages next to it that are in `around` and in the file, and whose blocks
/// are in `holes` and not in the index. `page` itself, whose block is one of `holes`, is not
/// checked. The holes are in the visible range already, so an insertion of a block there advances
/// the epoch.
fn hole_pages(core: &FileCore, page: u64, holes: &Range<u64>, around: &Range<u64>) -> Range<u64> {
    let block = page >> core.id.order;
    let section = core.pool.domain.reader();
    let is_absent = |block: &u64| {
        let word = core.blocks.index.load(core.frames(), *block);
        !matches!(word, Word::Block(_))
    };
    let before = (holes.start..block).rev().take_while(is_absent).count() as u64;
    let behind = (block + 1..holes.end).take_while(is_absent).count() as u64;
    drop(section);
    let pages = (block - before) << core.id.order..(block + 1 + behind) << core.id.order;
    let end = core.size().div_ceil(1 << PAGE_SHIFT);
    pages.start.max(around.start).min(page)..pages.end.min(around.end).min(end).max(page + 1)
}

/// Prepares a locked block for the fault, and returns it, with the current barrier number if the
/// fault is a write. Returns `None`, with the block unlocked, if the block is viewed, and a frame
/// to move it to must first be allocated. Also returns `None` if the block is viewed just after it
/// was moved to `spare`.
fn prepare<'f>(
    core: &'f FileCore,
    locked: Locked<'f>,
    kind: FaultKind,
    spare: &mut Option<PoolFrame<'_>>,
) -> Option<(Locked<'f>, Option<u64>)> {
    if kind == FaultKind::Read {
        return Some((locked, None));
    }
    locked.wait_stable();
    let locked = if locked.meta().hold.try_set_wmapped() {
        locked
    } else {
        let moved = move_block(core, locked, spare.take()?);
        // A view of the new frame may have been taken already.
        if !moved.meta().hold.try_set_wmapped() {
            return None;
        }
        moved
    };
    let barrier = core.writes.barrier.current();
    mark_dirty(core, locked.block(), locked.frame());
    debug_assert!(locked.meta().flags.load().contains(FlagSet::DIRTY));
    Some((locked, Some(barrier)))
}

/// Whether a hole that `fault_block` returned is still one. Called in the section in which the
/// zero frame is installed. Never waits.
pub(crate) fn hole_still(core: &FileCore, hole: &Hole) -> bool {
    core.blocks.hole_epoch.load(Ordering::SeqCst) == hole.epoch
}

/// Whether the frame holds this page of the file, whose block the caller has locked. The frame
/// comes from a word of a page table, found in a section that is still open.
///
/// While the word leads to the frame, the frame's metadata does not change, and `true` stays
/// true, since the block is locked. If the word has been emptied meanwhile, the answer means
/// nothing.
pub(crate) fn has_page_in(core: &FileCore, page: u64, frame: FrameId) -> bool {
    head_of_page(core, page, frame).is_some()
}

/// Whether a page of the file, found in this frame, belongs to a dirty block. Unless the block is
/// locked, the answer may change at any time.
pub(crate) fn is_dirty_in(core: &FileCore, page: u64, frame: FrameId) -> bool {
    let head = head_of_page(core, page, frame);
    let flags = head.map(|head| core.frames().meta(head).flags.load());
    flags.is_some_and(|flags| flags.contains(FlagSet::DIRTY))
}

fn head_of_page(core: &FileCore, page: u64, frame: FrameId) -> Option<FrameId> {
    let place = page & (core.block_pages() - 1);
    let head = FrameId(frame.0.checked_sub(place as u32)?);
    let meta = core.frames().meta(head);
    let is_own = meta.kind() == Kind::Cached && meta.owner() == core.id.owner.0;
    (is_own && meta.index() == page >> core.id.order).then_some(head)
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl LockedBlock {
        /// Returns the metadata of the block's first frame.
        pub(crate) fn meta(&self) -> &crate::frame::Meta {
            self.core.frames().meta(self.frame)
        }
    }
}
