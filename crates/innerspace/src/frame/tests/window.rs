//! Windows: blocks in a row wherever the free frames lie, and no frame made or lost.

use std::collections::BTreeMap;

use super::*;

/// Allocates, frees, and fills windows in part, against a map of the blocks in use.
#[test]
fn random_use_of_windows_agrees_with_a_model() {
    let steps = if cfg!(miri) { 100 } else { 6_000 };
    for seed in 1..=if cfg!(miri) { 1 } else { 8 } {
        let total = WITH_MAGAZINES.min(2_000);
        let frames = arena(total);
        let mut random = Random(seed * 0x1234_5678_9abc_def1);
        let mut live: BTreeMap<u32, OwnedFrame<'_>> = BTreeMap::new();
        let mut windows: Vec<Window<'_>> = Vec::new();
        let mut found = 0;
        for step in 0..steps {
            match random.below(100) {
                0..40 => {
                    let order = [0, 0, 0, 0, 1, 3][random.below(6) as usize];
                    let block = frames.alloc(order, Source::Ordinary);
                    if let Some(block) = block {
                        insert(&mut live, block, seed);
                    }
                }
                40..80 => {
                    let at = random.below(u64::from(frames.arena_frames())) as u32;
                    let id = live.range(at..).next().map(|(id, _)| *id);
                    if let Some(block) = id.and_then(|id| live.remove(&id)) {
                        check(block, seed);
                    }
                }
                80..85 => {
                    let order = [0, 0, 2, 4][random.below(4) as usize];
                    let blocks = random.below(u64::from(total / 4) >> order) + 1;
                    windows.extend(frames.window(order, blocks));
                    found += windows.len();
                }
                85..90 if !windows.is_empty() => {
                    let at = random.below(windows.len() as u64) as usize;
                    drop(windows.swap_remove(at));
                }
                _ if !windows.is_empty() => {
                    let at = random.below(windows.len() as u64) as usize;
                    let window = &mut windows[at];
                    let blocks = random.below(window.blocks_left() + 1);
                    let order = window.order();
                    let given = (0..blocks).map_while(|_| frames.alloc(order, Source::Ordinary));
                    let given: Vec<_> = given.collect();
                    let (count, next) = (given.len(), window.next().0);
                    let placed = window.place(given);
                    assert_eq!(placed.len(), count);
                    for (at, block) in placed.into_iter().enumerate() {
                        assert_eq!(block.id().0, next + ((at as u32) << order));
                        insert(&mut live, block, seed);
                    }
                }
                _ => {}
            }
            let used: u32 = live.values().map(|block| 1 << block.order()).sum();
            assert_eq!(frames.free_frames(), frames.total() - used);
            if step % 97 == 0 {
                frames.validate();
            }
        }
        assert!(found > 10, "windows were found");
        live.into_values().for_each(|block| check(block, seed));
        drop(windows);
        frames.drain_magazines();
        frames.validate();
        assert_eq!(frames.free_frames(), frames.total());
        let all = frames.window(0, u64::from(total));
        assert!(
            all.is_some(),
            "nothing is in the way of all frames in a row"
        );
    }
}

fn insert<'f>(live: &mut BTreeMap<u32, OwnedFrame<'f>>, mut block: OwnedFrame<'f>, seed: u64) {
    let (start, end) = (block.id().0, block.id().0 + (1 << block.order()));
    let before = live.range(..end).next_back();
    let free = before.is_none_or(|(id, other)| id + (1 << other.order()) <= start);
    assert!(free && start > 0, "{block:?} is taken");
    let mark = mark(&block, seed);
    block.bytes_mut()[0] = mark;
    *block.bytes_mut().last_mut().unwrap() = mark;
    live.insert(start, block);
}

fn check(block: OwnedFrame<'_>, seed: u64) {
    let (first, last) = (block.bytes()[0], *block.bytes().last().unwrap());
    assert_eq!((first, last), (mark(&block, seed), mark(&block, seed)));
}

fn mark(block: &OwnedFrame<'_>, seed: u64) -> u8 {
    (u64::from(block.id().0) ^ seed) as u8 | 1
}

#[test]
fn a_window_needs_no_free_frames_in_a_row_and_leaves_what_it_did_not_use() {
    let frames = arena(1_000);
    let held: Vec<_> = (0..900)
        .map(|_| frames.alloc(0, Source::Reserve).unwrap())
        .collect();
    // Every other frame is free.
    let (odd, even): (Vec<_>, Vec<_>) = held.into_iter().partition(|frame| frame.id().0 % 2 == 1);
    drop(odd);
    frames.drain_magazines();
    let free = frames.free_frames();
    let mut window = frames.window(0, 400).unwrap();
    let other = frames.window(2, 50).unwrap();
    assert_eq!(frames.free_frames(), free, "a window withholds nothing");
    let given = (0..300).map(|_| frames.alloc(0, Source::Ordinary).unwrap());
    let placed = window.place(given.collect());
    assert!(
        placed
            .windows(2)
            .all(|pair| pair[0].id().0 + 1 == pair[1].id().0)
    );
    assert_eq!(frames.free_frames(), free - 300);
    drop((window, other));
    frames.validate();
    drop((placed, even));
    frames.validate();
    assert_eq!(frames.free_frames(), frames.total());
    assert!(frames.window(0, 1_001).is_none(), "longer than the memory");
    assert!(frames.window(0, 0).is_none());
}

#[test]
fn an_arena_without_holes_has_no_windows() {
    let frames = Frames::new(&ArenaOptions {
        holes: 0,
        ..ArenaOptions::new(300)
    });
    let frames = frames.unwrap();
    assert!(frames.window(0, 2).is_none());
    frames.validate();
}

