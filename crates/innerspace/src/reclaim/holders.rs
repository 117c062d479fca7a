//! What holds the memory of a group, counted when a request has failed.

use super::lru::{ListKind, pages_of};
use super::pool::Pool;
use crate::frame::{FlagSet, Meta};
use crate::group::{GroupId, Holders};

/// Frames looked at in one group at most; the list lock is held meanwhile.
const WALK_MAX: u32 = 1 << 18;

impl Pool {
    /// Counts what keeps the pages of `group` and below from being evicted.
    pub(super) fn count_holders(&self, group: GroupId) -> Holders {
        self.lru.drain_batches(&self.frames);
        let mut holders = Holders::default();
        let mut listed = 0;
        let groups = self.groups.subtree(group);
        for group in &groups {
            listed += self.walk_lists(*group, &mut holders);
            holders.tables.0 += self.groups.tables(*group).0;
        }
        let explained = listed + holders.tables.0;
        holders.anonymous.0 += self.groups.usage(group).0.saturating_sub(explained);
        holders
    }

    /// Adds the listed frames of one group; returns the pages on its lists.
    fn walk_lists(&self, group: GroupId, holders: &mut Holders) -> u64 {
        let metas = self.frames.metas();
        let lists = self.lru.group(group);
        let locked = lists.lock();
        let mut left = WALK_MAX;
        let mut listed = locked.lists.isolated;
        for kind in ListKind::ALL {
            let list = locked.lists.list(kind);
            listed += lists.pages(kind);
            let mut next = list.back();
            while let Some(id) = next {
                if left == 0 {
                    holders.partial = true;
                    break;
                }
                left -= 1;
                classify(&metas[id.index()], holders);
                next = list.before(metas, id);
            }
        }
        listed
    }
}

/// Adds a frame to the first row that applies; a frame that could be evicted is in none.
fn classify(meta: &Meta, holders: &mut Holders) {
    let (hold, flags, pages) = (meta.hold.load(), meta.flags.load(), pages_of(meta));
    let row = if hold.views() > 0 {
        holders.views += u64::from(hold.views());
        &mut holders.viewed
    } else if meta.kind() == crate::frame::Kind::Anonymous {
        &mut holders.anonymous
    } else if flags.contains(FlagSet::DIRTY | FlagSet::ERROR) {
        &mut holders.failing
    } else if flags.intersects(FlagSet::DIRTY | FlagSet::WRITEBACK) {
        &mut holders.dirty
    } else if flags.contains(FlagSet::LOCKED) || hold.refs() > 1 || hold.has_writer() {
        &mut holders.pinned
    } else if hold.mapped() > 0 {
        &mut holders.mapped
    } else {
        return;
    };
    row.0 += pages;
}
