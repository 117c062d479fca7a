//! Faults: finding the block of the device to map, or the zero frame for a hole. The entry stays
//! locked until the page is mapped.
//!
//! A fault that writes to a hole locks the entry, allocates a zeroed block, revokes the hole's
//! translations everywhere and waits for a grace period. Then the entry becomes the block, dirty,
//! and the fault maps the block writable. A fault that may map 2 MiB in one step tries that first.
//! It falls back to single pages if the range is not all in the file, has small entries, or is
//! neither a hole nor one aligned piece of the device; and on a store to a hole, if 2 MiB may not
//! or cannot be allocated.

use std::cell::Cell;
use std::ops::Range;

use super::core::{DaxCore, HoleWrites};
use super::device::Durability;
use super::entries::Locked;
use super::entry::{Content, Entry, LARGE_PAGES, Size};
use super::error::{DaxAction, DaxError};
use super::extents::Extent;
use super::grab::{Held, Wanted, range_start};
use super::reference::DaxRef;
use super::stripes::Count;
use crate::cache::{FaultKind, Wait};
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::sys::memory::host_page_size;
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

/// The most pages of a hole that one fault maps, the first included.
const AROUND: u64 = 16;
/// The most pages that one fault of a long store maps, the first included.
const STORES_AROUND: u64 = 64;

/// The most that a fault can map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// The page, and the pages that follow it before `end`.
    Pages {
        /// The first page that is outside the leaf or the mapping.
        end: u64,
    },
    /// All of the 2 MiB range that contains the page. The mapping has the range in one leaf.
    Leaf,
}

/// Locked entries to map. No other thread changes or removes them until this is dropped.
#[derive(Debug)]
pub(crate) struct DaxPages {
    file: DaxRef,
    first: Held,
    /// The pages that follow, each with its own entry: holes if the first is a hole, otherwise
    /// dirty blocks.
    around: Vec<Held>,
}

impl DaxPages {
    /// Returns whether these are pages of this file.
    pub(crate) fn is_of(&self, file: &DaxCore) -> bool {
        std::ptr::eq(&*self.file, file)
    }

    /// Returns the pages that can be mapped.
    pub(crate) fn pages(&self) -> Range<u64> {
        let first = self.first.pages();
        first.start..first.end + self.around.len() as u64
    }

    /// Returns whether this is one entry of 2 MiB.
    pub(crate) fn is_large(&self) -> bool {
        self.first.entry.size() == Size::Large
    }

    /// Returns whether the pages can be mapped for stores as they are.
    pub(crate) fn is_dirty(&self) -> bool {
        self.first.entry.is_dirty()
    }

    /// Copies a page of the file to `to`; a hole is copied as zeros.
    pub(crate) fn copy_to(&self, page: u64, to: &mut [u8]) {
        match self.device_page(page) {
            Some(at) => self.file.parts.device.read(DaxCore::offset(at), to),
            None => to.fill(0),
        }
    }

    /// Returns the address of a page of the file; `None` for a hole.
    pub(crate) fn host(&self, page: u64) -> Option<u64> {
        self.device_page(page)
            .map(|at| self.file.parts.device.host(at))
    }

    fn device_page(&self, page: u64) -> Option<u64> {
        let held = match page.checked_sub(self.first.pages().end) {
            Some(place) => &self.around[place as usize],
            None => &self.first,
        };
        match held.entry.content() {
            Content::Block(block) => Some(block + (page - held.first)),
            Content::Zero | Content::Empty => None,
        }
    }
}

impl Drop for DaxPages {
    fn drop(&mut self) {
        for held in [self.first].into_iter().chain(self.around.drain(..)) {
            drop(self.file.entries.adopt(held));
        }
    }
}

