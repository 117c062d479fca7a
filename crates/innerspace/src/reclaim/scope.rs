//! The state of this thread towards a pool: whether it is in a call of a store, or in a trial,
//! whose requests may be refused.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use crate::group::GroupId;

crate::sync::thread_local! {
    /// The pools in whose store calls this thread is.
    static SCOPES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// The number of times that this thread has skipped a file whose store it may not call.
    static SKIPPED: Cell<u64> = const { Cell::new(0) };
    static REFUSALS: Cell<Refusals> = const { Cell::new(Refusals::Counted) };
}

/// A scope in which this thread calls a store (or an owner) of the pool: its requests to the pool
/// may use the reserve and never reclaim. Lasts until this is dropped. Not `Send`.
#[must_use = "the scope ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct StoreScope {
    pool: u64,
    _untried: Untried,
    _not_send: PhantomData<*const ()>,
}

impl StoreScope {
    /// Opens a scope for the pool whose domain has this number.
    pub(super) fn open(pool: u64) -> StoreScope {
        let _ = SCOPES.try_with(|scopes| scopes.borrow_mut().push(pool));
        StoreScope {
            pool,
            _untried: Untried::begin(),
            _not_send: PhantomData,
        }
    }

    /// Whether this thread is in a scope of this pool. A thread whose locals are destroyed counts
    /// as in a scope.
    pub(super) fn is_open(pool: u64) -> bool {
        let open = SCOPES.try_with(|scopes| scopes.borrow().contains(&pool));
        open.unwrap_or(true)
    }

    /// Whether this thread is in a scope of any pool.
    pub(crate) fn is_any_open() -> bool {
        let open = SCOPES.try_with(|scopes| !scopes.borrow().is_empty());
        open.unwrap_or(true)
    }

    /// Notes that this thread has skipped a file whose store it may not call.
    pub(crate) fn note_skipped() {
        let _ = SKIPPED.try_with(|skipped| skipped.set(skipped.get() + 1));
    }

    /// Returns how many times this thread has skipped such a file.
    pub(crate) fn skipped() -> u64 {
        SKIPPED.try_with(Cell::get).unwrap_or(0)
    }
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

/// How a refusal of this thread's requests is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusals {
    /// It is counted immediately.
    Counted,
    /// It is kept until the trial ends. This is the last one, with its pool and group; earlier ones
    /// did not end the trial.
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

/// A span in which refusals are counted immediately, also within a trial: this thread is in a call
/// of a store or of a user, whose requests are no part of the trial. Lasts until this is dropped.
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
