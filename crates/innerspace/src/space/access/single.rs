//! One access, with the state that accessors and sessions share.
//!
//! An access opens a section, looks its page up in the remembered leaf, does its loads or stores
//! and closes the section. The section costs two plain stores, and no atomic read-modify-write;
//! nothing shared is written. If the fast path does not find the page, or the access is at the
//! page's beginning, [`Core::look_up`] continues. For a hit at a page's beginning, it may prefetch
//! the next page, and sometimes checks whether the leaf can be coalesced. For a missing page it
//! first tries the short ways, which install a new page or the zero frame, or give a present page
//! the missing validity, in one step in the section itself (`fault::anonymous`, `fault::zero`).
//! Then it reads the mail and looks the leaf up in the table. If that does not find the page
//! either, it leaves the section and handles the fault.

use std::hint::cold_path;
use std::marker::PhantomData;

use super::what::What;
use crate::cache::Wait;
use crate::exec::reentry::is_in_callback;
use crate::group::LimitError;
use crate::reclaim::AllocMode;
use crate::space::core::address::crosses;
use crate::space::core::fault::{AccessKind, Fault, FaultKind};
use crate::space::core::space::SpaceInner;
use crate::space::fault::driver::{self, Stored};
use crate::space::table::{self};
use crate::space::tlb::page;
use crate::space::tlb::page::Page;
use crate::space::tlb::translator::Translator;
use crate::space::vma::cache::VmaCache;
use crate::space::vma::device::Transfer;
use crate::sync::Arc;
use crate::sync::members::Ticket;
use crate::sys::copy::Scalar;
use crate::{PageCount, VirtAddr};

/// The state that an accessor shares with its session.
pub(crate) struct Core {
    pub(crate) translator: Translator,
    pub(crate) space: Arc<SpaceInner>,
    /// The cache of the mappings that were found last.
    pub(crate) vmas: VmaCache,
    /// The accessor's place in the space's list of accessors.
    ticket: Ticket,
    /// The fault of the last access that failed.
    fault: Fault,
}

/// The pages that an accessor is charged for: its translation cache, its participant and its place
/// in the lists.
const CORE_PAGES: PageCount = PageCount(2);
const _: () = assert!(Translator::SIZE as u64 <= CORE_PAGES.bytes());

/// The mode of an access: whether a session has opened its section, and whether the access may
/// wait, outside the section, for a page that it misses.
pub(crate) trait Sectioned {
    /// Whether the access is one of a session, which keeps its section open.
    const IN_SESSION: bool;
    /// Whether the access may wait. A hit does not depend on it.
    const WAIT: Wait;
}

/// The mode of an access that has its own section.
pub(crate) enum Single<const WAITS: bool = true> {}

impl<const WAITS: bool> Sectioned for Single<WAITS> {
    const IN_SESSION: bool = false;
    const WAIT: Wait = Wait::if_may(WAITS);
}

/// A part of an access that may take a lock, or call a store or a device. If there is mail, a
/// session passes a safepoint before it. Afterwards the session's section is open again, even if a
/// panic has closed it: the part ends when this value is dropped, because such a call may panic,
/// and a program that catches the panic may go on with its session.
pub(crate) struct Paused<'core, S: Sectioned> {
    pub(crate) core: &'core mut Core,
    mode: PhantomData<S>,
}

impl<'core, S: Sectioned> Paused<'core, S> {
    #[inline]
    pub(crate) fn new(core: &'core mut Core) -> Paused<'core, S> {
        if S::IN_SESSION {
            let sections = &mut core.translator.sections;
            sections.end_session();
            if sections.has_mail() {
                // A safepoint: another thread is waiting, or this thread has waited since the last
                // access and left the section to do so.
                sections.leave();
                sections.enter();
            } else {
                sections.widen();
            }
        }
        let mode = PhantomData;
        Paused { core, mode }
    }
}

impl<S: Sectioned> Drop for Paused<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if S::IN_SESSION {
            let sections = &mut self.core.translator.sections;
            if !sections.is_open() {
                // A panic came out of a fault. The fault may have read the mail and found the gate
                // closed, so the next access must check the gate again.
                sections.participant().request_safepoint();
                sections.enter();
            }
            sections.begin_session();
            sections.narrow();
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Core")
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.space.pool.foreign_maker().is_some() {
            return;
        }
        let own = self.space.accessors.lock().leave(self.ticket);
        drop(own);
        self.space.sequence.forget_cache(&self.vmas);
        let groups = &self.space.pool.groups;
        groups.detach_accessor(self.space.group_id());
        groups.uncharge(self.space.group_id(), CORE_PAGES);
    }
}

