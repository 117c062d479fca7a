//! The store's holes as far as they are known: the last data range and the last hole; and the range
//! in which holes may be mapped.

use std::ops::Range;

use crate::cache::dirty::punched::Punched;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// The last data range and the last hole that the store reported, in bytes. If data is recorded
/// where there is a hole by now, nothing is lost: the store's zeros are read. If a hole is recorded
/// where there is data, the data is not read. So the recorded hole is forgotten when a block is
/// made in it. It is forgotten again when the block has been written to the store, since a query
/// may have recorded it once more before the write.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    pub(crate) data: Range<u64>,
    pub(crate) hole: Range<u64>,
    /// Punched ranges that no sync has covered. These are holes, whatever the store says.
    pub(crate) punched: Punched,
    /// How many times data was noted or the recorded answers were forgotten. A hole is not recorded
    /// if this has changed since the query for it began.
    pub(crate) cuts: u64,
}

/// A range that contains every block that was given to a fault as a hole, and so may be mapped as
/// one. Never shrinks.
#[derive(Debug)]
pub(crate) struct VisibleHoles {
    from: AtomicU64,
    to: AtomicU64,
}

impl Default for VisibleHoles {
    fn default() -> VisibleHoles {
        VisibleHoles {
            from: AtomicU64::new(u64::MAX),
            to: AtomicU64::new(0),
        }
    }
}

impl VisibleHoles {
    /// Whether one of `blocks` may be in the range. SeqCst, here and below: an insertion puts
    /// blocks into the index, and then calls this. If it does not find the blocks in the range,
    /// every fault that finds them in the range reads the index after the insertion.
    pub(crate) fn meet(&self, blocks: &Range<u64>) -> bool {
        fence(Ordering::SeqCst);
        self.from.load(Ordering::SeqCst) < blocks.end
            && blocks.start < self.to.load(Ordering::SeqCst)
    }

    /// Returns the range. A block in it that the caller then finds to be a hole may be mapped as
    /// one.
    pub(crate) fn now(&self) -> Range<u64> {
        let from = self.from.load(Ordering::SeqCst);
        if from == u64::MAX {
            return 0..0; // most files have no mapped holes
        }
        let to = self.to.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        from..to
    }

    /// Adds blocks to the range. The caller then checks again whether they are holes.
    pub(crate) fn add(&self, blocks: &Range<u64>) {
        self.from.fetch_min(blocks.start, Ordering::SeqCst);
        self.to.fetch_max(blocks.end, Ordering::SeqCst);
    }
}

impl Extents {
    /// Forgets the store's answers.
    pub(crate) fn clear(&mut self) {
        self.cuts += 1;
        self.data = 0..0;
        self.hole = 0..0;
    }

    /// Notes that `bytes` have data now, or will have it. Forgets the hole if it overlaps them.
    pub(crate) fn cut_hole(&mut self, bytes: &Range<u64>) {
        self.cuts += 1;
        if self.hole.start < bytes.end && bytes.start < self.hole.end {
            self.hole = 0..0;
        }
    }

    /// Records a hole that the store reported, unless [`Extents::cuts`] has changed from `cuts`,
    /// its value when the query began.
    pub(crate) fn remember_hole(&mut self, hole: Range<u64>, cuts: u64) {
        if self.cuts == cuts {
            self.hole = hole;
        }
    }

    pub(crate) fn answer(&self, bytes: &Range<u64>) -> Option<Content> {
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

/// The store's content of a block that is not cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Bytes to read.
    Data,
    /// Nothing but zeros.
    Hole,
}
