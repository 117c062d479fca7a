//! Tests of several single frames used together: filled together, given back together.

use super::*;
use crate::PAGE_SIZE;

#[test]
fn frames_that_were_filled_past_the_caches_are_not_taken_for_clear() {
    let frames = arena(WITH_MAGAZINES);
    let take = || frames.alloc(0, Source::Ordinary).unwrap();
    let mut some: Vec<_> = (0..3).map(|_| take()).collect();
    assert!(
        some.iter().all(|frame| frame.is_clear()),
        "never used before"
    );
    let pages = [[7; PAGE_SIZE], [8; PAGE_SIZE]];
    if !OwnedFrame::stream_in(some.iter_mut(), &pages) {
        return; // this processor has no such stores
    }
    let [first, second, third] = &mut some[..] else {
        panic!("three were taken");
    };
    assert!(!first.is_clear() && first.bytes() == pages[0]);
    assert!(second.bytes() == pages[1]);
    assert!(third.is_clear() && third.bytes() == [0; PAGE_SIZE]);
    first.zero();
    assert!(first.bytes() == [0; PAGE_SIZE]);
    // One of the frames given back is filled.
    drop(some);
    for mut one in (0..3).map(|_| take()) {
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
