//! A leaf and the one it borrows from: what each records about the other, and how the link ends.
//!
//! A leaf records its shadow, and a slot before which it borrows nothing. A shadow records the XOR
//! of its borrowers' frame numbers, which is the borrower itself if there is only one. The link
//! ends in three ways, explained in `docs/protocols/borrowing.md`:
//!
//! - The leaf no longer borrows anything: it releases the shadow ([`Nodes::part`]), after a grace
//!   period.
//! - The shadow no longer has a parent, and has one borrower: pages that the borrower does not
//!   borrow are released at once ([`Nodes::prune`]).
//! - As in the previous case, and the borrower meets a write fault, has pages dropped, changed or
//!   moved, or is copied itself: it takes over the pages that it borrows
//!   ([`Nodes::collapse_shadow`]).
//!
//! Other spaces may share the leaf that takes over, and walk its chain meanwhile
//! ([`Nodes::end_writes_in_place`]). So they walk in a section, and a collapsed shadow keeps its
//! words and the name of the next shadow until it is freed.

use super::nodes::{Nodes, shadow_word};
use super::pte::{self, Pte};
use crate::FrameId;
use crate::frame::Dropped;
use crate::reclaim::{Pool, Retired};
use crate::space::core::address::SLOTS;
use crate::sync::domain::ANY_OWNER;
use crate::sync::failpoint;
use crate::sync::raw::{AtomicU64, Ordering};

/// The bits of a [`shadow_word`] that say through how many shadows its leaf borrows.
const DEPTH: u64 = 0xff;

/// Whether the leaf that takes over the pages of its shadow is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Borrower {
    /// The leaf is exclusive to the space: faults store through its words meanwhile.
    Exclusive,
    /// The leaf stays shared, or borrowed from, until the caller is done with it: no thread stores
    /// through its words.
    Shared,
}

