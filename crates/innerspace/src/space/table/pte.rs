//! The word of a leaf slot: the host address of a page, and the kinds of access that need no fault.
//!
//! ```text
//!  63..12                      5      4        3     2       1       0
//!  host address of the page    ZERO   BORROWED OWNED PRESENT VALID_W VALID_R
//!
//!  of the bits above these, 6: FILE, 7: VALID_X, 8: DIRECT
//! ```
//!
//! - *empty*: 0. A fault of any sharer may change it.
//! - *zero*: PRESENT, ZERO. The zero frame needs no reference. The word may be changed by a write
//!   fault (if the path is exclusive to the space), by a fault that finds that the hole has been
//!   filled, and by `Mappers::revoke`.
//! - *file*: PRESENT, FILE. `mapped` of the frame's hold word keeps the frame. Faults and revokers
//!   may change the word under the block's lock. Without that lock, only the word's validity
//!   changes: by a load that finds the page there, by aging, by samples and by `Advice::Cold`.
//! - *direct*: PRESENT, DIRECT. The device keeps the page, and the mapping keeps the device. The
//!   word changes like that of *file*, under the entry's lock, but is not aged.
//! - *own*: PRESENT, OWNED. One of the frame's refs belongs to this leaf. A space may change the
//!   word if the path is its own.
//! - *borrowed*: PRESENT, BORROWED. The leaf's shadow keeps the page, directly or through a further
//!   shadow. A space may change the word if the path is its own.
//!
//! If a page is the leaf's own and valid for loads and stores, and the leaf is exclusive to the
//! space, accessors may use it without reading the word. `tlb::coalesced` says how they learn of
//! changes.
//!
//! VALID_R means that a load needs no fault, and VALID_X means the same for a fetch. Both double as
//! the accessed bit, and aging clears them (with VALID_W). VALID_W means that a store needs no
//! fault: the page is recorded as dirty, or is anonymous and owned by this leaf alone. As a rule, a
//! change is a compare-exchange or another read-modify-write, because accessors, faults and
//! revokers change the same words without a lock. Three changes are plain stores: a structural
//! change empties the word of a page that the leaf owns, with the gate closed on it
//! ([`take_alone`]); a borrowed page becomes the leaf's own in a leaf that others share
//! ([`own_in_shared`]); and the words of a leaf that no other thread can find yet are set.
//!
//! # Where a page's write validity (VALID_W) is given and taken
//!
//! Faults alone give it: `space/fault/driver.rs` for the page of a cached file,
//! `space/fault/direct.rs` for that of a direct-access file, `space/fault/anonymous.rs` for a page
//! that the leaf owns. Only these functions take it away and leave the page in place:
//!
//! | taken by | before | guard against accesses under way |
//! |---|---|---|
//! | `change/revoke.rs`, `revoke_word` | writeback of a file's block | a grace period |
//! | `change/revoke.rs`, `age_part`, `sample_use` | (aging: all validity) | none: the page stays |
//! | `change/pages.rs`, `make_old` | (`Advice::Cold`: the same) | none: the page stays |
//! | `table/edit.rs`, `Edit::apply` | less protection | the closed gate |
//! | `snapshot/restore.rs`, `bring_back` | a store that a restore has to see | the closed gate |
//! | `change/steps.rs`, `end_writes` | a fetch of code; a store to be noted | the closed gate |
//! | `table/leaf.rs`, `end_writes_in_place` | a second owner or a view | none: the leaf is shared |
//!
//! All of them call [`take_write_validity`], or [`take_valid`] or [`take_valid_of_file`], which can
//! take other validity too. The words of a copied leaf are made without write validity
//! ([`Pte::borrowed`], [`Pte::owned`]).
//!
//! # The copy of a page that others share
//!
//! If a page is borrowed, or has another owner or a view, a fault serves a store to it: the fault
//! loads the word, copies the bytes, and replaces the word if it is unchanged. A store to the old
//! page after the load would be lost unless the word changes. While the page is shared, there is no
//! store to it. Once the others have released it, a fault may make it writable in place: that sets
//! VALID_W, which the word of a page being copied does not have, or turns a borrowed page into one
//! that the leaf owns. So the copy is right as long as no word of anonymous memory *returns* to an
//! earlier value while a fault on its page is inside the gate. These operations could bring an
//! earlier value back, but do not:
//!
//! - Structural changes, restores, [`take_dirty`](crate::space::Space::take_dirty) and
//!   [`watch_code`](crate::space::Accessor::watch_code): the gate is closed on the page, so no
//!   fault is inside, and a later copy loads the word later.
//! - `end_writes_in_place`, called for another space that has the page, without this space's gate:
//!   it changes leaves that the other space shares or borrows from, whereas a fault stores through
//!   words of leaves that are exclusive to its space. An exclusive leaf becomes shared only by a
//!   fork of its space, with the gate closed.
//! - `zap`: it empties words with the gate open. A fault that finds an empty word installs another
//!   page, or zeros. The old page is released after a grace period, so its frame is not used again
//!   until every fault that had found the page is over.
//! - Aging, samples and revokers: they change only words that map files or zeros
//!   ([`take_valid_of_file`]).

