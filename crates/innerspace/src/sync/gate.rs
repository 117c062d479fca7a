//! A lock for a structure over addresses, which readers pass without a shared write. A reader is
//! *inside* an address while it is in a section that found the gate open at that address. A writer
//! closes a range of addresses and waits for a grace period; then no reader is inside the range.
//!
//! - A reader opens a section and asks [`Gate::is_open`]. If the gate is closed at its address, the
//!   reader leaves the section, waits ([`Gate::wait_open`]) and tries again. Inside, the reader may
//!   change single words of that address by compare-exchange, and never sleeps.
//! - A writer waits for its turn ([`Gate::write`]), sets aside the memory that it will need, and
//!   closes a range ([`Writer::close`]). Then it may do anything inside the range except allocate,
//!   do I/O, or sleep on anything that a reader may hold.
//!
//! There is one writer at a time, and so one closed range. Addresses outside the range stay open,
//! and their readers run at the same time as the writer. Both can reach the nodes above the range
//! and a leaf at its edge, for which the structure has rules of its own. The writer's mutex guards
//! a value: the writers' own state.
//!
//! The range is two words. Closing stores `from` first and then `to`; opening stores 0 in `to`. A
//! reader loads `to` and then `from`. `docs/protocols/structural-changes.md` says why that is
//! right.

use std::ops::{Deref, DerefMut, Range};

use super::atomic::{AtomicU64, Ordering};
use super::domain::{Domain, Sections};
use super::{Condvar, Mutex, MutexGuard, Rank};

/// A proof that a section is open. A shared borrow of the proof keeps the section open.
pub(crate) trait OpenSection {
    /// Returns the domain whose grace periods wait for the section, if it is open now.
    fn domain_id(&self) -> Option<u64>;
}

impl OpenSection for Sections {
    #[inline]
    fn domain_id(&self) -> Option<u64> {
        self.is_open().then(|| self.domain().id())
    }
}

#[cfg(not(loom))]
impl OpenSection for super::domain::Reader<'_> {
    #[inline]
    fn domain_id(&self) -> Option<u64> {
        Some(self.domain().id())
    }
}

/// All addresses.
pub(crate) const EVERYWHERE: Range<u64> = 0..u64::MAX;

/// The gate that this module describes.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    /// The domain whose sections may use the gate. It never changes.
    domain_id: u64,
    /// The space whose accessors are the readers.
    owner: u64,
    /// The first address of the closed range. Only the holder of `writer` changes it.
    from: AtomicU64,
    /// The first address after the closed range, or 0 if the whole gate is open. Only the holder of
    /// `writer` changes it.
    to: AtomicU64,
    /// The writers' state. A structural writer holds the mutex from before it closes a range until
    /// after it has opened it again.
    writer: Mutex<T>,
    /// Held while `to` goes back to 0, so that a thread that is about to wait for the gate to open
    /// does not miss it.
    opening: Mutex<()>,
    opened: Condvar,
}

/// The exclusive right to close the gate, and the writers' state.
#[derive(Debug)]
pub(crate) struct Writer<'gate, T> {
    gate: &'gate Gate<T>,
    guard: MutexGuard<'gate, T>,
}

/// A closed range, with no reader inside. Dropping this opens the range.
#[derive(Debug)]
pub(crate) struct Closed<'writer, T> {
    gate: &'writer Gate<T>,
}

impl<T> Gate<T> {
    /// Creates an open gate for the space `owner` and for sections of `domain`.
    pub(crate) fn new(domain: &Domain, owner: u64, state: T) -> Gate<T> {
        Gate {
            domain_id: domain.id(),
            owner,
            from: AtomicU64::new(0),
            to: AtomicU64::new(0),
            writer: Mutex::ranked(Rank::SpaceWriter, state),
            opening: Mutex::new(()),
            opened: Condvar::new(),
        }
    }

    /// Returns whether the gate is open at all of these addresses. An open gate stays open until
    /// the section ends. A caller that also changes the words of neighbouring addresses asks for
    /// those too, because an open gate at one address says nothing about the next.
    ///
    /// # Panics
    /// If `section` is not open, or belongs to another domain: the grace period of `close` would
    /// not wait for it.
    #[inline]
    pub(crate) fn is_open(&self, section: &impl OpenSection, range: &Range<u64>) -> bool {
        let is_inside = section.domain_id() == Some(self.domain_id);
        assert!(is_inside, "I6: not in a section");
        !self.is_closed_in(range)
    }

    /// Returns whether the gate is closed at one of these addresses. The barrier of the section's
    /// `enter` orders these loads against `close`. Acquire: pairs with the release in the drop of
    /// [`Closed`], so that a reader that finds the gate open again sees what the last writer did.
    /// Acquire also keeps the order of the two loads; see the module's documentation.
    #[inline]
    fn is_closed_in(&self, range: &Range<u64>) -> bool {
        let to = self.to.load(Ordering::Acquire);
        range.start < to && self.from.load(Ordering::Acquire) < range.end
    }

