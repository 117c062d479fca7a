//! What one group is charged for heap memory: see [`super::heap`].

use crate::units::PageCount;

/// What one group is charged for heap memory.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) bytes: u64,
    /// Pages charged for them.
    pub(super) pages: u64,
}

impl Ledger {
    /// Takes off, and returns, the pages charged that the bytes do not need.
    pub(super) fn take_excess(&mut self) -> PageCount {
        let needed = PageCount::floor(self.bytes).0;
        let excess = self.pages.saturating_sub(needed);
        self.pages -= excess;
        PageCount(excess)
    }
}