use crate::PAGE_SIZE;
use crate::sync::interleave;
use crate::sync::raw::{AtomicU64, Ordering};

/// A load needs no fault. Doubles as the accessed bit.
pub(crate) const VALID_R: u64 = 1 << 0;
/// A store needs no fault.
pub(crate) const VALID_W: u64 = 1 << 1;
const PRESENT: u64 = 1 << 2;
const OWNED: u64 = 1 << 3;
const BORROWED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
const FILE: u64 = 1 << 6;
/// A fetch needs no fault: the mapping allows execution.
pub(crate) const VALID_X: u64 = 1 << 7;
/// All three kinds of validity.
pub(crate) const VALID: u64 = VALID_R | VALID_W | VALID_X;
/// The slot has a page of a direct-access file, which is in the file's device.
const DIRECT: u64 = 1 << 8;
const FLAGS: u64 = PAGE_SIZE as u64 - 1;

/// The value of a leaf slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pte(pub(crate) u64);

/// The kind of page that a slot has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holds {
    Nothing,
    Zero,
    File,
    Direct,
    Own,
    Borrowed,
}

impl Pte {
    pub(crate) const EMPTY: Pte = Pte(0);

    pub(crate) fn zero(host: u64, valid: u64) -> Pte {
        Pte(host | PRESENT | ZERO | valid)
    }

    pub(crate) fn file(host: u64, valid: u64) -> Pte {
        Pte(host | PRESENT | FILE | valid)
    }

    pub(crate) fn direct(host: u64, valid: u64) -> Pte {
        Pte(host | PRESENT | DIRECT | valid)
    }

    /// Returns the word of an anonymous page that the leaf owns, valid for loads and stores.
    pub(crate) fn own(host: u64) -> Pte {
        Pte(host | PRESENT | OWNED | VALID_R | VALID_W)
    }

    /// Returns the host address of the page.
    pub(crate) fn host(self) -> u64 {
        self.0 & !FLAGS
    }

    #[inline]
    pub(crate) fn holds(self) -> Holds {
        match self.0 & (ZERO | FILE | DIRECT | OWNED | BORROWED) {
            0 => Holds::Nothing,
            ZERO => Holds::Zero,
            FILE => Holds::File,
            DIRECT => Holds::Direct,
            OWNED => Holds::Own,
            BORROWED => Holds::Borrowed,
            _ => panic!("I1: a leaf slot in two states: {self:?}"),
        }
    }

    /// Returns whether the slot has an anonymous page that the leaf owns. Loops over all words of a
    /// leaf call this in place of [`Pte::holds`], because it is one test.
    #[inline(always)]
    pub(crate) fn is_own(self) -> bool {
        self.0 & OWNED != 0
    }

    /// Returns whether the slot has a borrowed page. One test, as in [`Pte::is_own`].
    #[inline(always)]
    pub(crate) fn is_borrowed(self) -> bool {
        self.0 & BORROWED != 0
    }

    /// Returns whether the slot has a page of a cached file. One test, as in [`Pte::is_own`].
    #[inline(always)]
    pub(crate) fn is_of_file(self) -> bool {
        self.0 & FILE != 0
    }

