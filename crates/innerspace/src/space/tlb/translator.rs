//! The translation cache: leaf pointers.
//!
//! An accessor remembers the address of the leaf of each 2 MiB in which it works; every access then
//! reads the page's word in the leaf. So a changed word (revoked, aged, copied, upgraded) takes
//! effect on the next access of every thread without a message, and mail is needed only when a leaf
//! is replaced. Compared with an array of translations for each page, this cache is as fast on
//! random accesses, faster on dependent loads, and takes only a few KiB (`innerspace-bench
//! translation`). If the pages of a leaf are contiguous, no word is read, so a changed word alone
//! has no effect; `coalesced` explains what is done instead.
//!
//! The processor's own prefetching mostly stops at the end of a page (`sys::copy::prefetch`), and
//! the next page of a space may be anywhere in memory. So when an access at the beginning of one
//! page is followed by one at the beginning of the next, the first bytes of the page after that are
//! prefetched. An access at the beginning of a page (its first 32 bytes) is recognised by its
//! offset and looked up out of line.
//!
//! A slot has two tags. The read tag is set for any leaf. The write tag is set only while the leaf
//! is exclusive to the space, since a shared leaf may still have VALID_W from before the fork.
//!
//! Unsafe code: this file dereferences leaf pointers and page addresses. Both are valid inside the
//! section in which the leaf was found or the mailbox was read. A thread that removes a leaf or a
//! page first makes it unreachable. It posts mail if it removes a leaf, or a page of a leaf that
//! may be coalesced. Then it lets a grace period pass before the memory is reused (`sync::domain`).
//! The memory itself belongs to the arena, which outlives every accessor.

use std::hint::cold_path;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::page::Page;
use super::place::{Found, Place};
use crate::space::core::address::{LEAF_SHIFT, SLOTS};
use crate::space::core::fault::AccessKind;
use crate::space::table::pte;
use crate::sync::Arc;
use crate::sync::domain::{CacheBinding, Domain, PendingMark, Post, Sections};
use crate::sync::raw::AtomicU64;
use crate::sys::copy::{self};
use crate::{PAGE_SHIFT, PAGE_SIZE, sys};

/// The number of remembered leaves, a power of two: 512 MiB of address space in 6.5 KiB.
pub(crate) const LEAVES: usize = 256;
/// The number of bytes that count as the beginning of a page. A run of accesses in small steps
/// always touches them.
pub(super) const BEGINNING: usize = 32;
/// The number of bytes of the next page that are prefetched. Four lines are enough: once several
/// adjacent lines have been requested, the processor prefetches the next ones.
pub(super) const AHEAD: usize = 256;
/// The tag of a slot without a leaf: no leaf has this number.
pub(super) const NO_LEAF: u64 = u64::MAX;
/// Mail that names no leaf: the accessor must check the gate before its next hit, and forgets its
/// coalesced leaves but no others.
pub(crate) const GATE_MAIL: Post = Post::One(u64::MAX - 1);

/// The numbers of the remembered leaves. The low bits of a number are the index of its slot.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Tags {
    /// For each slot, the number (address / 2 MiB) of the leaf that loads may use.
    pub(crate) read: [u64; LEAVES],
    /// For each slot, the number of the leaf that stores may use.
    pub(crate) write: [u64; LEAVES],
}

/// The remembered leaves, in one array for each field, so that a hit reads one tag and one place. A
/// translator finds them by a pointer in its participant. While there is mail, that pointer points
/// to [`EMPTY_LEAVES`] instead.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Leaves {
    pub(super) tags: Tags,
    pub(super) places: [Place; LEAVES],
    /// For each slot, the number of out-of-line accesses since `coalesced` last checked the words
    /// of the leaf, to see whether the pages are contiguous.
    pub(super) visits: [u16; LEAVES],
    /// An upper bound on the number of coalesced places.
    pub(super) coalesced: u16,
    /// The number of times that coalesced leaves were forgotten, counted up to `DOUBLED`.
    pub(super) forgotten: u8,
}

pub(super) const NO_LEAVES: Leaves = Leaves {
    tags: Tags {
        read: [NO_LEAF; LEAVES],
        write: [NO_LEAF; LEAVES],
    },
    places: [Place::NONE; LEAVES],
    visits: [0; LEAVES],
    coalesced: 0,
    forgotten: 0,
};

