//! The accessed state and the add-batches.

use super::mock::*;
use crate::frame::FlagSet;
use crate::group::GroupId;
use crate::reclaim::lists::{BATCH_LEN, Evictable, ListKind, LruState, thread_batch};
use crate::reclaim::*;
use crate::units::PageCount;

const PLAIN: FlagSet = FlagSet::EMPTY;

// spec: P1
#[test]
fn the_table_of_accessed_states() {
    let pool = pool_of(64, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let (a, r) = (FlagSet::ACTIVE, FlagSet::REFERENCED);
    let rows = [
        (PLAIN, r, ListKind::Inactive),
        (r, a, ListKind::Active),
        (a, a | r, ListKind::Active),
        (a | r, a | r, ListKind::Active),
    ];
    for (index, (before, after, list)) in rows.into_iter().enumerate() {
        let index = index as u64;
        let id = file.bring(index, before, AllocMode::Wait).unwrap();
        pool.lru.drain_batches(&pool.frames);
        pool.mark_accessed(id);
        let flags = pool.frames.meta(id).flags.load();
        assert_eq!(flags, after | FlagSet::UPTODATE, "row {index}");
        assert_eq!(file.place(index), LruState::List(list), "row {index}");
        pool.validate();
    }
    // On the unevictable list, a use sets only `referenced`.
    for before in [PLAIN, r, a, a | r] {
        let id = file.bring(10, before, AllocMode::Wait).unwrap();
        pool.lru_set(id, Evictable::No);
        pool.mark_accessed(id);
        pool.mark_accessed(id);
        let flags = pool.frames.meta(id).flags.load();
        assert_eq!(flags, before | r | FlagSet::UPTODATE);
        assert_eq!(file.place(10), LruState::List(ListKind::Unevictable));
        pool.validate();
        file.truncate(10);
    }
    file.truncate_all();
    pool.validate();
}

// spec: P17
#[test]
fn activation_in_this_threads_batch_survives_the_drain() {
    let pool = pool_of(64, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let id = file.bring(0, PLAIN, AllocMode::Wait).unwrap();
    assert_eq!(file.place(0), LruState::Batch(thread_batch()));
    pool.mark_accessed(id);
    pool.mark_accessed(id);
    assert!(file.is(0, FlagSet::ACTIVE) && !file.is(0, FlagSet::REFERENCED));
    assert_eq!(
        file.place(0),
        LruState::Batch(thread_batch()),
        "marked where it is"
    );
    pool.validate();
    pool.lru.drain_batches(&pool.frames);
    assert_eq!(file.place(0), LruState::List(ListKind::Active));
    assert_eq!(pool.list_sizes(GroupId::ROOT).active, PageCount(1));
    assert_eq!(pool.totals().pgactivate, 1);
    pool.validate();
}

// spec: P12
#[test]
fn a_page_in_another_threads_batch_is_not_activated_behind_its_back() {
    let pool = pool_of(64, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let id = file.bring(0, PLAIN, AllocMode::Wait).unwrap();
    let LruState::Batch(theirs) = file.place(0) else {
        panic!("a new block waits in a batch");
    };
    // This is what a thread with another batch would do.
    pool.mark_accessed(id);
    pool.lru
        .activate(&pool.frames, &pool.counters, id, theirs ^ 1);
    pool.lru
        .activate(&pool.frames, &pool.counters, id, theirs ^ 1);
    assert!(!file.is(0, FlagSet::ACTIVE), "the batch's owner decides");
    assert_eq!(file.place(0), LruState::Batch(theirs));
    pool.validate();
    pool.lru.drain_batches(&pool.frames);
    let sizes = pool.list_sizes(GroupId::ROOT);
    assert_eq!((sizes.inactive, sizes.active), (PageCount(1), PageCount(0)));
    pool.validate();
    // The earlier uses were remembered: one more makes the block active.
    pool.lru
        .activate(&pool.frames, &pool.counters, id, theirs ^ 1);
    assert_eq!(file.place(0), LruState::List(ListKind::Active));
    pool.validate();
}

#[test]
fn a_batch_is_drained_when_full_and_gives_up_single_frames() {
    let pool = pool_of(64, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    for index in 0..BATCH_LEN as u64 - 1 {
        file.bring(index, PLAIN, AllocMode::Wait).unwrap();
    }
    assert_eq!(pool.list_sizes(GroupId::ROOT).inactive, PageCount(0));
    file.truncate(3);
    file.truncate(0);
    pool.validate();
    assert_eq!(pool.list_sizes(GroupId::ROOT).inactive, PageCount(0));
    // The freed frames may be allocated again, which changes nothing.
    file.bring(100, PLAIN, AllocMode::Wait).unwrap();
    let left = PageCount(BATCH_LEN as u64 - 2);
    assert_eq!(pool.list_sizes(GroupId::ROOT).inactive, left);
    pool.validate();
}

#[test]
fn a_frame_that_comes_to_a_batch_again_is_listed_once() {
    let pool = pool_of(64, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let other = pool
        .groups
        .create(GroupId::ROOT, "other", None)
        .expect("a group more");
    let theirs = MockFile::new(&pool, other, 0);
    let listed = |group| pool.list_sizes(group).inactive;
    for _ in 0..4 {
        let id = file.bring(0, PLAIN, AllocMode::Wait).unwrap();
        file.truncate(0);
        // The last frame freed is the first to be allocated again.
        assert_eq!(theirs.bring(0, PLAIN, AllocMode::Wait).unwrap(), id);
        theirs.truncate(0);
    }
    file.bring(1, PLAIN, AllocMode::Wait).unwrap();
    theirs.bring(1, PLAIN, AllocMode::Wait).unwrap();
    pool.validate();
    for _ in 0..2 {
        pool.lru.drain_batches(&pool.frames);
        assert_eq!(listed(GroupId::ROOT), PageCount(1));
        assert_eq!(listed(other), PageCount(1));
        pool.validate();
    }
}

#[test]
fn a_waiting_page_that_becomes_unevictable_goes_to_its_list_alone() {
    let pool = pool_of(64, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let id = file.bring(0, PLAIN, AllocMode::Wait).unwrap();
    file.bring(1, PLAIN, AllocMode::Wait).unwrap();
    pool.lru_set(id, Evictable::No);
    assert_eq!(file.place(0), LruState::List(ListKind::Unevictable));
    assert_eq!(
        file.place(1),
        LruState::Batch(thread_batch()),
        "left as it was"
    );
    pool.lru.drain_batches(&pool.frames);
    assert_eq!(file.place(0), LruState::List(ListKind::Unevictable));
    pool.validate();
}

#[test]
fn a_run_is_listed_behind_what_waits_in_the_batch() {
    let pool = pool_of(4_096, 0);
    let page = || {
        let mut frame = pool.alloc(GroupId::ROOT, 0, AllocMode::Wait).unwrap();
        frame.set_kind(crate::frame::Kind::Anonymous);
        frame.publish(crate::frame::HoldState::refs_only(1))
    };
    let ids: Vec<_> = (0..20).map(|_| page()).collect();
    ids[..3].iter().for_each(|id| pool.lru_add(*id));
    pool.lru_add_run(&ids[3..20]);
    pool.validate();
    let mut taken = Vec::new();
    pool.lru.isolate(
        &pool.frames,
        GroupId::ROOT,
        ListKind::Inactive,
        20,
        &mut taken,
    );
    assert_eq!(taken, ids, "the oldest first");
    pool.lru.put_back(&pool.frames, &taken, Evictable::Yes);
    ids.into_iter().for_each(|id| pool.put(id));
    assert_eq!(pool.totals().usage, 0);
    pool.validate();
}

#[test]
fn a_frame_marked_while_isolated_goes_back_active() {
    let pool = pool_of(64, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let id = file.bring(0, FlagSet::REFERENCED, AllocMode::Wait).unwrap();
    pool.lru.drain_batches(&pool.frames);
    let mut taken = Vec::new();
    let pages = pool.lru.isolate(
        &pool.frames,
        GroupId::ROOT,
        ListKind::Inactive,
        8,
        &mut taken,
    );
    assert_eq!((pages, &taken[..]), (1, &[id][..]));
    pool.mark_accessed(id);
    assert_eq!(file.place(0), LruState::Isolated);
    pool.lru.put_back(&pool.frames, &taken, Evictable::Yes);
    assert_eq!(file.place(0), LruState::List(ListKind::Active));
    pool.validate();
}

#[test]
fn a_frame_freed_while_isolated_is_passed_over() {
    // The pool is large enough for magazines.
    let pool = pool_of(8_000, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let other_group = pool.groups.create(GroupId::ROOT, "g", None).unwrap();
    let other = MockFile::new(&pool, other_group, 0);
    let id = file.bring(0, PLAIN, AllocMode::Wait).unwrap();
    pool.lru.drain_batches(&pool.frames);
    let mut taken = Vec::new();
    pool.lru.isolate(
        &pool.frames,
        GroupId::ROOT,
        ListKind::Inactive,
        8,
        &mut taken,
    );
    file.truncate(0);
    pool.validate();
    // The frame has another owner now, in another group, and is isolated once more.
    assert_eq!(
        other.bring(0, PLAIN, AllocMode::Wait).unwrap(),
        id,
        "the magazine gives the last frame first"
    );
    assert!(pool.frames.magazines_in_use() > 0);
    pool.lru.put_back(&pool.frames, &taken, Evictable::Yes);
    pool.validate();
    assert!(matches!(other.place(0), LruState::Batch(_)));
    pool.lru.drain_batches(&pool.frames);
    let mut again = Vec::new();
    pool.lru
        .isolate(&pool.frames, other_group, ListKind::Inactive, 8, &mut again);
    pool.lru.put_back(&pool.frames, &taken, Evictable::Yes);
    pool.lru.put_back(&pool.frames, &again, Evictable::Yes);
    assert_eq!(pool.list_sizes(other_group).inactive, PageCount(1));
    pool.validate();
}

/// A frame is freed, and becomes an active frame of another file, just before a reclaimer puts it
/// back as inactive.
#[test]
fn a_frame_reused_while_it_is_judged_stays_as_active_as_it_is() {
    let pool = pool_of(8_000, 0);
    let group = pool.groups.create(GroupId::ROOT, "g", None).unwrap();
    let file = MockFile::new(&pool, group, 0);
    let other = MockFile::new(&pool, GroupId::ROOT, 0);
    let id = file.bring(0, PLAIN, AllocMode::Wait).unwrap();
    file.touch_mapped(0).unwrap();
    pool.lru.drain_batches(&pool.frames);
    (0..2).for_each(|_| pool.mark_accessed(id));
    assert_eq!(file.place(0), LruState::List(ListKind::Active));
    let (first, next) = (file.clone(), other.clone());
    *file.when_aged.lock() = Some(Box::new(move || {
        first.truncate(0);
        let reused = next.bring(0, FlagSet::ACTIVE, AllocMode::Wait).unwrap();
        assert_eq!(reused, id, "the magazine gives the last frame first");
        next.pool.lru.drain_batches(&next.pool.frames);
    }));
    pool.shrink(group, PageCount(1), Io::Of(GroupId::ROOT));
    assert!(file.when_aged.lock().is_none(), "the frame was judged");
    assert_eq!(other.place(0), LruState::List(ListKind::Active));
    pool.validate();
}
