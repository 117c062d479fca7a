//! Sync: making stores durable.
//!
//! For each dirty entry: lock it, revoke write validity, wait for a grace period, flush its cache
//! lines, fence, mark it clean, unlock. The entries of a 2 MiB range are locked together, so that
//! one grace period serves all of them. If the host writes, one request serves them, too. A later
//! store faults again, waits for the entry, and makes it dirty again. A pinned page stays dirty,
//! because foreign code may store to it at any time.
//!
//! **Pins** are looked up between the lock and the flush. Stores through a pin that ended before
//! the lookup are flushed. A pin that is found keeps its pages dirty even if it ends during the
//! flush, because the flush may have missed its last store. A pin that is not found is registered
//! later, and a pin is registered before its entries are locked (`pin`). So the pinning thread
//! waits until this sync unlocks the entries, and makes them dirty again.
//!
//! **When the host fails.** The host reports a failed write once, no matter whose page it was, and
//! considers the page clean from then on. If the host were asked again, it would write nothing and
//! report success. So the pages that a failed sync has cleaned become dirty again, and the host is
//! made to consider all dirty pages changed ([`DaxCore::remind_host`]). This is done immediately,
//! because the host may drop pages that it considers clean. If the attempt fails, it is repeated
//! before the next sync. The failure is reported once to each handle.

use std::convert::Infallible;
use std::io;
use std::ops::Range;

use super::core::DaxCore;
use super::device::Durability;
use super::entries::Locked;
use super::entry::{Content, Entry, LARGE_PAGES};
use super::error::{DaxAction, DaxError};
use super::pins::overlap;
use super::stripes::Count;
use crate::cache::Revoke;
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

impl DaxCore {
    /// Makes stores to these bytes durable. Each page or large block that contains one of the bytes
    /// is made durable as a whole.
    pub(super) fn sync_bytes(&self, bytes: Range<u64>) -> Result<(), DaxError> {
        let pages = bytes.start >> PAGE_SHIFT..bytes.end.div_ceil(PAGE_SIZE as u64);
        let _one = self.syncing.lock();
        // The count is read first: a failure that another thread meets later may concern one of
        // these pages.
        let failures = self.errors.count();
        self.remind_host()
            .map_err(|error| self.host_failed(bytes.start, error))?;
        let mut first_error = None;
        let mut cleaned = Vec::new();
        for range in self.take_dirty(&pages) {
            let part = range.max(pages.start)..(range + LARGE_PAGES).min(pages.end);
            let whole = part == (range..range + LARGE_PAGES);
            let mut is_clean = whole;
            let is_dirty = |entry: Entry| entry.is_dirty();
            let flushed = self.entries.for_each_batch(part, is_dirty, |batch| {
                is_clean &= self.flush(batch, &mut cleaned)?;
                Ok(())
            });
            // Pages of the range may still be dirty: those outside `part`, pinned pages, and blocks
            // that could not be flushed.
            if !is_clean || flushed.is_err() {
                self.note_dirty(range);
            }
            if let Err(error) = flushed {
                first_error.get_or_insert(error);
            }
        }
        if let Err(error) = self.parts.extents.sync_metadata() {
            first_error.get_or_insert(self.host_failed(bytes.start, error));
        }
        if self.errors.count() == failures {
            return Ok(());
        }
        self.make_dirty_again(cleaned);
        // If this fails, the next sync repeats it first.
        let _ = self.remind_host();
        match first_error.or_else(|| self.errors.latest()) {
            Some(error) => Err(error),
            None => unreachable!("a failure is counted with its error"),
        }
    }

    /// Records that the host could not write, and may have forgotten other pending writes. Returns
    /// the error to report.
    pub(super) fn host_failed(&self, offset: u64, error: io::Error) -> DaxError {
        let error = self.failed(DaxAction::Sync, offset)(error);
        // `host_forgot` is incremented before the failure is counted. So a sync that finds the
        // failure counted when it begins also finds `host_forgot` above 0 (`remind_host`).
        self.host_forgot.fetch_add(1, Ordering::SeqCst);
        self.errors.record(error.clone());
        error
    }

    /// Flushes locked dirty entries, adds their pages to `cleaned`, marks all but the pinned ones
    /// clean, and unlocks all of them. Returns false if one of them was pinned. If the flush fails,
    /// all of them stay dirty.
    fn flush(
        &self,
        batch: &mut Vec<Locked<'_>>,
        cleaned: &mut Vec<Range<u64>>,
    ) -> Result<bool, DaxError> {
        let runs = runs(batch);
        for pages in &runs {
            self.mappers.revoke(pages.clone(), Revoke::Write);
        }
        self.grace();
        let covered = runs[0].start..runs[runs.len() - 1].end;
        // Pins are looked up before the flush: see the module.
        let pinned = self.pins.in_range(&covered);
        let flushed = self.flush_blocks(batch).map_err(|error| {
            let offset = DaxCore::offset(runs[0].start);
            self.host_failed(offset, error)
        })?;
        self.counts.add(Count::Flushed, flushed);
        failpoint!(Flushed);
        cleaned.extend(runs);
        let mut is_clean = true;
        for mut locked in batch.drain(..) {
            let own = locked.pages();
            if pinned.iter().any(|pin| overlap(pin, &own)) {
                is_clean = false;
                continue;
            }
            locked.set(locked.entry().clean());
        }
        Ok(is_clean)
    }