/// The leaves that a translator sees while there is mail for it: none.
pub(super) static EMPTY_LEAVES: Leaves = NO_LEAVES;

// SAFETY: the pointers inside are used only by the owner of the translator, inside its section;
// those of the static are null.
unsafe impl Sync for Leaves {}

/// The leaves of one translator, on the heap. This is a pointer and not a `Box`, because a `Box`
/// would claim to be the only pointer to them. Generated code reads the leaves between two calls,
/// and the participant keeps their address. Those pointers must stay valid when the leaves are
/// written here, and when the translator is moved.
pub(crate) struct LeavesPlace(NonNull<Leaves>);

impl LeavesPlace {
    fn new() -> LeavesPlace {
        LeavesPlace(NonNull::from(Box::leak(Box::new(NO_LEAVES))))
    }

    /// Returns the address of the tags, which come first. It is derived from the one pointer to the
    /// leaves, so no use of that pointer invalidates it.
    #[cfg(all(feature = "layout", not(shuttle)))]
    pub(crate) fn tags(&self) -> *mut Tags {
        // SAFETY: this only computes an address inside the leaves; no reference is made, and
        // nothing is read.
        unsafe { &raw mut (*self.0.as_ptr()).tags }
    }

    /// Returns the address of the places, derived from the one pointer to the leaves, as in `tags`.
    #[cfg(all(feature = "layout", not(shuttle)))]
    pub(crate) fn places(&self) -> *const *const u64 {
        // SAFETY: as for `tags`.
        unsafe { (&raw const (*self.0.as_ptr()).places).cast() }
    }
}

impl Deref for LeavesPlace {
    type Target = Leaves;

    #[inline(always)]
    fn deref(&self) -> &Leaves {
        // SAFETY: made by `new`, freed by `drop`; the borrow of `self` keeps writers away, and
        // generated code only reads.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for LeavesPlace {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Leaves {
        // SAFETY: as above; the borrow is exclusive, and generated code does not run during a call.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for LeavesPlace {
    fn drop(&mut self) {
        // SAFETY: made from a box by `new`, and no longer used by anything.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// An accessor's private state: its sections and the leaves it remembers.
pub(crate) struct Translator {
    pub(crate) sections: Sections,
    pub(crate) leaves: LeavesPlace,
    /// The number of the page of the last access that hit out of line, usually at the page's
    /// beginning.
    pub(super) begun: u64,
}

// SAFETY: the pointers lead into the arena, which all threads share, and the owner of the
// translator uses them only inside its section; that owner may be any thread.
unsafe impl Send for Translator {}

/// The state that tells an access whether it hits.
#[derive(Clone, Copy)]
pub(crate) struct Look<'t> {
    pub(super) leaves: &'t Leaves,
    pub(super) mail: PendingMark,
}

impl Look<'_> {
    /// Calls `act` with the host address of the page of `at`, or of the byte itself, if there is no
    /// mail, the leaf is remembered, and the page is valid for the access. The caller is in a
    /// section.
    ///
    /// `act` is called in two branches, and not after they join, so that each uses its address
    /// directly.
    #[inline(always)]
    pub(super) fn find<R>(
        self,
        at: u64,
        access: AccessKind,
        act: impl Fn(Found) -> R,
    ) -> Option<R> {
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        let tags = &self.leaves.tags;
        let (tag, valid) = match access {
            AccessKind::Load => (tags.read[slot], pte::VALID_R),
            AccessKind::Store | AccessKind::Exchange => (tags.write[slot], pte::VALID_W),
            AccessKind::Fetch => (tags.read[slot], pte::VALID_X),
        };
        if tag != self.mail.mark(leaf) {
            cold_path();
            return None;
        }
        let place = self.leaves.places[slot];
        if place.is_coalesced() {
            if access == AccessKind::Fetch {
                cold_path();
                return None;
            }
            let done = act(Found::Byte(place.byte(at)));
            sys::stay_apart();
            return Some(done);
        }
        // SAFETY: the tag, which is this translator's or `NO_LEAF`, says that the place belongs to
        // this address's leaf (no address has the number `NO_LEAF`). So this is one of the leaf's
        // 512 words, and the section keeps the leaf (see the module).
        let entry = pte::load(unsafe { &*place.word(at) });
        if !entry.has(valid) {
            cold_path();
            return None;
        }
        Some(act(Found::Page(entry.host())))
    }
}

impl Leaves {
    /// Forgets the leaves that the message names.
    pub(crate) fn forget(&mut self, post: Post) {
        match post {
            Post::All => {
                self.note_forgotten();
                let forgotten = self.forgotten;
                *self = NO_LEAVES;
                self.forgotten = forgotten;
            }
            GATE_MAIL => self.forget_coalesced(),
            Post::One(leaf) => {
                let slot = leaf as usize % LEAVES;
                if self.tags.read[slot] == leaf {
                    if self.places[slot].is_coalesced() {
                        self.note_forgotten();
                    }
                    self.tags.read[slot] = NO_LEAF;
                    self.tags.write[slot] = NO_LEAF;
                }
            }
        }
    }
}

/// Returns the offset of `at` in its page, if `size` bytes from `at` are in the page and not at its
/// beginning.
#[inline(always)]
pub(super) fn offset_past_beginning(at: u64, size: usize) -> Option<usize> {
    let past = (at as usize).wrapping_sub(BEGINNING) % PAGE_SIZE;
    if past > PAGE_SIZE - BEGINNING - size {
        cold_path();
        return None;
    }
    Some(past + BEGINNING)
}

impl Translator {
    /// Creates an empty translator of the space with the number `owner`.
    pub(crate) fn new(domain: &Arc<Domain>, owner: u64) -> Translator {
        let leaves = LeavesPlace::new();
        let binding = CacheBinding::new(leaves.0.as_ptr(), &raw const EMPTY_LEAVES);
        Translator {
            sections: Domain::register_at(domain, binding, owner),
            leaves,
            begun: 0,
        }
    }

