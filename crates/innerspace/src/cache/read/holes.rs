//! Where the store's holes are, as far as it was asked: one data range and one hole, the last of
//! each.

use std::ops::Range;

use crate::cache::core::FileCore;
use crate::cache::dirty::punched::Punched;
use crate::cache::errors::{FileError, StoreAction};
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// The last data range and the last hole the store told of, in bytes. A data range that became a
/// hole is harmless (zeros are read from the store); a hole that became data is not, so it is cut
/// when a block is made there, for what was asked before, and again when the block has been
/// written, for what was asked in between.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    data: Range<u64>,
    hole: Range<u64>,
    /// What was punched and no sync has covered: holes, whatever the store says.
    pub(crate) punched: Punched,
    /// Counts cuts: an answer of the store from before one is not remembered after it.
    cuts: u64,
}

/// A range of blocks that has every block in it of which a fault was told that it is a hole, so
/// that it may be mapped as one. Never shrinks.
#[derive(Debug)]
pub(crate) struct ShownHoles {
    from: AtomicU64,
    to: AtomicU64,
}

impl Default for ShownHoles {
    fn default() -> ShownHoles {
        ShownHoles {
            from: AtomicU64::new(u64::MAX),
            to: AtomicU64::new(0),
        }
    }
}

impl ShownHoles {
    /// Whether one of the blocks may be among them. SeqCst, here and below: who puts a block into
    /// the index and then does not see it here comes before the lookup of every fault that has seen
    /// it here before that.
    pub(crate) fn meet(&self, blocks: &Range<u64>) -> bool {
        fence(Ordering::SeqCst);
        self.from.load(Ordering::SeqCst) < blocks.end
            && blocks.start < self.to.load(Ordering::SeqCst)
    }

    /// What there is now. What the caller then looks up, and finds to be a hole, may be mapped as
    /// one.
    pub(crate) fn now(&self) -> Range<u64> {
        let from = self.from.load(Ordering::SeqCst);
        if from == u64::MAX {
            return 0..0; // of most files nobody was ever told so
        }
        let to = self.to.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        from..to
    }

    /// Adds blocks. The caller looks again whether they are holes.
    pub(crate) fn add(&self, blocks: &Range<u64>) {
        self.from.fetch_min(blocks.start, Ordering::SeqCst);
        self.to.fetch_max(blocks.end, Ordering::SeqCst);
    }
}

impl Extents {
    /// Forgets what the store said.
    pub(crate) fn clear(&mut self) {
        self.cuts += 1;
        self.data = 0..0;
        self.hole = 0..0;
    }

    /// `bytes` will have data, or have it now.
    pub(crate) fn cut_hole(&mut self, bytes: &Range<u64>) {
        self.cuts += 1;
        if self.hole.start < bytes.end && bytes.start < self.hole.end {
            self.hole = 0..0;
        }
    }

    /// Remembers what the store said when there had been `cuts` cuts.
    fn remember_hole(&mut self, hole: Range<u64>, cuts: u64) {
        if self.cuts == cuts {
            self.hole = hole;
        }
    }

    fn answer(&self, bytes: &Range<u64>) -> Option<Content> {
        let inside = |outer: &Range<u64>| outer.start <= bytes.start && bytes.end <= outer.end;
        if inside(&self.data) {
            Some(Content::Data)
        } else if inside(&self.hole) {
            Some(Content::Hole)
        } else {
            None
        }
    }
}

/// What the store has for a block that is not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Bytes to read.
    Data,
    /// Nothing but zeros.
    Hole,
}

impl FileCore {
    /// What the store has for `block`, if that is known without asking it.
    pub(crate) fn known_content(&self, block: u64) -> Option<Content> {
        let bytes = self.stored_bytes(block);
        if bytes.is_empty() {
            return Some(Content::Hole);
        }
        let extents = self.extents.lock();
        match extents.punched.contains(block) {
            true => Some(Content::Hole),
            false => extents.answer(&bytes),
        }
    }

    /// What the store has for `block`, which is not cached.
    pub(crate) fn content(&self, block: u64) -> Result<Content, FileError> {
        if let Some(known) = self.known_content(block) {
            return Ok(known);
        }
        let bytes = self.stored_bytes(block);
        let cuts = self.extents.lock().cuts;
        let store = self.store()?;
        let _call = self.store_call();
        let wrap = |error| {
            let len = bytes.end - bytes.start;
            self.store_error(StoreAction::Query, bytes.start, len, error)
        };
        let next_data = store.next_data(bytes.start).map_err(wrap)?;
        let data_start = next_data.unwrap_or(u64::MAX);
        if data_start >= bytes.end {
            // A store that was cut short has no data there either: that is for the read to find
            // out.
            let len = store.len().map_err(wrap)?;
            if len < bytes.end {
                return Ok(Content::Data);
            }
            let hole = bytes.start..data_start.min(len);
            self.extents.lock().remember_hole(hole, cuts);
            return Ok(Content::Hole);
        }
        let hole_start = store.next_hole(data_start).map_err(wrap)?;
        // What lies between here and the data is a hole inside the block: read as zeros with the
        // rest.
        self.extents.lock().data = bytes.start..hole_start.max(bytes.end);
        Ok(Content::Data)
    }

    /// The first block that is not known to be all hole, from `block` on, which is.
    pub(crate) fn end_of_hole(&self, block: u64) -> u64 {
        let bytes = self.stored_bytes(block);
        if bytes.is_empty() {
            return u64::MAX; // the store ends before it
        }
        let extents = self.extents.lock();
        if let Some(end) = extents.punched.end_of(block) {
            return end;
        }
        let hole = &extents.hole;
        match hole.contains(&bytes.start) {
            true => hole.end >> self.block_shift(),
            false => block, // it has been cut since
        }
    }

    /// The bytes of a block that the store has.
    pub(crate) fn stored_bytes(&self, block: u64) -> Range<u64> {
        let start = block << self.block_shift();
        let end = (start + self.block_bytes()).min(self.stored.load(Ordering::Acquire));
        start..end.max(start)
    }
}
