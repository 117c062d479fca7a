//! The heap charges of one group: see [`super::heap`].

use crate::units::PageCount;

/// The heap charges of one group.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) bytes: u64,
    /// The pages charged for these bytes.
    pub(super) pages: u64,
}

impl Ledger {
    /// Takes off, and returns, the charged pages that the bytes no longer need.
    pub(super) fn take_excess(&mut self) -> PageCount {
        let needed = PageCount::floor(self.bytes).0;
        let excess = self.pages.saturating_sub(needed);
        self.pages -= excess;
        PageCount(excess)
    }
}
