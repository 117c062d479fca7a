//! Behaviour of the tree of counters.

use proptest::prelude::*;

use super::*;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, thread};
use crate::units::KIB;

fn pages(count: u64) -> PageCount {
    PageCount(count)
}

/// Creates root (1000) / a (max 100) / b (max 50) / c (no limit).
fn four_levels() -> (GroupTree, [GroupId; 4]) {
    let tree = GroupTree::new(pages(1000));
    let root = tree.root();
    let a = tree.create(root, "a", Some(pages(100))).unwrap();
    let b = tree.create(a, "b", Some(pages(50))).unwrap();
    let c = tree.create(b, "c", None).unwrap();
    (tree, [root, a, b, c])
}

fn usages(tree: &GroupTree, ids: &[GroupId]) -> Vec<u64> {
    ids.iter().map(|id| tree.usage(*id).0).collect()
}

// spec: M2
#[test]
fn a_charge_is_kept_by_commit_and_given_back_by_drop() {
    let (tree, ids @ [_, _, _, c]) = four_levels();
    drop(tree.try_charge(c, pages(7)).unwrap());
    assert_eq!(usages(&tree, &ids), [0, 0, 0, 0]);
    assert_eq!(tree.try_charge(c, pages(7)).unwrap().commit(), c);
    assert_eq!(usages(&tree, &ids), [7, 7, 7, 7]);
    // Committing a charge of no pages leaves nothing to give back.
    assert_eq!(tree.try_charge(c, pages(0)).unwrap().commit(), c);
    assert_eq!(usages(&tree, &ids), [7, 7, 7, 7]);
    tree.uncharge(c, pages(7));
    assert_eq!(usages(&tree, &ids), [0, 0, 0, 0]);
    assert_eq!(tree.peak(c), pages(7));
    tree.validate().unwrap();
}

// spec: M4
#[test]
fn a_refusal_undoes_exactly_the_levels_below_it_and_names_itself() {
    let (tree, ids @ [root, a, b, c]) = four_levels();
    let in_a = tree.try_charge(a, pages(60)).unwrap();
    let in_c = tree.try_charge(c, pages(35)).unwrap();
    let before = usages(&tree, &ids);
    let peaks = ids.map(|id| tree.peak(id));
    for (wanted, refuser) in [(16, b), (6, a), (1000, b)] {
        let refused = tree.try_charge(c, pages(wanted)).unwrap_err();
        assert_eq!(refused, refuser, "{wanted} pages");
        assert_eq!(usages(&tree, &ids), before);
        assert_eq!(
            ids.map(|id| tree.peak(id)),
            peaks,
            "a refused charge is no peak"
        );
    }
    assert_eq!(tree.try_charge(root, pages(906)).unwrap_err(), root);
    assert_eq!(ids.map(|id| tree.events(id).refused), [1, 1, 2, 0]);
    drop((in_a, in_c));
    tree.validate().unwrap();
}

// spec: M13
#[test]
fn a_block_is_charged_whole_or_not_at_all() {
    let (tree, ids @ [_, _, b, c]) = four_levels();
    let block = tree.try_charge(c, pages(32)).unwrap();
    assert_eq!(tree.try_charge(c, pages(32)).unwrap_err(), b);
    assert_eq!(
        usages(&tree, &ids),
        [32; 4],
        "no part of the second block stayed"
    );
    drop(block);
    assert_eq!(usages(&tree, &ids), [0; 4]);
}

// spec: M14
#[test]
fn giving_back_more_than_was_charged_is_reported_and_changes_nothing() {
    let (tree, ids @ [_, _, b, c]) = four_levels();
    tree.try_charge(b, pages(5)).unwrap().commit();
    tree.try_charge(c, pages(3)).unwrap().commit();
    let before = usages(&tree, &ids);
    let underflow = tree.try_uncharge(c, pages(4)).unwrap_err();
    assert_eq!(
        (underflow.group, underflow.charged, underflow.wanted),
        (c, 3, 4)
    );
    // b has 8 pages in all, but only 5 of its own to give back.
    assert_eq!(tree.try_uncharge(b, pages(6)).unwrap_err().charged, 5);
    assert_eq!(usages(&tree, &ids), before);
    tree.validate().unwrap();
    let panic =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tree.uncharge(c, pages(4))));
    assert!(
        panic.is_err(),
        "the plain form does not go on with wrong books"
    );
}

