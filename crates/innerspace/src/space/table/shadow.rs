//! A leaf and the one it borrows from: what each knows about the other, and how they part.
//!
//! A leaf knows its shadow, and a place before which it borrows nothing. A shadow knows the
//! exclusive or of its borrowers: the borrower, once there is one alone. They part in three ways,
//! explained in `docs/protocols/borrowing.md`:
//!
//! - The leaf borrows nothing any more: it releases the shadow ([`Nodes::part`]), after a grace
//!   period.
//! - The shadow has no parent any more, and one borrower is left: pages that the borrower does not
//!   borrow any more go at once ([`Nodes::prune`]).
//! - The same, and the borrower meets a write fault, has pages dropped, changed or moved, or is
//!   copied in its turn: it takes over the pages it borrows ([`Nodes::collapse_shadow`]).
//!
//! Others may share the leaf that collapses, and walk its chain meanwhile
//! ([`Nodes::end_writes_in_place`]). So they do it in a section, and a collapsed shadow keeps its
//! words and names the next one to the end.

use super::nodes::Nodes;
use super::nodes::shadow_word;
use super::pte::{self, Pte};
use crate::FrameId;
use crate::frame::Dropped;
use crate::reclaim::{Pool, Retired};
use crate::space::core::address::SLOTS;
use crate::sync::domain::ANY_OWNER;
use crate::sync::failpoint;
use crate::sync::raw::{AtomicU64, Ordering};

/// The bits of a leaf's shadow that say how many leaves it borrows through.
const DEPTH: u64 = 0xff;

/// The owner of a leaf that takes over the pages of its shadow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Borrower {
    /// The leaf is the space's own: faults store by its words meanwhile.
    Exclusive,
    /// The leaf is shared by others, or borrowed from, until the caller is done with it: nobody
    /// stores by its words.
    Shared,
}

