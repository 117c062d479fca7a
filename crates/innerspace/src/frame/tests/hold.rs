//! Tests of the hold word alone: the table of its transitions, and the limits of its fields.

use super::super::hold::{Hold, Viewed};
use super::*;

const MAX: u32 = HoldState::MAX;

fn uncache(hold: &Hold) -> Dropped {
    hold.leave_file(Viewed::Allowed).unwrap().after_drop()
}

fn word(state: HoldState) -> Hold {
    Hold::new(state)
}

#[test]
fn a_free_frame_gives_nothing() {
    let hold = word(HoldState::NONE);
    assert!(!hold.try_get() && !hold.try_get_cached() && !hold.try_view() && !hold.freeze(1));
    assert_eq!(hold.load(), HoldState::NONE);
}

#[test]
fn each_count_has_its_own_field() {
    let hold = word(HoldState::cached(2));
    assert!(hold.try_get() && hold.try_view() && hold.try_map());
    assert_eq!(hold.try_clone_view(), Some(PutView::Kept));
    let now = hold.load();
    assert_eq!((now.views(), now.refs(), now.mapped()), (2, 3, 1));
    assert!(now.is_cached() && !now.has_writer() && !now.is_wmapped());
    assert_eq!(hold.put(), Dropped::Held);
    assert_eq!(hold.unmap(), Dropped::Held);
    assert_eq!(hold.put_view(), PutView::Kept);
    let now = hold.load();
    assert_eq!((now.views(), now.refs(), now.mapped()), (1, 2, 0));
    assert_eq!(format!("{now:?}"), "views 1 refs 2 mapped 0 CACHED COLD");
}

#[test]
fn an_anonymous_frame_has_references_and_no_views() {
    let hold = word(HoldState::refs_only(1));
    assert!(hold.try_get() && !hold.try_get_cached() && !hold.try_view() && !hold.freeze(2));
    assert_eq!((hold.put(), hold.put()), (Dropped::Held, Dropped::Last));
}

#[test]
fn a_writer_and_views_exclude_each_other() {
    let hold = word(HoldState::cached(1));
    assert!(hold.try_view());
    assert!(!hold.try_begin_write() && !hold.try_set_wmapped());
    assert_eq!(hold.put_view(), PutView::Kept);
    assert!(hold.try_begin_write());
    assert!(!hold.try_view() && !hold.try_set_wmapped());
    hold.end_write();
    assert!(hold.try_set_wmapped() && hold.try_set_wmapped());
    assert!(!hold.try_view() && hold.try_begin_write());
    hold.end_write();
    assert!(hold.load().is_wmapped());
    hold.clear_wmapped();
    assert!(hold.try_view());
}

#[test]
fn freeze_wants_exactly_the_references_it_was_told_of() {
    let hold = word(HoldState::cached(2));
    assert!(!hold.freeze(1) && !hold.freeze(3));
    assert!(hold.try_view() && !hold.freeze(2));
    assert_eq!(hold.put_view(), PutView::Kept);
    assert!(hold.try_map() && !hold.freeze(2));
    assert_eq!(hold.unmap(), Dropped::Held);
    assert!(
        hold.try_set_wmapped(),
        "left over by a mapping that is gone"
    );
    assert!(hold.freeze(2));
    assert_eq!(hold.load(), HoldState::NONE);
}

#[test]
fn a_block_taken_out_of_its_file_lives_for_its_views() {
    let hold = word(HoldState::cached(2));
    assert!(hold.try_view());
    assert_eq!(uncache(&hold), Dropped::Held);
    assert!(
        !hold.try_view() && !hold.try_get_cached(),
        "it is in no file"
    );
    assert_eq!(hold.put(), Dropped::Held);
    assert!(hold.load().is_viewed_only());
    assert_eq!(hold.try_clone_view(), Some(PutView::Detached));
    assert_eq!(
        (hold.put_view(), hold.put_view()),
        (PutView::Detached, PutView::Detached)
    );
    assert_eq!(hold.put(), Dropped::Last, "the views' reference");
}

#[test]
fn a_hit_takes_views_of_hot_blocks_alone() {
    let hold = word(HoldState::cached(1));
    assert!(!hold.try_view_hot() && hold.try_view());
    hold.warm();
    assert!(hold.try_view_hot() && hold.load().views() == 2);
    hold.cool();
    assert!(!hold.try_view_hot() && hold.load().is_cold());
    hold.warm();
    assert_eq!(
        (hold.put_view(), hold.put_view()),
        (PutView::Kept, PutView::Kept)
    );
    assert!(hold.try_begin_write() && !hold.try_view_hot());
    hold.end_write();
    assert!(hold.try_set_wmapped() && !hold.try_view_hot());
    assert!(hold.freeze(1), "hot or not");
    hold.warm();
    hold.cool();
    assert_eq!(
        hold.load(),
        HoldState::NONE,
        "a frame of no file is neither"
    );
}

#[test]
fn uncache_ends_a_block_that_nobody_else_holds() {
    let hold = word(HoldState::cached(1));
    assert!(hold.try_set_wmapped());
    assert_eq!(uncache(&hold), Dropped::Last);
}

#[test]
fn a_full_count_refuses_and_does_not_touch_its_neighbour() {
    let hold = word(HoldState::cached(MAX));
    assert!(!hold.try_get() && !hold.try_get_cached());
    assert_eq!(hold.load(), HoldState::cached(MAX));

    if cfg!(miri) {
        return;
    }
    let hold = word(HoldState::cached(1));
    for _ in 0..HoldState::MAX_VIEWS {
        assert!(hold.try_view());
    }
    for _ in 0..MAX {
        assert!(hold.try_map());
    }
    hold.warm();
    assert!(!hold.try_view() && !hold.try_view_hot());
    assert!(hold.try_clone_view().is_none() && !hold.try_map());
    let now = hold.load();
    let counts = (now.views(), now.refs(), now.mapped());
    assert_eq!(counts, (HoldState::MAX_VIEWS, 1, MAX));
    assert!(now.is_cached() && !now.has_writer() && !now.is_wmapped());
    assert_eq!(hold.put_view(), PutView::Kept);
    assert!(hold.try_clone_view().is_some() && !hold.try_view());
}

#[test]
#[should_panic = "a hold that nobody had"]
fn a_put_too_many_is_noticed() {
    let hold = word(HoldState::cached(1));
    assert!(hold.try_view());
    assert_eq!((uncache(&hold), hold.put()), (Dropped::Held, Dropped::Held));
    let _ = hold.put();
}

#[test]
#[should_panic = "I7"]
fn two_writers_are_noticed() {
    let hold = word(HoldState::cached(1));
    assert!(hold.try_begin_write());
    hold.try_begin_write();
}
