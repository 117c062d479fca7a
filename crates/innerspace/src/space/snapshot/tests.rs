//! Snapshots against what they should be. Files and groups are tested through the facade (`tests/snapshots.rs`).

use super::*;
use crate::reclaim::{Pool, PoolOptions};
use crate::space::FaultKind;
use crate::space::table::Nodes;
use crate::sync::{Arc, thread};
use crate::{Map, PAGE_SIZE, PageCount, Protection, VirtAddr};
use proptest::prelude::*;

const PAGE: u64 = PAGE_SIZE as u64;
const LEAF: u64 = 512 * PAGE;

fn pool(frames: u32) -> Arc<Pool> {
    Pool::new(&PoolOptions::new(frames)).unwrap()
}

fn space(pool: &Arc<Pool>) -> Space {
    Space::new(pool, &pool.root_group(), crate::AddressWidth::Bits48).unwrap()
}

fn assert_nothing_left(pool: &Arc<Pool>) {
    while pool.flush_retired() > 0 {}
    assert_eq!(pool.groups.usage(crate::group::GroupId::ROOT), PageCount(0));
    pool.validate();
}

/// Frames in use, once nothing waits for a grace period.
fn in_use(pool: &Arc<Pool>) -> u64 {
    while pool.flush_retired() > 0 {}
    u64::from(pool.frames.total() - pool.frames.free_frames())
}

#[test]
fn a_snapshot_keeps_what_its_space_changes() {
    let pool = pool(512);
    let space = space(&pool);
    let at = space.map(Map::anonymous(8 * PAGE)).unwrap();
    let mut a = space.accessor();
    a.store(at, 1u64).unwrap();
    let snapshot = space.freeze().unwrap();
    a.store(at, 2u64).unwrap();
    a.store(at + PAGE, 3u64).unwrap();
    space.unmap(at + 2 * PAGE, PAGE).unwrap();
    let mut frozen = snapshot.accessor();
    assert_eq!(frozen.load::<u64>(at), Ok(1));
    assert_eq!(frozen.load::<u64>(at + PAGE), Ok(0));
    assert_eq!(frozen.load::<u64>(at + 2 * PAGE), Ok(0));
    snapshot.validate();
    space.validate();
    drop((a, frozen, space, snapshot));
    assert_nothing_left(&pool);
}

