//! The upcall to the layer above: [`Owner`] can age, clean and evict frames.

use std::ops::Range;

use crate::group::GroupId;
use crate::units::{FrameId, PageCount};

/// The number of a registered [`Owner`], as a frame's metadata has it. A frame of owner 0 cannot be
/// evicted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct OwnerId(pub(crate) u32);

/// The stores that may be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Io {
    /// The stores of files for which this group, or one below it, pays. This group is the one that
    /// needs the memory, or the root in a background step.
    Of(GroupId),
    /// No store: dirty blocks stay.
    Forbidden,
}

impl Io {
    /// Returns whether the stores of a group may be called. `path` has the numbers of the group and
    /// of the groups above it.
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
    /// Whether some of the busy frames wait for a sync that was left to the background.
    pub(crate) unsynced: bool,
}

/// A request by the background work that an owner write blocks, oldest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlushRequest {
    /// Blocks that became dirty in this tick or earlier are to be written; `u64::MAX` for blocks of
    /// any age.
    pub(crate) dirtied_by: u64,
    /// The most pages to write.
    pub(crate) pages: PageCount,
}

impl FlushRequest {
    /// A request to write blocks of any age, for a group that has too many dirty pages: as many as
    /// may be in flight together.
    pub(crate) const ANY: FlushRequest = FlushRequest {
        dirtied_by: u64::MAX,
        pages: PageCount(2048),
    };

    /// Returns whether only blocks of a certain age are to be written.
    pub(crate) fn is_of_age(&self) -> bool {
        self.dirtied_by < u64::MAX
    }
}

/// The owner of frames: a file. Called with no lock of this layer held, never inside a section.
///
/// Frames are *named, not held*: since reclaim picked them, any of them may have been freed and
/// used again by another owner. The owner takes the lock of each frame by `try_lock` and checks
/// again that the frame is still its own and at the expected index. It never waits for a lock,
/// since reclaim may run in a call that holds the block.
pub(crate) trait Owner: Send + Sync {
    /// Clears the accessed bits of all mappings of these blocks, and calls `used` at least once for
    /// each block that had one set. Neither waits nor begins a grace period.
    fn age(&self, blocks: Range<u64>, used: &mut dyn FnMut(u64));

    /// Evicts clean blocks. The steps are: try_lock, revoke, one grace period for all, freeze,
    /// removal from the index (leaving the shadow that `Pool::shadow_pack` returns), `Pool::free`.
    /// Blocks that are dirty, viewed or busy stay, and are counted as busy. If some can be evicted
    /// only after a sync, this call performs the sync, provided that `io` includes the owner.
    fn evict(&self, frames: &[FrameId], io: Io) -> EvictCount;

    /// Called when the last hold on a block that could not be filled is gone. The last hold may be
    /// another owner's, taken while the frame still belonged to that owner. Takes innermost locks
    /// only.
    fn failed_block_freed(&self, _frame: FrameId) {}

    /// Gives up the read of a block, if it is queued and no thread of the memory will make it soon.
    /// The blocks of that read are freed, and a thread that needs one reads it anew. Returns
    /// whether the read was given up. Takes innermost locks only.
    fn give_up_read(&self, _block: u64) -> bool {
        false
    }

    /// Writes dirty blocks back, if `io` includes the owner. The blocks stay cached. Returns how
    /// many pages were written. An owner whose store keeps failing may write nothing for a while.
    fn clean(&self, frames: &[FrameId], io: Io) -> PageCount;

    /// Writes back blocks that the background step requests, oldest first, or leaves them to a
    /// thread of the memory. Returns how many pages were written here. Called for owners that are
    /// listed by `Owners::set_flushable`; an owner without dirty blocks unlists itself here. Other
    /// owners need not implement this.
    fn flush(&self, _request: &FlushRequest) -> PageCount {
        PageCount(0)
    }
}
