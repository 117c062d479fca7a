//! A lock for structure that readers pass with no shared write: they are *inside* while in a section that saw the gate
//! open; a writer closes the gate, waits a grace period, and then has the structure to itself.
//!
//! | who | how | may |
//! |---|---|---|
//! | reader | open a section, [`Gated::look`]: a `&T`, or closed: leave the section, [`Gated::wait_open`], retry | read; change single words by compare-exchange; never sleep |
//! | writer | [`Gated::write`] (sleeps), set aside what will be needed, [`Writer::close`]: a [`Closed`], which is a `&mut T` | everything, but not sleep on what a reader may hold, allocate, or do I/O |
//!
//! Why it is sound: a `&T` was made in a section that saw the gate open, and lives no longer than the borrow of that
//! section. `close` stores "closed" and then synchronizes, so it returns only when every such section is left
//! (`sync::domain`: the Dekker pair, with `closed` as the word). A section that opens later sees "closed".

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::domain::{Domain, Sections};
use super::{Condvar, Mutex, MutexGuard};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// Something that can show an open section. A shared borrow of it keeps the section open.
pub(crate) trait OpenSection {
    /// Whether a section is open now.
    fn is_open(&self) -> bool;
    /// The domain whose grace periods wait for the section.
    fn domain_id(&self) -> u64;
}

impl OpenSection for Sections {
    fn is_open(&self) -> bool {
        Sections::is_open(self)
    }

    fn domain_id(&self) -> u64 {
        self.domain().id()
    }
}

#[cfg(not(loom))]
impl OpenSection for super::domain::Reader<'_> {
    fn is_open(&self) -> bool {
        true
    }

    fn domain_id(&self) -> u64 {
        self.domain().id()
    }
}

/// A value behind its gate; see the module.
#[derive(Debug)]
pub(crate) struct Gated<T> {
    /// The domain whose sections may look; set once.
    domain_id: u64,
    closed: AtomicU32,
    /// How often the gate was closed; changed under `writer`.
    closings: AtomicU64,
    /// Held by a structural writer from before it closes until after it has opened.
    writer: Mutex<()>,
    /// For those who wait for the gate to open; guards the change of `closed` back to 0.
    opening: Mutex<()>,
    opened: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: `look` gives `&T` to many threads, `close` gives `&mut T` to one; the module's top argues that the two never
// overlap, and `writer` that there is one `Closed` at a time.
unsafe impl<T: Send + Sync> Sync for Gated<T> {}

/// The right to be the only one who closes the gate.
#[derive(Debug)]
pub(crate) struct Writer<'gate, T> {
    gated: &'gate Gated<T>,
    _guard: MutexGuard<'gate, ()>,
}

/// Nobody is inside: the value belongs to the holder. The gate opens when this is dropped.
#[derive(Debug)]
pub(crate) struct Closed<'writer, T> {
    gated: &'writer Gated<T>,
}

impl<T> Gated<T> {
    /// A value behind an open gate, for sections of `domain`.
    pub(crate) fn new(domain: &Domain, value: T) -> Gated<T> {
        Gated {
            domain_id: domain.id(),
            closed: AtomicU32::new(0),
            closings: AtomicU64::new(0),
            writer: Mutex::new(()),
            opening: Mutex::new(()),
            opened: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, if the gate is open; the section stays open as long as the result lives.
    ///
    /// # Panics
    /// If `section` is not open, or is one of another domain: the grace period of `close` would not wait for it.
    #[inline]
    pub(crate) fn look<'s>(&'s self, section: &'s impl OpenSection) -> Option<&'s T> {
        assert!(
            section.is_open() && section.domain_id() == self.domain_id,
            "I6: not in a section"
        );
        // The barrier of the section's `enter` orders this load against `close`. Acquire: what the last writer did is
        // visible to who finds the gate open again.
        if self.closed.load(Ordering::Acquire) != 0 {
            return None;
        }
        // SAFETY: a `Closed` (the only source of `&mut T`) comes to life only after a grace period that waits for this
        // section, and the section cannot end while `section` is borrowed.
        Some(unsafe { &*self.value.get() })
    }

    /// Sleeps until the gate is open. Outside any section.
    pub(crate) fn wait_open(&self) {
        let mut guard = self.opening.lock();
        while self.closed.load(Ordering::Acquire) != 0 {
            guard = self.opened.wait(guard);
        }
    }

    /// Becomes the one structural writer; sleeps while there is another.
    pub(crate) fn write(&self) -> Writer<'_, T> {
        Writer {
            gated: self,
            _guard: self.writer.lock(),
        }
    }

    /// The value of a gate that nobody else can reach.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T> Writer<'_, T> {
    /// The value as it is; it cannot change while this writer holds the right to change it, and readers may be inside.
    pub(crate) fn peek(&self) -> &T {
        // SAFETY: only this writer could make a `&mut T`, by `close`, which borrows it mutably.
        unsafe { &*self.gated.value.get() }
    }

    /// Closes the gate, lets `post` tell the readers what to forget, and waits until nobody is inside.
    pub(crate) fn close(&mut self, domain: &Domain, post: impl FnOnce()) -> Closed<'_, T> {
        assert_eq!(
            domain.id(),
            self.gated.domain_id,
            "a gate belongs to one domain"
        );
        // Relaxed: only the holder of `writer` counts and reads.
        self.gated.closings.fetch_add(1, Ordering::Relaxed);
        self.gated.closed.store(1, Ordering::SeqCst);
        post();
        domain.synchronize();
        Closed { gated: self.gated }
    }
}

impl<T> Closed<'_, T> {
    /// How often the gate was closed, this time included: equal numbers mean that nobody else has had the value.
    pub(crate) fn closings(&self) -> u64 {
        self.gated.closings.load(Ordering::Relaxed)
    }
}

impl<T> Deref for Closed<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: nobody is inside, and `self` is the only `Closed`.
        unsafe { &*self.gated.value.get() }
    }
}

impl<T> DerefMut for Closed<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { &mut *self.gated.value.get() }
    }
}

impl<T> Drop for Closed<'_, T> {
    fn drop(&mut self) {
        let guard = self.gated.opening.lock();
        // Release: pairs with `look` and `wait_open`.
        self.gated.closed.store(0, Ordering::Release);
        drop(guard);
        self.gated.opened.notify_all();
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::{Arc, thread};

    #[test]
    fn readers_and_the_writer_exclude_each_other() {
        let domain = Domain::new();
        let gated = Arc::new(Gated::new(&domain, (0u64, 0u64)));
        let reader = {
            let (domain, gated) = (domain.clone(), gated.clone());
            thread::spawn(move || {
                let mut seen = 0;
                while seen < 200 {
                    let section = domain.reader();
                    let Some(&(a, b)) = gated.look(&section) else {
                        drop(section);
                        gated.wait_open();
                        continue;
                    };
                    assert_eq!(a, b, "a reader saw half a change");
                    seen = a;
                }
            })
        };
        for _ in 0..200 {
            let mut writer = gated.write();
            let mut closed = writer.close(&domain, || ());
            closed.0 += 1;
            closed.1 += 1;
        }
        reader.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "not in a section")]
    fn looking_outside_a_section_panics() {
        let domain = Domain::new();
        let gated = Gated::new(&domain, 0);
        gated.look(&Domain::register(&domain));
    }
}