    /// Makes the blocks of locked entries durable. Returns their size in bytes.
    fn flush_blocks(&self, batch: &[Locked<'_>]) -> io::Result<u64> {
        let mut flushed = 0;
        let mut hull: Option<Range<u64>> = None;
        for locked in batch {
            let Content::Block(block) = locked.content() else {
                panic!("D14: {:?} is dirty", locked.entry());
            };
            let (at, len) = (
                block << PAGE_SHIFT,
                locked.entry().size().pages() << PAGE_SHIFT,
            );
            flushed += len;
            match self.parts.device.durability() {
                // No atomic operation comes between the flushes: it would wait for the lines of
                // each block separately.
                Durability::Lines => self.parts.device.flush(at, len)?,
                // One request covers all blocks. Pages between them are written early, which does
                // no harm.
                Durability::HostSync => {
                    let all = hull.get_or_insert(at..at);
                    *all = all.start.min(at)..all.end.max(at + len);
                }
            }
        }
        if let Some(all) = hull {
            self.parts.device.flush(all.start, all.end - all.start)?;
        }
        self.parts.device.fence()?;
        Ok(flushed)
    }

    /// Makes blocks of these pages dirty again, if they still exist.
    fn make_dirty_again(&self, cleaned: Vec<Range<u64>>) {
        let is_block = |entry: Entry| matches!(entry.content(), Content::Block(_));
        for pages in cleaned {
            let redo = |batch: &mut Vec<Locked<'_>>| {
                for mut locked in batch.drain(..) {
                    let dirty = locked.entry().dirty();
                    self.note_dirty(locked.first());
                    locked.set(dirty);
                }
                Ok::<_, Infallible>(())
            };
            let Ok(()) = self.entries.for_each_batch(pages, is_block, redo);
        }
    }

    /// Makes the host consider every dirty block of the file changed, if the host may consider one
    /// of them clean. The caller holds `syncing`.
    fn remind_host(&self) -> io::Result<()> {
        let failures = self.host_forgot.load(Ordering::SeqCst);
        if failures == 0 {
            return Ok(());
        }
        // Until all blocks are done, a store to a dirty page asks the host for room again
        // (`is_storable`).
        self.show_dirty()?;
        // A failure meanwhile may concern a page that was done already: then the count stays above
        // 0.
        let _ = self
            .host_forgot
            .compare_exchange(failures, 0, Ordering::SeqCst, Ordering::SeqCst);
        Ok(())
    }

    fn show_dirty(&self) -> io::Result<()> {
        if self.parts.device.durability() != Durability::HostSync {
            return Ok(()); // there is no host that writes
        }
        let is_dirty = |entry: Entry| entry.is_dirty();
        self.dirty.all().into_iter().try_for_each(|range| {
            let pages = range..range + LARGE_PAGES;
            self.entries.for_each_batch(pages, is_dirty, |batch| {
                let mut batch = batch.drain(..);
                batch.try_for_each(|locked| self.touch(&locked))
            })
        })
    }

    /// Makes the host consider the pages of a locked block changed. Skips pages that another
    /// process has cut off.
    fn touch(&self, locked: &Locked<'_>) -> io::Result<()> {
        let Content::Block(block) = locked.content() else {
            return Ok(());
        };
        let pages = locked.pages();
        let mut end = pages.end;
        while pages.start < end {
            let len = (end - pages.start) << PAGE_SHIFT;
            let Err(error) = self.parts.device.touch(block << PAGE_SHIFT, len) else {
                return Ok(());
            };
            if error.kind() == io::ErrorKind::Unsupported {
                return self.touch_each(pages, block);
            }
            // A cut by another process explains a failure only past the file's new end.
            let left = self.host_pages()?;
            if left >= end {
                return Err(error);
            }
            end = left;
        }
        Ok(())
    }

    /// Does the same as [`DaxCore::touch`], page by page, on a system that cannot touch a range.
    /// Another process may cut the file between the check of a page and the write to it. Then a
    /// store raises a signal; a call, in a guarded file, lengthens the host file again to the first
    /// byte of the page.
    fn touch_each(&self, pages: Range<u64>, block: u64) -> io::Result<()> {
        let pinned = self.pins.in_range(&pages);
        for (page, block) in pages.zip(block..) {
            if page >= self.host_pages()? {
                break;
            }
            // Foreign code may store to a pinned page at any time. If this thread read a byte by a
            // call and wrote it back by another, it could undo such a store. So a pinned page is
            // touched by one atomic store.
            let by_store = pinned.iter().any(|pin| pin.contains(&page));
            match self.guarded_host() {
                // All other stores to a guarded file are calls that lock the entry, so none comes
                // between this read and this write.
                Some(host) if !by_store => {
                    let (mut byte, offset) = ([0], DaxCore::offset(page));
                    match host.read_at(&mut byte, offset) {
                        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                        read => read?,
                    }
                    host.write_at(&byte, offset)?;
                }
                _ => self.parts.device.touch_by_store(block << PAGE_SHIFT),
            }
        }
        Ok(())
    }

    /// Returns the number of pages that the host file has now, the last one possibly partly past
    /// its end; `u64::MAX` if there is no host file.
    fn host_pages(&self) -> io::Result<u64> {
        match &self.parts.host {
            Some(host) => Ok(host.len_now()?.div_ceil(PAGE_SIZE as u64)),
            None => Ok(u64::MAX),
        }
    }
}

/// Returns the pages that the entries cover, with neighbours joined. The entries must be in
/// ascending order.
fn runs(batch: &[Locked<'_>]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for pages in batch.iter().map(Locked::pages) {
        match runs.last_mut() {
            Some(run) if run.end == pages.start => run.end = pages.end,
            _ => runs.push(pages),
        }
    }
    runs
}
