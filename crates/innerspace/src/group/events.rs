//! The figures of a group, as users see them.

use std::fmt;

use crate::units::{ByteSize, Grouped, PageCount};

/// The events of a group, counted from its beginning. `Display` prints one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GroupEvents {
    /// Requests that took it, or found it, over `high`.
    pub high: u64,
    /// Requests that met its `max` and evicted for it.
    pub max: u64,
    /// Requests that failed because of it: nothing more could be evicted.
    pub oom: u64,
    /// Pages evicted from it and from the groups below it.
    pub reclaimed: PageCount,
    /// Requests it refused before reclaim was tried.
    pub refused: u64,
    /// Requests that had to be granted beyond its limit.
    pub forced: u64,
}

impl fmt::Display for GroupEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} over high, {} at max, {} failed, {} refused, {} forced, {} evicted",
            Grouped(self.high),
            Grouped(self.max),
            Grouped(self.oom),
            Grouped(self.refused),
            Grouped(self.forced),
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
    /// The names from the root to it, joined by `/`.
    pub path: String,
    /// Pages charged to it and to all below it.
    pub usage: PageCount,
    /// Pages charged to it alone, including those that deleted groups below it left behind.
    pub own: PageCount,
    /// Its limit; `None`: limited by the groups above it alone.
    pub max: Option<PageCount>,
    /// Above it requests are slow; see [`Group::set_high`](crate::Group::set_high).
    pub high: Option<PageCount>,
    /// See [`Group::set_low`](crate::Group::set_low).
    pub low: PageCount,
    /// See [`Group::set_min`](crate::Group::set_min).
    pub min: PageCount,
    /// The highest usage so far.
    pub peak: PageCount,
    /// Requests it refused before reclaim was tried.
    pub refusals: u64,
    /// Requests that had to be granted beyond its limit.
    pub forced: u64,
    /// All events so far.
    pub events: GroupEvents,
    /// Pages of page-table and index nodes charged to it alone.
    pub tables: PageCount,
    /// Accessors of spaces in the group.
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
