//! The translation cache: leaf pointers.
//!
//! An accessor remembers where the leaf of each 2 MiB it works in lies; every access then reads the
//! leaf's live word. So a changed word (revoked, aged, copied, upgraded) acts on the next access of
//! every thread by itself, and mailboxes are needed only where a leaf is replaced. Measured against
//! an array of per-page translations it is as fast on random access, faster on dependent loads, and
//! a few KiB large (`innerspace-bench translation`). If the pages of a leaf lie in a row no word is
//! read. A changed word does not act by itself then; `coalesced` says what is done instead.
//!
//! The processor fetches ahead by itself, but not past the end of a page, since the next page of a
//! space may lie anywhere. So an access that comes upwards from the beginning of one page to that
//! of the next prefetches the first bytes of the page after. Such accesses are told apart by their
//! offset and looked up out of line, four of the 512 words of a page.
//!
//! A slot has two tags. The read tag is set for any leaf; the write tag only while the leaf is the
//! space's alone, since in a shared leaf VALID_W may be left from the time before the fork.
//!
//! Unsafe code: this file dereferences leaf pointers and page addresses. Both are valid inside the
//! section in which the leaf was found or the mailbox was looked at. A thread that takes a leaf or
//! a page away makes it unreachable, posts if it is a leaf or in one that may be coalesced, and
//! lets a grace period pass before the memory is reused (`sync::domain`). The memory itself is the
//! arena's, which outlives every accessor.

use crate::space::core::address::LEAF_SHIFT;
use std::hint::cold_path;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::page::Page;
use super::place::{Found, Place};
use crate::space::core::address::SLOTS;
use crate::space::table::pte;
use crate::sync::Arc;
use crate::sync::domain::{CacheBinding, Domain, Participant, PendingMark, Post, Sections};
use crate::sync::raw::AtomicU64;
use crate::sys::copy::{self};
use crate::{PAGE_SHIFT, PAGE_SIZE, sys};

/// Leaves remembered, a power of two: 512 MiB of address space in 6.5 KiB.
pub(crate) const LEAVES: usize = 256;
/// Bytes that count as the beginning of a page: a run of small steps comes by there.
pub(super) const BEGINNING: usize = 32;
/// Bytes of the next page to prefetch. Four lines are enough: the processor goes on by itself once
/// some in a row were requested.
pub(super) const AHEAD: usize = 256;
/// A tag that no address has.
pub(super) const NO_LEAF: u64 = u64::MAX;
/// Mail that names no leaf: nothing is to be forgotten, but the gate is to be looked at before the
/// next hit.
pub(crate) const GATE_MAIL: Post = Post::One(u64::MAX - 1);

/// The numbers of the remembered leaves, each at the place that its low bits say.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Tags {
    /// The number of the leaf (address / 2 MiB) that loads may use.
    pub(crate) read: [u64; LEAVES],
    /// The same for stores.
    pub(crate) write: [u64; LEAVES],
}

/// The remembered leaves, with one array for each field: a hit reads one tag and one place. A
/// translator finds them by a pointer of its participant, which leads to [`EMPTY_LEAVES`] in
/// place of its own while there is mail.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Leaves {
    pub(super) tags: Tags,
    pub(super) places: [Place; LEAVES],
    /// Accesses out of line since the words were looked at.
    pub(super) visits: [u16; LEAVES],
    /// Places that are coalesced, at most.
    pub(super) coalesced: u16,
    /// How often some were forgotten again.
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

/// The leaves that every translator sees while there is mail for it.
pub(super) static EMPTY_LEAVES: Leaves = NO_LEAVES;

// SAFETY: it has pointers, which the owner of the translator uses only inside its section; those of
// the static lead nowhere.
unsafe impl Sync for Leaves {}

/// The leaves of one translator, on the heap. Not a `Box`, which would say that nobody else has an
/// address of them: generated code reads them between two calls, and the participant keeps their
/// address: pointers that have to stay good when they are written here and the translator is moved.
pub(super) struct LeavesPlace(NonNull<Leaves>);

