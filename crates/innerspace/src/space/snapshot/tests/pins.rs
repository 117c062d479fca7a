//! Pinned pages: one test for each rule of `space::pin`.

use std::sync::mpsc;

use super::*;
use crate::space::pin::pin_pages;
use crate::space::table::nodes::visited;
use crate::space::{AtFork, Pinned, Remap};
use crate::sync::failpoint;

/// Creates a space with `pages` resident pages; page n starts with the number n + 1.
fn numbered(pool: &Arc<Pool>, pages: u64) -> (Space, VirtAddr, Accessor) {
    let space = space(pool);
    let at = VirtAddr(1 << 40);
    space.map(Map::anonymous(pages * PAGE).at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    for page in 0..pages {
        a.store(at + page * PAGE, page + 1).unwrap();
    }
    (space, at, a)
}

fn first_word(pinned: &Pinned, page: u64) -> u64 {
    let mut bytes = [0; 8];
    pinned.read(page * PAGE, &mut bytes);
    u64::from_ne_bytes(bytes)
}

fn set_first_word(pinned: &Pinned, page: u64, value: u64) {
    pinned.write(page * PAGE, &value.to_ne_bytes());
}

#[test]
fn accessors_and_a_pin_use_the_same_bytes() {
    let pool = pool(512);
    let (space, at, mut a) = numbered(&pool, 2);
    // The pin covers four pages, two of which were never touched before.
    space
        .map(Map::anonymous(2 * PAGE).at(at + 2 * PAGE))
        .unwrap();
    let pinned = space.pin(at, 3 * PAGE + 1, AtFork::Copy).unwrap();
    assert_eq!(
        format!("{pinned:?}"),
        format!("Pinned(4 pages from {at})"),
        "whole pages"
    );
    assert_eq!(pinned.pages(), PageCount(4));
    assert_eq!([0, 1, 3].map(|page| first_word(&pinned, page)), [1, 2, 0]);
    // Accesses across the end of a page, through the pin and through the accessor.
    pinned.write(PAGE - 3, b"abcdef");
    let mut seen = [0; 6];
    a.read(at + (PAGE - 3), &mut seen).unwrap();
    assert_eq!(&seen, b"abcdef");
    a.write(at + (2 * PAGE - 2), b"wxyz").unwrap();
    let mut seen = [0; 4];
    pinned.read(2 * PAGE - 2, &mut seen);
    assert_eq!(&seen, b"wxyz");
    let pieces: Vec<_> = pinned.pieces().collect();
    let bytes: usize = pieces.iter().map(|(_, len)| len).sum();
    assert_eq!(bytes, 4 * PAGE_SIZE);
    assert_eq!(pieces[0].0.addr().get() % PAGE_SIZE, 0);
    space.validate();
    drop((pinned, a, space));
    assert_nothing_left(&pool);
}

#[test]
#[should_panic(expected = "5 bytes at 4092 of 4096 pinned ones")]
fn what_is_not_pinned_is_not_reached_through_a_pin() {
    let pool = pool(512);
    let (space, at, _a) = numbered(&pool, 1);
    let pinned = space.pin(at, PAGE, AtFork::Copy).unwrap();
    pinned.write(PAGE - 4, &[0; 5]);
}

// spec: F1
#[test]
fn a_fork_leaves_pinned_pages_with_the_parent_and_copies_them() {
    let pool = pool(4 * 1024);
    let (space, at, mut a) = numbered(&pool, 520);
    // The pages are in two leaves, next to pages that are not pinned.
    let pins = [3, 5, 515].map(|page| (page, space.pin(at + page * PAGE, PAGE, AtFork::Copy)));
    let pins = pins.map(|(page, pinned)| (page, pinned.unwrap()));
    let child = space.fork().unwrap();
    let mut b = child.accessor().unwrap();
    let faults = pool.counters.totals().pgfault;
    for (page, pinned) in &pins {
        assert_eq!(b.load::<u64>(at + *page * PAGE), Ok(page + 1), "copied");
        set_first_word(pinned, 0, 1000 + page);
        assert_eq!(a.load::<u64>(at + *page * PAGE), Ok(1000 + page));
        a.store(at + *page * PAGE, 2000 + page).unwrap();
        assert_eq!(first_word(pinned, 0), 2000 + page, "the page has moved");
        assert_eq!(b.load::<u64>(at + *page * PAGE), Ok(page + 1));
        b.store(at + *page * PAGE, 3000 + page).unwrap();
        assert_eq!(first_word(pinned, 0), 2000 + page);
    }
    // There is one fault for each leaf that an accessor did not know yet: the child's two, the
    // parent's two.
    assert!(pool.counters.totals().pgfault - faults <= 4);
    // The neighbours of a pinned page are shared, and are copied by stores as usual.
    a.store(at + 4 * PAGE, 77u64).unwrap();
    assert_eq!(b.load::<u64>(at + 4 * PAGE), Ok(5));
    b.store(at + 6 * PAGE, 78u64).unwrap();
    assert_eq!(a.load::<u64>(at + 6 * PAGE), Ok(7));
    // The same holds for a snapshot, even once the child is gone.
    let snapshot = space.freeze().unwrap();
    drop((b, child));
    for (page, pinned) in &pins {
        a.store(at + *page * PAGE, 4000 + page).unwrap();
        assert_eq!(first_word(pinned, 0), 4000 + page);
        let frozen = snapshot.accessor().unwrap().load::<u64>(at + *page * PAGE);
        assert_eq!(frozen, Ok(2000 + page));
    }
    space.validate();
    snapshot.validate();
    drop((pins, a, space, snapshot));
    assert_nothing_left(&pool);
}

// spec: F1
#[test]
fn the_copy_of_a_pinned_page_allows_what_its_mapping_does() {
    let pool = pool(512);
    let (space, at, _a) = numbered(&pool, 3);
    let pinned = space.pin(at, 3 * PAGE, AtFork::Copy).unwrap();
    space.protect(at, PAGE, Protection::READ).unwrap();
    space.protect(at + PAGE, PAGE, Protection::NONE).unwrap();
    let forbidden = Some(FaultKind::Forbidden);
    let refused = |result: Result<(), crate::space::Fault>| result.err().map(|fault| fault.kind());
    let check = |space: &Space| {
        let mut a = space.accessor().unwrap();
        assert_eq!(a.load::<u64>(at), Ok(1));
        assert_eq!(refused(a.store(at, 9u64)), forbidden);
        assert_eq!(refused(a.load::<u64>(at + PAGE).map(drop)), forbidden);
        assert_eq!(refused(a.store(at + PAGE, 9u64)), forbidden);
        a.store(at + 2 * PAGE, 9u64).unwrap();
    };
    check(&space.fork().unwrap());
    let snapshot = space.freeze().unwrap();
    let mut frozen = snapshot.accessor().unwrap();
    assert_eq!(refused(frozen.load::<u64>(at + PAGE).map(drop)), forbidden);
    check(&snapshot.fork().unwrap());
    drop(pinned);
    space.restore(&snapshot).unwrap();
    check(&space);
    space.validate();
}

// spec: F1
#[test]
fn a_fork_that_may_not_copy_a_pinned_page_is_refused() {
    let pool = pool(2 * 1024);
    let (space, at, mut a) = numbered(&pool, 8);
    let _may = space.pin(at, PAGE, AtFork::Copy).unwrap();
    let alone = space.pin(at + PAGE, 2 * PAGE, AtFork::Refuse).unwrap();
    let before = in_use(&pool);
    let refused = space.fork().unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "fork: the page at {} is pinned and may not be copied; unpin it first",
            at + PAGE
        )
    );
    let refused = space.freeze().unwrap_err();
    assert!(matches!(
        refused,
        SpaceError::PinnedAlone { what: "freeze", .. }
    ));
    assert_eq!(in_use(&pool), before, "nothing is left of the child");
    let faults = pool.counters.totals().pgfault;
    a.store(at + PAGE, 9u64).unwrap();
    assert_eq!(first_word(&alone, 0), 9);
    assert_eq!(pool.counters.totals().pgfault, faults, "as it was");
    // Other pins of the pages do not matter once this pin is gone, nor does this pin once its pages
    // are gone.
    space.unmap(at + PAGE, PAGE).unwrap();
    assert!(space.fork().is_err());
    space.unmap(at + 2 * PAGE, PAGE).unwrap();
    drop(space.fork().unwrap());
    drop(alone);
    let again = space.pin(at + 3 * PAGE, PAGE, AtFork::Refuse).unwrap();
    drop(again);
    drop(space.fork().unwrap());
}

