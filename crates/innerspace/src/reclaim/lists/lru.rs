//! All lists and batches of one pool.

use super::batch::{BATCH_LEN, BATCHES, Batches};
use super::group::{GroupLists, LockedLists};
use super::policy::EvictionPolicy;
use super::state::{Evictable, ListKind, ListSizes, LruState, pages_of};
use crate::frame::{End, FlagSet, Frames, Listing, Meta};
use crate::group::{GroupId, Slab};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::pending::{Pending, Room, Seen};
use crate::sync::{Mutex, Rank};
use crate::units::FrameId;

/// All lists and batches of one pool.
pub(crate) struct Lru {
    groups: Slab<GroupLists>,
    batches: Batches,
    /// For each batch, how far the drains of all batches have read it.
    seen: Mutex<[Seen; BATCHES]>,
    aging_due: AgingDue,
    pub(crate) policy: EvictionPolicy,
}

/// The group whose frame last filled a batch, or to which a run of frames was added later: one more
/// than its number, or 0 for none. This is a hint, so one group is enough.
#[derive(Default)]
struct AgingDue(AtomicU32);

impl AgingDue {
    fn set(&self, group: u16) {
        self.0.store(u32::from(group) + 1, Ordering::Relaxed);
    }
}

/// Holds the list lock of one group at a time. From frame to frame, it keeps the lock while the
/// group is the same, and otherwise releases the lock before it takes the next.
struct ListLocks<'l> {
    lru: &'l Lru,
    locked: Option<(u16, LockedLists<'l>)>,
}

impl<'l> ListLocks<'l> {
    fn new(lru: &'l Lru) -> ListLocks<'l> {
        ListLocks { lru, locked: None }
    }

    /// Does what [`Lru::lock_at`] does, but keeps the lock if it is already held.
    #[inline]
    fn lock_at(&mut self, meta: &Meta, seen: Listing) -> Option<&mut LockedLists<'l>> {
        meta.lru.lock_at(seen, |group| {
            self.locked.take_if(|(of, _)| *of != group);
            let lock = || (group, self.lru.lock(GroupId(group)));
            &mut self.locked.get_or_insert_with(lock).1
        })
    }

    /// Puts a frame on its list if it waits in the batch with this number.
    #[inline(always)]
    fn list_if_waiting(&mut self, metas: &[Meta], id: FrameId, batch: u8) {
        let meta = &metas[id.index()];
        let seen = meta.lru.load();
        if LruState::of(seen) == LruState::Batch(batch)
            && let Some(locked) = self.lock_at(meta, seen)
        {
            locked.insert(metas, id, ListKind::by_flags(meta), End::Front);
        }
    }
}

impl Lru {
    pub(crate) fn new(policy: EvictionPolicy) -> Lru {
        Lru {
            groups: Slab::new(),
            batches: Batches::new(Rank::Batch, Pending::new),
            seen: Mutex::ranked(Rank::Batch, [Seen::default(); BATCHES]),
            aging_due: AgingDue::default(),
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

    /// Locks the lists of the group in `seen`. Returns `None` if the frame has left that place. The
    /// caller saw the frame in a state other than [`LruState::None`].
    pub(super) fn lock_at(&self, meta: &Meta, seen: Listing) -> Option<LockedLists<'_>> {
        meta.lru.lock_at(seen, |group| self.lock(GroupId(group)))
    }

    /// Returns whether a batch has filled, or a run of frames was added, since the last call to
    /// [`Lru::take_aging_due`].
    #[inline]
    pub(crate) fn is_aging_due(&self) -> bool {
        self.aging_due.0.load(Ordering::Relaxed) != 0
    }

    /// Returns the group whose frame last filled a batch, or to which a run of frames was added
    /// later, and forgets it.
    pub(crate) fn take_aging_due(&self) -> Option<GroupId> {
        let number = self.aging_due.0.swap(0, Ordering::Relaxed).checked_sub(1)?;
        Some(GroupId(number as u16))
    }

    /// Adds a frame in state `None` to the batch with this number, and drains the batch if it is
    /// full.
    #[inline]
    pub(crate) fn add(&self, frames: &Frames, id: FrameId, batch: u8) {
        let meta = frames.meta(id);
        assert_eq!(
            LruState::load(meta),
            LruState::None,
            "{id:?} is added to the LRU twice"
        );
        self.with_batch(batch, |pending| {
            let room = pending.add(id.0, || LruState::Batch(batch).store(meta));
            if room == Room::None {
                self.aging_due.set(meta.group());
                self.drain_own(frames, pending, batch);
            }
        });
    }

    /// Runs `work` on the batch with this number, which is the calling thread's.
    #[inline(always)]
    fn with_batch(&self, batch: u8, work: impl FnOnce(&Pending<BATCH_LEN>)) {
        let done = self.batches.with(batch.into(), work);
        done.expect("batches are drained beside their threads");
    }

    /// Drains the batch with this number, then puts frames of one group, in state `None`, directly
    /// on their lists, the newest last.
    pub(crate) fn add_run(&self, frames: &Frames, ids: &[FrameId], batch: u8) {
        let metas = frames.metas();
        let Some(first) = ids.first() else {
            return;
        };
        let group = metas[first.index()].group();
        self.with_batch(batch, |pending| self.drain_own(frames, pending, batch));
        self.aging_due.set(group);
        let mut lists = self.lock(GroupId(group));
        for id in ids {
            let meta = &metas[id.index()];
            assert_eq!(
                (LruState::load(meta), meta.group()),
                (LruState::None, group),
                "{id:?} is added to the LRU twice, or to another group's lists"
            );
            lists.insert(metas, *id, ListKind::by_flags(meta), End::Front);
        }
    }

    /// Moves the frames of every batch to their lists.
    pub(crate) fn drain_batches(&self, frames: &Frames) {
        let mut seen = self.seen.lock();
        let mut locks = ListLocks::new(self);
        for (number, (pending, seen)) in (0..).zip(self.batches.all().zip(&mut *seen)) {
            pending.drain(seen, |id| {
                locks.list_if_waiting(frames.metas(), FrameId(id), number);
            });
        }
    }

    /// Moves the frames of the caller's batch to their lists.
    #[cold]
    #[inline(never)]
    fn drain_own(&self, frames: &Frames, pending: &Pending<BATCH_LEN>, batch: u8) {
        let mut locks = ListLocks::new(self);
        pending.drain_own(|id| {
            locks.list_if_waiting(frames.metas(), FrameId(id), batch);
        });
    }

    /// Returns the frames that may be waiting in batches, each with the number of its batch. For
    /// `validate`.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u8, FrameId)> {
        let batches = (0..).zip(self.batches.all());
        batches.flat_map(|(number, batch)| batch.iter().map(move |id| (number, FrameId(id))))
    }