// spec: M11, N3
#[test]
fn pages_move_between_groups_beside_full_ones_and_never_over_a_limit() {
    let (tree, ids @ [root, a, b, c]) = four_levels();
    let other = tree.create(a, "other", Some(pages(10))).unwrap();
    let full = tree.try_charge(c, pages(50)).unwrap().commit();
    let rest = tree.max(a).unwrap().0 - 50;
    let filler = tree.create(a, "filler", None).unwrap();
    tree.try_charge(filler, pages(rest)).unwrap().commit();
    let before = usages(&tree, &ids);
    // `a` is full, and is above both.
    assert!(tree.try_charge(other, pages(1)).is_err());
    tree.transfer(full, other, pages(10)).unwrap().commit();
    assert_eq!(usages(&tree, &[root, a]), before[..2]);
    assert_eq!(usages(&tree, &[b, c, other]), [40, 40, 10]);
    assert_eq!(tree.transfer(c, other, pages(1)).unwrap_err(), other);
    tree.validate().unwrap();
    // A transfer upwards always succeeds, and one downwards as far as there is room.
    tree.transfer(other, root, pages(10)).unwrap().commit();
    tree.transfer(root, c, pages(10)).unwrap().commit();
    assert_eq!(tree.transfer(filler, c, pages(1)).unwrap_err(), b);
    assert_eq!(usages(&tree, &[a, b, c, other]), [before[1], 50, 50, 0]);
    tree.uncharge(c, pages(50));
    tree.uncharge(filler, pages(rest));
    assert_eq!(usages(&tree, &ids), [0; 4]);
    tree.validate().unwrap();
}

#[test]
fn a_deleted_group_leaves_its_charges_to_its_parent_and_its_number_is_used_again() {
    let (tree, [root, a, b, c]) = four_levels();
    assert!(!tree.remove(b), "it has a group below it");
    assert!(!tree.remove(root));
    tree.try_charge(c, pages(9)).unwrap().commit();
    tree.try_charge(b, pages(4)).unwrap().commit();
    assert!(tree.remove(c));
    assert!(!tree.remove(c), "it is gone");
    assert_eq!(tree.stats(b).unwrap().own, pages(13));
    assert!(tree.remove(b));
    assert_eq!(tree.stats(a).unwrap().own, pages(13));
    assert_eq!(tree.usage(a), pages(13));
    assert_eq!(tree.name(c), "a", "its pages count for a");
    assert_eq!(
        tree.subtree(a),
        [a, b, c],
        "reclaim still finds the lists of deleted groups"
    );
    assert_eq!(tree.all_stats().len(), 2);
    tree.validate().unwrap();

    tree.uncharge(b, pages(4));
    assert_eq!(tree.usage(a), pages(9));
    let other = tree.create(root, "other", None).unwrap();
    assert!(other != b && other != c, "their last page is not back yet");
    tree.uncharge(c, pages(9));
    assert_eq!(tree.usage(root), pages(0));
    let mut reused = [
        tree.create(root, "x", None).unwrap(),
        tree.create(root, "y", None).unwrap(),
    ];
    reused.sort();
    assert_eq!(reused, [b, c]);
    tree.validate().unwrap();
}

