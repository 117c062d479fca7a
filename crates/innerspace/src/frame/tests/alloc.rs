//! Tests of allocation: blocks, magazines, the reserve, owned frames. They compare with a model and
//! call `validate`.

use std::collections::BTreeMap;

use super::*;
use crate::PAGE_SIZE;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, thread};

/// Makes an arena in which little is left. Also returns its largest blocks, which are allocated.
fn crowded() -> (Arc<Frames>, Vec<FrameId>) {
    let frames = Arc::new(arena(WITH_MAGAZINES));
    let order = if cfg!(miri) { 5 } else { MAX_ORDER };
    let largest = std::iter::from_fn(|| frames.alloc(order, Source::Ordinary));
    let mut largest: Vec<_> = largest.collect();
    largest.pop();
    let taken = largest.into_iter().map(OwnedFrame::into_id).collect();
    (frames, taken)
}

#[test]
fn a_frame_lives_and_dies() {
    let frames = arena(256);
    assert_eq!(
        (frames.total(), frames.free_frames(), frames.reserve()),
        (256, 256, 32)
    );
    let mut frame = frames.alloc(0, Source::Ordinary).unwrap();
    frame.zero();
    frame.bytes_mut()[5] = 7;
    frame.set_kind(Kind::Anonymous);
    frame.set_flags(FlagSet::UPTODATE);
    frame.set_owner(3);
    frame.set_index(99);
    frame.set_group(4);
    let id = frame.publish(HoldState::refs_only(1));
    assert_eq!(frames.free_frames(), 255);
    assert_eq!(frames.frame_of(frames.host(id) as usize + 4095), id);
    let meta = frames.meta(id);
    assert_eq!((meta.kind(), meta.order()), (Kind::Anonymous, 0));
    assert_eq!((meta.owner(), meta.index(), meta.group()), (3, 99, 4));
    let mut copy = frames.alloc(0, Source::Ordinary).unwrap();
    copy.copy_from(id);
    assert_eq!((copy.bytes()[4], copy.bytes()[5]), (0, 7));
    frames.validate();
    assert_eq!(meta.hold.put(), Dropped::Last);
    let again = frames.own(id);
    assert_eq!(again.bytes()[5], 7);
    drop((again, copy));
    assert_eq!(frames.free_frames(), 256);
    frames.validate();
}

#[test]
fn a_new_life_begins_with_nothing_set() {
    let frames = arena(WITH_MAGAZINES);
    let mut frame = frames.alloc(0, Source::Ordinary).unwrap();
    let id = frame.id();
    frame.set_flags(FlagSet::UPTODATE | FlagSet::DIRTY);
    frame.set_owner(1);
    frame.set_index(2);
    frame.set_group(3);
    drop(frame);
    assert!(frames.magazines_in_use() > 0);
    let frame = frames.alloc(0, Source::Ordinary).unwrap();
    assert_eq!(frame.id(), id, "the warmest frame is used first");
    let meta = frame.meta();
    assert_eq!(
        (meta.flags.load(), meta.kind()),
        (FlagSet::EMPTY, Kind::Owned)
    );
    assert_eq!((meta.owner(), meta.index(), meta.group()), (0, 0, 0));
}

#[test]
fn every_order_is_aligned_and_named_by_its_first_frame() {
    let largest = if cfg!(miri) { 4 } else { MAX_ORDER };
    let total = 4 << largest;
    let frames = arena(total);
    for order in 0..=largest {
        let block = frames.alloc(order, Source::Ordinary).unwrap();
        assert_eq!(block.id().0 % (1 << order), 0);
        // A block's address is aligned like this if the arena is at least as large as the block.
        let misaligned = frames.host(block.id()) as usize % (PAGE_SIZE << order);
        assert!(cfg!(miri) || misaligned == 0, "{block:?}");
        assert_eq!(block.bytes().len(), PAGE_SIZE << order);
        for part in block.id().0..block.id().0 + (1 << order) {
            assert_eq!(frames.head_of(FrameId(part)), block.id());
        }
        frames.validate();
    }
    assert_eq!(frames.free_frames(), total);
    frames.validate();
}

