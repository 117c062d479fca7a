//! Blocks for page faults: filled, locked, and, for a store to a shared mapping, prepared to be
//! written through it.
//!
//! A fault that must not wait ([`Wait::No`]) takes the same steps, and gives up before the first
//! that would read the store, wait for a lock, for writeback or for a grace period, or evict. So it
//! gets cached blocks, and holes that the store has reported.

use crate::cache::core::FileCore;
use crate::cache::errors::FileError;
use crate::cache::file::handle::FileInner;
use crate::cache::index::Word;
use crate::cache::lookup::block::Locked;
use crate::cache::lookup::get::{Get, Got};
use crate::cache::read::fill::{Filled, Miss};
use crate::cache::read::holes::Content;
use crate::cache::read::read_ahead::Reading;
use crate::cache::wait::Wait;
use crate::frame::{FlagSet, Kind, Uses};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::stats::Event;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::units::{FrameId, PAGE_SHIFT};
use std::ops::Range;

/// Whether the faulting access reads or writes the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// Loads, or copies the page for a private mapping.
    Read,
    /// Stores through a shared mapping.
    Write,
}

/// The page to map.
#[derive(Debug)]
pub(crate) enum FaultPage {
    /// The page's block. While it is locked, nobody removes, moves or evicts it.
    Block(LockedBlock),
    /// The store has nothing there: the zero frame, if [`FileCore::hole_still`] says so inside the
    /// section that installs it.
    Hole(Hole),
}

/// Pages of a file for which its store has nothing, and when that was so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hole {
    epoch: u64,
    pages: Range<u64>,
}

impl Hole {
    /// The wanted page, and the neighbours that are known to be holes.
    pub(crate) fn pages(&self) -> &Range<u64> {
        &self.pages
    }
}

/// A locked block that is its file's and up to date, as a value of its own. Unlocks when dropped.
#[derive(Debug)]
pub(crate) struct LockedBlock {
    core: Arc<FileCore>,
    frame: FrameId,
    block: u64,
    /// The barrier number that was current just before the block was marked dirty for a store;
    /// `None` for a load.
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

    /// Whether a store that is allowed now carries the barrier number that the block was marked
    /// with. Checked inside the section in which the page is made writable: see
    /// [`FileCore::restamp_mappings`].
    pub(crate) fn carries_barrier(&self) -> bool {
        let is_current = |marked| marked == self.core.writes.barrier.current();
        self.barrier.is_none_or(is_current)
    }

    /// Its file.
    pub(crate) fn file(&self) -> &FileCore {
        &self.core
    }

    /// The block's number in the file.
    pub(crate) fn block(&self) -> u64 {
        self.block
    }

    /// Whether it is a block of this file.
    pub(crate) fn is_of(&self, file: &FileInner) -> bool {
        Arc::ptr_eq(&self.core, file.core())
    }

    /// The block's first frame: its hold word and flags are the block's.
    pub(crate) fn head(&self) -> FrameId {
        self.frame
    }

    /// The frame of a page of the file, which is in this block.
    pub(crate) fn frame_of_page(&self, file_page: u64) -> FrameId {
        debug_assert_eq!(
            file_page >> self.core.id.order,
            self.block,
            "the page is in another block"
        );
        FrameId(self.frame.0 + (file_page & (self.core.block_pages() - 1)) as u32)
    }

    /// The host address of a page of the file, which is in this block.
    pub(crate) fn host_of_page(&self, file_page: u64) -> u64 {
        self.core.frames().host(self.frame_of_page(file_page)) as u64
    }
}

#[cfg(all(test, not(shuttle)))]
impl LockedBlock {
    /// The metadata of the first frame.
    pub(crate) fn meta(&self) -> &crate::frame::Meta {
        self.core.frames().meta(self.frame)
    }
}

impl Drop for LockedBlock {
    fn drop(&mut self) {
        self.core.frames().unlock(self.frame);
        self.core.put(self.frame);
    }
}

