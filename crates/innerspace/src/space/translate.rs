//! The translation cache: leaf pointers.
//!
//! An accessor remembers where the leaf of each 2 MiB it works in lies; every access then reads the leaf's live word. So a
//! changed word (revoked, aged, copied, upgraded) acts on the next access of every thread by itself, and mailboxes are
//! needed only where a leaf is replaced. Measured against an array of per-page translations it is as fast on random
//! access, faster on dependent loads, and a few KiB large (`innerspace-bench translation`).
//!
//! The processor fetches ahead by itself what comes after the last few loads, but not past the end of a page: the next page of a
//! space may lie anywhere. So whoever comes upwards from the beginning of one page to that of the next has the first bytes
//! of the one after sent for. Such accesses are told apart by their offset and looked up out of line, four of the 512 words of a page.
//!
//! A slot has two tags. The read tag is set for any leaf; the write tag only while the leaf is the space's alone, since in
//! a shared leaf VALID_W may be left from the time before the fork.
//!
//! Unsafe code: this file dereferences leaf pointers and page addresses. Both are valid inside the section in which the
//! leaf was found or the mailbox was looked at: whoever takes a leaf or a page away makes it unreachable, posts if it is a
//! leaf, and lets a grace period pass before the memory is used for anything else (`sync::domain`). The memory itself is
//! the arena's, which outlives every accessor.

use std::hint::cold_path;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::pte::{self, Pte};
use super::table::SLOTS;
use crate::sync::Arc;
use crate::sync::domain::{Desk, Domain, Mail, Participant, Post, Sections};
use crate::sync::raw::AtomicU64;
use crate::sys::copy::{self, AtomicScalar, Modify, Scalar};
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// Leaves remembered, a power of two: 512 MiB of address space in 6 KiB.
pub(super) const LEAVES: usize = 256;
pub(super) const LEAF_SHIFT: u32 = PAGE_SHIFT + 9;
/// Bytes at which a page begins: who goes through it in small steps comes by there.
const BEGINNING: usize = 32;
/// Bytes of the next page to send for. Four lines are enough: the processor goes on by itself once it is asked for some in a row.
const AHEAD: usize = 256;
/// A tag that no address has.
const NO_LEAF: u64 = u64::MAX;
/// Mail that names no leaf: nothing is to be forgotten, but the gate is to be looked at before the next hit.
pub(super) const GATE_MAIL: Post = Post::One(u64::MAX - 1);

/// The numbers of the remembered leaves, each at the place that its low bits say. What a translator finds them by is shown to it by
/// its participant: while there is mail, [`NO_TAGS`] in place of its own.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Tags {
    /// The number of the leaf (address / 2 MiB) that loads may use.
    pub(super) read: [u64; LEAVES],
    /// The same for stores.
    pub(super) write: [u64; LEAVES],
}

/// Those of no leaf.
const NONE: Tags = Tags {
    read: [NO_LEAF; LEAVES],
    write: [NO_LEAF; LEAVES],
};

/// What every translator is shown while there is mail for it.
static NO_TAGS: Tags = NONE;

/// The remembered leaves, as one array a field: the hit reads one tag and one pointer.
#[derive(Debug)]
struct Leaves {
    tags: Tags,
    /// Where the word of page 0 would be if the leaf went on below its start: adding a page's number leads to its word.
    words: [*const AtomicU64; LEAVES],
}

const NO_LEAVES: Leaves = Leaves {
    tags: NONE,
    words: [std::ptr::null(); LEAVES],
};

/// The leaves of one translator, on the heap. Not a `Box`, which would say that nobody else has an address of them: generated code
/// reads them between two calls, and the participant keeps the address of the tags ([`LeavesPlace::tags`]):
/// pointers that have to stay good when they are written here and the
/// translator is moved.
struct LeavesPlace(NonNull<Leaves>);

impl LeavesPlace {
    fn new() -> LeavesPlace {
        LeavesPlace(NonNull::from(Box::leak(Box::new(NO_LEAVES))))
    }

