//! Which pages are evicted first.

use super::mock::*;
use crate::frame::FlagSet;
use crate::group::GroupId;
use crate::reclaim::lists::{SHADOW_BITS, shadow_unpack};
use crate::reclaim::*;
use crate::units::PageCount;

// spec: P14
#[test]
fn a_stream_of_ten_times_the_memory_leaves_a_twice_touched_set() {
    let pool = pool_of(200, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let hot = 0..80;
    for _ in 0..2 {
        hot.clone().for_each(|index| file.read(index).unwrap());
    }
    for index in 1000..3000 {
        file.read(index).unwrap();
    }
    assert_eq!(file.resident(hot), 80);
    assert_eq!(pool.totals().refault, 0);
    pool.validate();
}

#[test]
fn a_mapped_set_in_use_stays_under_a_mapped_stream() {
    let pool = pool_of(200, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let hot = 0..60;
    for index in 1000..3000 {
        // Pages of the hot set are used now and then, each page of the stream once.
        file.touch_mapped(index).unwrap();
        file.touch_mapped(index * 7 % 60).unwrap();
    }
    assert!(
        file.resident(hot.clone()) >= 57,
        "{} of 60 are resident",
        file.resident(hot)
    );
    pool.validate();
}

#[test]
fn what_is_active_goes_last_also_where_all_else_was_used_just_now() {
    let pool = pool_of(200, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    for _ in 0..2 {
        (0..60).for_each(|index| file.read(index).unwrap());
    }
    // These are more pages than the passes that spare used pages examine for one page.
    for _ in 0..2 {
        (1000..1140).for_each(|index| file.touch_mapped(index).unwrap());
    }
    let shrunk = pool.shrink(GroupId::ROOT, PageCount(1), Io::Of(GroupId::ROOT));
    assert!(shrunk.freed.0 >= 1, "{shrunk:?}");
    assert_eq!(file.resident(0..60), 60);
    assert!((0..60).all(|index| file.is(index, FlagSet::ACTIVE)));
    pool.validate();
}

#[test]
fn no_more_of_what_is_active_loses_its_place_than_has_to_go() {
    let pool = pool_of(1000, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    for _ in 0..3 {
        (0..900).for_each(|index| file.read(index).unwrap());
    }
    let active = || {
        let is_resident = |index: &u64| file.peek(*index).is_some();
        let resident = (0..900).filter(is_resident);
        resident
            .filter(|index| file.is(*index, FlagSet::ACTIVE))
            .count()
    };
    assert_eq!(active(), 900);
    let shrunk = pool.shrink(GroupId::ROOT, PageCount(1), Io::Of(GroupId::ROOT));
    assert!(shrunk.freed.0 >= 1, "{shrunk:?}");
    assert!(active() >= 750, "{} are active", active());
    pool.validate();
}

#[test]
fn what_is_active_can_go_behind_a_longer_list_of_what_cannot() {
    let pool = pool_of(1000, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    for _ in 0..2 {
        (0..100).for_each(|index| file.read(index).unwrap());
    }
    (100..900).for_each(|index| file.read(index).unwrap());
    let held: Vec<_> = (100..900).map(|index| file.peek(index).unwrap()).collect();
    let hold = |id| &pool.frames.meta(id).hold;
    assert!(held.iter().all(|id| hold(*id).try_get_cached()));
    let shrunk = pool.shrink(GroupId::ROOT, PageCount(60), Io::Of(GroupId::ROOT));
    assert!(shrunk.freed.0 >= 60, "{shrunk:?}");
    held.into_iter().for_each(|id| pool.put(id));
    pool.validate();
}

#[test]
fn eviction_takes_the_oldest_first() {
    let pool = pool_of(100, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    (0..100).for_each(|index| file.read(index).unwrap());
    let shrunk = pool.shrink(GroupId::ROOT, PageCount(10), Io::Of(GroupId::ROOT));
    assert_eq!(shrunk.freed, PageCount(10));
    assert_eq!(file.resident(0..10), 0);
    assert_eq!(file.resident(10..100), 90);
    // The number of pages examined is in proportion to the target.
    assert!(
        shrunk.scanned.0 <= 32,
        "{} pages looked at",
        shrunk.scanned.0
    );
    pool.validate();
}

#[test]
fn every_group_gives_in_proportion_and_others_give_nothing() {
    let pool = pool_of(1000, 0);
    let tenant = pool
        .groups
        .create(GroupId::ROOT, "tenant", Some(PageCount(500)))
        .unwrap();
    let large = pool.groups.create(tenant, "large", None).unwrap();
    let small = pool.groups.create(tenant, "small", None).unwrap();
    let files = [large, small, GroupId::ROOT].map(|group| MockFile::new(&pool, group, 0));
    for (file, count) in files.iter().zip([400, 100, 300]) {
        (0..count).for_each(|index| file.read(index).unwrap());
    }
    pool.groups.set_max(tenant, Some(PageCount(300))).unwrap();
    let left = [large, small, GroupId::ROOT].map(|group| pool.groups.own(group).0);
    assert!((230..=250).contains(&left[0]), "{left:?}");
    assert!((50..=70).contains(&left[1]), "{left:?}");
    assert_eq!(left[2], 300, "the tenant's limit is the tenant's matter");
    pool.validate();
}

#[test]
fn a_deleted_groups_pages_are_evicted_through_its_parent() {
    let pool = pool_of(100, 0);
    let group = pool
        .groups
        .create(GroupId::ROOT, "short-lived", None)
        .unwrap();
    let file = MockFile::new(&pool, group, 0);
    (0..40).for_each(|index| file.read(index).unwrap());
    assert!(pool.groups.remove(group));
    assert_eq!(pool.groups.stats(GroupId::ROOT).unwrap().own, PageCount(40));
    let shrunk = pool.shrink(GroupId::ROOT, PageCount(40), Io::Of(GroupId::ROOT));
    assert_eq!(shrunk.freed, PageCount(40));
    assert_eq!(
        pool.groups.subtree(GroupId::ROOT),
        [GroupId::ROOT],
        "its number is free again"
    );
    pool.validate();
}

#[test]
fn a_page_missed_soon_comes_back_active() {
    let pool = pool_of(100, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    for _ in 0..2 {
        (0..50).for_each(|index| file.read(index).unwrap());
    }
    (100..150).for_each(|index| file.read(index).unwrap());
    assert_eq!(pool.list_sizes(GroupId::ROOT).active, PageCount(50));
    pool.shrink(GroupId::ROOT, PageCount(10), Io::Of(GroupId::ROOT));
    let gone: Vec<u64> = (100..150)
        .filter(|index| file.peek(*index).is_none())
        .collect();
    assert_eq!(gone.len(), 10);
    // The distances, from 0 for the page evicted last to 9 for the first, are less than the 50
    // active pages.
    file.read(gone[0]).unwrap();
    assert!(file.is(gone[0], FlagSet::ACTIVE));
    // After as many evictions as there are active pages, a return is too late.
    let clock_before = pool.shadow_pack(GroupId::ROOT, PageCount(0));
    pool.shadow_pack(GroupId::ROOT, PageCount(100));
    file.read(gone[1]).unwrap();
    assert!(!file.is(gone[1], FlagSet::ACTIVE));
    let totals = pool.totals();
    assert_eq!((totals.refault, totals.refault_activate), (2, 1));
    assert!(clock_before < 1 << SHADOW_BITS);
    assert_eq!(shadow_unpack(clock_before).0, GroupId::ROOT);
    pool.validate();
}

#[test]
fn with_s3_fifo_uses_move_nothing_until_the_tail() {
    let mut options = PoolOptions::new(400);
    options.arena.reserve = 0;
    options.policy = EvictionPolicy::S3Fifo;
    let pool = Pool::new(&options).unwrap();
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    for _ in 0..3 {
        (0..100).for_each(|index| file.read(index).unwrap());
    }
    pool.lru.drain_batches(&pool.frames);
    assert_eq!(pool.list_sizes(GroupId::ROOT).active.0, 0);
    // The stream has ten times as many pages as the memory: blocks used again go to the main queue
    // and stay, the others are evicted.
    (1000..5000).for_each(|index| file.read(index).unwrap());
    assert_eq!(file.resident(0..100), 100);
    assert!(file.is(0, FlagSet::ACTIVE));
    // Blocks that the first queue dropped and that are missed soon go directly to the main queue.
    let missed = (1000..5000).rev().find(|index| file.peek(*index).is_none());
    let missed = missed.unwrap();
    file.read(missed).unwrap();
    assert!(file.is(missed, FlagSet::ACTIVE));
    file.truncate_all();
    pool.validate();
}