impl Core {
    /// Creates an accessor of the space, and charges the space's group for it in `mode`.
    ///
    /// # Errors
    /// The group has no room for it.
    pub(crate) fn new(space: &Arc<SpaceInner>, mode: AllocMode) -> Result<Core, LimitError> {
        let groups = &space.pool.groups;
        let charge = space.pool.charge(space.group_id(), CORE_PAGES, mode)?;
        let translator = Translator::new(&space.pool.domain, space.id);
        // The accessor joins the list before it has cached anything, so it misses no post.
        let own = translator.sections.participant().clone();
        let ticket = space.accessors.lock().join(own);
        groups.attach_accessor(charge.commit());
        Ok(Core {
            translator,
            vmas: VmaCache::new(&space.sequence),
            space: space.clone(),
            ticket,
            fault: Fault::new(FaultKind::NotMapped, VirtAddr(0), AccessKind::Load, 0),
        })
    }

    /// Opens the section of an access, unless its session has done so.
    #[inline(always)]
    pub(super) fn enter<S: Sectioned>(&mut self) {
        if !S::IN_SESSION {
            self.translator.sections.enter();
        }
    }

    /// Closes the section of an access, unless it is its session's.
    #[inline(always)]
    pub(super) fn leave<S: Sectioned>(&mut self) {
        if !S::IN_SESSION {
            self.translator.sections.leave();
        }
    }

    /// Calls `act` with the bytes at `at`, in a section; on a miss, brings their page in first.
    /// `what` says what to look up and what to report.
    #[inline(always)]
    pub(crate) fn access<S: Sectioned, T>(
        &mut self,
        at: VirtAddr,
        what: What,
        act: impl FnOnce(Page) -> T,
    ) -> Result<T, Fault> {
        self.access_before::<S, T>(at, what, None, act)
    }

    /// Does the same as [`Core::access`], for an access that continues at `next`. If both pages are
    /// there, the bytes at `next` are prefetched: the processor's own prefetching mostly stops at
    /// the end of a page (`copy::prefetch`).
    #[inline(always)]
    pub(crate) fn access_before<S: Sectioned, T>(
        &mut self,
        at: VirtAddr,
        what: What,
        next: Option<VirtAddr>,
        act: impl FnOnce(Page) -> T,
    ) -> Result<T, Fault> {
        self.enter::<S>();
        if let Some(page) = self.translator.hit(at.0, what.size(), what.access) {
            if let Some(next) = next {
                self.translator.prefetch(next.0, what.access);
            }
            let done = act(page);
            self.leave::<S>();
            return Ok(done);
        }
        self.missed::<S, T>(at, what, act)
    }

    /// Calls `act` as [`Core::access`] does, with the bytes of a value at `at`. Also fails if the
    /// value lies in two pages or belongs to a device; [`Core::value_elsewhere`] completes such an
    /// access.
    #[inline(always)]
    pub(crate) fn access_value<S: Sectioned, T, R>(
        &mut self,
        at: VirtAddr,
        access: AccessKind,
        act: impl Fn(Page) -> R,
    ) -> Result<R, Fault> {
        let what = What::value::<T>(access);
        let of = (at.0, what.size());
        match self.translator.hit_value(S::IN_SESSION, of, access, &act) {
            Some(done) => Ok(done),
            None => self.missed::<S, R>(at, what, act),
        }
    }

    /// Completes an access that missed, or is at the beginning of a page. Leaves the section.
    #[inline(always)]
    fn missed<S: Sectioned, R>(
        &mut self,
        at: VirtAddr,
        what: What,
        act: impl FnOnce(Page) -> R,
    ) -> Result<R, Fault> {
        let done = self.look_up::<S>(at, what).map(act);
        self.leave::<S>();
        done.ok_or(self.fault)
    }

