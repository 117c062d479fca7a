//! The lookup's flags, one by one.

use super::*;
use crate::cache::FileError;
use crate::cache::core::validate::validate;
use crate::cache::lookup::block::NewBlock;
use crate::cache::lookup::get::{Basis, Get};
use crate::frame::{FlagSet, HoldState, Kind, TAGGED_BYTES};
use crate::group::Reclaimer;
use crate::reclaim::{AllocMode, EvictionPolicy};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{failpoint, thread};
use crate::units::FrameId;

fn flags(file: &PagedFile, block: u64) -> FlagSet {
    core(file)
        .lookup(block)
        .expect("it is cached")
        .meta()
        .flags
        .load()
}

fn refs(file: &PagedFile, block: u64) -> u32 {
    core(file)
        .lookup(block)
        .expect("it is cached")
        .meta()
        .hold
        .load()
        .refs()
        - 1
}

/// A block that a lookup found or made.
#[derive(Debug)]
enum Made<'f> {
    Found,
    New(NewBlock<'f>),
}

fn get_or_create(core: &FileCore, block: u64, get: Get) -> Result<Made<'_>, FileError> {
    loop {
        if core.find_lock(block, get)?.is_some() {
            return Ok(Made::Found);
        }
        if let Some(new) = core.create(block, get)? {
            return Ok(Made::New(new));
        }
    }
}

fn find_or_create(core: &FileCore, block: u64) -> Result<Made<'_>, FileError> {
    get_or_create(core, block, Get::ACCESSED)
}

fn grab_nowait(core: &FileCore, block: u64) -> Result<Made<'_>, FileError> {
    get_or_create(core, block, Get::NOIO | Get::NOWAIT)
}

fn grab_for_write(core: &FileCore, block: u64) -> Result<Made<'_>, FileError> {
    get_or_create(core, block, Get::ACCESSED | Get::WRITE | Get::STABLE)
}

// spec: P4
#[test]
fn of_two_creates_at_one_index_the_second_finds_the_first() {
    let cache = memory(64);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    let core = core(&file);
    let first = core
        .create(300, Get::NONE)
        .unwrap()
        .expect("nobody else made it");
    let (usage, free) = (cache.pool.totals().usage, cache.pool.frames.free_frames());
    assert!(core.create(300, Get::NONE).unwrap().is_none());
    // The frame and the charge of the second create are given back, to the last page.
    assert_eq!(cache.pool.totals().usage, usage);
    assert_eq!(cache.pool.frames.free_frames(), free);
    let second = {
        let core = core.clone();
        thread::spawn(move || {
            let locked = core
                .find_lock(300, Get::NONE)
                .unwrap()
                .expect("it is being made");
            locked.frame()
        })
    };
    while !core.requests.is_waited_on() {
        thread::yield_now();
    }
    let frame = first.frame();
    drop(first.finish());
    assert_eq!(second.join().unwrap(), frame, "both get the one page");
    assert_eq!(cache.pool.totals().usage, usage);
    validate(core);
}

// spec: P16, P5
#[test]
fn a_lock_that_comes_after_a_truncation_is_no_lock_of_the_file() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let file = open(&cache, &patterned(2 * size), &options(size));
        file.view(0..1).unwrap();
        let core = core(&file).clone();
        let locked = core.find_lock(0, Get::NONE).unwrap().expect("it is cached");
        let waiter = {
            let core = core.clone();
            thread::spawn(move || core.find_lock(0, Get::NONE).unwrap().is_some())
        };
        while !locked.meta().flags.load().contains(FlagSet::WAITERS) {
            thread::yield_now();
        }
        // The lock does what a truncation does, with the waiter between its lookup and its lock.
        core.unlink(0, locked.frame(), None);
        let dropped = core.pool.uncache(locked.frame());
        assert_eq!(dropped, crate::frame::Dropped::Held);
        drop(locked);
        assert!(!waiter.join().unwrap(), "the block is no longer the file's");
        drop(core);
        drop(file);
        assert_empty(&cache);
    }
}

