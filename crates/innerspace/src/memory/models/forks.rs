//! How leaves of forks part from their shadows, under random schedules: a leaf that no longer
//! borrows anything, a shadow that is pruned to what its last borrower needs, a shadow that is
//! collapsed.

use super::{PAGE, explore, explore_further, memory};
use crate::sync::thread;
use crate::{Accessor, Map, Memory, Space, VirtAddr};

/// Creates a space with `pages` pages, each of which begins with its own number. The space uses low
/// addresses, which walks of a table reach soon, and so at about the same time.
fn numbered(memory: &Memory, pages: u64) -> (Space, VirtAddr) {
    let space = memory.create_space().unwrap();
    let at = VirtAddr(16 * PAGE);
    space.map(Map::anonymous(pages * PAGE).at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    (0..pages).for_each(|page| a.store(at + page * PAGE, page).unwrap());
    (space, at)
}

fn load(a: &mut Accessor, at: VirtAddr, page: u64) -> u64 {
    a.load::<u64>(at + page * PAGE).unwrap()
}

/// Returns the usage once nothing waits for a grace period.
fn used(memory: &Memory) -> u64 {
    memory.validate();
    memory.validate(); // frees the entries that the first flush retired
    memory.root_group().usage()
}

// spec: F3, F4
#[test]
fn the_last_two_pages_copied_at_once_part_a_leaf_from_its_shadow() {
    explore(|| {
        let memory = memory();
        let (space, at) = numbered(&memory, 2);
        let before = used(&memory);
        let child = space.fork().unwrap();
        let stores: Vec<_> = (0..2)
            .map(|page| {
                let mut a = space.accessor().unwrap();
                thread::spawn(move || {
                    a.store(at + page * PAGE, 10 + page).unwrap();
                    assert_eq!(load(&mut a, at, page), 10 + page);
                })
            })
            .collect();
        let mut c = child.accessor().unwrap();
        assert_eq!([0, 1].map(|page| load(&mut c, at, page)), [0, 1]);
        drop((c, child));
        stores.into_iter().for_each(|store| store.join().unwrap());
        assert_eq!(used(&memory), before, "something is kept of the child");
        drop(space);
        assert_eq!(used(&memory), 0);
    });
}

// spec: F3
#[test]
fn a_store_beside_a_copy_is_not_lost_when_the_other_sharer_ends() {
    explore(|| {
        let memory = memory();
        let (space, at) = numbered(&memory, 3);
        let child = space.fork().unwrap();
        let ending = thread::spawn(move || drop(child));
        let stores: Vec<_> = (0..2)
            .map(|page| {
                let mut a = space.accessor().unwrap();
                thread::spawn(move || {
                    a.store(at + page * PAGE, 10 + page).unwrap();
                    assert_eq!(load(&mut a, at, page), 10 + page);
                })
            })
            .collect();
        stores.into_iter().for_each(|store| store.join().unwrap());
        ending.join().unwrap();
        let mut a = space.accessor().unwrap();
        assert_eq!([0, 1, 2].map(|page| load(&mut a, at, page)), [10, 11, 2]);
        space.validate();
        drop((a, space));
        assert_eq!(used(&memory), 0);
    });
}

// spec: F3
#[test]
fn leaves_part_beside_another_fork_and_the_end_of_the_first() {
    explore(|| {
        let memory = memory();
        let (space, at) = numbered(&memory, 2);
        let child = space.fork().unwrap();
        let stores: Vec<_> = (0..2)
            .map(|page| {
                let mut a = space.accessor().unwrap();
                thread::spawn(move || a.store(at + page * PAGE, 10 + page).unwrap())
            })
            .collect();
        let ending = thread::spawn(move || drop(child));
        let second = space.fork().unwrap();
        let mut b = second.accessor().unwrap();
        let seen = [0, 1].map(|page| load(&mut b, at, page));
        assert!((0..2).all(|page| [page, 10 + page].contains(&seen[page as usize])));
        b.store(at, 77u64).unwrap();
        stores.into_iter().for_each(|store| store.join().unwrap());
        assert_eq!([0, 1].map(|page| load(&mut b, at, page)), [77, seen[1]]);
        let mut a = space.accessor().unwrap();
        assert_eq!([0, 1].map(|page| load(&mut a, at, page)), [10, 11]);
        ending.join().unwrap();
        space.validate();
        second.validate();
        drop((a, b, space, second));
        assert_eq!(used(&memory), 0);
    });
}

/// The first leaf reads which pages the second still needs, while the third collapses the second.
// spec: F3, F4
#[test]
fn a_leaf_keeps_what_is_borrowed_through_one_that_is_collapsed() {
    explore_further(|| {
        let memory = memory();
        let (first, at) = numbered(&memory, 4);
        let second = first.fork().unwrap();
        second.accessor().unwrap().store(at, 10u64).unwrap();
        let third = second.fork().unwrap();
        let mut c = third.accessor().unwrap();
        c.store(at + PAGE, 11u64).unwrap();
        drop(second);
        let ending = thread::spawn(move || drop(first));
        c.store(at + 2 * PAGE, 12u64).unwrap();
        ending.join().unwrap();
        memory.validate();
        // A frame that was freed by mistake has another owner now.
        let (others, elsewhere) = numbered(&memory, 4);
        let want = [10, 11, 12, 3];
        assert_eq!([0, 1, 2, 3].map(|page| load(&mut c, at, page)), want);
        third.validate();
        let mut o = others.accessor().unwrap();
        assert_eq!([0, 3].map(|page| load(&mut o, elsewhere, page)), [0, 3]);
        drop((c, o, third, others));
        assert_eq!(used(&memory), 0);
    });
}

/// Two spaces share a leaf, which alone keeps the leaf that it borrows from, and both copy it. A
/// third space restores a page of it.
// spec: F3, F5
#[test]
fn two_that_copy_a_leaf_collapse_its_shadow_once() {
    explore_further(|| {
        let memory = memory();
        let (space, at) = numbered(&memory, 4);
        let child = space.fork().unwrap();
        let mut a = space.accessor().unwrap();
        a.store(at, 10u64).unwrap();
        drop(child);
        let second = space.fork().unwrap();
        let image = space.freeze().unwrap();
        let looker = image.fork().unwrap();
        let mut b = second.accessor().unwrap();
        let storing = thread::spawn(move || {
            b.store(at + PAGE, 21u64).unwrap();
            b
        });
        let looking = thread::spawn(move || {
            // These pages are only in the chain, and one of them is restored from there.
            let seen = image.view(at + 2 * PAGE, 8).unwrap();
            assert_eq!(*seen, 2u64.to_le_bytes());
            drop(seen);
            let mut l = looker.accessor().unwrap();
            l.store(at + 3 * PAGE, 33u64).unwrap();
            looker.restore(&image).unwrap();
            l.store(at + 3 * PAGE, 34u64).unwrap();
            looker.restore(&image).unwrap();
            assert_eq!(
                [0, 1, 2, 3].map(|page| load(&mut l, at, page)),
                [10, 1, 2, 3]
            );
            (image, looker)
        });
        a.store(at + 2 * PAGE, 12u64).unwrap();
        let mut b = storing.join().unwrap();
        let (image, looker) = looking.join().unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|page| load(&mut a, at, page)),
            [10, 1, 12, 3]
        );
        assert_eq!(
            [0, 1, 2, 3].map(|page| load(&mut b, at, page)),
            [10, 21, 2, 3]
        );
        for one in [&space, &second, &looker] {
            one.validate();
        }
        drop((a, b, image, looker, second, space));
        assert_eq!(used(&memory), 0);
    });
}

/// An unmap finds a borrowed page that a fault makes the leaf's own: the page is unmapped
/// nevertheless.
// spec: F3
#[test]
fn a_page_is_unmapped_while_a_fault_collapses_the_leaf_it_is_borrowed_from() {
    explore(|| {
        let memory = memory();
        let (space, at) = numbered(&memory, 4);
        let child = space.fork().unwrap();
        let mut a = space.accessor().unwrap();
        a.store(at, 10u64).unwrap();
        drop(child);
        let others = space.clone();
        let unmapping = thread::spawn(move || others.unmap(at + PAGE, 2 * PAGE).unwrap());
        a.store(at + 3 * PAGE, 13u64).unwrap();
        unmapping.join().unwrap();
        assert_eq!([0, 3].map(|page| load(&mut a, at, page)), [10, 13]);
        space.validate();
        drop((a, space));
        assert_eq!(used(&memory), 0);
    });
}
