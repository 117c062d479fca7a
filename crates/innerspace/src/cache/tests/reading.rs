//! Reads, views, scans and arrays: what they return and what they cost.

use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;

use super::*;
use crate::cache::core::validate::validate;
use crate::cache::map::fault::fault_block;
use crate::cache::{FaultKind, FileError, Reading, View};
use crate::frame::FlagSet;
use crate::store::faulty::{Failure, Fault, OperationKind, Record, Release, Rule};
use crate::sync::{Arc, thread};
use crate::units::MIB;

fn reads(store: &Faulty) -> Vec<Record> {
    store
        .log()
        .into_iter()
        .filter(|record| record.kind == OperationKind::Read)
        .collect()
}

// spec: P28
#[test]
fn a_view_is_the_frames_of_its_blocks() {
    for size in SIZES {
        let cache = memory(2_048);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        let first = file.view(100..300).unwrap();
        let second = file.view(100..300).unwrap();
        assert_eq!(
            first.as_ptr(),
            second.as_ptr(),
            "a second view of the same bytes"
        );
        assert_eq!(first.clone().as_ptr(), first.as_ptr());
        assert_eq!(*first, *pattern(100..300));
        let usage = cache.pool.totals().usage;
        let across = file.view(size - 10..size + 10).unwrap();
        assert_eq!(*across, *pattern(size - 10..size + 10));
        let again = file.view(size - 10..size + 10).unwrap();
        assert_eq!(across.as_ptr(), again.as_ptr(), "they lie in a row");
        assert_eq!(file.stats().copied_views, 0);
        // The second block, and the index node that two blocks need.
        let pages = size / PAGE as u64 + 1;
        assert_eq!(cache.pool.totals().usage - usage, pages);
        drop((first, second, across, again, file));
        assert_empty(&cache);
    }
}

#[test]
fn ranges_outside_the_file_are_errors_and_reads_there_are_short() {
    let cache = memory(64);
    let file = open(&cache, &patterned(10_000), &options(4096));
    let error = file.view(8192..12_288).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data.bin: wanted 4096 bytes at 8,192 but the file ends at 10,000"
    );
    let mut buf = [0; 4096];
    assert_eq!(file.read_at(&mut buf, 8192).unwrap(), 10_000 - 8192);
    assert_eq!(buf[..1808], *pattern(8192..10_000));
    assert_eq!(file.read_at(&mut buf, 10_000).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, u64::MAX).unwrap(), 0);
    assert!(matches!(
        file.read_exact_at(&mut buf, 8192),
        Err(FileError::PastEnd { .. })
    ));
    #[expect(clippy::reversed_empty_ranges, reason = "it is what is tested")]
    let backwards = file.view(5..3);
    assert!(matches!(
        backwards,
        Err(FileError::BadRange {
            start: 5,
            end: 3,
            ..
        })
    ));
    assert!(file.view(10_000..).unwrap().is_empty());
    assert_eq!(file.view(..).map(|view| view.len()).unwrap(), 10_000);
    let huge = open(&memory(64), &patterned(3 << 20), &options(4096));
    let error = huge.view(..).unwrap_err();
    assert!(matches!(error, FileError::ViewTooLarge { .. }), "{error}");
}

// spec: P16, P21
#[test]
fn many_readers_of_one_block_make_one_read() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(size);
        store.add(
            crate::store::faulty::Rule::new(crate::store::faulty::Fault::Hang)
                .on(&[OperationKind::Read]),
        );
        let file = open(&cache, &store, &options(size));
        let readers: Vec<_> = (0..8)
            .map(|_| {
                let file = file.clone();
                thread::spawn(move || file.view(0..size).unwrap().to_vec())
            })
            .collect();
        store.wait_hanging(1);
        // The block is in the index, so readers that come now wait for this one read.
        let held = core(&file).lookup(0);
        let held = held.expect("the block is published while it is read");
        assert!(held.is_being_filled());
        drop(held);
        while !core(&file).requests.is_waited_on() {
            thread::yield_now();
        }
        store.release(crate::store::faulty::Release::Proceed);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), pattern(0..size));
        }
        assert_eq!(reads(&store).len(), 1);
        drop(file);
        assert_empty(&cache);
    }
}

