//! Requests at the limit: what they may do, and their errors.

use super::mock::*;
use crate::frame::{FlagSet, HoldState, Kind};
use crate::group::{GroupError, GroupId, LimitReason, SetAside};
use crate::reclaim::*;
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, thread};
use crate::units::{FrameId, PageCount};

fn tenant(pool: &Arc<Pool>, max: u64) -> GroupId {
    let name = format!("tenant-{}", pool.groups.all_stats().len());
    pool.groups
        .create(GroupId::ROOT, &name, Some(PageCount(max)))
        .unwrap()
}

// spec: M12
#[test]
fn nowait_would_block_and_counts_no_failure() {
    let pool = pool_of(100, 0);
    let group = tenant(&pool, 10);
    let file = MockFile::new(&pool, group, 0);
    (0..10).for_each(|index| file.read(index).unwrap());
    let error = pool.alloc(group, 0, AllocMode::NoWait).unwrap_err();
    assert!(error.would_block());
    assert_eq!(
        error.to_string(),
        "group root/tenant-1 is full: 40.0 of 40.0 KiB; the request may not wait"
    );
    assert_eq!(file.resident(0..10), 10, "nothing was evicted");
    let totals = pool.totals();
    assert_eq!(
        (
            totals.would_block,
            totals.limit_error,
            totals.direct_reclaim
        ),
        (1, 0, 0)
    );
    let nothing = pool
        .charge(group, PageCount(1), AllocMode::NoWait)
        .unwrap_err();
    assert!(nothing.would_block());
    pool.validate();
}

// spec: M1
#[test]
fn a_refused_request_moves_no_counter_and_takes_no_frame() {
    let pool = pool_of(100, 0);
    let outer = tenant(&pool, 20);
    let inner = pool.groups.create(outer, "inner", None).unwrap();
    let held = pool.alloc(inner, 0, AllocMode::Wait).unwrap();
    let rest: Vec<_> = (0..19)
        .map(|_| pool.alloc(outer, 0, AllocMode::Wait).unwrap())
        .collect();
    let before = (
        pool.frames.free_frames(),
        [GroupId::ROOT, outer, inner].map(|id| (pool.groups.usage(id), pool.groups.peak(id))),
    );
    for mode in [AllocMode::NoWait, AllocMode::NoIo, AllocMode::Wait] {
        let error = pool.alloc(inner, 0, mode).unwrap_err();
        assert_eq!(
            error.details().id,
            outer,
            "the group that refused, not the one asked"
        );
    }
    let after = (
        pool.frames.free_frames(),
        [GroupId::ROOT, outer, inner].map(|id| (pool.groups.usage(id), pool.groups.peak(id))),
    );
    assert_eq!(before, after);
    // No frame was ever marked up to date: such a mark would be seen, since a free frame keeps its
    // flags until it is allocated again.
    for number in 1..=100 {
        let flags = pool.frames.meta(FrameId(number)).flags.load();
        assert_eq!(flags, FlagSet::EMPTY, "frame {number}");
    }
    drop((held, rest));
    assert_eq!(pool.frames.free_frames(), 100);
    assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(0));
    pool.validate();
}

#[test]
fn everything_viewed_ends_with_an_error_that_says_so_and_is_usable_after() {
    let pool = pool_of(100, 0);
    let group = tenant(&pool, 64);
    let file = MockFile::new(&pool, group, 0);
    (0..64).for_each(|index| file.read(index).unwrap());
    let frames: Vec<FrameId> = (0..64).map(|index| file.peek(index).unwrap()).collect();
    frames
        .iter()
        .for_each(|id| assert!(pool.frames.meta(*id).hold.try_view()));
    let error = file.read(100).unwrap_err();
    assert_eq!(
        error.to_string(),
        "group root/tenant-1 is full: 256.0 of 256.0 KiB, of which 256.0 pinned by 64 views; nothing can be \
         evicted. Drop views or raise the limit"
    );
    assert_eq!(pool.totals().limit_error, 1);
    // Each page was examined a bounded number of times.
    assert!(
        pool.totals().pgscan <= 64 * 8,
        "{} pages looked at",
        pool.totals().pgscan
    );
    for id in frames {
        let _held = pool.frames.meta(id).hold.put_view();
    }
    file.read(100).unwrap();
    pool.validate();
}

