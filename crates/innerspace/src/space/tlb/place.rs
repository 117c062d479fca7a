//! The address that an accessor remembers for a leaf.

use std::ptr::NonNull;

use super::page::Page;
use crate::PAGE_SHIFT;
use crate::space::core::address::{LEAF_SHIFT, SLOTS};
use crate::sync::raw::AtomicU64;

/// The address that an accessor remembers for a leaf. A multiple of eight is the address of the
/// leaf's words; an odd number is the address of the bytes of its pages, plus [`COALESCED`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Place(*const AtomicU64);

/// The bit that marks a place as an address of bytes.
pub(crate) const COALESCED: usize = 1;

impl Place {
    pub(crate) const NONE: Place = Place(std::ptr::null());

    /// Makes a place of words: the address that the word of page 0 would have if the leaf extended
    /// below its start. Adding a page's number to it gives the address of the page's word.
    pub(crate) fn of_words(words: &[AtomicU64; SLOTS], leaf: u64) -> Place {
        Place(words.as_ptr().wrapping_sub(leaf as usize * SLOTS))
    }

    /// Makes a place of bytes: the address that byte 0 would have if the pages extended below their
    /// start. Adding an address to it gives the host address of the byte.
    pub(super) fn of_bytes(first: u64, leaf: u64) -> Place {
        let below = first.wrapping_sub(leaf << LEAF_SHIFT) as usize;
        Place(std::ptr::without_provenance(below | COALESCED))
    }

    #[inline(always)]
    pub(crate) fn is_coalesced(self) -> bool {
        self.0.addr() & COALESCED != 0
    }

    /// Returns the address of the word of the page of `at`, for a place of words.
    #[inline(always)]
    pub(crate) fn word(self, at: u64) -> *const AtomicU64 {
        self.0.wrapping_add((at >> PAGE_SHIFT) as usize)
    }

    /// Returns the host address of the byte at `at`, for a place of bytes.
    #[inline(always)]
    pub(crate) fn byte(self, at: u64) -> u64 {
        let marked = self.0.addr() as u64;
        marked.wrapping_add(at).wrapping_sub(COALESCED as u64)
    }
}

/// The address of bytes that a hit found.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// The address of the page that contains the bytes.
    Page(u64),
    /// The address of the bytes themselves.
    Byte(u64),
}

impl Found {
    /// Returns the bytes, which begin at `offset` in their page.
    #[inline(always)]
    pub(crate) fn page(self, offset: usize) -> Page {
        let bytes = match self {
            Found::Page(start) => (start as *mut u8).wrapping_add(offset),
            Found::Byte(bytes) => bytes as *mut u8,
        };
        // SAFETY: no page is at address 0 or extends past the end of memory.
        Page(unsafe { NonNull::new_unchecked(bytes) })
    }
}