// spec: P23
#[test]
fn holes_cost_no_frame_until_they_are_written() {
    for size in SIZES {
        let cache = memory(2_048);
        let store = Arc::new(FaultyStore::new(MemoryStore::with_len(2 * size)));
        let file = open(&cache, &store, &options(size));
        assert_eq!(*file.view(0..4096).unwrap(), [0; 4096]);
        let mut buf = vec![1; size as usize];
        file.read_exact_at(&mut buf, size).unwrap();
        assert!(buf.iter().all(|byte| *byte == 0));
        assert_eq!((cache.pool.totals().usage, reads(&store).len()), (0, 0));
        file.write_at(b"data", 10).unwrap();
        assert_eq!(file.view(8..16).unwrap()[..], *b"\0\0data\0\0");
        assert_eq!(file.stats().cached.bytes(), size);
        assert_eq!(
            reads(&store).len(),
            0,
            "a hole is not read before it is written"
        );
    }
}

// spec: P13
#[test]
fn many_small_reads_in_a_row_mark_a_page_once() {
    let cache = memory(64);
    let file = open(&cache, &patterned(8192), &options(4096));
    let flags = || core(&file).lookup(0).unwrap().meta().flags.load();
    let mut buf = [0; 64];
    file.view(4096..4097).unwrap(); // another page, so that the stream begins at 0
    for offset in (0..4096).step_by(64) {
        file.read_at(&mut buf, offset).unwrap();
    }
    // The miss marks the page referenced, and the first read marks it at most once more. 63 more
    // marks would have made it active in any case, so the test begins again with an unmarked page.
    core(&file)
        .lookup(0)
        .unwrap()
        .meta()
        .flags
        .clear(FlagSet::REFERENCED | FlagSet::ACTIVE);
    for offset in (0..4096).step_by(64) {
        file.read_at(&mut buf, offset).unwrap();
    }
    assert!(flags().contains(FlagSet::REFERENCED) && !flags().contains(FlagSet::ACTIVE));
    file.read_at(&mut buf, 0).unwrap();
    assert!(
        flags().contains(FlagSet::ACTIVE),
        "a re-read is a second use"
    );
}

// spec: P16, P13
#[test]
fn a_miss_is_one_use_as_a_hit_is() {
    for size in SIZES {
        type Use = fn(&PagedFile, u64);
        let uses: [(&str, Use); 4] = [
            ("view", |file, size| {
                drop(file.view(size..size + 1).unwrap())
            }),
            ("read", |file, size| {
                file.read_exact_at(&mut [0; 1], size).unwrap()
            }),
            ("scan", |file, size| {
                file.scan(size..2 * size, |_| {}).unwrap()
            }),
            ("partial write", |file, size| {
                file.write_at(&[1], size).unwrap()
            }),
        ];
        for (name, once) in uses {
            let cache = memory_of(64, size);
            let file = open(&cache, &patterned(16 * size), &options(size));
            let state = || {
                let flags = core(&file).lookup(1).unwrap().meta().flags.load();
                let has = |flag| flags.contains(flag);
                (has(FlagSet::REFERENCED), has(FlagSet::ACTIVE))
            };
            once(&file, size);
            assert_eq!(state(), (true, false), "{name}: the first use");
            file.read_exact_at(&mut [0; 1], 0).unwrap(); // elsewhere, to end the stream
            once(&file, size);
            assert_eq!(state(), (false, true), "{name}: the second");
        }
    }
}

#[test]
fn a_fault_leaves_it_to_the_mapping_to_say_that_a_page_was_used() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    for _ in 0..3 {
        drop(
            fault_block(
                core(&file),
                1,
                FaultKind::Read,
                &(1..2),
                Reading::Normal,
                crate::cache::Wait::Yes,
            )
            .unwrap(),
        );
        let flags = core(&file).lookup(1).unwrap().meta().flags.load();
        assert!(!flags.intersects(FlagSet::REFERENCED | FlagSet::ACTIVE));
    }
}

#[test]
fn a_stream_is_read_ahead_and_jumps_are_not() {
    let cache = memory(512);
    let store = patterned(1 << 20);
    let file = open(&cache, &store, &options(4096));
    for block in [50u64, 9, 200, 131] {
        file.view(block * 4096..block * 4096 + 1).unwrap();
    }
    assert_eq!(file.stats().read_ahead, 0);
    let mut sum = 0;
    file.scan(0..256 << 10, |piece| sum += piece.len()).unwrap();
    assert_eq!(sum, 256 << 10);
    let stats = file.stats();
    assert!(stats.read_ahead >= 32, "{stats}");
    assert_eq!(
        stats.filled,
        64 + 2,
        "blocks 131 and 200 are outside the scan: {stats}"
    );
}