#[test]
fn a_snapshot_refuses_every_change() {
    let pool = pool(512);
    let space = space(&pool);
    let at = space.map(Map::anonymous(8 * PAGE)).unwrap();
    let mut a = space.accessor();
    a.store(at, 1u64).unwrap();
    let snapshot = space.freeze().unwrap();
    // The last to have the pages: their leaf is exclusive now, with write validity from before.
    drop((a, space));
    let mut frozen = snapshot.accessor();
    assert_eq!(frozen.load::<u64>(at), Ok(1));
    for offset in [0, PAGE, 3 * PAGE + 5] {
        let fault = frozen.store(at + offset, 9u64).unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Frozen);
    }
    let fault = frozen.fetch_add(at, 1u64).unwrap_err();
    assert_eq!(
        fault.to_string(),
        format!(
            "exchange of 8 bytes at {at}: a snapshot never changes, and has no devices; fork it"
        )
    );
    let frozen_space = frozen.space();
    for refused in [
        frozen_space.map(Map::anonymous(PAGE)).map(drop),
        frozen_space.unmap(at, PAGE),
        frozen_space.protect(at, PAGE, Protection::NONE),
        frozen_space.restore(&snapshot),
    ] {
        assert!(
            matches!(refused, Err(SpaceError::Frozen { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(frozen.load::<u64>(at), Ok(1));
}

#[test]
fn a_snapshot_of_another_space_or_memory_is_refused() {
    let (one, other) = (pool(256), pool(256));
    let (a, b, c) = (space(&one), space(&one), space(&other));
    let at = a.map(Map::anonymous(PAGE)).unwrap();
    a.accessor().store(at, 5u64).unwrap();
    let of_b = b.freeze().unwrap();
    assert!(matches!(a.restore(&of_b), Err(SpaceError::OtherSpace)));
    let child = a.fork().unwrap();
    let of_a = a.freeze().unwrap();
    assert!(matches!(child.restore(&of_a), Err(SpaceError::OtherSpace)));
    let of_c = c.freeze().unwrap();
    assert!(matches!(
        a.changed_since(&of_c),
        Err(SpaceError::OtherMemory { .. })
    ));
    assert_eq!(
        of_c.diff(&of_a).unwrap_err().to_string(),
        "diff: the snapshot is of another memory"
    );
    assert_eq!(a.accessor().load::<u64>(at), Ok(5));
    // But a space that was forked from a snapshot goes back to it.
    let born = of_a.fork().unwrap();
    born.accessor().store(at, 6u64).unwrap();
    born.restore(&of_a).unwrap();
    assert_eq!(born.accessor().load::<u64>(at), Ok(5));
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
            .store(at + number * PAGE, number + 1)
            .unwrap();
        child.accessor().store(at, 1000 + number).unwrap();
        generations.push(child);
    }
    for (number, space) in generations.iter().enumerate() {
        let mut a = space.accessor();
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
    // Page `n` once for each generation from 1 on, and page 0 once for each: every one distinct.
    let tables: u64 = generations.iter().skip(1).map(|_| 4).sum();
    let pages = 63 + 64;
    let leaves_and_pages = in_use(&pool) - before;
    assert!(
        leaves_and_pages <= tables + pages + 3,
        "{leaves_and_pages} frames"
    );
    let parent = generations.pop().unwrap();
    drop(generations);
    parent.accessor().store(at + PAGE, 77u64).unwrap();
    let before = in_use(&pool);
    let siblings: Vec<Space> = (0..1000)
        .map(|number| {
            let child = parent.fork().unwrap();
            child.accessor().store(at + 2 * PAGE, number).unwrap();
            child
        })
        .collect();
    for (number, child) in siblings.iter().enumerate() {
        let mut a = child.accessor();
        assert_eq!(a.load::<u64>(at + 2 * PAGE), Ok(number as u64));
        assert_eq!(a.load::<u64>(at + PAGE), Ok(77));
    }
    // A root, two nodes, a leaf and a page each.
    assert_eq!(in_use(&pool) - before, 5 * 1000);
    drop((siblings, parent));
    assert_nothing_left(&pool);
}

// spec: F4
#[test]
fn forks_and_snapshots_dropped_in_any_order_free_each_frame_once() {
    for order in 0..24 {
        let pool = pool(2048);
        let parent = space(&pool);
        let at = parent.map(Map::anonymous(2 * LEAF)).unwrap();
        let mut a = parent.accessor();
        for page in (0..8).chain(512..516) {
            a.store(at + page * PAGE, page).unwrap();
        }
        let snapshot = parent.freeze().unwrap();
        a.store(at, 100u64).unwrap();
        let child = parent.fork().unwrap();
        child.accessor().store(at + PAGE, 101u64).unwrap();
        let grandchild = child.fork().unwrap();
        grandchild
            .accessor()
            .store(at + 513 * PAGE, 102u64)
            .unwrap();
        drop(a);
        let mut left: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(parent),
            Box::new(snapshot),
            Box::new(child),
            Box::new(grandchild.clone()),
        ];
        // The `order`th permutation.
        let mut number = order;
        for choices in (1..=4).rev() {
            drop(left.remove(number % choices));
            number /= choices;
            let mut a = grandchild.accessor();
            assert_eq!(a.load::<u64>(at), Ok(100));
            assert_eq!(a.load::<u64>(at + PAGE), Ok(101));
            assert_eq!(a.load::<u64>(at + 513 * PAGE), Ok(102));
            assert_eq!(a.load::<u64>(at + 7 * PAGE), Ok(7));
            grandchild.validate();
        }
        drop(grandchild);
        assert_nothing_left(&pool);
    }
}

// spec: F6
#[test]
fn views_of_a_snapshot_outlive_every_space() {
    let pool = pool(512);
    let space = space(&pool);
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    let mut a = space.accessor();
    a.fill(at, 7, 2 * PAGE_SIZE).unwrap();
    let snapshot = space.freeze().unwrap();
    let inside = snapshot.view(at + 100, 1000).unwrap();
    let again = snapshot.view(at, PAGE_SIZE).unwrap();
    assert_eq!(
        inside.as_ptr(),
        again[100..].as_ptr(),
        "no copy inside a page"
    );
    let across = snapshot.view(at + (PAGE - 8), 16).unwrap();
    let zeros = snapshot.view(at + 3 * PAGE, 64).unwrap();
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let snapshot = snapshot.clone();
            thread::spawn(move || {
                let mut a = snapshot.accessor();
                for _ in 0..200 {
                    assert_eq!(a.load::<u64>(at + 8), Ok(u64::from_ne_bytes([7; 8])));
                }
            })
        })
        .collect();
    for value in 0..200u64 {
        a.store(at + 8, value).unwrap();
        a.store(at + 3 * PAGE, value).unwrap();
    }
    for reader in readers {
        reader.join().unwrap();
    }
    // The space is the last to have the page's leaf, which has write validity from before the snapshot.
    drop(snapshot);
    a.fill(at, 9, 4 * PAGE_SIZE).unwrap();
    for view in [&inside[..], &again, &across] {
        assert!(view.iter().all(|byte| *byte == 7));
    }
    assert!(zeros.iter().all(|byte| *byte == 0));
    drop((a, space));
    assert!(inside.iter().all(|byte| *byte == 7));
    drop((inside, again, across, zeros));
    assert_nothing_left(&pool);
}

#[test]
fn a_view_of_what_is_not_mapped_is_the_fault_of_a_load() {
    let pool = pool(64);
    let space = space(&pool);
    let at = space.map(Map::anonymous(PAGE)).unwrap();
    let snapshot = space.freeze().unwrap();
    let fault = snapshot.view(at + (PAGE - 4), 8).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, at + PAGE)
    );
}