#[test]
fn blocks_split_and_merge_again() {
    let largest = if cfg!(miri) { 3 } else { MAX_ORDER };
    let blocks = 16;
    let total = (blocks << largest) - 1;
    let options = ArenaOptions {
        // At most the number of frames outside the whole blocks. With a larger reserve ordinary
        // allocations could not take all of the whole blocks.
        reserve: (1 << largest) - 1,
        ..ArenaOptions::new(total)
    };
    let frames = Frames::new(&options).unwrap();
    let whole = |source| {
        let all: Vec<_> = std::iter::from_fn(|| frames.alloc(largest, source)).collect();
        let mut ids: Vec<_> = all.iter().map(|block| block.id()).collect();
        ids.sort_unstable_by_key(|id| id.0);
        ids
    };
    let but_the_first: Vec<_> = (1..blocks)
        .map(|number| FrameId(number << largest))
        .collect();
    assert_eq!(
        whole(Source::Reserve),
        but_the_first,
        "the whole blocks beside the zero frame's"
    );
    let singles: Vec<_> = std::iter::from_fn(|| frames.alloc(0, Source::Reserve)).collect();
    assert_eq!((singles.len(), frames.free_frames()), (total as usize, 0));
    assert!(
        singles.iter().all(|frame| frame.id() != FrameId::ZERO),
        "I4"
    );
    drop(singles);
    frames.validate();
    assert!(frames.magazines_in_use() > 0);
    assert_eq!(
        whole(Source::Ordinary),
        but_the_first,
        "the frames in magazines come back for it"
    );
    frames.validate();
}

#[test]
fn the_reserve_is_for_those_who_may() {
    let total = WITH_MAGAZINES;
    let options = ArenaOptions {
        reserve: 64,
        ..ArenaOptions::new(total)
    };
    let frames = Frames::new(&options).unwrap();
    let ordinary: Vec<_> = std::iter::from_fn(|| frames.alloc(0, Source::Ordinary)).collect();
    assert_eq!(
        (ordinary.len(), frames.free_frames()),
        (total as usize - 64, 64)
    );
    assert!(frames.alloc(3, Source::Ordinary).is_none());
    let reserved: Vec<_> = std::iter::from_fn(|| frames.alloc(0, Source::Reserve)).collect();
    assert_eq!((reserved.len(), frames.free_frames()), (64, 0));
    drop(reserved);
    assert_eq!(frames.free_frames(), 64);
    assert!(
        frames.alloc(0, Source::Ordinary).is_none(),
        "freed frames fill the reserve first"
    );
    assert!(frames.alloc(0, Source::Reserve).is_some());
    drop(ordinary);
    assert_eq!(frames.free_frames(), total);
    frames.validate();
}

#[test]
fn tiny_arenas_work() {
    for size in [1, 2, 3, 64] {
        let frames = Frames::new(&ArenaOptions {
            reserve: 0,
            ..ArenaOptions::new(size)
        })
        .unwrap();
        let all: Vec<_> = std::iter::from_fn(|| frames.alloc(0, Source::Ordinary)).collect();
        assert_eq!(all.len(), size as usize);
        frames.validate();
        drop(all);
        assert_eq!(frames.free_frames(), size);
        frames.validate();
    }
}

#[test]
fn an_arena_that_cannot_be_made_says_why() {
    let text = |options: ArenaOptions| Frames::new(&options).unwrap_err().to_string();
    assert_eq!(
        text(ArenaOptions::new(0)),
        "an arena of 0 frames cannot be made: it has 1 to 268,435,456 frames"
    );
    assert_eq!(
        text(ArenaOptions {
            reserve: 64,
            ..ArenaOptions::new(64)
        }),
        "a reserve of 64 frames leaves nothing of 64 frames"
    );
}

#[test]
#[should_panic = "I1"]
fn a_second_free_is_noticed() {
    let frames = arena(64);
    let id = frames.alloc(0, Source::Ordinary).unwrap().into_id();
    frames.free(id);
    frames.free(id);
}

#[test]
#[should_panic = "I1"]
fn a_free_of_a_held_frame_is_noticed() {
    let frames = arena(64);
    frames.free(published(&frames));
}

