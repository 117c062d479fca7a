//! All counters and gauges of a memory, in one value.

use std::fmt;

use super::Memory;
use crate::cache::FileStats;
use crate::group::GroupStats;
use crate::stats::Totals;
use crate::units::{ByteSize, PAGE_SIZE};

/// All counters and gauges of a memory. `Display` is for people, [`MemoryStats::prometheus`] for
/// scraping, and the fields are for programs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryStats {
    /// The limit that was asked for, in bytes.
    pub limit: u64,
    /// Bytes in use now: charged pages and their metadata.
    pub usage: u64,
    /// The most bytes that were ever in use.
    pub peak: u64,
    /// The parts of the limit.
    pub parts: LimitParts,
    /// Counts of events since the memory was created, and of pages by state, as in vmstat.
    pub totals: Totals,
    /// Every group, the root first.
    pub groups: Vec<GroupStats>,
    /// Every cached file that is open or being closed. Direct-access files are not listed.
    pub files: Vec<FileStats>,
}

/// The parts into which the limit of a memory is divided, in bytes. They add up to the limit,
/// unless other threads use the memory meanwhile.
///
/// `Display` prints one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimitParts {
    /// Blocks of files.
    pub blocks: u64,
    /// Page-table nodes and index nodes.
    pub tables: u64,
    /// Other pages in use: anonymous memory, copies, pages being set up.
    pub anonymous: u64,
    /// Charged memory on the heap, such as handles, caches of translations, copies for views that
    /// span blocks, and the sample for the miss curve.
    pub heap: u64,
    /// Pages charged in advance by threads that charge often. They are given back when other
    /// requests need them.
    pub stock: u64,
    /// Free pages.
    pub free: u64,
    /// Pages kept free for writeback and for bounce copies.
    pub reserve: u64,
    /// Metadata of all pages, and the table of the places where blocks were last found.
    pub metadata: u64,
    /// The fixed cost of every memory: wait table, counters, lists, the zero page.
    pub fixed: u64,
}

impl LimitParts {
    fn of(pool: &crate::reclaim::Pool, limit: u64, totals: &Totals, groups: &[GroupStats]) -> Self {
        let page = PAGE_SIZE as u64;
        let blocks = totals.active + totals.inactive + totals.unevictable;
        let tables: u64 = groups.iter().map(|group| group.tables.0).sum();
        let in_frames = totals.frames.saturating_sub(totals.frames_free);
        let heap = totals.usage.saturating_sub(in_frames);
        let anonymous = totals.usage.saturating_sub(blocks + tables + heap);
        let charged = pool.groups.charged(crate::group::GroupId::ROOT).0;
        let stock = charged.saturating_sub(totals.usage);
        let reserve = totals.frames_reserve;
        let used = blocks + tables + anonymous + heap + stock + reserve;
        let metadata = (totals.frames + 1) * 64 + pool.frames.lookaside.size();
        LimitParts {
            blocks: blocks * page,
            tables: tables * page,
            anonymous: anonymous * page,
            heap: heap * page,
            stock: stock * page,
            free: totals.frames.saturating_sub(used) * page,
            reserve: reserve * page,
            metadata,
            fixed: limit.saturating_sub(totals.frames * page + metadata),
        }
    }
}

impl fmt::Display for LimitParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("blocks", self.blocks),
            ("tables", self.tables),
            ("anonymous", self.anonymous),
            ("heap", self.heap),
            ("stock", self.stock),
            ("free", self.free),
            ("reserve", self.reserve),
            ("metadata", self.metadata),
            ("fixed", self.fixed),
        ];
        for (at, (name, bytes)) in parts.into_iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {}", ByteSize(bytes))?;
        }
        Ok(())
    }
}

impl Memory {
    /// Returns all counters and gauges as of now. Counting is cheap; this call walks the groups and
    /// files.
    pub fn stats(&self) -> MemoryStats {
        let inner = &*self.0;
        let root = inner.root.stats();
        let bytes = |pages: u64| pages * (PAGE_SIZE as u64 + 64);
        inner.pool.settle_lists();
        let totals = inner.pool.totals();
        let groups = inner.pool.groups.all_stats();
        MemoryStats {
            limit: inner.limit,
            usage: bytes(root.usage.0),
            peak: bytes(root.peak.0),
            parts: LimitParts::of(&inner.pool, inner.limit, &totals, &groups),
            totals,
            groups,
            files: inner
                .cache
                .files()
                .iter()
                .map(|file| FileStats::of(file))
                .collect(),
        }
    }
}

impl MemoryStats {
    /// Returns the totals and the groups in the Prometheus text format, version 0.0.4. Files have
    /// no rows, because two of them may have the same name; their counters are in
    /// [`MemoryStats::files`].
    pub fn prometheus(&self) -> String {
        let mut text = self.totals.prometheus();
        // The format requires the rows of one metric to be together.
        for (name, kind, help, value) in GROUP_METRICS {
            let name = format!("innerspace_group_{name}");
            text += &format!("# HELP {name} {help}.\n# TYPE {name} {kind}\n");
            for group in &self.groups {
                if let Some(value) = value(group) {
                    let path = group.path.replace('\\', "\\\\").replace('"', "\\\"");
                    text += &format!("{name}{{group=\"{path}\"}} {value}\n");
                }
            }
        }
        text
    }
}

/// The name, kind and meaning of a metric, with a function that returns its value for a group, if
/// the group has one.
type GroupMetric = (
    &'static str,
    &'static str,
    &'static str,
    fn(&GroupStats) -> Option<u64>,
);

const GROUP_METRICS: [GroupMetric; 4] = [
    (
        "usage_bytes",
        "gauge",
        "Charged to the group and to all below it",
        |group| Some(group.usage.bytes()),
    ),
    ("peak_bytes", "gauge", "The highest usage so far", |group| {
        Some(group.peak.bytes())
    }),
    (
        "max_bytes",
        "gauge",
        "The limit of the group, if it has one",
        |group| group.max.map(|max| max.bytes()),
    ),
    (
        "refusals_total",
        "counter",
        "Requests refused before reclaim was tried",
        |group| Some(group.refusals),
    ),
];

impl fmt::Display for MemoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "memory: {} of {}, peak {}",
            ByteSize(self.usage),
            ByteSize(self.limit),
            ByteSize(self.peak)
        )?;
        writeln!(f, "of which: {}", self.parts)?;
        for group in &self.groups {
            writeln!(f, "group {group}")?;
        }
        for file in &self.files {
            writeln!(f, "file {file}")?;
        }
        write!(f, "{}", self.totals)
    }
}