// spec: F1
#[test]
fn a_fork_without_room_for_the_copies_is_refused() {
    let pool = pool(256);
    let (space, at, mut a) = numbered(&pool, 64);
    let pinned = space.pin(at, 64 * PAGE, AtFork::Copy).unwrap();
    let group = pool.root_group().create_child("small", 32 * PAGE).unwrap();
    let before = in_use(&pool);
    assert!(matches!(space.fork_in(&group), Err(SpaceError::Limit(_))));
    assert_eq!(in_use(&pool), before);
    a.store(at, 5u64).unwrap();
    assert_eq!(first_word(&pinned, 0), 5);
    let child = space.fork().unwrap();
    assert_eq!(child.accessor().unwrap().load::<u64>(at), Ok(5));
    space.validate();
    child.validate();
}

// spec: F1
#[test]
fn a_fork_costs_by_its_pins_and_not_by_what_is_mapped() {
    let costs = [512, 20_480].map(|pages| {
        let pool = pool(pages as u32 + 2_000);
        let (space, at, _a) = numbered(&pool, pages);
        let cost = |pinned: &[Pinned]| {
            let before = in_use(&pool);
            let touched = crate::frame::touched::so_far();
            let child = space.fork().unwrap();
            let touched = crate::frame::touched::so_far() - touched;
            let frames = in_use(&pool) - before;
            drop(child);
            assert!(pinned.iter().all(|pinned| first_word(pinned, 0) != 0));
            (touched, frames)
        };
        let free = cost(&[]);
        let pins: Vec<Pinned> = (0..4)
            .map(|page| space.pin(at + page * PAGE, PAGE, AtFork::Copy).unwrap())
            .collect();
        let pinned = cost(&pins);
        drop(pins);
        assert_eq!(cost(&[]), free, "forgotten once they are gone");
        (free, pinned)
    });
    let [few, many] = costs.map(|(_, pinned)| pinned);
    assert_eq!(few.1, many.1, "frames taken: {costs:?}");
    // The fork costs a root, two nodes, a leaf and four pages.
    assert_eq!(few.1, 8);
    // Each hold word that is changed belongs to one of the leaf's other pages, or to one of the
    // forty leaves to which a node above it refers.
    assert!(many.0 <= few.0 + 2 * 40, "{costs:?}");
    assert!(few.0 <= 512 + 40, "{costs:?}");
}

