//! All lists of one pool.

use super::group::{GroupLists, LockedLists};
use super::policy::EvictionPolicy;
use super::state::{Evictable, ListKind, ListSizes, LruState, pages_of};
use crate::frame::{End, FlagSet, Frames, Listing, Meta};
use crate::group::{GroupId, Slab};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::FrameId;

/// The number of new frames of a group after which some of its mapped pages are looked at.
pub(crate) const AGING_STEP: usize = 16;

/// All lists of one pool.
pub(crate) struct Lru {
    groups: Slab<GroupLists>,
    /// The last group that had [`AGING_STEP`] new frames: one more than its number, or 0 for none.
    /// This is a hint, so one group is enough.
    aging_due: AtomicU32,
    pub(crate) policy: EvictionPolicy,
}

impl Lru {
    pub(crate) fn new(policy: EvictionPolicy) -> Lru {
        Lru {
            groups: Slab::new(),
            aging_due: AtomicU32::new(0),
            policy,
        }
    }

    #[inline]
    pub(super) fn group(&self, id: GroupId) -> &GroupLists {
        self.groups.get_or_make(id.0, GroupLists::new)
    }

    /// Returns the numbers of pages on the lists of one group, without the groups below it.
    pub(crate) fn sizes(&self, group: GroupId) -> ListSizes {
        self.group(group).sizes()
    }

    pub(crate) fn lock(&self, group: GroupId) -> LockedLists<'_> {
        self.group(group).lock()
    }

    /// Locks the lists of the group that a frame is charged to. Returns `None` if the frame is no
    /// longer where it was `seen`, which was not [`LruState::None`].
    pub(super) fn lock_at(&self, meta: &Meta, seen: Listing) -> Option<LockedLists<'_>> {
        meta.lru.lock_at(seen, |group| self.lock(GroupId(group)))
    }

    /// Whether [`AGING_STEP`] new frames came to some group.
    #[inline]
    pub(crate) fn is_aging_due(&self) -> bool {
        self.aging_due.load(Ordering::Relaxed) != 0
    }

    /// Returns the last group to which [`AGING_STEP`] new frames came, each only once.
    pub(crate) fn take_aging_due(&self) -> Option<GroupId> {
        let number = self.aging_due.swap(0, Ordering::Relaxed).checked_sub(1)?;
        Some(GroupId(number as u16))
    }

    /// Lists frames of one group, which are in state `None`, the newest last.
    #[inline]
    pub(crate) fn add(&self, frames: &Frames, ids: &[FrameId]) {
        let metas = frames.metas();
        let Some(first) = ids.first() else {
            return;
        };
        let group = metas[first.index()].group();
        let mut locked = self.lock(GroupId(group));
        for id in ids {
            let meta = &metas[id.index()];
            assert_eq!(
                (LruState::load(meta), meta.group()),
                (LruState::None, group),
                "{id:?} is added to the LRU twice, or to another group's lists"
            );
            locked.insert(metas, *id, ListKind::by_flags(meta), End::Front);
        }
        locked.lists.new += ids.len();
        if locked.lists.new >= AGING_STEP {
            locked.lists.new = 0;
            self.aging_due
                .store(u32::from(group) + 1, Ordering::Relaxed);
        }
    }

    /// Takes a frame off its list. The caller holds the frame or is freeing it.
    pub(crate) fn remove(&self, frames: &Frames, id: FrameId) {
        let metas = frames.metas();
        let meta = &metas[id.index()];
        loop {
            let seen = meta.lru.load();
            let state = LruState::of(seen);
            if state == LruState::None {
                return;
            }
            let Some(mut locked) = self.lock_at(meta, seen) else {
                continue;
            };
            match state {
                LruState::List(kind) => locked.take(metas, id, kind),
                LruState::Isolated => locked.lists.isolated -= pages_of(meta),
                LruState::None => {}
            }
            LruState::None.store(meta);
            return;
        }
    }

    /// Moves a frame to the unevictable list, or from there to the list that its flags name.
    pub(crate) fn set_evictable(&self, frames: &Frames, id: FrameId, to: Evictable) {
        let metas = frames.metas();
        let meta = &metas[id.index()];
        loop {
            let seen = meta.lru.load();
            let LruState::List(kind) = LruState::of(seen) else {
                return;
            };
            if (kind == ListKind::Unevictable) == (to == Evictable::No) {
                return;
            }
            if let Some(mut locked) = self.lock_at(meta, seen) {
                locked.take(metas, id, kind);
                locked.insert(metas, id, list_for(meta, to), End::Front);
                return;
            }
        }
    }

    /// Isolates up to `max` frames from the tail of a list, oldest first. Returns how many pages
    /// they have.
    pub(crate) fn isolate(
        &self,
        frames: &Frames,
        group: GroupId,
        kind: ListKind,
        max: usize,
        out: &mut Vec<FrameId>,
    ) -> u64 {
        let metas = frames.metas();
        let mut locked = self.lock(group);
        let mut pages = 0;
        for _ in 0..max {
            let Some(id) = locked.list(kind).back() else {
                break;
            };
            let meta = &metas[id.index()];
            locked.take(metas, id, kind);
            locked.lists.isolated += pages_of(meta);
            pages += pages_of(meta);
            LruState::Isolated.store(meta);
            out.push(id);
        }
        pages
    }

    /// Puts isolated frames back at the head of the list that their flags name, or of the
    /// unevictable one.
    pub(crate) fn put_back(&self, frames: &Frames, ids: &[FrameId], to: Evictable) {
        self.put_back_to(frames, ids, End::Front, |meta| list_for(meta, to));
    }

    /// Puts isolated frames back at the tail of the list that their flags name, in this order.
    pub(crate) fn put_back_at_tail(&self, frames: &Frames, ids: &[FrameId]) {
        self.put_back_to(frames, ids, End::Back, ListKind::by_flags);
    }

    /// Puts isolated frames back on the inactive list. The flag ACTIVE is cleared under the list's
    /// lock: a frame that was freed meanwhile, and is active in its new use, keeps its list and
    /// flag.
    pub(crate) fn put_back_inactive(&self, frames: &Frames, ids: &[FrameId], end: End) {
        self.put_back_to(frames, ids, end, |meta| {
            meta.take_mark(FlagSet::ACTIVE);
            ListKind::Inactive
        });
    }

    /// Puts isolated frames back on the list that `kind` chooses while the lists are locked. Skips
    /// frames that were freed meanwhile and may have another owner now. The lock is kept from frame
    /// to frame while the group is the same.
    fn put_back_to(
        &self,
        frames: &Frames,
        ids: &[FrameId],
        end: End,
        kind: impl Fn(&Meta) -> ListKind,
    ) {
        let metas = frames.metas();
        let mut held: Option<(u16, LockedLists<'_>)> = None;
        for id in ids {
            let meta = &metas[id.index()];
            let seen = meta.lru.load();
            if LruState::of(seen) != LruState::Isolated {
                continue;
            }
            let locked = meta.lru.lock_at(seen, |group| {
                held.take_if(|(of, _)| *of != group);
                let lock = || (group, self.lock(GroupId(group)));
                &mut held.get_or_insert_with(lock).1
            });
            let Some(locked) = locked else {
                continue;
            };
            locked.lists.isolated -= pages_of(meta);
            locked.insert(metas, *id, kind(meta), end);
        }
    }
}

/// Returns the list for a frame that reclaim may, or may not, look at.
fn list_for(meta: &Meta, evictable: Evictable) -> ListKind {
    match evictable {
        Evictable::Yes => ListKind::by_flags(meta),
        Evictable::No => ListKind::Unevictable,
    }
}
