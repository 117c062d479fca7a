//! Sync: what was stored is made durable.
//!
//! For each dirty entry: lock it, take the right to store away, wait a grace period, flush the cache lines of all of it, fence,
//! clear dirty, unlock. Entries are taken in batches, so that one grace period serves many. Who stores again faults again,
//! waits for the entry, and makes it dirty again. A pinned page stays dirty: foreign code may store to it at any time.

use std::ops::Range;

use super::core::DaxCore;
use super::entries::Locked;
use super::entry::{Content, Entry, LARGE_PAGES};
use super::error::{DaxAction, DaxError};
use crate::sync::atomic::Ordering;
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

impl DaxCore {
    /// Makes what was stored to these bytes durable: all of a page or a large block that they touch.
    pub(super) fn sync_bytes(&self, bytes: Range<u64>) -> Result<(), DaxError> {
        let pages = bytes.start >> PAGE_SHIFT..bytes.end.div_ceil(PAGE_SIZE as u64);
        let _one = self.syncing.lock();
        let mut first_error = None;
        let mut cleaned = Vec::new();
        for range in self.take_dirty(&pages) {
            let part = range.max(pages.start)..(range + LARGE_PAGES).min(pages.end);
            let whole = part == (range..range + LARGE_PAGES);
            let end = self.sync_part(part, &mut cleaned);
            // What is left may be dirty: the other part, what is pinned, what could not be flushed.
            if !whole || !matches!(end, Ok(Left::Nothing)) {
                self.note_dirty(range);
            }
            if let Err(error) = end {
                first_error.get_or_insert(error);
            }
        }
        if let Err(error) = self.extents.sync_metadata() {
            // The host may have lost what it was given: all of it is dirty again.
            self.make_dirty_again(cleaned);
            let error = self.host_error(DaxAction::Sync, bytes.start, error);
            first_error.get_or_insert(error);
        }
        first_error.map_or(Ok(()), Err)
    }

    /// The dirty entries of a part of a 2 MiB range.
    fn sync_part(
        &self,
        pages: Range<u64>,
        cleaned: &mut Vec<Range<u64>>,
    ) -> Result<Left, DaxError> {
        let mut left = Left::Nothing;
        let mut at = pages.start;
        loop {
            let mut batch = Vec::new();
            self.entries
                .lock_batch(&mut at, pages.end, Entry::is_dirty, &mut batch);
            if batch.is_empty() {
                return Ok(left);
            }
            if self.flush(batch, cleaned)? == Left::Dirty {
                left = Left::Dirty;
            }
        }
    }

    /// Flushes locked dirty entries, and unlocks them clean.
    fn flush(
        &self,
        batch: Vec<Locked<'_>>,
        cleaned: &mut Vec<Range<u64>>,
    ) -> Result<Left, DaxError> {
        for pages in runs(&batch) {
            self.revoke_write(pages);
        }
        self.grace();
        // Counted afterwards: an atomic operation between them would wait for each page's lines by itself.
        let mut flushed = 0;
        for locked in &batch {
            let Content::Block(block) = locked.content() else {
                panic!("D14: {:?} is dirty", locked.entry());
            };
            let len = locked.entry().size().pages() << PAGE_SHIFT;
            let offset = DaxCore::offset(locked.first());
            self.device
                .flush(block << PAGE_SHIFT, len)
                .map_err(|error| self.host_error(DaxAction::Sync, offset, error))?;
            flushed += len;
        }
        let offset = batch
            .first()
            .map_or(0, |first| DaxCore::offset(first.first()));
        self.device
            .fence()
            .map_err(|error| self.host_error(DaxAction::Sync, offset, error))?;
        self.counts.flushed.fetch_add(flushed, Ordering::Relaxed);
        cleaned.extend(runs(&batch));
        let mut left = Left::Nothing;
        for locked in batch {
            if self.pins.covers(&locked.pages()) {
                left = Left::Dirty;
                continue;
            }
            let clean = locked.entry().clean();
            locked.replace(clean);
        }
        Ok(left)
    }

    /// Blocks of these pages are dirty again, as far as they are still there.
    fn make_dirty_again(&self, cleaned: Vec<Range<u64>>) {
        let is_block = |entry: Entry| matches!(entry.content(), Content::Block(_));
        let mut batch = Vec::new();
        for pages in cleaned {
            let mut at = pages.start;
            while at < pages.end {
                self.entries
                    .lock_batch(&mut at, pages.end, is_block, &mut batch);
                for mut locked in batch.drain(..) {
                    let dirty = locked.entry().dirty();
                    self.note_dirty(locked.first());
                    locked.become_locked(dirty);
                }
            }
        }
    }
}

/// The pages of entries that are in ascending order, those of neighbours together.
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

/// Whether something is still dirty after a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    Nothing,
    Dirty,
}
