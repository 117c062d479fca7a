//! The pool: its components, freeing, and the small calls for the layers above.

use super::background::Background;
use super::defer::RetireQueue;
use super::lists::{Evictable, EvictionPolicy, Lru, LruState, Refault, pages_of, thread_batch};
use super::owners::{OwnerId, Owners};
use super::progress::Progress;
use super::sampling::{MissCurve, SAMPLER_BYTES, Sampler};
use super::scope::{Scope, StoreScope};
use super::watched::WatchedPages;
use crate::frame::{ArenaError, ArenaOptions, Dropped, FlagSet, Frames, Kind, Meta, ViewOwner};
use crate::group::{Group, GroupId, GroupTree, Reach, SetAside};
use crate::stats::{Counters, Event, Totals};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::domain::{ANY_OWNER, NO_OWNER};
use crate::sync::panics::Panics;
use crate::sync::self_ref::SelfRef;
use crate::sync::{Arc, Domain, OnceLock, Weak, failpoint};
use crate::sys::barrier::BarrierMode;
use crate::sys::process::Process;
use crate::units::{FrameId, PageCount};

/// Options of a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolOptions {
    /// The options of the arena. The root group's limit is the number of the arena's ordinary
    /// frames: all but the reserve.
    pub(crate) arena: ArenaOptions,
    /// The barrier of the pool's domain; `None` for the best that this machine has.
    pub(crate) barrier: Option<BarrierMode>,
    pub(crate) policy: EvictionPolicy,
    /// Whether uses of file blocks are sampled for a miss curve. The sample is charged to the root.
    pub(crate) sampling: bool,
}

/// Frames, groups, lists and deferred work of one memory. See the module's documentation.
pub(crate) struct Pool {
    pub(crate) frames: Frames,
    pub(crate) groups: Arc<GroupTree>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) counters: Counters,
    pub(super) lru: Lru,
    pub(crate) owners: Owners,
    pub(super) retired: RetireQueue<Retired>,
    /// The threads that are freeing memory or aging pages now. A request that finds nothing to free
    /// waits for them before it fails, because the frames that they have isolated are on no list.
    pub(super) progress: Progress,
    pub(crate) background: Background,
    pub(super) sampler: Option<Sampler>,
    /// The number of calls to [`Pool::next_offset`], which spreads the rounding of shares over
    /// groups.
    offsets: AtomicU64,
    /// The page table's common leaf of zeros (`space::table`), created when it is first needed.
    pub(crate) zero_leaf: OnceLock<FrameId>,
    /// Pages of files that code was fetched from (`space::code`).
    pub(crate) watched: WatchedPages,
    /// Counts the blocks that have left their files and still have views. While there are any, they
    /// keep the pool alive.
    detached_views: SelfRef<Pool>,
}

/// Something that was made unreachable, but may still be in use until a grace period has passed.
pub(crate) enum Retired {
    /// A frame that nothing holds: it is freed by [`Pool::free`].
    Frame(FrameId),
    /// A frame that is to lose one reference, by [`Pool::put`].
    Put(FrameId),
    /// A frame, perhaps a part of a block, that is to lose one mapping by a page table, by
    /// [`Pool::unmap`].
    Unmap(FrameId),
    /// Any other call, made once and outside sections. Any request for memory may run the call,
    /// with any locks held. So the call must not invoke a store or a waker:
    /// [`Deferred`](crate::exec::Deferred) is for those.
    Call(Box<dyn FnOnce(&Pool) + Send>),
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("groups", &self.groups)
            .field("retired", &self.retired.len())
            .finish_non_exhaustive()
    }
}

