//! The log of stores: its memory, and what it does when there is none.

use super::*;

#[test]
fn what_cannot_be_noted_is_not_watched_and_named_again() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    space.accessor().unwrap().store(at, 1u8).unwrap();
    let whole = at..at + 4 * PAGE;
    let all = all_of(&pool);
    for _ in 0..2 {
        let named = space.take_dirty(at, 4 * PAGE).unwrap();
        assert_eq!(named, std::slice::from_ref(&whole));
        space.validate();
    }
    drop(all);
    assert_eq!(space.take_dirty(at, 4 * PAGE).unwrap(), [whole]);
    assert_eq!(space.take_dirty(at, 4 * PAGE).unwrap(), []);
    space.validate();
}

/// The unmapped page cuts a clean range in two, and there is no memory for another range: then the
/// part after the page is not clean any more.
#[test]
fn a_range_that_cannot_be_cut_in_two_is_forgotten_from_there_on() {
    let pool = pool(512);
    let space = space(&pool);
    let (at, stores) = (VirtAddr(1 << 30), 127);
    let len = (stores + 1) * 4 * PAGE;
    space.map(Map::anonymous(len).at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    space.take_dirty(at, len).unwrap();
    // The ranges between the stored pages fill a page.
    let stored = |index: u64| at + (index * 4 + 3) * PAGE;
    (0..stores).for_each(|index| a.store(stored(index), 1u8).unwrap());
    space.validate();
    let all = all_of(&pool);
    space.unmap(stored(9) + 2 * PAGE, PAGE).unwrap();
    space.validate();
    drop(all);
    let named = space.take_dirty(at, len).unwrap();
    let page = |index| stored(index)..stored(index) + PAGE;
    let behind = stored(9) + 3 * PAGE..stored(10) + PAGE;
    let pages = (0..10).map(page).chain([behind]);
    let pages = pages.chain((11..stores).map(page));
    assert!(named.iter().cloned().eq(pages), "{named:?}");
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}

/// A display that takes what was stored to a part at a time costs no more than one that takes all
/// of it at once.
#[test]
fn a_range_that_is_taken_in_parts_is_noted_as_one() {
    let pool = pool(512);
    let space = space(&pool);
    let at = space.map(Map::anonymous(256 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let mut charges = Vec::new();
    for part in [256, 1, 4] {
        (0..256).for_each(|page| a.store(at + page * PAGE, 1u8).unwrap());
        for start in (0..256).step_by(part as usize) {
            let part = at + start * PAGE..at + (start + part) * PAGE;
            let named = space.take_dirty(part.start, part.end - part.start).unwrap();
            assert_eq!(named, [part]);
        }
        space.validate();
        assert_eq!(space.take_dirty(at, 256 * PAGE).unwrap(), []);
        charges.push(pool.groups.usage(GroupId::ROOT));
    }
    assert_eq!(charges[1..], [charges[0]; 2]);
    drop((a, space));
    assert_nothing_left(&pool);
}

/// The pages that are dropped cut the clean range. The group is over its `high` soon, but has no
/// `max`.
// spec: M9
#[test]
fn a_log_ends_little_above_the_high_of_its_group() {
    let pool = pool(512);
    let group = pool.root_group().create_child_unlimited("tenant").unwrap();
    let space = Space::new(&Cache::new(&pool), &group, AddressWidth::Bits48).unwrap();
    let (at, drops) = (VirtAddr(1 << 30), 40 * 128);
    let len = (drops + 1) * 2 * PAGE;
    space.map(Map::anonymous(len).at(at)).unwrap();
    space.take_dirty(at, len).unwrap();
    let high = group.usage() + 16 * PAGE;
    group.set_high(high).unwrap();
    for index in 0..drops {
        space.discard(at + (2 * index + 1) * PAGE, PAGE).unwrap();
    }
    let (most, usage) = (high + high / 8 + PAGE, group.usage());
    assert!(
        high < usage && usage <= most,
        "{usage} bytes, high is {high}"
    );
    assert!(pool.counters.totals().would_block > 0);
    // The part from the first cut on that could not be noted is named.
    let named = space.take_dirty(at, len).unwrap();
    assert_eq!(named[0], at + PAGE..at + 2 * PAGE);
    assert_eq!(named.last().unwrap().end, at + len);
    space.validate();
    drop(space);
    assert_nothing_left(&pool);
}
