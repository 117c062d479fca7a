//! Many threads with little memory, and the background step.

use super::mock::*;
use crate::frame::FlagSet;
use crate::group::GroupId;
use crate::reclaim::*;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, thread};
use crate::units::PageCount;

/// A random generator for each thread: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn threads_under_pressure_stay_under_every_limit_and_lose_nothing() {
    let pool = pool_of(256, 8);
    let groups = [0, 1].map(|number| {
        let name = format!("tenant-{number}");
        pool.groups
            .create(GroupId::ROOT, &name, Some(PageCount(150)))
            .unwrap()
    });
    let files: Vec<Arc<MockFile>> = (0..4)
        .map(|number| MockFile::new(&pool, groups[number % 2], (number / 2 * 2) as u8))
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (pool, stop) = (pool.clone(), stop.clone());
        thread::spawn(move || {
            let mut samples = 0u64;
            while !stop.load(Ordering::Relaxed) || samples == 0 {
                assert!(pool.groups.usage(GroupId::ROOT).0 <= 248);
                groups
                    .iter()
                    .for_each(|group| assert!(pool.groups.usage(*group).0 <= 150));
                pool.background_step();
                samples += 1;
                thread::yield_now();
            }
        })
    };
    let workers: Vec<_> = (0..4u64)
        .map(|number| {
            let files = files.clone();
            thread::spawn(move || {
                let mut random = Random(number + 1);
                for round in 0..4000 {
                    let file = &files[random.below(4) as usize];
                    let index = random.below(200);
                    match random.below(20) {
                        0 => file.truncate(index),
                        1..4 => drop(file.bring(index, FlagSet::DIRTY, AllocMode::Wait).unwrap()),
                        4..8 => file.touch_mapped(index).unwrap(),
                        _ => file.read(index).unwrap(),
                    }
                    if round % 64 == 0 {
                        file.pool.flush_retired_if_due();
                    }
                }
            })
        })
        .collect();
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    stop.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
    pool.lru.drain_batches(&pool.frames);
    pool.validate();
    assert!(pool.totals().pgsteal > 0, "there was pressure");
    assert_eq!(pool.totals().limit_error, 0);
    files.iter().for_each(|file| file.truncate_all());
    assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(0));
    assert_eq!(pool.frames.free_frames(), 256);
    assert_eq!(pool.totals().dirty, 0);
    assert_eq!(pool.totals().pgalloc, pool.totals().pgfree);
    pool.validate();
}