impl FileCore {
    /// The block of a page of the file, for a fault. May sleep, allocate and read the store; no
    /// section is open and no block locked. Without waiting it may be [`FileError::WouldBlock`],
    /// with nothing changed.
    ///
    /// A hole comes with its neighbours `around`, as far as they are known to be holes, too.
    /// `reading` decides about read-ahead.
    ///
    /// With [`FaultKind::Write`] the returned block is dirty, WMAPPED and not under writeback, and
    /// views of it keep another frame.
    pub(crate) fn fault_block(
        &self,
        page: u64,
        kind: FaultKind,
        around: &Range<u64>,
        reading: Reading,
        wait: Wait,
    ) -> Result<FaultPage, FileError> {
        self.check_not_reentrant()?;
        let core = self.me.upgrade().ok_or_else(|| self.closed())?;
        if kind == FaultKind::Write {
            self.check_writable()?;
            self.make_dirty_room(page << PAGE_SHIFT, wait)?;
        }
        let fault = || self.fault_block_steady(&core, page, kind, around, reading, wait);
        match wait {
            Wait::Yes => self.with_room(fault),
            Wait::No => fault(),
        }
    }

    fn fault_block_steady(
        &self,
        core: &Arc<FileCore>,
        page: u64,
        kind: FaultKind,
        around: &Range<u64>,
        reading: Reading,
        wait: Wait,
    ) -> Result<FaultPage, FileError> {
        let block = page >> self.id.order;
        let would_block = || self.would_block(page << PAGE_SHIFT);
        let mut get = Get::LOCK | Get::waiting(wait);
        if wait == Wait::No && kind == FaultKind::Write {
            get = get | Get::STABLE;
        }
        let mut spare = None;
        loop {
            let epoch = self.blocks.hole_epoch.load(Ordering::SeqCst);
            let visible = match kind {
                FaultKind::Read => self.blocks.visible_holes.now(),
                FaultKind::Write => 0..0,
            };
            let steady = match wait {
                Wait::Yes => self.locks.shared(),
                Wait::No => self.locks.try_shared().ok_or_else(would_block)?,
            };
            let size = self.size();
            if page >= size.div_ceil(1 << PAGE_SHIFT) {
                return Err(self.past_end(page << PAGE_SHIFT, 1 << PAGE_SHIFT, size));
            }
            if page == size >> PAGE_SHIFT && self.blocks.tail_left.load(Ordering::Acquire) {
                match wait {
                    Wait::Yes => self.clear_tail(size)?,
                    Wait::No => return Err(would_block()),
                }
            }
            // Not marked as used: the mapping's accessed bit will say so.
            match self.get_page(block, get)? {
                Got::Locked(locked) if wait == Wait::Yes && locked.meta().uses.has(Uses::AHEAD) => {
                    // With nothing locked, since the next window takes memory.
                    let held = locked.unlock();
                    drop(steady);
                    self.note_ahead(&held, &self.stream);
                }
                Got::Locked(locked) => match self.prepare(locked, kind, &mut spare) {
                    Some((locked, barrier)) => {
                        let block = LockedBlock::new(core, locked, barrier);
                        return Ok(FaultPage::Block(block));
                    }
                    // The views' frame stays theirs: all translations to it are taken away first.
                    None if wait == Wait::No => return Err(would_block()),
                    None => {
                        drop(steady);
                        let frame =
                            self.pool
                                .alloc(self.id.group.id(), self.id.order, AllocMode::Wait)?;
                        spare = Some(frame);
                    }
                },
                _ => {
                    let filled = match wait {
                        Wait::Yes => {
                            let miss = Miss {
                                reading,
                                ..Miss::of(&self.stream)
                            };
                            self.fill_absent(block, Get::NONE, &steady, miss)?
                        }
                        // To store there, the hole's translations would have to go first.
                        Wait::No if kind == FaultKind::Read && self.is_known_hole(block) => {
                            Filled::Hole
                        }
                        Wait::No => return Err(would_block()),
                    };
                    if filled == Filled::LookAgain {
                        self.pool.counters.count(Event::PgMajFault);
                    } else {
                        match kind {
                            FaultKind::Read => {
                                let holes = self.known_holes(block, around);
                                // An operation that makes a block here from now on takes the hole
                                // away from its mappings.
                                if visible.start <= holes.start && holes.end <= visible.end {
                                    let pages = self.hole_pages(page, &holes, around);
                                    return Ok(FaultPage::Hole(Hole { epoch, pages }));
                                }
                                self.blocks.visible_holes.add(&holes);
                            }
                            FaultKind::Write => {
                                let basis = self.hole_basis(block, epoch);
                                drop(
                                    self.create_over_hole(block, 0, basis, |bytes| bytes.fill(0))?,
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    fn is_known_hole(&self, block: u64) -> bool {
        self.known_content(block) == Some(Content::Hole)
    }

    /// Known holes of the store around `block`, which is one, in the pages `around`.
    fn known_holes(&self, block: u64, around: &Range<u64>) -> Range<u64> {
        let wanted = self.blocks_of_pages(around);
        let is_hole = |block: &u64| self.is_known_hole(*block);
        let before = (wanted.start..block).rev().take_while(is_hole);
        let behind = (block + 1..wanted.end).take_while(is_hole);
        block - before.count() as u64..block + 1 + behind.count() as u64
    }

    /// The pages around `page`, a hole's, in those of these blocks that are not in the index. They
    /// are visible as holes already: an insertion of a block there moves the epoch.
    fn hole_pages(&self, page: u64, holes: &Range<u64>, around: &Range<u64>) -> Range<u64> {
        let block = page >> self.id.order;
        let section = self.pool.domain.reader();
        let is_absent = |block: &u64| {
            let word = self.blocks.index.load(self.frames(), *block);
            !matches!(word, Word::Block(_))
        };
        let before = (holes.start..block).rev().take_while(is_absent).count() as u64;
        let behind = (block + 1..holes.end).take_while(is_absent).count() as u64;
        drop(section);
        let pages = (block - before) << self.id.order..(block + 1 + behind) << self.id.order;
        let end = self.size().div_ceil(1 << PAGE_SHIFT);
        pages.start.max(around.start).min(page)..pages.end.min(around.end).min(end).max(page + 1)
    }

    /// Prepares a locked block for the fault, and returns the barrier number of a store. `None`: it
    /// is viewed, and a frame to move it to has to be allocated first.
    fn prepare<'f>(
        &'f self,
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
            let moved = self.move_block(locked, spare.take()?);
            // A view of the new frame may have been taken at once.
            if !moved.meta().hold.try_set_wmapped() {
                return None;
            }
            moved
        };
        let barrier = self.writes.barrier.current();
        self.mark_dirty(locked.block(), locked.frame());
        debug_assert!(locked.meta().flags.load().contains(FlagSet::DIRTY));
        Some((locked, Some(barrier)))
    }

    /// Whether a hole that `fault_block` returned still is one. Checked inside the section in which
    /// the zero frame is installed; never waits.
    pub(crate) fn hole_still(&self, hole: &Hole) -> bool {
        self.blocks.hole_epoch.load(Ordering::SeqCst) == hole.epoch
    }

    /// Whether the frame has this page of the file, whose block the caller has locked. The frame
    /// comes from a word of a page table, found in a section that is still open.
    ///
    /// While the word leads to the frame, its metadata does not change; a `true` stays true, since
    /// that block is locked. If the word has been emptied meanwhile, the answer means nothing.
    pub(crate) fn has_page_in(&self, page: u64, frame: FrameId) -> bool {
        self.head_of_page(page, frame).is_some()
    }

    /// Whether a page of the file, found in this frame, belongs to a dirty block. That may change
    /// at once unless the block is locked.
    pub(crate) fn is_dirty_in(&self, page: u64, frame: FrameId) -> bool {
        let head = self.head_of_page(page, frame);
        let flags = head.map(|head| self.frames().meta(head).flags.load());
        flags.is_some_and(|flags| flags.contains(FlagSet::DIRTY))
    }

    fn head_of_page(&self, page: u64, frame: FrameId) -> Option<FrameId> {
        let place = page & (self.block_pages() - 1);
        let head = FrameId(frame.0.checked_sub(place as u32)?);
        let meta = self.frames().meta(head);
        let is_own = meta.kind() == Kind::Cached && meta.owner() == self.id.owner.0;
        (is_own && meta.index() == page >> self.id.order).then_some(head)
    }
}