impl LeavesPlace {
    fn new() -> LeavesPlace {
        LeavesPlace(NonNull::from(Box::leak(Box::new(NO_LEAVES))))
    }

    /// The tags, which come first: the pointer is derived from the one pointer, so that no use of
    /// that one invalidates it.
    #[cfg(all(feature = "layout", not(shuttle)))]
    fn tags(&self) -> *mut Tags {
        // SAFETY: a place inside what the pointer leads to; no reference is made, and nothing read.
        unsafe { &raw mut (*self.0.as_ptr()).tags }
    }

    /// The places, likewise.
    #[cfg(all(feature = "layout", not(shuttle)))]
    fn places(&self) -> *const *const u64 {
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
        // SAFETY: made from a box by `new`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl std::fmt::Debug for LeavesPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// An accessor's private state: its sections and what it remembers.
#[derive(Debug)]
pub(crate) struct Translator {
    pub(crate) sections: Sections,
    pub(super) leaves: LeavesPlace,
    /// The number of the page at whose beginning the last access was that looked there.
    pub(super) begun: u64,
}

/// What a session looks at in each access. The session has its own copy, so that in a loop of
/// accesses all this stays in registers.
#[derive(Debug)]
pub(crate) struct SessionBinding {
    participant: Arc<Participant>,
}

// SAFETY: the pointers lead into the arena, which all threads share, and the owner of the
// translator uses them only inside its section; which thread that is does not matter.
unsafe impl Send for Translator {}

/// What an access looks at to see whether it hits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'t> {
    pub(super) leaves: &'t Leaves,
    pub(super) mail: PendingMark,
}

impl Look<'_> {
    /// The look of an access in a session: the visible leaves, and no mail, since no leaves are
    /// visible while there is some.
    ///
    /// Safety: `visible` comes from the participant of a translator that is borrowed for as long.
    #[inline(always)]
    pub(super) unsafe fn in_session<'t>(visible: *mut ()) -> Look<'t> {
        // SAFETY: `Translator::new` gives no other places than its own leaves, which live as long
        // as it and are written only through an exclusive borrow of it, and `EMPTY_LEAVES`.
        let leaves = unsafe { &*visible.cast::<Leaves>() };
        Look {
            leaves,
            mail: PendingMark::NONE,
        }
    }

    /// Does `act` with the address of the bytes of the page of `at`, if there is no mail, and its
    /// leaf is remembered and valid for `need`. In a section.
    ///
    /// `act` is called in two places, and not behind them, so that each way uses its address
    /// directly.
    #[inline(always)]
    pub(super) fn find<R>(self, at: u64, need: Need, act: impl Fn(Found) -> R) -> Option<R> {
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        let (tag, valid) = match need {
            Need::Read => (self.leaves.tags.read[slot], pte::VALID_R),
            Need::Write => (self.leaves.tags.write[slot], pte::VALID_W),
            Need::Fetch => (self.leaves.tags.read[slot], pte::VALID_X),
        };
        if tag != self.mail.mark(leaf) {
            cold_path();
            return None;
        }
        let place = self.leaves.places[slot];
        if place.is_coalesced() {
            if need == Need::Fetch {
                cold_path();
                return None;
            }
            let done = act(Found::Byte(place.byte(at)));
            sys::stay_apart();
            return Some(done);
        }
        // SAFETY: the tag, which is our own or `NO_LEAF`, says that the place is the one of this
        // address's leaf (`NO_LEAF` is no number of an address), so this is one of its 512 words,
        // and the section keeps the leaf (see the module).
        let entry = pte::load(unsafe { &*place.word(at) });
        if !entry.has(valid) {
            cold_path();
            return None;
        }
        Some(act(Found::Page(entry.host())))
    }
}

/// What an access needs of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Read,
    Write,
    Fetch,
}