#[test]
fn a_restore_over_a_pinned_page_is_refused() {
    let pool = pool(2 * 1024);
    let (space, at, mut a) = numbered(&pool, 8);
    let snapshot = space.freeze().unwrap();
    for in_place in 0..6u64 {
        a.store(at + 2 * PAGE, 50 + in_place).unwrap();
        let pinned = space.pin(at + 3 * PAGE, PAGE, AtFork::Copy).unwrap();
        let refused = space.restore(&snapshot).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "restore: the page at {} is pinned; unpin it first",
                at + 3 * PAGE
            )
        );
        set_first_word(&pinned, 0, 99);
        assert_eq!(a.load::<u64>(at + 2 * PAGE), Ok(50 + in_place), "as it was");
        assert_eq!(a.load::<u64>(at + 3 * PAGE), Ok(99));
        drop(pinned);
        space.restore(&snapshot).unwrap();
        assert_eq!(a.load::<u64>(at + 2 * PAGE), Ok(3));
        assert_eq!(a.load::<u64>(at + 3 * PAGE), Ok(4), "what the pin stored");
    }
    assert!(pool.counters.totals().restore_in_place > 0);
}

#[test]
fn what_is_unmapped_lives_on_until_it_is_unpinned() {
    let pool = pool(512);
    let (space, at, mut a) = numbered(&pool, 4);
    let pinned = space.pin(at, 4 * PAGE, AtFork::Copy).unwrap();
    let anonymous = in_use(&pool);
    space.unmap(at, PAGE).unwrap();
    space.discard(at + PAGE, PAGE).unwrap();
    let zeros = Map::anonymous(PAGE).replacing(at + 2 * PAGE);
    space.map(zeros).unwrap();
    assert_eq!(in_use(&pool), anonymous, "still there, still charged");
    for page in 1..3 {
        assert_eq!(a.load::<u64>(at + page * PAGE), Ok(0));
        a.store(at + page * PAGE, 70u64).unwrap();
    }
    set_first_word(&pinned, 3, 80);
    assert_eq!(
        [0, 1, 2, 3].map(|page| first_word(&pinned, page)),
        [1, 2, 3, 80]
    );
    // Pages that were pinned at these addresses before do not prevent a restore of the present
    // ones.
    let snapshot = space.freeze().unwrap();
    space.unmap(at + 3 * PAGE, PAGE).unwrap();
    space.restore(&snapshot).unwrap();
    assert_eq!(a.load::<u64>(at + 3 * PAGE), Ok(80));
    drop((a, space, snapshot));
    assert_eq!(first_word(&pinned, 3), 80, "with the space gone");
    drop(pinned);
    assert_nothing_left(&pool);
}

