//! Checks of a set of mappings.

use crate::PAGE_SIZE;
use crate::space::vma::area::Vma;
use crate::space::vma::set::VmaSet;

impl VmaSet {
    /// Checks order, alignment and merging.
    pub(crate) fn validate(&self) {
        self.tree.validate();
        self.files.validate(self.iter());
        let locked = self.iter().filter(|vma| vma.is_locked()).count();
        assert_eq!(self.locked, locked, "the number of locked ranges");
        let mut last: Option<&Vma> = None;
        for vma in self.iter() {
            let aligned = (vma.start | vma.end) % PAGE_SIZE as u64 == 0;
            assert!(aligned, "unaligned: {vma}");
            let merges = last.is_some_and(|last| last.merges_with(vma));
            assert!(!merges, "{vma} should merge with the one below it");
            last = Some(vma);
        }
    }
}
