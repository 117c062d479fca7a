//! What the two sides of a fork hold, by count: what nobody can reach any more is given back at once.

use super::cost::resident;
use super::*;

const PAGES: u64 = 600;
/// Its leaves, the nodes above them, the root, and the accessor.
const TABLES: u64 = 2 + 3 + 2;

fn used(pool: &Arc<Pool>) -> u64 {
    while pool.flush_retired() > 0 {}
    pool.groups.usage(crate::group::GroupId::ROOT).0
}

fn store(a: &mut Accessor, at: VirtAddr, pages: impl Iterator<Item = u64>, value: u64) {
    for page in pages {
        a.store(at + page * PAGE, value + page).unwrap();
    }
}

#[test]
fn a_parent_that_stores_to_everything_again_and_again_holds_its_size() {
    let pool = pool(4_096);
    let (parent, at, mut a) = resident(&pool, PAGES);
    let before = used(&pool);
    assert!(before <= PAGES + TABLES, "{before} to begin with");
    for round in 1..=20 {
        let child = parent.fork().unwrap();
        store(&mut a, at, 0..PAGES, round);
        let mut c = child.accessor();
        assert_eq!(c.load::<u64>(at + PAGE), Ok(round));
        let both = used(&pool);
        assert!(both <= 2 * before + 1, "{both} with the child");
        drop((c, child));
        assert_eq!(used(&pool), before, "round {round}");
        parent.validate();
    }
    drop((a, parent));
    assert_nothing_left(&pool);
}

#[test]
fn a_child_that_ends_takes_along_what_its_parent_has_replaced() {
    let pool = pool(4_096);
    let (parent, at, mut a) = resident(&pool, PAGES);
    let before = used(&pool);
    for round in 1..=20 {
        let child = parent.fork().unwrap();
        // Others each time, and never all of a leaf.
        store(
            &mut a,
            at,
            (0..PAGES).filter(|page| page % 3 != round % 3),
            round,
        );
        drop(child);
        // The leaves that the child had, with what the parent still borrows there.
        let after = used(&pool);
        assert!(after <= before + 2, "{after} for {before} in round {round}");
        parent.validate();
    }
    drop((a, parent));
    assert_nothing_left(&pool);
}

#[test]
fn a_borrower_left_alone_by_others_is_known() {
    let pool = pool(8_192);
    let (parent, at, mut a) = resident(&pool, 512);
    let before = used(&pool);
    let children = [(); 3].map(|()| parent.fork().unwrap());
    // The leaf gets four borrowers, which come in one order and go in another.
    let mut accessors = children.each_ref().map(Space::accessor);
    store(&mut accessors[1], at, 0..7, 100);
    store(&mut a, at, 0..500, 200);
    store(&mut accessors[0], at, 5..10, 300);
    store(&mut accessors[2], at, 5..10, 400);
    drop(accessors);
    let [first, second, third] = children;
    drop((second, first, third));
    let after = used(&pool);
    assert!(after <= before + 1, "{after} for {before}");
    for page in 0..512 {
        let want = if page < 500 { 200 + page } else { page };
        assert_eq!(a.load::<u64>(at + page * PAGE), Ok(want));
    }
    // The first store to what is still borrowed takes it over.
    a.store(at + 511 * PAGE, 7u64).unwrap();
    assert_eq!(used(&pool), before);
    parent.validate();
    drop((a, parent));
    assert_nothing_left(&pool);
}

/// The leaf that is absorbed has an origin in turn, which has lost its last parent, too.
#[test]
fn a_chain_of_dead_leaves_holds_what_the_last_one_needs() {
    let pool = pool(8_192);
    let (first, at, mut a) = resident(&pool, 512);
    let second = first.fork().unwrap();
    store(&mut second.accessor(), at, 0..400, 1_000);
    let third = second.fork().unwrap();
    store(&mut third.accessor(), at, 300..500, 2_000);
    store(&mut a, at, 0..1, 0);
    drop((a, first, second));
    let (mut c, before) = (third.accessor(), used(&pool));
    // Two leaves more than it needs; and what it has replaced of the first one's, where the second shared that.
    assert!(before <= 512 + 100 + TABLES + 1, "{before}");
    let want = |page| match page {
        300..500 => 2_000 + page,
        0..300 => 1_000 + page,
        _ => page,
    };
    for page in 0..512 {
        assert_eq!(c.load::<u64>(at + page * PAGE), Ok(want(page)));
    }
    c.store(at + 510 * PAGE, 510u64).unwrap();
    c.store(at + 511 * PAGE, 511u64).unwrap();
    for page in 0..512 {
        assert_eq!(c.load::<u64>(at + page * PAGE), Ok(want(page)));
    }
    assert!(used(&pool) <= 512 + TABLES);
    third.validate();
    drop((c, third));
    assert_nothing_left(&pool);
}
