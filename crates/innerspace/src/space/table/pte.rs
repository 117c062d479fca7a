//! The word of a leaf slot: where a page's bytes are, and which accesses need nothing more.
//!
//! ```text
//!  63..12                      5      4        3     2       1       0
//!  host address of the page    ZERO   BORROWED OWNED PRESENT VALID_W VALID_R
//!
//!  of the bits above these, 6: FILE, 7: VALID_X, 8: DIRECT
//! ```
//!
//! - *empty*: 0. Any sharer's fault may change it.
//! - *zero*: PRESENT, ZERO. The frame needs no keeper. A write fault (sole user of the path), a
//!   fault that finds the hole ended, and `Mappers::revoke` may change it.
//! - *file*: PRESENT, FILE. `mapped` of the frame's hold word keeps it. Faults and revokers may
//!   change it under the block's lock. Its validity alone changes with no lock, by a load that
//!   finds the page there, aging, samples and `Advice::Cold`.
//! - *direct*: PRESENT, DIRECT. The device keeps it, and the mapping keeps the device. As file,
//!   under the entry's lock; it is not aged.
//! - *own*: PRESENT, OWNED. One of the frame's refs belongs to this leaf. The sole user of the path
//!   may change it.
//! - *borrowed*: PRESENT, BORROWED. The leaf's shadow keeps it, directly or in turn. The sole user
//!   of the path may change it.
//!
//! If a page is the leaf's own and valid for loads and stores, and the leaf is the space's alone,
//! accessors may use it without reading the word (`tlb::coalesced`, which says when they are told
//! of changes).
//!
//! VALID_R says that a load needs nothing more, VALID_X the same of a fetch; they double as the
//! accessed bit, and aging clears them (with VALID_W). VALID_W says that a store needs nothing
//! more: the page is recorded dirty or is anonymous and this leaf's alone. Every change is a
//! compare-exchange or a read-modify-write, because accessors, faults and revokers meet here
//! without a lock. The exception is a page of the leaf's own that a structural change takes, with
//! the gate closed on it ([`take_alone`]).
//!
//! # The copy of a page that others share
//!
//! A store to a page of the leaf's own that somebody else keeps as well, or to a borrowed one,
//! loads the word, copies the bytes, and replaces the word if it is unchanged. Nobody may store to
//! the page in between, or the word must show it. While the page is shared nobody does. Once the
//! others have released it, a fault may make it writable in place: that sets VALID_W, which the
//! word of a page being copied does not have, or makes a borrowed page an own one. So the copy is
//! right as long as no word of anonymous memory *goes back* to an earlier value while a fault on
//! its page is inside the gate. These operations could take it back:
//!
//! - Structural changes, restores, [`take_dirty`](crate::space::Space::take_dirty) and
//!   [`watch_code`](crate::space::Accessor::watch_code): with the gate closed on the page, so no
//!   fault is inside, and a later copy loads the word later.
//! - `end_writes_in_place`, called for other spaces
//!   that have the page, with no gate of this one: it changes leaves which that space shares or
//!   borrows from, and a fault stores by words of leaves that are its space's alone. Such a leaf
//!   comes to be shared by a fork of its space, with the gate closed, and in no other way.
//! - `zap`: it empties words, with the gate open. A fault that finds such a word installs another
//!   page, or zeros. The old page is released after a grace period, so no fault that had found it
//!   is under way when it is used again.
//! - Aging, samples and revokers: they change words of files and of zeros alone
//!   ([`take_valid_of_file`]).

use crate::PAGE_SIZE;
use crate::sync::interleave;
use crate::sync::raw::{AtomicU64, Ordering};

/// May be loaded from with no further action; the accessed bit.
pub(crate) const VALID_R: u64 = 1 << 0;
/// May be stored to with no further action.
pub(crate) const VALID_W: u64 = 1 << 1;
const PRESENT: u64 = 1 << 2;
const OWNED: u64 = 1 << 3;
const BORROWED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
const FILE: u64 = 1 << 6;
/// May be fetched from with no further action: the mapping allows execution.
pub(crate) const VALID_X: u64 = 1 << 7;
/// All three.
pub(crate) const VALID: u64 = VALID_R | VALID_W | VALID_X;
/// A page of a direct access file, in its device.
const DIRECT: u64 = 1 << 8;
const FLAGS: u64 = PAGE_SIZE as u64 - 1;

/// The value of a leaf slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pte(pub(crate) u64);

