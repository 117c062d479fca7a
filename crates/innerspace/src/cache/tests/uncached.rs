//! Reads that leave nothing in the cache.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::frame::FlagSet;

/// Returns which of the first blocks are cached.
fn cached(file: &PagedFile) -> Vec<u64> {
    let end = file.len().div_ceil(file.block_size());
    (0..end)
        .filter(|at| core(file).lookup(*at).is_some())
        .collect()
}

fn marks(file: &PagedFile, block: u64) -> FlagSet {
    let held = core(file).lookup(block).expect("it is cached");
    held.meta().flags.load()
}

fn scanned(file: &PagedFile, range: Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let each = |piece: &[u8]| bytes.extend_from_slice(piece);
    file.scan_uncached(range, each).unwrap();
    bytes
}

#[test]
fn what_was_not_there_before_is_not_there_afterwards() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(8 * size - 100);
        let file = open(&cache, &store, &options(size));
        file.view(3 * size..3 * size + 10).unwrap();
        // These blocks are read ahead, and not used yet.
        file.prefetch(5 * size..6 * size).unwrap();
        let before = [marks(&file, 3), marks(&file, 5)];
        assert!(scanned(&file, 10..8 * size - 100) == pattern(10..8 * size - 100));
        assert_eq!(cached(&file), [3, 5]);
        let mut bytes = vec![0; 3 * size as usize];
        let got = file.read_at_uncached(&mut bytes, 5 * size + 7).unwrap();
        assert!(bytes[..got] == pattern(5 * size + 7..8 * size - 100));
        assert_eq!(cached(&file), [3, 5]);
        assert_eq!([marks(&file, 3), marks(&file, 5)], before, "no use of them");
        assert_eq!(file.stats().shadows, 0);
        let past = file.scan_uncached(7 * size..9 * size, |_| {});
        assert!(matches!(past, Err(crate::cache::FileError::PastEnd { .. })));
        // These are holes, which are never cached.
        file.set_len(9 * size).unwrap();
        assert!(scanned(&file, 8 * size..9 * size) == vec![0; size as usize]);
        drop(file);
        assert_empty(&cache);
    }
}

#[test]
fn what_somebody_wants_meanwhile_stays() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    let mut kept = Vec::new();
    let mut at = 0;
    file.scan_uncached(.., |piece| {
        match at {
            // The piece's own block is cached, and some blocks that were read ahead with it.
            0 => {
                file.read_at(&mut [0; 10], 0).unwrap();
                file.write_at(&[7; 4096], 3 * 4096).unwrap();
                kept.push(file.view(5 * 4096..6 * 4096).unwrap());
                file.punch(8 * 4096..9 * 4096).unwrap();
            }
            3 => assert_eq!(*piece, [7; 4096]),
            8 => assert_eq!(*piece, [0; 4096], "not what it had brought"),
            _ => {}
        }
        at += 1;
    })
    .unwrap();
    assert_eq!((at, cached(&file)), (16, vec![0, 3, 5]));
    assert_eq!(core(&file).dirty_blocks(), 1);
    drop(kept);
    drop(file);
    assert_empty(&cache);
}

#[test]
fn what_comes_back_soon_is_no_less_unwanted() {
    let cache = memory(64);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    // Puts other blocks on the active list, which the returned blocks compete with.
    for block in 20..30u64 {
        for _ in 0..3 {
            file.view(block * 4096..block * 4096 + 1).unwrap();
        }
    }
    cache.tick();
    file.view(0..1).unwrap();
    assert_eq!(file.evict(0..4096).unwrap().0, 1);
    assert_eq!(scanned(&file, 0..4096), pattern(0..4096));
    assert_eq!(file.stats().refaulted, 1);
    assert!(core(&file).lookup(0).is_none());
}

#[test]
fn a_scan_that_does_not_end_well_leaves_nothing_either() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    let scan = || file.scan_uncached(.., |_| panic!("a closure of somebody else's"));
    assert!(catch_unwind(AssertUnwindSafe(scan)).is_err());
    assert!(file.stats().filled > 1, "read ahead");
    assert!(cached(&file).is_empty());
}

#[test]
fn a_frame_that_is_another_blocks_by_now_stays() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    file.prefetch(5 * 4096..6 * 4096).unwrap();
    let frame = core(&file).lookup(5).expect("it is cached").frame;
    core(&file).drop_unless_wanted(frame, 7);
    assert_eq!(cached(&file), [5]);
    core(&file).drop_unless_wanted(frame, 5);
    assert!(cached(&file).is_empty());
}