#[test]
fn a_request_waits_for_a_locked_block_to_be_unlocked() {
    let pool = pool_of(100, 0);
    let group = tenant(&pool, 10);
    let file = MockFile::new(&pool, group, 0);
    (0..10).for_each(|index| file.read(index).unwrap());
    let frames: Vec<FrameId> = (0..10).map(|index| file.peek(index).unwrap()).collect();
    frames
        .iter()
        .for_each(|id| assert!(pool.frames.lock_of(*id).try_lock()));
    let scans = pool.totals().pgscan;
    thread::scope(|scope| {
        let reader = scope.spawn(|| file.read(100));
        while pool.totals().pgscan == scans {
            thread::yield_now();
        }
        frames
            .iter()
            .for_each(|id| pool.frames.lock_of(*id).unlock());
        reader.join().unwrap().unwrap();
    });
    pool.validate();
}

#[test]
fn a_request_for_several_pages_waits_for_one_locked_block_after_the_other() {
    let pool = pool_of(100, 0);
    let group = tenant(&pool, 10);
    let file = MockFile::new(&pool, group, 0);
    (0..10).for_each(|index| file.read(index).unwrap());
    let frames: Vec<FrameId> = (0..10).map(|index| file.peek(index).unwrap()).collect();
    frames
        .iter()
        .for_each(|id| assert!(pool.frames.lock_of(*id).try_lock()));
    thread::scope(|scope| {
        let request = scope.spawn(|| pool.alloc(group, 3, AllocMode::Wait).map(drop));
        // Unlocks the block that the request waits for, whichever that is. The others stay locked.
        let mut locked = frames.clone();
        while !request.is_finished() {
            let is_wanted = |id: &FrameId| {
                let flags = pool.frames.meta(*id).flags.load();
                flags.contains(FlagSet::WAITERS)
            };
            if let Some(at) = locked.iter().position(is_wanted) {
                pool.frames.lock_of(locked.swap_remove(at)).unlock();
            }
            thread::yield_now();
        }
        request.join().unwrap().unwrap();
        locked
            .iter()
            .for_each(|id| pool.frames.lock_of(*id).unlock());
    });
    pool.validate();
}

/// The test acts as a store that refuses each write after a while, and as a flusher that tries
/// again and again.
#[test]
fn a_request_does_not_wait_again_and_again_for_writes_that_fail() {
    let pool = pool_of(100, 0);
    let group = tenant(&pool, 10);
    let file = MockFile::new(&pool, group, 0);
    file.failures.store(u64::MAX, Ordering::Relaxed);
    for index in 0..10 {
        let flags = FlagSet::DIRTY | FlagSet::ERROR;
        file.bring(index, flags, AllocMode::Wait).unwrap();
    }
    let id = file.peek(0).unwrap();
    pool.frames.lock_of(id).set_writeback();
    let mut waits = 0;
    thread::scope(|scope| {
        let request = scope.spawn(|| file.read(100));
        while !request.is_finished() {
            if file.is(0, FlagSet::WAITERS) {
                waits += 1;
                // The block is locked first, so that it cannot be evicted at any time.
                pool.frames.lock_of(id).lock();
                pool.frames.end_writeback(id);
                pool.frames.lock_of(id).set_writeback();
                pool.frames.lock_of(id).unlock();
            }
            thread::yield_now();
        }
        request.join().unwrap().unwrap_err();
    });
    assert!(waits <= 3, "{waits}");
    pool.frames.end_writeback(id);
    file.truncate_all();
    pool.validate();
}