impl Leaves {
    pub(super) fn forget(&mut self, post: Post) {
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

/// Where `at` is in its page, if `size` bytes of it lie there and are not its first.
#[inline(always)]
pub(super) fn offset_past_beginning(at: u64, size: usize) -> Option<usize> {
    let past = (at as usize).wrapping_sub(BEGINNING) % PAGE_SIZE;
    if past > PAGE_SIZE - BEGINNING - size {
        cold_path();
        return None;
    }
    Some(past + BEGINNING)
}

impl SessionBinding {
    /// [`Translator::hit_past_beginning`] of `translator`, to which this binding belongs.
    #[inline(always)]
    pub(crate) fn hit<R>(
        &self,
        translator: &Translator,
        (at, size): (u64, usize),
        need: Need,
        act: impl Fn(Page) -> R,
    ) -> Option<R> {
        let offset = offset_past_beginning(at, size)?;
        debug_assert!(Arc::ptr_eq(
            &self.participant,
            translator.sections.participant()
        ));
        // SAFETY: that of `translator`, which is borrowed.
        let look = unsafe { Look::in_session(self.participant.visible()) };
        look.find(at, need, |found| {
            debug_assert!(self.participant.is_open());
            act(found.page(offset))
        })
    }
}

impl Translator {
    /// An empty one, of the space with the number `owner`.
    pub(crate) fn new(domain: &Arc<Domain>, owner: u64) -> Translator {
        let leaves = LeavesPlace::new();
        let binding = CacheBinding::new(leaves.0.as_ptr(), &raw const EMPTY_LEAVES);
        Translator {
            sections: Domain::register_at(domain, binding, owner),
            leaves,
            begun: 0,
        }
    }

    /// Bytes a translator takes, its participant and a full mailbox included.
    pub(crate) const SIZE: usize = size_of::<Leaves>() + 1024;

    /// The tags, for generated code.
    #[cfg(all(feature = "layout", not(shuttle)))]
    pub(crate) fn tags(&self) -> *mut Tags {
        self.leaves.tags()
    }

    /// The places, for generated code.
    #[cfg(all(feature = "layout", not(shuttle)))]
    pub(crate) fn places(&self) -> *const *const u64 {
        self.leaves.places()
    }

    /// The bytes at `at` if `size` of them lie in one page that is valid for `need`. In a section.
    #[inline(always)]
    pub(crate) fn hit(&self, at: u64, size: usize, need: Need) -> Option<Page> {
        self.hit_if(self.look(), at, size, need)
    }

    /// What an access looks at in a section that was opened for more than one.
    #[inline(always)]
    pub(crate) fn look(&self) -> Look<'_> {
        // SAFETY: our own, and borrowed.
        unsafe { Look::in_session(self.sections.visible()) }
    }

    /// What an access looks at in a section of its own ([`Sections::enter_alone`]).
    #[inline(always)]
    pub(crate) fn look_alone(&self) -> Look<'_> {
        Look {
            leaves: &self.leaves,
            mail: self.sections.pending_mark(),
        }
    }

    /// The same, by `look`.
    #[inline(always)]
    pub(crate) fn hit_if(&self, look: Look<'_>, at: u64, size: usize, need: Need) -> Option<Page> {
        let offset = at as usize % PAGE_SIZE;
        let found = |found: Found| found.page(offset);
        let page = look.find(at, need, found)?;
        // A session that was suspended meanwhile has mail.
        debug_assert!(self.sections.is_open());
        if offset > PAGE_SIZE - size {
            cold_path();
            return None;
        }
        Some(page)
    }

    /// [`Translator::hit_past_beginning`] in a section of its own, which is left open on a miss.
    #[inline(always)]
    pub(crate) fn hit_alone<R>(
        &mut self,
        (at, size): (u64, usize),
        need: Need,
        act: impl Fn(Page) -> R,
    ) -> Option<R> {
        let leaves = &*self.leaves;
        self.sections.alone(|mail| {
            let offset = offset_past_beginning(at, size)?;
            Look { leaves, mail }.find(at, need, |found| act(found.page(offset)))
        })
    }

    /// Does `act` with the page that `hit_if` would find, except for the first bytes of a page:
    /// those are for [`Translator::hit_and_fetch_ahead`].
    ///
    /// `act` is called here, and not by the caller, so that hit and miss are not told apart twice.
    #[inline(always)]
    pub(crate) fn hit_past_beginning<R>(
        &self,
        look: Look<'_>,
        (at, size): (u64, usize),
        need: Need,
        act: impl Fn(Page) -> R,
    ) -> Option<R> {
        let offset = offset_past_beginning(at, size)?;
        look.find(at, need, |found| {
            debug_assert!(self.sections.is_open());
            act(found.page(offset))
        })
    }

