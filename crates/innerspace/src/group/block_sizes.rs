//! The block sizes of open files, and the smallest limit that has room for a block of each size.

use super::GroupError;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::PageCount;

/// Pages that a read needs besides its block: nodes of the index.
const BESIDE: u64 = 4;

/// The number of block sizes. Each has an order: the log2 of its pages.
const ORDERS: usize = 10;

/// For each block size, the number of open files that a group, or one below it, pays for.
#[derive(Default)]
pub(super) struct BlockSizes([AtomicU32; ORDERS]);

impl BlockSizes {
    pub(super) fn add(&self, order: u8) {
        self.0[usize::from(order)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, order: u8) {
        self.0[usize::from(order)].fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the order of the largest block size in use, or `None` if no file has blocks of more
    /// than one page.
    pub(super) fn largest(&self) -> Option<u8> {
        let is_used = |order: &u8| self.0[usize::from(*order)].load(Ordering::Relaxed) > 0;
        (1..ORDERS as u8).rev().find(is_used)
    }
}

/// Returns the smallest limit under which a file with blocks of this order can be read.
pub(super) fn pages_for(order: u8) -> PageCount {
    PageCount((1 << order) + BESIDE)
}

/// Creates the error for a group that has no room for a block.
pub(super) fn too_small(group: String, max: PageCount, order: u8) -> GroupError {
    GroupError::TooSmallForBlocks {
        group,
        max: max.bytes(),
        block: PageCount(1 << order).bytes(),
        minimum: pages_for(order).bytes(),
    }
}
