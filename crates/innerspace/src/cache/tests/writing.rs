//! Writes: what they read, where they go, and what views see of them.

use super::*;
use crate::cache::FileError;
use crate::cache::core::validate::validate;
use crate::sync::failpoint;

use crate::store::faulty::OperationKind;
use crate::sync::thread;
use crate::units::MIB;

fn count(store: &Faulty, kind: OperationKind) -> usize {
    store
        .log()
        .iter()
        .filter(|record| record.kind == kind)
        .count()
}

// spec: P16, P22
#[test]
fn only_a_partial_write_of_stored_bytes_reads_first() {
    for size in SIZES {
        let cache = memory(4_096);
        let store = patterned(2 * size + 100);
        let file = open(&cache, &store, &options(size));
        // These writes need no read: a whole block, the short last block as a whole, and a block
        // past the end.
        file.write_at(&vec![7; size as usize], 0).unwrap();
        file.write_at(&[8; 100], 2 * size).unwrap();
        file.write_at(&[9; 10], 3 * size + 5).unwrap();
        assert_eq!(count(&store, OperationKind::Read), 0, "blocks of {size}");
        file.write_at(&[6; 10], size + 5).unwrap();
        assert_eq!(count(&store, OperationKind::Read), 1);
        let mut expected = vec![7; size as usize];
        expected.extend(pattern(size..2 * size));
        expected[size as usize + 5..size as usize + 15].fill(6);
        expected.resize(2 * size as usize, 0);
        expected.extend([8; 100]);
        expected.resize(3 * size as usize + 5, 0);
        expected.extend([9; 10]);
        let mut bytes = Vec::new();
        file.scan(.., |piece| bytes.extend_from_slice(piece))
            .unwrap();
        assert!(bytes == expected);
        file.sync_all().unwrap();
        assert!(store.inner().to_vec() == expected);
    }
}

// spec: P28
#[test]
fn writers_move_away_from_views() {
    for size in SIZES {
        let cache = memory(4_096);
        let store = patterned(size);
        let file = open(&cache, &store, &options(size));
        let old = file.view(0..100).unwrap();
        let usage = cache.pool.totals().usage;
        file.write_at(&[0xAA; 50], 10).unwrap();
        assert_eq!(*old, *pattern(0..100), "a view never changes");
        let new = file.view(0..100).unwrap();
        assert_eq!(new[10..60], [0xAA; 50]);
        assert_eq!(new[60..], old[60..]);
        assert_ne!(old.as_ptr(), new.as_ptr());
        assert_eq!(file.stats().moved, 1);
        // The new frame is charged, and the old one stays charged as long as it is viewed.
        assert_eq!(cache.pool.totals().usage - usage, size / PAGE as u64);
        drop(old);
        assert_eq!(cache.pool.totals().usage, usage);
        drop(new);
        file.write_at(&[0xBB; 50], 10).unwrap();
        assert_eq!(
            file.stats().moved,
            1,
            "nobody views: the frame is written in place"
        );
        drop(file);
        assert_eq!(store.inner().to_vec()[10..60], [0xBB; 50]);
        assert_empty(&cache);
    }
}

#[test]
fn appends_of_many_threads_do_not_overlap() {
    // The write covers several pages. So an append in between finds the file longer than before,
    // but not yet at its new end.
    const LEN: usize = 100_000;
    const EACH: usize = 50;
    let cache = memory(8_192);
    let file = open(&cache, &Arc::new(MemoryStore::new()), &options(4096));
    let all_run = Arc::new(std::sync::Barrier::new(4));
    let writers: Vec<_> = (1..=4u8)
        .map(|number| {
            let (file, all_run) = (file.clone(), all_run.clone());
            thread::spawn(move || {
                all_run.wait();
                for _ in 0..EACH {
                    file.append(&[number; LEN]).unwrap();
                }
            })
        })
        .collect();
    writers
        .into_iter()
        .for_each(|writer| writer.join().unwrap());
    let bytes = contents(&file);
    assert_eq!(bytes.len(), 4 * EACH * LEN);
    assert!(
        bytes
            .chunks(LEN)
            .all(|chunk| chunk.iter().all(|byte| *byte == chunk[0]))
    );
    validate(core(&file));
}

