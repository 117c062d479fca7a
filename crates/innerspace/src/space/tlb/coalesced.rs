//! Leaves whose pages are contiguous in the arena: one translation serves all of them.
//!
//! If all 512 pages of a leaf are the leaf's own, valid for loads and stores, and contiguous in the
//! arena, an accessor remembers the address of the bytes instead of that of the words ([`Place`]),
//! and no longer reads the words. A changed word then has no effect on the accessor. So a thread
//! that changes the word of a page that the leaf owns, in a leaf that is exclusive to one space,
//! first makes sure that no accessor has the leaf coalesced, **before another page can take that
//! page's place**:
//!
//! - A structural change, a remap, a fork, or a restore to another table posts `Post::All` when it
//!   closes the gate.
//! - A restore in place posts `GATE_MAIL`, at which accessors forget all coalesced leaves.
//! - [`take_dirty`](crate::Space::take_dirty) and [`watch_code`](crate::Accessor::watch_code) have
//!   the gate closed on the pages, so the pages stay the same. They take the validity, then post
//!   the leaf if the leaf is marked (`SpaceInner::post_coalesced`), then wait.
//! - `zap` leaves the gate open, so it passes a marked leaf on to a structural change.
//!
//! All of them hold the gate's writer lock. A thread that coalesces a leaf takes the same lock,
//! without waiting for it, and reads the leaf's words and marks the leaf (`FlagSet::COALESCED`) in
//! one section. A leaf that others share is never coalesced, and a leaf that becomes exclusive
//! counts as shared until changes by its former sharers are over (`SpaceInner::release_replaced`).
//! `docs/protocols/coalesced-leaves.md` has the argument, and says when a leaf's words are read.

use super::place::Place;
use super::translator::{LEAVES, Leaves, NO_LEAF, Translator};
use crate::PAGE_SIZE;
use crate::space::core::address::{LEAF_SHIFT, SLOTS};
use crate::space::table::pte::{self, Pte};

/// The number of visits after which a leaf's words are read. Reading them takes a few hundred
/// nanoseconds.
const VISITS: u16 = 16;
/// The greatest number of times that `VISITS` is doubled: once each time coalesced leaves are
/// forgotten.
const DOUBLED: u8 = 8;

impl Leaves {
    /// Forgets all coalesced leaves.
    pub(crate) fn forget_coalesced(&mut self) {
        if self.coalesced == 0 {
            return;
        }
        self.note_forgotten();
        self.coalesced = 0;
        for slot in 0..LEAVES {
            if self.places[slot].is_coalesced() {
                self.tags.read[slot] = NO_LEAF;
                self.tags.write[slot] = NO_LEAF;
                self.places[slot] = Place::NONE;
            }
        }
    }

    /// Notes that the coalesced leaves, if there are any, are about to be forgotten.
    pub(crate) fn note_forgotten(&mut self) {
        let more = u8::from(self.coalesced > 0);
        self.forgotten = (self.forgotten + more).min(DOUBLED);
    }
}

impl Translator {
    /// Counts an access that took the out-of-line path, if the leaf of `at` is remembered for
    /// stores and not coalesced yet. Returns whether the words of the leaf should be read now.
    pub(crate) fn is_coalescing_due(&mut self, at: u64) -> bool {
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        let leaves = &mut *self.leaves;
        if leaves.tags.write[slot] != leaf || leaves.places[slot].is_coalesced() {
            return false;
        }
        leaves.visits[slot] = (leaves.visits[slot] + 1) % (VISITS << leaves.forgotten);
        leaves.visits[slot] == 0
    }

    /// Returns the host address of the pages in the leaf that maps `at`, if the leaf is remembered
    /// for stores and the pages are contiguous. Returns `None` while there is mail. The caller is
    /// in a section.
    pub(crate) fn pages_in_row(&self, at: u64) -> Option<u64> {
        let start = at >> LEAF_SHIFT << LEAF_SHIFT;
        let place = self.place_of_words(start, &self.look().leaves.tags.write)?;
        // SAFETY: the tag says that these are the 512 words of the leaf; the open section keeps the
        // leaf.
        let words = unsafe { std::slice::from_raw_parts(place.word(start), SLOTS) };
        let host = pte::load(&words[0]).host();
        let pages = (host..).step_by(PAGE_SIZE);
        let is_in_row = |(word, host)| pte::load(word) == Pte::own(host);
        words.iter().zip(pages).all(is_in_row).then_some(host)
    }

    /// Coalesces the leaf of `at`, whose pages are contiguous from `host` on. The caller is in a
    /// section, holds the gate's writer lock, and has marked the leaf.
    pub(crate) fn coalesce(&mut self, at: u64, host: u64) {
        let leaf = at >> LEAF_SHIFT;
        let leaves = &mut *self.leaves;
        leaves.places[leaf as usize % LEAVES] = Place::of_bytes(host, leaf);
        leaves.coalesced = leaves.coalesced.saturating_add(1);
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Translator {
        /// Returns whether the leaf of `at` is coalesced, ignoring mail.
        pub(crate) fn has_coalesced(&self, at: u64) -> bool {
            let leaf = at >> LEAF_SHIFT;
            let slot = leaf as usize % LEAVES;
            self.leaves.tags.read[slot] == leaf && self.leaves.places[slot].is_coalesced()
        }
    }
}
