//! Slots that one thread changes with plain loads and stores, and that other threads may still
//! empty: stocks of charges, magazines of frames.
//!
//! The owner sets its busy flag and then checks whether a drain is under way; a drainer announces
//! itself and then checks the busy flag. So the two are never in a slot together, and whichever
//! comes second sees what the first did. The asymmetric barrier (`sys::barrier`) makes the owner's
//! side free. The argument is in `docs/protocols/per-thread.md`.
//!
//! An owner stays in its slot only briefly, because a drainer waits for it. While in its slot, the
//! owner must never wait for anything that a drainer holds when its drain begins.
//!
//! *The owner* is the thread with the slot's number (`stats::thread_number`). No two living threads
//! have the same number. A number below [`OWNERS`] passes from one thread to the next by a release
//! and an acquire, with everything that the earlier thread left in the slot. Threads beyond
//! [`OWNERS`] share a few more slots, each with a mutex. A drainer waits for the holder of such a
//! mutex as for an owner.

use std::ops::Deref;

use super::atomic::{AtomicU32, Ordering};
use super::{Mutex, Rank, thread};
use crate::sys::barrier::{self, BarrierMode};

/// The number of threads that have slots of their own. It is small under the checkers, because each
/// read is expensive there, and because the memories of models are so small that many slots would
/// each get no room.
pub(crate) const OWNERS: usize = if cfg!(loom) {
    2
} else if cfg!(any(miri, shuttle)) {
    4
} else {
    32
};

/// The number of slots that all further threads share.
pub(crate) const SHARED: usize = if cfg!(loom) { 1 } else { 4 };

/// The slots of all threads.
#[derive(Debug)]
pub(crate) struct ThreadSlots<T> {
    drains: Drains,
    owned: Box<[PerThread<T>]>,
    shared: Box<[Shared<T>]>,
}

/// A slot that threads share, on cache lines of its own.
#[repr(align(128))]
#[derive(Debug)]
struct Shared<T> {
    lock: Mutex<()>,
    place: T,
}

impl<T> ThreadSlots<T> {
    /// Creates the slots. `rank` is the place in the lock order of the shared slots' mutexes.
    pub(crate) fn new(rank: Rank, make: impl Fn() -> T) -> ThreadSlots<T> {
        let shared = || Shared {
            lock: Mutex::ranked(rank, ()),
            place: make(),
        };
        ThreadSlots {
            drains: Drains::new(),
            owned: (0..OWNERS).map(|_| PerThread::new(make())).collect(),
            shared: (0..SHARED).map(|_| shared()).collect(),
        }
    }

    /// Runs `work` in the slot of the calling thread, whose number is `number`. Returns `None`
    /// while slots are being drained.
    #[inline(always)]
    pub(crate) fn with<R>(&self, number: usize, work: impl FnOnce(&T) -> R) -> Option<R> {
        match self.owned.get(number) {
            Some(own) => own.enter(&self.drains).map(|place| work(&place)),
            None => self.with_shared(number, work),
        }
    }

    #[cold]
    fn with_shared<R>(&self, number: usize, work: impl FnOnce(&T) -> R) -> Option<R> {
        let shared = &self.shared[(number - OWNERS) % SHARED];
        let _alone = shared.lock.lock();
        // The mutex orders this load: a thread that locks it after a drainer sees the drain.
        // Acquire: pairs with the end of a drain.
        let is_ours = self.drains.count.load(Ordering::Acquire) == 0;
        is_ours.then(|| work(&shared.place))
    }

    /// Enters the slot of the calling thread, unless it is shared or slots are being drained.
    #[inline(always)]
    pub(crate) fn enter_own(&self, number: usize) -> Option<Entered<'_, T>> {
        self.owned.get(number)?.enter(&self.drains)
    }

    /// Returns the value of the slot of the thread with this number; see [`PerThread::look`].
    #[inline(always)]
    pub(crate) fn look(&self, number: usize) -> &T {
        match self.owned.get(number) {
            Some(own) => own.look(),
            None => &self.shared[(number - OWNERS) % SHARED].place,
        }
    }

    /// Returns the values of all slots, the shared ones last, for drainers and for readers of
    /// statistics.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        let shared = self.shared.iter().map(|shared| &shared.place);
        self.owned.iter().map(PerThread::look).chain(shared)
    }

    /// Returns the count of drains under way.
    #[inline(always)]
    pub(crate) fn drains(&self) -> &Drains {
        &self.drains
    }

    /// Keeps every thread out of its slot until the result is dropped. The caller must hold nothing
    /// for which a thread in its slot may wait.
    pub(crate) fn drain(&self) -> Draining<'_> {
        let draining = self.drains.begin(&self.owned);
        // A thread that entered a shared slot earlier has left it once the slot's mutex is free.
        (self.shared.iter()).for_each(|shared| drop(shared.lock.lock()));
        draining
    }
}

/// The slot of one thread, on two cache lines of its own, because the processor prefetches the
/// adjacent line too.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct PerThread<T> {
    /// Whether the owner is in the slot. Only the owner writes it.
    busy: AtomicU32,
    place: T,
}

