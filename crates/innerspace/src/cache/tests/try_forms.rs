//! The `try_` forms: which of them succeed without waiting, and which would block.

use std::io;
use std::pin::pin;
use std::thread::ThreadId;

use super::blocking::{Bell, poll};
use super::requests::{LONG, read_only};
use super::*;
use crate::cache::FileError;
use crate::cache::lookup::get::Get;
use crate::reclaim::AllocMode;
use crate::store::Batch;
use crate::store::faulty::{Fault, OperationKind, Release, Rule};
use crate::sync::{Mutex, failpoint, thread};

fn would_block<T: std::fmt::Debug>(result: Result<T, FileError>, offset: u64) {
    match result {
        Err(FileError::WouldBlock { offset: at, .. }) => assert_eq!(at, offset),
        other => panic!("{other:?}"),
    }
}

/// Starts a thread that reads the block, and hangs in the store.
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
            would_block(blocks.try_view_block(2), at);
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
        assert_eq!(blocks.try_view_block(2).unwrap()[..12], *wanted);
        // The range continues into a block that is not cached, or past the end, or begins in a
        // hole.
        would_block(file.try_read_exact_at(&mut bytes, 3 * size - 6), 3 * size);
        would_block(blocks.try_read_at(&mut bytes, 3 * size - 6), 3 * size);
        file.set_len(10 * size).unwrap();
        // A range that the store has not reported does not count as a hole yet.
        would_block(file.try_view(9 * size..9 * size + 12), 9 * size);
        file.view(9 * size..9 * size + 12).unwrap();
        file.try_read_exact_at(&mut bytes, 9 * size).unwrap();
        assert_eq!(
            (bytes, blocks.try_read_at(&mut bytes, 9 * size).unwrap()),
            ([0; 12], 12)
        );
        assert_eq!(blocks.try_view_block(9).unwrap()[..12], [0; 12]);
        let past = file.try_read_exact_at(&mut bytes, 10 * size - 6);
        assert!(matches!(past, Err(FileError::PastEnd { .. })), "{past:?}");
    }
}

/// A store of 64 blocks that notes which threads call it. It reports its data in pieces of four
/// blocks, so that an answer about some blocks says nothing about blocks further on.
struct Noting(Mutex<Vec<ThreadId>>);

impl Noting {
    fn note(&self) {
        self.0.lock().push(std::thread::current().id());
    }
}

impl Store for Noting {
    fn len(&self) -> io::Result<u64> {
        Ok(64 * 4096)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.note();
        buf.copy_from_slice(&pattern(offset..offset + buf.len() as u64));
        Ok(buf.len())
    }
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.note();
        Ok(Some(offset))
    }
    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        self.note();
        Ok((offset / 16_384 + 1) * 16_384)
    }
    fn submit(&self, batch: Batch) {
        self.note();
        batch.call(self);
    }
}

// spec: P29
#[test]
fn the_poll_of_a_future_asks_no_store_where_its_data_is() {
    let cache = memory(256);
    cache.begin_service();
    let store = Arc::new(Noting(Mutex::default()));
    let file = open(&cache, &store, &read_only(4096));
    file.view(0..1).unwrap();
    store.0.lock().clear();
    // The answer about the first blocks is replaced by one about others.
    let other = file.clone();
    let there = failpoint::on("DataKnown", move || {
        let reading = thread::spawn(move || drop(other.view(131_072..131_073).unwrap()));
        reading.join().unwrap();
    });
    let mut future = file.ready(4096..4106);
    let bell = Arc::new(Bell::default());
    assert!(poll(pin!(&mut future), &bell).is_pending());
    drop(there);
    let this = std::thread::current().id();
    assert!(
        !store.0.lock().contains(&this),
        "this thread calls the store"
    );
    let view = future.wait_timeout(LONG).unwrap().unwrap();
    assert_eq!(view[..], pattern(4096..4106));
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
    // This is a hole, but a running cut may end it.
    would_block(file.try_read_at(&mut [0; 10], 65_536), 65_536);
    would_block(blocks.try_read_at(&mut [0; 10], 65_536), 65_536);
    store.release(Release::Proceed);
    cut.join().unwrap();
    file.view(65_536..65_546).unwrap();
    assert_eq!(blocks.try_read_at(&mut [0; 10], 65_536).unwrap(), 10);
}