#[test]
fn remapped_pages_stay_pinned_at_their_new_address() {
    let pool = pool(2 * 1024);
    let (space, at, mut a) = numbered(&pool, 4);
    let pinned = space.pin(at + PAGE, 2 * PAGE, AtFork::Copy).unwrap();
    let to = at + (4 * LEAF - 2 * PAGE); // across two leaves
    space
        .remap(at, 4 * PAGE, 4 * PAGE, Remap::Replacing(to))
        .unwrap();
    let child = space.fork().unwrap();
    for page in 0..2 {
        let there = to + (page + 1) * PAGE;
        set_first_word(&pinned, page, 40);
        assert_eq!(a.load::<u64>(there), Ok(40));
        a.store(there, 41u64).unwrap();
        assert_eq!(first_word(&pinned, page), 41);
        assert_eq!(child.accessor().unwrap().load::<u64>(there), Ok(page + 2));
    }
    space.validate();
    child.validate();
}

#[test]
fn protection_does_not_end_a_pin() {
    let pool = pool(512);
    let (space, at, mut a) = numbered(&pool, 1);
    let pinned = space.pin(at, PAGE, AtFork::Copy).unwrap();
    space.protect(at, PAGE, Protection::READ).unwrap();
    set_first_word(&pinned, 0, 6);
    assert_eq!(a.load::<u64>(at), Ok(6));
    let child = space.fork().unwrap();
    space.protect(at, PAGE, Protection::READ_WRITE).unwrap();
    a.store(at, 7u64).unwrap();
    assert_eq!(
        first_word(&pinned, 0),
        7,
        "a store after a fault uses the same page"
    );
    assert_eq!(child.accessor().unwrap().load::<u64>(at), Ok(6));
}

#[test]
fn only_private_writable_memory_of_a_live_space_can_be_pinned() {
    let pool = pool(512);
    let (space, at, _a) = numbered(&pool, 4);
    let pin = |at: VirtAddr, len| space.pin(at, len, AtFork::Copy).unwrap_err().to_string();
    space.protect(at + PAGE, PAGE, Protection::READ).unwrap();
    assert_eq!(
        pin(at, 4 * PAGE),
        format!(
            "pin at {}: {:#x}..{:#x} anonymous r- private is not private writable memory",
            at + PAGE,
            at.0 + PAGE,
            at.0 + 2 * PAGE
        )
    );
    let device = Map::device(Arc::new(Register::default()), PAGE).at(at + 8 * PAGE);
    space.map(device).unwrap();
    assert!(pin(at + 8 * PAGE, PAGE).ends_with("is not private writable memory"));
    assert!(pin(at + 3 * PAGE, 2 * PAGE).ends_with("not all of it is mapped"));
    assert!(pin(at + 1, PAGE).ends_with("not a multiple of the page size, 4096"));
    assert!(pin(at, 0).starts_with("pin of 0 bytes"));
    let snapshot = space.freeze().unwrap();
    let frozen = snapshot.accessor().unwrap().space();
    let refused = frozen.pin(at, PAGE, AtFork::Copy).unwrap_err();
    assert!(matches!(refused, SpaceError::Frozen { what: "pin" }));
    // None of these pages is pinned.
    space.restore(&snapshot).unwrap();
}