    /// Returns the page for an access that missed, or is at the beginning of a page; or `None`,
    /// with the reason in `self.fault`. The caller is in a section before and after the call.
    #[inline(never)]
    fn look_up<S: Sectioned>(&mut self, at: VirtAddr, what: What) -> Option<Page> {
        if !S::IN_SESSION {
            // A miss of `hit_value` leaves the section open, but not ordered.
            self.translator.sections.order();
        }
        if crosses(at, what.size()) {
            self.fault = what.fault(FaultKind::Device, at);
            return None;
        }
        let translator = &mut self.translator;
        match translator.hit_and_fetch_ahead(at.0, what.size(), what.access) {
            Some(page) => {
                if self.translator.is_coalescing_due(at.0) {
                    self.coalesce(at.0);
                }
                Some(page)
            }
            None => self.ensure_page::<S>(at, what),
        }
    }

    /// Coalesces the leaf of `at` if it is exclusive to the space, its pages are contiguous, and no
    /// other thread has the writer lock. The caller is in a section.
    #[cold]
    #[inline(never)]
    fn coalesce(&mut self, at: u64) {
        // The first check is made without the writer lock: most leaves that are not contiguous
        // never will be.
        if self.translator.pages_in_row(at).is_none() {
            return;
        }
        let Some(_writer) = self.space.gate.try_write() else {
            return;
        };
        let nodes = self.space.nodes();
        let leaf = nodes.find_exclusive(at);
        if let (Some(leaf), Some(host)) = (leaf, self.translator.pages_in_row(at)) {
            nodes.mark_coalesced(leaf);
            self.translator.coalesce(at, host);
        }
    }

    /// Brings in the page that was missed. Returns the page, or `None` with the reason in
    /// `self.fault`.
    #[inline(never)]
    fn ensure_page<S: Sectioned>(&mut self, at: VirtAddr, what: What) -> Option<Page> {
        if self.space.pool.foreign_maker().is_some() {
            self.fault = what.fault(FaultKind::OtherProcess, at);
            return None;
        }
        let paused = Paused::<S>::new(self);
        if is_in_callback(paused.core.space.id) {
            // The mail stays unread, so that the next access takes this path, too.
            paused.core.fault = what.fault(FaultKind::Reentered, at);
            return None;
        }
        let page = paused.core.by_short_way(at, what);
        page.or_else(|| paused.core.find_page(at, what, S::WAIT))
    }

    fn find_page(&mut self, at: VirtAddr, what: What, wait: Wait) -> Option<Page> {
        loop {
            // If the gate is closed, the remembered leaves may still be right, but the pages that
            // they lead to are being changed. In that case the fault below waits for the gate.
            if self.ensure_leaf(at.0)
                && let Some(page) = self.hit_and_sample(at, what)
            {
                return Some(page);
            }
            self.translator.sections.leave();
            let translator = &mut self.translator;
            let end = driver::handle(&self.space, translator, &mut self.vmas, at, what, wait);
            self.translator.sections.enter();
            if let Err(fault) = end {
                self.fault = fault;
                return None;
            }
            // If the fault brought in the page, the translator remembers its leaf now. If the fault
            // only waited for the gate, this may miss, and the loop continues.
            if let Some(page) = self.hit_and_sample(at, what) {
                return Some(page);
            }
        }
    }

    /// Returns the page if a short way brings it in, or `None` if more must be done. For a store,
    /// the short way installs a new page, or makes a present one writable. For a load, it installs
    /// the zero frame, or makes a present page valid for loads. The caller is in a section before
    /// and after the call.
    #[inline]
    fn by_short_way(&mut self, at: VirtAddr, what: What) -> Option<Page> {
        let (space, translator, vmas) = (&self.space, &self.translator, &mut self.vmas);
        let parted = match what.access {
            AccessKind::Store | AccessKind::Exchange => {
                match driver::store_by_short_way(space, translator, vmas, at.0) {
                    Stored::Done(parted) => parted,
                    Stored::Changed | Stored::NoPage => return None,
                }
            }
            AccessKind::Load if driver::load_by_short_way(space, translator, vmas, at.0) => None,
            AccessKind::Load | AccessKind::Fetch => return None,
        };
        if let Some(shadow) = parted {
            self.translator.sections.leave();
            self.space.release_shadow(shadow);
            self.translator.sections.enter();
        }
        self.hit_and_sample(at, what)
    }

