//! Checks of the log of pages that were stored to.

use crate::PAGE_SIZE;
use crate::space::dirty::{A_PAGE, DirtyLog};

impl DirtyLog {
    /// Checks that the clean ranges do not touch and are charged. No other thread uses the space.
    pub(crate) fn validate(&self) {
        let log = self.log.lock();
        let entries = log.clean.len();
        let charged = log.heap.as_ref().map_or(0, |heap| heap.bytes() as usize);
        assert!(
            entries * PAGE_SIZE <= charged * A_PAGE,
            "I3: {entries} entries of the log, and {charged} bytes charged"
        );
        let mut last = None;
        for (start, end) in &log.clean {
            assert!(
                last < Some(*start) && start < end,
                "a clean range at {start:#x}"
            );
            last = Some(*end);
        }
    }
}
