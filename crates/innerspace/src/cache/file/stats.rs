//! A file's statistics, as a user sees them.

use std::fmt;

use crate::cache::core::FileCore;
use crate::frame::FlagSet;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{ByteSize, Grouped, PageCount};

/// Statistics of a file's contents and events. Unless a field says otherwise, sizes are in pages of
/// 4 KiB, and events in blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FileStats {
    /// The name in messages.
    pub name: String,
    /// The length in bytes.
    pub len: u64,
    /// The block size in bytes.
    pub block_size: u64,
    /// Cached pages.
    pub cached: PageCount,
    /// Cached pages that are newer than the store.
    pub dirty: PageCount,
    /// Pages being written.
    pub writeback: PageCount,
    /// The pages of cached blocks that a space maps, even in part.
    pub mapped: PageCount,
    /// The pages of cached blocks that are viewed, even in part. Blocks that were removed while
    /// viewed are not counted.
    pub viewed: PageCount,
    /// Pages of index nodes.
    pub index_nodes: PageCount,
    /// Evicted blocks of which the index has a shadow.
    pub shadows: u64,
    /// Blocks read from the store.
    pub filled: u64,
    /// The blocks among `filled` that were read ahead.
    pub read_ahead: u64,
    /// The blocks among `read_ahead` that were evicted before their first use.
    pub read_ahead_unused: u64,
    /// Read calls to the store.
    pub store_reads: u64,
    /// Blocks written back.
    pub written: u64,
    /// Write calls to the store.
    pub store_writes: u64,
    /// Blocks whose write failed; they stay dirty.
    pub write_errors: u64,
    /// Blocks that moved to a new frame: either views kept the old one, or a view over several
    /// blocks needed consecutive frames.
    pub moved: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Blocks read or written again after their eviction, if the index still had their shadow.
    pub refaulted: u64,
    /// Views over several blocks that had to be copied.
    pub copied_views: u64,
}

impl fmt::Display for FileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} in blocks of {}; cached {}, dirty {}, writeback {}, mapped {}, viewed {}; filled {} (ahead {}), \
             written {}, evicted {}, moved {}, write errors {}",
            self.name,
            ByteSize(self.len),
            ByteSize(self.block_size),
            ByteSize(self.cached.bytes()),
            ByteSize(self.dirty.bytes()),
            ByteSize(self.writeback.bytes()),
            ByteSize(self.mapped.bytes()),
            ByteSize(self.viewed.bytes()),
            Grouped(self.filled),
            Grouped(self.read_ahead),
            Grouped(self.written),
            Grouped(self.evicted),
            Grouped(self.moved),
            Grouped(self.write_errors),
        )
    }
}

impl FileStats {
    /// Collects the file's counters, and counts its blocks by walking over them.
    pub(crate) fn of(file: &FileCore) -> FileStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = file.blocks.index.counts();
        let pages = |blocks: u64| PageCount(blocks << file.id.order);
        let (mut mapped, mut viewed, mut writeback) = (0, 0, 0);
        let mut next = 0;
        loop {
            // Each section covers only a few blocks, so that a large file does not delay grace
            // periods.
            let section = file.pool.domain.reader();
            let mut budget = 256;
            while budget > 0
                && let Some((block, frame)) =
                    file.blocks.index.next_block(file.frames(), next, u64::MAX)
            {
                let meta = file.frames().meta(frame);
                let hold = meta.hold.load();
                mapped += u64::from(hold.mapped() > 0);
                viewed += u64::from(hold.views() > 0);
                writeback += u64::from(meta.flags.load().contains(FlagSet::WRITEBACK));
                next = block + 1;
                budget -= 1;
            }
            drop(section);
            if budget > 0 {
                break;
            }
        }
        let counters = &file.counters;
        FileStats {
            name: file.id.name.to_string(),
            len: file.size(),
            block_size: file.block_bytes(),
            cached: pages(counts.blocks),
            dirty: pages(file.dirty_blocks()),
            writeback: pages(writeback),
            mapped: pages(mapped),
            viewed: pages(viewed),
            index_nodes: PageCount(counts.nodes),
            shadows: counts.shadows,
            filled: get(&counters.filled),
            read_ahead: get(&counters.ahead),
            read_ahead_unused: get(&counters.unused),
            store_reads: get(&counters.store_reads),
            written: get(&counters.written),
            store_writes: get(&counters.store_writes),
            write_errors: get(&counters.write_errors),
            moved: get(&counters.moved),
            evicted: get(&counters.evicted),
            refaulted: get(&counters.refaulted),
            copied_views: get(&counters.copied_views),
        }
    }
}
