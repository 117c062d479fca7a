//! The stocks of threads: their pages count, never cause a refusal, and are given back.

use std::sync::Barrier;
use std::time::Duration;

use super::*;
use crate::stats::as_thread;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, failpoint, thread};
use crate::units::MIB;

fn pages(count: u64) -> PageCount {
    PageCount(count)
}

/// Creates a tree with batches of 64, and a group below its root.
fn stocked(max: u64) -> (Arc<GroupTree>, GroupId) {
    let tree = Arc::new(GroupTree::with_batches(
        pages(100_000),
        slot::Batches::fixed(64),
    ));
    let group = tree.create(tree.root(), "g", Some(pages(max))).unwrap();
    (tree, group)
}

/// Charges as a thread of this stripe would.
fn charge(tree: &GroupTree, stripe: usize, group: GroupId, count: u64) {
    tree.try_charge_as(stripe, group, pages(count))
        .unwrap()
        .commit();
}

fn give_back(tree: &GroupTree, stripe: usize, group: GroupId, count: u64) {
    as_thread(stripe, || tree.uncharge(group, pages(count)));
}

/// Returns the usage that limits are compared with, and the usage that is reported.
fn seen(tree: &GroupTree, id: GroupId) -> (u64, u64) {
    (tree.charged(id).0, tree.usage(id).0)
}

#[test]
fn a_page_is_charged_below_max_and_high_and_who_gets_none_was_not_refused() {
    let (tree, group) = stocked(100);
    let one = |stripe| {
        let charge = as_thread(stripe, || tree.charge(group, pages(1), Reach::High));
        charge.is_ok_and(|charge| charge.commit() == group)
    };
    tree.set_protection(group, Protection::High, Some(pages(70)))
        .unwrap();
    assert!(one(1));
    assert_eq!(seen(&tree, group), (64, 1), "with a batch");
    assert!((0..6).all(|_| one(0)), "alone");
    assert_eq!(seen(&tree, group), (70, 7));
    // 63 pages are in the stock of another thread.
    assert!(!one(0));
    assert!(one(1));
    assert_eq!(seen(&tree, group), (70, 8));
    tree.set_protection(group, Protection::High, None).unwrap();
    while one(0) {}
    assert_eq!(tree.charged(group).0, 100);
    assert_eq!(tree.events(group), GroupEvents::default());
    tree.validate().unwrap();
}

// spec: M5
#[test]
fn a_slot_holds_one_batch_of_one_group_and_larger_requests_pass_it_by() {
    let (tree, group) = stocked(10_000);
    charge(&tree, 0, group, 1);
    assert_eq!(seen(&tree, group), (64, 1));
    (0..63).for_each(|_| charge(&tree, 0, group, 1));
    assert_eq!(seen(&tree, group), (64, 64), "no level was touched again");
    charge(&tree, 0, group, 65);
    assert_eq!(
        seen(&tree, group),
        (129, 129),
        "a larger one takes no batch"
    );
    // The pages are given back one by one, so there is never more than a batch in stock.
    for left in (0..129).rev() {
        give_back(&tree, 0, group, 1);
        assert_eq!(tree.usage(group).0, left);
        assert!(tree.charged(group).0 - left <= 64);
    }
    // Another group, whose number falls into the same slot, takes the slot over.
    let mut other = group;
    while other == group || other.0 % stock::WAYS as u16 != group.0 % stock::WAYS as u16 {
        let name = format!("g{}", tree.all_stats().len());
        other = tree.create(tree.root(), &name, None).unwrap();
    }
    charge(&tree, 0, group, 3);
    let before = tree.own(group);
    charge(&tree, 0, other, 5);
    assert_eq!(seen(&tree, other), (64, 5));
    assert_eq!(tree.own(group), before, "it paid nothing for the other");
    assert_eq!(tree.charged(group), before, "its stock was given back");
    tree.validate().unwrap();
    tree.drain_stocks(tree.root());
    assert_eq!(seen(&tree, tree.root()), (8, 8));
}