#[test]
fn groups_with_bad_limits_names_or_places_are_refused() {
    let tree = GroupTree::new(pages(1000));
    let root = tree.root();
    let small = tree.create(root, "small", Some(pages(9))).unwrap_err();
    assert!(
        matches!(
            small,
            GroupError::TooSmall {
                minimum: 40_960,
                ..
            }
        ),
        "{small}"
    );
    for name in ["", "a/b", "a\nb", &"x".repeat(129)] {
        let error = tree.create(root, name, None).unwrap_err();
        assert_eq!(error, GroupError::BadName { name: name.into() });
    }
    tree.create(root, "twin", None).unwrap();
    let exists = tree.create(root, "twin", None).unwrap_err();
    assert_eq!(exists.to_string(), "group root already has a group twin");
    let mut deepest = root;
    for level in 0..MAX_DEPTH {
        deepest = tree
            .create(deepest, &format!("level{level}"), None)
            .unwrap();
    }
    assert!(matches!(
        tree.create(deepest, "deeper", None),
        Err(GroupError::TooDeep { .. })
    ));
    drop(tree.try_charge(deepest, pages(1)).unwrap());
}

#[test]
fn the_minimum_grows_with_the_accessors() {
    let tree = GroupTree::new(pages(1000));
    let group = tree.create(tree.root(), "g", Some(pages(12))).unwrap();
    tree.attach_accessor(group);
    tree.attach_accessor(group);
    assert!(matches!(
        tree.set_max(group, Some(pages(11))),
        Err(GroupError::TooSmall { accessors: 2, .. })
    ));
    tree.detach_accessor(group);
    tree.set_max(group, Some(pages(11))).unwrap();
    assert_eq!(tree.stats(group).unwrap().accessors, 1);
}

/// A reclaimer that gives back `left` charged pages in all, at most `step` of them a call.
struct Bucket {
    tree: Arc<GroupTree>,
    left: AtomicU64,
    step: u64,
}

impl Reclaimer for Bucket {
    fn reclaim(&self, group: GroupId, wanted: PageCount, _: Option<GroupId>) -> PageCount {
        let freed = wanted
            .0
            .min(self.step)
            .min(self.left.load(Ordering::Relaxed));
        self.left.fetch_sub(freed, Ordering::Relaxed);
        self.tree.uncharge(group, PageCount(freed));
        PageCount(freed)
    }

    fn charge_without_waiting(&self, _: GroupId, _: PageCount) -> Result<Charge<'_>, LimitError> {
        unreachable!("no bytes on the heap are charged")
    }

    fn holders(&self, _: GroupId) -> Holders {
        Holders {
            views: 2,
            viewed: PageCount(40),
            ..Holders::default()
        }
    }
}

#[test]
fn lowering_the_limit_evicts_or_says_what_stayed() {
    let tree = Arc::new(GroupTree::new(pages(1000)));
    let bucket = Arc::new(Bucket {
        tree: tree.clone(),
        left: AtomicU64::new(60),
        step: 7,
    });
    let as_reclaimer: Arc<dyn Reclaimer> = bucket.clone();
    tree.set_reclaimer(Arc::downgrade(&as_reclaimer));
    let group = tree.create(tree.root(), "g", Some(pages(256))).unwrap();
    tree.try_charge(group, pages(100)).unwrap().commit();
    tree.set_max(group, Some(pages(64))).unwrap();
    assert_eq!(tree.usage(group), pages(64));
    let Err(GroupError::Limit(error)) = tree.set_max(group, Some(pages(16))) else {
        panic!("40 pages cannot be freed");
    };
    assert_eq!(
        error.to_string(),
        "group root/g is full: 160.0 of 64.0 KiB, of which 160.0 pinned by 2 views; nothing can be evicted. \
         Drop views or raise the limit"
    );
    assert_eq!(tree.max(group), Some(pages(16)), "the limit stays lowered");
    assert!(tree.try_charge(group, pages(1)).is_err());
}