impl DaxRef {
    /// Locks the entries to map at `page` of the file, for an access that goes on to `more` pages
    /// after it. May sleep, so the caller must have no section open and no entry locked.
    pub(crate) fn fault(
        &self,
        page: u64,
        kind: FaultKind,
        reach: Reach,
        more: u64,
    ) -> Result<DaxPages, DaxError> {
        self.counts.count(Count::Faults);
        if kind == FaultKind::Write {
            self.check_writable(DaxCore::offset(page))?;
        }
        let (large, end) = match reach {
            Reach::Pages { end } => (None, end),
            Reach::Leaf => {
                let whole_pages = || self.size() / PAGE_SIZE as u64;
                let large = self.lock_large(page, kind, Wait::Yes, whole_pages)?;
                self.counts.count(match large {
                    Some(_) => Count::LargeFaults,
                    None => Count::Fallbacks,
                });
                (large, range_start(page) + LARGE_PAGES)
            }
        };
        let locked = match large {
            Some(locked) => locked,
            None => {
                let mut locked = self.lock_page(page, kind, Wait::Yes)?;
                match kind {
                    FaultKind::Read => self.look_up(&mut locked, page)?,
                    FaultKind::Write => self.make_block(&mut locked, page, Wait::Yes)?,
                }
                locked
            }
        };
        let is_hole = locked.content() == Content::Zero;
        if is_hole {
            self.counts.count(Count::ZeroMaps);
        }
        let around = match (locked.entry().size(), kind) {
            (Size::Small, FaultKind::Read) if is_hole => self.holes_behind(page, end),
            (Size::Small, FaultKind::Write) => self.blocks_behind(page, end.min(page + 1 + more)),
            _ => Vec::new(),
        };
        Ok(DaxPages {
            file: self.clone(),
            first: locked.into_held(),
            around: around.into_iter().map(Locked::into_held).collect(),
        })
    }

    /// Locks the entry to map at `page` of the file, if that needs no waiting: a block, or a hole
    /// for a load. Never queries the device or its file system, makes no entry and revokes no
    /// translations. Fails with [`DaxError::WouldBlock`] if one of these is necessary, if another
    /// thread has the entry locked, if the page is being cut out, or if there is no memory to
    /// record the page as dirty: the caller must then take the blocking path. Also fails if the
    /// page is past the end, or if a store may not change the file.
    pub(crate) fn try_fault(&self, page: u64, kind: FaultKind) -> Result<DaxPages, DaxError> {
        let offset = DaxCore::offset(page);
        if kind == FaultKind::Write {
            self.check_writable(offset)?;
        }
        let none = &mut self.entries.no_spares();
        let found = self.entries.find(page, Wanted::Present, Wait::No, none)?;
        // The length and the cuts are checked with the entry locked, as on the blocking path.
        if page >= self.pages() {
            return Err(self.past_end(offset, PAGE_SIZE as u64));
        }
        let found = found.filter(|locked| !self.is_being_cut(&locked.pages()));
        let mut locked = found.ok_or_else(|| self.would_block(offset))?;
        if kind == FaultKind::Write {
            if !locked.entry().is_dirty() {
                self.pay_ahead(Wait::No)
                    .map_err(|_full| self.would_block(offset))?;
            }
            self.make_block(&mut locked, page, Wait::No)?;
        }
        self.counts.count(Count::Faults);
        if locked.entry().size() == Size::Large {
            self.counts.count(Count::LargeFaults);
        }
        if locked.content() == Content::Zero {
            self.counts.count(Count::ZeroMaps);
        }
        Ok(DaxPages {
            file: self.clone(),
            first: locked.into_held(),
            around: Vec::new(),
        })
    }
}

impl DaxCore {
    /// Looks up the content of an entry, if it is empty. The entry becomes a hole or a clean block.
    pub(super) fn look_up(&self, locked: &mut Locked<'_>, page: u64) -> Result<(), DaxError> {
        if locked.content() != Content::Empty {
            return Ok(());
        }
        let extent = self.look_up_extent(page, 1, DaxCore::offset(page))?;
        let content = extent.at.map_or(Content::Zero, Content::Block);
        locked.set(Entry::new(Size::Small, content));
        Ok(())
    }

    /// Makes a small or large entry a dirty block, and allocates the block if there is none. With
    /// [`Wait::No`], fails with [`DaxError::WouldBlock`] and changes nothing if the block cannot be
    /// made without waiting.
    pub(super) fn make_block(
        &self,
        locked: &mut Locked<'_>,
        page: u64,
        wait: Wait,
    ) -> Result<(), DaxError> {
        let (_, became_dirty) = self.put_block(locked, page, wait, |_| Ok(()))?;
        if became_dirty {
            self.note_dirty(page);
        }
        Ok(())
    }