    /// Sleeps until the gate is open at this address. The caller is outside every section.
    pub(crate) fn wait_open(&self, at: u64) {
        let mut guard = self.opening.lock();
        while self.is_closed_in(&(at..at.saturating_add(1))) {
            guard = self.opened.wait(guard);
        }
    }

    /// Makes the caller the only structural writer. Sleeps while there is another.
    pub(crate) fn write(&self) -> Writer<'_, T> {
        Writer {
            gate: self,
            guard: self.writer.lock(),
        }
    }

    /// Makes the caller the structural writer if there is none. Never waits.
    pub(crate) fn try_write(&self) -> Option<Writer<'_, T>> {
        let guard = self.writer.try_lock()?;
        Some(Writer { gate: self, guard })
    }

    /// Makes the caller the structural writer of a gate that no other thread has seen yet, so that
    /// the lock order does not matter.
    ///
    /// # Panics
    /// If there is a writer already.
    pub(crate) fn write_new(&self) -> Writer<'_, T> {
        Writer {
            gate: self,
            guard: self.writer.try_lock().expect("no other thread has seen it"),
        }
    }

    /// Returns the writers' state of a gate that no other thread can reach.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.writer.get_mut()
    }
}

impl<T> Writer<'_, T> {
    /// Closes `range`, calls `post` to tell the readers what to forget, and waits until no reader
    /// is inside.
    ///
    /// # Panics
    /// If the gate was created for another domain.
    pub(crate) fn close(
        &self,
        domain: &Domain,
        range: &Range<u64>,
        post: impl FnOnce(),
    ) -> Closed<'_, T> {
        assert_eq!(
            domain.id(),
            self.gate.domain_id,
            "a gate belongs to one domain"
        );
        debug_assert!(range.start < range.end, "a range that closes nothing");
        self.gate.from.store(range.start, Ordering::SeqCst);
        self.gate.to.store(range.end, Ordering::SeqCst);
        post();
        domain.synchronize_with(|owner| owner == self.gate.owner);
        Closed { gate: self.gate }
    }
}

impl<T> Deref for Writer<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Writer<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for Closed<'_, T> {
    fn drop(&mut self) {
        let guard = self.gate.opening.lock();
        // Release: pairs with the loads in `is_closed_in`.
        self.gate.to.store(0, Ordering::Release);
        drop(guard);
        self.gate.opened.notify_all();
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::{Arc, thread};

    #[test]
    fn readers_and_the_writer_exclude_each_other() {
        let domain = Domain::new();
        let gate = Arc::new(Gate::new(&domain, 1, ()));
        let pair = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let reader = {
            let (domain, gate, pair) = (domain.clone(), gate.clone(), pair.clone());
            thread::spawn(move || {
                let mut seen = 0;
                while seen < 200 {
                    let section = domain.reader();
                    if !gate.is_open(&section, &(7..8)) {
                        drop(section);
                        gate.wait_open(7);
                        continue;
                    }
                    let a = pair[0].load(Ordering::Relaxed);
                    let b = pair[1].load(Ordering::Relaxed);
                    assert_eq!(a, b, "a reader saw half a change");
                    seen = a;
                }
            })
        };
        for _ in 0..200 {
            let writer = gate.write();
            let _closed = writer.close(&domain, &(7..8), || ());
            pair[0].fetch_add(1, Ordering::Relaxed);
            pair[1].fetch_add(1, Ordering::Relaxed);
        }
        reader.join().unwrap();
    }

    #[test]
    fn the_gate_is_closed_in_the_range_alone() {
        let domain = Domain::new();
        let gate = Gate::new(&domain, 1, ());
        let writer = gate.write();
        let closed = writer.close(&domain, &(10..20), || ());
        let section = domain.reader();
        let open = |range| gate.is_open(&section, &range);
        assert_eq!(
            [9, 10, 19, 20].map(|at| open(at..at + 1)),
            [true, false, false, true]
        );
        assert!(!open(EVERYWHERE));
        let ranges = [0..10, 0..11, 12..13, 19..30, 20..30];
        assert_eq!(ranges.map(open), [true, false, false, false, true]);
        drop(closed);
        assert!(open(10..11) && open(EVERYWHERE));
    }

    #[test]
    #[should_panic(expected = "not in a section")]
    fn looking_outside_a_section_panics() {
        let domain = Domain::new();
        let gate = Gate::new(&domain, 1, ());
        gate.is_open(&Domain::register(&domain), &(0..1));
    }
}
