//! Who can age, clean and evict a frame: the upcall to the layer above, and the table of those who
//! implement it.

use std::ops::Range;

use super::{FlushRequest, LeftShadow};
use crate::sync::{Arc, Mutex, Rank, Weak};
use crate::units::{FrameId, PageCount};

/// Names a registered [`Owner`] in a frame's metadata. 0 is nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct OwnerId(pub(crate) u32);

impl OwnerId {
    /// No owner: the frame cannot be evicted.
    pub(crate) const NONE: OwnerId = OwnerId(0);
}

/// What [`Owner::evict`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct EvictCount {
    /// Pages given back to the pool.
    pub(crate) freed: PageCount,
    /// Frames (blocks) that could not go: locked, viewed, pinned, dirty again, or no longer the
    /// owner's.
    pub(crate) busy: u32,
}

/// What [`Owner::clean`] or [`Owner::flush`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CleanCount {
    /// Pages written.
    pub(crate) written: PageCount,
    /// Writes that failed; their pages are dirty still.
    pub(crate) errors: u32,
}

/// Something frames belong to: a file. Called with no lock of this layer held, never inside a
/// section.
///
/// The frames are *named, not held*: any of them may have been freed, and used again by somebody
/// else, since reclaim picked them. The owner takes each by `try_lock` (never by a lock that waits:
/// reclaim may run below somebody who holds the block) and re-checks that the frame is still its
/// own and at the index it says.
pub(crate) trait Owner: Send + Sync {
    /// Clears the accessed bits of all mappings of these blocks and calls `used` with each block of
    /// which one was set, once or more often. No waiting, no grace period.
    fn age(&self, blocks: Range<u64>, used: &mut dyn FnMut(u64));

    /// Evicts clean blocks: try_lock, revoke, one grace period for all, freeze, out of the index
    /// (leaving `Pool::shadow_pack`, and saying so by `Pool::shadows_left`), `Pool::free`. What is
    /// dirty, viewed or busy stays and is counted busy.
    fn evict(&self, frames: &[FrameId]) -> EvictCount;

    /// Takes shadows out of the index that are there still: they are too many, and the oldest. For
    /// owners that leave none, none.
    fn forget(&self, _shadows: &[LeftShadow]) {}

    /// The last hold on a block goes that could not be filled: whoever had it, also another owner
    /// that had found the frame in its life before. Takes leaf locks alone.
    fn let_failed_go(&self, _frame: FrameId) {}

    /// Writes dirty blocks back. They stay cached.
    fn clean(&self, frames: &[FrameId]) -> CleanCount;

    /// Writes back what the request asks for, oldest first. For the background step; an owner that
    /// is never dirty needs none.
    fn flush(&self, _request: &FlushRequest) -> CleanCount {
        CleanCount::default()
    }
}

/// The registered owners, by number.
pub(super) struct Owners {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// `entries[n]` is owner `n + 1`.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

struct Entry {
    owner: Weak<dyn Owner>,
    /// Calls of `clean` in a row that wrote nothing and failed.
    failures: u32,
    /// Calls of `clean` to leave out before the next: twice as many after each failure, none after
    /// a tick.
    left_out: u32,
}

/// log2 of the calls left out at most.
const MOST_FAILURES: u32 = 10;

impl Default for Owners {
    fn default() -> Owners {
        Owners {
            table: Mutex::ranked(Rank::Retire, Table::default()),
        }
    }
}

impl Owners {
    pub(super) fn register(&self, owner: Weak<dyn Owner>) -> OwnerId {
        let mut table = self.table.lock();
        let entry = Entry {
            owner,
            failures: 0,
            left_out: 0,
        };
        match table.free.pop() {
            Some(number) => {
                table.entries[number as usize - 1] = Some(entry);
                OwnerId(number)
            }
            None => {
                table.entries.push(Some(entry));
                OwnerId(u32::try_from(table.entries.len()).expect("fewer than 2^32 files"))
            }
        }
    }

    pub(super) fn unregister(&self, id: OwnerId) {
        let mut table = self.table.lock();
        let gone = table.entries[id.0 as usize - 1].take();
        assert!(gone.is_some(), "owner {} is unregistered twice", id.0);
        table.free.push(id.0);
    }

    pub(super) fn get(&self, id: OwnerId) -> Option<Arc<dyn Owner>> {
        let table = self.table.lock();
        let index = (id.0 as usize).checked_sub(1)?;
        table.entries.get(index)?.as_ref()?.owner.upgrade()
    }

    /// Whether reclaim may have this owner write now: not for a while after its store failed.
    pub(super) fn may_clean(&self, id: OwnerId) -> bool {
        let mut table = self.table.lock();
        match table.entries.get_mut(id.0 as usize - 1) {
            Some(Some(entry)) if entry.left_out > 0 => {
                entry.left_out -= 1;
                false
            }
            _ => true,
        }
    }

    /// How a call of `clean` or `flush` went.
    pub(super) fn note_clean(&self, id: OwnerId, count: &CleanCount) {
        let mut table = self.table.lock();
        let Some(Some(entry)) = table.entries.get_mut(id.0 as usize - 1) else {
            return;
        };
        if count.written.0 > 0 {
            (entry.failures, entry.left_out) = (0, 0);
        } else if count.errors > 0 {
            entry.failures = (entry.failures + 1).min(MOST_FAILURES);
            entry.left_out = 1 << entry.failures;
        }
    }

    /// Time has passed: stores that failed are tried again.
    pub(super) fn try_all_again(&self) {
        for entry in self.table.lock().entries.iter_mut().flatten() {
            entry.left_out = 0;
        }
    }

    /// The next registered owner after `id`, going round; `None` when there is none at all.
    pub(super) fn next_after(&self, id: OwnerId) -> Option<(OwnerId, Arc<dyn Owner>)> {
        let table = self.table.lock();
        let count = table.entries.len();
        (0..count)
            .map(|step| (id.0 as usize + step) % count)
            .find_map(|index| {
                let owner = table.entries[index].as_ref()?.owner.upgrade()?;
                Some((OwnerId(index as u32 + 1), owner))
            })
    }

    pub(super) fn len(&self) -> usize {
        let table = self.table.lock();
        table.entries.len() - table.free.len()
    }
}
