//! Leaves whose pages are contiguous become one translation, but never while their pages may
//! change.

use std::sync::mpsc;

use super::*;
use crate::space::Remap;
use crate::space::core::address::{LEAF_BYTES, SLOTS};
use crate::stats::Event;
use crate::sync::failpoint;

const PAGES: u64 = SLOTS as u64;
const AT: VirtAddr = VirtAddr(8 * LEAF_BYTES);

/// Creates a space with one leaf of memory.
fn leaf(pool: &Arc<Pool>) -> Space {
    let space = space(pool);
    space.map(Map::anonymous(LEAF_BYTES).at(AT)).unwrap();
    space
}

/// Stores each page's number to it, in order.
fn store_all(a: &mut Accessor, add: u64) {
    (0..PAGES).for_each(|page| a.store(AT + page * PAGE, page + add).unwrap());
}

/// Visits the beginnings of so many pages that the leaf's words are read.
fn visit(a: &mut Accessor) {
    (0..16).for_each(|page| assert!(a.load::<u8>(AT + page * PAGE).is_ok()));
}

/// Visits so many pages that the leaf's words are read even after a few doublings.
fn visit_often(a: &mut Accessor) {
    (0..8).for_each(|_| visit(a));
}

/// Creates a space with a leaf whose pages are contiguous, and an accessor that has it coalesced.
fn coalesced(pool: &Arc<Pool>) -> (Space, Accessor) {
    let space = leaf(pool);
    let mut a = space.accessor().unwrap();
    store_all(&mut a, 1);
    visit(&mut a);
    assert!(a.core.translator.has_coalesced(AT.0));
    (space, a)
}

/// Returns the first word of every page.
fn shown(a: &mut Accessor) -> Vec<u64> {
    let load = |page| a.load(AT + (page * PAGE)).unwrap();
    (0..PAGES).map(load).collect()
}

fn numbers(add: u64) -> Vec<u64> {
    (0..PAGES).map(|page| page + add).collect()
}

#[test]
fn memory_that_is_stored_to_in_order_is_one_translation() {
    let pool = pool(1024);
    let (space, mut a) = coalesced(&pool);
    let faults = pool.counters.sum(Event::PgFault);
    assert_eq!(shown(&mut a), numbers(1));
    a.session(|a| {
        for page in 0..PAGES {
            // Accesses at the page's beginning, after it, and across the page's end.
            for offset in [0, 100, PAGE - 8] {
                let at = AT + (page * PAGE + offset);
                a.store(at, page * 7 + offset).unwrap();
                assert_eq!(a.load(at), Ok(page * 7 + offset));
            }
            if page + 1 < PAGES {
                let at = AT + (page * PAGE + PAGE - 3);
                a.store(at, page).unwrap();
                assert_eq!(a.load(at), Ok(page));
            }
        }
    });
    assert_eq!(pool.counters.sum(Event::PgFault), faults, "no fault");
    let beyond = a.load::<u64>(AT + (LEAF_BYTES - 7)).unwrap_err();
    assert_eq!(beyond.kind(), FaultKind::NotMapped);
    assert!(a.core.translator.has_coalesced(AT.0));
    let mut bytes = vec![0; LEAF_BYTES as usize];
    space.accessor().unwrap().read(AT, &mut bytes).unwrap();
    for (page, bytes) in (0_u64..).zip(bytes.chunks(PAGE_SIZE)) {
        assert_eq!(bytes[100..108], (page * 7 + 100).to_ne_bytes());
    }
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}