#[test]
#[should_panic = "I1: FrameId(0)"]
fn the_zero_frame_is_never_freed() {
    arena(64).free(FrameId::ZERO);
}

/// Allocates and frees blocks of all orders at random, and compares with a map of the blocks in
/// use.
#[test]
fn random_use_agrees_with_a_model() {
    let steps = if cfg!(miri) { 200 } else { 20_000 };
    for seed in 1..=if cfg!(miri) { 1 } else { 6 } {
        let frames = arena(WITH_MAGAZINES.min(3000));
        let mut random = Random(seed * 0x1234_5678_9abc_def1);
        let mut live: BTreeMap<u32, OwnedFrame<'_>> = BTreeMap::new();
        for step in 0..steps {
            // Half of the phases tend towards a full arena, and the others towards an empty one.
            let bias = if step / 500 % 2 == 0 { 70 } else { 30 };
            if random.below(100) < bias {
                let order = random.below(11).saturating_sub(random.below(11)) as u8;
                let order = order.min(MAX_ORDER);
                let Some(mut block) = frames.alloc(order, Source::Ordinary) else {
                    continue;
                };
                let (start, end) = (block.id().0, block.id().0 + (1 << order));
                let before = live.range(..end).next_back();
                let free = before.is_none_or(|(&id, other)| id + (1 << other.order()) <= start);
                assert!(
                    free && start > 0 && end <= frames.arena_frames(),
                    "{block:?} is taken"
                );
                block.bytes_mut()[0] = start as u8;
                let last = block.bytes().len() - 1;
                block.bytes_mut()[last] = start as u8;
                live.insert(start, block);
            } else if !live.is_empty() {
                let at = random.below(u64::from(frames.arena_frames())) as u32;
                let Some((&id, _)) = live.range(at..).next() else {
                    continue;
                };
                let block = live.remove(&id).unwrap();
                assert_eq!(
                    (block.bytes()[0], *block.bytes().last().unwrap()),
                    (id as u8, id as u8)
                );
            }
            let used: u32 = live.values().map(|block| 1 << block.order()).sum();
            assert_eq!(frames.free_frames(), frames.total() - used);
            if step % 97 == 0 {
                frames.validate();
            }
        }
        drop(live);
        frames.drain_magazines();
        frames.validate();
        assert_eq!(frames.free_frames(), frames.total());
    }
}

/// The number of a block's bytes that are checked: all of its first frame, unless that takes too
/// long.
const CHECKED: usize = if cfg!(miri) { 8 } else { PAGE_SIZE };

/// Several threads allocate, check that the bytes are theirs only, pass frames on, and free them.
#[test]
fn threads_never_share_a_frame() {
    const THREADS: u64 = 4;
    let rounds = if cfg!(miri) { 12 } else { 5_000 };
    let (frames, kept) = crowded();
    let (send, receive) = std::sync::mpsc::channel::<(FrameId, u8)>();
    let workers: Vec<_> = (0..THREADS)
        .map(|number| {
            let (frames, send) = (frames.clone(), send.clone());
            thread::spawn(move || {
                let mut random = Random(number + 1);
                let mut mine = Vec::new();
                for round in 0..rounds {
                    let order = [0, 0, 0, 0, 0, 1, 2, 4][random.below(8) as usize];
                    if let Some(mut block) = frames.alloc(order, Source::Ordinary) {
                        let mark = (round as u8) ^ (number as u8) << 6;
                        block.bytes_mut()[..CHECKED].fill(mark);
                        mine.push((block.into_id(), mark));
                    }
                    if mine.len() > 40 || random.below(3) == 0 {
                        let Some(chosen) = mine.len().checked_sub(1) else {
                            continue;
                        };
                        let (id, mark) = mine.swap_remove(random.below(chosen as u64 + 1) as usize);
                        if random.below(4) == 0 {
                            send.send((id, mark)).unwrap();
                        } else {
                            check_and_free(&frames, id, mark);
                        }
                    }
                }
                mine.into_iter()
                    .for_each(|(id, mark)| check_and_free(&frames, id, mark));
            })
        })
        .collect();
    drop(send);
    receive
        .iter()
        .for_each(|(id, mark)| check_and_free(&frames, id, mark));
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    assert!(frames.magazines_in_use() > 0);
    kept.into_iter().for_each(|id| frames.free(id));
    assert_eq!(frames.free_frames(), frames.total());
    frames.validate();
    frames.drain_magazines();
    frames.validate();
}