    /// The number of bytes that a translator takes, its participant and a full mailbox included.
    pub(crate) const SIZE: usize = size_of::<Leaves>() + 1024;

    /// Returns the bytes at `at` if `size` of them are in one page that is valid for the access,
    /// its leaf is remembered, and there is no mail. The caller is in a section.
    #[inline(always)]
    pub(crate) fn hit(&self, at: u64, size: usize, access: AccessKind) -> Option<Page> {
        let offset = at as usize % PAGE_SIZE;
        let page = self.look().find(at, access, |found| found.page(offset))?;
        // A suspended session does not reach this line: it has mail, so it finds nothing.
        debug_assert!(self.sections.is_open());
        if offset > PAGE_SIZE - size {
            cold_path();
            return None;
        }
        Some(page)
    }

    /// Returns the state for an access in a section that is open and ordered.
    #[inline(always)]
    pub(crate) fn look(&self) -> Look<'_> {
        let visible = self.sections.visible().cast::<Leaves>();
        // SAFETY: `visible` points to this translator's own leaves, which are written only through
        // an exclusive borrow of it, or to `EMPTY_LEAVES`: `Translator::new` registers no others.
        let leaves = unsafe { &*visible };
        // No mark is needed, because no leaves are visible while there is mail.
        let mail = PendingMark::NONE;
        Look { leaves, mail }
    }

    /// Calls `act` with the page that `hit` would find, unless the access is at the beginning of a
    /// page, which [`Translator::hit_and_fetch_ahead`] handles. If the access is not in a session,
    /// also opens and closes its section; but a miss leaves the section open and not yet ordered.
    ///
    /// `act` is called here, and not by the caller, so that hit and miss are distinguished only
    /// once.
    #[inline(always)]
    pub(crate) fn hit_value<R>(
        &mut self,
        in_session: bool,
        (at, size): (u64, usize),
        access: AccessKind,
        act: impl Fn(Page) -> R,
    ) -> Option<R> {
        if in_session {
            let offset = offset_past_beginning(at, size)?;
            return self.look().find(at, access, |found| {
                debug_assert!(self.sections.is_open());
                act(found.page(offset))
            });
        }
        let leaves = &*self.leaves;
        self.sections.alone(|mail| {
            let offset = offset_past_beginning(at, size)?;
            Look { leaves, mail }.find(at, access, |found| act(found.page(offset)))
        })
    }

