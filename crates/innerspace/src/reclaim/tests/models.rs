//! Whole operations of the pool under random schedules.

use super::mock::*;
use crate::frame::FlagSet;
use crate::group::GroupId;
use crate::reclaim::lists::{Evictable, ListKind};
use crate::reclaim::*;
use crate::sync::{Arc, thread};
use crate::units::PageCount;

const SCHEDULES: usize = 2_000;

/// Runs `threads` together on a file of a small pool, then checks that the counters add up and that
/// every frame comes back.
fn check(frames: u32, threads: fn() -> Vec<fn(&MockFile)>) {
    shuttle::check_random(
        move || {
            let pool = pool_of(frames, 0);
            let group = pool
                .groups
                .create(GroupId::ROOT, "g", Some(PageCount(10)))
                .unwrap();
            let file = MockFile::new(&pool, group, 0);
            (0..4).for_each(|index| file.read(index).unwrap());
            pool.lru.drain_batches(&pool.frames);
            let running: Vec<_> = threads()
                .into_iter()
                .map(|run| {
                    let file = file.clone();
                    thread::spawn(move || run(&file))
                })
                .collect();
            running
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            pool.validate();
            file.truncate_all();
            pool.validate();
            assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(0));
            assert_eq!(pool.frames.free_frames(), frames);
        },
        SCHEDULES,
    );
}

#[test]
fn isolation_beside_truncation_reuse_and_marks() {
    check(16, || {
        vec![
            |file| {
                let pool: &Arc<Pool> = &file.pool;
                let mut taken = Vec::new();
                let group = file.group;
                pool.lru
                    .isolate(&pool.frames, group, ListKind::Inactive, 3, &mut taken);
                pool.lru.put_back(&pool.frames, &taken, Evictable::Yes);
                taken.clear();
                pool.lru
                    .isolate(&pool.frames, group, ListKind::Inactive, 2, &mut taken);
                pool.lru.put_back(&pool.frames, &taken, Evictable::No);
            },
            |file| {
                file.truncate(0);
                file.read(7).unwrap();
                file.truncate(1);
                file.pool.lru.drain_batches(&file.pool.frames);
            },
            |file| (0..4).for_each(|index| file.read(index).unwrap()),
        ]
    });
}

#[test]
fn reclaim_beside_reclaim_and_use() {
    check(16, || {
        let reclaim: fn(&MockFile) = |file| {
            file.pool
                .shrink(file.group, PageCount(3), Io::Of(GroupId::ROOT));
        };
        vec![reclaim, reclaim, |file| {
            file.bring(9, FlagSet::DIRTY, AllocMode::Wait).unwrap();
            file.touch_mapped(2).unwrap();
            file.truncate(9);
        }]
    });
}

#[test]
fn requests_at_the_limit_beside_each_other() {
    check(16, || {
        let reader: fn(&MockFile) = |file| {
            // Ten pages are allowed, and eleven different ones are read.
            (10..16).for_each(|index| file.read(index).unwrap());
        };
        vec![reader, |file| {
            (20..25).for_each(|index| file.read(index).unwrap())
        }]
    });
}

#[test]
fn retired_frames_are_freed_once_whoever_flushes() {
    check(16, || {
        let flush: fn(&MockFile) = |file| {
            file.pool.retire(Retired::Call(Box::new(|pool| {
                pool.lru.drain_batches(&pool.frames);
            })));
            file.pool.flush_retired();
        };
        vec![flush, flush]
    });
}