    /// Does the same as [`DaxCore::make_block`], except that the caller has to record the range as
    /// dirty before it unlocks the entry. Returns the block's first device page, and whether the
    /// entry became dirty. `fill` is called with that page, once no mapping has a hole there any
    /// more. If `fill` fails, the entry is unchanged.
    pub(super) fn put_block(
        &self,
        locked: &mut Locked<'_>,
        page: u64,
        wait: Wait,
        fill: impl FnOnce(u64) -> Result<(), DaxError>,
    ) -> Result<(u64, bool), DaxError> {
        let ready = self.is_storable(locked.entry());
        if wait == Wait::No && !self.is_put_nonblocking(locked.entry(), ready) {
            return Err(self.would_block(DaxCore::offset(page)));
        }
        let (first, pages) = (locked.first(), locked.entry().size().pages());
        let known = match locked.content() {
            Content::Block(block) => Some(block),
            _ => {
                let offset = DaxCore::offset(page);
                self.look_up_extent(first, pages, offset)?.at
            }
        };
        let (block, is_new) = match known {
            Some(block) => (block, false),
            None => (self.new_block(locked, page)?, true),
        };
        if locked.content() == Content::Zero {
            self.revoke(locked.pages(), locked.entry());
            self.grace();
        }
        let storable = match ready {
            true => Ok(()),
            false => self.make_storable(first, block, pages),
        };
        // The block is filled after the grace period: while a mapping reads the hole's zeros, a
        // call must not read the new bytes.
        let filled = storable.and_then(|()| fill(block));
        match filled {
            Ok(()) if is_new => self.counts.add(Count::Allocated, pages),
            Err(_) if is_new => self.drop_block(locked),
            _ => {}
        }
        filled?;
        let before = locked.entry();
        let dirty = Entry::new(before.size(), Content::Block(block)).dirty();
        locked.set(dirty);
        Ok((block, before != dirty))
    }

    /// Returns whether [`DaxCore::put_block`] waits for nothing at this entry: neither for the host
    /// nor for the readers of a hole. `ready` is the result of [`DaxCore::is_storable`].
    fn is_put_nonblocking(&self, entry: Entry, ready: bool) -> bool {
        match entry.content() {
            Content::Block(_) => ready || self.parts.device.durability() == Durability::Lines,
            Content::Empty => self.parts.host.is_none(),
            Content::Zero => false,
        }
    }

    /// Returns whether the host has room for stores to an entry's block already, so that it need
    /// not be asked.
    pub(super) fn is_storable(&self, entry: Entry) -> bool {
        if entry.is_dirty() {
            // The block was made storable when it became dirty, and stays so as long as the host
            // knows that the pages have changed.
            return self.host_forgot.load(Ordering::SeqCst) == 0;
        }
        // If 2 MiB are one block, no unit of the host's cache has a hole in it: with pages of 4
        // KiB, a unit is at most 2 MiB. A file system that copies on write (btrfs, or blocks shared
        // by reflink) may need room for the block itself: see `identity`.
        entry.size() == Size::Large && host_page_size() == PAGE_SIZE
    }

    /// Makes the host provide room for stores to these pages of the file. Their blocks begin at
    /// `block`. Without that room, a store could end the process with a signal.
    fn make_storable(&self, page: u64, block: u64, pages: u64) -> Result<(), DaxError> {
        let (at, len) = (block << PAGE_SHIFT, pages << PAGE_SHIFT);
        let Err(error) = self.parts.device.make_storable(at, len) else {
            return Ok(());
        };
        let offset = DaxCore::offset(page);
        self.check_host_len(offset)?;
        if let Some(host) = &self.parts.host {
            // A page that cannot be read cannot be stored to either.
            let read = host.read_at(&mut [0], offset);
            read.map_err(self.failed(DaxAction::Read, offset))?;
            // All refusals look the same here. A call that asks for room gives the reason.
            host.find_room(offset, pages << PAGE_SHIFT)
                .map_err(self.failed(DaxAction::Allocate, offset))?;
        }
        Err(self.failed(DaxAction::Allocate, offset)(error))
    }

