//! Checks of a reverse map.

use crate::space::vma::area::Vma;
use crate::space::vma::rmap::{FileRanges, RmapEntry};
use crate::space::vma::tree::Ranged;

impl FileRanges {
    /// Checks that these are exactly the ranges of files among `all`.
    pub(crate) fn validate<'a>(&self, all: impl Iterator<Item = &'a Vma>) {
        self.0.validate();
        let mut known: Vec<RmapEntry> = all.filter_map(RmapEntry::by).collect();
        known.sort_unstable_by_key(Ranged::start);
        assert!(
            self.0.iter().eq(known.iter()),
            "the ranges of files by page"
        );
    }
}
