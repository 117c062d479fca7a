//! The space's own pages, zeroed or copied, and the short way for a store that needs such a page.
//!
//! # The short way
//!
//! Most faults come from stores to anonymous memory, in a leaf that the accessor remembers for
//! stores. Everything that [`handle`](super::driver::handle) would look up for them is known
//! already, in the section of the access itself:
//!
//! - the leaf, and that it is exclusive to the space: the write tag says so while there is no mail,
//!   because a thread that shares or replaces a leaf posts mail, then waits for sections, as for a
//!   hit
//! - that the gate is open at the address: one check finds it open everywhere
//! - the mapping, from a slot of the accessor's cache of mappings, while the number of the space's
//!   sequence is unchanged
//!
//! The rest is one step, which takes a page only if one can be had without waiting. If something is
//! missing, nothing has changed, and the fault is handled from its beginning.

use crate::FrameId;
use crate::frame::{HoldState, Kind};
use crate::reclaim::PoolFrame;
use crate::space::core::address::page_start;
use crate::space::core::fault::AccessKind;
use crate::space::core::space::SpaceInner;
use crate::space::table::nodes::Nodes;
use crate::space::table::pte::{self, Holds, Pte, VALID_R, VALID_W};
use crate::space::tlb::translator::Translator;
use crate::space::vma::cache::VmaCache;
use crate::space::vma::protection::Protection;
use crate::stats::Event;
use crate::sync::failpoint;
use crate::sync::gate::EVERYWHERE;
use crate::sync::raw::AtomicU64;
use crate::sys::copy::Quarter;

/// The outcome of a store's step.
pub(crate) enum Stored {
    /// The page is there. If the leaf no longer borrows anything from its shadow, the value is that
    /// shadow, which the caller releases with no section open.
    Done(Option<FrameId>),
    /// Nothing was installed: another thread changed the slot first, or this step is not enough.
    Changed,
    /// Nothing was installed: no page can be had without waiting.
    NoPage,
}

/// Makes the page of `at` writable if one step is enough. The caller is in a section.
#[inline(always)]
pub(crate) fn store_by_short_way(
    space: &SpaceInner,
    translator: &Translator,
    vmas: &mut VmaCache,
    at: u64,
) -> Stored {
    let Some(slot) = translator.slot(at, AccessKind::Store) else {
        return Stored::Changed;
    };
    if !space.gate.is_open(&translator.sections, &EVERYWHERE)
        || !vmas.allows(Protection::WRITE, true, &space.sequence, at)
        || space.pool.is_flush_due()
    {
        return Stored::Changed;
    }
    debug_assert!(!space.is_frozen(), "a write tag in a snapshot");
    let place = OwnSlot {
        space,
        at,
        slot,
        old: pte::load(slot),
    };
    let stored = match place.old.is_vacant() {
        true if place.install(None) == Some(true) => Stored::Done(None),
        true => Stored::Changed,
        false if place.can_collapse() => Stored::Changed,
        false => place.store(None),
    };
    if let Stored::Done(_) = stored {
        vmas.count_lookup();
        space.pool.counters.count(Event::PgFault);
    }
    stored
}

/// A slot that is to get a page owned by the space. It is in a leaf that is exclusive to the space;
/// the thread is in a section in which the gate is open at the slot's address.
#[derive(Clone, Copy)]
pub(crate) struct OwnSlot<'s> {
    pub(crate) space: &'s SpaceInner,
    pub(crate) at: u64,
    pub(crate) slot: &'s AtomicU64,
    /// The content of the slot when this step read it.
    pub(crate) old: Pte,
}

