//! Statistics of one direct-access file.

use std::fmt;

use super::core::DaxCore;
use super::entry::Content;
use super::stripes::Count;
use crate::units::{ByteSize, Grouped, PAGE_SHIFT, PageCount};

/// Statistics of a direct-access file. Sizes are in pages of 4 KiB, unless they say bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DaxStats {
    /// The length in bytes.
    pub len: u64,
    /// Pages of memory that the file's entries take.
    pub tables: PageCount,
    /// Pages of blocks with stores that no sync has covered.
    pub dirty: PageCount,
    /// Pages of holes that are, or may be, mapped as the zero frame.
    pub zero: PageCount,
    /// Pages of blocks that entries refer to, clean or dirty.
    pub present: PageCount,
    /// Ranges that are pinned.
    pub pins: u64,
    /// Faults in mappings of the file.
    pub faults: u64,
    /// Faults that mapped 2 MiB in one step.
    pub large_faults: u64,
    /// Faults that tried to map 2 MiB in one step and had to use single pages instead.
    pub fallbacks: u64,
    /// Faults that mapped the zero frame.
    pub zero_faults: u64,
    /// Holes of 2 MiB that were split, because single pages of them were stored to, written or
    /// pinned.
    pub downgrades: u64,
    /// Pages that were allocated.
    pub allocated: PageCount,
    /// Bytes that syncs have flushed.
    pub flushed: u64,
}

impl DaxStats {
    pub(super) fn of(core: &DaxCore) -> DaxStats {
        let read = |count| core.counts.sum(count);
        let mut stats = DaxStats {
            len: core.size(),
            tables: PageCount(core.entries.node_count()),
            pins: core.pins.len() as u64,
            faults: read(Count::Faults),
            large_faults: read(Count::LargeFaults),
            fallbacks: read(Count::Fallbacks),
            zero_faults: read(Count::ZeroMaps),
            downgrades: read(Count::Downgrades),
            allocated: PageCount(read(Count::Allocated)),
            flushed: read(Count::Flushed),
            ..DaxStats::default()
        };
        let (mut page, end) = (0, u64::MAX >> PAGE_SHIFT);
        while let Some((found, entry)) = core.entries.next(page, end, |_, _| true) {
            page = (found + 1).next_multiple_of(entry.size().pages());
            let pages = PageCount(entry.size().pages());
            match entry.content() {
                Content::Block(_) => stats.present += pages,
                Content::Zero => stats.zero += pages,
                Content::Empty => {}
            }
            if entry.is_dirty() {
                stats.dirty += pages;
            }
        }
        stats
    }
}

impl fmt::Display for DaxStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; pages: {} present, {} dirty, {} zero, {} of tables; {} faults, {} of them large, {} fell back; {} allocated, \
             {} flushed",
            ByteSize(self.len),
            Grouped(self.present.0),
            Grouped(self.dirty.0),
            Grouped(self.zero.0),
            Grouped(self.tables.0),
            Grouped(self.faults),
            Grouped(self.large_faults),
            Grouped(self.fallbacks),
            Grouped(self.allocated.0),
            ByteSize(self.flushed)
        )
    }
}
