//! The state of a thread at work for a pool: whether it is in a call to a store or an owner, or in
//! a trial.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use crate::group::{GroupId, Reclaimer, SetAside};
use crate::sync::{Arc, Weak};
use crate::units::PageCount;

crate::sync::thread_local! {
    /// The scopes that this thread is in.
    static SCOPES: RefCell<Vec<Open>> = const { RefCell::new(Vec::new()) };
    /// The last request of this thread that failed in a call to a store or an owner, until room is
    /// made for it.
    static SHORT: RefCell<Option<Short>> = const { RefCell::new(None) };
    /// How often this thread has skipped a file whose store it may not call.
    static SKIPPED: Cell<u64> = const { Cell::new(0) };
    static REFUSALS: Cell<Refusals> = const { Cell::new(Refusals::Counted) };
}

/// The kind of call that a thread makes in a scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// A store. Requests made during the call evict only clean pages, or use the pages that were
    /// set aside for them.
    Store,
    /// An owner, on behalf of reclaim or of the background work. Requests made during the call
    /// evict nothing.
    Owner,
}

/// A request that found no room.
struct Short {
    /// The memory to which the request was made.
    of: Weak<dyn Reclaimer>,
    group: GroupId,
    payer: GroupId,
}

/// An open scope.
struct Open {
    pool: u64,
    scope: Scope,
    aside: Option<Arc<SetAside>>,
}

/// A call by this thread to a store or an owner for a pool, until this is dropped. Meanwhile, the
/// thread's requests to the pool call no store. Not `Send`.
#[must_use = "the scope ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct StoreScope {
    pool: u64,
    _untried: Untried,
    _not_send: PhantomData<*const ()>,
}

impl StoreScope {
    /// Opens a scope for the pool whose domain has this number. `aside` holds the pages that the
    /// requests in the scope may use.
    pub(super) fn open(pool: u64, scope: Scope, aside: Option<Arc<SetAside>>) -> StoreScope {
        let open = Open { pool, scope, aside };
        let _ = SCOPES.try_with(|scopes| scopes.borrow_mut().push(open));
        StoreScope {
            pool,
            _untried: Untried::begin(),
            _not_send: PhantomData,
        }
    }

    /// Returns whether this thread is in a scope of this pool. A thread whose thread locals are
    /// destroyed counts as being in a scope.
    pub(super) fn is_open(pool: u64) -> bool {
        StoreScope::innermost(pool).is_some()
    }

    /// Returns the scope of this pool that this thread opened last. Returns [`Scope::Owner`] if the
    /// thread's thread locals are destroyed, since it may be calling an owner.
    pub(super) fn innermost(pool: u64) -> Option<Scope> {
        let is_of = |open: &&Open| open.pool == pool;
        let find = |open: &[Open]| open.iter().rfind(is_of).map(|open| open.scope);
        let scope = SCOPES.try_with(|scopes| find(&scopes.borrow()));
        scope.unwrap_or(Some(Scope::Owner))
    }

    /// Calls `lend` with the pages set aside in each scope of this pool, from the innermost
    /// outwards, until it returns a result.
    pub(super) fn aside<T>(pool: u64, lend: impl FnMut(&SetAside) -> Option<T>) -> Option<T> {
        let of_pool = |open: &&Open| open.pool == pool;
        let first = |open: &[Open]| {
            let asides = open.iter().rev().filter(of_pool);
            asides
                .filter_map(|open| open.aside.as_deref())
                .find_map(lend)
        };
        let lent = SCOPES.try_with(|scopes| first(&scopes.borrow()));
        lent.unwrap_or(None)
    }

    /// Returns whether this thread is in a scope of any pool, or its thread locals are destroyed.
    pub(crate) fn is_any_open() -> bool {
        let open = SCOPES.try_with(|scopes| !scopes.borrow().is_empty());
        open.unwrap_or(true)
    }

    /// Notes that a request in a call to a store or an owner has failed: `group`, in the memory
    /// `of`, had no room for a request of `payer`. Does nothing outside every scope.
    pub(super) fn note_short(of: &Arc<dyn Reclaimer>, group: GroupId, payer: GroupId) {
        if StoreScope::is_any_open() {
            let of = Arc::downgrade(of);
            let _ = SHORT.try_with(|short| short.replace(Some(Short { of, group, payer })));
        }
    }

    /// Frees pages of the group that [`StoreScope::note_short`] last noted for this thread, and
    /// forgets the note. The group may be in another memory. The caller holds no lock and is in no
    /// call to a store. Returns the number of pages freed; `None` if nothing was noted, or the
    /// memory is gone.
    pub(crate) fn make_room_where_short(pages: PageCount) -> Option<PageCount> {
        let Short { of, group, payer } = SHORT.try_with(RefCell::take).unwrap_or(None)?;
        Some(of.upgrade()?.reclaim(group, pages, Some(payer)))
    }

    /// Notes that this thread has skipped a file whose store it may not call.
    pub(crate) fn note_skipped() {
        let _ = SKIPPED.try_with(|skipped| skipped.set(skipped.get() + 1));
    }

    /// Returns how many times this thread has skipped a file whose store it may not call.
    pub(crate) fn skipped() -> u64 {
        SKIPPED.try_with(Cell::get).unwrap_or(0)
    }
}

impl Drop for StoreScope {
    fn drop(&mut self) {
        let _ = SCOPES.try_with(|scopes| {
            let mut scopes = scopes.borrow_mut();
            let at = scopes.iter().rposition(|open| open.pool == self.pool);
            scopes.remove(at.expect("a scope is closed once, by its thread"));
        });
    }
}

/// How refusals of this thread's requests are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusals {
    /// Refusals are counted immediately.
    Counted,
    /// The last refusal is kept, as the pool's number and the group, until the trial ends. Earlier
    /// refusals did not make the trial fail.
    Kept(Option<(u64, GroupId)>),
}

impl Refusals {
    pub(super) fn now() -> Refusals {
        REFUSALS.try_with(Cell::get).unwrap_or(Refusals::Counted)
    }

    pub(super) fn set(self) {
        let _ = REFUSALS.try_with(|now| now.set(self));
    }
}

/// A span in which refusals are counted immediately, even within a trial: this thread is in a call
/// to a store or to user code, whose requests are not part of the trial. Lasts until this is
/// dropped.
#[must_use = "it ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct Untried(Refusals);

impl Untried {
    pub(crate) fn begin() -> Untried {
        let before = Refusals::now();
        Refusals::Counted.set();
        Untried(before)
    }
}

impl Drop for Untried {
    fn drop(&mut self) {
        self.0.set();
    }
}