// spec: F7
#[test]
fn restoring_again_and_again_copies_back_and_takes_no_fault() {
    let pool = pool(8 * 1024);
    let space = space(&pool);
    let at = space.map(Map::anonymous(16 * LEAF)).unwrap();
    let mut a = space.accessor();
    for leaf in 0..16 {
        for page in 0..4 {
            a.store(at + leaf * LEAF + page * PAGE, leaf * 100 + page)
                .unwrap();
        }
    }
    let snapshot = space.freeze().unwrap();
    let run = |a: &mut Accessor, value: u64| {
        for leaf in 0..16 {
            a.store(at + leaf * LEAF + PAGE, value).unwrap();
            a.store(at + leaf * LEAF + 9 * PAGE, value).unwrap(); // new
        }
    };
    let check = |a: &mut Accessor| {
        for leaf in 0..16 {
            for page in 0..12 {
                let expected = if page < 4 { leaf * 100 + page } else { 0 };
                assert_eq!(a.load::<u64>(at + leaf * LEAF + page * PAGE), Ok(expected));
            }
        }
    };
    run(&mut a, 1);
    space.restore(&snapshot).unwrap();
    assert_eq!(pool.counters.totals().restore_drop, 1);
    check(&mut a);
    run(&mut a, 2);
    space.restore(&snapshot).unwrap();
    assert_eq!(pool.counters.totals().restore_in_place, 1);
    assert_eq!(pool.counters.totals().restore_pages, 32);
    check(&mut a);
    for value in 3..5 {
        run(&mut a, value);
        space.restore(&snapshot).unwrap();
        check(&mut a);
    }
    let faults = pool.counters.totals().pgfault;
    for value in 5..10 {
        run(&mut a, value);
        space.restore(&snapshot).unwrap();
        check(&mut a);
    }
    assert_eq!(
        pool.counters.totals().pgfault,
        faults,
        "a store after a restore in place faulted"
    );
    assert_eq!(pool.counters.totals().restore_in_place, 8);
    // Pages that are no longer stored to are given back in time, and one that is stays.
    for value in 0..64 {
        a.store(at + PAGE, value).unwrap();
        space.restore(&snapshot).unwrap();
    }
    assert!(space.changed_since(&snapshot).unwrap().len() <= 1);
    check(&mut a);
    space.validate();
    snapshot.validate();
    drop((a, space, snapshot));
    assert_nothing_left(&pool);
}