#[test]
fn elements_are_set_at_once_in_a_block_that_is_there_and_not_viewed() {
    for size in SIZES {
        let cache = memory_of(16, size);
        let file = open(&cache, &patterned(3 * size), &options(size));
        let array = file.array::<u32>().unwrap();
        let (at, index) = (size, size / 4);
        would_block(array.try_set(index, 7), at);
        would_block(array.try_write(index, &[7; 3]), at);
        let view = file.view(at..at + 1).unwrap();
        would_block(array.try_set(index, 7), at);
        drop(view);
        array.try_set(index, 7).unwrap();
        array.try_write(index + 1, &[8; 3]).unwrap();
        array.try_write(index, &[]).unwrap();
        let mut numbers = [0; 4];
        array.try_read(index, &mut numbers).unwrap();
        assert_eq!(numbers, [7, 8, 8, 8]);
        // The range continues into another block, which is cached too, or is longer than a block.
        file.view(2 * size..2 * size + 1).unwrap();
        would_block(array.try_write(2 * index - 1, &[9; 2]), 2 * size - 4);
        let many = vec![9; index as usize + 1];
        would_block(array.try_write(index, &many), at);
        let mut expected = pattern(0..3 * size);
        for (number, at) in numbers.iter().zip((at as usize..).step_by(4)) {
            expected[at..at + 4].copy_from_slice(&u32::to_le_bytes(*number));
        }
        assert!(contents(&file) == expected);
        cache.validate();
    }
}

// spec: P16, P29
#[test]
fn an_append_goes_where_nothing_has_to_be_waited_for() {
    for size in SIZES {
        let cache = memory(4_096);
        let store = patterned(2 * size - 50);
        let file = open(&cache, &store, &options(size));
        let at = file.len();
        would_block(file.try_append(&[7; 10]), at);
        file.view(size..size + 10).unwrap();
        store.clear_log();
        assert_eq!(file.try_append(&[]).unwrap(), at);
        assert_eq!(file.try_append(&[1; 10]).unwrap(), at);
        // The append may not continue into a new block. It may reach up to the block's beginning,
        // and may begin there.
        would_block(file.try_append(&[2; 41]), at + 10);
        assert_eq!(file.try_append(&[2; 40]).unwrap(), at + 10);
        assert_eq!(file.try_append(&vec![3; size as usize]).unwrap(), 2 * size);
        assert_eq!(file.try_append(&[4; 60]).unwrap(), 3 * size);
        let left = vec![5; (size - 60) as usize];
        assert_eq!(file.try_append(&left).unwrap(), 3 * size + 60);
        assert_eq!(file.len(), 4 * size);
        would_block(file.try_append(&vec![6; size as usize + 1]), 4 * size);
        assert!(store.log().is_empty());
        let mut expected = pattern(0..at);
        for (byte, len) in [
            (1, 10),
            (2, 40),
            (3, size as usize),
            (4, 60),
            (5, left.len()),
        ] {
            expected.resize(expected.len() + len, byte);
        }
        assert!(contents(&file) == expected);
        cache.validate();
        file.sync_all().unwrap();
        assert!(store.inner().to_vec() == expected);
        drop(file);
        assert_empty(&cache);
    }
}

