//! Random changes, snapshots and restores against plain copies.

use super::*;
use proptest::prelude::*;

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