#[test]
fn every_kind_of_holder_is_named() {
    let pool = pool_of(200, 0);
    let group = tenant(&pool, 100);
    let file = MockFile::new(&pool, group, 0);
    file.failures.store(u64::MAX, Ordering::Relaxed);
    for index in 0..60 {
        let flags = match index {
            0..5 => FlagSet::DIRTY | FlagSet::ERROR,
            5..30 => FlagSet::DIRTY,
            _ => FlagSet::EMPTY,
        };
        let id = file.bring(index, flags, AllocMode::Wait).unwrap();
        match index {
            30..40 => assert!(pool.frames.meta(id).hold.try_view()),
            40..60 => assert!(pool.frames.meta(id).hold.try_get()),
            _ => {}
        }
    }
    let of_kind = |kind| {
        let mut frame = pool.alloc(group, 0, AllocMode::Wait).unwrap();
        frame.set_kind(kind);
        frame.publish(HoldState::refs_only(1))
    };
    let tables: Vec<FrameId> = (0..15).map(|_| of_kind(Kind::Table)).collect();
    let anonymous: Vec<FrameId> = (0..25).map(|_| of_kind(Kind::Anonymous)).collect();
    pool.validate();
    let error = pool.alloc(group, 0, AllocMode::Wait).unwrap_err();
    let holders = error.details().holders;
    assert_eq!((holders.views, holders.viewed), (10, PageCount(10)));
    assert_eq!(
        (holders.failing, holders.dirty, holders.pinned),
        (PageCount(5), PageCount(25), PageCount(20))
    );
    assert_eq!(
        (holders.tables, holders.anonymous),
        (PageCount(15), PageCount(25))
    );
    assert_eq!(holders.counted(), PageCount(100));
    assert_eq!(
        error.to_string(),
        "group root/tenant-1 is full: 400.0 of 400.0 KiB, of which 40.0 pinned by 10 views, 20.0 dirty and \
         failing to be written, 100.0 dirty, 80.0 locked or in use, 60.0 page tables and index nodes, 100.0 anonymous; nothing can be evicted. \
         Sync or discard the dirty files, or raise the limit"
    );
    // The store works again: the dirty blocks can be evicted now.
    file.failures.store(0, Ordering::Relaxed);
    drop(pool.alloc(group, 0, AllocMode::Wait).unwrap());
    tables
        .into_iter()
        .chain(anonymous)
        .for_each(|id| pool.put(id));
    assert_eq!(pool.groups.stats(group).unwrap().tables, PageCount(0));
    pool.validate();
}

#[test]
fn dirty_pages_are_written_before_they_go_and_never_without_leave() {
    let pool = pool_of(100, 0);
    let group = tenant(&pool, 40);
    let file = MockFile::new(&pool, group, 0);
    for index in 0..40 {
        file.bring(index, FlagSet::DIRTY, AllocMode::Wait).unwrap();
    }
    let error = pool.alloc(group, 0, AllocMode::NoIo).unwrap_err();
    assert_eq!(error.details().holders.dirty, PageCount(40));
    assert_eq!(
        file.written.load(Ordering::Relaxed),
        0,
        "NoIo calls no store"
    );
    // Two writes fail, so those two blocks stay, dirty.
    file.failures.store(2, Ordering::Relaxed);
    file.bring(100, FlagSet::EMPTY, AllocMode::Wait).unwrap();
    let gone = 40 - file.resident(0..40) as u64;
    assert!(gone > 0);
    assert!(
        file.written.load(Ordering::Relaxed) >= gone,
        "nothing went without being written"
    );
    assert_eq!(file.failures.load(Ordering::Relaxed), 0);
    assert_eq!(
        pool.totals().dirty,
        40 - file.written.load(Ordering::Relaxed)
    );
    pool.validate();
}

// spec: N3
#[test]
fn a_store_call_evicts_what_is_clean_and_has_what_was_set_aside_and_no_more() {
    let pool = pool_of(64, 8);
    let (root, group) = (pool.root_group(), tenant(&pool, 16));
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    let page = |mode| pool.alloc(GroupId::ROOT, 0, mode);
    let aside = pool.charge(GroupId::ROOT, PageCount(3), AllocMode::Wait);
    let aside = Arc::new(SetAside::new(&root, aside.unwrap()));
    (0..53).for_each(|index| file.read(index).unwrap());
    let evictions = || file.evict_calls.load(Ordering::Relaxed);
    let scope = pool.store_scope(Some(aside.clone()));
    // Not for read-ahead.
    let refused = page(AllocMode::NoIo).unwrap_err();
    assert_eq!(refused.details().reason, LimitReason::WouldBlock);
    let held: Vec<_> = (0..53).map(|_| page(AllocMode::Wait).unwrap()).collect();
    assert!(evictions() > 0);
    // Nothing is left to evict.
    let before = evictions();
    let of_group = pool.charge(group, PageCount(1), AllocMode::Wait).unwrap();
    let lent: Vec<_> = (0..2).map(|_| page(AllocMode::Wait).unwrap()).collect();
    let refused = page(AllocMode::Wait).unwrap_err();
    assert_eq!(refused.details().reason, LimitReason::NothingEvictable);
    assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(56));
    assert_eq!(pool.groups.usage(group), PageCount(1));
    // Another memory's pool is not in the scope.
    let other = pool_of(16, 0);
    let of_other = MockFile::new(&other, GroupId::ROOT, 0);
    (0..17).for_each(|index| of_other.read(index).unwrap());
    assert!(of_other.evict_calls.load(Ordering::Relaxed) > 0);
    // Room is kept for what is given back.
    drop((of_group, lent, scope));
    page(AllocMode::Wait).unwrap_err();
    let scope = pool.store_scope(Some(aside.clone()));
    let lent: Vec<_> = (0..3).map(|_| page(AllocMode::Wait).unwrap()).collect();
    page(AllocMode::Wait).unwrap_err();
    assert_eq!(evictions(), before);
    // Nothing is kept once it is gone.
    drop((scope, aside, lent));
    drop(page(AllocMode::Wait).unwrap());
    drop(held);
    pool.validate();
}