    /// Of the tags: made from the one pointer, so that no use of that ends it.
    fn tags(&self) -> *mut Tags {
        // SAFETY: a place inside what the pointer leads to; no reference is made, and nothing read.
        unsafe { &raw mut (*self.0.as_ptr()).tags }
    }

    /// Of the words' addresses, likewise.
    #[cfg(all(feature = "layout", not(shuttle)))]
    fn words(&self) -> *const *const u64 {
        // SAFETY: as for `tags`.
        unsafe { (&raw const (*self.0.as_ptr()).words).cast() }
    }
}

impl Deref for LeavesPlace {
    type Target = Leaves;

    #[inline(always)]
    fn deref(&self) -> &Leaves {
        // SAFETY: made by `new`, freed by `drop`; the borrow of `self` keeps writers away, and generated code only reads.
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
pub(super) struct Translator {
    pub(super) sections: Sections,
    leaves: LeavesPlace,
    /// The number of the page at whose beginning the last access was that looked there.
    begun: u64,
}

/// What a session looks at in each access. It has it at hand, so that in a loop of accesses all this stays in registers.
#[derive(Debug)]
pub(super) struct AtHand {
    participant: Arc<Participant>,
    leaves: NonNull<Leaves>,
}

// SAFETY: the pointers lead into the arena, which all threads share, and are used by whoever owns the translator only
// inside its section; which thread that is does not matter.
unsafe impl Send for Translator {}

/// What an access looks at to see whether it hits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'t> {
    tags: &'t Tags,
    mail: Mail,
}

impl Look<'_> {
    /// That of an access in a session: the tags that it is shown, and no mail, since there are none while there is some.
    ///
    /// Safety: `shown` was shown by the participant of a translator that is borrowed for as long.
    #[inline(always)]
    unsafe fn in_session<'t>(shown: *mut ()) -> Look<'t> {
        // SAFETY: `Translator::new` gives no other places than its own tags, which live as long as it and are written by whoever
        // has it exclusively, and `NO_TAGS`.
        let tags = unsafe { &*shown.cast::<Tags>() };
        Look {
            tags,
            mail: Mail::NONE,
        }
    }
}

/// What an access needs of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    Read,
    Write,
    Fetch,
}

/// Bytes of one page, valid for what they were looked up for until the section ends in which they were. Made by
/// [`Translator::hit`], used up by value inside that section: `Core::access` alone hands one on.
#[derive(Debug)]
pub(super) struct Page(NonNull<u8>);

impl Leaves {
    /// The word of the page of `at`, if there is no mail, its leaf is remembered for `need` and it is valid for it. In a section.
    #[inline(always)]
    fn find(&self, at: u64, need: Need, look: Look<'_>) -> Option<Pte> {
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        let (tag, valid) = match need {
            Need::Read => (look.tags.read[slot], pte::VALID_R),
            Need::Write => (look.tags.write[slot], pte::VALID_W),
            Need::Fetch => (look.tags.read[slot], pte::VALID_X),
        };
        if tag != look.mail.mark(leaf) {
            cold_path();
            return None;
        }
        let word = self.words[slot].wrapping_add((at >> PAGE_SHIFT) as usize);
        // SAFETY: the tag, which is our own or `NO_LEAF`, says that the pointer is the one of this address's leaf (`NO_LEAF` is no
        // number of an address), so `word` is one of its 512 words, and the section keeps the leaf (see the module).
        let entry = pte::load(unsafe { &*word });
        if !entry.has(valid) {
            cold_path();
            return None;
        }
        Some(entry)
    }

    fn forget(&mut self, post: Post) {
        match post {
            Post::All => *self = NO_LEAVES,
            Post::One(leaf) => {
                let slot = leaf as usize % LEAVES;
                if self.tags.read[slot] == leaf {
                    self.tags.read[slot] = NO_LEAF;
                    self.tags.write[slot] = NO_LEAF;
                }
            }
        }
    }
}