    /// Takes a frame off its list, out of its batch or out of isolation, if it is in one of these.
    /// The caller holds the frame or is freeing it.
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
                LruState::Batch(_) | LruState::None => {}
            }
            LruState::None.store(meta);
            return;
        }
    }

    /// Moves a frame to the unevictable list, or from there to the list that its flags name. With
    /// [`Evictable::Yes`], a frame in a batch is left there, since a drain moves it to that list.
    /// An isolated frame is left isolated, and one on no list stays so.
    pub(crate) fn set_evictable(&self, frames: &Frames, id: FrameId, to: Evictable) {
        let metas = frames.metas();
        let meta = &metas[id.index()];
        loop {
            let seen = meta.lru.load();
            let state = LruState::of(seen);
            let stays = match (state, to) {
                (LruState::List(kind), Evictable::Yes) => kind != ListKind::Unevictable,
                (LruState::List(kind), Evictable::No) => kind == ListKind::Unevictable,
                (LruState::Batch(_), Evictable::No) => false,
                _ => true,
            };
            if stays {
                return;
            }
            if let Some(mut locked) = self.lock_at(meta, seen) {
                if let LruState::List(kind) = state {
                    locked.take(metas, id, kind);
                }
                locked.insert(metas, id, list_for(meta, to), End::Front);
                return;
            }
        }
    }

    /// Isolates up to `max` frames from the tail of a list, and adds them to `out`, oldest first.
    /// Returns how many pages they have.
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

    /// Puts isolated frames back at the head of a list: of the one that their flags name or, with
    /// [`Evictable::No`], of the unevictable one.
    pub(crate) fn put_back(&self, frames: &Frames, ids: &[FrameId], to: Evictable) {
        self.put_back_to(frames, ids, End::Front, |meta| list_for(meta, to));
    }

    /// Puts isolated frames back at the tail of the list that their flags name, in the order of
    /// `ids`.
    pub(crate) fn put_back_at_tail(&self, frames: &Frames, ids: &[FrameId]) {
        self.put_back_to(frames, ids, End::Back, ListKind::by_flags);
    }

    /// Puts isolated frames back on the inactive list. Clears the flag ACTIVE under the list's
    /// lock: a frame that was freed meanwhile, and is active in its new use, keeps its list and
    /// flag.
    pub(crate) fn put_back_inactive(&self, frames: &Frames, ids: &[FrameId], end: End) {
        self.put_back_to(frames, ids, end, |meta| {
            meta.take_mark(FlagSet::ACTIVE);
            ListKind::Inactive
        });
    }

    /// Puts isolated frames back on the list that `kind` chooses while the lists are locked. Skips
    /// frames that were freed meanwhile and may have another owner now.
    fn put_back_to(
        &self,
        frames: &Frames,
        ids: &[FrameId],
        end: End,
        kind: impl Fn(&Meta) -> ListKind,
    ) {
        let metas = frames.metas();
        let mut locks = ListLocks::new(self);
        for id in ids {
            let meta = &metas[id.index()];
            let seen = meta.lru.load();
            if LruState::of(seen) != LruState::Isolated {
                continue;
            }
            let Some(locked) = locks.lock_at(meta, seen) else {
                continue;
            };
            locked.lists.isolated -= pages_of(meta);
            locked.insert(metas, *id, kind(meta), end);
        }
    }
}

/// Returns the list for a frame: the one that its flags name or, with [`Evictable::No`], the
/// unevictable one.
fn list_for(meta: &Meta, evictable: Evictable) -> ListKind {
    match evictable {
        Evictable::Yes => ListKind::by_flags(meta),
        Evictable::No => ListKind::Unevictable,
    }
}
