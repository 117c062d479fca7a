//! Models of the stock: drains concurrent with charges. The tree has two levels and nothing but
//! their counters.

use loom::model::Builder;

use super::GroupId;
use super::levels::Levels;
use super::slot::Batches;
use super::stock::Stocks;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::per_thread::OWNERS;
use crate::sync::{Arc, thread};

const BATCH: u32 = 4;
const ROOT: GroupId = GroupId(0);
const GROUP: GroupId = GroupId(1);

/// The counters of a root with a limit and one group below it.
struct Tree {
    stocks: Stocks,
    usage: [AtomicU64; 2],
    max: u32,
    deleted: AtomicU32,
}

fn tree(max: u32) -> Arc<Tree> {
    tree_with(Batches::fixed(BATCH), max)
}

fn tree_with(batches: Batches, max: u32) -> Arc<Tree> {
    Arc::new(Tree {
        stocks: Stocks::new(batches),
        usage: [AtomicU64::new(0), AtomicU64::new(0)],
        max,
        deleted: AtomicU32::new(0),
    })
}

impl Tree {
    fn add(&self, group: GroupId, pages: u32) -> bool {
        let pages = u64::from(pages);
        let fits = |usage| (usage + pages <= self.max.into()).then_some(usage + pages);
        let root = &self.usage[0];
        if root
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_err()
        {
            return false;
        }
        if group != ROOT {
            self.usage[1].fetch_add(pages, Ordering::Relaxed);
        }
        true
    }

    /// Charges as `GroupTree::charge` does: from the stock, by a batch, the pages alone, or the
    /// pages alone after a drain.
    fn charge(&self, number: usize, group: GroupId, pages: u32) -> bool {
        if self.stocks.charge(number, group, pages.into())
            || self.stocks.refill(self, number, group, pages.into())
        {
            return true;
        }
        let alone = || self.add(group, pages).then_some(()).ok_or(ROOT);
        alone()
            .or_else(|refuser| self.stocks.drain_until(self, number, refuser, alone))
            .is_ok()
    }

    /// Gives pages of `GROUP` back as `GroupTree::try_uncharge` does. The model has no count of the
    /// root's own pages, so it cannot give those back.
    fn uncharge(&self, number: usize, group: GroupId, pages: u32) {
        assert_eq!(group, GROUP);
        let in_use = self.stocks.in_use(number, group, &self.usage[1]);
        assert!(in_use >= pages.into(), "{pages} of {in_use} are given back");
        if !self.stocks.uncharge(self, number, group, pages.into()) {
            self.take_off(group, pages.into());
        }
    }

    fn usages(&self) -> [u32; 2] {
        [0, 1].map(|level| self.usage[level].load(Ordering::Relaxed) as u32)
    }
}

impl Levels for Tree {
    fn add_batch(&self, group: GroupId, pages: u32, _stocked: u32) -> bool {
        self.add(group, pages)
    }

    fn margin(&self, _group: GroupId) -> u64 {
        u64::from(self.max) - self.usage[0].load(Ordering::Relaxed)
    }

    fn take_off(&self, group: GroupId, pages: u64) {
        if group != ROOT {
            // Release, as in `GroupTree`: pairs with `Stocks::in_use`.
            let before = self.usage[1].fetch_sub(pages, Ordering::Release);
            assert!(before >= pages, "doubled: {pages} taken off {before}");
        }
        let before = self.usage[0].fetch_sub(pages, Ordering::Relaxed);
        assert!(before >= pages, "doubled: {pages} taken off {before}");
    }

    fn note_peak(&self, _group: GroupId, _stocked: u32) {}

    fn is_below(&self, group: GroupId, top: GroupId) -> bool {
        top == ROOT || group == top
    }