/// What a present slot holds.
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

    /// An anonymous page of this leaf's own, ready for both kinds of access.
    pub(crate) fn own(host: u64) -> Pte {
        Pte(host | PRESENT | OWNED | VALID_R | VALID_W)
    }

    /// The host address of the page.
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

    /// Whether it is an anonymous page of the leaf's own. Asked in place of [`Pte::holds`] where
    /// all words of a leaf are gone through: one test a word.
    #[inline(always)]
    pub(crate) fn is_own(self) -> bool {
        self.0 & OWNED != 0
    }

    /// Whether it is borrowed; as `is_own`.
    #[inline(always)]
    pub(crate) fn is_borrowed(self) -> bool {
        self.0 & BORROWED != 0
    }

    /// Whether the page belongs to a file, as for `is_own`.
    #[inline(always)]
    pub(crate) fn is_of_file(self) -> bool {
        self.0 & FILE != 0
    }

    /// Whether taking the page out of its slot leaves something to be released.
    #[inline(always)]
    pub(crate) fn needs_letting_go(self) -> bool {
        self.0 & (OWNED | FILE) != 0
    }

    /// Whether the slot is empty or has the zero frame.
    #[inline(always)]
    pub(crate) fn is_vacant(self) -> bool {
        self.0 & (FILE | DIRECT | OWNED | BORROWED) == 0
    }

    /// The same page as a copied leaf sees it: borrowed, and not writable until copied.
    pub(crate) fn borrowed(self) -> Pte {
        Pte(self.0 & !(OWNED | VALID_W) | BORROWED)
    }

    /// The same page, owned by this leaf with a reference of its own, not yet writable.
    pub(crate) fn owned(self) -> Pte {
        Pte(self.0 & !(BORROWED | VALID_W) | OWNED)
    }

    /// Makes a copy of the page at `host`, with the rights that [`Pte::owned`] leaves: accesses
    /// that the mapping forbids are not valid.
    pub(crate) fn copied_to(self, host: u64) -> Pte {
        Pte(self.owned().0 & FLAGS | host)
    }

    /// The word of a copied leaf, without a branch: borrowed if this is an anonymous page, and else
    /// empty.
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

/// Reads a slot. Acquire: pairs with the release that installed the page, so its bytes are there.
#[inline(always)]
pub(crate) fn load(slot: &AtomicU64) -> Pte {
    interleave();
    Pte(slot.load(Ordering::Acquire))
}

/// As [`load`], in one order with every [`replace`]: of two threads that each replace a slot and
/// then look at the other's, one at least sees that it was replaced.
pub(crate) fn load_in_order(slot: &AtomicU64) -> Pte {
    interleave();
    Pte(slot.load(Ordering::SeqCst))
}

/// Replaces `old` by `new` if nobody was faster. Release: publishes the page's bytes; Acquire: a
/// loser reads the winner's. SeqCst for [`load_in_order`].
pub(crate) fn replace(slot: &AtomicU64, old: Pte, new: Pte) -> bool {
    interleave();
    slot.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
}

/// Takes validity away and returns the old word. Sequenced before the grace period that makes it
/// effective.
pub(crate) fn take_valid(slot: &AtomicU64, valid: u64) -> Pte {
    interleave();
    Pte(slot.fetch_and(!valid, Ordering::AcqRel))
}

/// Takes validity from a slot that held `old` a moment ago and returns the old word, if it is still
/// a file's. A page of the space's own, which a store has installed meanwhile, keeps its validity,
/// since a restore goes by its write validity.
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

/// As [`take`], with the gate closed on the slot, in a leaf that is the space's alone. Then a page
/// of the leaf's own, or an empty slot, stays until the caller changes it. (A borrowed page may
/// become an own one when a fault beside the range collapses the shadow, and the other kinds may
/// meet a revoker.) With the gate open, only where nothing is mapped: every slot there is empty,
/// and stays so.
#[inline(always)]
pub(crate) fn take_alone(slot: &AtomicU64) -> Pte {
    let page = load(slot);
    match page.holds() {
        Holds::Nothing => {}
        // Release, as in `take`.
        Holds::Own => slot.store(0, Ordering::Release),
        Holds::Zero | Holds::File | Holds::Direct | Holds::Borrowed => return take(slot),
    }
    page
}

/// Makes a borrowed page the leaf's own, in a leaf that others share all the while; false, and
/// nothing is changed, where that takes a compare-exchange. Nobody stores by such a word, takes the
/// page away, or takes validity for loads. A load that sets its validity meanwhile does so in vain,
/// and the next load sets it again. But validity for fetches is taken away from shared leaves, too,
/// and must not come back.
#[inline(always)]
pub(crate) fn own_in_shared(slot: &AtomicU64, old: Pte) -> bool {
    debug_assert_eq!(old.holds(), Holds::Borrowed);
    if old.has(VALID_X) {
        return false;
    }
    interleave();
    // Release, as in `replace`.
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

    #[cfg(not(shuttle))] // which has to explore what touches a slot
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
