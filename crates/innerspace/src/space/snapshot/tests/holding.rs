//! Counts of the frames that the two sides of a fork hold. A frame that neither side can reach any
//! more is freed at once.

use std::sync::mpsc;

use super::cost::resident;
use super::*;
use crate::sync::failpoint;

const PAGES: u64 = 600;
/// Frames besides the pages: two leaves, the nodes above them, the root, and the accessor.
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
        let mut c = child.accessor().unwrap();
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
        // Each round stores to different pages, and never to all pages of a leaf.
        store(
            &mut a,
            at,
            (0..PAGES).filter(|page| page % 3 != round % 3),
            round,
        );
        drop(child);
        // More in use: the leaves that the child had, with the pages that the parent still borrows
        // from them.
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
    // The leaf gets four borrowers, which end in another order than they came.
    let mut accessors = children.each_ref().map(|space| space.accessor().unwrap());
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
    // The first store to a page that is still borrowed takes it over.
    a.store(at + 511 * PAGE, 7u64).unwrap();
    assert_eq!(used(&pool), before);
    parent.validate();
    drop((a, parent));
    assert_nothing_left(&pool);
}

/// The leaf that is collapsed has a shadow of its own, which has lost its last parent, too.
#[test]
fn a_chain_of_dead_leaves_holds_what_the_last_one_needs() {
    let pool = pool(8_192);
    let (first, at, mut a) = resident(&pool, 512);
    let second = first.fork().unwrap();
    store(&mut second.accessor().unwrap(), at, 0..400, 1_000);
    let third = second.fork().unwrap();
    store(&mut third.accessor().unwrap(), at, 300..500, 2_000);
    store(&mut a, at, 0..1, 0);
    drop((a, first, second));
    let (mut c, before) = (third.accessor().unwrap(), used(&pool));
    // The chain has two leaves more than it needs, and those pages of the first leaf that the last
    // one has replaced and the second one shared.
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

/// The first leaf reads which pages the second still needs, while the third collapses the second.
// spec: F3, F4
#[test]
fn a_leaf_that_is_collapsed_says_to_the_end_what_it_borrows() {
    let pool = pool(64);
    let (first, at, a) = resident(&pool, 4);
    let second = first.fork().unwrap();
    second.accessor().unwrap().store(at, 10u64).unwrap();
    let third = second.fork().unwrap();
    let mut c = third.accessor().unwrap();
    c.store(at + PAGE, 11u64).unwrap();
    drop((a, second));
    while pool.flush_retired() > 0 {}
    let (hand_over, ending) = mpsc::channel();
    let _there = failpoint::on("Collapsed", move || {
        let (told, gone) = mpsc::channel();
        let ending = thread::spawn(move || {
            let _there = failpoint::on("TableGone", move || told.send(()).unwrap());
            drop(first);
        });
        gone.recv().unwrap();
        hand_over.send(ending).unwrap();
    });
    c.store(at + 2 * PAGE, 12u64).unwrap();
    ending.recv().unwrap().join().unwrap();
    while pool.flush_retired() > 0 {}
    // A frame that was released by mistake would belong to this other space now.
    let (others, _, o) = resident(&pool, 8);
    let seen = [0, 1, 2, 3].map(|page| c.load::<u64>(at + page * PAGE).unwrap());
    assert_eq!(seen, [10, 11, 12, 3]);
    third.validate();
    drop((c, o, third, others));
    assert_nothing_left(&pool);
}

// spec: F2
#[test]
fn sixty_four_generations_and_a_thousand_siblings_read_their_own_bytes() {
    let pool = pool(16 * 1024);
    let first = space(&pool);
    let at = first.map(Map::anonymous(64 * PAGE)).unwrap();
    let before = in_use(&pool);
    let mut generations = vec![first];
    for number in 0..64 {
        let child = generations.last().unwrap().fork().unwrap();
        child
            .accessor()
            .unwrap()
            .store(at + number * PAGE, number + 1)
            .unwrap();
        child.accessor().unwrap().store(at, 1000 + number).unwrap();
        generations.push(child);
    }
    for (number, space) in generations.iter().enumerate() {
        let mut a = space.accessor().unwrap();
        for page in 1..64 {
            let written = page < number as u64;
            let expected = if written { page + 1 } else { 0 };
            assert_eq!(
                a.load::<u64>(at + page * PAGE),
                Ok(expected),
                "{number} {page}"
            );
        }
        space.validate();
    }
    // The generations have 63 pages with numbers above 0 (page `n` is stored to by one generation,
    // and shared by the later ones), and each its own page 0.
    let tables: u64 = generations.iter().skip(1).map(|_| 4).sum();
    let pages = 63 + 64;
    let leaves_and_pages = in_use(&pool) - before;
    assert!(
        leaves_and_pages <= tables + pages + 3,
        "{leaves_and_pages} frames"
    );
    let parent = generations.pop().unwrap();
    drop(generations);
    parent.accessor().unwrap().store(at + PAGE, 77u64).unwrap();
    // Before the leaf is first copied, it takes over the pages that it borrows from leaves without
    // parents.
    let eldest = parent.fork().unwrap();
    eldest.accessor().unwrap().store(at + 2 * PAGE, 0).unwrap();
    let before = in_use(&pool);
    let siblings: Vec<Space> = (0..1000)
        .map(|number| {
            let child = parent.fork().unwrap();
            child
                .accessor()
                .unwrap()
                .store(at + 2 * PAGE, number)
                .unwrap();
            child
        })
        .collect();
    for (number, child) in siblings.iter().enumerate() {
        let mut a = child.accessor().unwrap();
        assert_eq!(a.load::<u64>(at + 2 * PAGE), Ok(number as u64));
        assert_eq!(a.load::<u64>(at + PAGE), Ok(77));
    }
    // Each sibling has a root, two nodes, a leaf and a page.
    assert_eq!(in_use(&pool) - before, 5 * 1000);
    drop((siblings, eldest, parent));
    assert_nothing_left(&pool);
}