impl<T> PerThread<T> {
    pub(crate) fn new(place: T) -> PerThread<T> {
        PerThread {
            busy: AtomicU32::new(0),
            place,
        }
    }

    /// Enters the slot until the result is dropped. Returns `None` while a drain is under way. Only
    /// the owner calls this.
    #[inline(always)]
    pub(crate) fn enter(&self, drains: &Drains) -> Option<Entered<'_, T>> {
        self.busy.store(1, Ordering::Relaxed);
        let place = Entered(self);
        drains.mode.light();
        // Acquire: pairs with the end of a drain.
        (drains.count.load(Ordering::Acquire) == 0).then_some(place)
    }

    /// Returns the slot's value, for drainers and for readers of statistics. The latter may see it
    /// change.
    #[inline(always)]
    pub(crate) fn look(&self) -> &T {
        &self.place
    }
}

/// The owner's presence in its slot; see [`PerThread::enter`].
pub(crate) struct Entered<'a, T>(&'a PerThread<T>);

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0.place
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the load in `Drains::begin`.
        self.0.busy.store(0, Ordering::Release);
    }
}

/// The number of drains under way. Every owner reads it whenever it enters its slot, so it has
/// cache lines of its own.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Drains {
    count: AtomicU32,
    mode: BarrierMode,
}

impl Drains {
    pub(crate) fn new() -> Drains {
        Drains {
            count: AtomicU32::new(0),
            mode: barrier::mode(),
        }
    }

    /// Returns whether a drain is under way.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Performs the owner's side of the barrier, for other announcements that come before a check
    /// of [`Drains::any`].
    #[inline(always)]
    pub(crate) fn light(&self) {
        self.mode.light();
    }

    /// Keeps every owner out of its slot until the result is dropped. The caller must hold nothing
    /// for which an owner in its slot may wait.
    pub(crate) fn begin<'a, T>(&'a self, owned: &[PerThread<T>]) -> Draining<'a> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let draining = Draining(self);
        self.mode.heavy();
        for one in owned {
            // Acquire: pairs with the release in the drop of `Entered`.
            while one.busy.load(Ordering::Acquire) != 0 {
                thread::yield_now();
            }
        }
        draining
    }
}

/// A drain under way; see [`Drains::begin`].
#[derive(Debug)]
#[must_use = "the owners come back when this is dropped"]
pub(crate) struct Draining<'a>(&'a Drains);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        // Release: pairs with the load in `PerThread::enter`.
        self.0.count.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::model::Builder;

    use super::*;
    use crate::sync::{Arc, Mutex};

    /// A value changed in place without an atomic. Loom reports two accesses that are not ordered.
    struct Plain(UnsafeCell<u32>);

    // SAFETY: loom checks that no two threads use the cell at the same time; a race fails the
    // model.
    unsafe impl Sync for Plain {}
    // SAFETY: as above.
    unsafe impl Send for Plain {}

    impl Plain {
        fn add(&self, more: u32) {
            // SAFETY: see `Sync`.
            self.0.with_mut(|value| unsafe { *value += more });
        }

        fn take(&self) -> u32 {
            // SAFETY: see `Sync`.
            self.0
                .with_mut(|value| unsafe { std::mem::take(&mut *value) })
        }
    }

    struct World {
        drains: Drains,
        owned: [PerThread<Plain>; 1],
        /// The pages that were taken out, and those that the owner put here itself while it was
        /// kept out of its slot.
        out: Mutex<u32>,
    }

    impl World {
        fn add(&self) {
            match self.owned[0].enter(&self.drains) {
                Some(place) => place.add(1),
                None => *self.out.lock() += 1,
            }
        }

        fn drain(&self) {
            let draining = self.drains.begin(&self.owned);
            let mut out = self.out.lock(); // there may be two drainers
            *out += self.owned[0].look().take();
            drop(out);
            drop(draining);
        }
    }

    /// Runs an owner concurrently with a drainer. Each page must still be in the slot, or have been
    /// taken out once.
    fn owner_beside_drainer(owner: impl Fn(&World) + Send + Sync + 'static) {
        let mut builder = Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let world = Arc::new(World {
                drains: Drains::new(),
                owned: [PerThread::new(Plain(UnsafeCell::new(0)))],
                out: Mutex::new(0),
            });
            let theirs = world.clone();
            let drainer = thread::spawn(move || theirs.drain());
            owner(&world);
            drainer.join().unwrap();
            let left = world.owned[0].look().take();
            assert_eq!(*world.out.lock() + left, 2);
        });
    }

    #[test]
    fn an_owner_and_a_drainer_are_never_both_there() {
        owner_beside_drainer(|world| {
            world.add();
            world.add();
        });
    }

    #[test]
    fn an_owner_that_drains_as_well_comes_back_when_both_drains_are_over() {
        owner_beside_drainer(|world| {
            world.add();
            world.drain();
            world.add();
        });
    }
}