#[test]
fn a_leaf_is_left_as_it_is_where_a_page_is_missing_elsewhere_or_read_only() {
    let pool = pool(1024);
    // A page is missing.
    let space = leaf(&pool);
    let mut a = space.accessor().unwrap();
    (0..PAGES - 1).for_each(|page| a.store(AT + page * PAGE, 1u64).unwrap());
    visit(&mut a);
    assert!(!a.core.translator.has_coalesced(AT.0));
    assert_eq!(a.load::<u64>(AT + (PAGES - 1) * PAGE), Ok(0));
    visit(&mut a);
    assert!(!a.core.translator.has_coalesced(AT.0), "zeros");
    drop((a, space));
    assert_nothing_left(&pool);
    // Two pages are in the wrong order.
    let pool = self::pool(1024);
    let space = leaf(&pool);
    let mut a = space.accessor().unwrap();
    for page in (0..PAGES - 2).chain([PAGES - 1, PAGES - 2]) {
        a.store(AT + page * PAGE, page + 1).unwrap();
    }
    visit(&mut a);
    assert!(!a.core.translator.has_coalesced(AT.0));
    assert_eq!(shown(&mut a), numbers(1));
    drop((a, space));
    assert_nothing_left(&pool);
    // A page is read-only.
    let pool = self::pool(1024);
    let (space, mut a) = coalesced(&pool);
    space.protect(AT + PAGE, PAGE, Protection::READ).unwrap();
    let refused = a.store(AT + PAGE, 9u64).unwrap_err();
    assert_eq!(refused.kind(), FaultKind::Forbidden);
    visit_often(&mut a);
    assert!(!a.core.translator.has_coalesced(AT.0));
    assert_eq!(shown(&mut a), numbers(1));
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}