impl Nodes<'_> {
    /// The leaf that this one borrows from, and through how many.
    pub(crate) fn shadow(self, leaf: FrameId) -> Option<(FrameId, u64)> {
        let extra = self.pool.frames.meta(leaf).extra.load(Ordering::Relaxed);
        (extra != 0).then_some((FrameId((extra >> 8) as u32), extra & DEPTH))
    }

    fn set_shadow(self, leaf: FrameId, shadow: Option<(FrameId, u64)>) {
        let extra = &self.pool.frames.meta(leaf).extra;
        extra.store(shadow_word(shadow), Ordering::Relaxed);
    }

    /// Counts a new leaf as a borrower of its shadow, which has a parent.
    pub(crate) fn add_borrower(self, shadow: FrameId, leaf: FrameId) {
        let meta = self.pool.frames.meta(shadow);
        let counted = meta.hold.try_map();
        assert!(counted, "a leaf has as many borrowers as a count can hold");
        meta.toggle_borrowers(leaf);
    }

    /// Takes a leaf that has forgotten its shadow off the count of borrowers. Nobody is in a page
    /// that it borrowed.
    pub(crate) fn put_shadow(self, shadow: FrameId) {
        let hold = &self.pool.frames.meta(shadow).hold;
        // If two end at once, neither may see that only one borrower is left. Then that borrower's
        // next write fault does.
        let state = hold.load();
        if state.refs() == 0 && state.mapped() == 2 {
            self.prune(shadow);
        }
        if hold.unmap() == Dropped::Last {
            self.free(shadow, 0);
        }
    }

    /// Notes that the leaf will borrow at `slot`, or at any slot after it. The gate is closed.
    pub(crate) fn borrows_from(self, leaf: FrameId, slot: usize) {
        let meta = self.pool.frames.meta(leaf);
        if slot < meta.borrowed_from() {
            meta.set_borrowed_from(slot);
        }
    }

    /// Whether the leaf has a shadow and borrows nothing from it, for a caller that has just
    /// replaced a borrowed word. Looks at as many words as a leaf has, in the leaf's whole life.
    pub(crate) fn borrows_in_vain(self, leaf: FrameId) -> bool {
        if self.shadow(leaf).is_none() {
            return false;
        }
        let meta = self.pool.frames.meta(leaf);
        let words = self.words(leaf);
        let from = meta.borrowed_from();
        let next = (from..SLOTS).find(|slot| pte::load_in_order(&words[*slot]).is_borrowed());
        // Another thread may set a lower one: it is right, too, and only takes longer.
        if next != Some(from) {
            meta.set_borrowed_from(next.unwrap_or(SLOTS));
        }
        next.is_none()
    }

    /// Makes a leaf that borrows nothing forget its shadow, which is returned, to be released after
    /// a grace period. The leaf is exclusive and `paths` held.
    pub(crate) fn part(self, leaf: FrameId) -> Option<FrameId> {
        let (shadow, _) = self.shadow(leaf)?;
        self.pool.frames.meta(shadow).toggle_borrowers(leaf);
        self.set_shadow(leaf, None);
        Some(shadow)
    }

    /// Releases what is of no use in a leaf that has no parent any more: file pages, since revokers
    /// do not reach it; and pages, its own or borrowed, that its only borrower does not borrow. The
    /// caller counts as a borrower.
    pub(crate) fn prune(self, leaf: FrameId) {
        // The borrower may end at any time: its frame, and the words it borrows by, stay for as
        // long as the section.
        let _section = self.pool.domain.reader();
        let meta = self.pool.frames.meta(leaf);
        // The count before the names: a leaf that is not counted any more is not named any more.
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

    /// Prunes the shadow of a leaf that the caller keeps, if it has lost its last parent as well
    /// and has no other user.
    fn prune_shadow(self, leaf: FrameId) {
        let Some((shadow, _)) = self.shadow(leaf) else {
            return;
        };
        let hold = &self.pool.frames.meta(shadow).hold;
        // If two threads are here at once, neither may see the other's work. Then the next write
        // fault does the rest.
        let state = hold.load();
        if state.refs() == 0 && state.mapped() == 1 && hold.try_map() {
            self.prune(shadow);
            let dropped = hold.unmap();
            assert_ne!(dropped, Dropped::Last, "I11: a shadow without its borrower");
        }
    }

    /// For retiring: the pages may be in the sessions of another space, that of the leaf that has
    /// borrowed them.
    fn of_any_space(self) -> Self {
        Nodes {
            owner: ANY_OWNER,
            ..self
        }
    }

    /// Takes a leaf that has forgotten its shadow off the count of borrowers, after a grace period.
    fn retire_shadow(self, shadow: FrameId) {
        let owner = self.owner;
        let put = move |pool: &Pool| Nodes { pool, owner }.put_shadow(shadow);
        self.of_any_space().retire(Retired::Call(Box::new(put)));
    }

    /// Takes over the frames of a leaf's shadow if nobody else has a use for it: it has no parent,
    /// and this leaf is its one borrower. Returns whether it did. The caller keeps the leaf, the
    /// space's own or shared, and is in a section: several threads may try at once, and the frame
    /// of a shadow that another has collapsed is not reused before the section ends.
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
                // Nobody looks at the pages of a shadow without users, so the word stays.
                self.take_over(theirs, to, borrower);
            } else if theirs.is_of_file() {
                self.of_any_space().retire_page(pte::take(from)); // else stays: `prune` may be looking
            }
        }
        failpoint!(Collapsed);
        self.borrow_from_next(leaf, shadow, borrower);
        // The shadow still names the next one: another thread may be on its way through it.
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

    /// Makes the leaf borrow from the next shadow after the one that it has collapsed, if it still
    /// borrows anything. For an exclusive leaf the next fault sees to that (`part_from_shadow`); a
    /// shared one borrows nothing more.
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

    /// Leaves that this one borrows through.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn borrowing_depth(self, leaf: FrameId) -> usize {
        std::iter::successors(self.shadow(leaf), |(shadow, _)| self.shadow(*shadow)).count()
    }

    /// The shadow that `collapse_shadow` would take over. It stays so until it is collapsed: nobody
    /// else can reach it.
    pub(crate) fn collapsible_shadow(self, leaf: FrameId) -> Option<FrameId> {
        let (shadow, _) = self.shadow(leaf)?;
        let state = self.state(shadow);
        (state.refs() == 0 && state.mapped() == 1).then_some(shadow)
    }

    /// Moves the shadow's ownership of one page to the slot that borrows it, or releases the page.
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
