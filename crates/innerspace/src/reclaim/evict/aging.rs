//! Clears accessed bits of mapped pages before memory is full.
//!
//! A page that a fault has just brought in has its accessed bit set, and so has a page that has
//! been used a thousand times. If reclaim looked at pages only when it needed one, it could not
//! tell the two apart, and would evict the older. So once a group is half full, for each batch of
//! new pages, twice as many pages are looked at from the tail of the group's inactive list. Pages
//! that were used go to the head, referenced; those that are used again before the next look become
//! active. The rest stay at the tail, to be evicted first.

use super::cluster::{Cluster, is_awaited};
use crate::group::GroupId;
use crate::reclaim::lists::{BATCH_LEN, Evictable, ListKind};
use crate::reclaim::owners::Io;
use crate::reclaim::pool::Pool;

/// The number of pages looked at for each batch of new ones: two for each new page. So while the
/// second half of a group fills up, as many pages are looked at as the group can have.
const LOOKS: usize = 2 * BATCH_LEN;

/// Looks at some mapped pages if new ones have come in. The caller is outside every section. It may
/// hold locks of blocks, since nothing here waits.
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
    // While the list is locked, the frame at its tail stays on it, so the frame is not freed.
    let lists = pool.lru.lock(group);
    let tail = lists.list(ListKind::Inactive).back();
    tail.is_some_and(|id| pool.frames.meta(id).hold.load().mapped() > 0)
}

/// Looks once at the last [`LOOKS`] frames of the group's inactive list.
fn age_tail(pool: &Pool, group: GroupId) {
    // All frames of a small group may be isolated here. Since this thread counts as working, a
    // request that finds nothing on its lists waits for it, and is not refused.
    let _working = pool.progress.begin();
    // In this scope, requests made by owners evict nothing, so they do not re-enter reclaim.
    let _scope = pool.owner_scope();
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
    // The frames were taken oldest first. The oldest is put back last, at the very tail.
    leave.reverse();
    pool.lru.put_back_at_tail(&pool.frames, &leave);
}
