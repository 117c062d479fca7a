//! Checks of the ranges punched.

use std::ops::Range;

use super::Punched;

impl Punched {
    /// Checks the entries for a file of `blocks` blocks at rest.
    pub(crate) fn validate(&self, blocks: u64) {
        let lost = self.lost.all().map(|(run, ())| run);
        let emptied = self.emptied.all().map(|(run, _)| run);
        for run in lost.chain(emptied) {
            assert!(run.end <= blocks, "P18: {run:?} is noted past the end");
        }
        let is_lost = |(run, _): (Range<u64>, u64)| self.is_lost_in(run);
        assert!(!self.emptied.all().any(is_lost), "P18: noted twice");
    }
}