/// The pages are usually not valid for fetches, so fetches read the words.
#[test]
fn what_is_coalesced_can_be_fetched() {
    let pool = pool(1024);
    let (space, mut a) = coalesced(&pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let forbidden = a.fetch::<u64>(AT + PAGE).unwrap_err();
    assert_eq!(forbidden.kind(), FaultKind::Forbidden);
    space.protect(AT, LEAF_BYTES, all).unwrap();
    (0..PAGES).for_each(|page| a.store(AT + page * PAGE, page + 1).unwrap());
    visit_often(&mut a);
    assert!(a.core.translator.has_coalesced(AT.0));
    assert_eq!(a.fetch::<u64>(AT + PAGE), Ok(2));
    assert_eq!(shown(&mut a), numbers(1));
}

// spec: A5, A6
#[test]
fn what_is_dropped_from_a_coalesced_leaf_is_gone_for_all() {
    let pool = pool(1024);
    let (space, mut a) = coalesced(&pool);
    let dropped = AT + 100 * PAGE;
    space.discard(dropped, PAGE).unwrap();
    let mut b = space.accessor().unwrap();
    b.store(dropped + 8, 7u64).unwrap();
    assert_eq!([0, 8].map(|at| a.load::<u64>(dropped + at)), [Ok(0), Ok(7)]);
    // No accessor has the leaf coalesced, so the next page is dropped with the gate open.
    let next = AT + 102 * PAGE;
    let before = pool.domain.grace_periods();
    space.discard(next, PAGE).unwrap();
    assert_eq!(pool.domain.grace_periods() - before, 1);
    assert_eq!(a.load::<u64>(next), Ok(0));
    space.validate();
    drop((a, b, space));
    assert_nothing_left(&pool);
}

/// Another accessor visits the leaf often enough while one of its pages is about to be dropped.
// spec: A5
#[test]
fn a_leaf_is_not_coalesced_while_its_pages_are_taken() {
    let pool = pool(1024);
    let space = leaf(&pool);
    let mut a = space.accessor().unwrap();
    store_all(&mut a, 1);
    let (hand_over, visited) = mpsc::channel();
    let _there = failpoint::on("Zap", move || {
        visit(&mut a);
        hand_over.send(a).unwrap();
    });
    space.discard(AT + 100 * PAGE, PAGE).unwrap();
    let mut a = visited.recv().unwrap();
    assert_eq!(a.load::<u64>(AT + 100 * PAGE), Ok(0));
    space.validate();
}

// spec: A1
#[test]
fn a_store_to_a_coalesced_leaf_is_named_again_after_take_dirty() {
    let pool = pool(1024);
    let (space, mut a) = coalesced(&pool);
    drop(space.take_dirty(AT, LEAF_BYTES).unwrap());
    let stored = AT + 77 * PAGE;
    a.store(stored, 1u64).unwrap();
    let dirty = space.take_dirty(AT, LEAF_BYTES).unwrap();
    assert_eq!(dirty, [stored..stored + PAGE]);
    // Only a part of the leaf is taken.
    store_all(&mut a, 5);
    visit_often(&mut a);
    assert!(a.core.translator.has_coalesced(AT.0));
    drop(space.take_dirty(stored, PAGE).unwrap());
    a.store(stored + 8, 1u64).unwrap();
    let dirty = space.take_dirty(stored, PAGE).unwrap();
    assert_eq!(dirty, [stored..stored + PAGE]);
    assert_eq!(shown(&mut a), numbers(5));
}

// spec: V11
#[test]
fn a_store_to_a_coalesced_leaf_counts_once_its_page_is_watched() {
    let pool = pool(1024);
    let space = space(&pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let map = Map::anonymous(LEAF_BYTES).at(AT).protection(all);
    space.map(map).unwrap();
    let mut a = space.accessor().unwrap();
    store_all(&mut a, 1);
    visit(&mut a);
    assert!(a.core.translator.has_coalesced(AT.0));
    let code = space.accessor().unwrap().watch_code(AT + 9 * PAGE).unwrap();
    assert!(code.is_current());
    a.store(AT + 9 * PAGE + 64, 1u64).unwrap();
    assert!(!code.is_current());
}

// spec: A4
#[test]
fn stores_to_a_coalesced_leaf_stay_on_their_side_of_a_fork() {
    let pool = pool(2048);
    let (space, mut a) = coalesced(&pool);
    let child = space.fork().unwrap();
    store_all(&mut a, 1000);
    let mut c = child.accessor().unwrap();
    assert_eq!(shown(&mut c), numbers(1));
    assert_eq!(shown(&mut a), numbers(1000));
    visit(&mut a);
    store_all(&mut c, 2000);
    visit(&mut c);
    assert_eq!(shown(&mut a), numbers(1000));
    assert_eq!(shown(&mut c), numbers(2000));
    space.validate();
    child.validate();
    drop((a, c, space, child));
    assert_nothing_left(&pool);
}

/// A fork takes write validity in a leaf that both spaces have. Meanwhile a store near the range
/// gives the fork a leaf of its own.
// spec: A1
#[test]
fn what_a_change_is_at_stays_shared_until_it_has_passed() {
    let pool = pool(4096);
    let space = leaf(&pool);
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u64>(AT), Ok(0), "now there is a leaf");
    let child = space.fork().unwrap();
    let mut c = child.accessor().unwrap();
    let (hand_over, done) = mpsc::channel();
    let _there = failpoint::on("Edited", move || {
        let parting = thread::spawn(move || {
            c.store(AT, 1u64).unwrap();
            store_all(&mut a, 1);
            visit(&mut a);
            assert!(a.core.translator.has_coalesced(AT.0));
            hand_over.send((a, c)).unwrap();
        });
        parting.join().unwrap();
    });
    let range = (AT + PAGE, LEAF_BYTES - PAGE);
    child.protect(range.0, range.1, Protection::READ).unwrap();
    let (mut a, c) = done.recv().unwrap();
    let stored = AT + 100 * PAGE;
    drop(space.take_dirty(stored, PAGE).unwrap());
    a.store(stored, 1u64).unwrap();
    let dirty = space.take_dirty(stored, PAGE).unwrap();
    assert_eq!(dirty, [stored..stored + PAGE]);
    space.discard(stored, PAGE).unwrap();
    assert_eq!(a.load::<u64>(stored), Ok(0));
    space.validate();
    child.validate();
    drop((a, c, space, child));
    assert_nothing_left(&pool);
}

/// Each time that coalesced leaves are forgotten, twice as many visits are needed.
#[test]
fn who_forgets_often_coalesces_seldom() {
    let pool = pool(1024);
    let (space, mut a) = coalesced(&pool);
    for doubled in 1..=10_u32 {
        space.discard(AT + 100 * PAGE, PAGE).unwrap();
        a.store(AT + 100 * PAGE, 1u64).unwrap();
        let times = 1 << doubled.min(8);
        for time in 0..times {
            assert!(!a.core.translator.has_coalesced(AT.0), "{time} of {times}");
            visit(&mut a);
        }
        // The store has got the old frame again.
        assert!(a.core.translator.has_coalesced(AT.0));
    }
}

/// The first access reads the mail, but is in a leaf of its own, which it looks up again in any
/// case.
// spec: F7
#[test]
fn a_restore_in_place_is_seen_by_who_has_the_leaf_coalesced() {
    let pool = pool(2048);
    let space = leaf(&pool);
    let beside = AT + LEAF_BYTES;
    space.map(Map::anonymous(PAGE).at(beside)).unwrap();
    let snapshot = space.freeze().unwrap();
    let mut a = space.accessor().unwrap();
    // The first restore begins the record of changes.
    space.restore(&snapshot).unwrap();
    for round in 1..4 {
        store_all(&mut a, round);
        a.store(beside, round).unwrap();
        visit(&mut a);
        // After the first round some of the frames differ.
        assert!(round > 1 || a.core.translator.has_coalesced(AT.0));
        let before = pool.counters.sum(Event::RestoreInPlace);
        space.restore(&snapshot).unwrap();
        assert_eq!(pool.counters.sum(Event::RestoreInPlace) - before, 1);
        assert_eq!(a.load::<u64>(beside), Ok(0));
        assert_eq!(shown(&mut a), vec![0; SLOTS]);
    }
    space.validate();
    drop((a, space, snapshot));
    assert_nothing_left(&pool);
}

/// The same program on two accessors and on a vector.
mod programs {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// Stores to all pages, in order.
        StoreAll(u64),
        Store(u64, u64),
        /// Visits pages by this accessor.
        Visit(usize),
        DontNeed(u64, u64),
        ReadOnly(u64, u64),
        /// Moves the pages to other addresses and back.
        Move(u64, u64),
        Unmap(u64, u64),
        TakeDirty(u64, u64),
        Watch(u64),
        Fork,
        Freeze,
        Restore,
    }

    fn range() -> impl Strategy<Value = (u64, u64)> {
        (0..PAGES, 1..PAGES).prop_map(|(first, len)| (first, len.min(PAGES - first)))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<u64>().prop_map(Step::StoreAll),
            4 => (0..PAGES, any::<u64>()).prop_map(|(page, value)| Step::Store(page, value)),
            6 => (0..2_usize).prop_map(Step::Visit),
            2 => range().prop_map(|(first, len)| Step::DontNeed(first, len)),
            1 => range().prop_map(|(first, len)| Step::ReadOnly(first, len)),
            1 => range().prop_map(|(first, len)| Step::Move(first, len)),
            1 => range().prop_map(|(first, len)| Step::Unmap(first, len)),
            1 => range().prop_map(|(first, len)| Step::TakeDirty(first, len)),
            1 => (0..PAGES).prop_map(Step::Watch),
            1 => Just(Step::Fork),
            1 => Just(Step::Freeze),
            2 => Just(Step::Restore),
        ]
    }

    const ELSEWHERE: VirtAddr = VirtAddr(64 * LEAF_BYTES);

    fn map_again(space: &Space, first: u64, len: u64) {
        let all = Protection::READ_WRITE | Protection::EXECUTE;
        let map = Map::anonymous(len * PAGE).at(AT + first * PAGE);
        space.map(map.protection(all)).unwrap();
    }

    fn at(page: u64) -> VirtAddr {
        AT + page * PAGE
    }

    fn bytes(first: u64, len: u64) -> std::ops::Range<usize> {
        first as usize..(first + len) as usize
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

        // spec: A5
        #[test]
        fn two_accessors_see_what_was_stored_last(steps in prop::collection::vec(step(), 1..24)) {
            let pool = pool(4096);
            let space = space(&pool);
            map_again(&space, 0, PAGES);
            let mut accessors = [space.accessor().unwrap(), space.accessor().unwrap()];
            store_all(&mut accessors[0], 1);
            let mut expected = numbers(1);
            for one in &mut accessors {
                prop_assert_eq!(&shown(one), &expected);
                visit(one);
                prop_assert!(one.core.translator.has_coalesced(AT.0));
            }
            let mut snapshot: Option<(_, Vec<u64>)> = None;
            let mut others = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                let [a, b] = &mut accessors;
                match step {
                    Step::StoreAll(value) => for page in 0..PAGES {
                        a.store(at(page), value ^ page).unwrap();
                        expected[page as usize] = value ^ page;
                    },
                    Step::Store(page, value) => {
                        b.store(at(page), value).unwrap();
                        expected[page as usize] = value;
                    }
                    Step::Visit(which) => visit_often(&mut accessors[which]),
                    Step::DontNeed(first, len) => {
                        space.discard(at(first), len * PAGE).unwrap();
                        expected[bytes(first, len)].fill(0);
                    }
                    Step::ReadOnly(first, len) => {
                        let read = Protection::READ | Protection::EXECUTE;
                        let all = Protection::READ_WRITE | Protection::EXECUTE;
                        space.protect(at(first), len * PAGE, read).unwrap();
                        let refused = b.store(at(first + len - 1), 1u64).unwrap_err();
                        prop_assert_eq!(refused.kind(), FaultKind::Forbidden);
                        space.protect(at(first), len * PAGE, all).unwrap();
                    }
                    Step::Move(first, len) => {
                        let to = ELSEWHERE + 3 * PAGE;
                        let all = Protection::READ_WRITE | Protection::EXECUTE;
                        let there = Map::anonymous(len * PAGE).at(to).protection(all);
                        space.map(there).unwrap();
                        b.store(to, 88u64).unwrap();
                        space.unmap(to, len * PAGE).unwrap();
                        let len = len * PAGE;
                        // A remap of a range in several mappings is refused.
                        if space.remap(at(first), len, len, Remap::Replacing(to)).is_ok() {
                            let gone = a.load::<u64>(at(first)).unwrap_err();
                            prop_assert_eq!(gone.kind(), FaultKind::NotMapped);
                            space.remap(to, len, len, Remap::Replacing(at(first))).unwrap();
                        }
                    }
                    Step::Unmap(first, len) => {
                        space.unmap(at(first), len * PAGE).unwrap();
                        let gone = b.load::<u64>(at(first)).unwrap_err();
                        prop_assert_eq!(gone.kind(), FaultKind::NotMapped);
                        map_again(&space, first, len);
                        expected[bytes(first, len)].fill(0);
                    }
                    Step::TakeDirty(first, len) => {
                        drop(space.take_dirty(at(first), len * PAGE).unwrap());
                        let value = number as u64;
                        a.store(at(first), value).unwrap();
                        expected[first as usize] = value;
                        let dirty = space.take_dirty(at(first), len * PAGE).unwrap();
                        prop_assert_eq!(dirty, [at(first)..at(first + 1)]);
                    }
                    Step::Watch(page) => {
                        let watched = b.watch_code(at(page)).unwrap();
                        a.store(at(page), 3u64).unwrap();
                        prop_assert!(!watched.is_current());
                        expected[page as usize] = 3;
                    }
                    Step::Fork => {
                        others.truncate(1);
                        others.push((space.fork().unwrap(), expected.clone()));
                    }
                    Step::Freeze => {
                        snapshot = Some((space.freeze().unwrap(), expected.clone()));
                    }
                    Step::Restore => if let Some((snapshot, then)) = &snapshot {
                        space.restore(snapshot).unwrap();
                        expected.clone_from(then);
                    },
                }
                for one in &mut accessors {
                    prop_assert_eq!(&shown(one), &expected, "after step {}", number);
                }
            }
            for (fork, then) in &others {
                prop_assert_eq!(&shown(&mut fork.accessor().unwrap()), then);
            }
            space.validate();
            drop((accessors, snapshot, others, space));
            assert_nothing_left(&pool);
        }
    }
}