// spec: P16, P29
#[test]
fn an_append_that_would_block_has_changed_nothing() {
    for size in SIZES {
        let cache = memory_of(16, size);
        let group = cache.root.create_child("tenant", 12 * size).unwrap();
        let store = patterned(3 * size - 50);
        let file = open(&cache, &store, &options(size).group(&group));
        let at = file.len();
        file.view(2 * size..2 * size + 10).unwrap();
        let unchanged = || {
            assert_eq!((file.len(), core(&file).dirty_blocks()), (at, 0));
            let last = core(&file).find_lock(2, Get::NONE).unwrap().unwrap();
            let mut behind = [1; 50];
            let frames = core(&file).frames();
            frames.copy_out(last.frame(), size as usize - 50, &mut behind);
            assert_eq!(behind, [0; 50]);
            assert!(core(&file).lookup(3).is_none());
        };
        // Each of these is in the way: the lock of the last block, a view of it, another append, a
        // cut.
        let locked = core(&file).find_lock(2, Get::NONE).unwrap().unwrap();
        would_block(file.try_append(&[7; 50]), 2 * size);
        drop(locked);
        unchanged();
        let view = file.view(2 * size..2 * size + 10).unwrap();
        would_block(file.try_append(&[7; 50]), at);
        drop(view);
        unchanged();
        let appending = core(&file).locks.append();
        would_block(file.try_append(&[7; 50]), at);
        drop(appending);
        let alone = core(&file).locks.alone(&core(&file).blocks.index);
        would_block(file.try_append(&[7; 50]), at);
        drop(alone);
        unchanged();
        assert_eq!(file.try_append(&[7; 50]).unwrap(), at);
        // The place of the next block is taken.
        let new = core(&file).create(3, Get::NONE).unwrap().unwrap();
        would_block(file.try_append(&[8; 100]), 3 * size);
        drop(new);
        // The group is full.
        let (pool, order) = (&cache.pool, core(&file).id.order);
        let mut taken = Vec::new();
        while let Ok(frame) = pool.alloc(group.id(), order, AllocMode::NoWait) {
            taken.push(frame);
        }
        let error = file.try_append(&[8; 100]).unwrap_err();
        assert!(error.would_block(), "{error}");
        drop(taken);
        assert_eq!((file.len(), core(&file).dirty_blocks()), (3 * size, 1));
        assert!(core(&file).lookup(3).is_none());
        assert_eq!(file.try_append(&[8; 100]).unwrap(), 3 * size);
        drop(file);
        assert_empty(&cache);
    }
}

/// A write makes the file longer before the append has locked the last block.
// spec: P29
#[test]
fn an_append_that_does_not_wait_writes_over_nobody() {
    let cache = memory(64);
    let file = open(&cache, &patterned(100), &options(4096));
    file.view(..).unwrap();
    let other = file.clone();
    let there = failpoint::on("Appending", move || {
        let writing = thread::spawn(move || other.write_at(&[2; 4096], 100).unwrap());
        writing.join().unwrap();
    });
    would_block(file.try_append(&[1; 50]), 100);
    drop(there);
    assert!(contents(&file)[100..] == [2; 4096]);
}

// spec: P29
#[test]
fn an_append_that_is_behind_with_writing_has_others_write() {
    let cache = memory(64);
    let group = cache.root.create_child("tenant", 16 * 4096).unwrap();
    let file = open(&cache, &patterned(0), &options(4096).group(&group));
    let error = loop {
        if let Err(error) = file.try_append(&[7; 4096]) {
            break error;
        }
    };
    assert!(error.would_block(), "{error}");
    assert!(file.len() > 7 * 4096);
    cache.tick();
    file.try_append(&[7; 4096]).unwrap();
}

// spec: P16, P29
#[test]
fn a_sync_with_nothing_to_do_is_done_and_any_other_would_block() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        would_block(file.try_sync_data(), 0);
        file.sync_data().unwrap();
        file.try_sync_data().unwrap();
        would_block(file.try_sync_all(), 0);
        file.sync_all().unwrap();
        file.try_sync_all().unwrap();

        file.write_at(&[7; 10], 2 * size + 5).unwrap();
        store.clear_log();
        would_block(file.try_sync_data(), 2 * size);
        would_block(file.try_sync_all(), 2 * size);
        would_block(file.try_sync_range(2 * size..), 2 * size);
        file.try_sync_range(..2 * size).unwrap();
        assert!(store.log().is_empty());
        // The data was written in the background, and is not durable.
        core(&file).flush(&EVERYTHING);
        assert_eq!(core(&file).dirty_blocks(), 0);
        would_block(file.try_sync_data(), 0);
        would_block(file.try_sync_range(size..2 * size), size);
        let bell = Arc::new(Bell::default());
        let mut sync = pin!(file.defer(|file| file.sync_all()));
        assert!(poll(sync.as_mut(), &bell).is_pending());
        cache.tick();
        file.try_sync_all().unwrap();
        file.try_sync_range(size..2 * size).unwrap();
        // Other calls that change the store.
        file.set_len(3 * size).unwrap();
        would_block(file.try_sync_all(), 0);
        file.sync_all().unwrap();
        file.punch(0..size).unwrap();
        would_block(file.try_sync_all(), 0);
        store.add(fail(OperationKind::Sync));
        file.sync_all().unwrap_err();
        would_block(file.try_sync_all(), 0);
        file.sync_all().unwrap();
        file.try_sync_all().unwrap();
    }
}