#[test]
fn who_reclaims_in_a_store_call_does_not_wait_for_what_its_caller_may_hold() {
    let pool = pool_of(8, 0);
    let file = MockFile::new(&pool, GroupId::ROOT, 0);
    (0..8).for_each(|index| file.read(index).unwrap());
    let frames: Vec<FrameId> = (0..8).filter_map(|index| file.peek(index)).collect();
    assert!(frames.iter().all(|id| pool.frames.lock_of(*id).try_lock()));
    {
        let _scope = pool.store_scope(None);
        assert_eq!(
            pool.reclaim_for(GroupId::ROOT, PageCount(1), Io::Of(GroupId::ROOT)),
            PageCount(0)
        );
        assert_eq!(pool.totals().lock_wait, 0, "it waited for itself");
    }
    frames
        .iter()
        .for_each(|id| pool.frames.lock_of(*id).unlock());
    assert_eq!(
        pool.reclaim_for(GroupId::ROOT, PageCount(8), Io::Of(GroupId::ROOT)),
        PageCount(8)
    );
    pool.validate();
}

#[test]
fn retired_frames_stay_charged_until_the_grace_period_and_come_back_before_a_refusal() {
    let pool = pool_of(100, 0);
    let group = tenant(&pool, 10);
    let publish = || {
        let mut frame = pool.alloc(group, 0, AllocMode::Wait).unwrap();
        frame.set_kind(Kind::Table);
        frame.publish(HoldState::refs_only(1))
    };
    let tables: Vec<FrameId> = (0..10).map(|_| publish()).collect();
    for id in &tables {
        let _last = pool.frames.meta(*id).hold.put();
        pool.retire(Retired::Frame(*id));
    }
    assert_eq!(pool.groups.usage(group), PageCount(10));
    assert_eq!(pool.totals().retired, 10);
    let frame = pool.alloc(group, 0, AllocMode::Wait).unwrap();
    assert_eq!(pool.groups.usage(group), PageCount(1));
    assert_eq!(pool.totals().pgscan, 0, "nothing had to be evicted");
    drop(frame);
    pool.validate();
}

#[test]
fn a_request_that_is_tried_again_is_refused_once() {
    type Request = fn(&Pool, GroupId);
    let requests: [Request; 2] = [
        |pool, group| drop(pool.alloc(group, 1, AllocMode::Wait).unwrap()),
        |pool, group| drop(pool.charge(group, PageCount(2), AllocMode::Wait).unwrap()),
    ];
    for request in requests {
        let pool = pool_of(100, 0);
        let group = tenant(&pool, 10);
        let mut frame = pool.alloc(group, 0, AllocMode::Wait).unwrap();
        frame.set_kind(Kind::Table);
        let table = frame.publish(HoldState::refs_only(1));
        let file = MockFile::new(&pool, group, 0);
        (0..9).for_each(|index| file.read(index).unwrap());
        assert_eq!(pool.groups.events(group).refused, 0);
        // The first round frees this page, which is not enough. The next round evicts.
        pool.retire(Retired::Put(table));
        request(&pool, group);
        let events = pool.groups.events(group);
        assert_eq!((events.refused, events.max), (1, 1));
        assert!(events.reclaimed > PageCount(0), "it took two rounds");
        assert_eq!(pool.totals().charge_refused, 1);
        pool.validate();
    }
}

