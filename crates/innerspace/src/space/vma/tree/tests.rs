use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Number {
    start: u64,
    end: u64,
}

impl Ranged for Number {
    type Key = u64;

    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.end
    }

    fn gap(end: u64, start: u64) -> u64 {
        start - end
    }
}

/// The same ranges by start, in a `BTreeMap`: the tree must agree with it.
#[derive(Clone, Default)]
struct Model(BTreeMap<u64, u64>);

impl Model {
    fn find(&self, at: u64) -> Option<Number> {
        let below = self.0.range(..=at).next_back();
        let own = below.filter(|(_, end)| **end > at);
        let found = own.or_else(|| self.0.range(at..).next());
        found.map(|(&start, &end)| Number { start, end })
    }

    fn before(&self, at: u64) -> Option<Number> {
        let ends_in_time = |(_, end): &(&u64, &u64)| **end <= at;
        let found = self.0.range(..at).rev().find(ends_in_time);
        found.map(|(&start, &end)| Number { start, end })
    }

    /// Finds the gap by trying one address after the other.
    fn gap(&self, from: u64, limit: u64, len: u64, align: u64) -> Option<u64> {
        let free = |at: u64| self.find(at).is_none_or(|next| next.start >= at + len);
        (from..limit)
            .filter(|at| at.is_multiple_of(align) && at + len <= limit)
            .find(|at| free(*at))
    }
}

fn check(tree: &RangeTree<Number>, model: &Model, at: u64) {
    for at in [at.saturating_sub(1), at, at + 1] {
        assert_eq!(tree.find(at).copied(), model.find(at), "find {at}");
        assert_eq!(tree.before(at).copied(), model.before(at), "before {at}");
    }
    let all: Vec<Number> = tree.iter().copied().collect();
    let want = model.0.iter().map(|(&start, &end)| Number { start, end });
    assert!(all.iter().copied().eq(want));
    let tail: Vec<Number> = tree.iter_from(at).copied().collect();
    assert!(tail.iter().eq(all.iter().filter(|one| one.end > at)));
}

/// Returns the number of nodes that the ledger counts.
fn nodes(ledger: &Ledger) -> usize {
    assert!(
        ledger
            .bytes()
            .is_multiple_of(RangeTree::<Number>::NODE_BYTES)
    );
    ledger.bytes() / RangeTree::<Number>::NODE_BYTES
}

fn steps() -> impl Strategy<Value = Vec<(bool, u64, u64, u64)>> {
    let step = (prop::bool::weighted(0.6), 0..600u64, 1..8u64, 1..12u64);
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each step checks the addresses just before, at and just after the range's start and end.
    // spec: V1
    #[test]
    fn the_tree_agrees_with_a_btree_map(steps in steps()) {
        let ledger = Arc::new(Ledger::default());
        let mut tree = RangeTree::new(ledger.clone());
        let mut model = Model::default();
        let mut snapshots = Vec::new();
        for (index, (add, start, len, want)) in steps.into_iter().enumerate() {
            let end = start + len;
            let hit = tree.find(start).copied();
            prop_assert_eq!(hit, model.find(start));
            let free = hit.is_none_or(|hit| hit.start >= end);
            if add && free {
                tree.insert(Number { start, end });
                model.0.insert(start, end);
            } else if let Some(hit) = hit.filter(|hit| !add && hit.start <= start) {
                tree.remove(start);
                model.0.remove(&hit.start);
            }
            check(&tree, &model, start);
            check(&tree, &model, end);
            tree.validate();
            let align = 1 << (want % 3);
            prop_assert_eq!(
                tree.gap(start, 620, want, align),
                model.gap(start, 620, want, align)
            );
            if index % 50 == 0 {
                snapshots.push((tree.clone(), model.clone()));
            }
        }
        for (tree, model) in &snapshots {
            check(tree, model, 300); // a shared node never changes
        }
        drop(snapshots);
        prop_assert!(nodes(&ledger) * LEAST <= tree.iter().count() + 2 * WIDTH);
        drop(tree);
        prop_assert_eq!(nodes(&ledger), 0);
    }
}

#[test]
fn a_change_copies_one_path() {
    let ledger = Arc::new(Ledger::default());
    let mut tree = RangeTree::new(ledger.clone());
    for number in 0..10_000u64 {
        let start = number * 10;
        tree.insert(Number {
            start,
            end: start + 5,
        });
    }
    let before = nodes(&ledger);
    let kept = tree.clone();
    tree.insert(Number {
        start: 50_006,
        end: 50_008,
    });
    tree.remove(70_000);
    assert!(nodes(&ledger) - before <= 12, "{}", nodes(&ledger) - before);
    assert_eq!((kept.iter().count(), tree.iter().count()), (10_000, 10_000));
    kept.validate();
    tree.validate();
}
