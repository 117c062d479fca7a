//! Looking at mapped pages before memory is full.
//!
//! A page that a fault brought in has its accessed bit set, and so has a page that was used a
//! thousand times since. If reclaim looked at them only when it needs a page, it could not tell the
//! two apart, and would take the older. So once a group is half full, each batch of new pages has
//! twice as many looked at from the tail of its inactive list. Those that were used go to the head,
//! referenced; those used again by the next look become active. The rest stay at the tail, to be
//! evicted first.

use super::cluster::{Cluster, is_awaited};
use crate::group::GroupId;
use crate::reclaim::lists::{BATCH_LEN, Evictable, ListKind};
use crate::reclaim::owners::Io;
use crate::reclaim::pool::Pool;

/// Pages looked at for each batch of new ones: each page once while the second half of the group
/// fills up.
const LOOKS: usize = 2 * BATCH_LEN;

/// Looks at some mapped pages if new ones have come in. Outside every section; blocks may be
/// locked, since it waits for nothing.
#[inline]
pub(crate) fn age_if_due(pool: &Pool) {
    if pool.lru.is_aging_due() {
        age_due(pool);
    }
}

#[cold]
fn age_due(pool: &Pool) {
    if pool.in_store_scope() {
        return;
    }
    let Some(group) = pool.lru.take_aging_due() else {
        return;
    };
    let half_full = |id| {
        let max = pool.groups.max(id).map_or(u64::MAX, |max| max.0);
        pool.groups.charged(id).0 > max / 2
    };
    if pool.groups.path(group).any(half_full) && is_tail_mapped(pool, group) {
        age_tail(pool, group);
    }
}

fn is_tail_mapped(pool: &Pool, group: GroupId) -> bool {
    // Locked, the tail stays on its list, and its frame a block's.
    let lists = pool.lru.lock(group);
    let tail = lists.list(ListKind::Inactive).back();
    tail.is_some_and(|id| pool.frames.meta(id).hold.load().mapped() > 0)
}

/// Looks once at the tail of the inactive list.
fn age_tail(pool: &Pool, group: GroupId) {
    // All frames of a small group may be isolated here: a request that finds nothing on its lists
    // waits for this thread, and is not refused.
    let _working = pool.progress.begin();
    // Requests of owners must not come back here.
    let _scope = pool.store_scope();
    let mut cluster = Cluster::new(pool, Io::Forbidden);
    cluster.take(group, ListKind::Inactive, LOOKS);
    cluster.age(|_| true);
    let (mut keep, mut leave) = (Vec::new(), Vec::new());
    for (id, used) in cluster.aged() {
        if used {
            pool.used_through_mapping(id);
            keep.push(id);
        } else if is_awaited(pool.frames.meta(id)) {
            keep.push(id);
        } else {
            leave.push(id);
        }
    }
    pool.lru.put_back(&pool.frames, &keep, Evictable::Yes);
    // The oldest was taken first.
    leave.reverse();
    pool.lru.put_back_at_tail(&pool.frames, &leave);
}
