//! Tests of `MemoryStore`.

use std::io::IoSlice;

use super::*;

const CHUNK: u64 = 64 << 10;

#[test]
fn it_behaves_like_a_plain_vector() {
    for seed in 0..20 {
        compare_with_plain_vector(&MemoryStore::new(), seed, 10 * CHUNK + 77);
    }
}

#[test]
fn holes_take_no_memory_and_are_known() {
    let store = MemoryStore::with_len(1 << 40);
    assert_eq!(
        (store.resident_bytes(), store.next_data(0).unwrap()),
        (0, None)
    );
    store.write_at(b"x", (1 << 30) + 5).unwrap();
    assert_eq!(store.resident_bytes(), CHUNK);
    assert_eq!(store.next_data(0).unwrap(), Some(1 << 30));
    assert_eq!(store.next_data((1 << 30) + 9).unwrap(), Some((1 << 30) + 9));
    assert_eq!(store.next_hole(0).unwrap(), 0);
    assert_eq!(store.next_hole(1 << 30).unwrap(), (1 << 30) + CHUNK);
    assert_eq!(store.next_data((1 << 30) + CHUNK).unwrap(), None);

    store.punch(1 << 30, CHUNK).unwrap();
    assert_eq!((store.resident_bytes(), store.len().unwrap()), (0, 1 << 40));
}

#[test]
fn it_is_not_called_like_a_memory() {
    assert_eq!(MemoryStore::new().name(), "memory store");
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let store = MemoryStore::from_bytes(&[7; 100_000]);
    store.set_len(10).unwrap();
    assert_eq!(store.resident_bytes(), CHUNK);
    store.set_len(100_000).unwrap();
    assert_eq!(store.to_vec()[..10], [7; 10]);
    assert!(store.to_vec()[10..].iter().all(|&byte| byte == 0));
}

#[test]
fn it_counts_what_is_asked_of_it() {
    let store = MemoryStore::from_bytes(b"abc");
    store.read_at(&mut [0; 10], 1).unwrap();
    store.write_at(b"defg", 3).unwrap();
    store.sync(SyncWhat::Data).unwrap();
    store.punch(0, 1).unwrap();
    let counts = store.counts();
    assert_eq!((counts.reads, counts.read_bytes), (1, 2));
    assert_eq!((counts.writes, counts.written_bytes), (1, 4));
    assert_eq!((counts.syncs, counts.punches), (1, 1));
    assert_eq!(store.to_vec(), b"\0bcdefg");
    assert_eq!(store.counts(), counts, "looking is not counted");
}

#[test]
fn buffers_are_written_one_behind_the_other() {
    let chunk = CHUNK as usize;
    // The buffers cover new chunks, in part and as a whole, and existing ones. Some are empty, and
    // some cross chunks.
    let lens = [0, 5, chunk, 2 * chunk + 3, 0, 1, chunk - 9];
    let bytes: Vec<u8> = (0..6 * chunk).map(|at| (at % 251) as u8 + 1).collect();
    for offset in [0, 1, chunk - 5, chunk, 3 * chunk + 7] {
        let store = MemoryStore::from_bytes(&vec![9; chunk / 2]);
        let mut expected = store.to_vec();
        let mut bufs = Vec::new();
        let mut rest = &bytes[..];
        for len in lens {
            let (buf, behind) = rest.split_at(len);
            bufs.push(IoSlice::new(buf));
            rest = behind;
        }
        let len: usize = lens.iter().sum();
        let written = store.write_vectored_at(&bufs, offset as u64).unwrap();
        assert_eq!((written, store.counts().writes), (len, 1));
        expected.resize(expected.len().max(offset + len), 0);
        expected[offset..offset + len].copy_from_slice(&bytes[..len]);
        assert!(store.to_vec() == expected, "at {offset}");
        store.set_len(offset as u64 + 8 * CHUNK).unwrap();
        let behind = &store.to_vec()[expected.len()..];
        assert!(behind.iter().all(|byte| *byte == 0), "zeros behind");
    }
}

#[test]
fn an_offset_of_64_bits_is_an_error() {
    let store = MemoryStore::new();
    for offset in [u64::MAX, i64::MAX as u64] {
        assert_eq!(
            store.write_at(b"x", offset).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        assert_eq!(store.read_at(&mut [0], offset).unwrap(), 0);
    }
    assert_eq!(
        store.set_len(u64::MAX).unwrap_err().kind(),
        io::ErrorKind::FileTooLarge
    );
    assert_eq!((store.len().unwrap(), store.resident_bytes()), (0, 0));
    store.punch(u64::MAX, u64::MAX).unwrap();
}

#[test]
fn an_identity_is_the_stores_own_and_stays() {
    let (one, other) = (MemoryStore::new(), MemoryStore::new());
    assert_ne!(one.identity(), other.identity());
    let identity = one.identity();
    let shared = Arc::new(one);
    assert_eq!(shared.identity(), identity);
    assert_eq!(shared.clone().identity(), identity);
}

#[test]
fn only_changes_from_outside_make_a_new_version() {
    let store = MemoryStore::new();
    let version = store.version().unwrap();
    store.write_at(b"abc", 0).unwrap();
    store.set_len(2).unwrap();
    assert_eq!(store.version().unwrap(), version);
    store.change_externally(b"X", 1).unwrap();
    assert_ne!(store.version().unwrap(), version);
    assert_eq!(store.to_vec(), b"aX");
    let version = store.version().unwrap();
    store.set_len_externally(1).unwrap();
    assert_ne!(store.version().unwrap(), version);
}

#[test]
fn a_copy_has_the_bytes_and_the_holes() {
    let store = MemoryStore::with_len(100 * CHUNK + 1);
    store.write_at(b"abc", 50 * CHUNK - 1).unwrap();
    store.write_at(b"z", 100 * CHUNK).unwrap();
    let copy = MemoryStore::copy_of(&store).unwrap();
    assert!(copy.to_vec() == store.to_vec());
    assert_eq!(copy.resident_bytes(), 3 * CHUNK);
}

#[test]
fn a_copy_for_which_there_is_no_memory_is_an_error() {
    let store = MemoryStore::new();
    store.set_len(1 << 62).unwrap();
    let error = store.try_to_vec().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
}

#[test]
fn a_copy_of_a_store_that_is_too_long_is_an_error() {
    struct Endless;
    impl Store for Endless {
        fn len(&self) -> std::io::Result<u64> {
            Ok(u64::MAX)
        }
        fn read_at(&self, _: &mut [u8], _: u64) -> std::io::Result<usize> {
            Ok(0)
        }
    }
    let error = MemoryStore::copy_of(&Endless).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
}
