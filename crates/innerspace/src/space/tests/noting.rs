//! The log of stores when there is no memory for it.

use super::*;

const LEAF: u64 = 512 * PAGE;

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

/// The unmapped page cuts a noted range in two, and there is no memory for another note: then the
/// part after the page is not noted any more.
#[test]
fn a_range_that_cannot_be_cut_in_two_is_forgotten_from_there_on() {
    let pool = pool(512);
    let space = space(&pool);
    let (at, leaves) = (VirtAddr(1 << 30), 31);
    let len = leaves * LEAF;
    space.map(Map::anonymous(len).at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    space.take_dirty(at, len).unwrap();
    // These notes and the note of the range itself fill a page.
    (0..leaves).for_each(|leaf| a.store(at + leaf * LEAF + PAGE, 1u8).unwrap());
    space.validate();
    let all = all_of(&pool);
    space.unmap(at + 9 * LEAF, PAGE).unwrap();
    space.validate();
    drop(all);
    let named = space.take_dirty(at, len).unwrap();
    let before = (0..9).map(|leaf| at + leaf * LEAF + PAGE);
    let before = before.map(|page| page..page + PAGE);
    let behind = at + 9 * LEAF + PAGE..at + len;
    assert!(
        named.iter().cloned().eq(before.chain([behind])),
        "{named:?}"
    );
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}
