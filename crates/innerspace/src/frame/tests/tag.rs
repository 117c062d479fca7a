//! Tests of tags, and of the table of the places where they were last found.

use std::collections::HashSet;

use super::*;
use crate::frame::lookaside::Lookaside;

#[test]
fn blocks_of_files_have_tags_of_their_own() {
    let mut seen = HashSet::new();
    for number in [1, 2, 3, 7, 1000, (1 << 23) - 1] {
        let tags = Tags::of_file(number);
        for block in [0, 1, 511, 1 << 20, (1 << 39) - 1] {
            let tag = tags.given(block);
            assert_eq!(tags.sought(block), tag);
            assert!(tag != Tag::NONE && seen.insert(tag.0), "{number} {block}");
        }
    }
}

#[test]
fn what_has_no_tags_is_sought_by_none() {
    let mut tags = vec![Tags::none(), Tags::of_file(0), Tags::of_file(1 << 23)];
    tags.push(Tags::of_file(u32::MAX));
    let grown = Tags::of_file(1);
    assert!(grown.sought(5).is_somewhere());
    grown.end();
    tags.push(grown);
    for tags in tags {
        for block in [0, 5, (1 << 39) - 1, 1 << 39, 1 << 51] {
            assert!(!tags.sought(block).is_somewhere());
            assert_eq!(tags.given(block), Tag::NONE);
        }
    }
}

#[test]
fn a_block_behind_the_last_that_has_a_tag_gets_none() {
    let tags = Tags::of_file(1);
    assert_eq!(
        tags.given(TAGGED_BYTES / crate::PAGE_SIZE as u64),
        Tag::NONE
    );
}

#[test]
fn a_guess_is_what_was_noted_last_and_always_a_frame() {
    let table = Lookaside::new(5, 5).unwrap();
    let tags = Tags::of_file(3);
    assert_eq!(table.guess(tags.given(0)), FrameId::ZERO);
    table.note(tags.given(0), FrameId(4));
    table.note(tags.given(1), FrameId(2));
    assert_eq!(table.guess(tags.given(0)), FrameId(4));
    assert_eq!(table.guess(tags.given(1)), FrameId(2));
    // There are eight words for five frames, so the ninth block shares the first one's word.
    table.note(tags.given(8), FrameId(1));
    assert_eq!(table.guess(tags.given(0)), FrameId(1));
    assert_eq!(table.size(), 32 + 4);
}

/// Returns consecutive tags, from the first of a run on.
fn tags_of_a_run() -> Vec<Tag> {
    let tags = Tags::of_file(1);
    let first = (0..).find(|block| tags.given(*block).0.is_multiple_of(16));
    let first = first.expect("one in sixteen");
    (first..first + 32).map(|block| tags.given(block)).collect()
}

#[test]
fn blocks_of_a_run_are_guessed_by_one_of_them() {
    let table = Lookaside::new(64, 64).unwrap();
    let tags = tags_of_a_run();
    table.note(tags[5], FrameId(35));
    for (tag, frame) in tags[..16].iter().zip((30..).map(FrameId)) {
        assert_eq!(table.guess_in_run(*tag), frame);
        if frame != FrameId(35) {
            assert_eq!(table.guess(*tag), FrameId::ZERO, "not by its word");
        }
    }
    assert_eq!(table.guess_in_run(tags[16]), FrameId::ZERO, "the next run");
    // A note that agrees with the guess changes nothing.
    table.note(tags[6], FrameId(36));
    assert_eq!(table.guess_in_run(tags[15]), FrameId(45));
}

#[test]
fn blocks_that_lie_here_and_there_are_guessed_by_their_words_until_the_first_is_noted_again() {
    let table = Lookaside::new(64, 64).unwrap();
    let tags = tags_of_a_run();
    table.note(tags[0], FrameId(30));
    table.note(tags[1], FrameId(7));
    for (block, frame) in [(0, FrameId(30)), (1, FrameId(7)), (2, FrameId::ZERO)] {
        assert_eq!(table.guess_in_run(tags[block]), frame);
    }
    table.note(tags[2], FrameId(8));
    assert_eq!(table.guess_in_run(tags[3]), FrameId::ZERO);
    table.note(tags[0], FrameId(40));
    assert_eq!(table.guess_in_run(tags[2]), FrameId(42));
    assert_eq!(table.guess(tags[2]), FrameId(8));
}

#[test]
fn a_run_that_leads_out_of_the_arena_guesses_nothing() {
    let table = Lookaside::new(64, 64).unwrap();
    let tags = tags_of_a_run();
    table.note(tags[1], FrameId(2));
    table.note(tags[17], FrameId(60));
    assert_eq!(table.guess_in_run(tags[0]), FrameId(1));
    assert_eq!(table.guess_in_run(tags[20]), FrameId(63));
    assert_eq!(table.guess_in_run(tags[21]), FrameId::ZERO);
    let table = Lookaside::new(64, 64).unwrap();
    table.note(tags[3], FrameId(0));
    assert_eq!(table.guess_in_run(tags[2]), FrameId::ZERO, "below it");
}

#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "is not in the arena"))]
fn what_is_no_frame_is_not_noted() {
    let table = Lookaside::new(5, 5).unwrap();
    let tag = Tags::of_file(3).given(0);
    table.note(tag, FrameId(5));
    assert_eq!(table.guess(tag), FrameId::ZERO);
}

// I10 for one thread: a frame that is not the block, or no longer, is not held for it.
#[test]
fn only_a_cached_frame_with_the_tag_is_the_block() {
    let frames = arena(4);
    let tags = Tags::of_file(1);
    let (here, other) = (tags.given(0), tags.given(1));
    let mut owned = frames.alloc(0, Source::Ordinary).unwrap();
    owned.set_kind(Kind::Cached);
    let frame = owned.publish(HoldState::cached(1));
    let meta = frames.meta(frame);
    // The block is not in its index yet.
    assert_eq!(meta.try_hold_of(here, Hold::try_view), HeldOf::Refused);
    meta.set_tag(here);
    assert_eq!(meta.try_hold_of(here, Hold::try_view), HeldOf::Sought);
    assert_eq!(meta.try_hold_of(here, Hold::try_get_cached), HeldOf::Sought);
    assert_eq!(
        meta.try_hold_of(other, Hold::try_get_cached),
        HeldOf::Refused
    );
    assert_eq!((meta.hold.load().views(), meta.hold.load().refs()), (1, 2));
    assert_eq!(meta.hold.put(), Dropped::Held);
    assert_eq!(meta.hold.put_view(), PutView::Kept);
    assert!(meta.hold.freeze(1));
    assert_eq!(meta.try_hold_of(here, Hold::try_view), HeldOf::Refused);
    assert_eq!(
        meta.try_hold_of(here, Hold::try_get_cached),
        HeldOf::Refused
    );
    meta.set_tag(Tag::NONE);
    frames.free(frame);
    frames.validate();
}
