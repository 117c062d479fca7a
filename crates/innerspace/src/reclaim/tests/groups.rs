//! Several groups: marks, protection, and which groups a request may take from. A MiB of the
//! published sizes is four pages here.

use super::mock::*;
use crate::frame::FlagSet;
use crate::group::{GroupId, LimitReason, Protection};
use crate::reclaim::*;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::units::PageCount;

/// The number of pages that stand for a MiB here.
const MIB: u64 = 4;

fn group(pool: &Pool, parent: GroupId, name: &str, max: Option<u64>) -> GroupId {
    let max = max.map(|mib| PageCount(mib * MIB));
    pool.groups.create(parent, name, max).unwrap()
}

fn set(pool: &Pool, group: GroupId, which: Protection, mib: u64) {
    let pages = Some(PageCount(mib * MIB));
    pool.groups.set_protection(group, which, pages).unwrap();
}

/// Creates a file of a group, and reads this many MiB of it once.
fn read_in(pool: &Arc<Pool>, group: GroupId, mib: u64) -> Arc<MockFile> {
    let file = MockFile::new(pool, group, 0);
    (0..mib * MIB).for_each(|index| file.read(index).unwrap());
    file
}

#[track_caller]
fn assert_near(pool: &Pool, group: GroupId, mib: u64, percent: u64) {
    let (usage, wanted) = (pool.groups.usage(group).0, mib * MIB);
    assert!(
        usage.abs_diff(wanted) * 100 <= wanted * percent,
        "group {}: {usage} pages, {wanted} wanted, {percent} % allowed",
        pool.groups.name(group)
    );
}

// spec: M16
#[test]
fn protection_is_shared_out_below_a_protected_parent() {
    let pool = pool_of(4000, 0);
    let a = group(&pool, GroupId::ROOT, "a", Some(200));
    let b = group(&pool, a, "b", None);
    set(&pool, b, Protection::Min, 50);
    let [c, d, e, f] = ["c", "d", "e", "f"].map(|name| group(&pool, b, name, None));
    for (leaf, low) in [(c, 75), (d, 25), (e, 0), (f, 500)] {
        set(&pool, leaf, Protection::Low, low);
    }
    let files: Vec<_> = [(c, 50), (d, 50), (e, 50), (f, 0)]
        .map(|(leaf, mib)| read_in(&pool, leaf, mib))
        .into();
    let sibling = group(&pool, a, "sibling", None);
    let taken: Vec<_> = (0..148 * MIB)
        .map(|_| pool.alloc(sibling, 0, AllocMode::Wait).unwrap())
        .collect();
    assert_near(&pool, b, 50, 3);
    assert_near(&pool, c, 29, 15);
    assert_near(&pool, d, 21, 15);
    let left = pool.groups.usage(e).0;
    assert!(left <= 2 * MIB, "{left} unprotected pages are left");
    // The protected rest is not taken, although it could be evicted and the request fails without
    // it.
    let more: Vec<_> = (0..4 * MIB)
        .map_while(|_| pool.alloc(sibling, 0, AllocMode::Wait).ok())
        .collect();
    assert!(
        more.len() as u64 <= 2 * MIB,
        "{} of {:?}",
        more.len(),
        pool.groups.all_stats()
    );
    assert_near(&pool, b, 50, 3);
    drop((taken, more));
    files.iter().for_each(|file| file.truncate_all());
    pool.validate();
}

#[test]
fn low_gives_way_when_nothing_else_is_left_and_min_does_not() {
    let pool = pool_of(4000, 0);
    let a = group(&pool, GroupId::ROOT, "a", Some(100));
    let soft = group(&pool, a, "soft", None);
    let hard = group(&pool, a, "hard", None);
    set(&pool, soft, Protection::Low, 40);
    set(&pool, hard, Protection::Min, 40);
    let files = [read_in(&pool, soft, 40), read_in(&pool, hard, 40)];
    let other = group(&pool, a, "other", None);
    let taken: Vec<_> = (0..60 * MIB)
        .map(|_| pool.alloc(other, 0, AllocMode::Wait).unwrap())
        .collect();
    assert_eq!(pool.groups.usage(hard).0, 40 * MIB);
    assert_eq!(pool.groups.usage(soft).0, 0);
    let error = pool.alloc(other, 0, AllocMode::Wait).unwrap_err();
    assert_eq!(error.details().reason, LimitReason::NothingEvictable);
    // The group's own limit does not spare its protected pages.
    assert!(pool.shrink(hard, PageCount(8), Io::Forbidden).freed.0 >= 8);
    assert!(pool.groups.events(hard).reclaimed.0 >= 8);
    drop(taken);
    files.iter().for_each(|file| file.truncate_all());
    pool.validate();
}

