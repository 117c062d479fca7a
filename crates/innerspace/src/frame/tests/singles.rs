//! Tests of several single frames taken together: filled before they are owned, given back
//! together.

use super::*;
use crate::PAGE_SIZE;

#[test]
fn frames_that_were_filled_before_they_were_owned_are_not_taken_for_clear() {
    let frames = arena(WITH_MAGAZINES);
    let mut singles = frames.alloc_singles(4);
    assert_eq!(singles.len(), 4);
    let first = singles.next().unwrap();
    assert!(first.is_clear(), "never used before");
    if !singles.stream_in(&[[7; PAGE_SIZE], [8; PAGE_SIZE]]) {
        return; // this processor has no such stores
    }
    let mut owned = singles.next().unwrap();
    assert!(!owned.is_clear() && owned.bytes() == [7; PAGE_SIZE]);
    assert!(first.bytes() == [0; PAGE_SIZE]);
    owned.zero();
    assert!(owned.bytes() == [0; PAGE_SIZE]);
    // One of the frames given back is filled, and one is not.
    drop((first, owned, singles));
    let mut again = frames.alloc_singles(4);
    while let Some(mut one) = again.next() {
        one.zero();
        assert!(one.bytes() == [0; PAGE_SIZE], "{one:?}");
    }
    frames.validate();
}

#[test]
fn frames_that_go_together_come_back_in_their_order() {
    let frames = arena(WITH_MAGAZINES);
    let few = if cfg!(miri) { 2 } else { 20 };
    let take = || frames.alloc(0, Source::Ordinary).unwrap().into_id();
    let mut ids: Vec<_> = (0..few).map(|_| take()).collect();
    for id in &ids {
        frames.end_single(*id);
    }
    frames.give_ended(&mut ids);
    let again: Vec<_> = (0..few).map(|_| take()).collect();
    assert_eq!(again, ids);
    for id in again {
        frames.free(id);
    }
    frames.validate();
}