#[test]
fn two_handles_of_a_file_read_ahead_as_each_was_told() {
    let cache = memory(512);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    let (lookups, scan) = (file.clone(), file.clone());
    lookups.set_reading(Reading::Random);
    scan.set_reading(Reading::Sequential);
    let byte = |handle: &PagedFile, block: u64| {
        let mut byte = [0];
        handle.read_at(&mut byte, block * 4096).unwrap();
        file.stats().read_ahead
    };
    for block in 0..8 {
        assert_eq!(byte(&lookups, block), 0);
    }
    byte(&scan, 100);
    // This block was read ahead from the first miss on.
    assert!(byte(&scan, 101) > 0);
    let before = byte(&lookups, 0);
    for block in 16..24 {
        assert_eq!(byte(&lookups, block), before, "block {block}");
    }
}

#[test]
fn an_array_reads_elements_across_blocks() {
    let cache = memory(64);
    let numbers: Vec<u32> = (0..3000)
        .map(|n: u32| n.wrapping_mul(2_654_435_761))
        .collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let store = Arc::new(MemoryStore::from_bytes(&bytes));
    let file = open(&cache, &store, &options(4096));
    let array = file.array::<u32>().unwrap();
    assert_eq!(
        (array.len(), array.get(1023).unwrap()),
        (3000, numbers[1023])
    );
    assert_eq!(array.get(2999).unwrap(), numbers[2999]);
    assert_eq!(array.clone().get(0).unwrap(), numbers[0]);
    let mut part = vec![0; 2500];
    array.read(400, &mut part).unwrap();
    assert_eq!(part, numbers[400..2900]);
    assert_eq!(
        array.get(3000).unwrap_err().to_string(),
        "data.bin: element 3,000 is past the end; there are 3,000"
    );
    for (first, missing) in [(2999, 3000), (3001, 3001), (u64::MAX, u64::MAX)] {
        let error = array.read(first, &mut part[..2]).unwrap_err();
        let FileError::NoSuchElement { index, len, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((index, len), (missing, 3000));
    }
    file.append(&[1]).unwrap();
    assert!(matches!(
        file.array::<u32>(),
        Err(FileError::NotWhole { size: 12_001, .. })
    ));
    assert_eq!(file.array::<i8>().unwrap().get(12_000).unwrap(), 1);
}

#[test]
fn a_cursor_reads_writes_and_seeks_like_a_file() {
    let cache = memory(64);
    let file = open(&cache, &Arc::new(MemoryStore::with_len(0)), &options(4096));
    // The `MemoryStore` is writable, and empty.
    let mut cursor = file.cursor();
    cursor.write_all(b"hello, ").unwrap();
    cursor.write_all(b"world").unwrap();
    cursor.flush().unwrap();
    assert_eq!(cursor.seek(SeekFrom::End(-5)).unwrap(), 7);
    let mut text = String::new();
    cursor.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), cursor.position()), ("world", 12));
    assert_eq!(cursor.seek(SeekFrom::Current(-12)).unwrap(), 0);
    cursor.read_exact(&mut [0; 12]).unwrap();
    assert!(cursor.seek(SeekFrom::Current(-13)).is_err());
    assert_eq!(cursor.seek(SeekFrom::Start(100)).unwrap(), 100);
    assert_eq!(cursor.read(&mut [0; 4]).unwrap(), 0);
    cursor.write_all(b"!").unwrap();
    assert_eq!(file.len(), 101);
    assert_eq!(file.view(12..100).unwrap()[..], [0; 88]);
}

#[test]
fn prefetch_reads_what_fits() {
    let cache = memory(64);
    let store = patterned(1 << 20);
    let file = open(&cache, &store, &options(4096));
    file.prefetch(0..64 << 10).unwrap();
    let before = reads(&store).len();
    assert!(file.try_view(60 << 10..64 << 10).is_ok());
    assert_eq!(reads(&store).len(), before);
    file.prefetch(..).unwrap();
}