// spec: M9
#[test]
fn requests_that_may_not_wait_stay_near_the_mark() {
    let pool = pool_of(2000, 0);
    let tenant = group(&pool, GroupId::ROOT, "tenant", Some(300));
    set(&pool, tenant, Protection::High, 100);
    let high = 100 * MIB;
    let mut taken = Vec::new();
    let error = loop {
        match pool.alloc(tenant, 0, AllocMode::NoWait) {
            Ok(frame) => taken.push(frame),
            Err(error) => break error,
        }
        assert!(taken.len() as u64 <= high + 64, "no end");
    };
    assert!(error.would_block());
    assert_eq!(error.details().reason, LimitReason::OverHigh);
    assert_eq!(error.details().id, tenant);
    let at_end = pool.groups.usage(tenant).0;
    assert!(at_end > high && at_end == taken.len() as u64);
    for _ in 0..50 {
        pool.alloc(tenant, 0, AllocMode::NoWait).unwrap_err();
        pool.charge(tenant, PageCount(3), AllocMode::NoWait)
            .unwrap_err();
    }
    assert_eq!(
        pool.groups.usage(tenant).0,
        at_end,
        "a refusal takes nothing"
    );
    // Requests that may wait succeed although nothing can be evicted.
    taken.push(pool.alloc(tenant, 0, AllocMode::NoIo).unwrap());
    drop(taken);
    // Pages that no request evicts, because none waits, are evicted by the next step.
    let file = MockFile::new(&pool, tenant, 0);
    for index in 0..2 * high {
        if file
            .bring(index, FlagSet::EMPTY, AllocMode::NoWait)
            .is_err()
        {
            while pool.background_step() == Step::More {}
            let usage = pool.groups.usage(tenant).0;
            assert!(usage <= high, "{usage} of {high} after the step");
        }
    }
    assert!(pool.groups.events(tenant).high > 0);
    assert_eq!(pool.groups.events(tenant).max, 0);
    file.truncate_all();
    pool.validate();
}

/// Charges a page of each of seven new groups below `parent`, as each of four threads that have
/// slots of their own. Real threads are not started here: they could get higher numbers, since many
/// other threads live, would then share slots, and have fewer pages in stock.
fn charge_by_four_numbers(pool: &Pool, parent: GroupId) {
    let leaves = ["a", "b", "c", "d", "e", "f", "g"].map(|name| group(pool, parent, name, None));
    for number in 0..4 {
        for leaf in leaves {
            let charge = pool.groups.try_charge_as(number, leaf, PageCount(1));
            charge.unwrap().commit();
        }
    }
}

// spec: M7
#[test]
fn who_may_not_wait_is_not_refused_at_the_mark_for_what_is_in_stock() {
    let pool = pool_of(4000, 0);
    let tenant = group(&pool, GroupId::ROOT, "tenant", None);
    set(&pool, tenant, Protection::High, 150);
    charge_by_four_numbers(&pool, tenant);
    let stocked = pool.groups.charged(tenant).0 - 28;
    assert_eq!(pool.groups.usage(tenant).0, 28);
    // With the pages in stock, the usage is far above the mark; without them, it is below.
    assert!(stocked + 28 + 400 > 600 + 64, "{stocked} pages in stock");
    let charge = pool.charge(tenant, PageCount(400), AllocMode::NoWait);
    let charge = charge.expect("428 of 600 pages");
    assert_eq!(pool.groups.charged(tenant).0, 428);
    let error = pool.charge(tenant, PageCount(237), AllocMode::NoWait);
    assert_eq!(error.unwrap_err().details().reason, LimitReason::OverHigh);
    drop(charge);
    pool.groups.validate().unwrap();
}

#[test]
fn nothing_is_evicted_for_what_is_in_stock() {
    let pool = pool_of(4000, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let tenant = group(&pool, GroupId::ROOT, "tenant", None);
    charge_by_four_numbers(&pool, tenant);
    let mut read = 0;
    while pool.free_pages().0 > 30 {
        file.read(read).unwrap();
        read += 1;
    }
    // The low mark is at 62 pages, the high one at 124.
    let free = 4000 - pool.groups.usage(GroupId::ROOT).0;
    assert!(free > 124, "{free} pages are free, and in stock");
    while pool.background_step() == Step::More {}
    assert_eq!(file.resident(0..read), read as usize);
    let free = pool.free_pages().0;
    assert!(free > 124, "{free} pages: a step will be asked for again");
    // The group is over its mark only with the pages in stock: 28 + 10 + 23 are in use, 5 in stock.
    set(&pool, tenant, Protection::High, 16);
    let own = MockFile::new(&pool, tenant, 0);
    (0..10).for_each(|index| own.read(index).unwrap());
    let charge = pool.charge(tenant, PageCount(23), AllocMode::NoWait);
    let charge = charge.expect("a little over the mark");
    assert_eq!(charge.over_high(), Some(tenant));
    while pool.background_step() == Step::More {}
    assert_eq!(own.resident(0..10), 10);
    drop(charge);
    file.truncate_all();
    own.truncate_all();
    pool.validate();
}

#[test]
fn clean_pages_go_before_dirty_ones_and_the_flusher_is_asked() {
    let pool = pool_of(1000, 0);
    let tenant = group(&pool, GroupId::ROOT, "tenant", Some(100));
    let file = MockFile::new(&pool, tenant, 0);
    // The older half of the blocks is dirty.
    for index in 0..100 * MIB {
        let flags = match index < 50 * MIB {
            true => FlagSet::DIRTY,
            false => FlagSet::EMPTY,
        };
        file.bring(index, flags, AllocMode::Wait).unwrap();
    }
    for index in 0..20 {
        let index = 1000 + index;
        file.bring(index, FlagSet::EMPTY, AllocMode::Wait).unwrap();
    }
    assert_eq!(file.written.load(Ordering::Relaxed), 0);
    assert_eq!(file.resident(0..50 * MIB), 50 * MIB as usize);
    pool.background_step();
    assert!(file.written.load(Ordering::Relaxed) > 0, "by the flusher");
    file.truncate_all();
    pool.validate();
}