impl<'s> OwnSlot<'s> {
    fn nodes(self) -> Nodes<'s> {
        self.space.nodes()
    }

    /// Returns the leaf of the slot.
    fn leaf(self) -> FrameId {
        let address = std::ptr::from_ref(self.slot).addr();
        self.space.pool.frames.frame_of(address)
    }

    /// Returns whether the leaf should take over the pages of its shadow before this page is
    /// copied.
    pub(crate) fn can_collapse(self) -> bool {
        self.old.is_borrowed() && self.nodes().collapsible_shadow(self.leaf()).is_some()
    }

    /// Gives the slot a page that the space may store to. Reuses the present page if it has no
    /// other owner. Otherwise installs `page`, or a free page if one can be had without waiting.
    /// The installed page is zeroed, or a copy of the present one.
    #[inline(never)]
    pub(crate) fn store(self, page: Option<PoolFrame<'s>>) -> Stored {
        let is_reused = self.old.is_own() && self.nodes().is_sole_owner(self.old);
        match is_reused
            .then(|| self.reuse())
            .or_else(|| self.install(page))
        {
            None => Stored::NoPage,
            Some(false) => Stored::Changed,
            Some(true) if self.old.is_borrowed() => Stored::Done(self.part_from_shadow()),
            Some(true) => Stored::Done(None),
        }
    }

    /// Makes the present page, which has no other owner, writable. Returns false if another thread
    /// changed the slot first.
    fn reuse(self) -> bool {
        self.space.pool.counters.count(Event::CowReuse);
        self.space.written(self.at);
        pte::replace(self.slot, self.old, self.old.with(VALID_R | VALID_W))
    }

    /// Installs `page`, or a free page if one can be had without waiting. The installed page is
    /// zeroed, or a copy of the present one. Returns `Some(false)` if another thread changed the
    /// slot first, and `None` if there is no page.
    #[inline(always)]
    fn install(self, page: Option<PoolFrame<'s>>) -> Option<bool> {
        if self.old.is_own() || self.old.is_borrowed() {
            let nodes = self.nodes();
            nodes.pool.frames.prefetch(nodes.frame_of(self.old));
        }
        // The handle of a page from the thread's own cache stays in registers.
        let page = match page {
            Some(page) => page,
            None => match self
                .space
                .pool
                .alloc_from_thread_cache(self.space.group_id())
            {
                Some((page, next)) => return Some(self.fill_and_publish(page, next)),
                None => self.space.pool.try_alloc(self.space.group_id())?,
            },
        };
        Some(self.fill_and_publish_given(page))
    }

    #[inline(never)]
    fn fill_and_publish_given(self, page: PoolFrame<'s>) -> bool {
        self.fill_and_publish(page, None)
    }

    /// Fills and installs a page. Returns false if another thread changed the slot first.
    ///
    /// Meanwhile prefetches, a quarter at a time, the second half of this page and the first half
    /// of `next`. (`next` is the next free page, if it is known: some threads store to one new page
    /// after another.) Prefetches nothing if this page is to be zeros and is clear already: then
    /// the next page usually is clear too, and only some of its lines will be used.
    #[inline(always)]
    fn fill_and_publish(self, mut page: PoolFrame<'s>, next: Option<FrameId>) -> bool {
        let frames = &self.space.pool.frames;
        let is_vacant = self.old.is_vacant();
        let next = next.filter(|_| !(is_vacant && page.is_clear()));
        // Each branch has its own check: with one check for both, a warm fault takes 2 to 3 ns
        // more.
        if !is_vacant {
            page.prefetch(Quarter::Third);
            page.prefetch(Quarter::Fourth);
            self.fill_with_copy(&mut page);
        } else if !page.is_clear() {
            page.prefetch(Quarter::Third);
            page.prefetch(Quarter::Fourth);
            page.zero();
        }
        if let Some(next) = next {
            frames.prefetch_free(next, Quarter::First);
        }
        let replaced = self.publish(page);
        if let Some(next) = next {
            frames.prefetch_free(next, Quarter::Second);
        }
        replaced
    }

    /// Fills the page with a copy of the present one.
    fn fill_with_copy(self, page: &mut PoolFrame<'s>) {
        match self.old.holds() {
            Holds::Own | Holds::Borrowed => {
                self.space.pool.counters.count(Event::Cow);
                // The page was shared when its word was read. If the other owners have released it
                // since, this space may store to it in place: then the word has changed (see
                // `pte`), and this copy is thrown away.
                page.copy_from_still(self.nodes().frame_of(self.old));
                failpoint!(Copied);
            }
            Holds::File | Holds::Direct => self.copy(page, self.old.host()),
            Holds::Nothing | Holds::Zero => unreachable!("there is nothing to copy"),
        }
    }

    /// Fills the page with a copy of the page at the address `from`, to which other threads may be
    /// writing.
    pub(crate) fn copy(self, page: &mut PoolFrame<'s>, from: u64) {
        self.space.pool.counters.count(Event::Cow);
        page.copy_from(self.space.pool.frames.frame_of(from as usize));
    }

    /// Installs a page whose bytes are complete. Returns false if another thread changed the slot
    /// first.
    #[inline(always)]
    pub(crate) fn publish(self, page: PoolFrame<'s>) -> bool {
        let host = page.address();
        page.publish_as(Kind::Anonymous, HoldState::refs_only(1));
        self.space.written(self.at);
        if !pte::replace(self.slot, self.old, Pte::own(host)) {
            self.throw_away(host);
            return false;
        }
        // The page is recorded in this section, so a restore, which closes the gate, knows of every
        // page.
        let page = page_start(self.at);
        let changes = &self.space.changes;
        changes.record(&self.space.group, page, || self.leaf());
        if !self.old.is_vacant() {
            self.nodes().retire_page(self.old);
        }
        true
    }

    /// Frees a page that no other thread saw.
    #[cold]
    fn throw_away(self, host: u64) {
        self.nodes().put_pages(std::iter::once(Pte::own(host)));
    }

    /// Makes the leaf forget its shadow if it no longer borrows anything, and returns the shadow.
    /// Called when the leaf may have stopped borrowing at this slot.
    pub(crate) fn part_from_shadow(self) -> Option<FrameId> {
        let (nodes, leaf) = (self.nodes(), self.leaf());
        if !nodes.borrows_in_vain(leaf) {
            return None;
        }
        let _paths = self.space.paths.lock();
        nodes.part(leaf)
    }
}
