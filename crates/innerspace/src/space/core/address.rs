//! Addresses as numbers: pages, and the nodes of the page table that lead to them.

use std::ops::Range;

use crate::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};

/// The most bits that an address of a space can have.
pub(crate) const ADDRESS_BITS: u32 = PAGE_SHIFT + 9 * LEVELS;
pub(crate) const LEVELS: u32 = 4;
/// The level of the root. Leaves are at level 0.
pub(crate) const ROOT_LEVEL: u32 = LEVELS - 1;
pub(crate) const SLOTS: usize = 512;
/// The number of bits by which an address is shifted right to give the number of its leaf.
pub(crate) const LEAF_SHIFT: u32 = PAGE_SHIFT + 9;

/// Returns the size in bytes of the address range that one word of a node at `level` covers.
pub(crate) const fn span(level: u32) -> u64 {
    1 << (PAGE_SHIFT + 9 * level)
}

/// The size in bytes of the address range that a leaf covers.
pub(crate) const LEAF_BYTES: u64 = span(1);

/// Returns the index of the word, in a node at `level`, that leads to `at`.
pub(crate) fn slot_index(at: u64, level: u32) -> usize {
    (at >> (PAGE_SHIFT + 9 * level)) as usize % SLOTS
}

/// Returns the number of the leaf that covers `at`. Invalidations for accessors name leaves by
/// number.
pub(crate) fn leaf_number(at: u64) -> u64 {
    at >> LEAF_SHIFT
}

/// Returns the address of the first byte of the page that contains `at`.
pub(crate) fn page_start(at: u64) -> u64 {
    at & !(PAGE_SIZE as u64 - 1)
}

/// Returns whether a value of `size` bytes at `at` crosses into the next page.
#[inline(always)]
pub(crate) fn crosses(at: VirtAddr, size: usize) -> bool {
    at.page_offset() > PAGE_SIZE - size
}

/// Sorts the ranges by address, and joins those that touch or overlap.
pub(crate) fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<VirtAddr>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<VirtAddr>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end.0 => last.end.0 = last.end.0.max(range.end),
            _ => merged.push(VirtAddr(range.start)..VirtAddr(range.end)),
        }
    }
    merged
}

impl VirtAddr {
    /// Returns whether the address is the first of a page.
    pub(crate) fn is_page_aligned(self) -> bool {
        self.page_offset() == 0
    }
}
