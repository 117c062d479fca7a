//! Checks of the log of pages that were stored to.

use crate::PAGE_SHIFT;
use crate::space::core::address::SLOTS;
use crate::space::dirty::{A_PAGE, DirtyLog, Log};
use crate::space::table;

impl DirtyLog {
    /// Checks the log. No other thread uses the space.
    pub(crate) fn validate(&self) {
        self.log.lock().validate();
    }
}

impl Log {
    /// Checks that all entries are charged, and are for watched pages.
    fn validate(&self) {
        let entries = self.watched.len() + self.stored.len();
        assert!(
            entries <= self.charged * A_PAGE,
            "I3: {entries} entries of the log, and {} pages charged",
            self.charged
        );
        for (leaf, bits) in &self.stored {
            let pages =
                (0..SLOTS as u64).filter(|slot| bits[*slot as usize / 64] >> (slot % 64) & 1 > 0);
            let mut pages = pages.map(|slot| leaf * table::span(1) + (slot << PAGE_SHIFT));
            assert!(
                pages.all(|page| self.watches(page)),
                "a page of leaf {leaf} is noted and not watched"
            );
        }
    }
}
