//! The upcall to the layer above: [`Owner`] can age, clean and evict frames.

use std::ops::Range;

use crate::group::GroupId;
use crate::reclaim::lists::CLOCK_BITS;
use crate::units::{FrameId, PageCount};

/// Names a registered [`Owner`] in a frame's metadata.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct OwnerId(pub(crate) u32);

impl OwnerId {
    /// No owner: the frame cannot be evicted.
    pub(crate) const NONE: OwnerId = OwnerId(0);
}

/// Which stores may be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Io {
    /// Those of the files that this group or one below it pays for: the group is the one that wants
    /// the memory.
    Of(GroupId),
    /// None: dirty blocks stay.
    Forbidden,
}

impl Io {
    /// Whether the stores of a group may be called, of which and of those above it these are the
    /// numbers.
    pub(crate) fn includes(self, mut path: impl Iterator<Item = GroupId>) -> bool {
        match self {
            Io::Of(payer) => path.any(|group| group == payer),
            Io::Forbidden => false,
        }
    }
}

/// The result of [`Owner::evict`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct EvictCount {
    /// Pages given back to the pool.
    pub(crate) freed: PageCount,
    /// Frames (blocks) that could not be evicted: locked, viewed, pinned, dirty again, or no longer
    /// the owner's.
    pub(crate) busy: u32,
    /// Some of those wait for a sync that the background was asked for.
    pub(crate) unsynced: bool,
}

/// The result of [`Owner::clean`] or [`Owner::flush`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CleanCount {
    /// Pages written.
    pub(crate) written: PageCount,
    /// Writes that failed; their pages stay dirty.
    pub(crate) errors: u32,
}

/// A request of the background step to an owner to write blocks, oldest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlushRequest {
    /// Blocks that became dirty at this tick or before; `u64::MAX` for any.
    pub(crate) dirtied_by: u64,
    /// Pages to write at most.
    pub(crate) pages: PageCount,
}

impl FlushRequest {
    /// Blocks of any age, in a group that has too much dirty: as much as may be in flight at once.
    pub(crate) const ANY: FlushRequest = FlushRequest {
        dirtied_by: u64::MAX,
        pages: PageCount(2048),
    };

    /// Whether the age of blocks decides.
    pub(crate) fn is_of_age(&self) -> bool {
        self.dirtied_by < u64::MAX
    }
}

/// A shadow that [`Pool::shadow_pack`](crate::reclaim::Pool::shadow_pack) made, and where it was
/// left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeftShadow {
    /// The block's number in its file.
    pub(crate) block: u64,
    /// The low half of the shadow. Two shadows of one block that agree in it are 2^32 evictions
    /// apart.
    pub(crate) mark: u32,
}

impl LeftShadow {
    /// The shadow left for `block`.
    pub(crate) fn new(block: u64, shadow: u64) -> LeftShadow {
        const { assert!(CLOCK_BITS >= 32, "the low half is of the clock alone") };
        LeftShadow {
            block,
            mark: shadow as u32,
        }
    }
}

/// The owner of frames: a file. Called with no lock of this layer held, never inside a section.
///
/// Frames are *named, not held*: since reclaim picked them, any of them may have been freed and
/// used again by another owner. The owner takes each by `try_lock` and re-checks that the frame is
/// still its own and at the index it says. It never waits for a lock: reclaim may run in a call
/// that holds the block.
pub(crate) trait Owner: Send + Sync {
    /// Clears the accessed bits of all mappings of these blocks, and calls `used` at least once for
    /// each block that had one set. No waiting, no grace period.
    fn age(&self, blocks: Range<u64>, used: &mut dyn FnMut(u64));

    /// Evicts clean blocks: try_lock, revoke, one grace period for all, freeze, out of the index
    /// (leaving `Pool::shadow_pack`, and reporting it to `Pool::shadows_left`), `Pool::free`.
    /// Blocks that are dirty, viewed or busy stay, and are counted as busy. If some can go only
    /// after a sync, this makes it where `io` includes the owner.
    fn evict(&self, frames: &[FrameId], io: Io) -> EvictCount;

    /// Takes these shadows, the oldest of all, out of the index if they are still there. An owner
    /// that leaves no shadows need not implement it.
    fn forget(&self, _shadows: &[LeftShadow]) {}

    /// The last hold on a block that could not be filled is gone. The last holder may have been
    /// another owner, which found the frame in its earlier life. Takes leaf locks alone.
    fn failed_block_freed(&self, _frame: FrameId) {}

    /// Writes dirty blocks back, where `io` includes the owner. They stay cached.
    fn clean(&self, frames: &[FrameId], io: Io) -> CleanCount;

    /// Writes back blocks that the background step asks for, oldest first, or leaves that to a
    /// thread of the memory. An owner that is never dirty need not implement it.
    fn flush(&self, _request: &FlushRequest) -> CleanCount {
        CleanCount::default()
    }
}