/// Construction and the pool as a whole.
impl Pool {
    /// Creates a pool with an arena of its own, which is all free.
    pub(crate) fn new(options: &PoolOptions) -> Result<Arc<Pool>, ArenaError> {
        let frames = Frames::new(&options.arena)?;
        let ordinary = PageCount(u64::from(frames.total() - frames.reserve()));
        let domain = match options.barrier {
            Some(mode) => Domain::with_mode(mode),
            None => Domain::new(),
        };
        let groups = Arc::new(GroupTree::new(ordinary));
        if options.sampling {
            // This charge is never given back: the sampler lives as long as the pool.
            let pages = PageCount::ceil(SAMPLER_BYTES);
            let charge = groups.charge(GroupId::ROOT, pages, Reach::Max);
            let too_small = |_| ArenaError::Reserve {
                reserve: pages.0 as u32,
                frames: frames.total(),
            };
            let _root = charge.map_err(too_small)?.commit();
        }
        let pool = Arc::new(Pool {
            groups,
            domain,
            counters: Counters::new(),
            lru: Lru::new(options.policy),
            owners: Owners::default(),
            retired: RetireQueue::default(),
            progress: Progress::default(),
            background: Background::new(ordinary),
            sampler: options.sampling.then(|| Sampler::new(ordinary)),
            offsets: AtomicU64::new(0),
            zero_leaf: OnceLock::new(),
            watched: WatchedPages::default(),
            detached_views: SelfRef::new(),
            frames,
        });
        let weak: Weak<Pool> = Arc::downgrade(&pool);
        pool.groups.set_reclaimer(weak);
        Ok(pool)
    }

    /// Returns the process that created the memory, unless it is the calling one. A child of
    /// fork(2) has none of the memory.
    #[inline]
    pub(crate) fn foreign_maker(&self) -> Option<Process> {
        self.domain.foreign_maker()
    }

    /// Refuses a call in a child of fork(2): `refuse` makes the error from the ID of the process
    /// that created the memory.
    #[inline]
    pub(crate) fn check_process<E>(&self, refuse: impl FnOnce(u32) -> E) -> Result<(), E> {
        match self.foreign_maker() {
            None => Ok(()),
            Some(maker) => Err(refuse(maker.id())),
        }
    }

    /// Returns a handle to the root group.
    pub(crate) fn root_group(&self) -> Group {
        Group::root(self.groups.clone())
    }

    /// Returns the number of pages that the whole pool may use: the root's limit.
    pub(super) fn max_pages(&self) -> u64 {
        self.groups.max(GroupId::ROOT).map_or(u64::MAX, |max| max.0)
    }

    /// Returns how many pages `group` has above its `high`.
    pub(super) fn over_high(&self, group: GroupId) -> u64 {
        let high = self.groups.high(group).map_or(u64::MAX, |high| high.0);
        self.groups.charged(group).0.saturating_sub(high)
    }

    /// Returns a number below `total` that changes from call to call. In the long run, the numbers
    /// are spread evenly (steps of the golden ratio).
    pub(super) fn next_offset(&self, total: u64) -> u64 {
        let count = self.offsets.fetch_add(1, Ordering::Relaxed);
        let turn = count.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(turn) * u128::from(total)) >> 64) as u64
    }

    /// Opens a scope for a call to a store. In it, requests of this thread to this pool call no
    /// store, and may use the pages in `aside`.
    pub(crate) fn store_scope(&self, aside: Option<Arc<SetAside>>) -> StoreScope {
        StoreScope::open(self.domain.id(), Scope::Store, aside)
    }

    /// Opens a scope for calls to owners. In it, requests of this thread to this pool evict
    /// nothing.
    pub(super) fn owner_scope(&self) -> StoreScope {
        StoreScope::open(self.domain.id(), Scope::Owner, None)
    }

    /// Returns whether this thread is in a [`StoreScope`] of this pool.
    pub(crate) fn in_store_scope(&self) -> bool {
        StoreScope::is_open(self.domain.id())
    }

    /// Returns the miss curve, or `None` if this pool samples no uses.
    pub(crate) fn miss_curve(&self) -> Option<MissCurve> {
        self.sampler.as_ref().map(Sampler::curve)
    }

    /// Returns all counters and gauges.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = self.counters.totals();
        totals.frames = self.frames.total().into();
        totals.frames_free = self.frames.free_frames().into();
        totals.frames_reserve = self.frames.reserve().into();
        totals.usage = self.groups.usage(GroupId::ROOT).0;
        for group in self.groups.subtree(GroupId::ROOT) {
            let sizes = self.lru.sizes(group);
            totals.inactive += sizes.inactive.0;
            totals.active += sizes.active.0;
            totals.unevictable += sizes.unevictable.0;
        }
        totals.dirty = self.dirty_pages().0;
        totals.retired = self.retired.len() as u64;
        totals.groups = self.groups.all_stats().len() as u64;
        totals.grace_period = self.domain.grace_periods();
        totals.lock_wait = self.frames.waits.visits();
        totals
    }
}