    fn is_deleted(&self, group: GroupId) -> bool {
        group == GROUP && self.deleted.load(Ordering::SeqCst) != 0
    }
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// The thread numbers of two threads that own slots, and of two that share slots.
const NUMBERS: [[usize; 2]; 2] = [[0, 1], [OWNERS, OWNERS + 1]];

// spec: M5
#[test]
fn loom_draining_beside_charges_neither_loses_nor_doubles_a_page() {
    for [theirs, own] in NUMBERS {
        model(move || {
            let tree = tree(100);
            let charger = tree.clone();
            let thread = thread::spawn(move || {
                assert!(charger.charge(theirs, GROUP, 1));
                assert!(charger.charge(theirs, GROUP, 1));
                charger.uncharge(theirs, GROUP, 1);
            });
            tree.stocks.drain_all(&*tree, ROOT);
            // Charges another group. Where the threads share a slot, the other thread's stock is
            // given back, and never used for this charge.
            assert!(tree.charge(own, ROOT, 2));
            thread.join().unwrap();
            let [root, group] = tree.usages();
            let stocked = |of| tree.stocks.sum(|found| found == of) as u32;
            assert!(stocked(GROUP) <= BATCH && stocked(ROOT) <= BATCH);
            assert_eq!(group, 1 + stocked(GROUP));
            assert_eq!(root, 3 + stocked(GROUP) + stocked(ROOT));
            tree.stocks.drain_all(&*tree, ROOT);
            assert_eq!(tree.usages(), [3, 1]);
        });
    }
}

// spec: M5
#[test]
fn loom_batches_that_grow_and_slots_that_overflow_lose_and_double_nothing_beside_a_drain() {
    model(move || {
        // A first batch is one page, and the next would be two. A slot that may hold one page
        // overflows with two.
        let batches = Batches {
            first: 1,
            largest: 2,
            all: u64::MAX,
        };
        let tree = tree_with(batches, 100);
        assert!(tree.charge(0, GROUP, 1));
        let charger = tree.clone();
        let thread = thread::spawn(move || {
            assert!(charger.charge(0, GROUP, 1));
            charger.uncharge(0, GROUP, 2);
        });
        tree.stocks.drain_all(&*tree, ROOT);
        thread.join().unwrap();
        let stocked = tree.stocks.sum(|of| of == GROUP) as u32;
        assert!(stocked <= 2);
        assert_eq!(tree.usages(), [stocked; 2]);
        tree.stocks.drain_all(&*tree, ROOT);
        assert_eq!(tree.usages(), [0, 0]);
    });
}

// spec: M5
#[test]
fn loom_two_drains_beside_each_other_take_each_page_once() {
    model(|| {
        let tree = tree(100);
        assert!(tree.charge(0, GROUP, 2));
        let other = tree.clone();
        let thread = thread::spawn(move || other.stocks.drain_all(&*other, ROOT));
        // The pages go into the stock, or are taken off the levels.
        tree.uncharge(0, GROUP, 1);
        tree.stocks.drain_all(&*tree, ROOT);
        assert!(tree.charge(0, GROUP, 1));
        thread.join().unwrap();
        let stocked = tree.stocks.sum(|_| true) as u32;
        assert_eq!(tree.usages(), [2 + stocked; 2]);
    });
}

// spec: M7
#[test]
fn loom_a_request_that_fits_is_not_refused_for_what_is_in_stock() {
    for [theirs, own] in NUMBERS {
        model(move || {
            // There is room for the batch of one thread, but not for the batches of both. The pages
            // that they request do fit.
            let tree = tree(BATCH + 1);
            let other = tree.clone();
            let thread = thread::spawn(move || other.charge(theirs, GROUP, 1));
            let large = tree.charge(own, ROOT, 3);
            assert!(thread.join().unwrap(), "one page was refused");
            assert!(large, "three pages were refused");
            tree.stocks.drain_all(&*tree, ROOT);
            assert_eq!(tree.usages(), [4, 1]);
        });
    }
}

// spec: M6
#[test]
fn loom_a_deleted_group_keeps_no_stock() {
    for [theirs, _] in NUMBERS {
        model(move || {
            let tree = tree(100);
            assert!(tree.charge(theirs, GROUP, 1));
            let giver = tree.clone();
            let thread = thread::spawn(move || giver.uncharge(theirs, GROUP, 1));
            tree.deleted.store(1, Ordering::SeqCst);
            tree.stocks.drain_all(&*tree, GROUP);
            thread.join().unwrap();
            assert_eq!(tree.usages(), [0, 0], "nothing is left to keep its number");
        });
    }
}

// spec: M14
#[test]
fn loom_what_is_given_back_is_in_use_beside_a_drain_and_a_refill() {
    for [theirs, own] in NUMBERS {
        model(move || {
            let tree = tree(100);
            assert!(tree.charge(own, GROUP, 1));
            let other = tree.clone();
            let thread = thread::spawn(move || {
                other.stocks.drain_all(&*other, GROUP);
                assert!(other.charge(theirs, GROUP, 1));
            });
            tree.uncharge(own, GROUP, 1);
            thread.join().unwrap();
            tree.stocks.drain_all(&*tree, ROOT);
            assert_eq!(tree.usages(), [1, 1]);
        });
    }
}
