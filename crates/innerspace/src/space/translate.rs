//! The translation cache: leaf pointers, never page translations.
//!
//! An accessor remembers where the leaf of each 2 MiB it works in lies; every access then reads the leaf's live word. So a
//! changed word (revoked, aged, copied, upgraded) acts on the next access of every thread by itself, and mailboxes are
//! needed only where a leaf is replaced. Measured against an array of per-page translations it is as fast on random
//! access, faster on dependent loads, and a few KiB large (`innerspace-bench translation`).
//!
//! A slot has two tags. The read tag is set for any leaf; the write tag only while the leaf is the space's alone, since in
//! a shared leaf VALID_W may be left from the time before the fork.
//!
//! Unsafe code: this file dereferences leaf pointers and page addresses. Both are valid inside the section in which the
//! leaf was found or the mailbox was looked at: whoever takes a leaf or a page away makes it unreachable, posts if it is a
//! leaf, and lets a grace period pass before the memory is used for anything else (`sync::domain`). The memory itself is
//! the arena's, which outlives every accessor.

use std::ptr::NonNull;

use super::pte;
use super::table::SLOTS;
use crate::PAGE_SIZE;
use crate::sync::domain::{Post, Sections};
use crate::sync::raw::AtomicU64;
use crate::sys::copy::{self, AtomicScalar, Scalar};

/// Leaves remembered, a power of two: 512 MiB of address space in 4 KiB.
const LEAVES: usize = 256;
const LEAF_SHIFT: u32 = crate::PAGE_SHIFT + 9;
/// A tag that no address in a space has.
const NO_LEAF: u32 = u32::MAX;

/// What empty slots lead to, so that an address whose tag is `NO_LEAF` misses like any other.
static EMPTY_LEAF: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

#[derive(Clone, Copy, Debug)]
struct LeafSlot {
    /// The number of the leaf (address / 2 MiB) that loads may use `words` for.
    read_tag: u32,
    /// The same for stores.
    write_tag: u32,
    words: NonNull<AtomicU64>,
}

impl LeafSlot {
    fn empty() -> LeafSlot {
        LeafSlot {
            read_tag: NO_LEAF,
            write_tag: NO_LEAF,
            words: NonNull::from(&EMPTY_LEAF[0]),
        }
    }
}

/// An accessor's private state: its sections and its remembered leaves.
#[derive(Debug)]
pub(super) struct Translator {
    pub(super) sections: Sections,
    leaves: Box<[LeafSlot; LEAVES]>,
}

// SAFETY: the pointers lead into the arena, which all threads share, and are used by whoever owns the translator only
// inside its section; which thread that is does not matter.
unsafe impl Send for Translator {}

/// What an access needs of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    Read,
    Write,
}

impl Translator {
    pub(super) fn new(sections: Sections) -> Translator {
        Translator {
            sections,
            leaves: Box::new([LeafSlot::empty(); LEAVES]),
        }
    }

    /// Bytes a translator takes, its participant and a full mailbox included.
    pub(super) const SIZE: usize = size_of::<[LeafSlot; LEAVES]>() + 1024;

    /// The host address of `at` if `size` bytes from there lie in one page that is valid for `need`. In a section. The
    /// result holds until the section is left.
    #[inline(always)]
    pub(super) fn hit(&self, at: u64, size: usize, need: Need) -> Option<NonNull<u8>> {
        debug_assert!(self.sections.is_open());
        if self.sections.has_mail() {
            return None;
        }
        let leaf = at >> LEAF_SHIFT;
        let slot = &self.leaves[leaf as usize % LEAVES];
        let (tag, valid) = match need {
            Need::Read => (slot.read_tag, pte::VALID_R),
            Need::Write => (slot.write_tag, pte::VALID_W),
        };
        let offset = at as usize % PAGE_SIZE;
        if u64::from(tag) != leaf || offset > PAGE_SIZE - size {
            return None;
        }
        let index = (at >> crate::PAGE_SHIFT) as usize % SLOTS;
        // SAFETY: the tag says that `words` is the leaf of this address, 512 words long, and the section keeps it one
        // (see the module).
        let entry = pte::load(unsafe { slot.words.add(index).as_ref() });
        if !entry.has(valid) {
            return None;
        }
        NonNull::new((entry.host() | offset as u64) as *mut u8)
    }

    /// Remembers the leaf of `at`. In the section in which it was found.
    pub(super) fn fill(&mut self, at: u64, words: &[AtomicU64; SLOTS], writable: bool) {
        debug_assert!(self.sections.is_open());
        let leaf = at >> LEAF_SHIFT;
        self.leaves[leaf as usize % LEAVES] = LeafSlot {
            read_tag: leaf as u32, // at most 27 bits: it was found in the table
            write_tag: if writable { leaf as u32 } else { NO_LEAF },
            words: NonNull::from(&words[0]),
        };
    }