// spec: P16, P6
#[test]
fn nowait_answers_at_once_and_leaks_nothing() {
    for size in SIZES {
        let blocks = if size > 4096 { 8 } else { 64 };
        let cache = memory_of(blocks, size);
        let file = open(&cache, &patterned(4 * blocks * size), &options(size));
        file.view(0..1).unwrap();
        let core = core(&file);
        let locked = core.find_lock(0, Get::NONE).unwrap().unwrap();
        let error = core.find_lock(0, Get::NOWAIT).unwrap_err();
        assert!(error.would_block());
        assert!(grab_nowait(core, 0).unwrap_err().would_block());
        drop(locked);
        assert_eq!(refs(&file, 0), 1);
        assert!(matches!(grab_nowait(core, 0).unwrap(), Made::Found));
        // The group is full: views keep all of it.
        let mut views = Vec::new();
        while let Ok(view) = file.view(views.len() as u64 * size..views.len() as u64 * size + 1) {
            views.push(view);
        }
        let error = grab_nowait(core, 4 * blocks - 1).unwrap_err();
        assert!(error.would_block(), "{error}");
        drop(views);
        drop(file);
        assert_empty(&cache);
    }
}

// spec: P16, P8
#[test]
fn create_locks_and_a_plain_look_does_not() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let file = open(&cache, &patterned(4 * size), &options(size));
        let core = core(&file);
        let new = core
            .create(0, Get::NONE)
            .unwrap()
            .expect("nothing is there");
        let state = flags(&file, 0);
        assert!(state.contains(FlagSet::LOCKED) && !state.contains(FlagSet::UPTODATE));
        drop(new); // given up: the block is taken out again
        assert!(core.lookup(0).is_none());
        file.view(size..size + 1).unwrap();
        let held = core.lookup(1).expect("it was viewed");
        assert!(held.is_up_to_date() && !held.meta().flags.load().contains(FlagSet::LOCKED));
        drop(held);
        assert!(core.create(1, Get::NONE).unwrap().is_none());
        assert!(core.find_lock(1, Get::NONE).unwrap().is_some());
        assert!(core.find_lock(2, Get::NONE).unwrap().is_none());
    }
}

// spec: P16, P9
#[test]
fn grab_nowait_is_no_use_of_the_page() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let file = open(&cache, &patterned(4 * size), &options(size));
        let Made::New(new) = grab_nowait(core(&file), 0).unwrap() else {
            panic!("not made")
        };
        drop(new.finish());
        assert!(!flags(&file, 0).contains(FlagSet::REFERENCED));
        drop(grab_nowait(core(&file), 0).unwrap());
        assert!(!flags(&file, 0).contains(FlagSet::REFERENCED));
        drop(find_or_create(core(&file), 0).unwrap());
        assert!(flags(&file, 0).contains(FlagSet::REFERENCED));
        // New blocks are referenced before other threads can see them. One more use makes them
        // active.
        let Made::New(new) = grab_for_write(core(&file), 1).unwrap() else {
            panic!("not made")
        };
        assert!(flags(&file, 1).contains(FlagSet::REFERENCED));
        drop(new.finish());
        drop(find_or_create(core(&file), 1).unwrap());
        assert!(flags(&file, 1).contains(FlagSet::ACTIVE));
    }
}

// spec: P1
#[test]
fn a_page_in_use_is_hot_until_a_mark_is_taken_from_it() {
    for policy in [EvictionPolicy::TwoLists, EvictionPolicy::S3Fifo] {
        let mut options_of_pool = PoolOptions::new(64);
        options_of_pool.policy = policy;
        let cache = Cache::new(&Pool::new(&options_of_pool).unwrap());
        let file = open(&cache, &patterned(32 * 4096), &options(4096));
        let core = core(&file);
        let view_all = || {
            for block in 0..32u64 {
                file.view(block * 4096..block * 4096 + 1).unwrap();
            }
            cache.tick();
        };
        let count_hot = || {
            validate(core);
            let cached = (0..32).filter_map(|block| core.lookup(block));
            cached
                .filter(|held| !held.meta().hold.load().is_cold())
                .count()
        };
        // The states are: referenced, active, active and referenced; or referenced, and used again.
        // After these, there is nothing to mark.
        let rounds = match policy {
            EvictionPolicy::S3Fifo => [0, 32, 32, 32],
            _ => [0, 0, 32, 32],
        };
        for hot in rounds {
            view_all();
            assert_eq!(count_hot(), hot, "{policy:?}");
        }
        // Marks are taken away, and some blocks are evicted.
        let group = core.id.group.id();
        assert!(cache.pool.reclaim(group, PageCount(4), Some(group)).0 >= 4);
        assert!(count_hot() < 28, "{policy:?}");
        (0..4).for_each(|_| view_all());
        assert_eq!(count_hot(), 32, "{policy:?}");
        // A writer finds it like any other block.
        file.write_at(&[1], 0).unwrap();
        assert_eq!((file.view(0..1).unwrap()[0], count_hot()), (1, 32));
    }
}

