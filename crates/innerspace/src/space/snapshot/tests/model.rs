//! Random changes, snapshots, restores and pins, compared with plain copies.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::space::{AtFork, Pinned};
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
    Pin(usize),
    Unpin(usize),
    /// A store through a pin.
    Behind(usize, u64),
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
        2 => (0..PLACES).prop_map(Op::Pin),
        3 => (0..4usize).prop_map(Op::Unpin),
        4 => (0..4usize, 10..19u64).prop_map(|(pin, value)| Op::Behind(pin, value)),
    ]
}

const PLACES: usize = 12;

fn place(page: usize) -> VirtAddr {
    let page = page as u64;
    VirtAddr(0x4000_0000 + (page % 3) * LEAF + (page / 3) * PAGE)
}

/// A page of the model: its content, and whether it may be stored to.
type Model = Vec<Option<(u64, bool)>>;

/// A pin of a page, with the page's content once the page is out of the space.
struct Pin {
    page: usize,
    pinned: Pinned,
    out: Option<Rc<Cell<u64>>>,
}

/// Gives the pins of a page that is about to be unmapped a common copy of its content.
fn let_go(pins: &mut [Pin], page: usize, now: &Model) {
    let Some((value, _)) = now[page] else { return };
    let value = Rc::new(Cell::new(value));
    for pin in pins.iter_mut().filter(|pin| pin.page == page) {
        pin.out.get_or_insert_with(|| value.clone());
    }
}

fn compare_pins(pins: &[Pin], model: &Model) {
    for pin in pins {
        let mut bytes = [0; 8];
        pin.pinned.read(0, &mut bytes);
        let expected = match &pin.out {
            Some(value) => value.get(),
            None => model[pin.page].expect("a page that is not out is mapped").0,
        };
        assert_eq!(u64::from_ne_bytes(bytes), expected, "{:?}", pin.pinned);
    }
}

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
        let mut a = space.accessor().unwrap();
        let mut now: Model = vec![None; PLACES];
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        let mut forks: Vec<(Space, Model)> = Vec::new();
        let mut pins: Vec<Pin> = Vec::new();
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
                    let_go(&mut pins, page, &now);
                    space.unmap(place(page), PAGE).unwrap();
                    now[page] = None;
                }
                Op::Map(page) => {
                    let_go(&mut pins, page, &now);
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
                    let restored = space.restore(snapshot);
                    if let Some(pin) = pins.iter().filter(|pin| pin.out.is_none()).min_by_key(|pin| place(pin.page)) {
                        let refused = format!("restore: the page at {} is pinned; unpin it first", place(pin.page));
                        prop_assert_eq!(restored.unwrap_err().to_string(), refused);
                    } else {
                        restored.unwrap();
                        now.clone_from(model);
                    }
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
                Op::Pin(page) if pins.len() < 4 => {
                    let pinned = space.pin(place(page), PAGE, AtFork::Copy);
                    prop_assert_eq!(pinned.is_ok(), now[page].is_some_and(|(_, may)| may));
                    pins.extend(pinned.ok().map(|pinned| Pin { page, pinned, out: None }));
                }
                Op::Unpin(number) if number < pins.len() => {
                    pins.remove(number);
                }
                Op::Behind(number, value) => if let Some(pin) = pins.get(number) {
                    pin.pinned.write(0, &value.to_ne_bytes());
                    match &pin.out {
                        Some(out) => out.set(value),
                        None => now[pin.page].as_mut().unwrap().0 = value,
                    }
                },
                Op::Freeze | Op::Fork | Op::Forget(_) | Op::Pin(_) | Op::Unpin(_) => {}
            }
            compare(&mut a, &now);
            compare_pins(&pins, &now);
        }
        for (snapshot, model) in &snapshots {
            compare(&mut snapshot.accessor().unwrap(), model);
            snapshot.validate();
        }
        for (fork, model) in &forks {
            compare(&mut fork.accessor().unwrap(), model);
            fork.validate();
        }
        space.validate();
        drop((a, space, snapshots, forks));
        drop(pins);
        assert_nothing_left(&pool);
    }
}