#[test]
fn a_pin_over_the_limit_is_refused_and_pins_nothing() {
    let pool = pool(256);
    let group = pool.root_group().create_child("small", 40 * PAGE).unwrap();
    let space = Space::new(
        &crate::cache::Cache::new(&pool),
        &group,
        crate::space::AddressWidth::Bits48,
    )
    .unwrap();
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    space.accessor().unwrap().store(at, 1u64).unwrap();
    let snapshot = space.freeze().unwrap();
    let refused = space.pin(at, 64 * PAGE, AtFork::Copy).unwrap_err();
    assert!(
        matches!(&refused, SpaceError::Access { what: "pin", explanation }
            if explanation.fault().kind() == FaultKind::Limit),
        "{refused}"
    );
    space.restore(&snapshot).unwrap();
}

#[test]
fn a_page_pinned_twice_is_pinned_until_both_are_gone() {
    let pool = pool(512);
    let (space, at, mut a) = numbered(&pool, 2);
    let one = space.pin(at, 2 * PAGE, AtFork::Copy).unwrap();
    let other = space.pin(at, PAGE, AtFork::Refuse).unwrap();
    drop(one);
    assert!(space.fork().is_err());
    let one = space.pin(at, 2 * PAGE, AtFork::Copy).unwrap();
    drop(other);
    let child = space.fork().unwrap();
    a.store(at, 9u64).unwrap();
    assert_eq!(first_word(&one, 0), 9);
    drop(one);
    // The page is no longer pinned, so it is shared, and the next store copies it.
    let second = space.fork().unwrap();
    a.store(at, 10u64).unwrap();
    assert_eq!(second.accessor().unwrap().load::<u64>(at), Ok(9));
    drop((a, child, second, space));
    assert_nothing_left(&pool);
}

#[test]
fn leaves_that_have_no_pins_any_more_are_forgotten() {
    let pool = pool(2 * 1024);
    let space = space(&pool);
    let at = space.map(Map::anonymous(400 * LEAF)).unwrap();
    let kept = space.pin(at, PAGE, AtFork::Copy).unwrap();
    for leaf in 1..400 {
        drop(space.pin(at + leaf * LEAF, PAGE, AtFork::Copy).unwrap());
    }
    let nodes = || space.0.inside(|_| space.0.nodes().pinned()).nodes;
    let before = visited::so_far();
    assert_eq!(nodes(), 4, "the path to one leaf");
    let all = visited::so_far() - before;
    drop(space.fork().unwrap());
    let before = visited::so_far();
    assert_eq!(nodes(), 4);
    let looked_into = visited::so_far() - before;
    assert!(
        looked_into == 4 && all > 400,
        "{looked_into} nodes, {all} before"
    );
    drop(kept);
}

#[test]
fn pins_that_were_dropped_leave_nothing_on_the_heap() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(8 * PAGE)).unwrap();
    let snapshot = space.freeze().unwrap();
    let noted = || space.0.gate.write().not_copied.len();
    let operations: [&dyn Fn(); 3] = [
        &|| drop(space.fork().unwrap()),
        &|| drop(space.freeze().unwrap()),
        &|| space.restore(&snapshot).unwrap(),
    ];
    for operation in operations {
        for page in 0..3 {
            drop(space.pin(at + page * PAGE, PAGE, AtFork::Refuse).unwrap());
        }
        assert_eq!(noted(), 3);
        operation();
        assert_eq!(noted(), 0);
    }
}

/// The fork comes before the pin. While the pin walks to the leaf, a store copies the leaf and
/// releases the old one, with its validity from before the fork.
// spec: F1
#[test]
fn a_pin_beside_the_copy_of_its_leaf_takes_nothing_of_the_fork() {
    let pool = pool(64);
    let (space, at, a) = numbered(&pool, 1);
    drop(a);
    let child = space.fork().unwrap();
    let (hand_over, storing) = mpsc::channel();
    let storer = space.clone();
    let _there = failpoint::on("Walk", move || {
        let kept_out = storer.0.paths.try_lock().is_none();
        let storing = thread::spawn(move || storer.accessor().unwrap().store(at, 8u64).unwrap());
        while !kept_out && !storing.is_finished() {
            thread::yield_now();
        }
        hand_over.send(storing).unwrap();
    });
    let writer = space.0.gate.write();
    let pinned = pin_pages(&space.0, &(at.0..at.0 + PAGE));
    assert!(pinned.is_err(), "a page that the fork shares");
    drop(writer);
    storing.recv().unwrap().join().unwrap();
    assert_eq!(child.accessor().unwrap().load(at), Ok(1u64));
    drop((space, child));
    assert_nothing_left(&pool);
}
