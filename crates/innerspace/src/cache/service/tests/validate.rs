//! Checks the counts that the files of a memory share.

use crate::cache::core::FileCore;
use crate::cache::core::validate::validate;
use crate::cache::service::Cache;
use crate::sync::Arc;

impl Cache {
    /// Waits until no request is in flight and no job runs or is queued. The files must not be in
    /// use.
    pub(crate) fn wait_quiet(&self) {
        for file in self.files() {
            file.wait_all_landed();
        }
        self.flights.wait_quiet();
        self.workers.wait_quiet();
    }

    /// Recomputes the counts. The files must not be in use.
    pub(crate) fn validate(&self) {
        self.wait_quiet();
        let files = self.files();
        for file in &files {
            validate(file);
            let mut dirty = file.dirty();
            let (counts, published) = dirty.publish();
            assert!(
                !dirty.has_since(u64::MAX) || self.pool.owners.is_flushable(file.id.owner),
                "{} is not asked to write",
                file.id.name
            );
            drop(dirty);
            // Otherwise `publish` would have repaired what is checked here.
            assert_eq!(
                (published.dirty, published.behind),
                (counts.dirty, counts.behind),
                "blocks of {} that are dirty, and that are not synced",
                file.id.name
            );
            let is_file = |other: &Arc<FileCore>| Arc::ptr_eq(other, file);
            for group in &file.id.groups {
                let pays = |file: &&Arc<FileCore>| file.id.groups.contains(group);
                let pages = |file: &Arc<FileCore>| file.dirty_blocks() * file.block_pages();
                let dirty: u64 = files.iter().filter(pays).map(pages).sum();
                assert_eq!(
                    self.dirty_pages(*group).0,
                    dirty,
                    "dirty pages of group {}",
                    group.0
                );
                let behind =
                    |file: &Arc<FileCore>| file.dirty().counts().behind * file.block_pages();
                let behind: u64 = files.iter().filter(pays).map(behind).sum();
                let unwritten = self.unwritten_pages(*group).0;
                assert_eq!(unwritten, dirty + behind, "pages of group {}", group.0);
                assert_eq!(
                    self.unwritten_files(*group).iter().any(is_file),
                    counts.dirty + counts.behind > 0,
                    "{} has blocks that are not synced",
                    file.id.name
                );
            }
        }
    }
}