#[test]
fn handles_delete_their_group_and_keep_the_ones_above() {
    let tree = Arc::new(GroupTree::new(pages(1000)));
    let root = Group::root(tree.clone());
    let outer = root.create_child("outer", 512 * KIB).unwrap();
    let inner = outer.create_child_unlimited("inner").unwrap();
    let twin = inner.clone();
    drop(outer);
    assert_eq!(tree.all_stats().len(), 3);
    assert_eq!(inner.path(), "root/outer/inner");
    assert_eq!(
        inner.stats().to_string(),
        "root/outer/inner: 0 B of no limit, peak 0 B, 0 refusals"
    );
    drop(inner);
    assert_eq!(tree.all_stats().len(), 3);
    drop(twin);
    assert_eq!(tree.all_stats().len(), 1);
    assert_eq!(root.name(), "root");
}

#[test]
fn concurrent_charges_never_pass_the_limit_and_end_at_zero() {
    let tree = Arc::new(GroupTree::new(pages(100)));
    let root = tree.root();
    let group = tree.create(root, "g", Some(pages(60))).unwrap();
    let leaves: Vec<GroupId> = (0..2)
        .map(|n| {
            tree.create(group, &format!("leaf{n}"), Some(pages(40)))
                .unwrap()
        })
        .collect();
    let workers: Vec<_> = (0..4)
        .map(|n| {
            let (tree, leaf) = (tree.clone(), leaves[n % 2]);
            thread::spawn(move || {
                let mut refusals = 0u64;
                // Miri is some thousand times slower.
                for round in 0..if cfg!(miri) { 30 } else { 20_000 } {
                    match tree.try_charge(leaf, PageCount(1 + round % 19)) {
                        Ok(charge) => {
                            assert!(tree.usage(group).0 <= 60 && tree.usage(leaf).0 <= 40);
                            drop(charge);
                        }
                        Err(_) => refusals += 1,
                    }
                }
                refusals
            })
        })
        .collect();
    let refusals: u64 = workers
        .into_iter()
        .map(|worker| worker.join().unwrap())
        .sum();
    assert_eq!(
        tree.all_stats()
            .iter()
            .map(|stats| stats.usage.0)
            .sum::<u64>(),
        0
    );
    assert_eq!(
        tree.all_stats()
            .iter()
            .map(|stats| stats.refusals)
            .sum::<u64>(),
        refusals
    );
    // A page is taken off the group a moment before it is taken off the root. So only the root's
    // own limit bounds the root's peak.
    assert!(tree.peak(group).0 <= 60 && tree.peak(root).0 <= 100);
    tree.validate().unwrap();
}