/// Where `at` is in its page, if `size` bytes of it lie there and are not its first.
#[inline(always)]
fn offset_past_beginning(at: u64, size: usize) -> Option<usize> {
    let past = (at as usize).wrapping_sub(BEGINNING) % PAGE_SIZE;
    if past > PAGE_SIZE - BEGINNING - size {
        cold_path();
        return None;
    }
    Some(past + BEGINNING)
}

impl AtHand {
    /// Does `act` with the bytes that [`Translator::hit_past_beginning`] of `translator`, whose this is, would find.
    ///
    /// `act` stands here, and not where this returns to, so that nobody has to tell a hit from a miss again.
    #[inline(always)]
    pub(super) fn hit<R>(
        &self,
        translator: &Translator,
        (at, size): (u64, usize),
        need: Need,
        act: impl FnOnce(Page) -> R,
    ) -> Option<R> {
        let offset = offset_past_beginning(at, size)?;
        // SAFETY: that of `translator`, which is borrowed.
        let look = unsafe { Look::in_session(self.participant.shown()) };
        let entry = self.leaves(translator).find(at, need, look)?;
        debug_assert!(self.participant.is_open());
        Some(act(Page::at(entry, offset)))
    }

    #[inline(always)]
    fn leaves<'t>(&self, translator: &'t Translator) -> &'t Leaves {
        debug_assert_eq!(self.leaves, translator.leaves.0);
        // SAFETY: the translator's, which lives and is borrowed.
        unsafe { self.leaves.as_ref() }
    }
}

impl Page {
    #[inline(always)]
    fn at(entry: Pte, offset: usize) -> Page {
        let bytes = (entry.host() as *mut u8).wrapping_add(offset);
        // SAFETY: no page is at address 0, nor goes over the end of memory.
        Page(unsafe { NonNull::new_unchecked(bytes) })
    }
}

impl Translator {
    pub(super) fn new(domain: &Arc<Domain>) -> Translator {
        let leaves = LeavesPlace::new();
        let desk = Desk::new(leaves.tags(), &raw const NO_TAGS);
        Translator {
            sections: Domain::register_at(domain, desk),
            leaves,
            begun: 0,
        }
    }

    /// Bytes a translator takes, its participant and a full mailbox included.
    pub(super) const SIZE: usize = size_of::<Leaves>() + 1024;

    /// Where generated code finds what `hit` reads.
    #[cfg(all(feature = "layout", not(shuttle)))]
    pub(super) fn layout(&self) -> super::layout::TranslationLayout {
        super::layout::TranslationLayout {
            current: self.sections.shown_word().as_ptr().cast(),
            tags: self.leaves.tags().cast(),
            words: self.leaves.words(),
        }
    }

    /// The bytes at `at` if `size` of them lie in one page that is valid for `need`. In a section.
    #[inline(always)]
    pub(super) fn hit(&self, at: u64, size: usize, need: Need) -> Option<Page> {
        self.hit_if(self.look(), at, size, need)
    }

