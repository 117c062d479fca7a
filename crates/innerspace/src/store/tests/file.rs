//! Tests of `FileStore`, on real files.
#![cfg(not(miri))]

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::*;
use crate::sys::file::disk_dir;
use crate::units::{MIB, PAGE_SIZE};

pub(super) const ALL_MODES: [CacheMode; 4] = [
    CacheMode::DontCache,
    CacheMode::Direct,
    CacheMode::DropAfterUse,
    CacheMode::Kernel,
];

pub(super) fn file_with(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = disk_dir();
    let path = dir.path().join("data.bin");
    std::fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// Opens a new file in this mode. If the mode does not work, prints a message and returns `None`.
pub(super) fn create_with(path: &std::path::Path, mode: CacheMode) -> Option<FileStore> {
    match FileOptions::new().cache_mode(mode).create(path) {
        Ok(store) => Some(store),
        Err(error @ FileOpenError::CacheMode { .. }) => {
            eprintln!("left out: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn it_behaves_like_a_plain_vector_in_every_cache_mode() {
    let dir = disk_dir();
    for mode in ALL_MODES {
        let path = dir.path().join(mode.to_string());
        for seed in 0..4 {
            let Some(store) = create_with(&path, mode) else {
                break;
            };
            assert_eq!(store.cache_mode(), mode);
            compare_with_plain_vector(&store, seed, 300_000);
            let through_store = read_all(&store);
            drop(store);
            assert!(
                std::fs::read(&path).unwrap() == through_store,
                "{mode} seed {seed}"
            );
        }
    }
}

#[test]
fn aligned_memory_and_an_unaligned_end_meet_in_direct_mode() {
    #[repr(align(4096))]
    struct Pages([u8; 4 * PAGE_SIZE]);
    let dir = disk_dir();
    let path = dir.path().join("data.bin");
    let Some(store) = create_with(&path, CacheMode::Direct) else {
        return;
    };
    assert_eq!(store.limits().alignment, PAGE_SIZE);
    let mut pages = Pages([0; 4 * PAGE_SIZE]);
    pages.0.copy_from_slice(&pattern(4 * PAGE_SIZE, 3));
    let len = 3 * PAGE_SIZE + 100;
    assert_eq!(
        store.write_at(&pages.0[..len], 0).unwrap(),
        3 * PAGE_SIZE,
        "whole pages first"
    );
    write_all_at(&store, &pages.0[3 * PAGE_SIZE..len], 3 * PAGE_SIZE as u64).unwrap();
    assert_eq!(store.len().unwrap(), len as u64);
    let slices = pages
        .0
        .chunks(PAGE_SIZE)
        .map(IoSlice::new)
        .collect::<Vec<_>>();
    assert_eq!(
        store.write_vectored_at(&slices, PAGE_SIZE as u64).unwrap(),
        4 * PAGE_SIZE
    );
    store.set_len(len as u64).unwrap();

    let mut expected = pattern(PAGE_SIZE, 3);
    expected.extend(&pages.0[..2 * PAGE_SIZE + 100]);
    pages.0.fill(0);
    assert_eq!(read_exact_or_eof(&store, &mut pages.0, 0).unwrap(), len);
    assert!(pages.0[..len] == expected);
    assert!(std::fs::read(&path).unwrap() == expected);
}

/// Memory that consists of whole pages.
struct Pages(Vec<u8>);

impl Pages {
    fn new(count: usize) -> Pages {
        Pages(vec![0x55; (count + 1) * PAGE_SIZE])
    }

    fn get(&mut self) -> &mut [u8] {
        let begin = self.0.as_ptr().addr().wrapping_neg() & (PAGE_SIZE - 1);
        let end = self.0.len() - PAGE_SIZE + begin;
        &mut self.0[begin..end]
    }
}

/// Reads into the buffers in as many calls as needed. Returns the number of calls and the number of
/// bytes.
fn read_all_vectored(
    store: &FileStore,
    mut bufs: &mut [IoSliceMut<'_>],
    offset: u64,
) -> (usize, usize) {
    let (mut calls, mut done) = (0, 0);
    while !bufs.is_empty() {
        calls += 1;
        match store.read_vectored_at(bufs, offset + done as u64).unwrap() {
            0 => break,
            count => {
                done += count;
                IoSliceMut::advance_slices(&mut bufs, count);
            }
        }
    }
    (calls, done)
}

// spec: R1
#[cfg(target_os = "linux")]
#[test]
fn pages_here_and_there_are_read_by_one_call_in_every_cache_mode() {
    let bytes = pattern(300 * PAGE_SIZE, 6);
    let (_dir, path) = file_with(&bytes);
    for mode in [CacheMode::Auto].into_iter().chain(ALL_MODES) {
        let Ok(store) = FileOptions::new().cache_mode(mode).open(&path) else {
            continue;
        };
        assert_eq!(store.limits().preferred_size, 256 * PAGE_SIZE);
        let mut pages = Pages::new(300);
        // The two buffers of each pair are adjacent in memory, and the pairs are in reverse order.
        let mut bufs: Vec<_> = pages.get().chunks_mut(2 * PAGE_SIZE).collect();
        bufs.reverse();
        let bufs = bufs.iter_mut().flat_map(|two| two.chunks_mut(PAGE_SIZE));
        let mut bufs: Vec<_> = bufs.map(IoSliceMut::new).collect();
        let at = PAGE_SIZE as u64;
        let count = store.read_vectored_at(&mut bufs[..256], at).unwrap();
        assert_eq!(count, 256 * PAGE_SIZE, "{mode}");
        let read = bufs[..256].iter().flat_map(|buf| buf.iter().copied());
        assert!(read.eq(bytes[PAGE_SIZE..257 * PAGE_SIZE].iter().copied()));
        assert!(bufs[256].iter().all(|&byte| byte == 0x55), "{mode}");
    }
}

// spec: R8
// spec: R14
#[test]
fn reads_of_any_alignment_end_with_the_file_in_every_cache_mode() {
    let len = 20 * PAGE_SIZE + 777;
    let bytes = pattern(len, 5);
    let (_dir, path) = file_with(&bytes);
    for mode in [CacheMode::Auto].into_iter().chain(ALL_MODES) {
        let Ok(store) = FileOptions::new().cache_mode(mode).open(&path) else {
            continue;
        };
        let mut dice = Dice(8);
        for round in 0..200 {
            let is_aligned = round % 2 == 0;
            let skew = if is_aligned { 0 } else { dice.roll(3) as usize };
            let offset = dice.roll(len as u64 + 9000) as usize;
            let offset = if is_aligned {
                offset & !(PAGE_SIZE - 1)
            } else {
                offset
            };
            let mut pages = Pages::new(24);
            let mut bufs = Vec::new();
            let mut rest = &mut pages.get()[skew..];
            for _ in 0..=dice.roll(5) {
                let len = dice.roll(4 * PAGE_SIZE as u64) as usize;
                let len = if dice.roll(2) == 0 {
                    len & !(PAGE_SIZE - 1)
                } else {
                    len
                };
                let (buf, after) = rest.split_at_mut(len);
                bufs.push(IoSliceMut::new(buf));
                rest = after;
            }
            let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
            let (_, count) = read_all_vectored(&store, &mut bufs, offset as u64);
            drop(bufs);
            let expected = &bytes[len.min(offset)..len.min(offset + wanted)];
            assert_eq!(count, expected.len(), "{mode} round {round}");
            let read = &pages.get()[skew..];
            assert!(read[..count] == *expected, "{mode} round {round}");
            // The bytes after those asked for are not touched.
            assert!(read[wanted..].iter().all(|&byte| byte == 0x55));
        }
        assert_eq!(store.len().unwrap(), len as u64, "{mode}");
    }
}

#[test]
fn a_read_sees_what_was_just_written_and_not_synced() {
    let dir = disk_dir();
    for mode in [CacheMode::Auto].into_iter().chain(ALL_MODES) {
        let Some(store) = create_with(&dir.path().join(mode.to_string()), mode) else {
            continue;
        };
        let mut pages = Pages::new(64);
        for round in 0..40u64 {
            let fresh = pattern(60 * PAGE_SIZE + 99, round);
            // Writes from unaligned memory to the middle of a page.
            write_all_at(&store, &fresh, round * 100).unwrap();
            let begin = round * 100;
            let from = begin.next_multiple_of(PAGE_SIZE as u64);
            let mut bufs: Vec<_> = pages.get().chunks_mut(PAGE_SIZE).collect();
            let mut bufs: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
            let (_, count) = read_all_vectored(&store, &mut bufs, from);
            let expected = &fresh[(from - begin) as usize..];
            assert!(count >= expected.len(), "{mode} round {round}");
            assert!(pages.get()[..expected.len()] == *expected, "{mode} {round}");
            assert_eq!(store.len().unwrap(), begin + fresh.len() as u64);
        }
    }
}

#[test]
fn many_threads_read_what_is_not_aligned() {
    let bytes = pattern(1 << 20, 2);
    let (_dir, path) = file_with(&bytes);
    let store = FileStore::open(&path).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..32 {
            let (store, bytes) = (&store, &bytes);
            scope.spawn(move || {
                let mut dice = Dice(seed);
                let mut buf = vec![0; 9000];
                for _ in 0..30 {
                    let offset = dice.roll(1 << 20) as usize;
                    let count = read_exact_or_eof(store, &mut buf, offset as u64).unwrap();
                    assert!(buf[..count] == bytes[offset..bytes.len().min(offset + 9000)]);
                }
            });
        }
    });
}

/// Writes 8 MiB and syncs; reads all of it; reads and rewrites some pages and syncs; then rewrites
/// all of it by long writes and syncs.
fn work_hard(store: &FileStore) {
    let len = 8 * MIB;
    let piece = pattern(256 << 10, 9);
    let mut buf = vec![0; piece.len()];
    for offset in (0..len).step_by(piece.len()) {
        write_all_at(store, &piece, offset).unwrap();
    }
    store.sync(SyncWhat::Data).unwrap();
    for offset in (0..len).step_by(piece.len()) {
        assert_eq!(
            read_exact_or_eof(store, &mut buf, offset).unwrap(),
            buf.len()
        );
        assert!(buf == piece);
    }
    let mut pages = Pages::new(piece.len() / PAGE_SIZE);
    for offset in (0..len).step_by(piece.len()) {
        let mut bufs: Vec<_> = pages.get().chunks_mut(PAGE_SIZE).collect();
        let mut bufs: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        read_all_vectored(store, &mut bufs, offset);
        assert!(*pages.get() == *piece);
    }
    let mut dice = Dice(4);
    for _ in 0..200 {
        let offset = dice.roll(len / PAGE_SIZE as u64) * PAGE_SIZE as u64;
        let page = &mut buf[..PAGE_SIZE];
        assert_eq!(read_exact_or_eof(store, page, offset).unwrap(), PAGE_SIZE);
        let offset = dice.roll(len / PAGE_SIZE as u64) * PAGE_SIZE as u64;
        write_all_at(store, page, offset).unwrap();
    }
    store.sync(SyncWhat::Data).unwrap();
    // The written bytes begin one byte into the buffer, so that their memory is unaligned.
    let long = [&[0], &piece.repeat(16)[..]].concat();
    for offset in [0, len / 2] {
        write_all_at(store, &long[1..], offset).unwrap();
    }
    store.sync(SyncWhat::Data).unwrap();
}

// spec: P26
// spec: R16
#[cfg(target_os = "linux")]
#[test]
fn the_kernel_keeps_almost_nothing_of_a_file() {
    let dir = disk_dir();
    let path = dir.path().join("data.bin");
    // Checks the measurement first: a store in mode `Kernel` leaves everything cached until it is
    // dropped.
    let store = create_with(&path, CacheMode::Kernel).unwrap();
    work_hard(&store);
    let Ok(all) = kernel_cached_pages(&path) else {
        eprintln!("left out: what the kernel caches cannot be told here");
        return;
    };
    if all.bytes() < 8 * MIB {
        eprintln!("left out: short of memory, or the file system has a cache of its own");
        return;
    }
    crate::sys::file::drop_cached(&File::open(&path).unwrap(), 0, 0);
    if kernel_cached_pages(&path).unwrap().bytes() == 8 * MIB {
        eprintln!("left out: on this file system the page cache is the file");
        return;
    }
    drop(store);

    let modes = [
        CacheMode::Auto,
        CacheMode::DontCache,
        CacheMode::Direct,
        CacheMode::DropAfterUse,
    ];
    for mode in modes {
        std::fs::remove_file(&path).unwrap();
        let Some(store) = create_with(&path, mode) else {
            std::fs::write(&path, []).unwrap();
            continue;
        };
        work_hard(&store);
        let left = kernel_cached_pages(&path).unwrap();
        // 2 % of 2,048 pages.
        assert!(
            left.0 <= 41,
            "{} ({mode}): {} pages left",
            store.cache_mode(),
            left.0
        );
        assert_ne!(store.cache_mode(), CacheMode::Kernel, "Linux has better");
    }
}

#[test]
fn holes_are_reported_and_made() {
    let dir = disk_dir();
    let store = FileStore::create(dir.path().join("data.bin")).unwrap();
    store.set_len(4 * MIB).unwrap();
    write_all_at(&store, &[1; 65_536], 2 * MIB).unwrap();
    store.sync(SyncWhat::All).unwrap();
    assert!(
        read_all(&store)[..2 * MIB as usize]
            .iter()
            .all(|&byte| byte == 0)
    );
    if !cfg!(target_os = "linux") {
        return;
    }
    assert_eq!(store.next_data(0).unwrap(), Some(2 * MIB));
    assert_eq!(store.next_hole(0).unwrap(), 0);
    assert_eq!(store.next_hole(2 * MIB).unwrap(), 2 * MIB + 65_536);
    assert_eq!(store.next_data(3 * MIB).unwrap(), None);
    assert_eq!(
        (
            store.next_data(9 * MIB).unwrap(),
            store.next_hole(9 * MIB).unwrap()
        ),
        (None, 9 * MIB)
    );

    store.punch(2 * MIB, u64::MAX).unwrap();
    assert_eq!(
        (store.next_data(0).unwrap(), store.len().unwrap()),
        (None, 4 * MIB)
    );
}

#[test]
fn a_file_cut_short_from_outside_is_an_error_with_both_lengths() {
    let (_dir, path) = file_with(&[1; 1_000_000]);
    for mode in ALL_MODES {
        std::fs::write(&path, [1; 1_000_000]).unwrap();
        let options = FileOptions::new().cache_mode(mode);
        let Ok(store) = options.open(&path) else {
            continue;
        };
        let mut buf = vec![0; 4096];
        assert_eq!(
            read_exact_or_eof(&store, &mut buf, 999_000).unwrap(),
            1000,
            "the real end"
        );
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(500_000)
            .unwrap();
        for offset in [499_712, 700_000] {
            let error = read_exact_or_eof(&store, &mut buf, offset).unwrap_err();
            assert_eq!(StoreErrorKind::of(&error), StoreErrorKind::Shrank);
            let expected = format!(
                "wanted 4096 bytes at {} but the file now ends at 500,000 \
                 (it was 1,000,000 when opened)",
                crate::units::Grouped(offset)
            );
            assert_eq!(error.to_string(), expected, "{mode}");
        }
        assert_eq!(read_exact_or_eof(&store, &mut buf, 2_000_000).unwrap(), 0);
    }
}

#[test]
fn a_length_changed_through_the_store_is_no_shrink() {
    let (_dir, path) = file_with(&[1; 100_000]);
    let store = FileStore::open_rw(&path).unwrap();
    let mut buf = [0; 100];
    store.set_len(10_000).unwrap();
    assert_eq!(read_exact_or_eof(&store, &mut buf, 50_000).unwrap(), 0);
    write_all_at(&store, &[2; 100], 20_000).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(15_000)
        .unwrap();
    let error = read_exact_or_eof(&store, &mut buf, 20_000).unwrap_err();
    assert_eq!(
        error.to_string(),
        "wanted 100 bytes at 20,000 but the file now ends at 15,000 \
         (it was 20,100 after it was last changed here)"
    );
    assert!(store.set_len(u64::MAX).is_err());
    store.set_len(20_100).unwrap();
    assert_eq!(read_exact_or_eof(&store, &mut buf, 20_000).unwrap(), 100);
}

#[test]
fn changes_from_outside_make_a_new_version_and_own_ones_do_not() {
    let (_dir, path) = file_with(&[1; 100_000]);
    let store = FileStore::open_rw(&path).unwrap();
    let first = store.version().unwrap();
    store.write_at(&[2; 4096], 0).unwrap();
    assert_eq!(store.version().unwrap(), first);
    store.set_len(200_000).unwrap();
    store.punch(0, 4096).unwrap();
    assert_eq!(store.version().unwrap(), first);
    assert_eq!(store.version().unwrap(), first);

    let outside = File::options().write(true).open(&path).unwrap();
    let stamp = |age: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + age);
    outside.set_modified(stamp(1)).unwrap();
    let second = store.version().unwrap();
    assert_ne!(second, first);
    store.write_at(&[3; 4096], 0).unwrap();
    assert_eq!(store.version().unwrap(), second);
    outside.set_len(300_000).unwrap();
    assert_ne!(store.version().unwrap(), second);

    let reader = FileStore::open(&path).unwrap();
    let before = reader.version().unwrap();
    store.write_at(&[4; 1], 300_000).unwrap();
    assert_ne!(
        reader.version().unwrap(),
        before,
        "to a reader the writer is outside"
    );
}

#[test]
fn offsets_past_63_bits_are_errors_and_not_the_cursor() {
    let (_dir, path) = file_with(b"abc");
    for mode in ALL_MODES {
        let options = FileOptions::new()
            .access(FileAccess::ReadWrite)
            .cache_mode(mode);
        let Ok(store) = options.open(&path) else {
            continue;
        };
        assert!(store.write_at(b"x", u64::MAX).is_err(), "{mode}");
        assert!(store.read_at(&mut [0; 1], u64::MAX).is_err(), "{mode}");
        assert!(write_zeros(&store, u64::MAX, 2).is_err(), "{mode}");
        assert_eq!(read_all(&store), b"abc");
    }
}
