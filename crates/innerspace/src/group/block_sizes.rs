//! Sizes of the blocks of open files, and the limits that have room for them.

use super::GroupError;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::PageCount;

/// Pages that a read takes beside its block: nodes of the index.
const BESIDE: u64 = 4;

/// Sizes of blocks, as the log2 of their pages.
const ORDERS: usize = 10;

/// How many files with blocks of each size a group pays for, and those below it.
#[derive(Default)]
pub(super) struct BlockSizes([AtomicU32; ORDERS]);

impl BlockSizes {
    pub(super) fn add(&self, order: u8) {
        self.0[usize::from(order)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, order: u8) {
        self.0[usize::from(order)].fetch_sub(1, Ordering::Relaxed);
    }

    /// The order of the largest, if there is a file with blocks of several pages.
    pub(super) fn largest(&self) -> Option<u8> {
        let is_used = |order: &u8| self.0[usize::from(*order)].load(Ordering::Relaxed) > 0;
        (1..ORDERS as u8).rev().find(is_used)
    }
}

/// The smallest limit with which a file can be read whose blocks have this order.
pub(super) fn pages_for(order: u8) -> PageCount {
    PageCount((1 << order) + BESIDE)
}

/// The error of a group that has no room for a block.
pub(super) fn too_small(group: String, max: PageCount, order: u8) -> GroupError {
    GroupError::TooSmallForBlocks {
        group,
        max: max.bytes(),
        block: PageCount(1 << order).bytes(),
        minimum: pages_for(order).bytes(),
    }
}
