//! The lists: where a frame is, and moving it.

use super::aging::AgingDue;
use super::batch::{BATCHES, Batch};
use crate::frame::{FlagSet, FrameList, Frames, Listing, Meta};
use crate::group::{GroupId, Slab};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::pending::Seen;
use crate::sync::{Mutex, MutexGuard, Rank};
use crate::units::{FrameId, PageCount};

/// Where a frame is, as `Meta::lru` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nowhere: not added, or removed.
    None,
    /// On one of its group's lists.
    List(ListKind),
    /// In the hands of a reclaimer.
    Isolated,
    /// In the batch of this number.
    Batch(u8),
}

/// A group's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListKind {
    /// Evicted from, at the tail.
    Inactive,
    /// Used at least twice.
    Active,
    /// Passed over by reclaim.
    Unevictable,
}

impl ListKind {
    pub(super) const ALL: [ListKind; 3] =
        [ListKind::Inactive, ListKind::Active, ListKind::Unevictable];
}

/// An end of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The newest.
    Head,
    /// What is looked at next.
    Tail,
}

const ISOLATED: u8 = 4;
const BATCH: u8 = 0x40;

const _: () = assert!(BATCHES <= BATCH as usize);

impl Place {
    #[inline]
    pub(super) fn load(meta: &Meta) -> Place {
        Place::of(meta.lru.load())
    }

    /// The place in what was read.
    #[inline]
    pub(super) fn of(listing: Listing) -> Place {
        match listing.place {
            0 => Place::None,
            byte @ 1..=3 => Place::List(ListKind::ALL[usize::from(byte) - 1]),
            ISOLATED => Place::Isolated,
            byte => {
                debug_assert!(byte & BATCH != 0, "lru byte {byte:#x}");
                Place::Batch(byte & !BATCH)
            }
        }
    }

    /// By who has the frame, or its group's lists locked: the group does not change.
    #[inline]
    pub(super) fn store(self, meta: &Meta) {
        let place = match self {
            Place::None => 0,
            Place::List(list) => list as u8 + 1,
            Place::Isolated => ISOLATED,
            Place::Batch(number) => BATCH | number,
        };
        let group = meta.group();
        meta.lru.store(Listing { place, group });
    }
}

/// Pages of the block that starts at this frame.
#[inline]
pub(super) fn pages_of(meta: &Meta) -> u64 {
    1 << meta.order()
}

/// One group's lists.
#[derive(Default)]
pub(super) struct Lists {
    lists: [FrameList; 3],
    /// Pages taken off by reclaimers and not yet put back or freed.
    pub(super) isolated: u64,
}

impl Lists {
    pub(super) fn list(&self, kind: ListKind) -> &FrameList {
        &self.lists[kind as usize]
    }
}

/// A group's lists with what may be read without their lock.
pub(super) struct GroupLists {
    lists: Mutex<Lists>,
    /// Pages on each list; written under the lock.
    pages: [AtomicU64; 3],
    /// Evictions and activations of this group so far, in pages: the clock of refault distances.
    pub(super) clock: AtomicU64,
}

impl GroupLists {
    fn new() -> GroupLists {
        GroupLists {
            lists: Mutex::ranked(Rank::Lists, Lists::default()),
            pages: std::array::from_fn(|_| AtomicU64::new(0)),
            clock: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn pages(&self, kind: ListKind) -> u64 {
        self.pages[kind as usize].load(Ordering::Relaxed)
    }

    /// Pages on the two lists that reclaim works on.
    pub(super) fn evictable_pages(&self) -> u64 {
        self.pages(ListKind::Inactive) + self.pages(ListKind::Active)
    }

    pub(super) fn lock(&self) -> LockedLists<'_> {
        LockedLists {
            group: self,
            lists: self.lists.lock(),
        }
    }
}

/// A group's lists, locked.
pub(super) struct LockedLists<'a> {
    group: &'a GroupLists,
    pub(super) lists: MutexGuard<'a, Lists>,
}