// spec: F7
#[test]
fn a_structural_change_makes_the_next_restore_drop() {
    let pool = pool(2 * 1024);
    let space = space(&pool);
    let at = space.map(Map::anonymous(2 * LEAF)).unwrap();
    let mut a = space.accessor();
    a.store(at, 1u64).unwrap();
    a.store(at + LEAF, 2u64).unwrap();
    let snapshot = space.freeze().unwrap();
    space.restore(&snapshot).unwrap();
    let changes: [&dyn Fn(&Space); 4] = [
        &|space| space.unmap(at, PAGE).unwrap(),
        &|space| space.protect(at + LEAF, PAGE, Protection::READ).unwrap(),
        &|space| assert!(space.map(Map::anonymous(PAGE)).is_ok()),
        &|space| drop(space.fork().unwrap()),
    ];
    for (number, change) in changes.iter().enumerate() {
        a.store(at, 10u64).unwrap();
        change(&space);
        let dropped = pool.counters.totals().restore_drop;
        space.restore(&snapshot).unwrap();
        assert_eq!(
            pool.counters.totals().restore_drop,
            dropped + 1,
            "change {number}"
        );
        assert_eq!(a.load::<u64>(at), Ok(1));
        a.store(at + LEAF, 3u64).unwrap();
        assert_eq!(space.stats().mappings.len(), 1);
    }
}

// spec: F11
#[test]
fn a_writer_in_one_branch_waits_for_no_reader_in_another() {
    let pool = pool(2 * 1024);
    let parent = space(&pool);
    let at = parent.map(Map::anonymous(LEAF)).unwrap();
    let mut a = parent.accessor();
    for page in 0..512 {
        a.store(at + page * PAGE, page).unwrap();
    }
    let snapshot = parent.freeze().unwrap();
    let child = snapshot.fork().unwrap();
    let mut reader = snapshot.accessor();
    reader.session(|reader| {
        assert_eq!(reader.load::<u64>(at), Ok(0));
        // This session stays open, with no safepoint, until the writers are done. Writing waits for it nowhere.
        let writer = thread::spawn(move || {
            let mut b = child.accessor();
            for page in 0..512 {
                a.store(at + page * PAGE, 1000u64).unwrap();
                b.store(at + page * PAGE, 2000u64).unwrap();
            }
            (a, b, child)
        });
        let (mut a, mut b, _child) = writer.join().unwrap();
        assert_eq!(a.load::<u64>(at + 5 * PAGE), Ok(1000));
        assert_eq!(b.load::<u64>(at + 5 * PAGE), Ok(2000));
        assert_eq!(reader.load::<u64>(at + 5 * PAGE), Ok(5));
    });
}

