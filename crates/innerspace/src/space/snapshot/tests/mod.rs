//! Tests of snapshots. Files and groups are tested through the facade (`tests/snapshots`).

mod cost;
mod files;
mod holding;
mod in_place;
mod model;
mod pins;

use super::frozen::Snapshot;
use crate::reclaim::{Pool, PoolOptions};
use crate::space::Protection;
use crate::space::access::accessor::Accessor;
use crate::space::core::error::SpaceError;
use crate::space::core::fault::FaultKind;
use crate::space::core::space::Space;
use crate::sync::{Arc, thread};
use crate::{Map, PAGE_SIZE, PageCount, VirtAddr};

const PAGE: u64 = PAGE_SIZE as u64;
const LEAF: u64 = 512 * PAGE;

fn pool(frames: u32) -> Arc<Pool> {
    Pool::new(&PoolOptions::new(frames)).unwrap()
}

fn space(pool: &Arc<Pool>) -> Space {
    Space::new(
        &crate::cache::Cache::new(pool),
        &pool.root_group(),
        crate::space::AddressWidth::Bits48,
    )
    .unwrap()
}

fn assert_nothing_left(pool: &Arc<Pool>) {
    while pool.flush_retired() > 0 {}
    assert_eq!(pool.groups.usage(crate::group::GroupId::ROOT), PageCount(0));
    pool.validate();
}

/// Returns the number of frames in use, after pending grace periods.
fn in_use(pool: &Arc<Pool>) -> u64 {
    while pool.flush_retired() > 0 {}
    u64::from(pool.frames.total() - pool.frames.free_frames())
}

#[test]
fn a_snapshot_keeps_what_its_space_changes() {
    let pool = pool(512);
    let space = space(&pool);
    let at = space.map(Map::anonymous(8 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    let snapshot = space.freeze().unwrap();
    a.store(at, 2u64).unwrap();
    a.store(at + PAGE, 3u64).unwrap();
    space.unmap(at + 2 * PAGE, PAGE).unwrap();
    let mut frozen = snapshot.accessor().unwrap();
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
    let mut a = space.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    let snapshot = space.freeze().unwrap();
    // The snapshot is the last to have the pages: its leaf is exclusive now, with write validity
    // from before.
    drop((a, space));
    let mut frozen = snapshot.accessor().unwrap();
    assert_eq!(frozen.load::<u64>(at), Ok(1));
    for offset in [0, PAGE, 3 * PAGE + 5] {
        let fault = frozen.store(at + offset, 9u64).unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Frozen);
    }
    let fault = frozen
        .fetch_add(at, 1u64, std::sync::atomic::Ordering::SeqCst)
        .unwrap_err();
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
    a.accessor().unwrap().store(at, 5u64).unwrap();
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
        "diff: the snapshot belongs to another memory"
    );
    assert_eq!(a.accessor().unwrap().load::<u64>(at), Ok(5));
    // A space that was forked from a snapshot, however, can be restored to it.
    let born = of_a.fork().unwrap();
    born.accessor().unwrap().store(at, 6u64).unwrap();
    born.restore(&of_a).unwrap();
    assert_eq!(born.accessor().unwrap().load::<u64>(at), Ok(5));
}