impl LockedLists<'_> {
    fn change_pages(&self, kind: ListKind, change: i64) {
        // Only the lock's holder writes, so load and store need not be one operation.
        let pages = &self.group.pages[kind as usize];
        let now = pages.load(Ordering::Relaxed).checked_add_signed(change);
        pages.store(
            now.expect("a list has no fewer than 0 pages"),
            Ordering::Relaxed,
        );
    }

    /// Puts a frame that is in no list at the head of one.
    #[inline]
    pub(super) fn insert(&mut self, metas: &[Meta], id: FrameId, kind: ListKind) {
        self.insert_at(metas, id, kind, End::Head);
    }

    #[inline]
    pub(super) fn insert_at(&mut self, metas: &[Meta], id: FrameId, kind: ListKind, end: End) {
        let meta = &metas[id.index()];
        let list = &mut self.lists.lists[kind as usize];
        match end {
            End::Head => list.push_front(metas, id),
            End::Tail => list.push_back(metas, id),
        }
        self.change_pages(kind, pages_of(meta) as i64);
        Place::List(kind).store(meta);
    }

    /// Takes a frame off the list it is on; the caller says its next place.
    pub(super) fn take(&mut self, metas: &[Meta], id: FrameId, kind: ListKind) {
        self.lists.lists[kind as usize].remove(metas, id);
        self.change_pages(kind, -(pages_of(&metas[id.index()]) as i64));
    }
}

/// The lists of one group after the other, as frames come for them: one list lock at a time, kept
/// from one frame to the next while the group is the same, and released before the next is taken.
pub(super) struct Kept<'l> {
    lru: &'l Lru,
    locked: Option<(u16, LockedLists<'l>)>,
}

impl<'l> Kept<'l> {
    pub(super) fn new(lru: &'l Lru) -> Kept<'l> {
        Kept { lru, locked: None }
    }

    /// As [`Lru::lock_at`].
    #[inline]
    pub(super) fn lock_at(&mut self, meta: &Meta, seen: Listing) -> Option<&mut LockedLists<'l>> {
        meta.lru.lock_at(seen, |group| {
            self.locked.take_if(|(of, _)| *of != group);
            let lock = || (group, self.lru.group(GroupId(group)).lock());
            &mut self.locked.get_or_insert_with(lock).1
        })
    }
}

/// The list a frame belongs on by its flags.
pub(super) fn list_by_flags(meta: &Meta) -> ListKind {
    match meta.flags.load().contains(FlagSet::ACTIVE) {
        true => ListKind::Active,
        false => ListKind::Inactive,
    }
}

/// All lists and batches of one pool.
pub(super) struct Lru {
    groups: Slab<GroupLists>,
    pub(super) batches: Box<[Batch]>,
    /// What was seen of each of them by who drained all.
    pub(super) seen: Mutex<[Seen; BATCHES]>,
    pub(super) aging_due: AgingDue,
}

impl Lru {
    pub(super) fn new() -> Lru {
        Lru {
            groups: Slab::new(),
            batches: (0..BATCHES).map(|_| Batch::new()).collect(),
            seen: Mutex::ranked(Rank::Batch, [Seen::default(); BATCHES]),
            aging_due: AgingDue::default(),
        }
    }

    /// The lists of a group.
    #[inline]
    pub(super) fn group(&self, id: GroupId) -> &GroupLists {
        self.groups.get_or_make(id.0, GroupLists::new)
    }

