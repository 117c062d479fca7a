//! The event counters and statistics of a group, as users see them.

use std::fmt;

use crate::units::{ByteSize, Grouped, PageCount};

/// The events of a group since it was created. `Display` prints one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GroupEvents {
    /// Requests that brought the group's usage above its `high`, or found it there.
    pub high: u64,
    /// Requests that reached the group's `max` and then tried to evict pages.
    pub max: u64,
    /// Requests that failed because the group was full and nothing more could be evicted.
    pub oom: u64,
    /// Pages evicted from the group and from the groups below it.
    pub reclaimed: PageCount,
    /// Requests that the group refused before reclaim was tried.
    pub refused: u64,
}

impl fmt::Display for GroupEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} over high, {} at max, {} failed, {} refused, {} evicted",
            Grouped(self.high),
            Grouped(self.max),
            Grouped(self.oom),
            Grouped(self.refused),
            ByteSize(self.reclaimed.bytes())
        )
    }
}

/// The state and events of a group. `Display` prints one line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GroupStats {
    /// The group's name.
    pub name: String,
    /// The names from the root to the group, joined by `/`.
    pub path: String,
    /// Pages charged to the group and to all below it.
    pub usage: PageCount,
    /// Pages charged to the group itself, including those that deleted groups below it left behind.
    pub own: PageCount,
    /// The group's limit; `None` if only the groups above limit it.
    pub max: Option<PageCount>,
    /// The mark above which requests are slow; see [`Group::set_high`](crate::Group::set_high).
    pub high: Option<PageCount>,
    /// The protection set by [`Group::set_low`](crate::Group::set_low).
    pub low: PageCount,
    /// The protection set by [`Group::set_min`](crate::Group::set_min).
    pub min: PageCount,
    /// The highest usage so far.
    pub peak: PageCount,
    /// Requests that the group refused before reclaim was tried.
    pub refusals: u64,
    /// All events so far.
    pub events: GroupEvents,
    /// Pages of page-table and index nodes charged to the group itself.
    pub tables: PageCount,
    /// The number of accessors of spaces in the group.
    pub accessors: u32,
}

impl fmt::Display for GroupStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of ", self.path, ByteSize(self.usage.bytes()))?;
        match self.max {
            Some(max) => write!(f, "{}", ByteSize(max.bytes()))?,
            None => f.write_str("no limit")?,
        }
        write!(
            f,
            ", peak {}, {} refusals",
            ByteSize(self.peak.bytes()),
            Grouped(self.refusals)
        )
    }
}
