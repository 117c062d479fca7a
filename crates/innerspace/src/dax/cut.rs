//! Truncate, punch and invalidate: removing blocks while the file is in use.
//!
//! 1. `layout` is held exclusively, because reads by call lock no entries while they copy. No pin
//!    overlaps the range, because foreign code uses the addresses of pinned pages.
//! 2. The length is lowered, or the range is noted as being cut. A fault locks its entry and then
//!    reads the length and the ranges. A cut changes them and then looks at the entries. So one of
//!    the two sees the other.
//! 3. Each entry is locked, and its translations are revoked.
//! 4. A grace period passes: no thread reads or writes the blocks any more.
//! 5. The blocks are freed.
//! 6. The entries are removed and all waiters woken. The waiters find the new length, or wait for
//!    the cut to end.
//!
//! A fault in a range that is being punched unlocks its entry and waits for `layout`. A fault past
//! the new length fails.
//!
//! An invalidate removes only clean entries, by steps 1, 3, 4 and 6. It waits for no pin, because
//! pinned pages are dirty.

use std::io::ErrorKind;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::core::DaxCore;
use super::entries::Locked;
use super::entry::{Content, Entry, LARGE_PAGES, Size};
use super::error::{DaxAction, DaxError};
use super::grab::range_start;
use super::io::pieces;
use crate::cache::{FaultKind, Wait};
use crate::exec::reentry::{FileLocked, is_in_task};
use crate::sync::atomic::Ordering;
use crate::sync::{MutexGuard, RwLockWriteGuard, failpoint};
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

/// Returns how long a truncate or punch waits for pins: in a task not at all, because the holder of
/// a pin may be waiting for the task.
pub(super) fn patience() -> Duration {
    match is_in_task() {
        true => Duration::ZERO,
        false => Duration::from_secs(10),
    }
}

impl DaxCore {
    /// Shortens or lengthens the file. Waits for pins until `until`, or without limit for `None`.
    pub(super) fn set_len(&self, new: u64, until: Option<Instant>) -> Result<(), DaxError> {
        self.check_writable(new)?;
        if new > self.parts.most {
            return Err(self.too_long(new, 0));
        }
        let first = new.div_ceil(PAGE_SIZE as u64);
        // The last page that stays loses its end, to which foreign code may be writing. So a pin of
        // that page is waited for, too.
        let touched = || match new < self.size() {
            true => new >> PAGE_SHIFT..u64::MAX >> PAGE_SHIFT,
            false => first..first,
        };
        let _layout = self.without_pins(touched, DaxAction::Resize, until)?;
        let old = self.size();
        let gone = first..self.pages().max(first);
        if new >= old {
            self.clear_tail(old)?;
            self.set_len_of_map(new)?;
            self.size.store(new, Ordering::SeqCst);
            return Ok(());
        }
        // The step that may need memory comes first: if there is none, nothing is lost.
        match self.clear_tail(new) {
            // The host clears the rest of the page when it cuts the file, and needs no room for
            // that.
            Err(error) if self.parts.host.is_some() && is_full(&error) => {}
            cleared => cleared?,
        }
        self.size.store(new, Ordering::SeqCst);
        let _no_sync = self.no_sync();
        let cut = self.cut_out(gone, Removal::Free);
        let cut = cut.and_then(|()| self.set_len_of_map(new));
        if cut.is_err() {
            // The part that was not cut off belongs to the file again, with its bytes as they are.
            self.size.store(old, Ordering::SeqCst);
        }
        cut
    }

    /// Fills a range with zeros, and gives its whole pages back to the device. Waits for pins until
    /// `until`, or without limit for `None`.
    pub(super) fn punch(&self, bytes: Range<u64>, until: Option<Instant>) -> Result<(), DaxError> {
        self.check_writable(bytes.start)?;
        let page = PAGE_SIZE as u64;
        let touched = || {
            let end = bytes.end.min(self.size());
            bytes.start / page..end.div_ceil(page)
        };
        let _layout = self.without_pins(touched, DaxAction::Punch, until)?;
        let end = bytes.end.min(self.size());
        if bytes.start >= end {
            return Ok(());
        }
        let bytes = bytes.start..end;
        let first = bytes.start.div_ceil(page);
        // The last page of the file is punched whole, even if the file ends inside it.
        let last = match end == self.size() {
            true => end.div_ceil(page),
            false => end / page,
        };
        let ends = match first < last {
            true => [bytes.start..first * page, last * page..end],
            false => [bytes, end..end],
        };
        if self.parts.extents.is_parted_by(&(first..last)) {
            self.pay_ahead(Wait::Yes)?;
        }
        // The step for which the host may have no room comes first: if the host has none, nothing
        // is lost. The pages have to stay dirty until they are cleared: after a sync the host would
        // need room again.
        let _no_sync = self.no_sync();
        for end in &ends {
            self.make_clearable(end.clone())?;
        }
        failpoint!(Clearable);
        let ends = || ends.into_iter().try_for_each(|end| self.clear(end));
        if first >= last {
            return ends();
        }
        let cut = first..last;
        self.cut.lock().push(cut.clone());
        self.cuts.fetch_add(1, Ordering::SeqCst);
        let done = self.cut_out(cut.clone(), Removal::Free);
        self.cut.lock().retain(|other| *other != cut);
        self.cuts.fetch_sub(1, Ordering::SeqCst);
        done?;
        ends()
    }