    /// Reads the mail and forgets what it names. In a section, before anything remembered is used.
    #[cold]
    pub(super) fn drain(&mut self) {
        let leaves = &mut self.leaves;
        self.sections.drain(|post| match post {
            Post::All => leaves.fill(LeafSlot::empty()),
            Post::One(leaf) => {
                let slot = &mut leaves[leaf as usize % LEAVES];
                if u64::from(slot.read_tag) == leaf {
                    *slot = LeafSlot::empty();
                }
            }
        });
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

/// One access each, in a section: done, or nothing happened and the page has to be had first.
impl Translator {
    /// Loads a value that lies in one page.
    #[inline(always)]
    pub(super) fn load<T: Scalar>(&self, at: u64) -> Option<T> {
        let host = self.hit(at, size_of::<T>(), Need::Read)?;
        // SAFETY: `hit` found so many bytes in a page that the section keeps.
        Some(unsafe { copy::load(host.as_ptr()) })
    }

    /// Stores a value that lies in one page.
    #[inline(always)]
    pub(super) fn store<T: Scalar>(&self, at: u64, value: T) -> Option<()> {
        let host = self.hit(at, size_of::<T>(), Need::Write)?;
        // SAFETY: as in `load`; the page is the space's own, or shared memory, and writable.
        unsafe { copy::store(host.as_ptr(), value) };
        Some(())
    }

    /// Stores two parts of a value that crosses a page end, or neither.
    pub(super) fn store_both(&self, at: u64, bytes: &[u8]) -> Option<()> {
        let (first, second) = bytes.split_at(PAGE_SIZE - at as usize % PAGE_SIZE);
        let low = self.hit(at, first.len(), Need::Write)?;
        let high = self.hit(at + first.len() as u64, second.len(), Need::Write)?;
        // SAFETY: both pages were found in this section, and each part lies in its page.
        unsafe {
            copy::copy_out(low.as_ptr(), first);
            copy::copy_out(high.as_ptr(), second);
        }
        Some(())
    }

    /// Compares and exchanges an aligned value.
    #[inline(always)]
    pub(super) fn compare_exchange<T: AtomicScalar>(
        &self,
        at: u64,
        old: T,
        new: T,
    ) -> Option<Result<T, T>> {
        let host = self.hit(at, size_of::<T>(), Need::Write)?;
        // SAFETY: as in `store`, and the caller checked that `at` is a multiple of the size, as pages are.
        Some(unsafe { copy::compare_exchange(host.as_ptr(), old, new) })
    }

    /// Replaces an aligned value and returns the one before.
    #[inline(always)]
    pub(super) fn swap<T: AtomicScalar>(&self, at: u64, new: T) -> Option<T> {
        let host = self.hit(at, size_of::<T>(), Need::Write)?;
        // SAFETY: as in `compare_exchange`.
        Some(unsafe { copy::swap(host.as_ptr(), new) })
    }

    /// Adds to an aligned value, wrapping, and returns the one before.
    #[inline(always)]
    pub(super) fn fetch_add<T: AtomicScalar>(&self, at: u64, operand: T) -> Option<T> {
        let host = self.hit(at, size_of::<T>(), Need::Write)?;
        // SAFETY: as in `compare_exchange`.
        Some(unsafe { copy::fetch_add(host.as_ptr(), operand) })
    }

    /// Copies bytes of one page out of the space.
    #[inline(always)]
    pub(super) fn read(&self, at: u64, to: &mut [u8]) -> Option<()> {
        let host = self.hit(at, to.len(), Need::Read)?;
        // SAFETY: as in `load`; `to` is the caller's own memory.
        unsafe { copy::copy_in(to, host.as_ptr()) };
        Some(())
    }

    /// Copies bytes into one page of the space.
    #[inline(always)]
    pub(super) fn write(&self, at: u64, from: &[u8]) -> Option<()> {
        let host = self.hit(at, from.len(), Need::Write)?;
        // SAFETY: as in `store`.
        unsafe { copy::copy_out(host.as_ptr(), from) };
        Some(())
    }

    /// Fills bytes of one page.
    pub(super) fn fill_bytes(&self, at: u64, byte: u8, len: usize) -> Option<()> {
        let host = self.hit(at, len, Need::Write)?;
        // SAFETY: as in `store`.
        unsafe { copy::fill(host.as_ptr(), byte, len) };
        Some(())
    }

    /// Compares bytes of one page with others.
    pub(super) fn compare(&self, at: u64, with: &[u8]) -> Option<std::cmp::Ordering> {
        let host = self.hit(at, with.len(), Need::Read)?;
        // SAFETY: as in `load`.
        Some(unsafe { copy::compare(host.as_ptr(), with) })
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