    /// Returns the page if the access hits now. If uses are sampled, and the access uses bytes of
    /// the page, samples this use. That may take the page's validity: this access may still use the
    /// page until its section ends, but the next one may take this path again.
    #[inline]
    fn hit_and_sample(&self, at: VirtAddr, what: What) -> Option<Page> {
        let page = self.translator.hit(at.0, what.size(), what.access)?;
        if self.space.pool.samples() && what.uses_page() {
            self.space.sample_use(at.0);
        }
        Some(page)
    }

    /// Reads the mail, and returns whether the gate is open at `at`. If it is, looks up the leaf of
    /// `at` in the table, and remembers it. The caller is in a section.
    ///
    /// A caller whose mail was read must check the gate before its next hit, here or in the fault.
    /// A writer that replaces no leaf (`translator::GATE_MAIL`) relies on this.
    fn ensure_leaf(&mut self, at: u64) -> bool {
        while self.translator.sections.has_mail() {
            self.translator.drain();
            // The mail asks a session to leave its section, and the sender may be waiting until it
            // does.
            self.translator.sections.leave();
            self.translator.sections.enter();
        }
        if !self
            .space
            .gate
            .is_open(&self.translator.sections, &(at..at.saturating_add(1)))
        {
            return false;
        }
        if at >> table::ADDRESS_BITS != 0 {
            return true;
        }
        let nodes = self.space.nodes();
        if let Some(leaf) = nodes.find(at) {
            let for_stores = leaf.exclusive && !self.space.is_frozen();
            let words = nodes.words(leaf.frame);
            self.translator.fill(at, words, for_stores);
        }
        true
    }

    /// Loads a value, or fetches one as an instruction, as `access` says.
    #[inline(always)]
    pub(crate) fn load<S: Sectioned, T: Scalar>(
        &mut self,
        at: VirtAddr,
        access: AccessKind,
    ) -> Result<T, Fault> {
        let loaded = self.access_value::<S, T, T>(at, access, Page::load);
        loaded.or_else(|fault| self.load_elsewhere::<S, T>(at, fault))
    }

    #[inline(always)]
    pub(crate) fn store<S: Sectioned, T: Scalar>(
        &mut self,
        at: VirtAddr,
        value: T,
    ) -> Result<(), Fault> {
        let act = |page: Page| page.store(value);
        let stored = self.access_value::<S, T, ()>(at, AccessKind::Store, act);
        stored.or_else(|fault| self.store_elsewhere::<S, T>(at, value, fault))
    }

    /// Completes a load or fetch that [`Core::access_value`] did not complete. This function is
    /// inlined and has its own buffer: if the result were made out of line, the fast path would
    /// pass its result through memory, too.
    #[inline(always)]
    pub(crate) fn load_elsewhere<S: Sectioned, T: Scalar>(
        &mut self,
        at: VirtAddr,
        fault: Fault,
    ) -> Result<T, Fault> {
        cold_path();
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..size_of::<T>()];
        self.value_elsewhere::<S>(at, Transfer::Load(bytes), fault)?;
        Ok(page::from_bytes(bytes))
    }

    /// Completes a store that [`Core::access_value`] did not complete.
    #[cold]
    #[inline(never)]
    pub(crate) fn store_elsewhere<S: Sectioned, T: Scalar>(
        &mut self,
        at: VirtAddr,
        value: T,
        fault: Fault,
    ) -> Result<(), Fault> {
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..size_of::<T>()];
        page::to_bytes(value, bytes);
        self.value_elsewhere::<S>(at, Transfer::Store(bytes), fault)
    }

    /// Brings in the page of `at` for this kind of access, without accessing it.
    pub(crate) fn ensure_page_in<S: Sectioned>(
        &mut self,
        at: VirtAddr,
        access: AccessKind,
    ) -> Result<(), Fault> {
        self.access::<S, ()>(at, What::page(access, 0), drop)
    }
}