    /// Forgets the entries of clean pages, so that the next access queries the extent map again.
    /// Dirty entries stay.
    pub(super) fn invalidate(&self, pages: Range<u64>) -> Result<(), DaxError> {
        let (_layout, _holding) = (self.layout.write(), FileLocked::begin());
        let _no_sync = self.no_sync();
        self.parts.extents.forget(pages.clone());
        self.cut_out(pages, Removal::ForgetClean)
    }

    /// Waits for a sync that is running, and keeps other syncs away until the result is dropped. A
    /// cut needs this for two reasons. If a sync fails, the pages that it has cleaned become dirty
    /// again, so a clean page can be relied on only once the sync has ended. And the host reports a
    /// failure only once: to the sync, or to another thread that flushes.
    fn no_sync(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock()
    }

    /// Frees the blocks past the file's end that a failed write up to `end` has allocated.
    pub(super) fn give_back_past_end(&self, end: u64) -> Result<(), DaxError> {
        let (_layout, _holding) = (self.layout.write(), FileLocked::begin());
        if end <= self.size() {
            return Ok(());
        }
        let planned = end.div_ceil(PAGE_SIZE as u64);
        if self.pages() < planned {
            let _no_sync = self.no_sync();
            self.cut_out(self.pages()..planned, Removal::Free)?;
        }
        self.set_len_of_map(self.size())
    }

    /// Makes the host provide room for [`DaxCore::clear`] of these bytes. Their blocks are dirty
    /// afterwards, except large ones that need no room.
    fn make_clearable(&self, bytes: Range<u64>) -> Result<(), DaxError> {
        self.for_each_part(bytes, |locked, page, _, _| {
            match self.is_storable(locked.entry()) {
                true => Ok(()),
                false => self.make_block(locked, page, Wait::Yes),
            }
        })
    }

    /// Zeroes bytes in pages that keep their blocks. Holes are skipped.
    pub(super) fn clear(&self, bytes: Range<u64>) -> Result<(), DaxError> {
        let end = match self.guarded_host() {
            // The zeros of a guarded file are written by calls to the host, and a call past the end
            // of the host's file would lengthen it. So the range stops at that end. If another
            // process has cut the host's file below this file's length, the range stops at this
            // length instead, and the calls between the two ends report the cut. If there are no
            // such calls, the next growth of this file reports it.
            Some(host) => {
                let now = host.len_now();
                let now = now.map_err(self.failed(DaxAction::Query, bytes.start))?;
                bytes.end.min(now.max(self.size()))
            }
            None => bytes.end,
        };
        self.for_each_part(bytes.start..end, |locked, page, at, len| {
            self.make_block(locked, page, Wait::Yes)?;
            match self.is_guarded() {
                true => {
                    let zeros = &[0; PAGE_SIZE][..len as usize];
                    self.write_device(at, zeros, DaxCore::offset(page) + at % PAGE_SIZE as u64)?;
                }
                false => self.parts.device.zero(at, len),
            }
            self.written_in_place(page..page + 1);
            Ok(())
        })
    }

