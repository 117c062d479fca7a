//! The pool itself: its parts, freeing, and the small calls of the layers above.

use std::cell::{Cell, RefCell};

use super::background::Background;
use super::batch::own_batch;
use super::deferred::DeferredWork;
#[cfg(all(test, not(shuttle)))]
use super::lru::ListSizes;
use super::lru::{Evictable, Lru, Place, pages_of};
use super::miss_curve::{MissCurve, SAMPLER_BYTES, Sampler};
use super::owners::{Owner, OwnerId, Owners};
use super::policy::{EvictionPolicy, Policy};
use super::progress::{Progress, Room, Rounds};
use super::retire::RetireQueue;
use super::shadows::Shadows;
use super::shrink::Io;
use super::trial::Untried;
use super::watched::WatchedPages;
use crate::frame::{ArenaError, ArenaOptions, Dropped, FlagSet, Frames, Keeper, Meta};
use crate::group::{Group, GroupId, GroupTree, Holders, Reclaimer};
use crate::stats::{Counters, Event, Totals};
use crate::sync::keep::KeepSelf;
use crate::sync::{Arc, Domain, OnceLock, Weak};
use crate::sys::barrier::BarrierMode;
use crate::sys::process::Process;
use crate::units::{FrameId, PageCount};

/// How to make a pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolOptions {
    /// The arena. The root group's limit is its ordinary frames: all but the reserve.
    pub(crate) arena: ArenaOptions,
    /// The barrier of the pool's domain; `None` for the best of this machine.
    pub(crate) barrier: Option<BarrierMode>,
    /// What is evicted first.
    pub(crate) policy: EvictionPolicy,
    /// Whether uses are sampled for a miss curve; the sample is charged to the root.
    pub(crate) sampling: Sampling,
}

/// Whether uses of file blocks are sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Sampling {
    #[default]
    Off,
    On,
}

impl PoolOptions {
    /// Usual options for `frames` usable frames.
    #[cfg(test)]
    pub(crate) fn new(frames: u32) -> PoolOptions {
        PoolOptions {
            arena: ArenaOptions::new(frames),
            barrier: None,
            policy: EvictionPolicy::default(),
            sampling: Sampling::default(),
        }
    }
}

