//! Checks of a space.

use crate::space::core::space::Space;
use crate::space::table::ADDRESS_BITS;
use crate::space::vma::protection::Protection;
use crate::units::PageCount;

impl Space {
    /// Checks all state of the space that can be recomputed. No other thread may use the space
    /// meanwhile, or another space that shares leaves with it, as forks do: a store there may
    /// change a shared leaf by taking pages over.
    ///
    /// # Panics
    /// Panics if an invariant is broken.
    pub fn validate(&self) {
        self.0.dirty.validate();
        let nodes = self.0.nodes();
        let count = |start, end| {
            let pages = nodes.count_pages(start, end, |_, _| false);
            (pages.resident + pages.direct + pages.zero, pages.referenced)
        };
        self.0.inside(|vmas| {
            vmas.validate();
            nodes.validate();
            let (mapped, _) = count(0, 1 << ADDRESS_BITS);
            let in_vmas: PageCount = vmas.iter().map(|vma| count(vma.start, vma.end).0).sum();
            assert_eq!(
                mapped, in_vmas,
                "I9: a page is mapped outside every mapping"
            );
            for vma in vmas.iter() {
                assert!(
                    vma.ceiling.allows(vma.protection),
                    "{vma} may do more than its ceiling"
                );
                let (_, referenced) = count(vma.start, vma.end);
                let readable = vma.protection.allows(Protection::READ);
                assert!(readable || referenced.0 == 0, "{vma} has readable pages");
            }
        });
    }
}