// spec: P10
#[test]
fn a_refault_for_a_write_is_no_activation() {
    let cache = memory(64);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    // Puts other blocks on the active list, which the returned block competes with.
    for block in 20..30u64 {
        for _ in 0..3 {
            file.view(block * 4096..block * 4096 + 1).unwrap();
        }
    }
    cache.tick();
    for block in [0, 1, 2] {
        file.view(block * 4096..block * 4096 + 1).unwrap();
    }
    assert_eq!(file.evict(0..3 * 4096).unwrap().0, 3);
    assert_eq!(file.stats().shadows, 3);
    file.view(0..1).unwrap();
    file.write_at(&[1; 4096], 4096).unwrap();
    file.write_at(&[1; 10], 2 * 4096).unwrap();
    assert_eq!(file.stats().refaulted, 3);
    assert!(flags(&file, 0).contains(FlagSet::ACTIVE), "missed soon");
    assert!(!flags(&file, 1).contains(FlagSet::ACTIVE), "only written");
    assert!(
        !flags(&file, 2).contains(FlagSet::ACTIVE),
        "read, but to be written"
    );
}

// spec: P16
#[test]
fn dontcache_drops_the_block_after_use_unless_it_is_wanted() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let file = open(&cache, &patterned(16 * size), &options(size));
        let get = Get::DONTCACHE | Get::ACCESSED;
        for wanted in [false, true] {
            let mut new = core(&file).create(7, get).unwrap().expect("not cached");
            new.bytes_mut().fill(7);
            let held = new.finish();
            if wanted {
                file.view(7 * size..7 * size + 1).unwrap();
            }
            drop(held);
            assert_eq!(core(&file).lookup(7).is_some(), wanted);
        }
    }
}

// spec: P16
#[test]
fn a_moved_block_keeps_its_place_on_the_lists() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let file = open(&cache, &patterned(2 * size), &options(size));
        for _ in 0..3 {
            file.view(0..1).unwrap();
        }
        assert!(flags(&file, 0).contains(FlagSet::ACTIVE));
        let view = file.view(0..10).unwrap();
        file.write_at(&[1], 0).unwrap();
        assert!(flags(&file, 0).contains(FlagSet::ACTIVE));
        cache.tick(); // drains the batches
        let pages = size / PAGE as u64;
        let sizes = cache.pool.list_sizes(core(&file).id.group.id());
        assert_eq!(
            (sizes.active.0, sizes.inactive.0, sizes.unevictable.0),
            (pages, 0, pages)
        );
        drop(view);
        cache.pool.validate();
    }
}

/// Returns the frame in which a lookup guesses a block to be, if it guesses.
fn guess(core: &FileCore, block: u64) -> Option<FrameId> {
    let tag = core.blocks.index.tags().sought(block);
    tag.is_somewhere()
        .then(|| core.frames().lookaside.guess(tag))
}

fn frame(core: &FileCore, block: u64) -> FrameId {
    core.lookup(block).expect("it is cached").frame
}

#[test]
fn who_has_found_a_block_notes_where() {
    for by_view in [true, false] {
        let cache = memory(64);
        let file = open(&cache, &patterned(8 * 4096), &options(4096));
        file.prefetch(..).unwrap();
        let core = core(&file);
        for block in 0..8 {
            assert_eq!(guess(core, block), Some(FrameId::ZERO));
            let at = block * 4096;
            match by_view {
                true => drop(file.view(at..at + 1).unwrap()),
                false => assert_eq!(file.read_at(&mut [0], at).unwrap(), 1),
            }
            assert_eq!(guess(core, block), Some(frame(core, block)));
        }
        drop(file);
        assert_empty(&cache);
    }
}