/// Threads take frames, give them back, and end. The frames left in their magazines are free, and a
/// thread that needs all frames gets them.
#[test]
fn what_threads_leave_in_their_magazines_is_had_by_whoever_needs_it() {
    let total = WITH_MAGAZINES.min(2100);
    let options = ArenaOptions {
        reserve: 0,
        ..ArenaOptions::new(total)
    };
    let frames = Arc::new(Frames::new(&options).unwrap());
    let all_there = Arc::new(std::sync::Barrier::new(8));
    let work = |number: u32| {
        let (frames, all_there) = (frames.clone(), all_there.clone());
        move || {
            let held: Vec<_> = (0..5 + number)
                .map(|_| frames.alloc(0, Source::Ordinary).unwrap())
                .collect();
            all_there.wait(); // so that no two have the same number
            drop(held);
            all_there.wait();
            all_there.wait();
        }
    };
    let all_are_had = || {
        assert_eq!(frames.free_frames(), total);
        frames.validate();
        let all: Vec<_> = std::iter::from_fn(|| frames.alloc(0, Source::Ordinary)).collect();
        assert_eq!((all.len(), frames.free_frames()), (total as usize, 0));
    };
    for _ in 0..2 {
        let threads: Vec<_> = (0..7).map(|number| thread::spawn(work(number))).collect();
        all_there.wait();
        all_there.wait();
        // Threads with different numbers may share a magazine if other tests have many threads.
        let in_use = frames.magazines_in_use();
        assert!(in_use >= 2, "{in_use} magazines have frames");
        all_are_had();
        all_there.wait();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        all_are_had();
    }
    frames.validate();
}

/// As many threads as there are magazines give back frames, and then do nothing more.
#[test]
fn idle_threads_keep_no_more_than_a_quarter_in_their_magazines() {
    let (threads, totals) = match cfg!(miri) {
        true => (4, &[WITH_MAGAZINES][..]),
        false => (40, &[300, 1200, 5000][..]),
    };
    for &total in totals {
        let frames = Arc::new(arena(total));
        let all_there = Arc::new(std::sync::Barrier::new(threads + 1));
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (frames, all_there) = (frames.clone(), all_there.clone());
                thread::spawn(move || {
                    all_there.wait(); // so that no two have the same number
                    let alloc = |_| frames.alloc(0, Source::Ordinary);
                    drop((0..32).filter_map(alloc).collect::<Vec<_>>());
                    all_there.wait();
                    all_there.wait();
                })
            })
            .collect();
        all_there.wait();
        all_there.wait();
        let apart = total - frames.listed_frames();
        assert!(apart <= total / 4, "{apart} of {total}");
        all_there.wait();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        frames.validate();
    }
}

#[test]
fn one_frame_in_a_magazine_is_had_by_whoever_needs_it() {
    let frames = arena(WITH_MAGAZINES);
    let mut all: Vec<_> = std::iter::from_fn(|| frames.alloc(0, Source::Ordinary)).collect();
    for order in [0, 0, 3, MAX_ORDER] {
        assert!(frames.alloc(order, Source::Ordinary).is_none());
    }
    drop(all.pop());
    assert_eq!(frames.magazines_in_use(), 1);
    let other = thread::scope(|scope| {
        let other = scope.spawn(|| frames.alloc(0, Source::Ordinary).is_some());
        other.join().unwrap()
    });
    assert!(other, "the frame in this thread's magazine");
}

/// Frames go from thread to thread, and so from magazine to magazine. Each is charged as `group`
/// does it: its charge is given back after it is free again.
#[test]
fn who_has_a_charge_finds_a_frame_whatever_others_put_in_their_magazines() {
    take_and_give_charged(8, if cfg!(miri) { 12 } else { 20_000 });
    // With this many threads some share magazines.
    if !cfg!(miri) {
        take_and_give_charged(40, 1_000);
    }
}