// spec: F4
#[test]
fn forks_and_snapshots_dropped_in_any_order_free_each_frame_once() {
    for order in 0..24 {
        let pool = pool(2048);
        let parent = space(&pool);
        let at = parent.map(Map::anonymous(2 * LEAF)).unwrap();
        let mut a = parent.accessor().unwrap();
        for page in (0..8).chain(512..516) {
            a.store(at + page * PAGE, page).unwrap();
        }
        let snapshot = parent.freeze().unwrap();
        a.store(at, 100u64).unwrap();
        let child = parent.fork().unwrap();
        child.accessor().unwrap().store(at + PAGE, 101u64).unwrap();
        let grandchild = child.fork().unwrap();
        grandchild
            .accessor()
            .unwrap()
            .store(at + 513 * PAGE, 102u64)
            .unwrap();
        drop(a);
        let mut left: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(parent),
            Box::new(snapshot),
            Box::new(child),
            Box::new(grandchild.clone()),
        ];
        // Drops the spaces and snapshots in the permutation number `order`.
        let mut number = order;
        for choices in (1..=4).rev() {
            drop(left.remove(number % choices));
            number /= choices;
            let mut a = grandchild.accessor().unwrap();
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
    let mut a = space.accessor().unwrap();
    a.fill(at, 7, 2 * PAGE_SIZE).unwrap();
    let snapshot = space.freeze().unwrap();
    let inside = snapshot.view(at + 100, 1000).unwrap();
    let again = snapshot.view(at, PAGE).unwrap();
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
                let mut a = snapshot.accessor().unwrap();
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
    // The space no longer shares these pages, because of its stores since the snapshot; only the
    // views keep them.
    drop(snapshot);
    a.fill(at, 9, 4 * PAGE_SIZE).unwrap();
    for view in [&inside[..], &again, &across] {
        assert!(view.iter().all(|byte| *byte == 7));
    }
    assert!(zeros.iter().all(|byte| *byte == 0));
    drop((a, space));
    assert!(inside.iter().all(|byte| *byte == 7));
    let more = [inside.clone(), across.clone()];
    drop((inside, again, across, zeros));
    let [inside, across] = more;
    for view in [&inside[..], &across] {
        assert!(view.iter().all(|byte| *byte == 7));
    }
    assert!(pool.totals().usage > 0, "the clones keep their pages");
    drop((inside, across));
    assert_nothing_left(&pool);
}

/// Nothing was stored while the snapshot lived, so after the snapshot's end the space alone has the
/// leaf, unchanged.
// spec: F6
#[test]
fn a_view_stays_when_a_store_has_write_validity_from_before_the_snapshot() {
    let pool = pool(64);
    let space = space(&pool);
    let at = space.map(Map::anonymous(PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    let snapshot = space.freeze().unwrap();
    let view = snapshot.view(at, 8).unwrap();
    drop(snapshot);
    a.store(at, 2u64).unwrap();
    assert_eq!(view[..], 1u64.to_ne_bytes());
    assert_eq!(a.load::<u64>(at), Ok(2));
    drop((a, space, view));
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

#[test]
fn a_view_of_what_may_not_be_read_is_the_fault_of_a_load() {
    let pool = pool(64);
    let space = space(&pool);
    let at = space.map(Map::anonymous(2 * PAGE)).unwrap();
    space
        .accessor()
        .unwrap()
        .fill(at, 7, 2 * PAGE_SIZE)
        .unwrap();
    space.protect(at + PAGE, PAGE, Protection::NONE).unwrap();
    let snapshot = space.freeze().unwrap();
    assert_eq!(snapshot.view(at + 8, 8).unwrap()[..], [7; 8]);
    for (from, first) in [(at + PAGE + 8, at + PAGE + 8), (at + (PAGE - 4), at + PAGE)] {
        let fault = snapshot.view(from, 8).unwrap_err();
        assert_eq!(
            (fault.kind(), fault.address()),
            (FaultKind::Forbidden, first)
        );
    }
    drop((snapshot, space));
    assert_nothing_left(&pool);
}

// spec: F7
#[test]
fn restoring_again_and_again_copies_back_and_takes_no_fault() {
    let pool = pool(8 * 1024);
    let space = space(&pool);
    let at = space.map(Map::anonymous(16 * LEAF)).unwrap();
    let mut a = space.accessor().unwrap();
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
            a.store(at + leaf * LEAF + 9 * PAGE, value).unwrap(); // a new page
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
    let given_back = pool.counters.totals().restore_pages == 0;
    assert!(given_back, "pages stored to once are copied back");
    assert_eq!(space.stats().pages.own.0, 0);
    check(&mut a);
    run(&mut a, 3);
    space.restore(&snapshot).unwrap();
    assert_eq!(pool.counters.totals().restore_pages, 32);
    check(&mut a);
    for value in 4..6 {
        run(&mut a, value);
        space.restore(&snapshot).unwrap();
        check(&mut a);
    }
    let faults = pool.counters.totals().pgfault;
    for value in 6..11 {
        run(&mut a, value);
        space.restore(&snapshot).unwrap();
        check(&mut a);
    }
    assert_eq!(
        pool.counters.totals().pgfault,
        faults,
        "a store after a restore in place faulted"
    );
    assert_eq!(pool.counters.totals().restore_in_place, 9);
    // Pages that are no longer stored to are given back in time; the page that is stored to stays.
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
    let mut a = space.accessor().unwrap();
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
    let mut a = parent.accessor().unwrap();
    for page in 0..512 {
        a.store(at + page * PAGE, page).unwrap();
    }
    let snapshot = parent.freeze().unwrap();
    let child = snapshot.fork().unwrap();
    let mut reader = snapshot.accessor().unwrap();
    reader.session(|reader| {
        assert_eq!(reader.load::<u64>(at), Ok(0));
        // This session stays open, with no safepoint, until the writers are done. Writing never
        // waits for the session.
        let writer = thread::spawn(move || {
            let mut b = child.accessor().unwrap();
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
    let mut a = space.accessor().unwrap();
    for page in &pages {
        a.store(at + *page, 1u64).unwrap();
    }
    let snapshot = space.freeze().unwrap();
    let workers: Vec<_> = (0..2)
        .map(|worker| {
            let (space, pages) = (space.clone(), pages.clone());
            thread::spawn(move || {
                let mut a = space.accessor().unwrap();
                for round in 0..400u64 {
                    let page = pages[(round as usize * 7 + worker) % pages.len()];
                    // Two words of one page are stored in order: a copy that took them at different
                    // moments shows them out of order.
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
                let mut b = child.accessor().unwrap();
                let before: Vec<u64> = pages.iter().map(|p| b.load(at + *p).unwrap()).collect();
                thread::yield_now();
                let after: Vec<u64> = pages.iter().map(|p| b.load(at + *p).unwrap()).collect();
                assert_eq!(before, after, "a fork changed by itself");
                b.store(at, u64::MAX).unwrap();
            }
            _ => {
                let mut b = snapshot.accessor().unwrap();
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

/// A device with one register. A store adds to it.
#[derive(Default)]
struct Register {
    value: crate::sync::Mutex<u64>,
    reentered: crate::sync::Mutex<Option<Space>>,
}

impl crate::space::Device for Register {
    fn load(&self, _offset: u64, bytes: &mut [u8]) -> Result<(), crate::space::DeviceError> {
        let value = self.value.lock().to_ne_bytes();
        bytes.copy_from_slice(&value[..bytes.len()]);
        Ok(())
    }

    fn store(&self, _offset: u64, bytes: &[u8]) -> Result<(), crate::space::DeviceError> {
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
    let mut a = space.accessor().unwrap();
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
    let fault = snapshot
        .accessor()
        .unwrap()
        .load::<u64>(device)
        .unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Frozen);
    let refused = snapshot.save(&mut Vec::new()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!("a snapshot with a device at {device} cannot be saved; unmap it first")
    );
    // The restore also brings back the device's mapping, which was removed since.
    space.unmap(device, PAGE).unwrap();
    *register.value.lock() = 99;
    space.restore(&snapshot).unwrap();
    assert_eq!(a.load::<u64>(device), Ok(5));
}