    /// Locks the lists of the group a frame is charged to, if the frame is still where it was
    /// `seen` (not nowhere) once they are locked.
    pub(super) fn lock_at(&self, meta: &Meta, seen: Listing) -> Option<LockedLists<'_>> {
        meta.lru
            .lock_at(seen, |group| self.group(GroupId(group)).lock())
    }

    /// Takes a frame off whatever it is on; the caller holds it, or is the one who frees it.
    pub(super) fn remove(&self, frames: &Frames, id: FrameId) {
        let metas = frames.metas();
        let meta = &metas[id.index()];
        loop {
            let seen = meta.lru.load();
            let place = Place::of(seen);
            if place == Place::None {
                return;
            }
            let Some(mut locked) = self.lock_at(meta, seen) else {
                continue;
            };
            match place {
                Place::List(kind) => locked.take(metas, id, kind),
                Place::Isolated => locked.lists.isolated -= pages_of(meta),
                Place::Batch(_) | Place::None => {}
            }
            Place::None.store(meta);
            return;
        }
    }

    /// Moves a frame between the unevictable list and the one its flags say, to which it comes from
    /// a batch anyway. Returns whether it was moved.
    pub(super) fn move_listed(&self, frames: &Frames, id: FrameId, to: Evictable) -> bool {
        let metas = frames.metas();
        let meta = &metas[id.index()];
        loop {
            let seen = meta.lru.load();
            let place = Place::of(seen);
            let target = match to {
                Evictable::Yes => list_by_flags(meta),
                Evictable::No => ListKind::Unevictable,
            };
            let stays = match place {
                Place::List(kind) => {
                    kind == target || (to == Evictable::Yes && kind != ListKind::Unevictable)
                }
                Place::Batch(_) => to == Evictable::Yes,
                Place::Isolated | Place::None => true,
            };
            if stays {
                return false;
            }
            if let Some(mut locked) = self.lock_at(meta, seen) {
                if let Place::List(kind) = place {
                    locked.take(metas, id, kind);
                }
                locked.insert(metas, id, target);
                return true;
            }
        }
    }

    /// Takes up to `max` frames off the tail of a list, oldest first, and marks them isolated.
    /// Returns the pages taken.
    pub(super) fn isolate(
        &self,
        frames: &Frames,
        group: GroupId,
        kind: ListKind,
        max: usize,
        out: &mut Vec<FrameId>,
    ) -> u64 {
        let metas = frames.metas();
        let mut locked = self.group(group).lock();
        let mut pages = 0;
        for _ in 0..max {
            let Some(id) = locked.lists.list(kind).back() else {
                break;
            };
            let meta = &metas[id.index()];
            locked.take(metas, id, kind);
            locked.lists.isolated += pages_of(meta);
            pages += pages_of(meta);
            Place::Isolated.store(meta);
            out.push(id);
        }
        pages
    }

    /// Puts isolated frames back: to the list their flags say, or to the unevictable one.
    pub(super) fn put_back(&self, frames: &Frames, ids: &[FrameId], to: Evictable) {
        self.put_back_to(frames, ids, End::Head, |meta| match to {
            Evictable::Yes => list_by_flags(meta),
            Evictable::No => ListKind::Unevictable,
        });
    }

    /// Puts isolated frames back where they will be taken from first, in this order.
    pub(super) fn put_back_last(&self, frames: &Frames, ids: &[FrameId]) {
        self.put_back_to(frames, ids, End::Tail, list_by_flags);
    }

    /// Puts isolated frames back as inactive ones. The flag goes with the list, under its lock: a
    /// frame that was freed meanwhile, and is on the active list in its next life, keeps both.
    pub(super) fn put_back_inactive(&self, frames: &Frames, ids: &[FrameId], end: End) {
        self.put_back_to(frames, ids, end, |meta| {
            meta.take_mark(FlagSet::ACTIVE);
            ListKind::Inactive
        });
    }

    /// Puts isolated frames back to the list that `kind` says, with the lists locked. Frames that
    /// were freed meanwhile, and may be somebody else's now, are passed over.
    fn put_back_to(
        &self,
        frames: &Frames,
        ids: &[FrameId],
        end: End,
        kind: impl Fn(&Meta) -> ListKind,
    ) {
        let metas = frames.metas();
        let mut kept = Kept::new(self);
        for id in ids {
            let meta = &metas[id.index()];
            let seen = meta.lru.load();
            if Place::of(seen) != Place::Isolated {
                continue;
            }
            let Some(locked) = kept.lock_at(meta, seen) else {
                continue;
            };
            locked.lists.isolated -= pages_of(meta);
            locked.insert_at(metas, *id, kind(meta), end);
        }
    }
}

/// Whether reclaim looks at a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Evictable {
    /// It does.
    Yes,
    /// It passes it over.
    No,
}

/// Pages on a group's lists now: inactive, active, unevictable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ListSizes {
    pub(crate) inactive: PageCount,
    pub(crate) active: PageCount,
    pub(crate) unevictable: PageCount,
}

impl Lru {
    /// The sizes of one group's own lists.
    pub(super) fn sizes(&self, group: GroupId) -> ListSizes {
        let lists = self.group(group);
        let [inactive, active, unevictable] =
            ListKind::ALL.map(|kind| PageCount(lists.pages(kind)));
        ListSizes {
            inactive,
            active,
            unevictable,
        }
    }
}