#[derive(Clone, Debug)]
enum Op {
    Create { parent: usize, max: u64 },
    Remove { group: usize },
    Charge { group: usize, pages: u64 },
    Move { charge: usize, to: usize },
    GiveBack { charge: usize },
    SetMax { group: usize, max: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (any::<usize>(), 10..200u64).prop_map(|(parent, max)| Op::Create { parent, max }),
        any::<usize>().prop_map(|group| Op::Remove { group }),
        (any::<usize>(), 0..60u64).prop_map(|(group, pages)| Op::Charge { group, pages }),
        (any::<usize>(), any::<usize>()).prop_map(|(charge, to)| Op::Move { charge, to }),
        any::<usize>().prop_map(|charge| Op::GiveBack { charge }),
        (any::<usize>(), 10..200u64).prop_map(|(group, max)| Op::SetMax { group, max }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        // Miri is some thousand times slower, so it runs one short history.
        cases: if cfg!(miri) { 1 } else { ProptestConfig::default().cases },
        ..ProptestConfig::default()
    })]

    // spec: M3
    #[test]
    fn random_trees_add_up_and_end_at_zero(
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 16 } else { 120 }),
    ) {
        let tree = GroupTree::with_batches(pages(300), slot::Batches::fixed(16));
        let mut live = vec![tree.root()];
        let mut charges: Vec<(GroupId, PageCount)> = Vec::new();
        for op in ops {
            match op {
                Op::Create { parent, max } => {
                    let parent = live[parent % live.len()];
                    let name = format!("g{}", tree.all_stats().len() + charges.len() * 1000);
                    if let Ok(id) = tree.create(parent, &name, Some(pages(max))) {
                        prop_assert!(!live.contains(&id));
                        live.push(id);
                    }
                }
                Op::Remove { group } => {
                    let index = group % live.len();
                    if tree.remove(live[index]) {
                        live.swap_remove(index);
                    }
                }
                Op::Charge { group, pages } => {
                    let id = live[group % live.len()];
                    let wanted = PageCount(pages);
                    if let Ok(charge) = tree.try_charge(id, wanted) {
                        charges.push((charge.commit(), wanted));
                    }
                }
                Op::Move { charge, to } if !charges.is_empty() => {
                    let charge = charge % charges.len();
                    let (from, count) = charges[charge];
                    let to = live[to % live.len()];
                    if let Ok(moved) = tree.transfer(from, to, count) {
                        charges[charge].0 = moved.commit();
                    }
                }
                Op::Move { .. } => {}
                Op::GiveBack { charge } if !charges.is_empty() => {
                    let (id, count) = charges.swap_remove(charge % charges.len());
                    tree.uncharge(id, count);
                }
                Op::GiveBack { .. } => {}
                Op::SetMax { group, max } => {
                    // Nothing is freed meanwhile, so an error is correct if usage exceeds the new
                    // limit.
                    let _ = tree.set_max(live[group % live.len()], Some(pages(max)));
                }
            }
            if let Err(message) = tree.validate() {
                prop_assert!(false, "{message}");
            }
            let total: u64 = charges.iter().map(|(_, count)| count.0).sum();
            prop_assert_eq!(tree.usage(tree.root()).0, total);
        }
        for (id, count) in charges {
            tree.uncharge(id, count);
        }
        for id in tree.subtree(tree.root()) {
            prop_assert_eq!((tree.usage(id).0, tree.own(id).0), (0, 0));
        }
        tree.drain_stocks(tree.root());
        for id in tree.subtree(tree.root()) {
            prop_assert_eq!(tree.charged(id).0, 0, "something was left in no stock");
        }
        prop_assert!(tree.validate().is_ok());
        prop_assert_eq!(tree.subtree(tree.root()).len(), live.len(), "drained deleted groups are gone");
    }
}

// spec: M15
#[test]
fn what_a_deleted_group_leaves_is_protected_as_the_rest_of_its_parent() {
    let tree = GroupTree::new(pages(1000));
    let root = tree.root();
    let parent = tree.create(root, "parent", None).unwrap();
    let child = tree.create(parent, "child", None).unwrap();
    for which in [Protection::Min, Protection::Low] {
        tree.set_protection(child, which, Some(pages(40))).unwrap();
    }
    tree.try_charge(child, pages(30)).unwrap().commit();
    let spared = |spared| {
        let portions = tree.portions(root, spared);
        let spared = portions.iter().map(|portion| portion.spared.0);
        spared.sum::<u64>()
    };
    let both = || [protect::Spared::Low, protect::Spared::Min].map(spared);
    // A child of a parent without protection has none either.
    assert_eq!(both(), [0, 0]);
    tree.set_protection(parent, Protection::Min, Some(pages(10)))
        .unwrap();
    assert_eq!(both(), [10, 10]);
    let of_child = |top| {
        let portions = tree.portions(top, protect::Spared::Min);
        let child = portions.iter().find(|portion| portion.group == child);
        child.map(|portion| portion.spared.0)
    };
    assert_eq!(of_child(parent), Some(30), "its own, below its parent");
    assert!(tree.remove(child));
    assert_eq!(of_child(parent), Some(0), "nobody protects it any more");
    assert_eq!(both(), [10, 10], "but as part of the parent");
    tree.validate().unwrap();
}

#[test]
fn what_was_reclaimed_counts_in_the_groups_above() {
    let (tree, ids @ [_, _, b, _]) = four_levels();
    tree.count_reclaimed(b, pages(5));
    let reclaimed = ids.map(|id| tree.events(id).reclaimed.0);
    assert_eq!(reclaimed, [5, 5, 5, 0]);
}