// spec: M5
#[test]
fn batches_grow_while_every_limit_is_far_and_what_is_full_gives_back_half() {
    let batches = slot::Batches {
        first: 64,
        largest: 300,
        all: u64::MAX,
    };
    let tree = GroupTree::with_batches(pages(100_000), batches);
    let far = tree.create(tree.root(), "far", None).unwrap();
    let near = tree
        .create(tree.root(), "near", Some(pages(10_000)))
        .unwrap();
    // The batch doubles each time, up to the largest.
    for batch in [64, 128, 256, 300, 300] {
        charge(&tree, 0, far, 1);
        assert_eq!(tree.charged(far).0 - tree.usage(far).0, batch - 1);
        (1..batch).for_each(|_| charge(&tree, 0, far, 1));
    }
    // A batch is a 32nd of the distance to the limit, if that is more than a first batch.
    for batch in [64, 128, 256, 298, 289] {
        (0..batch).for_each(|_| charge(&tree, 0, near, 1));
        assert_eq!(seen(&tree, near).0, seen(&tree, near).1, "{batch}");
    }
    // If `high` is nearer, the distance to it counts.
    let high = pages(tree.usage(near).0 + 100);
    tree.set_protection(near, Protection::High, Some(high))
        .unwrap();
    charge(&tree, 0, near, 64);
    assert_eq!(seen(&tree, near).0, seen(&tree, near).1);
    // A slot is left full if more pages come at once than it may hold. If fewer come to a full
    // slot, it keeps half.
    let (in_use, largest) = (tree.usage(far).0, 300);
    give_back(&tree, 0, far, 600);
    assert_eq!(seen(&tree, far), (in_use - 600 + largest, in_use - 600));
    give_back(&tree, 0, far, 2);
    assert_eq!(seen(&tree, far), (in_use - 602 + largest / 2, in_use - 602));
    assert_eq!(tree.peak(far).0, in_use);
    // A drained slot begins with a first batch again.
    tree.drain_stocks(tree.root());
    assert_eq!(seen(&tree, far).0, in_use - 602);
    charge(&tree, 0, far, 1);
    assert_eq!(seen(&tree, far).0, in_use - 602 + 64);
    tree.validate().unwrap();
}

// spec: M7
#[test]
fn what_other_threads_have_in_stock_is_no_reason_to_refuse() {
    let (tree, group) = stocked(200);
    let leaf = tree.create(group, "leaf", None).unwrap();
    for stripe in 1..4 {
        charge(&tree, stripe, leaf, 1);
    }
    assert_eq!(seen(&tree, group), (192, 3));
    // 197 pages are free, most of them in the stocks of other threads and of a group below.
    charge(&tree, 0, group, 197);
    assert_eq!(seen(&tree, group), (200, 200));
    assert_eq!(tree.events(group).refused, 0);
    let refused = tree.try_charge_as(0, leaf, pages(1)).unwrap_err();
    assert_eq!(refused, group);
    tree.validate().unwrap();
    // Charges exactly up to the limit, whichever thread gives back and takes the last page.
    for stripe in 0..4 {
        give_back(&tree, stripe, leaf, if stripe == 0 { 0 } else { 1 });
        if stripe > 0 {
            charge(&tree, 3 - stripe, group, 1);
        }
        assert_eq!(tree.usage(group).0, 200);
    }
}

#[test]
fn usage_and_peak_are_of_pages_in_use() {
    let (tree, group) = stocked(10_000);
    for round in 0..3 {
        (0..40).for_each(|_| charge(&tree, 0, group, 1));
        assert_eq!(tree.usage(group).0, 40);
        (0..40).for_each(|_| give_back(&tree, 0, group, 1));
        assert_eq!(tree.peak(group).0, 40, "round {round}");
    }
    assert_eq!(tree.peak(tree.root()).0, 40);
    assert_eq!(tree.take_peak(group).0, 40);
    charge(&tree, 0, group, 7);
    give_back(&tree, 0, group, 5);
    assert_eq!(tree.take_peak(group).0, 7, "since it was taken last");
    assert_eq!(tree.take_peak(group).0, 2);
    (0..90).for_each(|_| charge(&tree, 0, group, 1));
    charge(&tree, 0, group, 100);
    assert_eq!(tree.take_peak(group).0, 192);
    assert_eq!(tree.peak(group).0, 192);
}