    /// Calls `work` for each page that has a block and some of these bytes. `work` gets the locked
    /// entry, the page, and where those bytes are on the device: their offset and length. Holes are
    /// skipped.
    fn for_each_part(
        &self,
        bytes: Range<u64>,
        work: impl Fn(&mut Locked<'_>, u64, u64, u64) -> Result<(), DaxError>,
    ) -> Result<(), DaxError> {
        let len = bytes.end.saturating_sub(bytes.start) as usize;
        pieces(bytes.start, len).try_for_each(|(page, inside, part)| {
            let mut locked = self.lock_for(page, FaultKind::Read, Wait::Yes)?;
            self.look_up(&mut locked, page)?;
            let Content::Block(block) = locked.content() else {
                return Ok(());
            };
            let at = DaxCore::offset(block + (page - locked.first())) + inside as u64;
            work(&mut locked, page, at, part as u64)
        })
    }

    /// Locks `layout` exclusively, once no pin is in the pages that `touched` returns. Calls
    /// `touched` with `layout` locked. Waits for pins until `until`, or without limit for `None`.
    fn without_pins(
        &self,
        touched: impl Fn() -> Range<u64>,
        what: DaxAction,
        until: Option<Instant>,
    ) -> Result<(RwLockWriteGuard<'_, ()>, FileLocked), DaxError> {
        loop {
            let layout = self.layout.write();
            let pages = self.widened(touched());
            if self.pins.in_range(&pages).is_empty() {
                return Ok((layout, FileLocked::begin()));
            }
            drop(layout);
            let ended = self.pins.wait_for_end(&pages, until);
            ended.map_err(|(pinned, holder)| DaxError::Busy {
                file: self.parts.name.clone(),
                range: DaxCore::offset(pinned.start)..DaxCore::offset(pinned.end),
                what,
                holder,
            })?;
        }
    }

    /// Returns the pages, extended to the whole of a large entry at either end, because such an
    /// entry is removed as a whole.
    fn widened(&self, pages: Range<u64>) -> Range<u64> {
        if pages.is_empty() {
            return pages;
        }
        let covering = |page: u64| match self.entries.peek(page) {
            Some(entry) if entry.size() == Size::Large => {
                range_start(page)..range_start(page) + LARGE_PAGES
            }
            _ => page..page + 1,
        };
        let (first, last) = (covering(pages.start), covering(pages.end - 1));
        first.start.min(pages.start)..last.end.max(pages.end)
    }

    /// Removes the entries of `pages`, or only the clean ones, as `removal` says. With
    /// [`Removal::Free`], also frees blocks of `pages` that have no entry.
    fn cut_out(&self, pages: Range<u64>, removal: Removal) -> Result<(), DaxError> {
        let goes = |entry: Entry| removal == Removal::Free || !entry.is_dirty();
        let remove = |batch: &mut _| self.remove(batch, &pages, removal);
        self.entries.for_each_batch(pages.clone(), goes, remove)?;
        if removal == Removal::Free {
            // The blocks that are left are at pages that have no entry.
            self.free_blocks(pages.clone())?;
        }
        self.entries.prune(pages.start..pages.end);
        Ok(())
    }

    /// Removes locked entries, once no thread uses them. With [`Removal::Free`], also frees the
    /// blocks of `pages` from the first of these entries to the last.
    fn remove(
        &self,
        batch: &mut Vec<Locked<'_>>,
        pages: &Range<u64>,
        removal: Removal,
    ) -> Result<(), DaxError> {
        for locked in batch.iter() {
            self.revoke(locked.pages(), locked.entry());
        }
        self.grace();
        for locked in batch.iter() {
            let own = locked.pages();
            let inside = own.start >= pages.start && own.end <= pages.end;
            if !inside
                && locked.entry().is_dirty()
                && let Content::Block(block) = locked.content()
            {
                // Only a part of this large block is cut, but its entry is removed as a whole. So
                // the whole block is flushed now: what was stored to the part that stays must be
                // durable.
                let len = locked.entry().size().pages() << PAGE_SHIFT;
                let flushed = self.parts.device.flush(block << PAGE_SHIFT, len);
                flushed
                    .and_then(|()| self.parts.device.fence())
                    .map_err(|error| self.host_failed(DaxCore::offset(own.start), error))?;
            }
        }
        if removal == Removal::Free {
            // Pages between these entries that have no entry are being cut, too, so no thread
            // reaches them.
            let (first, last) = (&batch[0], &batch[batch.len() - 1]);
            let cut = first.first().max(pages.start)..last.pages().end.min(pages.end);
            self.free_blocks(cut).inspect_err(|_| {
                // The host may have freed some of the blocks, and their entries stay dirty. Until
                // the host is reminded of them, a store to a dirty page asks for room again.
                self.host_forgot.fetch_add(1, Ordering::SeqCst);
            })?;
        }
        batch.drain(..).for_each(Locked::remove);
        Ok(())
    }

    /// Turns pages into a hole. An error names the first of these pages, though the host may have
    /// failed at a later one.
    fn free_blocks(&self, pages: Range<u64>) -> Result<(), DaxError> {
        let offset = DaxCore::offset(pages.start);
        self.parts
            .extents
            .free(pages)
            .map_err(self.failed(DaxAction::Punch, offset))?;
        self.settle_heap();
        Ok(())
    }
}

/// Returns whether the error means that the host had no room, or that a quota was exceeded.
fn is_full(error: &DaxError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

/// The entries that a cut removes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Removal {
    /// Removes all entries, and frees their blocks.
    Free,
    /// Removes clean entries; their blocks remain the file's.
    ForgetClean,
}
