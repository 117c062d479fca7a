//! The lock order, checked at run time in debug builds.
//!
//! A lock may have a [`Rank`]. A thread that waits for a ranked lock must hold no lock of that rank
//! or of one further in. Otherwise the thread panics immediately, even if no other thread is there
//! to make it a deadlock. `try_lock` never waits, so it is not checked, but the lock that it takes
//! counts as held. A lock without a rank is innermost: no other lock is taken under it, and it is
//! not checked.
//!
//! Block locks are bits in the metadata of frames. They may pass from thread to thread, so they are
//! not counted as held. Code calls [`may_wait`] before it waits for a block lock, for a grace
//! period or for memory.
//!
//! Foreign code (wakers, hooks, callbacks) may do whatever a caller of the library may, so it is
//! called with no lock held, except the service thread's. The calling code first calls
//! [`may_call_out`]. Calls to stores have a rule of their own ([`Apart`]).
//!
//! Release builds and builds for the model checkers check nothing ([`CHECKS`]).

use std::cell::Cell;
use std::marker::PhantomData;

macro_rules! ranks {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Places in the lock order, outermost first. ARCHITECTURE.md shows them as a tree.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
        #[repr(u8)]
        pub(crate) enum Rank {
            /// The rank of an innermost lock, which is not checked.
            #[default]
            Leaf,
            $($(#[$doc])+ $name,)+
        }

        const RANKS: &[Rank] = &[Rank::Leaf, $(Rank::$name,)+];
    };
}

ranks! {
    /// The lock of the service thread's work.
    Service,
    /// The lock of the table of open files.
    Registry,
    /// The writer mutex of a space's gate.
    SpaceWriter,
    /// The append mutex of a file.
    Append,
    /// The lock by which threads take turns at a file's long views.
    LongView,
    /// The lock `invalidate` of a file, or `layout` of a direct-access file.
    Invalidate,
    /// The lock of a block. A thread may lock several: in ascending order, or by trying.
    Block,
    /// The lock of a file's list of mappings.
    Mappings,
    /// The lock of a space's paths, held by faults that un-share a path of the page table.
    Paths,
    /// The lock of a file's index with its dirty blocks, or of a stripe of a direct-access file's
    /// dirty ranges.
    Dirty,
    /// The lock of the index of a direct-access file's entries.
    Index,
    /// The lock of a shared batch of frames that are on no LRU list yet, or of all batches during a
    /// drain.
    Batch,
    /// The lock of a group's LRU lists.
    Lists,
    /// The lock of the shape of the tree of groups.
    GroupTree,
    /// The lock of the queue of retired entries, or of the table of owners.
    Retire,
    /// The lock of a queue of the wait table, or of a queue of waiters for a direct-access file's
    /// entries.
    WaitQueue,
    /// The lock of a domain's list of participants, or of a space's list of accessors.
    Participants,
    /// The lock of a mailbox.
    Mailbox,
    /// The lock of a slot that threads share: of a magazine of free frames, or a stock of charges.
    Slot,
    /// The lock of the lists of free frames.
    Buddy,
}

/// Whether this build checks the lock order.
const CHECKS: bool = cfg!(all(debug_assertions, not(any(loom, shuttle))));

thread_local! {
    /// The number of locks of each rank that this thread holds.
    static HELD: Cell<[u8; RANKS.len()]> = const { Cell::new([0; RANKS.len()]) };
    /// The number of [`Apart`]s that this thread has begun and not yet dropped.
    static APART: Cell<u32> = const { Cell::new(0) };
}

#[inline(always)]
fn change(rank: Rank, by: i8) {
    if CHECKS && rank != Rank::Leaf {
        HELD.with(|held| {
            let mut counts = held.get();
            counts[rank as usize] = counts[rank as usize].wrapping_add_signed(by);
            held.set(counts);
        });
    }
}

/// Checks that this thread may wait for a lock or an event of this rank.
///
/// # Panics
/// If the thread holds a lock of this rank or of one further in. Does not panic for [`Rank::Leaf`],
/// nor while another panic unwinds.
#[inline]
#[track_caller]
pub(crate) fn may_wait(rank: Rank) {
    // Nothing is checked while a panic unwinds, because a second panic would abort the process.
    if !CHECKS || rank == Rank::Leaf || std::thread::panicking() {
        return;
    }
    let counts = HELD.with(Cell::get);
    // `Leaf` is never counted.
    let is_held = |held: &&Rank| **held >= rank && counts[**held as usize] > 0;
    if let Some(held) = RANKS.iter().find(is_held) {
        panic!("lock order: waits for {rank:?} while holding {held:?}");
    }
}

/// Checks that this thread may call foreign code.
///
/// # Panics
/// If the thread holds a ranked lock other than the service thread's, or is in a call to a store,
/// whose caller may hold locks. Does not panic while another panic unwinds.
#[inline]
#[track_caller]
pub(crate) fn may_call_out() {
    if CHECKS && !std::thread::panicking() {
        assert_eq!(APART.get(), 0, "lock order: calls out from a store");
    }
    may_wait(Rank::Registry);
}

impl Rank {
    /// Counts a lock of this rank as held until the result is dropped.
    #[inline(always)]
    pub(crate) fn hold(self) -> Held {
        change(self, 1);
        Held(self)
    }
}

/// Hides the locks that this thread holds, for a call to a store, until this is dropped. A store
/// may be built on another file. All locks of that other file are further in than those of the
/// calling file.
pub(crate) struct Apart {
    before: [u8; RANKS.len()],
    _of_thread: PhantomData<*const ()>,
}

impl Apart {
    pub(crate) fn begin() -> Apart {
        APART.set(APART.get() + 1);
        Apart {
            before: HELD.with(|held| held.replace([0; RANKS.len()])),
            _of_thread: PhantomData,
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        APART.set(APART.get() - 1);
        HELD.with(|held| held.set(self.before));
    }
}

/// A lock that counts as held by this thread, until this is dropped.
pub(crate) struct Held(Rank);

impl Drop for Held {
    #[inline(always)]
    fn drop(&mut self) {
        change(self.0, -1);
    }
}

#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::sync::{Condvar, Mutex, RwLock};
    use std::time::Duration;

    fn refused(work: impl FnOnce()) -> bool {
        let Err(payload) = catch_unwind(AssertUnwindSafe(work)) else {
            return false;
        };
        let text = payload.downcast_ref::<String>().expect("a formatted panic");
        assert!(text.starts_with("lock order: waits for"), "{text}");
        true
    }

    #[test]
    fn waiting_in_the_wrong_order_panics_though_nobody_holds_the_other() {
        let dirty = Mutex::ranked(Rank::Dirty, ());
        let index = Mutex::ranked(Rank::Index, ());
        {
            let _outer = dirty.lock();
            let _inner = index.lock();
            may_wait(Rank::Buddy);
        }
        let inner = index.lock();
        assert!(refused(|| drop(dirty.lock())));
        assert!(refused(|| may_wait(Rank::Index)), "not twice, either");
        // A try never waits, but the lock that it takes counts as held.
        let outer = dirty.try_lock().expect("it is free");
        drop(inner);
        assert!(refused(|| may_wait(Rank::Block)));
        drop(outer);
        may_wait(Rank::Registry);
    }

    #[test]
    fn readers_writers_and_waiters_hold_too() {
        let invalidate = RwLock::ranked(Rank::Invalidate, ());
        let append = Mutex::ranked(Rank::Append, ());
        let readers = (invalidate.read(), invalidate.try_read());
        assert!(refused(|| drop(append.lock())));
        assert!(
            refused(|| drop(invalidate.read())),
            "a writer may wait between"
        );
        drop(readers);
        let writer = invalidate.write();
        assert!(refused(|| drop(append.lock())));
        drop(writer);
        // During a wait on a condition variable the order counts the mutex as held.
        let (changed, guard) = (Condvar::new(), append.lock());
        let (guard, _) = changed.wait_timeout(guard, Duration::from_nanos(1));
        assert!(refused(|| may_wait(Rank::SpaceWriter)));
        drop(guard);
        may_wait(Rank::Registry);
    }

    #[test]
    fn foreign_code_is_called_with_no_lock_but_that_of_the_service() {
        let service = Mutex::ranked(Rank::Service, ());
        let append = Mutex::ranked(Rank::Append, ());
        let _at_work = service.lock();
        may_call_out();
        let appending = append.lock();
        assert!(refused(may_call_out));
        let in_store = Apart::begin();
        let called = catch_unwind(may_call_out);
        assert!(called.is_err(), "who called the store holds it still");
        drop(in_store);
        drop(appending);
        may_call_out();
    }

    #[test]
    fn what_another_thread_holds_is_its_own_matter() {
        let index = Mutex::ranked(Rank::Index, ());
        let _held = index.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| may_wait(Rank::Registry));
        });
    }
}
