//! The handle through which one thread at a time loads and stores.
//!
//! An access opens a section, looks its page up in the remembered leaf, does its loads or stores and closes the section: two
//! plain stores, no atomic read-modify-write, nothing shared written. What the fast path does not find goes to
//! [`Core::slow`]: read the mail, look the leaf up in the table, or leave the section and handle the fault.

use super::SpaceInner;
use super::error::{AccessKind, Fault, FaultKind};
use super::fault;
use super::session::Session;
use super::table::{self, Nodes};
use super::translate::{self, Translator};
use crate::reclaim::AllocMode;
use crate::sync::Arc;
use crate::sync::domain::Domain;
use crate::sys::copy::{AtomicScalar, Scalar};
use crate::{Explanation, PAGE_SIZE, PageCount, Space, VirtAddr};

/// Loads and stores of one space by one thread at a time: what a CPU is to an address space.
///
/// Owned and `Send`: make one a thread. Every access returns a value or a [`Fault`], and never raises a signal. A value that
/// crosses a page end is loaded in two parts; it is stored wholly or not at all. Bytes that other accessors write at the same
/// time are seen old or new, aligned words of up to eight bytes never torn.
///
/// Dropping an accessor, also by a panic, leaves nothing behind. An idle accessor delays nobody.
#[derive(Debug)]
pub struct Accessor {
    pub(super) core: Core,
}

/// What accessor and session share.
pub(super) struct Core {
    pub(super) translator: Translator,
    space: Arc<SpaceInner>,
    /// Whether the group counts this accessor.
    attached: bool,
}

/// What an accessor is charged for: its translation cache, its participant and its place in the lists.
const CORE_PAGES: PageCount = PageCount(2);
const _: () = assert!(Translator::SIZE as u64 <= CORE_PAGES.bytes());

/// How an access surrounds itself with a section.
pub(super) trait Sectioned {
    /// Before an access.
    fn enter(translator: &mut Translator);
    /// After an access.
    fn leave(translator: &mut Translator);
    /// A safepoint: in a section before and after.
    fn pass_safepoint(translator: &mut Translator);
}

/// Each access has its own section.
pub(super) enum Single {}

impl Sectioned for Single {
    #[inline(always)]
    fn enter(translator: &mut Translator) {
        translator.sections.enter();
    }

    #[inline(always)]
    fn leave(translator: &mut Translator) {
        translator.sections.leave();
    }

    fn pass_safepoint(_: &mut Translator) {}
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Core")
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let own = self.translator.sections.participant();
        self.space
            .accessors
            .lock()
            .retain(|other| !Arc::ptr_eq(other, own));
        let groups = &self.space.pool.groups;
        if self.attached {
            groups.detach_accessor(self.space.group_id());
        }
        groups.uncharge(self.space.group_id(), CORE_PAGES);
    }
}

impl Core {
    fn new(space: &Arc<SpaceInner>) -> Core {
        let sections = Domain::register(&space.pool.domain);
        // Known to the space before it has cached anything, so that no post can miss it.
        space.accessors.lock().push(sections.participant().clone());
        // A group too small for one more accessor gives limit errors at its accesses, not here.
        let attached = space.pool.groups.attach_accessor(space.group_id()).is_ok();
        let charge = space
            .pool
            .charge(space.group_id(), CORE_PAGES, AllocMode::Must);
        let _group = charge.expect("a charge that must succeed does").commit();
        Core {
            translator: Translator::new(sections),
            space: space.clone(),
            attached,
        }
    }

    /// Does `attempt` in a section; on a miss, has the page and tries again.
    #[inline(always)]
    pub(super) fn access<S: Sectioned, T>(
        &mut self,
        at: VirtAddr,
        access: AccessKind,
        bytes: usize,
        attempt: impl Fn(&Translator) -> Option<T>,
    ) -> Result<T, Fault> {
        S::enter(&mut self.translator);
        match attempt(&self.translator) {
            Some(value) => {
                S::leave(&mut self.translator);
                Ok(value)
            }
            None => self.slow::<S, T>(at, access, bytes, attempt),
        }
    }

    /// A section is open, and is closed (or a session's is open again) at the end.
    #[cold]
    #[inline(never)]
    fn slow<S: Sectioned, T>(
        &mut self,
        at: VirtAddr,
        access: AccessKind,
        bytes: usize,
        attempt: impl Fn(&Translator) -> Option<T>,
    ) -> Result<T, Fault> {
        if self.translator.sections.has_mail() {
            S::pass_safepoint(&mut self.translator);
        }
        loop {
            self.have_leaf(at.0);
            if let Some(value) = attempt(&self.translator) {
                S::leave(&mut self.translator);
                return Ok(value);
            }
            self.translator.sections.leave();
            let end = fault::handle(&self.space, &mut self.translator, at, access, bytes);
            self.translator.sections.enter();
            if let Err(fault) = end {
                S::leave(&mut self.translator);
                return Err(fault);
            }
        }
    }