/// Frames, groups, lists and the retire queue of one memory. See the module's documentation.
pub(crate) struct Pool {
    pub(crate) frames: Frames,
    pub(crate) groups: Arc<GroupTree>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) counters: Counters,
    pub(super) lru: Lru,
    pub(super) owners: Owners,
    pub(super) retired: RetireQueue,
    pub(super) deferred: DeferredWork,
    pub(super) shadows: Shadows,
    pub(super) progress: Progress,
    pub(super) background: Background,
    pub(super) policy: &'static dyn Policy,
    pub(super) sampler: Option<Sampler>,
    /// The page table's common leaf of zeros (`space::table`), once it was wanted; it stays.
    pub(crate) zero_leaf: OnceLock<FrameId>,
    /// Pages of files that code was fetched from (`space::code`).
    pub(crate) watched: WatchedPages,
    /// Counts blocks that left their files while they were viewed.
    viewed_outside: KeepSelf<Pool>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("groups", &self.groups)
            .field("retired", &self.retired.len())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool with an arena of its own, all free.
    pub(crate) fn new(options: &PoolOptions) -> Result<Arc<Pool>, ArenaError> {
        let frames = Frames::new(&options.arena)?;
        let ordinary = PageCount(u64::from(frames.total() - frames.reserve()));
        let domain = match options.barrier {
            Some(mode) => Domain::with_mode(mode),
            None => Domain::new(),
        };
        let pool = Arc::new(Pool {
            groups: Arc::new(GroupTree::new(ordinary)),
            domain,
            counters: Counters::new(),
            lru: Lru::new(),
            owners: Owners::default(),
            retired: RetireQueue::default(),
            deferred: DeferredWork::default(),
            shadows: Shadows::new(frames.total()),
            progress: Progress::default(),
            background: Background::new(ordinary),
            policy: options.policy.choices(),
            sampler: match options.sampling {
                Sampling::Off => None,
                Sampling::On => Some(Sampler::new(ordinary)),
            },
            zero_leaf: OnceLock::new(),
            watched: WatchedPages::default(),
            viewed_outside: KeepSelf::new(),
            frames,
        });
        if pool.sampler.is_some() {
            // Never given back: it lives as long as the pool.
            let pages = PageCount::ceil(SAMPLER_BYTES);
            pool.groups.charge_must(GroupId::ROOT, pages).commit();
        }
        let weak: Weak<Pool> = Arc::downgrade(&pool);
        pool.groups.set_reclaimer(weak);
        Ok(pool)
    }

    /// The process that made the memory, unless that is the calling one: a child of fork(2), which
    /// has none of it.
    #[inline]
    pub(crate) fn foreign_maker(&self) -> Option<Process> {
        self.domain.foreign_maker()
    }

    /// The handle of the root group.
    pub(crate) fn root_group(&self) -> Group {
        Group::root(self.groups.clone())
    }

    /// Frees a block whose hold word is 0: off its list, back to the arena, and off its group's
    /// account, in this order, so that a charge that succeeds finds a frame.
    pub(crate) fn free(&self, id: FrameId) {
        let meta = self.frames.meta(id);
        let flags = meta.flags.load();
        if flags.contains(FlagSet::ERROR) && !flags.contains(FlagSet::UPTODATE) {
            self.let_failed_go(id);
        }
        if Place::load(meta) != Place::None {
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
    fn let_failed_go(&self, id: FrameId) {
        if let Some(owner) = self.owners.get(OwnerId(self.frames.meta(id).owner())) {
            owner.let_failed_go(id);
        }
    }

    /// Drops a reference that the caller has; frees the block if it was the last hold.
    pub(crate) fn put(&self, id: FrameId) {
        if self.frames.meta(id).hold.put() == Dropped::Last {
            self.free(id);
        }
    }

    /// Drops a view of a snapshot's page; frees it if that was the last hold.
    pub(crate) fn put_view_still(&self, id: FrameId) {
        if self.foreign_maker().is_some() {
            return;
        }
        if self.frames.meta(id).hold.put_view_still() == Dropped::Last {
            self.free(id);
        }
    }

    /// Takes a block out of its file, together with the reference that its index had on it. The
    /// caller holds the block's lock. Views that there are keep the block, and this pool.
    pub(crate) fn uncache(self: &Arc<Pool>, id: FrameId) -> Dropped {
        self.frames.meta(id).uncache(&self.viewed_outside, self)
    }

    /// One page table less maps the page in this frame; frees its block if that was the last hold.
    pub(crate) fn unmap(&self, id: FrameId) {
        let head = self.frames.head_of(id);
        if self.frames.meta(head).hold.unmap() == Dropped::Last {
            self.free(head);
        }
    }

    /// Lists a published block: on the active list if it is flagged ACTIVE, else on the inactive
    /// one; by way of this thread's batch. The caller holds the block.
    #[inline]
    pub(crate) fn lru_add(&self, id: FrameId) {
        if let Some(sampler) = &self.sampler {
            sampler.mark(self.frames.meta(id));
        }
        self.lru.add(&self.frames, id, own_batch());
    }

    /// Lists blocks that the caller has published for one group, in this order.
    #[inline]
    pub(crate) fn lru_add_run(&self, ids: &[FrameId]) {
        if let Some(sampler) = &self.sampler {
            ids.iter()
                .for_each(|id| sampler.mark(self.frames.meta(*id)));
        }
        match ids {
            [one] => self.lru.add(&self.frames, *one, own_batch()),
            _ => self.lru.add_run(&self.frames, ids, own_batch()),
        }
    }

    /// Takes a block off its list; nothing happens if it is on none. The caller holds the block or
    /// is the one who frees it.
    pub(crate) fn lru_remove(&self, id: FrameId) {
        self.lru.remove(&self.frames, id);
    }

    /// Has reclaim pass a listed block over, or look at it again. The caller holds the block.
    pub(crate) fn lru_set(&self, id: FrameId, evictable: Evictable) {
        self.lru.move_listed(&self.frames, id, evictable);
    }

    /// Pages on the lists of one group, those below it not counted.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn list_sizes(&self, group: GroupId) -> ListSizes {
        self.lru.sizes(group)
    }

    /// Makes frames with the returned number in their metadata evictable through `owner`.
    pub(crate) fn register_owner(&self, owner: Weak<dyn Owner>) -> OwnerId {
        self.owners.register(owner)
    }

    /// The number may be used again: no frame carries it any more.
    pub(crate) fn unregister_owner(&self, id: OwnerId) {
        self.owners.unregister(id);
    }

    /// Opens a scope for calls of a store (or an owner): requests of this thread to this pool may
    /// use the reserve and never reclaim.
    pub(crate) fn store_scope(&self) -> StoreScope {
        let pool = self.domain.id();
        let _ = SCOPES.try_with(|scopes| scopes.borrow_mut().push(pool));
        StoreScope {
            pool,
            _untried: Untried::begin(),
            _of_thread: std::marker::PhantomData,
        }
    }

    /// Whether this thread is in a [`StoreScope`] of this pool. One that is ending may be: its
    /// locals are gone.
    pub(crate) fn in_store_scope(&self) -> bool {
        let pool = self.domain.id();
        let open = SCOPES.try_with(|scopes| scopes.borrow().contains(&pool));
        open.unwrap_or(true)
    }

    /// Whether this thread is in a [`StoreScope`] of whatever pool.
    pub(crate) fn in_any_store_scope() -> bool {
        let open = SCOPES.try_with(|scopes| !scopes.borrow().is_empty());
        open.unwrap_or(true)
    }

    /// Notes that this thread has passed over what it may not call a store for.
    pub(crate) fn pass_over() {
        let _ = PASSED_OVER.try_with(|passed| passed.set(passed.get() + 1));
    }

    /// How often this thread has.
    pub(crate) fn passed_over() -> u64 {
        PASSED_OVER.try_with(Cell::get).unwrap_or(0)
    }

    /// Which share of the uses so far would have missed with more or less memory; `None` without a
    /// sample.
    pub(crate) fn miss_curve(&self) -> Option<MissCurve> {
        self.sampler.as_ref().map(Sampler::curve)
    }

    /// Moves what waits in batches to its lists, so that gauges count it.
    pub(crate) fn settle_lists(&self) {
        self.lru.drain_batches(&self.frames);
    }

    /// All counters and gauges.
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
        totals.lock_wait = self.frames.waits().visits();
        totals
    }
}