#[test]
fn who_reads_much_of_a_block_guesses_it_by_what_was_found_of_its_neighbour() {
    let cache = memory(64);
    let file = open(&cache, &patterned(32 * 4096), &options(4096));
    file.prefetch(..).unwrap();
    let core = core(&file);
    let in_run = |block| {
        core.frames()
            .lookaside
            .guess_in_run(core.blocks.index.tags().sought(block))
    };
    let runs = |block: u64| core.blocks.index.tags().sought(block).number() / 16;
    let pair = (0..31).find(|block| {
        runs(*block) == runs(block + 1) && frame(core, *block).0 + 1 == frame(core, block + 1).0
    });
    let first = pair.expect("neighbours in the file are neighbours in the arena");
    let mut bytes = [0; 4096];
    assert_eq!(file.read_at(&mut bytes, first * 4096).unwrap(), 4096);
    assert_eq!(in_run(first + 1), frame(core, first + 1));
    assert_eq!(
        guess(core, first + 1),
        Some(FrameId::ZERO),
        "not by its word"
    );
    assert_eq!(file.read_at(&mut bytes, (first + 1) * 4096).unwrap(), 4096);
    let at = (first + 1) * 4096;
    assert_eq!(bytes[..], pattern(at..at + 4096));
    assert_eq!(
        guess(core, first + 1),
        Some(FrameId::ZERO),
        "nor looked for"
    );
    drop(file);
    assert_empty(&cache);
}

#[test]
fn a_wrong_run_is_found_out_and_mended() {
    let cache = memory(64);
    let file = open(&cache, &patterned(32 * 4096), &options(4096));
    file.prefetch(..).unwrap();
    let core = core(&file);
    let tag = |block| core.blocks.index.tags().sought(block);
    let first = (0..16).find(|block| tag(*block).number().is_multiple_of(16));
    let first = first.expect("one in sixteen");
    // The lookaside table has the first block one frame lower. So each block is guessed to be its
    // neighbour.
    let wrong = FrameId(frame(core, first).0 - 1);
    core.frames().lookaside.note(tag(first), wrong);
    assert_eq!(core.frames().lookaside.guess_in_run(tag(first)), wrong);
    let mut bytes = [0; 4096];
    for block in (first..first + 16).rev() {
        let at = block * 4096;
        assert_eq!(file.read_at(&mut bytes, at).unwrap(), 4096);
        assert_eq!(bytes[..], pattern(at..at + 4096), "block {block}");
        assert_eq!(
            core.frames().lookaside.guess_in_run(tag(block)),
            frame(core, block)
        );
    }
    validate(core);
    drop(file);
    assert_empty(&cache);
}

#[test]
fn a_wrong_guess_is_found_out_and_mended() {
    let cache = memory(64);
    let file = open(&cache, &patterned(8 * 4096), &options(4096));
    let mut content = vec![0; 8 * 4096];
    assert_eq!(file.read_at(&mut content, 0).unwrap(), content.len());
    file.prefetch(..).unwrap();
    let core = core(&file);
    let mut owned = cache
        .pool
        .alloc(core.id.group.id(), 0, AllocMode::Wait)
        .unwrap();
    owned.set_kind(Kind::Anonymous);
    let stranger = owned.publish(HoldState::refs_only(1));
    let wrong = [frame(core, 1), FrameId::ZERO, stranger];
    for wrong in wrong.into_iter().chain((40..60).map(FrameId)) {
        let tag = core.blocks.index.tags().sought(0);
        for read in 0..2 {
            core.frames().lookaside.note(tag, wrong);
            let mut bytes = vec![0; 4096];
            match read {
                0 => bytes.copy_from_slice(&file.view(0..4096).unwrap()),
                _ => assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 4096),
            }
            assert_eq!(bytes, content[..4096], "{wrong:?}");
            assert_eq!(guess(core, 0), Some(frame(core, 0)));
        }
    }
    let left = core.frames().meta(stranger).hold.load();
    assert_eq!((left.refs(), left.views()), (1, 0));
    cache.pool.put(stranger);
    validate(core);
    drop(file);
    assert_empty(&cache);
}

#[test]
fn a_block_that_went_or_moved_is_not_guessed_where_it_was() {
    let cache = memory(64);
    let file = open(&cache, &patterned(4 * 4096), &options(4096));
    let core = core(&file).clone();
    file.prefetch(..).unwrap();
    let old = file.view(0..4096).unwrap();
    let first = frame(&core, 0);
    // The view keeps its bytes, so the write moves the block.
    file.write_at(&[9; 4096], 0).unwrap();
    assert_ne!(frame(&core, 0), first);
    assert_eq!(guess(&core, 0), Some(first), "nobody has looked since");
    assert_eq!(*file.view(0..4096).unwrap(), [9; 4096]);
    assert_eq!(guess(&core, 0), Some(frame(&core, 0)));
    file.punch(0..4096).unwrap();
    assert_eq!(*file.view(0..4096).unwrap(), [0; 4096]);
    file.set_len(0).unwrap();
    assert!(matches!(
        file.view(0..1),
        Err(crate::cache::FileError::PastEnd { .. })
    ));
    file.set_len(4096).unwrap();
    assert_eq!(*file.view(0..4096).unwrap(), [0; 4096]);
    drop(old);
    drop((core, file));
    assert_empty(&cache);
}