#[test]
fn what_was_charged_from_one_stock_and_given_back_past_another_was_a_peak() {
    let (tree, group) = stocked(10_000);
    let top = tree.root();
    // One thread charges all of its batch, and another, with other groups in its slots, gives it
    // back.
    (0..64).for_each(|_| charge(&tree, 0, group, 1));
    give_back(&tree, 1, group, 64);
    assert_eq!(seen(&tree, top), (0, 0));
    assert_eq!((tree.peak(group).0, tree.peak(top).0), (64, 64));
    assert_eq!(tree.take_peak(group).0, 64);
    // This does the same, but another group has taken over the slot meanwhile.
    (0..128).for_each(|_| charge(&tree, 0, group, 1));
    let mut other = group;
    while other == group || other.0 % stock::WAYS as u16 != group.0 % stock::WAYS as u16 {
        let name = format!("g{}", tree.all_stats().len());
        other = tree.create(top, &name, None).unwrap();
    }
    charge(&tree, 0, other, 1);
    give_back(&tree, 1, group, 128);
    assert_eq!(tree.take_peak(group).0, 128);
    // The stock of the thread that gives pages back does not count in any peak.
    charge(&tree, 2, group, 1);
    assert_eq!(tree.take_peak(group).0, 1);
    charge(&tree, 2, group, 65);
    give_back(&tree, 2, group, 66);
    assert_eq!(tree.take_peak(group).0, 66);
    tree.drain_stocks(top);
    assert_eq!(seen(&tree, top), (1, 1));
    tree.validate().unwrap();
}

// spec: M5
#[test]
fn large_batches_of_all_threads_share_a_part_of_the_memory() {
    let batches = slot::Batches {
        first: 16,
        largest: 512,
        all: 600,
    };
    let tree = GroupTree::with_batches(pages(1_000_000), batches);
    let group = tree.create(tree.root(), "g", None).unwrap();
    let fill = |stripe: usize| {
        let before = tree.charged(group).0;
        charge(&tree, stripe, group, 1);
        let batch = tree.charged(group).0 - before;
        (1..batch).for_each(|_| charge(&tree, stripe, group, 1));
        batch
    };
    let batches = |stripe: usize, times: u32| (0..times).fold(0, |_, _| fill(stripe));
    assert_eq!(batches(0, 8), 512, "all of it, while it is alone");
    assert_eq!(batches(1, 8), 300);
    assert_eq!(batches(2, 8), 200);
    assert_eq!([0, 1, 2].map(fill), [200; 3]);
    // Pages given back fill the slots again, but no slot holds more than it may.
    let in_use = tree.usage(group).0;
    (0..3).for_each(|stripe| give_back(&tree, stripe, group, 250));
    assert_eq!(seen(&tree, group), (in_use - 150, in_use - 750));
    tree.validate().unwrap();
}

#[test]
fn a_mark_that_is_lowered_finds_no_stock() {
    let (tree, group) = stocked(10_000);
    (0..4).for_each(|stripe| charge(&tree, stripe, group, 1));
    assert_eq!(seen(&tree, group), (256, 4));
    tree.set_protection(group, Protection::High, Some(pages(100)))
        .unwrap();
    assert_eq!(seen(&tree, group), (4, 4));
    let charged = tree.try_charge_as(0, group, pages(96)).unwrap();
    assert_eq!(charged.over_high(), None);
}

// spec: M6
#[test]
fn a_group_with_stock_is_deleted_and_its_number_free_at_once() {
    let (tree, group) = stocked(10_000);
    charge(&tree, 0, group, 1);
    charge(&tree, 1, group, 1);
    give_back(&tree, 0, group, 1);
    give_back(&tree, 1, group, 1);
    assert_eq!(seen(&tree, group), (128, 0));
    assert!(tree.remove(group));
    assert_eq!(seen(&tree, tree.root()), (0, 0));
    let again = tree.create(tree.root(), "again", None).unwrap();
    assert_eq!(again, group, "its number is used again");
    // With pages still charged, the deletion waits only for them, and not for any stock.
    charge(&tree, 0, again, 2);
    assert!(tree.remove(again));
    assert_eq!(seen(&tree, tree.root()), (2, 2));
    give_back(&tree, 0, again, 1);
    assert_eq!(
        seen(&tree, tree.root()),
        (1, 1),
        "none is kept of a deleted group"
    );
    give_back(&tree, 0, again, 1);
    assert_eq!(tree.create(tree.root(), "third", None).unwrap(), group);
    tree.validate().unwrap();
}

