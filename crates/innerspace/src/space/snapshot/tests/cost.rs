//! Counts of what forks and un-sharing touch.

use super::*;
use crate::space::table::nodes::visited;

/// Creates a space with this many resident pages, in as many leaves as they need.
pub(super) fn resident(pool: &Arc<Pool>, pages: u64) -> (Space, VirtAddr, Accessor) {
    let space = space(pool);
    let at = VirtAddr(1 << 40);
    space.map(Map::anonymous(pages * PAGE).at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    for page in 0..pages {
        a.store(at + page * PAGE, page).unwrap();
    }
    (space, at, a)
}

/// Counts the hold words that `work` changes.
fn touched(work: impl FnOnce()) -> u64 {
    let before = crate::frame::touched::so_far();
    work();
    crate::frame::touched::so_far() - before
}

/// Counts the nodes of tables that `work` looks into.
fn looked_into(work: impl FnOnce()) -> u64 {
    let before = visited::so_far();
    work();
    visited::so_far() - before
}

// spec: F1
#[test]
fn a_fork_touches_as_little_with_many_pages_as_with_few() {
    let costs = [100, 20_000].map(|pages| {
        let pool = pool(pages as u32 + 2_000);
        let (space, ..) = resident(&pool, pages);
        let mut child = None;
        let before = in_use(&pool);
        let mut nodes = 0;
        let hold_words = touched(|| {
            nodes = looked_into(|| child = Some(space.fork().unwrap()));
        });
        (hold_words, in_use(&pool) - before, nodes)
    });
    assert_eq!(
        costs[0], costs[1],
        "hold words changed, frames taken, nodes looked into"
    );
    assert!(costs[0].0 <= 4 && costs[0].1 == 1, "{costs:?}");
    assert_eq!(costs[0].2, 2, "both roots, once each");
}

/// The pages are stored to for the first time since the snapshot, so the restore drops them.
// spec: F7
#[test]
fn a_restore_looks_into_what_was_changed_alone() {
    let costs = [512, 20_480].map(|pages| {
        let pool = pool(pages as u32 + 2_000);
        let (space, at, mut a) = resident(&pool, pages);
        let snapshot = space.freeze().unwrap();
        for page in 0..8 {
            a.store(at + page * PAGE, 99u64).unwrap();
        }
        let cost = looked_into(|| space.restore(&snapshot).unwrap());
        assert_eq!(pool.counters.totals().restore_drop, 1);
        assert_eq!(a.load::<u64>(at + 7 * PAGE), Ok(7));
        cost
    });
    assert_eq!(costs[0], costs[1], "one leaf, and forty");
}

// spec: F5
#[test]
fn un_sharing_a_leaf_touches_no_metadata_of_what_it_maps() {
    // If there were only one page, the first store would part the leaf from its shadow.
    let costs = [2, 512].map(|pages| {
        let pool = pool(4_096);
        let (space, at, mut a) = resident(&pool, pages);
        let child = space.fork().unwrap();
        // A store to another leaf copies the upper nodes first.
        space.map(Map::anonymous(PAGE).at(at + 4 * LEAF)).unwrap();
        let child2 = space.fork().unwrap();
        a.store(at + 4 * LEAF, 1u64).unwrap();
        let cost = touched(|| a.store(at, 1u64).unwrap());
        drop((child, child2));
        cost
    });
    assert_eq!(costs[0], costs[1], "a leaf of two pages, and of 512");
    assert!(costs[0] <= 14, "{costs:?}");
}

// spec: F5
#[test]
fn nor_does_un_sharing_a_leaf_that_has_outlived_the_one_it_borrows_from() {
    let costs = [3, 512].map(|pages| {
        let pool = pool(4_096);
        let (space, at, mut a) = resident(&pool, pages);
        let mut cost = 0;
        // Each round is a backup by a fork. Only borrowing keeps the leaf of the round before.
        for backup in 0..4 {
            let child = space.fork().unwrap();
            cost = touched(|| a.store(at, backup).unwrap());
            drop(child);
        }
        // In use: the pages, a root and three nodes; the leaf of the last backup with its one page;
        // and nodes that wait for a grace period.
        pool.flush_retired();
        assert!(in_use(&pool) <= pages + 4 + 2, "a leaf a backup");
        a.store(at + (pages - 1) * PAGE, 7u64).unwrap();
        assert_eq!(a.load::<u64>(at), Ok(3));
        assert_eq!(a.load::<u64>(at + PAGE), Ok(1));
        space.validate();
        drop((a, space));
        assert_nothing_left(&pool);
        cost
    });
    assert_eq!(costs[0], costs[1], "a leaf of three pages, and of 512");
}

// spec: F5
#[test]
fn chains_of_borrowing_stay_short() {
    let pool = pool(4_096);
    let (mut space, at, a) = resident(&pool, 32);
    drop(a);
    let mut all = Vec::new();
    for generation in 0..40 {
        let child = space.fork().unwrap();
        child.accessor().unwrap().store(at, generation).unwrap();
        let nodes = child.0.nodes();
        let depth = child.0.inside(|_| {
            let leaf = nodes.find(at.0).unwrap().frame;
            nodes.borrowing_depth(leaf)
        });
        assert!(
            depth <= 9,
            "generation {generation} borrows through {depth} leaves"
        );
        all.push(std::mem::replace(&mut space, child));
    }
    for (generation, space) in all.iter().enumerate().skip(1) {
        let mut a = space.accessor().unwrap();
        assert_eq!(a.load::<u64>(at), Ok(generation as u64 - 1));
        assert_eq!(a.load::<u64>(at + 31 * PAGE), Ok(31));
    }
}

/// A shared leaf that takes over its last borrowed page has no more use for the next shadow in its
/// chain.
// spec: F2
#[test]
fn a_shared_leaf_that_borrows_nothing_releases_the_next_shadow() {
    let pool = pool(4_096);
    let (s, at, mut a) = resident(&pool, 16);
    let c1 = s.fork().unwrap();
    c1.accessor().unwrap().store(at, 100u64).unwrap();
    let c2 = c1.fork().unwrap();
    let mut b = c2.accessor().unwrap();
    (1..16).for_each(|page| b.store(at + page * PAGE, 200u64).unwrap());
    drop(c1);
    let c3 = c2.fork().unwrap();
    // This store copies the shared leaf, which first takes over the pages of the first child's
    // leaf.
    b.store(at, 201u64).unwrap();
    drop((b, c2));
    pool.flush_retired();
    let mut c = c3.accessor().unwrap();
    (0..16).for_each(|page| c.store(at + page * PAGE, 300u64).unwrap());
    (0..15).for_each(|page| a.store(at + page * PAGE, 400u64).unwrap());
    // In use: 16 pages, a root and three nodes for each space; and the old leaf, whose one page is
    // among those pages.
    let used = in_use(&pool);
    assert!(used <= 2 * (16 + 4) + 1, "{used}");
}