// spec: M8
#[test]
fn lowering_a_limit_under_constant_charging_ends() {
    let pool = pool_of(512, 0);
    let group = pool
        .groups
        .create(GroupId::ROOT, "g", Some(PageCount(400)))
        .unwrap();
    let file = MockFile::new(&pool, group, 0);
    (0..400).for_each(|index| file.read(index).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let charged = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..2u64)
        .map(|number| {
            let (file, stop, charged) = (file.clone(), stop.clone(), charged.clone());
            thread::spawn(move || {
                let mut random = Random(number + 7);
                while !stop.load(Ordering::Relaxed) {
                    // Refusals are correct while the limit is below the usage.
                    let _ = file.read(random.below(2000));
                    charged.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    while charged.load(Ordering::Relaxed) < 100 {
        thread::yield_now();
    }
    for max in [200, 50, 16] {
        pool.groups.set_max(group, Some(PageCount(max))).unwrap();
        assert!(pool.groups.usage(group).0 <= max);
    }
    stop.store(true, Ordering::Relaxed);
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    pool.validate();
}

#[test]
fn a_request_waits_for_memory_that_another_thread_is_about_to_free() {
    let pool = pool_of(100, 0);
    let group = pool
        .groups
        .create(GroupId::ROOT, "g", Some(PageCount(10)))
        .unwrap();
    let held: Vec<_> = (0..10)
        .map(|_| pool.alloc(group, 0, AllocMode::Wait).unwrap())
        .collect();
    // To the other thread, this one is about to free something.
    let working = pool.progress.begin();
    let reclaims = pool.totals().direct_reclaim;
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            pool.alloc(group, 0, AllocMode::Wait)
                .map(|frame| frame.id())
        });
        while pool.totals().direct_reclaim == reclaims {
            thread::yield_now();
        }
        drop(held);
        drop(working);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(pool.groups.usage(group), PageCount(0));
}

#[test]
fn the_background_keeps_pages_free_and_stops_there() {
    let pool = pool_of(640, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    (0..640).for_each(|index| file.read(index).unwrap());
    assert_eq!(pool.free_pages(), PageCount(0));
    pool.tick();
    // The low mark is 10, the high mark 20.
    assert!(
        (20..40).contains(&pool.free_pages().0),
        "{:?}",
        pool.free_pages()
    );
    let steals = pool.totals().pgsteal;
    pool.tick();
    assert_eq!(
        pool.totals().pgsteal,
        steals,
        "between the marks nothing is evicted"
    );
    assert_eq!(pool.background_step(), Step::Idle);
    // Free pages that fall to between the marks do not start an eviction.
    (1000..1008).for_each(|index| file.read(index).unwrap());
    pool.tick();
    assert_eq!(pool.totals().pgsteal, steals);
    pool.validate();
}

#[test]
fn a_root_without_a_limit_has_that_of_its_memory() {
    for max in [None, Some(PageCount(1_000_000))] {
        let pool = pool_of(640, 0);
        pool.groups
            .set_max(GroupId::ROOT, Some(PageCount(320)))
            .unwrap();
        pool.groups.set_max(GroupId::ROOT, max).unwrap();
        assert_eq!(pool.groups.max(GroupId::ROOT), Some(PageCount(640)));
        let file = MockFile::new(&pool, GroupId::ROOT, 0);
        (0..600).for_each(|index| file.read(index).unwrap());
        assert!(!pool.background.is_kicked(), "40 pages are free");
        (600..640).for_each(|index| file.read(index).unwrap());
        assert!(pool.background.is_kicked(), "the last pages were used");
        while pool.background_step() == Step::More {}
        assert!(pool.free_pages().0 >= 20, "{:?}", pool.free_pages());
        pool.validate();
    }
}

#[test]
fn a_background_that_finds_nothing_rests_until_the_next_tick() {
    let pool = pool_of(64, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    for index in 0..64 {
        let id = file.bring(index, FlagSet::EMPTY, AllocMode::Wait).unwrap();
        assert!(pool.frames.meta(id).hold.try_view());
    }
    pool.tick();
    let scans = pool.totals().pgscan;
    assert!(scans > 0);
    assert_eq!(pool.background_step(), Step::Idle);
    assert_eq!(pool.totals().pgscan, scans);
    pool.tick();
    assert!(pool.totals().pgscan > scans);
}

#[test]
fn dirty_pages_are_written_when_old_or_when_there_are_too_many() {
    let pool = pool_of(400, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let written = || file.written.load(Ordering::Relaxed);
    for index in 0..10 {
        file.bring(index, FlagSet::DIRTY, AllocMode::Wait).unwrap();
    }
    (0..29).for_each(|_| pool.tick());
    assert_eq!(written(), 0);
    pool.tick();
    assert_eq!(written(), 10, "old enough");
    for index in 10..110 {
        file.bring(index, FlagSet::DIRTY, AllocMode::Wait).unwrap();
    }
    pool.background_step();
    assert_eq!(written(), 110, "over a fifth of the memory is dirty");
    assert_eq!(pool.totals().dirty, 0);
    assert_eq!(file.resident(0..110), 110, "written, not evicted");
    pool.validate();
}

#[test]
fn the_service_thread_is_woken_when_memory_runs_low() {
    let pool = pool_of(128, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    thread::scope(|scope| {
        let service = scope.spawn(|| {
            while pool.totals().pgsteal == 0 {
                // The timeout is an hour, so only a wake-up ends the sleep.
                pool.background
                    .wait_for_work(std::time::Duration::from_secs(3600));
                while pool.background_step() == Step::More {}
            }
        });
        (0..128).for_each(|index| file.read(index).unwrap());
        service.join().unwrap();
    });
    assert!(pool.totals().pgsteal > 0);
    pool.validate();
}
