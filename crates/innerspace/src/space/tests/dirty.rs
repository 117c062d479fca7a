//! Checks of the log of pages that were stored to.

use crate::space::dirty::{A_PAGE, DirtyLog};

impl DirtyLog {
    /// Checks that the clean ranges do not touch and are charged. No other thread uses the space.
    pub(crate) fn validate(&self) {
        let log = self.log.lock();
        let entries = log.clean.len();
        assert!(
            entries <= log.charged * A_PAGE,
            "I3: {entries} entries of the log, and {} pages charged",
            log.charged
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
