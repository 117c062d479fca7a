//! Frames freed in runs: of several groups, with other references, in blocks, with words, on lists.

use super::mock::pool_of;
use crate::frame::{HoldState, Kind};
use crate::group::GroupId;
use crate::reclaim::*;
use crate::units::{FrameId, PageCount};

fn published(pool: &Pool, group: GroupId, order: u8, kind: Kind, refs: u32) -> FrameId {
    let mut frame = pool.alloc(group, order, AllocMode::NoWait).unwrap();
    frame.set_kind(kind);
    frame.publish(HoldState::refs_only(refs))
}

#[test]
fn what_is_freed_in_runs_leaves_the_books_as_if_freed_one_by_one() {
    let pool = pool_of(2000, 0);
    let groups = ["a", "b"].map(|name| pool.groups.create(GroupId::ROOT, name, None).unwrap());
    let page = |group, refs| published(&pool, group, 0, Kind::Anonymous, refs);
    // The first hundred frames are more than a run, with groups alternating. Frames that cannot
    // join a run follow.
    let mut ids: Vec<FrameId> = (0..100).map(|_| page(groups[0], 1)).collect();
    ids.extend((0..40).map(|at| page(groups[at % 2], 1)));
    let kept: Vec<FrameId> = (0..10).map(|at| page(groups[at % 2], 2)).collect();
    ids.extend(&kept);
    ids.push(published(&pool, groups[1], 3, Kind::Cached, 1));
    ids.push(published(&pool, groups[1], 0, Kind::Table, 1));
    let listed = page(groups[0], 1);
    pool.lru_add(listed);
    ids.push(listed);
    let all = ids.len() as u64 + 7;
    assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(all));

    let mut freeing = Freeing::new(&pool);
    ids.iter().for_each(|id| freeing.put(*id));
    drop(freeing);
    let usages = groups.map(|group| pool.groups.usage(group).0);
    assert_eq!(
        usages,
        [5, 5],
        "frames with other references are still charged"
    );
    assert_eq!(pool.totals().pgfree, all - 10);
    pool.validate();

    kept.iter().for_each(|id| pool.put(*id));
    assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(0));
    assert_eq!(pool.frames.free_frames(), pool.frames.total());
    pool.validate();
}