#[test]
fn an_array_writes_elements_across_blocks_and_never_past_its_end() {
    for size in SIZES {
        let cache = memory_of(8, size);
        let store = patterned(3 * size + 64);
        let file = open(&cache, &store, &options(size));
        let mut wanted = pattern(0..3 * size + 64);
        let array = file.array::<u64>().unwrap();
        let len = array.len();
        let mut put = |first: u64, numbers: &[u64]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            wanted[first as usize * 8..][..bytes.len()].copy_from_slice(&bytes);
        };
        array.set(len - 1, 0x1122_3344_5566_7788).unwrap();
        put(len - 1, &[0x1122_3344_5566_7788]);
        // The numbers go from one block into another, with whole blocks in between.
        let numbers: Vec<u64> = (0..2 * size / 8 + 15)
            .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        array.write(size / 8 - 10, &numbers).unwrap();
        put(size / 8 - 10, &numbers);
        array.write(len, &[]).unwrap();
        assert!(contents(&file) == wanted, "blocks of {size}");
        assert_eq!(array.get(size / 8).unwrap(), numbers[10]);
        assert_eq!(file.array::<i8>().unwrap().set(0, -1).ok(), Some(()));
        assert_eq!(file.array::<u128>().unwrap().get(0).unwrap() as u8, 255);

        for (first, count, missing) in [(len, 1, len), (len - 1, 2, len), (u64::MAX, 1, u64::MAX)] {
            let error = array.write(first, &numbers[..count]).unwrap_err();
            assert!(
                matches!(error, FileError::NoSuchElement { index, .. } if index == missing),
                "{error}"
            );
        }
        assert!(matches!(
            array.set(len, 1),
            Err(FileError::NoSuchElement { .. })
        ));
        // A file that was cut since then stays short, and a file that grew stays long.
        file.set_len(size).unwrap();
        for error in [
            array.set(size / 8, 1).unwrap_err(),
            array.write(size / 8 - 1, &numbers[..2]).unwrap_err(),
            array.try_set(size / 8, 1).unwrap_err(),
            array.try_write(size / 8 - 1, &numbers[..2]).unwrap_err(),
        ] {
            assert!(matches!(error, FileError::PastEnd { .. }), "{error}");
        }
        assert_eq!(file.len(), size);
        array.write(len, &[]).unwrap();
        array.try_write(len, &[]).unwrap();
        file.set_len(4 * size).unwrap();
        array.write(len - 2, &[1, 2]).unwrap();
        assert_eq!((array.get(len - 1).unwrap(), file.len()), (2, 4 * size));
        validate(core(&file));
    }
}

#[test]
fn an_array_of_a_file_that_is_read_only_takes_no_elements() {
    let cache = memory(64);
    let store = patterned(4096);
    let file = open(&cache, &store, &options(4096).access(FileAccess::ReadOnly));
    let array = file.array::<u16>().unwrap();
    for error in [
        array.set(0, 1),
        array.write(0, &[1]),
        array.write(0, &[]),
        array.try_set(0, 1),
        array.try_write(0, &[1]),
        array.try_write(0, &[]),
    ] {
        assert!(matches!(error, Err(FileError::ReadOnly { .. })));
    }
}

#[test]
fn bad_writes_change_nothing() {
    let cache = memory(64);
    let store = patterned(4096);
    let file = open(&cache, &store, &options(4096).access(FileAccess::ReadOnly));
    let error = file.write_at(b"x", 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data.bin: is open read-only; nothing was written"
    );
    for outcome in [file.set_len(0), file.punch(..), file.discard()] {
        assert!(matches!(outcome, Err(FileError::ReadOnly { .. })));
    }
    file.sync_all().unwrap();
    let file = open(&cache, &store, &options(4096));
    let error = file.write_at(b"xy", i64::MAX as u64 - 1).unwrap_err();
    assert!(matches!(error, FileError::TooLarge { .. }), "{error}");
    assert!(matches!(
        file.write_at(b"xy", u64::MAX),
        Err(FileError::TooLarge { .. })
    ));
    assert!(matches!(
        file.set_len(u64::MAX),
        Err(FileError::TooLarge { .. })
    ));
    assert_eq!((file.len(), core(&file).dirty_blocks()), (4096, 0));
    for size in [0, 2048, 12_288, 4 << 20] {
        let store: Arc<dyn Store> = patterned(10);
        let opened = PagedFile::open(&cache, store, &options(size));
        assert!(
            matches!(opened, Err(FileError::BadBlockSize { .. })),
            "{size}"
        );
    }
}