    /// Does the same as `hit`. If the previous call that hit was for the page before this one, also
    /// prefetches the first [`AHEAD`] bytes of the next page, if that is a hit too.
    pub(crate) fn hit_and_fetch_ahead(
        &mut self,
        at: u64,
        size: usize,
        access: AccessKind,
    ) -> Option<Page> {
        let page = self.hit(at, size, access)?;
        let number = at >> PAGE_SHIFT;
        let before = std::mem::replace(&mut self.begun, number);
        if number.wrapping_sub(before) == 1 {
            let next = (number + 1) << PAGE_SHIFT;
            if let Some(Page(bytes)) = self.hit(next, AHEAD, access) {
                copy::prefetch::<AHEAD>(bytes.as_ptr());
            }
        }
        Some(page)
    }

    /// Returns the word of the page of `at`, if its leaf is remembered for the access and there is
    /// no mail. A leaf that is remembered for stores stays exclusive to the space while the section
    /// is open. Other leaves may be shared, and in use by accessors of the spaces that share them.
    /// The caller is in a section.
    #[inline(always)]
    pub(crate) fn slot(&self, at: u64, access: AccessKind) -> Option<&AtomicU64> {
        let tags = &self.look().leaves.tags;
        let tags = match access.writes() {
            true => &tags.write,
            false => &tags.read,
        };
        let word = self.place_of_words(at, tags)?.word(at);
        // SAFETY: as in `find`: the tag says whose leaf it is, and the section keeps the leaf and
        // stays open while `self` is borrowed.
        Some(unsafe { &*word })
    }

    /// Returns the place of the words of the leaf of `at`, if one of these tags names the leaf and
    /// it is not coalesced. (In a coalesced leaf no page is missing.)
    #[inline(always)]
    pub(super) fn place_of_words(&self, at: u64, tags: &[u64; LEAVES]) -> Option<Place> {
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        let place = self.leaves.places[slot];
        (tags[slot] == leaf && !place.is_coalesced()).then_some(place)
    }

    /// Prefetches the first quarter of the page that begins at `at`, if the page is valid for the
    /// access. The caller is in a section.
    #[inline(always)]
    pub(crate) fn prefetch(&self, at: u64, access: AccessKind) {
        if let Some(Page(bytes)) = self.hit(at, 1, access) {
            copy::prefetch::<{ PAGE_SIZE / 4 }>(bytes.as_ptr());
        }
    }

    /// Remembers the leaf of `at`: for all accesses if `for_stores` is set, otherwise only for
    /// loads and fetches. The section in which the leaf was found is still open.
    pub(crate) fn fill(&mut self, at: u64, words: &[AtomicU64; SLOTS], for_stores: bool) {
        debug_assert!(self.sections.is_open());
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        self.leaves.tags.read[slot] = leaf;
        self.leaves.tags.write[slot] = if for_stores { leaf } else { NO_LEAF };
        self.leaves.places[slot] = Place::of_words(words, leaf);
        self.leaves.visits[slot] = 0;
    }

    /// Remembers the leaf that a fault found. A leaf that is remembered already, and found for
    /// loads now, is left unchanged, since it may be remembered for stores too.
    pub(crate) fn found(&mut self, at: u64, words: &[AtomicU64; SLOTS], for_stores: bool) {
        let leaf = at >> LEAF_SHIFT;
        let known = self.leaves.tags.read[leaf as usize % LEAVES] == leaf;
        if for_stores || !known {
            self.fill(at, words, for_stores);
        }
    }

    /// Reads the mail and forgets the leaves that it names. The caller is in a section, and has not
    /// used a remembered leaf in it yet.
    #[cold]
    pub(crate) fn drain(&mut self) {
        let leaves = &mut *self.leaves;
        self.sections.drain(|post| leaves.forget(post));
    }

    /// Opens a section and reads the mail.
    pub(crate) fn enter_and_drain(&mut self) {
        self.sections.enter();
        if self.sections.has_mail() {
            self.drain();
        }
    }
}