/// Freeing of frames.
impl Pool {
    /// Frees a block that is not held: takes it off its list, returns it to the arena, and
    /// uncharges its group, in this order, so that a charge that succeeds finds a frame. If the
    /// block could not be filled, tells its owner first.
    pub(crate) fn free(&self, id: FrameId) {
        let meta = self.frames.meta(id);
        let flags = meta.flags.load();
        if flags.contains(FlagSet::ERROR) && !flags.contains(FlagSet::UPTODATE) {
            self.note_failed_block(id);
        }
        if LruState::load(meta) != LruState::None {
            self.lru.remove(&self.frames, id);
        }
        let pages = pages_of(meta);
        let group = GroupId(meta.group());
        if meta.kind().has_words() {
            self.groups.count_tables(group, -(pages as i64));
        }
        self.frames.free(id);
        self.groups.uncharge(group, PageCount(pages));
        self.counters.add(Event::PgFree, pages);
    }

    #[cold]
    fn note_failed_block(&self, id: FrameId) {
        if let Some(owner) = self.owners.get(OwnerId(self.frames.meta(id).owner())) {
            owner.failed_block_freed(id);
        }
    }

    /// Frees cached pages that were evicted together, and uncharges their groups. The frames are
    /// not held, and are on no list.
    ///
    /// The frames bypass the magazines, so that they stay contiguous: a stream's pages were read in
    /// order and are evicted in order. A store fills contiguous frames as one piece, and for
    /// a device, a request of a single piece takes less than half as long as one of 256 pieces.
    pub(crate) fn free_evicted(&self, ids: &mut [FrameId]) {
        let group_of = |id: &FrameId| self.frames.meta(*id).group();
        for run in ids.chunk_by_mut(|one, next| group_of(one) == group_of(next)) {
            let group = GroupId(group_of(&run[0]));
            for id in &*run {
                let meta = self.frames.meta(*id);
                debug_assert_eq!(
                    (meta.kind(), LruState::load(meta)),
                    (Kind::Cached, LruState::None)
                );
                self.frames.end_single(*id);
            }
            let pages = run.len() as u64;
            self.frames.give_ended_to_lists(run);
            self.groups.uncharge(group, PageCount(pages));
            self.counters.add(Event::PgFree, pages);
        }
    }

    /// Drops one of the caller's references, and frees the block if that was the last hold.
    pub(crate) fn put(&self, id: FrameId) {
        if self.frames.meta(id).hold.put() == Dropped::Last {
            self.free(id);
        }
    }

    /// Drops a view of a snapshot's page, and frees the page if that was the last hold. Does
    /// nothing in a child of fork(2).
    pub(crate) fn put_view_still(&self, id: FrameId) {
        if self.foreign_maker().is_some() {
            return;
        }
        if self.frames.meta(id).hold.put_view_still() == Dropped::Last {
            self.free(id);
        }
    }

    /// Notes that a block leaves its file, and drops the reference that the file's index had,
    /// unless the block has views: they inherit the reference, and keep the block and this pool
    /// alive. Returns whether the block is still held. The caller holds the block's lock.
    pub(crate) fn uncache(self: &Arc<Pool>, id: FrameId) -> Dropped {
        self.frames.meta(id).uncache(&self.detached_views, self)
    }

