//! Checks of the counters.

use crate::group::GroupId;
use crate::group::tree::{GroupTree, MOST_OWED};
use crate::sync::atomic::Ordering;

impl GroupTree {
    /// Recomputes the counters from their parts. Call this at rest. The error names the first group
    /// that disagrees (I8).
    pub(crate) fn validate(&self) -> Result<(), String> {
        let ids = self.subtree(GroupId::ROOT);
        let shape = self.shape.lock();
        for id in ids {
            let Some(entry) = shape.entry(id) else {
                return Err(format!(
                    "group {}: listed as a child, but its number is free",
                    id.0
                ));
            };
            let below: u64 = entry.children().map(|child| self.charged(child).0).sum();
            let own = self.node(id).own.load(Ordering::Relaxed);
            let usage = self.charged(id).0;
            if self.stocks.sum(|group| group == id) > own {
                return Err(format!("group {}: more pages in stock than charged", id.0));
            }
            if usage != own + below {
                let name = &entry.name;
                return Err(format!(
                    "group {} {name:?}: usage {usage} is not own {own} + children {below} (I8)",
                    id.0
                ));
            }
            let owed = |child: GroupId| self.protection(child).1.0.min(MOST_OWED);
            let owed = entry.children().map(owed);
            if self.owed(id).0 != owed.sum::<u64>() {
                return Err(format!(
                    "group {}: owes another sum than that of `min`",
                    id.0
                ));
            }
            if self.tables(id).0 > own {
                return Err(format!("group {}: more table pages than own pages", id.0));
            }
        }
        Ok(())
    }
}
