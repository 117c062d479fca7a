//! Leaves whose pages lie in a row: one translation for all of them.
//!
//! Where all 512 pages of a leaf are the leaf's own, valid for loads and stores, and one behind the
//! other in the arena, an accessor remembers where the bytes are in place of where the words are
//! ([`Place`]), and looks at no word any more. A changed word then no longer takes effect by
//! itself. So a change of the word of an own page, in a leaf that one space has alone, first makes
//! sure that no accessor has the leaf coalesced, **before the page can become another**:
//!
//! - a structural change, a remap, a fork, a restore to another table: posts `Post::All` when the
//!   gate is closed
//! - a restore in place: posts `GATE_MAIL`, for which all coalesced leaves are forgotten
//! - [`take_dirty`](crate::Space::take_dirty), [`watch_code`](crate::Accessor::watch_code): the
//!   gate is closed on the pages, so they stay the same; takes the validity, then posts the leaf if
//!   it is marked (`SpaceInner::post_coalesced`), then waits
//! - `zap`: leaves the gate open, so it passes a marked leaf on to a structural change
//!
//! All of them have the gate's writer. Coalescing takes the writer as well, by trying, marks the
//! leaf (`FlagSet::COALESCED`), and looks at its words, in a section. A leaf that others share is
//! never coalesced, and one that becomes exclusive stays shared until changes of its former sharers
//! have passed (`SpaceInner::release_replaced`). The argument, and when a leaf is looked at, are in
//! `docs/protocols/coalesced-leaves.md`.

use super::place::Place;
use super::translator::{LEAVES, Leaves, NO_LEAF, Translator};
use crate::PAGE_SIZE;
use crate::space::core::address::{LEAF_SHIFT, SLOTS};
use crate::space::table::pte::{self, Pte};

/// Visits from one look at a leaf's words to the next: a look takes some hundred nanoseconds.
const VISITS: u16 = 16;
/// How often they are doubled.
const DOUBLED: u8 = 8;

impl Leaves {
    /// Forgets those that are coalesced.
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

    /// Coalesced leaves, if there are any, are going to be forgotten.
    pub(crate) fn note_forgotten(&mut self) {
        let more = u8::from(self.coalesced > 0);
        self.forgotten = (self.forgotten + more).min(DOUBLED);
    }
}

impl Translator {
    /// Notes an access out of line, and returns whether it is time to look at the words of the leaf
    /// of `at`.
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

    /// The host address of the pages of the leaf of `at`, if it is remembered for stores and they
    /// lie in a row. In a section. With mail, no leaf is visible.
    pub(crate) fn pages_in_row(&self, at: u64) -> Option<u64> {
        let start = at >> LEAF_SHIFT << LEAF_SHIFT;
        let place = self.place_of_words(start, &self.look().leaves.tags.write)?;
        // SAFETY: the tag says that these are the leaf's words, 512 of them; the section, which is
        // open, keeps them.
        let words = unsafe { std::slice::from_raw_parts(place.word(start), SLOTS) };
        let host = pte::load(&words[0]).host();
        let pages = (host..).step_by(PAGE_SIZE);
        let is_in_row = |(word, host)| pte::load(word) == Pte::own(host);
        words.iter().zip(pages).all(is_in_row).then_some(host)
    }

    /// Whether the leaf of `at` is coalesced, mail aside.
    #[cfg(test)]
    pub(crate) fn has_coalesced(&self, at: u64) -> bool {
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        self.leaves.tags.read[slot] == leaf && self.leaves.places[slot].is_coalesced()
    }

    /// Coalesces the leaf of `at`, whose pages lie in a row from `host` on. In a section, with the
    /// gate's writer held, and the leaf marked.
    pub(crate) fn coalesce(&mut self, at: u64, host: u64) {
        let leaf = at >> LEAF_SHIFT;
        let leaves = &mut *self.leaves;
        leaves.places[leaf as usize % LEAVES] = Place::of_bytes(host, leaf);
        leaves.coalesced = leaves.coalesced.saturating_add(1);
    }
}