    /// Drops a page table's mapping of the page in this frame, and frees the block if that was the
    /// last hold.
    pub(crate) fn unmap(&self, id: FrameId) {
        let head = self.frames.head_of(id);
        if self.frames.meta(head).hold.unmap() == Dropped::Last {
            self.free(head);
        }
    }
}

/// Operations on the lists.
impl Pool {
    /// Lists a published block, through this thread's batch: on the active list if it is flagged
    /// ACTIVE, otherwise on the inactive one. The caller holds the block.
    #[inline]
    pub(crate) fn lru_add(&self, id: FrameId) {
        if let Some(sampler) = &self.sampler {
            sampler.mark(self.frames.meta(id));
        }
        self.lru.add(&self.frames, id, thread_batch());
    }

    /// Lists blocks of one group that the caller has published, in the order of `ids`.
    #[inline]
    pub(crate) fn lru_add_run(&self, ids: &[FrameId]) {
        if let Some(sampler) = &self.sampler {
            ids.iter()
                .for_each(|id| sampler.mark(self.frames.meta(*id)));
        }
        match ids {
            [one] => self.lru.add(&self.frames, *one, thread_batch()),
            _ => self.lru.add_run(&self.frames, ids, thread_batch()),
        }
    }

    /// Takes a block off its list, out of its batch or out of isolation, if it is in one of these.
    /// The caller holds the block or is freeing it.
    pub(crate) fn lru_remove(&self, id: FrameId) {
        self.lru.remove(&self.frames, id);
    }

    /// Sets whether reclaim looks at a listed block. The caller holds the block.
    pub(crate) fn lru_set(&self, id: FrameId, evictable: Evictable) {
        self.lru.set_evictable(&self.frames, id, evictable);
    }

    /// Moves the frames that wait in batches to their lists, so that gauges count them.
    pub(crate) fn settle_lists(&self) {
        self.lru.drain_batches(&self.frames);
    }

    /// Advances the clock of `group` by the `pages` pages of a block that is being evicted. Returns
    /// the shadow to leave in the index for the block.
    pub(crate) fn shadow_pack(&self, group: GroupId, pages: PageCount) -> u64 {
        self.lru.shadow_pack(group, pages)
    }

    /// Counts a refault of a block of `pages` pages that had left `shadow`, and decides on which
    /// list the block goes. A caller that is about to write the whole block ignores the decision:
    /// such a refault is not a sign of use.
    pub(crate) fn refault_decision(&self, shadow: u64, pages: PageCount) -> Refault {
        self.counters.add(Event::Refault, pages.0);
        self.lru.refault(shadow)
    }

    /// Counts a block of `pages` pages that goes to the active list because it came back soon after
    /// its eviction.
    pub(crate) fn count_active_refault(&self, pages: PageCount) {
        self.counters.add(Event::RefaultActivate, pages.0);
    }
}

/// Deferred work, and waking the service thread.
impl Pool {
    /// Queues `entry`, which no session can hold, to be freed after a grace period. Never waits.
    /// May be called in a section and with locks held.
    pub(crate) fn retire(&self, entry: Retired) {
        self.retire_of(NO_OWNER, entry);
    }

    /// Like [`Pool::retire`], for an entry that sessions of the space `owner` may hold. If `owner`
    /// is [`ANY_OWNER`], sessions of any space may hold it.
    pub(crate) fn retire_of(&self, owner: u64, entry: Retired) {
        if self.retired.push((owner, entry)) {
            self.background.kick();
        }
    }

    /// Returns whether the retire queue has grown so long that [`Pool::flush_retired_if_due`] would
    /// flush it.
    #[inline]
    pub(crate) fn is_flush_due(&self) -> bool {
        self.retired.is_flush_due()
    }

    /// Flushes the retire queue if it has grown long. The caller is outside every section and holds
    /// no lock that a section may take.
    #[inline]
    pub(crate) fn flush_retired_if_due(&self) {
        if self.is_flush_due() {
            self.flush_retired();
        }
    }