#[test]
fn a_block_is_gathered_from_frames_that_lie_apart() {
    let frames = arena(200);
    let held: Vec<_> = (0..160)
        .map(|_| frames.alloc(0, Source::Ordinary).unwrap())
        .collect();
    let (kept, given): (Vec<_>, Vec<_>) = held.into_iter().partition(|frame| frame.id().0 % 3 == 0);
    let singles = given.into_iter().take(64).collect();
    let mut block = frames.window(6, 1).unwrap().place(singles).pop().unwrap();
    assert_eq!((block.order(), block.id().0 % 64), (6, 0));
    block.bytes_mut().fill(7);
    frames.validate();
    drop((kept, block));
    frames.validate();
    assert_eq!(frames.free_frames(), 200);
}

#[test]
fn a_search_for_a_window_does_not_begin_inside_a_block() {
    let frames = Frames::new(&ArenaOptions {
        holes: 16,
        ..ArenaOptions::new(64)
    });
    let frames = frames.unwrap();
    let single = || frames.alloc(0, Source::Ordinary).unwrap();
    let first = frames.window(0, 6).unwrap();
    let mut behind = frames.window(0, 2).unwrap();
    let pair = behind.place(vec![single(), single()]);
    drop((first, behind));
    let rest = frames.window(0, 8).unwrap();
    let mut before = frames.window(0, 6).unwrap();
    let six = before.place((0..6).map(|_| single()).collect());
    assert_eq!(six[5].id().0 + 1, pair[0].id().0);
    drop((before, six, pair));
    frames.drain_magazines();
    // The eight frames are one block now, and the last window ended in it.
    let block = frames.alloc(3, Source::Ordinary).unwrap();
    drop(rest);
    let window = frames.window(0, 2).unwrap();
    let taken = block.id().0..block.id().0 + 8;
    assert!(taken.start >= 512, "{block:?}");
    assert!(!taken.contains(&window.next().0), "{window:?} in {block:?}");
    drop((window, block));
    frames.validate();
}

/// Blocks are touched as a whole, and the host may back each touch with 2 MiB.
// spec: M18
#[test]
#[cfg(all(target_os = "linux", not(any(portable, miri))))]
fn no_hole_has_memory_of_the_host() {
    let frames = arena(8 * 512);
    let mut random = Random(77);
    let mut live: Vec<OwnedFrame<'_>> = Vec::new();
    for step in 0..400 {
        match random.below(10) {
            0..5 => {
                let order = [0, 0, 0, 3, 9][random.below(5) as usize];
                let count = random.below(600 >> order) + 1;
                let blocks = (0..count).map_while(|_| frames.alloc(order, Source::Ordinary));
                let mut blocks: Vec<_> = blocks.collect();
                blocks
                    .iter_mut()
                    .for_each(|block| block.bytes_mut().fill(1));
                live.extend(blocks);
            }
            5..8 => {
                let odds = 2 + random.below(3);
                live.retain(|_| random.below(odds) > 0);
            }
            _ => {
                let order = [0, 0, 9][random.below(3) as usize];
                let most = frames.free_frames() >> order;
                let wanted = random.below(u64::from(most) + 1);
                let Some(mut window) = frames.window(order, wanted) else {
                    continue;
                };
                let given = (0..wanted).map_while(|_| frames.alloc(order, Source::Ordinary));
                let mut placed = window.place(given.collect());
                placed
                    .iter_mut()
                    .for_each(|block| block.bytes_mut().fill(1));
                live.extend(placed);
            }
        }
        assert_eq!(frames.resident_holes(), 0, "step {step}");
    }
    drop(live);
    frames.validate();
}

/// Neither at first nor where frames come to lie in a window.
#[test]
#[cfg(all(target_os = "linux", not(any(portable, miri))))]
fn an_arena_of_small_pages_backs_no_more_than_what_was_touched() {
    use crate::sys::memory::Pages;

    let frames = Frames::new(&ArenaOptions {
        pages: Pages::Small,
        ..ArenaOptions::new(8 * 512)
    })
    .unwrap();
    let touch = |block: &mut OwnedFrame<'_>| block.bytes_mut().fill(1);
    let resident = || frames.arena.resident(0..frames.arena_frames());
    let blocks = || frames.alloc(0, Source::Ordinary).unwrap();
    let mut live: Vec<_> = (0..1024).map(|_| blocks()).collect();
    live.iter_mut().step_by(128).for_each(touch);
    assert!(resident() <= 8, "{} pages", resident());
    let mut window = frames.window(0, live.len() as u64).unwrap();
    live = window.place(live);
    live.iter_mut().step_by(128).for_each(touch);
    assert!(resident() <= 8, "{} pages in a window", resident());
    drop((window, live));
    frames.validate();
}

/// Metadata is charged for once for each frame, and frames may come to lie at any address.
// spec: M18
#[test]
#[cfg(all(target_os = "linux", not(any(portable, miri))))]
fn metadata_of_holes_takes_no_memory() {
    let frames = arena(64 * 64 - 1);
    let mut live: Vec<_> = (0..64 * 60)
        .map(|_| frames.alloc(0, Source::Reserve).unwrap())
        .collect();
    let before = frames.pages_of_metas();
    for _ in 0..6 {
        let mut window = frames.window(0, live.len() as u64).unwrap();
        live = window.place(live);
        drop(window);
        let now = frames.pages_of_metas();
        assert!(now <= before + 3, "{now} pages, and {before} at first");
    }
    drop(live);
    frames.validate();
}