// spec: F3
#[test]
fn forks_and_restores_race_with_faults_and_writes() {
    let pool = pool(4 * 1024);
    let space = space(&pool);
    let at = space.map(Map::anonymous(4 * LEAF)).unwrap();
    let pages: Vec<u64> = (0..16).map(|i| (i % 4) * LEAF + (i / 4) * PAGE).collect();
    let mut a = space.accessor();
    for page in &pages {
        a.store(at + *page, 1u64).unwrap();
    }
    let snapshot = space.freeze().unwrap();
    let workers: Vec<_> = (0..2)
        .map(|worker| {
            let (space, pages) = (space.clone(), pages.clone());
            thread::spawn(move || {
                let mut a = space.accessor();
                for round in 0..400u64 {
                    let page = pages[(round as usize * 7 + worker) % pages.len()];
                    // Two words of one page, stored in order: a copy that tears a page apart in time shows them out of order.
                    a.store(at + page, round + 2).unwrap();
                    let value = a.load::<u64>(at + page).unwrap();
                    assert!((1..=401).contains(&value), "{value}");
                }
            })
        })
        .collect();
    for round in 0..60 {
        match round % 3 {
            0 => space.restore(&snapshot).unwrap(),
            1 => {
                let child = space.fork().unwrap();
                let mut b = child.accessor();
                let before: Vec<u64> = pages.iter().map(|p| b.load(at + *p).unwrap()).collect();
                thread::yield_now();
                let after: Vec<u64> = pages.iter().map(|p| b.load(at + *p).unwrap()).collect();
                assert_eq!(before, after, "a fork changed by itself");
                b.store(at, u64::MAX).unwrap();
            }
            _ => {
                let mut b = snapshot.accessor();
                for page in &pages {
                    assert_eq!(b.load::<u64>(at + *page), Ok(1));
                }
            }
        }
    }
    for worker in workers {
        worker.join().unwrap();
    }
    space.restore(&snapshot).unwrap();
    for page in &pages {
        assert_eq!(a.load::<u64>(at + *page), Ok(1));
    }
    space.validate();
    snapshot.validate();
    drop((a, space, snapshot));
    assert_nothing_left(&pool);
}

#[derive(Clone, Debug)]
enum Op {
    Store(usize, u64),
    Unmap(usize),
    Map(usize),
    Protect(usize, bool),
    Freeze,
    Fork,
    Restore(usize),
    Diff(usize),
    Forget(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0..PLACES, 1..9u64).prop_map(|(page, value)| Op::Store(page, value)),
        1 => (0..PLACES).prop_map(Op::Unmap),
        2 => (0..PLACES).prop_map(Op::Map),
        1 => (0..PLACES, any::<bool>()).prop_map(|(page, write)| Op::Protect(page, write)),
        2 => Just(Op::Freeze),
        1 => Just(Op::Fork),
        6 => (0..4usize).prop_map(Op::Restore),
        2 => (0..4usize).prop_map(Op::Diff),
        1 => (0..4usize).prop_map(Op::Forget),
    ]
}

const PLACES: usize = 12;

fn place(page: usize) -> VirtAddr {
    let page = page as u64;
    VirtAddr(0x4000_0000 + (page % 3) * LEAF + (page / 3) * PAGE)
}

/// A page of the model: what is there, and whether it may be stored to.
type Model = Vec<Option<(u64, bool)>>;

fn compare(space: &mut Accessor, model: &Model) {
    for (page, expected) in model.iter().enumerate() {
        match (space.load::<u64>(place(page)), expected) {
            (Ok(value), Some((expected, _))) => assert_eq!(value, *expected, "page {page}"),
            (Err(fault), None) => assert_eq!(fault.kind(), FaultKind::NotMapped),
            (got, expected) => panic!("page {page}: {got:?}, {expected:?}"),
        }
    }
}