impl Nodes<'_> {
    /// Returns the leaf that this one borrows from, and the number of leaves it borrows through.
    pub(crate) fn shadow(self, leaf: FrameId) -> Option<(FrameId, u64)> {
        let extra = self.pool.frames.meta(leaf).extra.load(Ordering::Relaxed);
        (extra != 0).then_some((FrameId((extra >> 8) as u32), extra & DEPTH))
    }

    fn set_shadow(self, leaf: FrameId, shadow: Option<(FrameId, u64)>) {
        let extra = &self.pool.frames.meta(leaf).extra;
        extra.store(shadow_word(shadow), Ordering::Relaxed);
    }

    /// Counts a new leaf as a borrower of its shadow, which still has a parent.
    pub(crate) fn add_borrower(self, shadow: FrameId, leaf: FrameId) {
        let meta = self.pool.frames.meta(shadow);
        let counted = meta.hold.try_map();
        assert!(counted, "a leaf has as many borrowers as a count can hold");
        meta.toggle_borrowers(leaf);
    }

    /// Subtracts one from the number of a shadow's borrowers, for a leaf that has forgotten the
    /// shadow. Frees the shadow if it has no parent and no other borrower. No thread may still be
    /// using a page that the leaf borrowed.
    pub(crate) fn put_shadow(self, shadow: FrameId) {
        let hold = &self.pool.frames.meta(shadow).hold;
        // If two borrowers end at the same time, each may find the other still counted, and neither
        // prunes. The next write fault in the remaining borrower then collapses the shadow.
        let state = hold.load();
        if state.refs() == 0 && state.mapped() == 2 {
            self.prune(shadow);
        }
        if hold.unmap() == Dropped::Last {
            self.free(shadow, 0);
        }
    }

    /// Notes that the leaf may borrow at `slot` from now on. The gate is closed.
    pub(crate) fn borrows_from(self, leaf: FrameId, slot: usize) {
        let meta = self.pool.frames.meta(leaf);
        if slot < meta.borrowed_from() {
            meta.set_borrowed_from(slot);
        }
    }

    /// Returns whether the leaf has a shadow and borrows nothing from it. The caller has just
    /// replaced a borrowed word. Taken together, the calls for one leaf look at each word about
    /// once, because each continues where the last one stopped.
    pub(crate) fn borrows_in_vain(self, leaf: FrameId) -> bool {
        if self.shadow(leaf).is_none() {
            return false;
        }
        let meta = self.pool.frames.meta(leaf);
        let words = self.words(leaf);
        let from = meta.borrowed_from();
        let next = (from..SLOTS).find(|slot| pte::load_in_order(&words[*slot]).is_borrowed());
        // Another thread may set a lower slot. That is right too, and only makes a later search
        // longer.
        if next != Some(from) {
            meta.set_borrowed_from(next.unwrap_or(SLOTS));
        }
        next.is_none()
    }

    /// Makes a leaf that borrows nothing forget its shadow. Returns the shadow, which the caller
    /// releases after a grace period. The leaf has no parent, or is exclusive and the caller holds
    /// `paths`.
    pub(crate) fn part(self, leaf: FrameId) -> Option<FrameId> {
        let (shadow, _) = self.shadow(leaf)?;
        self.pool.frames.meta(shadow).toggle_borrowers(leaf);
        self.set_shadow(leaf, None);
        Some(shadow)
    }

    /// Releases the pages that a leaf without parents keeps needlessly: file pages, since revokers
    /// do not reach them here; and anonymous pages, owned or borrowed, that the leaf's only
    /// borrower does not borrow. The caller counts as a borrower.
    pub(crate) fn prune(self, leaf: FrameId) {
        // The borrower may end at any time. But its frame, and the words by which it borrows, stay
        // until the section ends.
        let _section = self.pool.domain.reader();
        let meta = self.pool.frames.meta(leaf);
        // The count is read before the XOR of the borrowers: a leaf that is no longer counted is no
        // longer in the XOR.
        let alone = meta.hold.load().mapped() == 2;
        let borrower = meta.borrowers().filter(|_| alone);
        let borrower = borrower.map(|borrower| self.words(borrower));
        let (mut borrows, mut borrowed_more) = (false, false);
        for (slot, word) in self.words(leaf).iter().enumerate() {
            let page = pte::load(word);
            let needless = match page.is_own() || page.is_borrowed() {
                true => borrower.is_some_and(|words| !pte::load(&words[slot]).is_borrowed()),
                false => page.is_of_file(),
            };
            if needless {
                self.of_any_space().retire_page(pte::take(word));
            }
            borrows |= page.is_borrowed() && !needless;
            borrowed_more |= page.is_borrowed() && needless;
        }
        match (borrowed_more, borrows) {
            (true, true) => self.prune_shadow(leaf),
            (true, false) => {
                let shadow = self.part(leaf).expect("it has borrowed");
                self.retire_shadow(shadow);
            }
            (false, _) => {}
        }
    }

    /// Prunes the shadow of a leaf that the caller keeps, if the shadow no longer has a parent, and
    /// has no other user.
    fn prune_shadow(self, leaf: FrameId) {
        let Some((shadow, _)) = self.shadow(leaf) else {
            return;
        };
        let hold = &self.pool.frames.meta(shadow).hold;
        // If two threads do this at the same time, pages that nothing needs may stay in the shadow.
        // The next write fault then releases them.
        let state = hold.load();
        if state.refs() == 0 && state.mapped() == 1 && hold.try_map() {
            self.prune(shadow);
            let dropped = hold.unmap();
            assert_ne!(dropped, Dropped::Last, "I11: a shadow without its borrower");
        }
    }

    /// Returns the same operations, except that pages that they retire wait for the sessions of
    /// every space. The leaf that borrows may belong to another space, whose sessions may be using
    /// the pages.
    fn of_any_space(self) -> Self {
        Nodes {
            owner: ANY_OWNER,
            ..self
        }
    }

    /// Calls [`Nodes::put_shadow`] after a grace period, for a leaf that has forgotten its shadow.
    fn retire_shadow(self, shadow: FrameId) {
        let Nodes { owner, root, .. } = self;
        let put = move |pool: &Pool| Nodes { pool, owner, root }.put_shadow(shadow);
        self.of_any_space().retire(Retired::Call(Box::new(put)));
    }

    /// Takes over the frames of a leaf's shadow if nothing else uses the shadow: it has no parent,
    /// and this leaf is its only borrower. Returns whether it did. The caller keeps the leaf alive,
    /// which may be exclusive or shared. The caller is in a section: several threads may try at the
    /// same time, and the frame of a shadow that another thread has collapsed must not be reused
    /// meanwhile.
    pub(crate) fn collapse_shadow(self, leaf: FrameId, borrower: Borrower) -> bool {
        let Some(shadow) = self.collapsible_shadow(leaf) else {
            return false;
        };
        failpoint!(FoundAlone);
        let counts = &self.pool.frames.meta(shadow).hold;
        if !counts.try_map_both() {
            return false;
        }
        for (from, to) in self.words(shadow).iter().zip(self.words(leaf)) {
            let theirs = pte::load(from);
            if theirs.is_own() {
                // The shadow has no other users, so no thread reads pages through it. So the word
                // can stay.
                self.take_over(theirs, to, borrower);
            } else if theirs.is_of_file() {
                // Only words of files are taken: `prune` may read the others.
                self.of_any_space().retire_page(pte::take(from));
            }
        }
        failpoint!(Collapsed);
        self.borrow_from_next(leaf, shadow, borrower);
        // The shadow still names the next shadow, for a thread that is walking through it.
        let dropped = counts.unmap_both();
        failpoint!(Uncounted);
        assert_eq!(
            dropped,
            Dropped::Last,
            "I11: a shadow was found by somebody while collapsed"
        );
        self.of_any_space().retire(Retired::Frame(shadow));
        true
    }

    /// Makes the leaf borrow from the shadow after the one that it has collapsed. A shared leaf
    /// that no longer borrows anything forgets its shadow here; an exclusive one does so at its
    /// next fault (`part_from_shadow`).
    fn borrow_from_next(self, leaf: FrameId, shadow: FrameId, borrower: Borrower) {
        let borrows = |word: &AtomicU64| pte::load(word).is_borrowed();
        let in_vain = || borrower == Borrower::Shared && !self.words(leaf).iter().any(borrows);
        let next = self.shadow(shadow);
        match next {
            None => self.set_shadow(leaf, None),
            Some((next, _)) if in_vain() => {
                self.pool.frames.meta(next).toggle_borrowers(shadow);
                self.retire_shadow(next);
                self.set_shadow(leaf, None);
            }
            Some((after, _)) => {
                self.pool.frames.meta(after).replace_borrower(shadow, leaf);
                self.set_shadow(leaf, next);
            }
        }
    }

    /// Returns the shadow that `collapse_shadow` would take over. It stays collapsible until it is
    /// collapsed, because no other thread can reach it.
    pub(crate) fn collapsible_shadow(self, leaf: FrameId) -> Option<FrameId> {
        let (shadow, _) = self.shadow(leaf)?;
        let state = self.state(shadow);
        (state.refs() == 0 && state.mapped() == 1).then_some(shadow)
    }

    /// Moves the shadow's ownership of one page to the slot that borrows it; if none does, releases
    /// the page.
    fn take_over(self, theirs: Pte, to: &AtomicU64, borrower: Borrower) {
        loop {
            let ours = pte::load(to);
            if !ours.is_borrowed() || ours.host() != theirs.host() {
                return self.of_any_space().retire_page(theirs);
            }
            match borrower {
                Borrower::Shared if pte::own_in_shared(to, ours) => return,
                _ if pte::replace(to, ours, ours.owned()) => return,
                _ => {}
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod for_tests {
    use super::*;

    impl Nodes<'_> {
        /// Returns the number of leaves that this one borrows through.
        pub(crate) fn borrowing_depth(self, leaf: FrameId) -> usize {
            std::iter::successors(self.shadow(leaf), |(shadow, _)| self.shadow(*shadow)).count()
        }
    }
}
