//! Readers that remember the last 16 blocks.

use super::*;
use crate::cache::{BlockReader, FileError};
use crate::frame::FlagSet;

/// Returns whether the block is referenced, whether it is active, and how many times it is held
/// besides the index and this lookup.
fn state(file: &PagedFile, block: u64) -> (bool, bool, u32) {
    let held = core(file).lookup(block).expect("it is cached");
    let flags = held.meta().flags.load();
    (
        flags.contains(FlagSet::REFERENCED),
        flags.contains(FlagSet::ACTIVE),
        held.meta().hold.load().refs() - 2,
    )
}

fn touch(blocks: &mut BlockReader, block: u64) {
    let mut byte = [0];
    blocks.read_at(&mut byte, block * 4096 + 7).unwrap();
    assert_eq!(byte, [byte_at(block * 4096 + 7)]);
}

// spec: P11
#[test]
fn a_lookup_is_one_mark_on_a_hit_and_on_a_miss() {
    let cache = memory(64);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    let mut blocks = file.block_reader();
    touch(&mut blocks, 100); // a miss in both the reader and the cache
    assert_eq!(state(&file, 100), (true, false, 1));
    touch(&mut blocks, 100); // a hit
    assert_eq!(state(&file, 100), (false, true, 1));
    file.prefetch(200 * 4096..201 * 4096).unwrap();
    assert_eq!(state(&file, 200), (false, false, 0));
    touch(&mut blocks, 200); // a miss in the reader only
    assert_eq!(state(&file, 200), (true, false, 1));
    drop(blocks.view_block(200).unwrap());
    assert_eq!(state(&file, 200), (false, true, 1));
}

// spec: P11
#[test]
fn a_hit_moves_to_the_front_and_the_seventeenth_evicts_the_oldest() {
    let cache = memory(64);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    let mut blocks = file.block_reader();
    (0..16).for_each(|block| touch(&mut blocks, block));
    touch(&mut blocks, 0);
    touch(&mut blocks, 5);
    let mut order = vec![5, 0, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 4, 3, 2, 1];
    assert_eq!(blocks.remembered(), order);
    let store_reads = file.stats().store_reads;
    touch(&mut blocks, 5);
    assert_eq!(file.stats().store_reads, store_reads);
    touch(&mut blocks, 99);
    order.pop();
    order.insert(0, 99);
    assert_eq!(blocks.remembered(), order);
    // Each of these blocks is held once, and the block that fell out is not held.
    assert!(order.iter().all(|block| state(&file, *block).2 == 1));
    assert_eq!(state(&file, 1).2, 0);
    // The tick lands blocks that were read ahead.
    cache.tick();
    file.evict(..).unwrap();
    assert_eq!(file.stats().cached.0, 16, "what is held stays");
    blocks.clear();
    assert!(order.iter().all(|block| state(&file, *block).2 == 0));
    touch(&mut blocks, 7);
    drop(blocks);
    drop(file);
    assert_empty(&cache);
}

#[test]
fn what_left_the_file_is_not_remembered() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let mut blocks = file.block_reader();
    let mut read = |offset: u64| {
        let mut bytes = [0; 2];
        let got = blocks.read_at(&mut bytes, offset).unwrap();
        bytes[..got].to_vec()
    };
    for offset in [0, 4096, 8192, 12_288] {
        assert_eq!(read(offset), pattern(offset..offset + 2));
    }
    file.write_at(&[1; 2], 0).unwrap(); // in place
    let view = file.view(4096..4097).unwrap();
    file.write_at(&[2; 2], 4096).unwrap(); // in another frame
    file.punch(8192..12_288).unwrap();
    store.inner().change_externally(&[4; 4096], 12_288).unwrap();
    file.invalidate(12_288..16_384).unwrap();
    let seen = [0, 4096, 8192, 12_288].map(&mut read);
    assert_eq!(seen, [[1; 2], [2; 2], [0; 2], [4; 2]]);
    file.set_len(4097).unwrap();
    assert_eq!((read(4096), read(8192)), (vec![2], vec![]));
    assert_eq!(*blocks.view_block(1).unwrap(), [2]);
    assert!(matches!(
        blocks.view_block(2),
        Err(FileError::PastEnd { .. })
    ));
    assert!(matches!(
        blocks.view_block(u64::MAX),
        Err(FileError::PastEnd { .. })
    ));
    drop((view, blocks, file));
    assert_empty(&cache);
}

#[test]
fn readers_fill_a_small_memory_with_what_they_hold_and_it_says_so() {
    let cache = memory(64);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    let mut readers: Vec<_> = (0..4).map(|_| file.block_reader()).collect();
    for block in 0..64 {
        let reader = &mut readers[block as usize / 16];
        // The last reader forgets blocks to make room for the one that it needs.
        assert_eq!(reader.read_at(&mut [0], block * 4096).unwrap(), 1);
    }
    // A reader without blocks to forget is refused.
    let error = file.read_at(&mut [0], 100 * 4096).unwrap_err();
    assert!(
        error.to_string().contains("220.0 locked or in use"),
        "{error}"
    );
    readers.clear();
    assert_eq!(file.read_at(&mut [0], 100 * 4096).unwrap(), 1);
}

#[test]
fn what_readers_remember_is_right_at_rest() {
    let cache = memory(64);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    let mut blocks = file.block_reader();
    touch(&mut blocks, 3);
    cache.validate();
    let mut others = file.block_reader();
    (2..6).for_each(|block| touch(&mut others, block));
    cache.validate();
    // The reader still remembers the block, which is no longer in the file.
    file.punch(3 * 4096..4 * 4096).unwrap();
    cache.validate();
    cache.pool.validate();
    drop((blocks, others));
    // Only the index can hold a block now.
    let held = core(&file).lookup(4).unwrap();
    let validated = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.validate()));
    validated.unwrap_err();
    drop(held);
    cache.validate();
    drop(file);
    assert_empty(&cache);
}