    /// Waits for one grace period, and frees the entries that were retired before the call. An
    /// entry that a session may hold stays in the queue until that session has ended. Returns how
    /// many entries were freed. The caller is outside every section and holds no lock that a
    /// section may take.
    pub(crate) fn flush_retired(&self) -> usize {
        if self.retired.len() == 0 {
            return 0;
        }
        // Other threads that are short of memory wait for this one rather than fail.
        let _working = self.progress.begin();
        self.run_retired()
    }

    /// Flushes the retire queue if entries of the space `owner` are held back. Called when a
    /// session of that space has ended.
    #[inline]
    pub(crate) fn session_ended(&self, owner: u64) {
        if self.retired.holds(owner) {
            self.flush_retired();
        }
    }

    /// Like [`Pool::flush_retired`], for a caller that already counts as working.
    pub(super) fn run_retired(&self) -> usize {
        let Some(mut batch) = self.retired.take() else {
            return 0;
        };
        let open = self.domain.synchronize_but_sessions(|_| true);
        let is_free =
            |owner: u64| !open.contains(&owner) && (owner != ANY_OWNER || open.is_empty());
        let entries = batch.take_free(is_free);
        let count = entries.len();
        failpoint!(Retiring);
        // If a call panics, the other entries are handled nevertheless.
        let mut panics = Panics::default();
        for entry in entries {
            panics.catch(|| match entry {
                Retired::Frame(id) => self.free(id),
                Retired::Put(id) => self.put(id),
                Retired::Unmap(id) => self.unmap(id),
                Retired::Call(call) => call(self),
            });
        }
        drop(batch);
        panics.go_on();
        count
    }

    /// Frees all entries that were retired before the call, except those that a session may hold.
    /// Waits until other threads have freed the entries that they had already taken from the queue.
    /// The caller is outside every section and holds no lock.
    pub(crate) fn finish_retired(&self) {
        // There are two rounds, because a mapping freed in the first one may have been the last to
        // keep a direct-access file open. The file's entries are then retired in turn.
        for _ in 0..2 {
            self.flush_retired();
            self.retired.wait_taken();
        }
    }

    /// Requests a background step if free pages run low. Called when the charge for a frame has
    /// raised the root's usage.
    #[inline]
    pub(super) fn kick_if_low(&self) {
        let used = self.groups.charged(GroupId::ROOT).0;
        self.background.kick_if_low(used, self.max_pages());
    }
}

impl ViewOwner for Pool {
    #[inline(always)]
    fn frames(&self) -> &Frames {
        &self.frames
    }

    fn detached_view_made(&self, meta: &Meta) {
        meta.detached_view_made(&self.detached_views);
    }

    fn detached_view_gone(&self, meta: &Meta) {
        // In a child of fork(2), the metadata is zeros, as if the block had left its file.
        if self.foreign_maker().is_some() {
            return;
        }
        let me = self.detached_views.get();
        let id = me.frames.id_of(meta);
        let (dropped, own) = meta.detached_view_gone(&me.detached_views);
        if dropped == Dropped::Last {
            me.free(id);
        }
        drop((own, me));
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;
    #[cfg(not(shuttle))]
    use crate::reclaim::lists::ListSizes;

    impl PoolOptions {
        /// Returns the usual options for `frames` usable frames.
        pub(crate) fn new(frames: u32) -> PoolOptions {
            PoolOptions {
                arena: ArenaOptions::new(frames),
                barrier: None,
                policy: EvictionPolicy::default(),
                sampling: false,
            }
        }
    }

    impl Pool {
        /// Returns how many pages are on the lists of one group, without the groups below it.
        #[cfg(not(shuttle))]
        pub(crate) fn list_sizes(&self, group: GroupId) -> ListSizes {
            self.lru.sizes(group)
        }

        /// Returns whether a thread is waiting for entries that another took from the retire queue.
        #[cfg(all(not(loom), not(shuttle)))]
        pub(crate) fn is_retired_waited_for(&self) -> bool {
            self.retired.is_waited_for()
        }
    }
}