    /// Returns whether a page that is removed from its slot must be released.
    #[inline(always)]
    pub(crate) fn needs_letting_go(self) -> bool {
        self.0 & (OWNED | FILE) != 0
    }

    /// Returns whether the slot is empty or has the zero frame.
    #[inline(always)]
    pub(crate) fn is_vacant(self) -> bool {
        self.0 & (FILE | DIRECT | OWNED | BORROWED) == 0
    }

    /// Returns the word for the same page in a copied leaf: borrowed, and not writable until the
    /// page is copied.
    pub(crate) fn borrowed(self) -> Pte {
        Pte(self.0 & !(OWNED | VALID_W) | BORROWED)
    }

    /// Returns the word for the same page in a leaf that has its own ref on the page. The word does
    /// not allow stores yet.
    pub(crate) fn owned(self) -> Pte {
        Pte(self.0 & !(BORROWED | VALID_W) | OWNED)
    }

    /// Returns the word for a copy of the page, at `host`. The copy has the validity that
    /// [`Pte::owned`] leaves, so accesses that the mapping forbids stay invalid.
    pub(crate) fn copied_to(self, host: u64) -> Pte {
        Pte(self.owned().0 & FLAGS | host)
    }

    /// Returns the word for a copied leaf, without a branch: borrowed if this is an anonymous page,
    /// and empty otherwise.
    #[inline(always)]
    pub(crate) fn borrowed_or_empty(self) -> Pte {
        let anonymous = ((self.0 / OWNED) | (self.0 / BORROWED)) & 1;
        Pte(self.borrowed().0 & anonymous.wrapping_neg())
    }

    pub(crate) fn with(self, valid: u64) -> Pte {
        Pte(self.0 | valid)
    }

    pub(crate) fn has(self, valid: u64) -> bool {
        self.0 & valid == valid
    }
}

impl std::fmt::Debug for Pte {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x} flags {:#b}", self.host(), self.0 & FLAGS)
    }
}

/// Reads a slot. Acquire: pairs with the release that installed the page, such as that of
/// [`replace`], so this thread sees the page's bytes.
#[inline(always)]
pub(crate) fn load(slot: &AtomicU64) -> Pte {
    interleave();
    Pte(slot.load(Ordering::Acquire))
}

/// Reads a slot as [`load`] does. SeqCst, like [`replace`]: if two threads each replace a slot and
/// then read the other's slot, at least one of them sees the other's change.
pub(crate) fn load_in_order(slot: &AtomicU64) -> Pte {
    interleave();
    Pte(slot.load(Ordering::SeqCst))
}

/// Replaces `old` by `new` if the slot still has `old`. Returns whether it did. SeqCst: publishes
/// the page's bytes to [`load`], and is ordered with [`load_in_order`].
pub(crate) fn replace(slot: &AtomicU64, old: Pte, new: Pte) -> bool {
    interleave();
    slot.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
}

/// Takes validity away and returns the old word. Accesses under way may still use that validity;
/// after a grace period, none does.
pub(crate) fn take_valid(slot: &AtomicU64, valid: u64) -> Pte {
    interleave();
    Pte(slot.fetch_and(!valid, Ordering::AcqRel))
}

/// Takes write validity alone, and returns whether the page had it.
pub(crate) fn take_write_validity(slot: &AtomicU64) -> bool {
    take_valid(slot, VALID_W).has(VALID_W)
}

/// Takes validity from a slot that had `old` a moment ago. Returns the old word if the slot still
/// has a page of a file or zeros. If a store has meanwhile installed an anonymous page, that page
/// keeps its validity: a restore relies on its write validity.
pub(crate) fn take_valid_of_file(slot: &AtomicU64, old: Pte, valid: u64) -> Option<Pte> {
    let mut now = old;
    while matches!(now.holds(), Holds::File | Holds::Direct | Holds::Zero) {
        if replace(slot, now, Pte(now.0 & !valid)) {
            return Some(now);
        }
        now = load(slot);
    }
    None
}

