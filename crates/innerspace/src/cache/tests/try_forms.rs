//! The `try_` forms: what is there at once, and what would block.

use super::*;
use crate::cache::FileError;
use crate::store::faulty::{Fault, OperationKind, Release, Rule};
use crate::sync::thread;

fn would_block<T: std::fmt::Debug>(result: Result<T, FileError>, offset: u64) {
    match result {
        Err(FileError::WouldBlock { offset: at, .. }) => assert_eq!(at, offset),
        other => panic!("{other:?}"),
    }
}

/// Somebody reads the block, and that hangs in the store.
fn hanging_read(file: &PagedFile, store: &Faulty, block: u64) -> thread::JoinHandle<()> {
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
    let file = file.clone();
    let at = block * file.block_size();
    let read = thread::spawn(move || drop(file.view(at..at + 1).unwrap()));
    store.wait_hanging(1);
    read
}

// spec: P16, P29
#[test]
fn reads_are_of_what_is_there_and_wait_for_no_store() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(8 * size);
        let file = open(&cache, &store, &options(size));
        let array = file.array::<u32>().unwrap();
        let mut blocks = file.block_reader();
        let (at, mut bytes, mut numbers) = (2 * size, [0; 12], [0; 3]);
        let index = at / 4;
        let mut all_would_block = || {
            would_block(file.try_view(at..at + 12), at);
            would_block(file.try_read_at(&mut bytes, at), at);
            would_block(file.try_read_exact_at(&mut bytes, at), at);
            would_block(array.try_get(index), at);
            would_block(array.try_read(index, &mut numbers), at);
            would_block(blocks.try_read_at(&mut bytes, at), at);
            would_block(blocks.try_view(2), at);
        };
        all_would_block();
        assert_eq!(file.stats().filled, 0, "nobody reads it meanwhile");
        let read = hanging_read(&file, &store, 2);
        all_would_block();
        store.release(Release::Proceed);
        read.join().unwrap();

        let wanted = pattern(at..at + 12);
        file.try_read_exact_at(&mut bytes, at).unwrap();
        assert_eq!(bytes, *wanted);
        let number = |at: usize| u32::from_le_bytes(wanted[at..at + 4].try_into().unwrap());
        assert_eq!(array.try_get(index).unwrap(), number(0));
        array.try_read(index, &mut numbers).unwrap();
        assert_eq!(numbers, [number(0), number(4), number(8)]);
        bytes.fill(0);
        assert_eq!(blocks.try_read_at(&mut bytes, at).unwrap(), 12);
        assert_eq!(bytes, *wanted);
        assert_eq!(blocks.try_view(2).unwrap()[..12], *wanted);
        // On into a block that is not there; past the end; and from a hole.
        would_block(file.try_read_exact_at(&mut bytes, 3 * size - 6), 3 * size);
        would_block(blocks.try_read_at(&mut bytes, 3 * size - 6), 3 * size);
        file.set_len(10 * size).unwrap();
        // What the store has not told of is no hole yet.
        would_block(file.try_view(9 * size..9 * size + 12), 9 * size);
        file.view(9 * size..9 * size + 12).unwrap();
        file.try_read_exact_at(&mut bytes, 9 * size).unwrap();
        assert_eq!(
            (bytes, blocks.try_read_at(&mut bytes, 9 * size).unwrap()),
            ([0; 12], 12)
        );
        assert_eq!(blocks.try_view(9).unwrap()[..12], [0; 12]);
        let past = file.try_read_exact_at(&mut bytes, 10 * size - 6);
        assert!(matches!(past, Err(FileError::PastEnd { .. })), "{past:?}");
    }
}

// spec: P29
#[test]
fn reads_wait_for_no_cut() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    file.set_len(80_000).unwrap();
    let mut blocks = file.block_reader();
    file.view(65_536..65_546).unwrap();
    assert_eq!(file.try_read_at(&mut [0; 10], 65_536).unwrap(), 10);
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::SetLen]));
    let cut = {
        let file = file.clone();
        thread::spawn(move || file.set_len(70_000).unwrap())
    };
    store.wait_hanging(1);
    // A hole: whether it stays one is not known.
    would_block(file.try_read_at(&mut [0; 10], 65_536), 65_536);
    would_block(blocks.try_read_at(&mut [0; 10], 65_536), 65_536);
    store.release(Release::Proceed);
    cut.join().unwrap();
    file.view(65_536..65_546).unwrap();
    assert_eq!(blocks.try_read_at(&mut [0; 10], 65_536).unwrap(), 10);
}
