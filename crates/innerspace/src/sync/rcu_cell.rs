//! A value that writers replace as a whole, and that readers use without a lock or a shared write.
//!
//! A reader in a section gets a `&T`; a writer swaps the pointer. The writer gets the old value as
//! a [`Replaced`], which frees it after a grace period that began after the swap. If no such grace
//! period has passed meanwhile, `Replaced` waits for one of its own. Until its section ends, a
//! reader therefore sees the whole of the old value or the whole of the new one.
//!
//! Orderings: the swap releases the new value to the reader's acquiring load. The old value is
//! freed after [`Domain::has_passed`] has acquired the end of a grace period. That grace period
//! acquired the end of every section that could have loaded the old pointer (the Dekker pair of
//! `sync::domain`, with the pointer as the word).

use std::marker::PhantomData;

use super::Arc;
use super::atomic::{AtomicPtr, Ordering};
use super::domain::Domain;
use super::gate::OpenSection;

/// A cell that owns its current value.
#[derive(Debug)]
pub(crate) struct RcuCell<T> {
    /// The current value, from `Box::into_raw`. Only `publish` changes the pointer.
    current: AtomicPtr<T>,
    domain_id: u64,
    _owns: PhantomData<T>,
}

// SAFETY: `read` gives `&T` to many threads, and a thread other than the one that created the `T`
// may drop it.
unsafe impl<T: Send + Sync> Sync for RcuCell<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for RcuCell<T> {}

/// A value that was replaced. Dropping it waits for a grace period, unless one has begun and ended
/// since. It must therefore be dropped outside every section, with no lock held that a section may
/// take.
#[derive(Debug)]
pub(crate) struct Replaced<T> {
    old: *mut T,
    domain: Arc<Domain>,
    /// The number of grace periods that had begun when the value was replaced.
    begun: u64,
    _owns: PhantomData<T>,
}

// SAFETY: a `Replaced` holds a `T` that any thread may drop.
unsafe impl<T: Send + Sync> Send for Replaced<T> {}

impl<T> RcuCell<T> {
    /// Creates a cell with its first value, for sections of `domain`.
    pub(crate) fn new(domain: &Domain, value: T) -> RcuCell<T> {
        RcuCell {
            current: AtomicPtr::new(Box::into_raw(Box::new(value))),
            domain_id: domain.id(),
            _owns: PhantomData,
        }
    }

    /// Returns the current value. The section stays open as long as the result lives.
    ///
    /// # Panics
    /// If `section` is not open, or belongs to another domain.
    #[inline]
    pub(crate) fn read<'s>(&'s self, section: &'s impl OpenSection) -> &'s T {
        let is_inside = section.domain_id() == Some(self.domain_id);
        assert!(is_inside, "I6: not in a section");
        super::interleave();
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: `publish` passes the old pointer to `Replaced`, which frees it only after a grace
        // period that began after the swap. The section was open when the pointer was loaded, and
        // cannot end while it is borrowed.
        unsafe { &*current }
    }

    /// Makes `value` the current one. The caller drops the replaced value at a point where it can
    /// wait.
    ///
    /// # Panics
    /// If the cell was created for another domain.
    pub(crate) fn publish(&self, domain: &Arc<Domain>, value: T) -> Replaced<T> {
        assert_eq!(
            domain.id(),
            self.domain_id,
            "a value is published in one domain"
        );
        let new = Box::into_raw(Box::new(value));
        // SeqCst: the swap comes before the count of grace periods is read, so a grace period that
        // is counted later begins after the swap.
        let old = self.current.swap(new, Ordering::SeqCst);
        super::interleave();
        Replaced {
            old,
            begun: domain.begun(),
            domain: domain.clone(),
            _owns: PhantomData,
        }
    }
}

impl<T> Drop for RcuCell<T> {
    fn drop(&mut self) {
        // Relaxed: no other thread can reach the cell, and this one has synchronised with those
        // that could.
        let current = self.current.load(Ordering::Relaxed);
        // SAFETY: readers borrow the cell, so `&mut self` proves that none is left. The pointer
        // owns the box.
        drop(unsafe { Box::from_raw(current) });
    }
}