    /// Like `hit`; if the access comes from the beginning of the page before, the next page is
    /// prefetched.
    pub(crate) fn hit_and_fetch_ahead(&mut self, at: u64, size: usize, need: Need) -> Option<Page> {
        let page = self.hit(at, size, need)?;
        let number = at >> PAGE_SHIFT;
        let before = std::mem::replace(&mut self.begun, number);
        if number.wrapping_sub(before) == 1 {
            let next = (number + 1) << PAGE_SHIFT;
            if let Some(Page(bytes)) = self.hit(next, AHEAD, need) {
                copy::prefetch_first::<AHEAD>(bytes.as_ptr());
            }
        }
        Some(page)
    }

    pub(crate) fn binding(&self) -> SessionBinding {
        SessionBinding {
            participant: self.sections.participant().clone(),
        }
    }

    /// The word of the page of `at`, if its leaf is remembered for stores and there is no mail: the
    /// leaf is the space's alone for as long as the section is open. In a section.
    #[inline(always)]
    pub(crate) fn slot_to_write(&self, at: u64) -> Option<&AtomicU64> {
        self.slot(at, &self.look().leaves.tags.write)
    }

    /// The same if the leaf is remembered for loads: others may share it, and their accessors may
    /// be in it.
    #[inline(always)]
    pub(crate) fn slot_to_read(&self, at: u64) -> Option<&AtomicU64> {
        self.slot(at, &self.look().leaves.tags.read)
    }

    #[inline(always)]
    pub(super) fn slot(&self, at: u64, tags: &[u64; LEAVES]) -> Option<&AtomicU64> {
        let word = self.place_of_words(at, tags)?.word(at);
        // SAFETY: as in `find`: the tag says whose leaf it is, and the section, which the borrow
        // keeps open, keeps it.
        Some(unsafe { &*word })
    }

    /// Where the words of the leaf of `at` are, if one of these tags names it and it is not
    /// coalesced: a coalesced leaf misses no page.
    #[inline(always)]
    pub(super) fn place_of_words(&self, at: u64, tags: &[u64; LEAVES]) -> Option<Place> {
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        let place = self.leaves.places[slot];
        (tags[slot] == leaf && !place.is_coalesced()).then_some(place)
    }

    /// Prefetches the first bytes of the page of `at`, if it is valid for `need`. In a section.
    #[inline(always)]
    pub(crate) fn prefetch(&self, at: u64, need: Need) {
        if let Some(Page(bytes)) = self.hit(at, 1, need) {
            copy::prefetch_page(bytes.as_ptr());
        }
    }

    /// Remembers the leaf of `at`. In the section in which it was found.
    pub(crate) fn fill(&mut self, at: u64, words: &[AtomicU64; SLOTS], use_for: Need) {
        debug_assert!(self.sections.is_open());
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        self.leaves.tags.read[slot] = leaf;
        self.leaves.tags.write[slot] = if use_for == Need::Write {
            leaf
        } else {
            NO_LEAF
        };
        self.leaves.places[slot] = Place::of_words(words, leaf);
        self.leaves.visits[slot] = 0;
    }

    /// The same, by a fault: a leaf remembered for loads stays, since it may be good for stores as
    /// well.
    pub(crate) fn found(&mut self, at: u64, words: &[AtomicU64; SLOTS], use_for: Need) {
        let leaf = at >> LEAF_SHIFT;
        let known = self.leaves.tags.read[leaf as usize % LEAVES] == leaf;
        if use_for == Need::Write || !known {
            self.fill(at, words, use_for);
        }
    }

    /// Forgets the leaves that the message names, as if it had been read.
    pub(crate) fn forget(&mut self, post: Post) {
        self.leaves.forget(post);
    }

    /// Reads the mail and forgets what it names. In a section, before anything remembered is used.
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