    /// Reads the mail and looks up the leaf of `at` in the table, if the gate is open. In a section.
    fn have_leaf(&mut self, at: u64) {
        if self.translator.sections.has_mail() {
            self.translator.drain();
        }
        if at >> table::ADDRESS_BITS != 0 {
            return;
        }
        let nodes = Nodes {
            pool: &self.space.pool,
        };
        let tables = self.space.tables.look(&self.translator.sections);
        let found = tables.and_then(|tables| nodes.find(tables.root, at));
        if let Some(leaf) = found {
            self.translator
                .fill(at, nodes.words(leaf.frame), leaf.exclusive);
        }
    }

    #[inline(always)]
    pub(super) fn load<S: Sectioned, T: Scalar>(&mut self, at: VirtAddr) -> Result<T, Fault> {
        if crosses(at, size_of::<T>()) {
            return self.load_across::<S, T>(at);
        }
        self.access::<S, T>(at, AccessKind::Load, size_of::<T>(), |translator| {
            translator.load(at.0)
        })
    }

    #[inline(always)]
    pub(super) fn store<S: Sectioned, T: Scalar>(
        &mut self,
        at: VirtAddr,
        value: T,
    ) -> Result<(), Fault> {
        if crosses(at, size_of::<T>()) {
            return self.store_across::<S, T>(at, value);
        }
        let attempt = |translator: &Translator| translator.store(at.0, value);
        self.access::<S, ()>(at, AccessKind::Store, size_of::<T>(), attempt)
    }

    #[cold]
    fn load_across<S: Sectioned, T: Scalar>(&mut self, at: VirtAddr) -> Result<T, Fault> {
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..size_of::<T>()];
        self.read::<S>(at, bytes)?;
        Ok(translate::from_bytes(bytes))
    }

    /// Both pages have to be valid at once, so that the value is stored wholly or not at all.
    #[cold]
    fn store_across<S: Sectioned, T: Scalar>(
        &mut self,
        at: VirtAddr,
        value: T,
    ) -> Result<(), Fault> {
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..size_of::<T>()];
        translate::to_bytes(value, bytes);
        let second = VirtAddr(super::page_start(at.0).wrapping_add(PAGE_SIZE as u64));
        loop {
            S::enter(&mut self.translator);
            let done = translator_both(&self.translator, at, bytes);
            S::leave(&mut self.translator);
            if done {
                return Ok(());
            }
            for page in [at, second] {
                let valid = |translator: &Translator| {
                    translator
                        .hit(page.0, 1, translate::Need::Write)
                        .map(|_| ())
                };
                self.access::<S, ()>(page, AccessKind::Store, size_of::<T>(), valid)?;
            }
        }
    }

    #[inline(always)]
    pub(super) fn exchange<S: Sectioned, T: AtomicScalar, R>(
        &mut self,
        at: VirtAddr,
        attempt: impl Fn(&Translator) -> Option<R>,
    ) -> Result<R, Fault> {
        if at.0 % size_of::<T>() as u64 != 0 {
            return Err(Fault::new(
                FaultKind::Misaligned,
                at,
                AccessKind::Exchange,
                size_of::<T>(),
            ));
        }
        self.access::<S, R>(at, AccessKind::Exchange, size_of::<T>(), attempt)
    }
}

fn translator_both(translator: &Translator, at: VirtAddr, bytes: &[u8]) -> bool {
    translator.store_both(at.0, bytes).is_some()
}

/// Whether a value of `size` bytes at `at` lies in two pages.
#[inline(always)]
fn crosses(at: VirtAddr, size: usize) -> bool {
    at.page_offset() > PAGE_SIZE - size
}

impl Accessor {
    pub(super) fn new(space: &Arc<SpaceInner>) -> Accessor {
        Accessor {
            core: Core::new(space),
        }
    }

    /// The space this accessor works in.
    pub fn space(&self) -> Space {
        Space(self.core.space.clone())
    }

    /// Keeps one section open over many accesses: faster, by the two stores that each access saves. See [`Session`].
    pub fn session(&mut self) -> Session<'_> {
        Session::new(&mut self.core)
    }

    /// Everything that can be said about a fault; the same as [`Space::explain`].
    pub fn explain(&self, fault: Fault) -> Explanation {
        self.core.space.explain(fault)
    }
}