fn take_and_give_charged(threads: usize, rounds: u32) {
    let charges = threads as u32 + 4;
    let frames = arena(WITH_MAGAZINES);
    let mut kept: Vec<_> = std::iter::from_fn(|| frames.alloc(0, Source::Ordinary)).collect();
    kept.truncate(kept.len() - charges as usize);
    let charged = AtomicU32::new(0);
    let charge = || {
        let more = |now| (now < charges).then_some(now + 1);
        charged.fetch_update(Ordering::Acquire, Ordering::Relaxed, more)
    };
    let places: [AtomicU32; 4] = std::array::from_fn(|_| AtomicU32::new(0));
    let work = |number: usize| {
        let mut random = Random(number as u64 + 1);
        for round in 0..rounds {
            while charge().is_err() {
                thread::yield_now();
            }
            let frame = frames.alloc(0, Source::Ordinary);
            let frame = frame.unwrap_or_else(|| panic!("a charge without a frame: round {round}"));
            let place = &places[random.below(places.len() as u64) as usize];
            let old = FrameId(place.swap(frame.into_id().0, Ordering::AcqRel));
            if old != FrameId::ZERO {
                frames.free(old);
                charged.fetch_sub(1, Ordering::Release);
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        (0..threads).for_each(|number| drop(scope.spawn(move || work(number))));
    });
}

/// More threads than have magazines of their own allocate. Some of them need blocks, and so drain
/// all the time.
#[test]
fn many_threads_and_many_drains_lose_no_frame() {
    let (threads, rounds) = if cfg!(miri) { (6, 4) } else { (40, 300) };
    let (frames, kept) = crowded();
    let all_there = Arc::new(std::sync::Barrier::new(threads));
    let workers: Vec<_> = (0..threads)
        .map(|number| {
            let (frames, all_there) = (frames.clone(), all_there.clone());
            thread::spawn(move || {
                all_there.wait();
                let mut random = Random(number as u64 + 1);
                for _ in 0..rounds {
                    let held: Vec<_> = (0..random.below(20))
                        .filter_map(|_| frames.alloc(0, Source::Ordinary))
                        .collect();
                    let kinds = held.iter().map(|frame| frame.meta().kind());
                    assert!(kinds.into_iter().all(|kind| kind == Kind::Owned));
                    if random.below(8) == 0 {
                        drop(frames.alloc(9, Source::Ordinary));
                    }
                    if random.below(50) == 0 {
                        frames.drain_magazines();
                    }
                }
            })
        })
        .collect();
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    assert!(frames.magazine_drains() > 0);
    kept.into_iter().for_each(|id| frames.free(id));
    drop(frames.alloc(0, Source::Ordinary).unwrap());
    assert!(frames.magazines_in_use() > 0);
    assert_eq!(frames.free_frames(), frames.total());
    frames.validate();
    frames.drain_magazines();
    frames.validate();
}

fn check_and_free(frames: &Frames, id: FrameId, mark: u8) {
    let block = frames.own(id);
    assert!(
        block.bytes()[..CHECKED].iter().all(|&byte| byte == mark),
        "somebody else wrote to {id:?}"
    );
}

#[test]
fn what_is_cleared_is_zero_whoever_had_it_before() {
    let (total, rounds) = if cfg!(miri) { (8, 2) } else { (1200, 3_u8) };
    // Blocks alternate with single frames, so that frames of a block were single before, and single
    // frames were part of a block.
    let orders = if cfg!(miri) {
        [0, 1, 0, 2, 1, 0]
    } else {
        [0, 3, 0, 9, 1, 0]
    };
    let frames = arena(total);
    let zeros = vec![0; PAGE_SIZE << MAX_ORDER];
    for round in 0..rounds {
        for order in orders {
            let mut held = Vec::new();
            while let Some(mut frame) = frames.alloc(order, Source::Ordinary) {
                let zeros = &zeros[..frame.bytes().len()];
                frame.zero();
                assert!(frame.bytes() == zeros, "order {order}");
                frame.bytes_mut().fill(round + 1);
                frame.zero();
                assert!(frame.bytes() == zeros, "order {order}");
                frame.bytes_mut().fill(round + 1);
                held.push(frame);
            }
            assert!(!held.is_empty(), "order {order}");
            held.drain(..held.len() / 2);
        }
    }
}