#[test]
fn threads_at_the_limit_use_all_of_it_and_never_more() {
    let (tree, group) = stocked(300);
    let leaves: Vec<GroupId> = ["a", "b", "c"]
        .map(|name| tree.create(group, name, Some(pages(200))).unwrap())
        .into();
    let done = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..3)
        .map(|n| {
            let (tree, leaf, done) = (tree.clone(), leaves[n], done.clone());
            thread::spawn(move || {
                let mut held = 0;
                // Miri is some thousand times slower.
                for round in 0..if cfg!(miri) { 60 } else { 30_000u64 } {
                    let want = 1 + (round * 7 + n as u64) % 5;
                    match tree.try_charge(leaf, PageCount(want)) {
                        // 99 pages for each of three threads fit, so no request may be refused.
                        Err(refused) => panic!("{refused:?} with {held} pages in hand"),
                        Ok(charge) if held + want <= 99 => {
                            charge.commit();
                            held += want;
                        }
                        Ok(charge) => drop(charge),
                    }
                    assert!(tree.charged(group).0 <= 300);
                    if held > 94 {
                        tree.uncharge(leaf, PageCount(held));
                        held = 0;
                    }
                }
                done.fetch_add(held, Ordering::Relaxed);
            })
        })
        .collect();
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    tree.drain_stocks(tree.root());
    assert_eq!(tree.charged(group).0, done.load(Ordering::Relaxed));
    tree.validate().unwrap();
}

#[test]
fn events_are_told_to_those_who_watch() {
    let tree = Arc::new(GroupTree::new(pages(1000)));
    let root = Group::root(tree.clone());
    let group = root.create_child("tenant", MIB).unwrap();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let into = heard.clone();
    let callback = group
        .on_events(move |events| into.lock().push(*events))
        .unwrap();
    let watch = group.watch().unwrap();
    tree.call_watchers();
    assert!(heard.lock().is_empty(), "nothing happened yet");
    group.set_high(Some(MIB / 2)).unwrap();
    tree.try_charge(group.id(), pages(200)).unwrap().commit();
    assert!(tree.try_charge(group.id(), pages(100)).is_err());
    assert!(heard.lock().is_empty(), "not by whom it happens to");
    let seen = watch.events();
    tree.call_watchers();
    tree.call_watchers();
    let wanted = GroupEvents {
        high: 1,
        refused: 1,
        ..GroupEvents::default()
    };
    assert_eq!(*heard.lock(), [wanted]);
    assert_eq!(watch.wait_timeout(&seen, Duration::from_secs(60)), wanted);
    drop(callback);
    assert!(tree.try_charge(group.id(), pages(100)).is_err());
    tree.call_watchers();
    assert_eq!(heard.lock().len(), 1);
    assert_eq!(watch.events().refused, 2);
}

#[test]
fn who_watches_hears_though_another_panics() {
    let tree = Arc::new(GroupTree::new(pages(1000)));
    let group = Group::root(tree.clone())
        .create_child("tenant", MIB)
        .unwrap();
    let _alarm = group
        .on_events(|_| panic!("a watcher of somebody else's"))
        .unwrap();
    let watch = group.watch().unwrap();
    assert!(tree.try_charge(group.id(), pages(300)).is_err());
    let tell = std::panic::AssertUnwindSafe(|| tree.call_watchers());
    std::panic::catch_unwind(tell).unwrap_err();
    assert_eq!(watch.events().refused, 1);
}

#[test]
fn a_group_that_has_the_number_of_one_just_deleted_keeps_its_watchers() {
    let tree = Arc::new(GroupTree::new(pages(1000)));
    let root = Group::root(tree.clone());
    let group = root.create_child("old", MIB).unwrap();
    let number = group.id();
    let heard = Arc::new(Mutex::new(0));
    let next = Arc::new(Mutex::new(None));
    let released = failpoint::on("Released", {
        let (heard, next) = (heard.clone(), next.clone());
        move || {
            let group = root.create_child("new", MIB).unwrap();
            let watch = group.on_events(move |_| *heard.lock() += 1).unwrap();
            *next.lock() = Some((group, watch));
        }
    });
    drop(group);
    drop(released);
    let (group, watch) = next.lock().take().unwrap();
    assert_eq!(group.id(), number);
    assert!(tree.try_charge(number, pages(1000)).is_err());
    tree.call_watchers();
    assert_eq!((*heard.lock(), watch.events().refused), (1, 1));
}