#[test]
fn a_long_queue_is_flushed_at_the_next_flush_retired_if_due() {
    let pool = pool_of(100, 0);
    let (sender, receiver) = std::sync::mpsc::channel();
    for number in 0..64 {
        pool.flush_retired_if_due();
        let sender = sender.clone();
        pool.retire(Retired::Call(Box::new(move |_| {
            sender.send(number).unwrap()
        })));
        assert!(receiver.try_recv().is_err(), "not before the queue is long");
    }
    pool.flush_retired_if_due();
    assert_eq!(
        receiver.try_iter().collect::<Vec<_>>(),
        (0..64).collect::<Vec<_>>()
    );
    assert_eq!(pool.totals().grace_period, 1, "one wait for all");
}

#[test]
fn a_call_that_panics_keeps_nothing_else_from_its_end() {
    let pool = pool_of(100, 0);
    let mut frame = pool.alloc(GroupId::ROOT, 0, AllocMode::Wait).unwrap();
    frame.set_kind(Kind::Table);
    let frame = frame.publish(HoldState::refs_only(1));
    let (sender, receiver) = std::sync::mpsc::channel();
    for panics in [true, false, true] {
        let sender = sender.clone();
        pool.retire(Retired::Call(Box::new(move |_| {
            assert!(!panics, "of somebody else's");
            sender.send(()).unwrap();
        })));
    }
    let _last = pool.frames.meta(frame).hold.put();
    pool.retire(Retired::Frame(frame));
    let flush = std::panic::AssertUnwindSafe(|| pool.flush_retired());
    std::panic::catch_unwind(flush).unwrap_err();
    assert_eq!(receiver.try_iter().count(), 1);
    assert_eq!(pool.totals().usage, 0, "the frame is free");
    assert_eq!(pool.flush_retired(), 0, "everything has had its turn");
    pool.validate();
}

#[test]
fn a_block_needs_room_in_one_piece() {
    let pool = pool_of(64, 0);
    let small = MockFile::new(&pool, GroupId::ROOT, 0);
    let large = MockFile::new(&pool, GroupId::ROOT, 3);
    // 63 of the 64 frames are single blocks: frames 1 to 63, and one whose neighbours are outside
    // the arena.
    (0..64).for_each(|index| small.read(index).unwrap());
    large.read(0).unwrap();
    assert_eq!(
        large.resident([0]),
        1,
        "eviction went on until a whole block was free"
    );
    pool.validate();
    // Pin one frame in each aligned run of eight: a block is made of single frames, elsewhere.
    small.truncate_all();
    large.truncate_all();
    let mut held: Vec<_> = (0..64)
        .map(|_| pool.alloc(GroupId::ROOT, 0, AllocMode::Wait).unwrap())
        .collect();
    held.retain(|frame| frame.id().0 % 8 == 0);
    for mode in [AllocMode::Wait, AllocMode::NoWait, AllocMode::NoIo] {
        drop(pool.alloc(GroupId::ROOT, 3, mode).unwrap());
    }
    pool.validate();
    // Pages in use at scattered addresses leave no addresses free for a block.
    let mut windows = Vec::new();
    while let Some(window) = pool.frames.window(3, 1) {
        windows.push(window);
    }
    let error = pool.alloc(GroupId::ROOT, 3, AllocMode::Wait).unwrap_err();
    assert_eq!(error.details().reason, LimitReason::Fragmented);
    assert!(
        error.to_string().contains("has no 32.0 KiB in a row"),
        "{error}"
    );
    drop((held, windows));
    drop(pool.alloc(GroupId::ROOT, 3, AllocMode::Wait).unwrap());
    pool.validate();
}

#[test]
fn lowering_a_limit_evicts_and_names_what_stays() {
    let pool = pool_of(200, 0);
    let group = tenant(&pool, 100);
    let file = MockFile::new(&pool, group, 0);
    (0..100).for_each(|index| file.read(index).unwrap());
    pool.groups.set_max(group, Some(PageCount(50))).unwrap();
    assert!(pool.groups.usage(group).0 <= 50);
    let kept: Vec<FrameId> = file
        .blocks
        .lock()
        .frames
        .values()
        .copied()
        .take(20)
        .collect();
    kept.iter()
        .for_each(|id| assert!(pool.frames.meta(*id).hold.try_view()));
    let Err(GroupError::Limit(error)) = pool.groups.set_max(group, Some(PageCount(16))) else {
        panic!("20 pages are viewed");
    };
    assert_eq!(error.details().holders.views, 20);
    assert_eq!(pool.groups.usage(group), PageCount(20));
    for id in kept {
        let _held = pool.frames.meta(id).hold.put_view();
    }
    pool.groups.set_max(group, Some(PageCount(16))).unwrap();
    pool.validate();
}