/// The accesses, for accessors and for sessions.
macro_rules! accesses {
    ($type:ty, $mode:ty) => {
        impl $type {
            /// Loads a value at any alignment.
            ///
            /// # Errors
            /// The [`Fault`] of the first byte that cannot be loaded.
            #[inline]
            pub fn load<T: crate::Scalar>(
                &mut self,
                at: crate::VirtAddr,
            ) -> Result<T, crate::Fault> {
                self.core.load::<$mode, T>(at)
            }

            /// Stores a value at any alignment, wholly or not at all.
            ///
            /// # Errors
            /// The [`Fault`] of the first byte that cannot be stored.
            #[inline]
            pub fn store<T: crate::Scalar>(
                &mut self,
                at: crate::VirtAddr,
                value: T,
            ) -> Result<(), crate::Fault> {
                self.core.store::<$mode, T>(at, value)
            }

            /// Replaces `old` by `new` in one atomic step (sequentially consistent). The inner result is the value before:
            /// `Ok` if it was `old` and is replaced, `Err` if it was another.
            ///
            /// # Errors
            /// A [`Fault`]; [`FaultKind::Misaligned`](crate::FaultKind::Misaligned) unless `at` is a multiple of the size.
            #[inline]
            pub fn compare_exchange<T: crate::AtomicScalar>(
                &mut self,
                at: crate::VirtAddr,
                old: T,
                new: T,
            ) -> Result<Result<T, T>, crate::Fault> {
                let attempt = |translator: &crate::space::translate::Translator| {
                    translator.compare_exchange(at.0, old, new)
                };
                self.core.exchange::<$mode, T, _>(at, attempt)
            }

            /// Replaces the value in one atomic step (sequentially consistent) and returns the one before.
            ///
            /// # Errors
            /// As for [`Self::compare_exchange`].
            #[inline]
            pub fn swap<T: crate::AtomicScalar>(
                &mut self,
                at: crate::VirtAddr,
                new: T,
            ) -> Result<T, crate::Fault> {
                self.core
                    .exchange::<$mode, T, _>(at, |translator| translator.swap(at.0, new))
            }

            /// Adds in one atomic step (sequentially consistent), wrapping, and returns the value before.
            ///
            /// # Errors
            /// As for [`Self::compare_exchange`].
            #[inline]
            pub fn fetch_add<T: crate::AtomicScalar>(
                &mut self,
                at: crate::VirtAddr,
                operand: T,
            ) -> Result<T, crate::Fault> {
                self.core
                    .exchange::<$mode, T, _>(at, |translator| translator.fetch_add(at.0, operand))
            }

            /// Copies bytes out of the space into `buffer`.
            ///
            /// # Errors
            /// A [`Fault`] with the address of the first byte that could not be read; everything before it is in `buffer`.
            #[inline]
            pub fn read(
                &mut self,
                at: crate::VirtAddr,
                buffer: &mut [u8],
            ) -> Result<(), crate::Fault> {
                self.core.read::<$mode>(at, buffer)
            }

            /// Copies bytes into the space.
            ///
            /// # Errors
            /// A [`Fault`] with the address of the first byte that could not be written; everything before it is.
            #[inline]
            pub fn write(&mut self, at: crate::VirtAddr, bytes: &[u8]) -> Result<(), crate::Fault> {
                self.core.write::<$mode>(at, bytes)
            }

            /// Sets `len` bytes to `byte`.
            ///
            /// # Errors
            /// As for [`Self::write`].
            pub fn fill(
                &mut self,
                at: crate::VirtAddr,
                byte: u8,
                len: usize,
            ) -> Result<(), crate::Fault> {
                self.core.fill::<$mode>(at, byte, len)
            }

            /// Copies `len` bytes inside the space. The ranges may overlap, as for memmove.
            ///
            /// # Errors
            /// A [`Fault`] with the address that could not be read or written. What was copied before it stays.
            pub fn copy(
                &mut self,
                to: crate::VirtAddr,
                from: crate::VirtAddr,
                len: usize,
            ) -> Result<(), crate::Fault> {
                self.core.copy::<$mode>(to, from, len)
            }

            /// Compares bytes of the space with `bytes`, in the order of slices.
            ///
            /// # Errors
            /// A [`Fault`] with the address of the first byte that could not be read, if all before it are equal.
            pub fn compare(
                &mut self,
                at: crate::VirtAddr,
                bytes: &[u8],
            ) -> Result<std::cmp::Ordering, crate::Fault> {
                self.core.compare::<$mode>(at, bytes)
            }
        }
    };
}
pub(super) use accesses;

accesses!(Accessor, Single);
