//! Which block goes when one has to: the choices that differ from one algorithm to another, behind
//! one trait.
//!
//! The machinery is the same for all: two lists a group, frames isolated in clusters, owners that
//! age, write and evict. A policy says what a use does, which list gives, and what becomes of a
//! frame at the tail of either. It keeps no state: everything it asks is in the flags, the uses and
//! the lists' sizes.

mod s3_fifo;
mod two_lists;

use super::lru::ListSizes;
use crate::units::PageCount;

/// How a [`Memory`](crate::Memory) chooses what to evict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// Two lists, as Linux has them: what is used twice is protected from what is used once, and
    /// what comes back soon after it was evicted is protected at once.
    #[default]
    TwoLists,
    /// S3-FIFO: a small first queue that drops what is used once, a main queue that gives what was
    /// used another round, and a memory of what the first dropped.
    S3Fifo,
}

/// What a second use of a block on the inactive list does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SecondUse {
    /// It moves to the active list now.
    Activate,
    /// It is remembered; the block moves when it gets to the tail.
    Remember,
}

/// What becomes of a frame at the tail of the active list that was not used since it was last
/// looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Demotion {
    /// It goes through the inactive list once more.
    SecondChance,
    /// It is evicted next.
    Next,
}

/// The choices.
pub(super) trait Policy: Send + Sync {
    fn second_use(&self) -> SecondUse;

    /// Whether the active list gives frames to the inactive one now.
    fn takes_from_active(&self, sizes: &ListSizes) -> bool;

    fn demotion(&self) -> Demotion;

    /// Whether a block that comes back after so many evictions and activations belongs on the
    /// active list.
    fn missed(&self, distance: PageCount, sizes: &ListSizes) -> bool;
}

impl EvictionPolicy {
    pub(super) fn choices(self) -> &'static dyn Policy {
        match self {
            EvictionPolicy::TwoLists => &two_lists::TwoLists,
            EvictionPolicy::S3Fifo => &s3_fifo::S3Fifo,
        }
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    /// Lists of so many pages, beside others that cannot go.
    pub(super) fn sizes(inactive: u64, active: u64) -> ListSizes {
        ListSizes {
            inactive: PageCount(inactive),
            active: PageCount(active),
            unevictable: PageCount(1_000),
        }
    }
}