    /// What an access looks at in a section that was opened for more than one.
    #[inline(always)]
    pub(super) fn look(&self) -> Look<'_> {
        // SAFETY: our own, and borrowed.
        unsafe { Look::in_session(self.sections.shown()) }
    }

    /// What one looks at in a section of its own ([`Sections::enter_alone`]).
    #[inline(always)]
    pub(super) fn look_alone(&self) -> Look<'_> {
        Look {
            tags: &self.leaves.tags,
            mail: self.sections.lone_mail(),
        }
    }

    /// The same, with this to look at.
    #[inline(always)]
    pub(super) fn hit_if(&self, look: Look<'_>, at: u64, size: usize, need: Need) -> Option<Page> {
        let entry = self.leaves.find(at, need, look)?;
        // A session that was suspended meanwhile has mail.
        debug_assert!(self.sections.is_open());
        let offset = at as usize % PAGE_SIZE;
        if offset > PAGE_SIZE - size {
            cold_path();
            return None;
        }
        Some(Page::at(entry, offset))
    }

    /// As `hit_if`, but for the first bytes of a page: those are for [`Translator::hit_and_fetch_ahead`].
    #[inline(always)]
    pub(super) fn hit_past_beginning(
        &self,
        look: Look<'_>,
        at: u64,
        size: usize,
        need: Need,
    ) -> Option<Page> {
        let offset = offset_past_beginning(at, size)?;
        let entry = self.leaves.find(at, need, look)?;
        debug_assert!(self.sections.is_open());
        Some(Page::at(entry, offset))
    }

    /// As `hit`; if the access comes upwards from the beginning of the page before, the next page is sent for.
    pub(super) fn hit_and_fetch_ahead(&mut self, at: u64, size: usize, need: Need) -> Option<Page> {
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

    pub(super) fn at_hand(&self) -> AtHand {
        AtHand {
            participant: self.sections.participant().clone(),
            leaves: self.leaves.0,
        }
    }

    /// The word of the page of `at`, if its leaf is remembered for stores and there is no mail: for as long as the section, the
    /// leaf is the space's alone. In a section.
    #[inline(always)]
    pub(super) fn slot_to_write(&self, at: u64) -> Option<&AtomicU64> {
        self.slot(at, &self.look().tags.write)
    }

    /// The same if the leaf is remembered for loads: others may share it, and their accessors be in it.
    #[inline(always)]
    pub(super) fn slot_to_read(&self, at: u64) -> Option<&AtomicU64> {
        self.slot(at, &self.look().tags.read)
    }

    #[inline(always)]
    fn slot(&self, at: u64, tags: &[u64; LEAVES]) -> Option<&AtomicU64> {
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        if tags[slot] != leaf {
            return None;
        }
        let word = self.leaves.words[slot].wrapping_add((at >> PAGE_SHIFT) as usize);
        // SAFETY: as in `hit`: the tag says whose leaf it is, and the section, which the borrow keeps open, keeps it.
        Some(unsafe { &*word })
    }

    /// Has the first bytes of the page of `at` on their way to the processor, if it is valid for `need`. In a section.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: u64, need: Need) {
        if let Some(Page(bytes)) = self.hit(at, 1, need) {
            copy::prefetch_page(bytes.as_ptr());
        }
    }

    /// Remembers the leaf of `at`. In the section in which it was found.
    pub(super) fn fill(&mut self, at: u64, words: &[AtomicU64; SLOTS], use_for: Need) {
        debug_assert!(self.sections.is_open());
        let leaf = at >> LEAF_SHIFT;
        let slot = leaf as usize % LEAVES;
        self.leaves.tags.read[slot] = leaf;
        self.leaves.tags.write[slot] = if use_for == Need::Write {
            leaf
        } else {
            NO_LEAF
        };
        self.leaves.words[slot] = words.as_ptr().wrapping_sub(leaf as usize * SLOTS);
    }

    /// The same, by a fault: what is remembered for loads stays, since it may be good for stores as well.
    pub(super) fn found(&mut self, at: u64, words: &[AtomicU64; SLOTS], use_for: Need) {
        let leaf = at >> LEAF_SHIFT;
        let known = self.leaves.tags.read[leaf as usize % LEAVES] == leaf;
        if use_for == Need::Write || !known {
            self.fill(at, words, use_for);
        }
    }

    /// Forgets what the message names, as if it had been read.
    pub(super) fn forget(&mut self, post: Post) {
        self.leaves.forget(post);
    }

    /// Reads the mail and forgets what it names. In a section, before anything remembered is used.
    #[cold]
    pub(super) fn drain(&mut self) {
        let leaves = &mut *self.leaves;
        self.sections.drain(|post| leaves.forget(post));
    }

    /// Opens a section and reads the mail.
    pub(super) fn enter_and_drain(&mut self) {
        self.sections.enter();
        if self.sections.has_mail() {
            self.drain();
        }
    }
}