    /// Allocates a block of zeros for a locked entry that is a hole or empty.
    fn new_block(&self, locked: &Locked<'_>, page: u64) -> Result<u64, DaxError> {
        let (first, pages) = (locked.first(), locked.entry().size().pages());
        let failed = self.failed(DaxAction::Allocate, DaxCore::offset(page));
        let block = self.parts.extents.allocate(first, pages).map_err(&failed)?;
        if pages == LARGE_PAGES && block % LARGE_PAGES != 0 {
            self.drop_block(locked);
            return Err(failed(std::io::ErrorKind::StorageFull.into()));
        }
        self.settle_heap();
        Ok(block)
    }

    /// Frees the block that was allocated for a locked entry.
    fn drop_block(&self, locked: &Locked<'_>) {
        // If this fails, there is a block of zeros instead of a hole.
        let _ = self.parts.extents.free(locked.pages());
        self.settle_heap();
    }

    /// Locks all of the page's 2 MiB as one entry: a block, which is dirty if the access writes, or
    /// a hole to read. Returns `None` if single pages have to be used instead, for example because
    /// the range goes past the page that `end` returns. May wait for a cut; a caller that shares
    /// `layout` never does, because no cut is under way then.
    pub(super) fn lock_large(
        &self,
        page: u64,
        kind: FaultKind,
        wait: Wait,
        end: impl Fn() -> u64,
    ) -> Result<Option<Locked<'_>>, DaxError> {
        let fits = || range_start(page) + LARGE_PAGES <= end();
        let fills_holes = self.setup.hole_writes == HoleWrites::Large;
        // Over a host file, the host would have to be asked for blocks and for room, which may
        // wait.
        if !fits() || (wait == Wait::No && self.parts.host.is_some()) {
            return Ok(None);
        }
        // This is checked before the range is locked: locking it would unlink the node of a hole
        // that is written page by page.
        if kind == FaultKind::Write
            && !fills_holes
            && !matches!(self.large_content(page)?, Some(Content::Block(_)))
        {
            return Ok(None);
        }
        let mut locked = loop {
            let none = &mut self.entries.no_spares();
            let found = self.entries.find(page, Wanted::Large, wait, none)?;
            let Some(locked) = found.filter(|_| fits()) else {
                return Ok(None);
            };
            if !self.is_being_cut(&locked.pages()) {
                break locked;
            }
            drop(locked);
            self.wait_for_cut();
        };
        let ready = self.is_storable(locked.entry());
        if wait == Wait::No && !self.is_put_nonblocking(locked.entry(), ready) {
            return Ok(None);
        }
        let content = match locked.content() {
            Content::Empty => self.large_content(page)?,
            known => Some(known),
        };
        match (content, kind) {
            (None, _) => return Ok(None),
            (Some(Content::Zero), FaultKind::Write) => {
                // If this fails, as when no contiguous 2 MiB are free, single pages may still do.
                if !fills_holes || self.make_block(&mut locked, page, wait).is_err() {
                    return Ok(None);
                }
            }
            (Some(found), _) => {
                if locked.content() == Content::Empty {
                    locked.set(Entry::new(Size::Large, found));
                }
                if kind == FaultKind::Write {
                    self.make_block(&mut locked, page, wait)?;
                }
            }
        }
        Ok(Some(locked))
    }

    /// Returns the content of the page's 2 MiB, if it is uniform: a hole, or a run of the device
    /// that begins at a multiple of 2 MiB.
    fn large_content(&self, page: u64) -> Result<Option<Content>, DaxError> {
        let offset = DaxCore::offset(page);
        let extent = self.look_up_extent(range_start(page), LARGE_PAGES, offset)?;
        Ok(match extent.at {
            _ if extent.pages < LARGE_PAGES => None,
            None => Some(Content::Zero),
            Some(block) => (block % LARGE_PAGES == 0).then_some(Content::Block(block)),
        })
    }

    /// Locks the blocks that follow `page`, to which the access will store next, and makes them
    /// dirty. Never waits for a locked entry, and allocates nothing.
    fn blocks_behind(&self, page: u64, end: u64) -> Vec<Locked<'_>> {
        let is_block = |there: Option<Entry>| {
            there.is_some_and(|entry| matches!(entry.content(), Content::Block(_)))
        };
        let mut blocks = self.lock_behind(page, end, STORES_AROUND, is_block);
        blocks.truncate(self.storable(&blocks));
        // The blocks are all in one range, which is the one recorded as dirty.
        let mut became_dirty = false;
        for block in &mut blocks {
            became_dirty |= !block.entry().is_dirty();
            block.set(block.entry().dirty());
        }
        if became_dirty {
            self.note_dirty(page);
        }
        blocks
    }

    /// Locks the entries of the pages that follow `page`, up to the first that is not `wanted` or
    /// that another thread has locked. The pages are before `end`, in the file and in the range
    /// that contains `page`. Together with `page` itself there are at most `most`. Never waits.
    fn lock_behind(
        &self,
        page: u64,
        end: u64,
        most: u64,
        wanted: impl Fn(Option<Entry>) -> bool,
    ) -> Vec<Locked<'_>> {
        let end = end.min(page + most).min(range_start(page) + LARGE_PAGES);
        let pages = page + 1..end.min(self.pages());
        let mut all = Vec::new();
        if pages.is_empty() {
            return all;
        }
        all.reserve_exact((pages.end - pages.start) as usize);
        // Nothing is locked after the first page that is not wanted.
        let ended = Cell::new(false);
        let goes_on = |there| {
            ended.set(ended.get() || !wanted(there));
            !ended.get()
        };
        let each = |locked| all.push(locked);
        self.entries.lock_run(pages, goes_on, each);
        all
    }

    /// Returns how many of these blocks, from the first on, can be stored to: see
    /// [`DaxCore::make_storable`]. If a host has to provide room, counts only blocks that are
    /// consecutive on the device.
    fn storable(&self, blocks: &[Locked<'_>]) -> usize {
        let Some(Content::Block(first)) = blocks.first().map(Locked::content) else {
            return 0;
        };
        if self.parts.device.durability() == Durability::Lines {
            return blocks.len(); // no host has to provide room
        }
        let follows = |(locked, at): &(&Locked<'_>, u64)| locked.content() == Content::Block(*at);
        let count = blocks.iter().zip(first..).take_while(follows).count() as u64;
        let storable = |block: u64, pages: u64| {
            let (at, len) = (block << PAGE_SHIFT, pages << PAGE_SHIFT);
            self.parts.device.make_storable(at, len).is_ok()
        };
        if storable(first, count) {
            return count as usize;
        }
        // Only the blocks before the first one that is refused count.
        let mut run = first..first + count;
        let refused = run.position(|block| !storable(block, 1));
        refused.unwrap_or(count as usize)
    }

    /// Locks the holes that follow `page`, as far as one query of the extent map reports a hole.
    /// Never waits for a locked entry.
    fn holes_behind(&self, page: u64, end: u64) -> Vec<Locked<'_>> {
        let may_be_hole =
            |there: Option<Entry>| there.is_none_or(|entry| entry.content() == Content::Zero);
        let mut holes = self.lock_behind(page, end, AROUND, may_be_hole);
        failpoint!(HolesLocked);
        // The extent map is queried with all these entries locked. Pages that were cut off
        // meanwhile, or are being cut out, are not mapped.
        let (first, count) = (page + 1, holes.len() as u64);
        let known = match count == 0 || self.is_being_cut(&(first..first + count)) {
            true => 0,
            false => match self.parts.extents.lookup(first, count) {
                Ok(Extent { at: None, pages }) => pages.min(self.pages().saturating_sub(first)),
                _ => 0,
            },
        };
        holes.truncate(known as usize);
        for hole in &mut holes {
            hole.set(Entry::new(Size::Small, Content::Zero));
        }
        holes
    }
}