/// Empties a slot and returns the old word.
pub(crate) fn take(slot: &AtomicU64) -> Pte {
    interleave();
    Pte(slot.swap(0, Ordering::AcqRel))
}

/// Empties a slot as [`take`] does, but without a read-modify-write where possible. The leaf is
/// exclusive to the space, and the gate is closed on the slot. So no other thread changes an empty
/// slot, or one with an anonymous page that the leaf owns. (A borrowed page may become the leaf's
/// own when a fault next to the range collapses the shadow, and a revoker may take pages of other
/// kinds.) With the gate open, call this only where nothing is mapped: every slot there is empty,
/// and stays so.
#[inline(always)]
pub(crate) fn take_alone(slot: &AtomicU64) -> Pte {
    let page = load(slot);
    match page.holds() {
        Holds::Nothing => {}
        // Release: pairs with the Acquire in `load`, as the swap in `take` does.
        Holds::Own => slot.store(0, Ordering::Release),
        Holds::Zero | Holds::File | Holds::Direct | Holds::Borrowed => return take(slot),
    }
    page
}

/// Makes a borrowed page the leaf's own, in a leaf that stays shared meanwhile. Returns false, with
/// nothing changed, if only a compare-exchange is safe.
///
/// A plain store is right: through a borrowed word, no thread stores to the page, removes the page,
/// or takes away its validity for loads. If a load sets that validity meanwhile, its change is
/// lost, and the next load sets it again. Validity for fetches, however, is taken away from shared
/// leaves too, and must not come back.
#[inline(always)]
pub(crate) fn own_in_shared(slot: &AtomicU64, old: Pte) -> bool {
    debug_assert_eq!(old.holds(), Holds::Borrowed);
    if old.has(VALID_X) {
        return false;
    }
    interleave();
    // Release: pairs with the Acquire in `load`, as `replace` does.
    slot.store(old.owned().0, Ordering::Release);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_told_apart_and_keeps_its_address() {
        let host = 0x7f12_3456_7000;
        for (pte, borrowed) in [
            (Pte::EMPTY, Pte::EMPTY),
            (Pte::zero(host, VALID_R), Pte::EMPTY),
            (Pte::file(host, VALID), Pte::EMPTY),
            (Pte::direct(host, VALID), Pte::EMPTY),
            (Pte::own(host), Pte::own(host).borrowed()),
            (Pte::own(host).borrowed(), Pte::own(host).borrowed()),
        ] {
            assert_eq!(pte.borrowed_or_empty(), borrowed);
        }
        for (pte, holds) in [
            (Pte::EMPTY, Holds::Nothing),
            (Pte::zero(host, VALID_R), Holds::Zero),
            (Pte::file(host, VALID_R | VALID_W), Holds::File),
            (Pte::direct(host, VALID_R | VALID_W), Holds::Direct),
            (Pte::own(host), Holds::Own),
            (Pte::own(host).borrowed(), Holds::Borrowed),
            (Pte::own(host).borrowed().owned(), Holds::Own),
        ] {
            assert_eq!(pte.holds(), holds);
            assert_eq!(pte.host(), if pte == Pte::EMPTY { 0 } else { host });
        }
        assert!(
            !Pte::own(host).borrowed().has(VALID_W),
            "a borrowed page is never writable"
        );
        assert!(!Pte::zero(host, VALID_R).has(VALID_W), "I4");
    }

    #[cfg(not(shuttle))] // under shuttle, code that touches a slot has to run in an exploration
    #[test]
    fn a_copy_that_replaces_a_page_of_a_file_keeps_its_rights() {
        let (file, own) = (Pte::file(0x1000, VALID), Pte::own(0x2000));
        let slot = AtomicU64::new(own.0);
        assert_eq!(take_valid_of_file(&slot, file, VALID), None);
        assert_eq!(load(&slot), own);
        slot.store(file.0, Ordering::Relaxed);
        let aged = Pte::file(0x1000, VALID_R);
        assert_eq!(take_valid_of_file(&slot, aged, VALID_W), Some(file));
        assert_eq!(load(&slot), Pte::file(0x1000, VALID_R | VALID_X));
    }
}
