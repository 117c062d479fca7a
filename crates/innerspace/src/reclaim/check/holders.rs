//! Counts what holds a group's memory, when a request has failed.

use crate::frame::{FlagSet, Kind, Meta};
use crate::group::{GroupId, Holders};
use crate::reclaim::lists::{ListKind, pages_of};
use crate::reclaim::pool::Pool;

/// The most frames that are examined in one group, since the list lock is held meanwhile.
const WALK_MAX: u32 = 1 << 18;

/// Counts the pages of `group` and of the groups below it by what holds them.
pub(crate) fn count_holders(pool: &Pool, group: GroupId) -> Holders {
    pool.settle_lists();
    let mut holders = Holders::default();
    let mut explained = 0;
    for group in pool.groups.subtree(group) {
        explained += walk_lists(pool, group, &mut holders);
        holders.tables.0 += pool.groups.tables(group).0;
    }
    explained += holders.tables.0;
    holders.anonymous.0 += pool.groups.usage(group).0.saturating_sub(explained);
    holders
}

/// Adds the listed frames of one group to the counts. Returns how many of its pages are on the
/// lists or isolated.
fn walk_lists(pool: &Pool, group: GroupId, holders: &mut Holders) -> u64 {
    let metas = pool.frames.metas();
    let locked = pool.lru.lock(group);
    let sizes = pool.lru.sizes(group);
    let mut left = WALK_MAX;
    for kind in ListKind::ALL {
        let list = locked.list(kind);
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
    locked.isolated() + sizes.evictable() + sizes.unevictable.0
}

/// Adds a frame's pages to the first count of `holders` that applies. A frame that nothing holds is
/// counted in none.
fn classify(meta: &Meta, holders: &mut Holders) {
    let (hold, flags, pages) = (meta.hold.load(), meta.flags.load(), pages_of(meta));
    let row = if hold.views() > 0 {
        holders.views += u64::from(hold.views());
        &mut holders.viewed
    } else if meta.kind() == Kind::Anonymous {
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