fn assert_named(named: &[std::ops::Range<VirtAddr>], a: &Model, b: &Model) {
    for page in 0..PLACES {
        let [a, b] = [a, b].map(|model| model[page].map(|(value, _)| value));
        let at = place(page);
        if a != b {
            assert!(
                named.iter().any(|range| range.contains(&at)),
                "page {page} is not named"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    // spec: F7, F8, F12
    #[test]
    fn random_changes_and_restores_agree_with_plain_copies(ops in prop::collection::vec(op(), 1..120)) {
        let pool = pool(4 * 1024);
        let space = space(&pool);
        let mut a = space.accessor();
        let mut now: Model = vec![None; PLACES];
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        let mut forks: Vec<(Space, Model)> = Vec::new();
        for op in ops {
            match op {
                Op::Store(page, value) => {
                    let stored = a.store(place(page), value);
                    match &mut now[page] {
                        Some((old, true)) => {
                            stored.unwrap();
                            *old = value;
                        }
                        Some((_, false)) => prop_assert_eq!(stored.unwrap_err().kind(), FaultKind::Forbidden),
                        None => prop_assert_eq!(stored.unwrap_err().kind(), FaultKind::NotMapped),
                    }
                }
                Op::Unmap(page) => {
                    space.unmap(place(page), PAGE).unwrap();
                    now[page] = None;
                }
                Op::Map(page) => {
                    space.map(Map::anonymous(PAGE).replacing(place(page))).unwrap();
                    now[page] = Some((0, true));
                }
                Op::Protect(page, write) => {
                    let protection = if write { Protection::READ_WRITE } else { Protection::READ };
                    let protected = space.protect(place(page), PAGE, protection);
                    prop_assert_eq!(protected.is_ok(), now[page].is_some());
                    if let Some((_, may)) = &mut now[page] {
                        *may = write;
                    }
                }
                Op::Freeze if snapshots.len() < 4 => {
                    snapshots.push((space.freeze().unwrap(), now.clone()));
                }
                Op::Fork if forks.len() < 4 => {
                    let child = match snapshots.first() {
                        Some((snapshot, model)) => (snapshot.fork().unwrap(), model.clone()),
                        None => (space.fork().unwrap(), now.clone()),
                    };
                    forks.push(child);
                }
                Op::Restore(number) => if let Some((snapshot, model)) = snapshots.get(number) {
                    space.restore(snapshot).unwrap();
                    now.clone_from(model);
                },
                Op::Diff(number) => if let Some((snapshot, model)) = snapshots.get(number) {
                    assert_named(&space.changed_since(snapshot).unwrap(), &now, model);
                    for (other, other_model) in &snapshots {
                        assert_named(&snapshot.diff(other).unwrap(), model, other_model);
                    }
                    prop_assert!(snapshot.diff(snapshot).unwrap().is_empty());
                },
                Op::Forget(number) if number < snapshots.len() => {
                    snapshots.remove(number);
                }
                Op::Freeze | Op::Fork | Op::Forget(_) => {}
            }
            compare(&mut a, &now);
        }
        for (snapshot, model) in &snapshots {
            compare(&mut snapshot.accessor(), model);
            snapshot.validate();
        }
        for (fork, model) in &forks {
            compare(&mut fork.accessor(), model);
            fork.validate();
        }
        space.validate();
        drop((a, space, snapshots, forks));
        assert_nothing_left(&pool);
    }
}

fn saved(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot.save(&mut bytes).unwrap();
    bytes
}

/// A snapshot with two mappings, pages in runs and alone, one that may not be read, and one of zeros.
fn to_save(pool: &Arc<Pool>) -> (Snapshot, VirtAddr) {
    let space = space(pool);
    let at = space.map(Map::anonymous(2 * LEAF)).unwrap();
    let read_only = at + 4 * LEAF;
    space.map(Map::anonymous(4 * PAGE).at(read_only)).unwrap();
    let mut a = space.accessor();
    for page in (0..100).chain([511, 512, 700]) {
        a.fill(at + page * PAGE, (page as u8).wrapping_add(1), PAGE_SIZE)
            .unwrap();
    }
    a.store(at + 200 * PAGE, 0u64).unwrap();
    a.store(read_only + 8, 5u64).unwrap();
    space
        .protect(read_only, 4 * PAGE, Protection::READ)
        .unwrap();
    space
        .protect(at + 50 * PAGE, PAGE, Protection::NONE)
        .unwrap();
    (space.freeze().unwrap(), at)
}

// spec: F9
#[test]
fn a_loaded_snapshot_has_the_same_mappings_and_bytes() {
    let (one, other) = (pool(1024), pool(1024));
    let (snapshot, at) = to_save(&one);
    let bytes = saved(&snapshot);
    let loaded = Snapshot::load(&space(&other), &mut &bytes[..], |_| None).unwrap();
    let shape = |snapshot: &Snapshot| {
        let mappings = snapshot.stats().mappings.into_iter();
        let shape: Vec<_> = mappings.map(|m| (m.start, m.end, m.protection)).collect();
        shape
    };
    assert_eq!(shape(&loaded), shape(&snapshot));
    assert_eq!(saved(&loaded), bytes, "saved again, it is the same file");
    let fork = loaded.fork().unwrap();
    let mut a = fork.accessor();
    assert_eq!(a.load::<u8>(at + 700 * PAGE + 4095), Ok(189));
    assert_eq!(a.load::<u64>(at + 200 * PAGE), Ok(0));
    assert_eq!(a.load::<u64>(at + 4 * LEAF + 8), Ok(5));
    assert_eq!(
        a.store(at + 4 * LEAF, 1u8).unwrap_err().kind(),
        FaultKind::Forbidden
    );
    assert_eq!(
        a.load::<u8>(at + 50 * PAGE).unwrap_err().kind(),
        FaultKind::Forbidden
    );
    a.store(at, 9u64).unwrap();
    fork.restore(&loaded).unwrap();
    assert_eq!(a.load::<u8>(at), Ok(1));
    fork.validate();
    loaded.validate();
}

// spec: F9
#[test]
fn a_damaged_short_or_newer_file_is_an_error_and_leaves_nothing() {
    let (one, other) = (pool(1024), pool(1024));
    let bytes = saved(&to_save(&one).0);
    let load = |bytes: &[u8]| Snapshot::load(&space(&other), &mut &bytes[..], |_| None);
    let step = bytes.len() / 300;
    for place in (0..64).chain((64..bytes.len()).step_by(step)) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x10;
        let error = load(&damaged).map(drop).unwrap_err();
        let expected = matches!(
            error,
            SnapshotFileError::Damaged { .. } | SnapshotFileError::NotASnapshot
        );
        assert!(expected, "byte {place}: {error}");
        assert!(load(&bytes[..place]).is_err(), "cut at {place}");
    }
    let mut newer = bytes.clone();
    newer[8] = 2;
    let check = crc32fast::hash(&newer[..12]);
    newer[12..16].copy_from_slice(&check.to_le_bytes());
    assert_eq!(
        load(&newer).map(drop).unwrap_err().to_string(),
        "a snapshot of version 2; the newest this library reads is 1"
    );
    assert_eq!(
        load(b"hello").map(drop).unwrap_err().to_string(),
        "not a snapshot"
    );
    assert_eq!(
        load(&bytes[..bytes.len() - 1])
            .map(drop)
            .unwrap_err()
            .to_string(),
        format!(
            "a damaged snapshot: the end is missing at byte {}",
            crate::Grouped(bytes.len() as u64 - 16)
        )
    );
    assert_nothing_left(&other);
}

/// A space with so many resident pages, in as many leaves as they need.
fn resident(pool: &Arc<Pool>, pages: u64) -> (Space, VirtAddr, Accessor) {
    let space = space(pool);
    let at = VirtAddr(1 << 40);
    space.map(Map::anonymous(pages * PAGE).at(at)).unwrap();
    let mut a = space.accessor();
    for page in 0..pages {
        a.store(at + page * PAGE, page).unwrap();
    }
    (space, at, a)
}

/// Hold words that `work` changes.
fn touched(work: impl FnOnce()) -> u64 {
    let before = crate::frame::touched::so_far();
    work();
    crate::frame::touched::so_far() - before
}

// spec: F1
#[test]
fn a_fork_touches_as_little_with_many_pages_as_with_few() {
    let costs = [100, 20_000].map(|pages| {
        let pool = pool(pages as u32 + 2_000);
        let (space, ..) = resident(&pool, pages);
        let mut child = None;
        let before = in_use(&pool);
        let hold_words = touched(|| child = Some(space.fork().unwrap()));
        (hold_words, in_use(&pool) - before)
    });
    assert_eq!(costs[0], costs[1], "hold words changed, frames taken");
    assert!(costs[0].0 <= 4 && costs[0].1 == 1, "{costs:?}");
}

// spec: F5
#[test]
fn un_sharing_a_leaf_touches_no_metadata_of_what_it_maps() {
    let costs = [1, 512].map(|pages| {
        let pool = pool(4_096);
        let (space, at, mut a) = resident(&pool, pages);
        let child = space.fork().unwrap();
        // The upper nodes first, by a store to another leaf.
        space.map(Map::anonymous(PAGE).at(at + 4 * LEAF)).unwrap();
        let child2 = space.fork().unwrap();
        a.store(at + 4 * LEAF, 1u64).unwrap();
        let cost = touched(|| a.store(at, 1u64).unwrap());
        drop((child, child2));
        cost
    });
    assert_eq!(costs[0], costs[1], "a leaf of one page, and of 512");
    assert!(costs[0] <= 10, "{costs:?}");
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
        child.accessor().store(at, generation).unwrap();
        let nodes = Nodes { pool: &pool };
        let depth = child.0.inside(|tables| {
            let leaf = nodes.find(tables.root, at.0).unwrap().frame;
            nodes.borrowing_depth(leaf)
        });
        assert!(
            depth <= 9,
            "generation {generation} borrows through {depth} leaves"
        );
        all.push(std::mem::replace(&mut space, child));
    }
    for (generation, space) in all.iter().enumerate().skip(1) {
        let mut a = space.accessor();
        assert_eq!(a.load::<u64>(at), Ok(generation as u64 - 1));
        assert_eq!(a.load::<u64>(at + 31 * PAGE), Ok(31));
    }
}

/// A register that counts up by what is stored to it.
#[derive(Default)]
struct Register {
    value: crate::sync::Mutex<u64>,
    reentered: crate::sync::Mutex<Option<Space>>,
}

impl crate::Device for Arc<Register> {
    fn load(&self, _offset: u64, bytes: &mut [u8]) -> Result<(), crate::DeviceError> {
        let value = self.value.lock().to_ne_bytes();
        bytes.copy_from_slice(&value[..bytes.len()]);
        Ok(())
    }

    fn store(&self, _offset: u64, bytes: &[u8]) -> Result<(), crate::DeviceError> {
        *self.value.lock() += u64::from(bytes[0]);
        Ok(())
    }

    fn snapshot(&self) -> Vec<u8> {
        if let Some(space) = &*self.reentered.lock() {
            assert!(space.fork().is_err(), "a hook may not use its space");
        }
        self.value.lock().to_ne_bytes().to_vec()
    }

    fn restore(&self, state: &[u8]) {
        *self.value.lock() = u64::from_ne_bytes(state.try_into().unwrap());
    }
}

// spec: F13
#[test]
fn devices_go_back_with_the_memory() {
    let pool = pool(512);
    let space = space(&pool);
    let register = Arc::new(Register::default());
    let at = space.map(Map::anonymous(PAGE)).unwrap();
    let device = space.map(Map::device(register.clone(), PAGE)).unwrap();
    let mut a = space.accessor();
    a.store(device, 5u8).unwrap();
    a.store(at, 5u8).unwrap();
    *register.reentered.lock() = Some(space.clone());
    let snapshot = space.freeze().unwrap();
    *register.reentered.lock() = None;
    for turn in 0..6u8 {
        a.store(device, 7u8).unwrap();
        a.store(at, turn).unwrap();
        assert_eq!(a.load::<u64>(device), Ok(12));
        space.restore(&snapshot).unwrap();
        assert_eq!(a.load::<u64>(device), Ok(5));
        assert_eq!(a.load::<u8>(at), Ok(5));
    }
    let fault = snapshot.accessor().load::<u64>(device).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Frozen);
    let refused = snapshot.save(&mut Vec::new()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("a snapshot with a device at {device} cannot be saved; unmap it first")
    );
    // What was put in its place since makes way for it again.
    space.unmap(device, PAGE).unwrap();
    *register.value.lock() = 99;
    space.restore(&snapshot).unwrap();
    assert_eq!(a.load::<u64>(device), Ok(5));
}