/// Prefetch must not go over holes block by block: here are 2^34 of them.
#[test]
fn prefetch_goes_over_holes_as_one() {
    let data = 1 << 45;
    let store = patterned(4096);
    store.inner().set_len(2 * data).unwrap();
    store.inner().write_at(&[7; 4096], data).unwrap();
    let cache = memory(64);
    let file = open(&cache, &store, &options(4096));
    file.prefetch(..).unwrap();
    let before = reads(&store).len();
    for at in [0, data] {
        assert!(file.try_view(at..at + 4096).is_ok());
    }
    assert_eq!(reads(&store).len(), before);
    // Nor must it do so where the store ends before its file.
    file.set_len(4 * data).unwrap();
    file.prefetch(..).unwrap();
}

// spec: P16
#[test]
fn views_outlive_their_file_and_its_memory() {
    for size in SIZES {
        let (view, zeros) = {
            let cache = memory_of(64, size);
            let file = open(&cache, &patterned(size), &options(size));
            let hole = open(
                &cache,
                &Arc::new(MemoryStore::with_len(size)),
                &options(size),
            );
            (file.view(0..size).unwrap(), hole.view(0..16).unwrap())
        };
        let theirs = view.clone();
        let same = thread::spawn(move || *theirs == *pattern(0..size))
            .join()
            .unwrap();
        assert!(same);
        assert_eq!((view.len() as u64, zeros.len()), (size, 16));
    }
}

#[test]
fn the_memory_goes_with_the_last_of_the_views_that_outlived_it() {
    let cache = memory(64);
    let pool = Arc::downgrade(&cache.pool);
    let store = patterned(4 * 4096);
    let file = open(&cache, &store, &options(4096));
    let moved = file.view(0..4096).unwrap();
    file.write_at(&[9; 4096], 0).unwrap(); // moves the block away from the view
    let cut = file.view(3 * 4096..).unwrap();
    file.set_len(3 * 4096).unwrap();
    let copied = file.view(4000..5000).unwrap();
    let twice = [(); 2].map(|()| file.view(4096..2 * 4096).unwrap());
    let views = [moved, cut, copied].into_iter().chain(twice);
    let copies: Vec<Vec<u8>> = views.clone().map(|view| view.to_vec()).collect();
    drop(file);
    pool.upgrade().unwrap().flush_retired();
    drop(cache);
    let clones: Vec<View> = views.clone().collect();
    assert!(views.map(|view| view.to_vec()).eq(copies.iter().cloned()));
    for (view, copy) in clones.into_iter().zip(copies) {
        assert!(pool.upgrade().is_some(), "a view is left");
        assert!(*view == copy);
    }
    assert!(pool.upgrade().is_none(), "nobody has a view");
}

#[test]
fn a_hole_remembered_beside_unwritten_data_does_not_hide_it() {
    let cache = memory(64);
    let store = Arc::new(MemoryStore::with_len(4 * 4096));
    let file = open(&cache, &store, &options(4096));
    file.write_at(b"data", 2 * 4096).unwrap();
    // The store reports a hole up to the end. It does not know of the block in the cache yet.
    let mut bytes = [9; 4];
    file.read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes, [0; 4]);
    file.sync_data().unwrap();
    assert_eq!(file.evict(..).unwrap().0, 1);
    file.read_exact_at(&mut bytes, 2 * 4096).unwrap();
    assert_eq!(&bytes, b"data");
}

#[test]
fn a_scan_ends_where_its_closure_breaks() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let file = open(&cache, &patterned(8 * size), &options(size));
        let mut seen = 0;
        let found = file.scan_until(100.., |piece| {
            seen += piece.len() as u64;
            match seen > size {
                true => ControlFlow::Break(seen),
                false => ControlFlow::Continue(()),
            }
        });
        assert_eq!(found.unwrap(), ControlFlow::Break(2 * size - 100));
        assert_eq!(seen, 2 * size - 100, "nothing is handed over behind it");
        let none = file.scan_until(.., |_| ControlFlow::<()>::Continue(()));
        assert_eq!(none.unwrap(), ControlFlow::Continue(()));
    }
}