#[test]
fn a_write_in_the_middle_of_nowhere_leaves_zeros_before_it() {
    let cache = memory(64);
    let store = patterned(5_000);
    let file = open(&cache, &store, &options(4096));
    file.write_at(b"end", 1 << 30).unwrap();
    assert_eq!(file.len(), (1 << 30) + 3);
    let mut bytes = [1; 4096];
    file.read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes[..904], *pattern(4096..5_000));
    assert!(bytes[904..].iter().all(|byte| *byte == 0));
    assert_eq!(file.view(1 << 29..(1 << 29) + 4).unwrap()[..], [0; 4]);
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(store.inner().len().unwrap(), (1 << 30) + 3);
    assert_empty(&cache);
}

// spec: P16, P28
#[test]
fn readers_of_views_never_see_writers() {
    for size in SIZES {
        let rounds = if size > MIB { 40 } else { 400u64 };
        let cache = memory_of(128, size);
        let file = open(
            &cache,
            &Arc::new(MemoryStore::with_len(4 * size)),
            &options(size),
        );
        file.write_at(&vec![0; 4 * size as usize], 0).unwrap();
        let writer = {
            let file = file.clone();
            thread::spawn(move || {
                for round in 1..rounds {
                    let block = round % 4;
                    file.write_at(&vec![round as u8; size as usize], block * size)
                        .unwrap();
                }
            })
        };
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let file = file.clone();
                thread::spawn(move || {
                    for round in 0..rounds {
                        let start = round % 4 * size;
                        let view = file.view(start..start + size).unwrap();
                        let first = view[0];
                        assert!(
                            view.iter().all(|byte| *byte == first),
                            "a view shows one write alone"
                        );
                    }
                })
            })
            .collect();
        writer.join().unwrap();
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
        drop(file);
        assert_empty(&cache);
    }
}

#[test]
fn a_write_to_part_of_a_hole_keeps_what_others_wrote_there() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = Arc::new(FaultyStore::new(MemoryStore::with_len(2 * size)));
        let file = open(&cache, &store, &options(size));
        let beside = |work: fn(&PagedFile, u64)| {
            let file = file.clone();
            move || {
                let other = thread::spawn(move || work(&file, size));
                other.join().unwrap();
            }
        };
        // The block is made and evicted while the one write runs.
        let made = failpoint::on(
            "NotCached",
            beside(|file, size| file.write_at(&vec![3; size as usize], 0).unwrap()),
        );
        let gone = failpoint::on(
            "HoleFound",
            beside(|file, _| {
                file.sync_all().unwrap();
                file.evict(..).unwrap();
            }),
        );
        file.write_at(&[2; 100], 0).unwrap();
        drop((made, gone));
        let mut expected = vec![2; 100];
        expected.resize(size as usize, 3);
        expected.resize(2 * size as usize, 0);
        assert!(contents(&file) == expected);
        validate(core(&file));
    }
}

#[test]
fn an_append_that_has_written_nothing_is_tried_again_though_the_file_is_longer() {
    let cache = memory(64);
    let group = cache.root.create_child("both", 32 * 4096).unwrap();
    let options = options(4096).group(&group);
    let [file, other] = [(); 2].map(|()| open(&cache, &patterned(0), &options));
    // Reclaim skips both files while one is locked.
    for file in [&file, &other] {
        core(file).store.note_use();
    }
    other.write_at(&[1; 8 * PAGE], 0).unwrap();
    let there = failpoint::on("NotCached", {
        let file = file.clone();
        let longer = move || {
            file.write_at(&[2], 5 * PAGE as u64).unwrap();
            group.set_max(group.usage()).unwrap();
        };
        || thread::spawn(longer).join().unwrap()
    });
    assert_eq!(file.append(&[3; 100]).unwrap(), 5 * PAGE as u64 + 1);
    drop(there);
    let mut expected = vec![0; 5 * PAGE];
    expected.push(2);
    expected.extend([3; 100]);
    assert!(contents(&file) == expected);
    drop((file, other));
    assert_empty(&cache);
}
