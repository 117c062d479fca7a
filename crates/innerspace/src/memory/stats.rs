//! Everything that counts itself, in one value.

use std::fmt;

use super::Memory;
use crate::cache::FileStats;
use crate::group::GroupStats;
use crate::stats::Totals;
use crate::units::{ByteSize, PAGE_SIZE};

/// A memory in numbers. `Display` is for people; [`MemoryStats::prometheus`] for scraping; the fields for programs.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct MemoryStats {
    /// The limit asked for, in bytes.
    pub limit: u64,
    /// Bytes in use now: charged pages and their metadata.
    pub usage: u64,
    /// The most bytes ever in use.
    pub peak: u64,
    /// Events since the start and pages by state, in the manner of vmstat.
    pub totals: Totals,
    /// Every group, the root first.
    pub groups: Vec<GroupStats>,
    /// Every open file.
    pub files: Vec<FileStats>,
}

impl Memory {
    /// All counters, folded now. Counting is cheap; this walks the groups and files.
    pub fn stats(&self) -> MemoryStats {
        let inner = &*self.0;
        let root = inner.root.stats();
        let bytes = |pages: u64| pages * (PAGE_SIZE as u64 + 64);
        MemoryStats {
            limit: inner.limit,
            usage: bytes(root.usage.0),
            peak: bytes(root.peak.0),
            totals: inner.pool.totals(),
            groups: inner.pool.groups.all_stats(),
            files: inner
                .cache
                .files()
                .iter()
                .map(|file| file.stats())
                .collect(),
        }
    }
}

impl MemoryStats {
    /// The Prometheus text exposition of the totals and the groups.
    pub fn prometheus(&self) -> String {
        use fmt::Write;
        let mut text = self.totals.prometheus();
        let mut row = |name: &str, group: &GroupStats, value: u64| {
            let path = group.path.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(text, "innerspace_group_{name}{{group=\"{path}\"}} {value}");
        };
        for group in &self.groups {
            row("usage_bytes", group, group.usage.bytes());
            row("peak_bytes", group, group.peak.bytes());
            row("refusals_total", group, group.refusals);
            if let Some(max) = group.max {
                row("max_bytes", group, max.bytes());
            }
        }
        text
    }
}

impl fmt::Display for MemoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "memory: {} of {}, peak {}",
            ByteSize(self.usage),
            ByteSize(self.limit),
            ByteSize(self.peak)
        )?;
        for group in &self.groups {
            writeln!(f, "group {group}")?;
        }
        for file in &self.files {
            writeln!(f, "file {file}")?;
        }
        write!(f, "{}", self.totals)
    }
}