impl Keeper for Pool {
    #[inline(always)]
    fn frames(&self) -> &Frames {
        &self.frames
    }

    fn view_outside_made(&self, meta: &Meta) {
        meta.view_outside_made(&self.viewed_outside);
    }

    fn view_outside_gone(&self, meta: &Meta) {
        // The metadata is zeros there, as if the block had left its file.
        if self.foreign_maker().is_some() {
            return;
        }
        let me = self.viewed_outside.get();
        let id = me.frames.id_of(meta);
        let (dropped, own) = meta.view_outside_gone(&me.viewed_outside);
        if dropped == Dropped::Last {
            me.free(id);
        }
        drop((own, me));
    }
}

impl Reclaimer for Pool {
    fn reclaim(&self, group: GroupId, pages: PageCount) -> PageCount {
        if self.foreign_maker().is_some() {
            return PageCount(0);
        }
        let (mut rounds, mut freed) = (Rounds::new(), PageCount(0));
        while freed < pages {
            let left = PageCount(pages.0 - freed.0);
            match self.make_room(group, left, Io::Allowed, &mut rounds) {
                Room::Made(more) => {
                    freed.0 += more.0;
                    if more.0 > 0 {
                        rounds.wait_no_more();
                    }
                }
                Room::Perhaps => {}
                Room::None => break,
            }
        }
        freed
    }

    fn holders(&self, group: GroupId) -> Holders {
        self.count_holders(group)
    }
}

crate::sync::thread_local! {
    /// The pools in whose store calls this thread is.
    static SCOPES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// How often this thread has passed over a file whose store it may not call.
    static PASSED_OVER: Cell<u64> = const { Cell::new(0) };
}

/// While it lives, this thread calls a store for the pool. Not `Send`.
#[must_use = "the scope ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct StoreScope {
    pool: u64,
    _untried: Untried,
    _of_thread: std::marker::PhantomData<*const ()>,
}

impl Drop for StoreScope {
    fn drop(&mut self) {
        let _ = SCOPES.try_with(|scopes| {
            let mut scopes = scopes.borrow_mut();
            let at = scopes.iter().rposition(|pool| *pool == self.pool);
            scopes.remove(at.expect("a scope is closed once, by its thread"));
        });
    }
}