// spec: P29
#[test]
fn a_sync_that_would_block_waits_for_no_write_and_no_other_sync() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    file.sync_all().unwrap();
    file.write_at(&[7; 10], 8192).unwrap();
    let flush = hanging_flush(core(&file), &store);
    would_block(file.try_sync_data(), 8192);
    file.try_sync_range(..8192).unwrap();
    store.release(Release::Proceed);
    flush.join().unwrap();
    store.add(Rule::new(Fault::Hang).on(&[OperationKind::Sync]));
    let sync = {
        let file = file.clone();
        thread::spawn(move || file.sync_all().unwrap())
    };
    store.wait_hanging(1);
    would_block(file.try_sync_data(), 0);
    // That sync does not cover this write.
    file.write_at(&[8; 10], 4096).unwrap();
    core(&file).flush(&EVERYTHING);
    store.release(Release::Proceed);
    sync.join().unwrap();
    would_block(file.try_sync_data(), 0);
    file.sync_all().unwrap();
    file.try_sync_all().unwrap();
}

// spec: P18, P29
#[test]
fn a_sync_that_does_not_wait_tells_each_handle_of_a_failure_once() {
    let cache = memory(64);
    let store = patterned(65_536);
    let file = open(&cache, &store, &options(4096));
    let other = file.clone();
    file.write_at(&[7; 10], 8192).unwrap();
    store.add(fail(OperationKind::Write));
    core(&file).flush(&EVERYTHING);
    for handle in [&file, &other] {
        let told = handle.try_sync_data();
        assert!(matches!(told, Err(FileError::Store { .. })), "{told:?}");
        would_block(handle.try_sync_data(), 8192);
    }
    file.sync_data().unwrap();
    file.try_sync_data().unwrap();
}

// spec: P25, P29
#[test]
fn what_the_write_order_holds_back_is_no_reason_to_wait() {
    let cache = memory(64);
    let order = options(4096).write_order(crate::cache::WriteOrder::Ordered);
    let file = open(&cache, &patterned(65_536), &order);
    file.sync_all().unwrap();
    file.write_at(&[7; 10], 8192).unwrap();
    file.set_barrier(1);
    file.write_at(&[7; 10], 4096).unwrap();
    would_block(file.try_sync_data(), 8192);
    assert!(matches!(file.sync_data(), Err(FileError::Held { .. })));
    let held = file.try_sync_data();
    assert!(
        matches!(held, Err(FileError::Held { dirty: 4096, .. })),
        "{held:?}"
    );
    file.release_through(1);
    would_block(file.try_sync_data(), 4096);
    file.sync_data().unwrap();
    file.try_sync_data().unwrap();
}

#[test]
fn a_write_that_does_not_wait_makes_no_file_longer() {
    for size in SIZES {
        let cache = memory_of(8, size);
        let store = patterned(100);
        let file = open(&cache, &store, &options(size));
        file.view(..).unwrap();
        would_block(file.try_write_at(&[1; 10], 95), 95);
        assert!(contents(&file) == pattern(0..100), "and changes nothing");
        file.try_write_at(&[1; 10], 90).unwrap();
        assert_eq!(file.len(), 100);
        file.sync_all().unwrap();
        assert_eq!(store.inner().to_vec()[90..], [1; 10]);
    }
}
