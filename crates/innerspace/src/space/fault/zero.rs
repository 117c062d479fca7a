//! Mapping the zero frame, for loads of memory that has no page yet; and the short way for loads of
//! such memory, if it is anonymous, and of pages that are present without read validity.
//!
//! # The short way
//!
//! As for stores (`anonymous`), everything that [`handle`](super::driver::handle) would look up is
//! known already, in the section of the access itself:
//!
//! - the leaf, by the read tag, while there is no mail: a thread that replaces or removes the leaf
//!   posts, then waits for sections, as for a hit
//! - that the new word is right for all sharers of the leaf, because they map the same there. A
//!   space that maps something else, or forbids loads, first gets a leaf of its own (`change`). The
//!   leaf that it gives up counts as shared as long as a section may have found it
//!   (`SpaceInner::release_replaced`), or a fault may have walked to it
//! - that the gate is open at the address: one check finds it open everywhere
//! - the mapping, from a slot of the accessor's cache of mappings, while the number of the space's
//!   sequence is unchanged. The set was published before the slot was filled, so the change that
//!   made room for the mapping has posted its mail
//!
//! The rest is to write one word. An empty slot gets the zero frame. A present page gets read
//! validity, which it lost by aging or never had (`fault_around`). This needs no block and no entry
//! of a file: a thread that takes the page away changes the word, and then waits for sections. If
//! the slot is empty and the mapping is of a file, or the access is a fetch, which needs a separate
//! validity, nothing is changed, and the fault is handled from its beginning. Nor is anything
//! changed or counted if the page is valid by now: then the access finds it when it looks again.

use crate::FrameId;
use crate::space::core::fault::AccessKind;
use crate::space::core::space::SpaceInner;
use crate::space::table::pte::{self, Pte, VALID_R};
use crate::space::tlb::translator::Translator;
use crate::space::vma::cache::VmaCache;
use crate::space::vma::protection::Protection;
use crate::stats::Event;
use crate::sync::gate::EVERYWHERE;
use crate::sync::raw::AtomicU64;

/// Returns the word that maps the zero frame.
pub(crate) fn word(space: &SpaceInner, valid: u64) -> Pte {
    Pte::zero(space.pool.frames.host(FrameId::ZERO) as u64, valid)
}

/// Maps the zero frame in a slot, for a fault by a load or fetch. `old` maps no page that must be
/// released. Returns false if another thread changed the slot first.
#[inline(always)]
pub(crate) fn map(space: &SpaceInner, slot: &AtomicU64, old: Pte, valid: u64) -> bool {
    debug_assert!(old.is_vacant(), "{old:?}");
    let mapped = pte::replace(slot, old, word(space, valid));
    if mapped {
        space.pool.counters.count(Event::ZeroMap);
    }
    mapped
}

/// Makes the page of `at` valid for loads if writing one word is enough. Returns whether it has
/// done so. The caller is in a section.
#[inline(always)]
pub(crate) fn load_by_short_way(
    space: &SpaceInner,
    translator: &Translator,
    vmas: &mut VmaCache,
    at: u64,
) -> bool {
    let Some(slot) = translator.slot(at, AccessKind::Load) else {
        return false;
    };
    if !space.gate.is_open(&translator.sections, &EVERYWHERE) || space.pool.is_flush_due() {
        return false;
    }
    let old = pte::load(slot);
    if old.has(VALID_R) {
        return false; // another thread was first, so this is no fault
    }
    let is_empty = old == Pte::EMPTY;
    let new = match is_empty {
        true => word(space, VALID_R),
        false => old.with(VALID_R),
    };
    if !vmas.allows(Protection::READ, is_empty, &space.sequence, at)
        || !pte::replace(slot, old, new)
    {
        return false;
    }
    vmas.count_lookup();
    let counters = &space.pool.counters;
    match is_empty {
        true => counters.count_each([Event::ZeroMap, Event::PgFault]),
        false => counters.count(Event::PgFault),
    }
    true
}