/// The number under which the leaf of `at` is posted.
pub(super) fn leaf_number(at: u64) -> u64 {
    at >> LEAF_SHIFT
}

/// What can be done with the bytes. SAFETY of all: `hit` found as many bytes as the caller asked it for in a page that is
/// valid for the access; the section, which is still open, keeps page and validity; others may use the bytes at the
/// same time, through these functions alone.
impl Page {
    /// Loads a value; `hit` was asked for its size.
    #[inline(always)]
    pub(super) fn load<T: Scalar>(self) -> T {
        // SAFETY: see above.
        unsafe { copy::load(self.0.as_ptr()) }
    }

    /// Stores a value.
    #[inline(always)]
    pub(super) fn store<T: Scalar>(self, value: T) {
        // SAFETY: see above.
        unsafe { copy::store(self.0.as_ptr(), value) }
    }

    /// Loads a value at an aligned address in this order.
    #[inline(always)]
    pub(super) fn load_atomic<T: AtomicScalar>(self, order: Ordering) -> T {
        // SAFETY: see above; the caller checked the alignment, which pages keep.
        unsafe { copy::load_atomic(self.0.as_ptr(), order) }
    }

    /// Stores a value at an aligned address in this order.
    #[inline(always)]
    pub(super) fn store_atomic<T: AtomicScalar>(self, value: T, order: Ordering) {
        // SAFETY: as for `load_atomic`.
        unsafe { copy::store_atomic(self.0.as_ptr(), value, order) }
    }

    /// Compares and exchanges a value at an aligned address.
    #[inline(always)]
    pub(super) fn compare_exchange<T: AtomicScalar>(
        self,
        old: T,
        new: T,
        orders: [Ordering; 2],
    ) -> Result<T, T> {
        // SAFETY: as for `load_atomic`.
        unsafe { copy::compare_exchange(self.0.as_ptr(), old, new, orders) }
    }

    /// Modifies a value at an aligned address, and gives the one before.
    #[inline(always)]
    pub(super) fn modify<T: AtomicScalar>(self, how: Modify, operand: T, order: Ordering) -> T {
        // SAFETY: as for `load_atomic`.
        unsafe { copy::modify(self.0.as_ptr(), how, operand, order) }
    }

    /// Copies the bytes out.
    #[inline(always)]
    pub(super) fn read(self, to: &mut [u8]) {
        // SAFETY: see above; `to` is the caller's own memory.
        unsafe { copy::copy_in(to, self.0.as_ptr()) }
    }

    /// Copies bytes in.
    #[inline(always)]
    pub(super) fn write(self, from: &[u8]) {
        // SAFETY: see above.
        unsafe { copy::copy_out(self.0.as_ptr(), from) }
    }

    /// Sets the bytes.
    pub(super) fn fill(self, byte: u8, len: usize) {
        // SAFETY: see above.
        unsafe { copy::fill(self.0.as_ptr(), byte, len) }
    }

    /// Compares the bytes with others.
    pub(super) fn compare(self, with: &[u8]) -> std::cmp::Ordering {
        // SAFETY: see above.
        unsafe { copy::compare(self.0.as_ptr(), with) }
    }
}

/// The value whose bytes these are, in the machine's order.
pub(super) fn from_bytes<T: Scalar>(bytes: &[u8]) -> T {
    assert_eq!(bytes.len(), size_of::<T>());
    // SAFETY: so many bytes are there, and a scalar can have any bytes.
    unsafe { copy::load(bytes.as_ptr()) }
}

/// Writes a value's bytes in the machine's order.
pub(super) fn to_bytes<T: Scalar>(value: T, bytes: &mut [u8]) {
    assert_eq!(bytes.len(), size_of::<T>());
    // SAFETY: so many bytes are there, and they are borrowed mutably.
    unsafe { copy::store(bytes.as_mut_ptr(), value) };
}

#[cfg(all(test, feature = "layout", not(any(loom, shuttle))))]
mod layout_tests;
