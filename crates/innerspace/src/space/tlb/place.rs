//! Where a remembered leaf leads to.

use std::ptr::NonNull;

use super::page::Page;
use crate::PAGE_SHIFT;
use crate::space::core::address::{LEAF_SHIFT, SLOTS};
use crate::sync::raw::AtomicU64;

/// Where a remembered leaf leads to: an address of its words, which is a multiple of eight; or an
/// address of the bytes of its pages, which is odd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Place(*const AtomicU64);

/// The mark of an address of bytes.
pub(crate) const COALESCED: usize = 1;

impl Place {
    pub(crate) const NONE: Place = Place(std::ptr::null());

    /// Where the word of page 0 would be if the leaf went on below its start: adding a page's
    /// number leads to its word.
    pub(crate) fn of_words(words: &[AtomicU64; SLOTS], leaf: u64) -> Place {
        Place(words.as_ptr().wrapping_sub(leaf as usize * SLOTS))
    }

    /// Where the byte at address 0 would be if the pages went on below their start: adding an
    /// address leads to its byte.
    pub(super) fn of_bytes(first: u64, leaf: u64) -> Place {
        let below = first.wrapping_sub(leaf << LEAF_SHIFT) as usize;
        Place(std::ptr::without_provenance(below | COALESCED))
    }

    #[inline(always)]
    pub(crate) fn is_coalesced(self) -> bool {
        self.0.addr() & COALESCED != 0
    }

    /// The word of an address, for a place of words.
    #[inline(always)]
    pub(crate) fn word(self, at: u64) -> *const AtomicU64 {
        self.0.wrapping_add((at >> PAGE_SHIFT) as usize)
    }

    /// The byte of an address, for a place of bytes.
    #[inline(always)]
    pub(crate) fn byte(self, at: u64) -> u64 {
        let marked = self.0.addr() as u64;
        marked.wrapping_add(at).wrapping_sub(COALESCED as u64)
    }
}

/// The address of bytes that were found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// Where the page of the bytes begins.
    Page(u64),
    /// Where the bytes begin.
    Byte(u64),
}

impl Found {
    /// The bytes, which are so far behind the beginning of their page.
    #[inline(always)]
    pub(crate) fn page(self, offset: usize) -> Page {
        let bytes = match self {
            Found::Page(start) => (start as *mut u8).wrapping_add(offset),
            Found::Byte(bytes) => bytes as *mut u8,
        };
        // SAFETY: no page is at address 0, nor goes over the end of memory.
        Page(unsafe { NonNull::new_unchecked(bytes) })
    }
}