#[test]
fn a_scan_past_the_end_hands_out_what_there_is_and_fails() {
    let cache = memory(64);
    let file = open(&cache, &patterned(10_000), &options(4096));
    for (range, handed) in [
        (u64::MAX - 1..u64::MAX, 0),
        (1 << 63..u64::MAX, 0),
        (10_000..10_001, 0),
        (4096..20_000, 4096),
    ] {
        let mut seen = 0;
        let result = file.scan(range.clone(), |piece| seen += piece.len());
        assert!(
            matches!(result, Err(FileError::PastEnd { .. })),
            "{range:?}: {result:?}"
        );
        assert_eq!(seen, handed, "{range:?}");
    }
}

#[test]
fn what_could_not_be_read_ahead_is_an_error_of_whoever_wants_it() {
    for size in SIZES {
        let cache = memory_of(16, size);
        let store = patterned(8 * size);
        let file = open(&cache, &store, &options(size));
        let fails = Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::Read]);
        store.add(fails.within(2 * size..3 * size).forever());
        for block in 0..2 {
            let view = file.view(block * size..block * size + 8).unwrap();
            assert_eq!(view[..], *pattern(block * size..block * size + 8));
        }
        file.view(2 * size..2 * size + 8).unwrap_err();
        file.view(3 * size..3 * size + 8).unwrap();
        validate(core(&file));
    }
}

#[test]
fn what_is_read_ahead_leaves_room_for_others_in_a_small_group() {
    let cache = memory(1_000);
    let group = cache.root.create_child("small", 25 * 4096).unwrap();
    let options = options(4096).group(&group);
    let (slow, quick) = (patterned(100 * 4096), patterned(8 * 4096));
    let stream = open(&cache, &slow, &options);
    let other = open(&cache, &quick, &options);
    slow.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
    let streaming = thread::spawn(move || {
        let mut sum = 0;
        stream.scan(.., |piece| sum += piece.len()).unwrap();
        (sum, stream.stats().store_reads)
    });
    slow.wait_hanging(1);
    // All blocks that the stream has read ahead are now locked.
    assert_eq!(contents(&other), pattern(0..8 * 4096));
    slow.release(Release::Proceed);
    // The reads are for the wanted block, then for as many blocks as fit in an eighth of the group.
    let (sum, reads) = streaming.join().unwrap();
    assert_eq!(sum, 100 * 4096);
    assert!((33..=50).contains(&reads), "{reads} reads");
    drop((other, options, group));
    assert_empty(&cache);
}

#[test]
fn what_is_read_together_leaves_room_for_others_in_a_small_group() {
    let cache = memory(1_000);
    let group = cache.root.create_child("small", 25 * 4096).unwrap();
    let options = options(4096).group(&group);
    let (slow, quick) = (patterned(100 * 4096), patterned(8 * 4096));
    let wanted = open(&cache, &slow, &options);
    let other = open(&cache, &quick, &options);
    slow.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
    let gathering = thread::spawn(move || {
        let pages: Vec<u64> = (0..50).map(|number| number * 2).collect();
        core(&wanted).fill_together(&pages);
        core(&wanted).wait_landed(&(0..100));
        let stats = wanted.stats();
        (stats.filled, stats.store_reads)
    });
    slow.wait_hanging(1);
    assert_eq!(contents(&other), pattern(0..8 * 4096));
    slow.release(Release::Proceed);
    // A window uses at most an eighth of the group, and all windows together half of it, so that no
    // block is evicted before its use.
    assert_eq!(gathering.join().unwrap(), (12, 12));
    drop((other, options, group));
    assert_empty(&cache);
}

#[test]
fn without_addresses_for_windows_a_view_over_blocks_is_a_copy_of_2_mib_at_most() {
    let mut without = PoolOptions::new(2_048);
    without.arena.holes = 0;
    let cache = Cache::new(&Pool::new(&without).unwrap());
    let len = 3 * MIB;
    let file = open(&cache, &patterned(len), &options(4096));
    // The blocks are read in no particular order, so their frames do not lie in a row.
    for block in (0..len / PAGE as u64).rev().step_by(3) {
        drop(file.view(block * 4096..block * 4096 + 1).unwrap());
    }
    let view = file.view(5_000..MIB + 5_000).unwrap();
    assert_eq!(*view, *pattern(5_000..MIB + 5_000));
    assert_eq!(file.stats().copied_views, 1);
    let error = file.view(10..len).unwrap_err();
    assert!(matches!(error, FileError::Limit(_)), "{error}");
    drop((view, file));
    assert_empty(&cache);
}
