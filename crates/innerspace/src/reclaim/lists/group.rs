//! One group's lists.

use super::state::{ListKind, ListSizes, LruState, pages_of};
use crate::frame::{End, FrameList, Meta};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, Rank};
use crate::units::{FrameId, PageCount};

/// The part of a group's lists that its lock guards.
#[derive(Default)]
pub(super) struct Lists {
    lists: [FrameList; 3],
    /// Pages that reclaim has isolated and not yet put back or freed.
    pub(super) isolated: u64,
}

/// A group's lists, and those counts that may be read without the lock.
pub(super) struct GroupLists {
    lists: Mutex<Lists>,
    /// Pages on each list; written under the lock.
    pages: [AtomicU64; 3],
    /// Evictions and activations of this group so far, in pages: the clock of refault distances.
    pub(super) clock: AtomicU64,
}

impl GroupLists {
    pub(super) fn new() -> GroupLists {
        GroupLists {
            lists: Mutex::ranked(Rank::Lists, Lists::default()),
            pages: std::array::from_fn(|_| AtomicU64::new(0)),
            clock: AtomicU64::new(0),
        }
    }

    pub(super) fn sizes(&self) -> ListSizes {
        let pages = |kind: ListKind| PageCount(self.pages[kind as usize].load(Ordering::Relaxed));
        ListSizes {
            inactive: pages(ListKind::Inactive),
            active: pages(ListKind::Active),
            unevictable: pages(ListKind::Unevictable),
        }
    }

    pub(super) fn lock(&self) -> LockedLists<'_> {
        LockedLists {
            group: self,
            lists: self.lists.lock(),
        }
    }
}

/// A group's lists, locked.
pub(crate) struct LockedLists<'a> {
    group: &'a GroupLists,
    pub(super) lists: MutexGuard<'a, Lists>,
}

impl LockedLists<'_> {
    pub(crate) fn list(&self, kind: ListKind) -> &FrameList {
        &self.lists.lists[kind as usize]
    }

    /// Returns the number of pages that reclaim has isolated and not yet put back or freed.
    pub(crate) fn isolated(&self) -> u64 {
        self.lists.isolated
    }

    fn change_pages(&self, kind: ListKind, change: i64) {
        // Only the holder of the lock writes, so load and store need not be one operation.
        let pages = &self.group.pages[kind as usize];
        let now = pages.load(Ordering::Relaxed).checked_add_signed(change);
        pages.store(
            now.expect("a list has no fewer than 0 pages"),
            Ordering::Relaxed,
        );
    }

    /// Puts a frame that is on no list at one end of a list. The newest frame is at the front, and
    /// reclaim takes frames from the back.
    #[inline]
    pub(super) fn insert(&mut self, metas: &[Meta], id: FrameId, kind: ListKind, end: End) {
        let meta = &metas[id.index()];
        self.lists.lists[kind as usize].push(metas, id, end);
        self.change_pages(kind, pages_of(meta) as i64);
        LruState::List(kind).store(meta);
    }

    /// Takes a frame off its list. The caller sets its next state.
    pub(super) fn take(&mut self, metas: &[Meta], id: FrameId, kind: ListKind) {
        self.lists.lists[kind as usize].remove(metas, id);
        self.change_pages(kind, -(pages_of(&metas[id.index()]) as i64));
    }
}