// spec: M7
#[test]
fn what_is_given_back_to_a_group_over_its_limit_is_in_no_stock() {
    let (tree, group) = stocked(10_000);
    (0..100).for_each(|_| charge(&tree, 0, group, 1));
    assert_eq!(seen(&tree, group), (128, 100));
    tree.set_max(group, Some(pages(64))).unwrap_err();
    for count in [20, 1, 15] {
        give_back(&tree, 0, group, count);
        let (charged, used) = seen(&tree, group);
        assert_eq!(charged, used);
    }
    // Under its limit the group may have a stock again.
    assert_eq!(tree.charged(group).0, 64);
    give_back(&tree, 0, group, 1);
    assert_eq!(seen(&tree, group), (64, 63));
    tree.validate().unwrap();
}

#[test]
fn a_limit_that_is_lowered_finds_no_stock() {
    let (tree, group) = stocked(10_000);
    (0..4).for_each(|stripe| charge(&tree, stripe, group, 1));
    assert_eq!(seen(&tree, group), (256, 4));
    tree.set_max(group, Some(pages(16))).unwrap();
    assert_eq!(seen(&tree, group), (4, 4));
}

#[test]
fn who_watches_is_not_told_of_what_happens_to_others() {
    let tree = Arc::new(GroupTree::new(pages(1000)));
    let root = Group::root(tree.clone());
    let group = root.create_child("quiet", MIB).unwrap();
    let other = root.create_child("busy", MIB).unwrap();
    let heard = Arc::new(Mutex::new(0));
    let into = heard.clone();
    let _watch = group.on_events(move |_| *into.lock() += 1).unwrap();
    assert!(tree.try_charge(other.id(), pages(300)).is_err());
    tree.call_watchers();
    assert_eq!(*heard.lock(), 0);
    assert!(tree.try_charge(group.id(), pages(300)).is_err());
    tree.call_watchers();
    assert_eq!(*heard.lock(), 1);
}

#[test]
fn who_watches_a_deleted_group_is_told_nothing_of_who_has_its_number_next() {
    let tree = Arc::new(GroupTree::new(pages(1000)));
    let root = Group::root(tree.clone());
    let group = root.create_child("old", MIB).unwrap();
    let number = group.id();
    let heard = Arc::new(Mutex::new(0));
    let into = heard.clone();
    let watch = group.on_events(move |_| *into.lock() += 1).unwrap();
    drop(group);
    let group = root.create_child("new", MIB).unwrap();
    assert_ne!(group.id(), number, "the watch keeps it");
    assert!(tree.try_charge(group.id(), pages(1000)).is_err());
    tree.call_watchers();
    assert_eq!((*heard.lock(), watch.events().refused), (0, 0));
    assert_eq!(group.events().refused, 1);
    drop(watch);
    assert_eq!(root.create_child("next", MIB).unwrap().id(), number);
}

/// A reclaimer that frees nothing, but lets another thread give pages back during its call.
struct Beside(Arc<Barrier>);

impl Reclaimer for Beside {
    fn reclaim(&self, _: GroupId, _: PageCount, _: Option<GroupId>) -> PageCount {
        self.0.wait(); // the other thread goes on
        self.0.wait(); // the other thread has given its pages back
        pages(0)
    }

    fn charge_without_waiting(&self, _: GroupId, _: PageCount) -> Result<Charge<'_>, LimitError> {
        unreachable!("no bytes on the heap are charged")
    }

    fn holders(&self, _: GroupId) -> Holders {
        Holders::default()
    }
}

#[test]
fn what_is_stocked_while_a_limit_is_lowered_does_not_stand_in_its_way() {
    let (tree, group) = stocked(256);
    let turn = Arc::new(Barrier::new(2));
    let reclaimer: Arc<dyn Reclaimer> = Arc::new(Beside(turn.clone()));
    tree.set_reclaimer(Arc::downgrade(&reclaimer));
    let of_other = (tree.clone(), turn.clone());
    let other = thread::spawn(move || {
        let (tree, turn) = of_other;
        // This charges one batch, all of which is in use.
        tree.try_charge(group, pages(1)).unwrap().commit();
        tree.try_charge(group, pages(63)).unwrap().commit();
        let _not_over = failpoint::on("NotOver", {
            let turn = turn.clone();
            move || {
                turn.wait(); // the main thread lowers the limit
                turn.wait();
            }
        });
        tree.uncharge(group, pages(60));
        turn.wait();
    });
    turn.wait();
    tree.set_max(group, Some(pages(16))).unwrap();
    other.join().unwrap();
    assert_eq!(seen(&tree, group), (4, 4));
    tree.validate().unwrap();
}