// Each file gets the number of the file before it.
#[test]
fn files_one_after_the_other_do_not_guess_each_others_blocks() {
    let cache = memory(64);
    for fill in 1..10u8 {
        let file = open(
            &cache,
            &Arc::new(MemoryStore::from_bytes(&[fill; 16 * 4096])),
            &options(4096),
        );
        for block in 0..16 {
            for _ in 0..2 {
                let view = file.view(block * 4096..(block + 1) * 4096).unwrap();
                assert_eq!(*view, [fill; 4096]);
            }
        }
        drop(file);
        assert_empty(&cache);
    }
}

#[test]
fn a_file_of_larger_blocks_or_that_grew_too_long_is_found_by_its_index() {
    let cache = memory_of(8, 16384);
    let file = open(&cache, &patterned(4 * 16384), &options(16384));
    assert_eq!(guess(core(&file), 0), None);
    drop(file);
    assert_empty(&cache);
    let cache = memory(64);
    let file = open(&cache, &patterned(4 * 4096), &options(4096));
    let mut content = vec![0; 4 * 4096];
    assert_eq!(file.read_at(&mut content, 0).unwrap(), content.len());
    let core = core(&file);
    assert_eq!(*file.view(0..4096).unwrap(), content[..4096]);
    assert!(guess(core, 0).is_some());
    let len = file.len();
    core.set_size(TAGGED_BYTES);
    assert!(guess(core, 0).is_some());
    core.set_size(TAGGED_BYTES + 1);
    core.set_size(len);
    assert_eq!(guess(core, 0), None);
    for block in 0..4u64 {
        let at = (block * 4096) as usize;
        for _ in 0..2 {
            let view = file.view(at as u64..at as u64 + 4096).unwrap();
            assert_eq!(*view, content[at..at + 4096]);
        }
    }
    validate(core);
    drop(file);
    assert_empty(&cache);
}

// I10: by the time it is viewed, the frame belongs to another block.
#[test]
fn a_view_is_of_the_block_that_the_index_has_when_it_was_taken() {
    // A block of one page, and one without a tag.
    for size in [PAGE as u64, 64 << 10] {
        let cache = memory_of(64, size);
        let file = open(&cache, &patterned(size), &options(size));
        let store = Arc::new(MemoryStore::from_bytes(&vec![2; size as usize]));
        let other = open(&cache, &store, &options(size));
        file.prefetch(..).unwrap();
        let was = frame(core(&file), 0);
        let reused = Arc::new(AtomicU32::new(0));
        let there = failpoint::on("WordRead", {
            let (file, other, reused) = (file.clone(), other.clone(), reused.clone());
            // The frame is reused on another thread, because this one is in a section.
            let reuse = move || {
                file.punch(0..size).unwrap();
                other.prefetch(..).unwrap();
                reused.store(frame(core(&other), 0).0, Ordering::Relaxed);
            };
            || thread::spawn(reuse).join().unwrap()
        });
        assert_eq!(*file.view(0..size).unwrap(), vec![0; size as usize]);
        drop(there);
        let reused = FrameId(reused.load(Ordering::Relaxed));
        assert_eq!(reused, was, "or the test shows nothing");
        drop((file, other));
        assert_empty(&cache);
    }
}

// spec: P16
#[test]
fn a_block_is_made_of_its_first_bytes_only_while_the_store_has_no_more() {
    for size in SIZES {
        let cache = memory_of(8, size);
        let file = open(&cache, &patterned(300), &options(size));
        let create = |basis| core(&file).create_on(0, Get::NONE, basis).unwrap();
        assert!(
            create(Basis::StoredUpTo(299)).is_none(),
            "one would be lost"
        );
        assert_eq!(file.stats().cached.0, 0);
        let made = create(Basis::StoredUpTo(300)).expect("all of it is written over");
        drop(made);
        validate(core(&file));
        drop(file);
        assert_empty(&cache);
    }
}