impl<T> Drop for Replaced<T> {
    fn drop(&mut self) {
        if !self.domain.has_passed(self.begun) {
            // No session holds a value of a cell, so none is waited for.
            self.domain.synchronize_with(|_| false);
        }
        // SAFETY: since the swap, no thread can load the pointer. A grace period that began after
        // the swap is over, so every section that had loaded the pointer has ended. This is the
        // only `Replaced` with the pointer.
        drop(unsafe { Box::from_raw(self.old) });
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicU64;
    use crate::sync::thread;

    /// A value that counts its drops.
    struct Counted(Arc<AtomicU64>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_is_replaced_is_dropped_once_and_after_a_grace_period() {
        let domain = Domain::new();
        let drops = Arc::new(AtomicU64::new(0));
        let published = RcuCell::new(&domain, Counted(drops.clone()));
        let replaced = published.publish(&domain, Counted(drops.clone()));
        assert_eq!((drops.load(Ordering::Relaxed), domain.begun()), (0, 0));
        drop(replaced);
        assert_eq!((drops.load(Ordering::Relaxed), domain.begun()), (1, 1));
        let replaced = published.publish(&domain, Counted(drops.clone()));
        domain.synchronize();
        drop(replaced); // needs no grace period of its own
        assert_eq!((drops.load(Ordering::Relaxed), domain.begun()), (2, 2));
        drop(published);
        assert_eq!(drops.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn readers_see_whole_values_while_they_are_replaced() {
        let domain = Domain::new();
        let published = Arc::new(RcuCell::new(&domain, vec![0u64; 100]));
        let reader = {
            let (domain, published) = (domain.clone(), published.clone());
            thread::spawn(move || {
                let mut seen = 0;
                while seen < 300 {
                    let section = domain.reader();
                    let value = published.read(&section);
                    assert!(value.iter().all(|word| *word == value[0]));
                    assert!(value[0] >= seen);
                    seen = value[0];
                }
            })
        };
        for round in 1..=300 {
            drop(published.publish(&domain, vec![round; 100]));
        }
        reader.join().unwrap();
    }
}

/// Loom models of the pointer and the grace period, with one reader and one writer.
#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sys::barrier::BarrierMode;
    use loom::cell::UnsafeCell;
    use loom::thread;

    /// Two words that loom watches. They are equal while the pair lives, and differ once it is
    /// dropped.
    struct Pair(UnsafeCell<(u64, u64)>);
    // SAFETY: loom itself checks that no two threads use the cell at the same time; a race fails
    // the model.
    unsafe impl Sync for Pair {}
    // SAFETY: as above.
    unsafe impl Send for Pair {}

    impl Drop for Pair {
        fn drop(&mut self) {
            // SAFETY: see `Sync`.
            self.0.with_mut(|pair| unsafe { *pair = (7, 8) });
        }
    }

    fn pair(value: u64) -> Pair {
        Pair(UnsafeCell::new((value, value)))
    }

    // spec: V10
    #[test]
    fn v10_a_reader_sees_the_old_or_the_new_value_and_never_a_freed_one() {
        for mode in [BarrierMode::Membarrier, BarrierMode::Fences] {
            loom::model(move || {
                let domain = Domain::with_mode(mode);
                let published = Arc::new(RcuCell::new(&domain, pair(1)));
                let mut sections = Domain::register(&domain);
                let reader = {
                    let published = published.clone();
                    thread::spawn(move || {
                        let mut last = 0;
                        for _ in 0..2 {
                            sections.enter();
                            let now = published.read(&sections);
                            // SAFETY: see `Pair`.
                            let (a, b) = now.0.with(|pair| unsafe { *pair });
                            assert!(a == b && a >= last && a <= 2, "{a} {b} after {last}");
                            last = a;
                            sections.leave();
                        }
                    })
                };
                drop(published.publish(&domain, pair(2)));
                reader.join().unwrap();
            });
        }
    }
}
