//! Addresses: pages, and the nodes of the page table that lead to them.

use std::ops::Range;

use crate::{PAGE_SHIFT, PAGE_SIZE, VirtAddr};

/// Bits of address a space can have.
pub(crate) const ADDRESS_BITS: u32 = PAGE_SHIFT + 9 * LEVELS;
pub(crate) const LEVELS: u32 = 4;
/// The level of the root; 0 is the leaf.
pub(crate) const ROOT_LEVEL: u32 = LEVELS - 1;
pub(crate) const SLOTS: usize = 512;
/// Bits of an address below the number of its leaf.
pub(crate) const LEAF_SHIFT: u32 = PAGE_SHIFT + 9;

/// The bytes that one word of a node at `level` leads to.
pub(crate) const fn span(level: u32) -> u64 {
    1 << (PAGE_SHIFT + 9 * level)
}

/// The bytes that a leaf maps.
pub(crate) const LEAF_BYTES: u64 = span(1);

/// Which word of a node at `level` leads to `at`.
pub(crate) fn slot_index(at: u64, level: u32) -> usize {
    (at >> (PAGE_SHIFT + 9 * level)) as usize % SLOTS
}

/// The number under which the leaf of `at` is posted.
pub(crate) fn leaf_number(at: u64) -> u64 {
    at >> LEAF_SHIFT
}

/// The address of the first byte of the page that `at` is in.
pub(crate) fn page_start(at: u64) -> u64 {
    at & !(PAGE_SIZE as u64 - 1)
}

/// Whether a value of `size` bytes at `at` lies in two pages.
#[inline(always)]
pub(crate) fn crosses(at: VirtAddr, size: usize) -> bool {
    at.page_offset() > PAGE_SIZE - size
}

/// The ranges in order of address, those that touch as one.
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
    /// Whether the address is the first of a page.
    pub(crate) fn is_page_aligned(self) -> bool {
        self.page_offset() == 0
    }
}
