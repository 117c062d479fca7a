//! One thread walks a chain of leaves while another collapses it.

use std::sync::mpsc;

use super::*;
use crate::sync::failpoint;

const LARGE: u64 = 512 * PAGE;

fn numbered(space: &Space, pages: u64) -> VirtAddr {
    let at = space
        .map(Map::anonymous(pages * PAGE).at(VirtAddr(1 << 30)))
        .unwrap();
    let mut a = space.accessor().unwrap();
    (0..pages).for_each(|page| a.store(at + page * PAGE, page).unwrap());
    at
}

/// The third space borrows from the second, which is gone, and the second's leaf from the first. A
/// snapshot shares the third one's leaf: a store there collapses the second's leaf while the
/// snapshot is viewed.
// spec: F6
#[test]
fn a_view_stays_when_its_chain_is_collapsed_beside_it() {
    let pool = pool(512);
    let first = space(&pool);
    let at = numbered(&first, 4);
    let second = first.fork().unwrap();
    second.accessor().unwrap().store(at, 10u64).unwrap();
    let third = second.fork().unwrap();
    third.accessor().unwrap().store(at + PAGE, 11u64).unwrap();
    drop(second);
    pool.flush_retired();
    let image = third.freeze().unwrap();
    let (out, third_back) = mpsc::channel();
    let there = failpoint::on("Climbing", move || {
        let storing = thread::spawn(move || {
            third
                .accessor()
                .unwrap()
                .store(at + 2 * PAGE, 12u64)
                .unwrap();
            third
        });
        out.send(storing.join().unwrap()).unwrap();
    });
    let view = image.view(at + 3 * PAGE, 8).unwrap();
    drop(there);
    drop(third_back.recv().unwrap());
    drop(image);
    pool.flush_retired();
    pool.flush_retired();
    first
        .accessor()
        .unwrap()
        .store(at + 3 * PAGE, 99u64)
        .unwrap();
    assert_eq!(*view, 3u64.to_le_bytes(), "a view changed");
}

/// A remap does the same walk: the page gets two owners, neither of which may store to it in place.
// spec: F3
#[test]
fn a_page_moved_beside_a_collapse_is_not_stored_to_by_its_other_owner() {
    let pool = pool(512);
    let first = space(&pool);
    let at = numbered(&first, 4);
    let second = first.fork().unwrap();
    second.accessor().unwrap().store(at, 10u64).unwrap();
    let third = second.fork().unwrap();
    third.accessor().unwrap().store(at + PAGE, 11u64).unwrap();
    // The fourth space gets a leaf of its own, which borrows from that of `third`.
    let fourth = third.fork().unwrap();
    fourth
        .accessor()
        .unwrap()
        .store(at + 2 * PAGE, 42u64)
        .unwrap();
    drop(second);
    pool.flush_retired();
    pool.flush_retired();
    let to = VirtAddr(1 << 35);
    let (out, third_back) = mpsc::channel();
    let there = failpoint::on("Climbing", move || {
        let storing = thread::spawn(move || {
            third
                .accessor()
                .unwrap()
                .store(at + 2 * PAGE, 12u64)
                .unwrap();
            third
        });
        out.send(storing.join().unwrap()).unwrap();
    });
    let moved = fourth.remap(
        at + 3 * PAGE,
        PAGE,
        PAGE,
        crate::space::Remap::Replacing(to),
    );
    drop(there);
    drop(third_back.recv().unwrap());
    let to = moved.unwrap();
    fourth.unmap(at, LARGE).unwrap();
    pool.flush_retired();
    pool.flush_retired();
    first
        .accessor()
        .unwrap()
        .store(at + 3 * PAGE, 99u64)
        .unwrap();
    assert_eq!(
        fourth.accessor().unwrap().load::<u64>(to),
        Ok(3),
        "another space's store"
    );
}

/// Two threads that copy a leaf have each found that its shadow has no other user. The second goes
/// on after the first has collapsed it.
// spec: F4
#[test]
fn a_shadow_is_collapsed_once() {
    let pool = pool(512);
    let first = space(&pool);
    let at = numbered(&first, 4);
    let child = first.fork().unwrap();
    first.accessor().unwrap().store(at, 10u64).unwrap();
    drop(child);
    pool.flush_retired();
    let second = first.fork().unwrap();
    let keep = first.clone();
    let (joined_to, joined) = mpsc::channel();
    let there = failpoint::on("FoundAlone", move || {
        let (between, is_between) = mpsc::channel();
        let (to_go_on, go_on) = mpsc::channel::<()>();
        let storing = thread::spawn(move || {
            let _there = failpoint::on("Uncounted", move || {
                between.send(()).unwrap();
                let _dropped = go_on.recv();
            });
            first
                .accessor()
                .unwrap()
                .store(at + 2 * PAGE, 12u64)
                .unwrap();
        });
        is_between.recv().unwrap();
        joined_to.send((storing, to_go_on)).unwrap();
    });
    second.accessor().unwrap().store(at + PAGE, 21u64).unwrap();
    drop(there);
    let (storing, to_go_on) = joined.recv().unwrap();
    let _ = to_go_on.send(());
    storing.join().unwrap();
    keep.validate();
    second.validate();
}

/// While a node of the space is being replaced, a store elsewhere makes sure first that its path is
/// the space's own. It takes over the pages of its leaf's shadow all the same, and the leaf forgets
/// the next shadow, from which it borrows nothing.
#[test]
fn a_store_beside_a_replaced_node_keeps_no_shadow_in_vain() {
    let pool = pool(512);
    let first = space(&pool);
    let at = numbered(&first, 4);
    let second = first.fork().unwrap();
    let mut a = second.accessor().unwrap();
    (0..3).for_each(|page| a.store(at + page * PAGE, 10u64).unwrap());
    let third = second.fork().unwrap();
    let mut b = third.accessor().unwrap();
    b.store(at + 2 * PAGE, 12u64).unwrap();
    drop((a, second));
    pool.flush_retired();
    pool.flush_retired();
    let nodes = third.0.nodes();
    let leaf = nodes.find(at.0).unwrap().frame;
    let hold = |node| &pool.frames.meta(node).hold;
    // Another thread counts as a borrower of the shadow while it works on it.
    let (shadow, _) = nodes.shadow(leaf).unwrap();
    assert!(hold(shadow).try_map());
    b.store(at + 3 * PAGE, 13u64).unwrap();
    let _held = hold(shadow).unmap();
    assert_eq!(nodes.borrowing_depth(leaf), 2);
    // And another replaces a node.
    assert!(hold(nodes.root).try_get());
    b.store(at, 14u64).unwrap();
    let _held = hold(nodes.root).put();
    assert_eq!(nodes.borrowing_depth(leaf), 0);
    third.validate();
    drop((b, third, first));
    assert_nothing_left(&pool);
}
