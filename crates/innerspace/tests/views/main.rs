//! Views of a file: slices of views, views block by block, and ([`long`]) long ones.

mod long;

use std::io;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use innerspace::store::{MemoryStore, Store};
use innerspace::{
    KIB, MIB, Map, Memory, PagedFile, View,
    file::{FileAccess, FileError},
    group::LimitReason,
};

/// The block sizes at which each test runs.
const SIZES: [u64; 3] = [4 * KIB, 64 * KIB, 2 * MIB];

fn pattern(len: u64) -> Vec<u8> {
    let byte = |at: u64| (at ^ (at >> 8) ^ (at >> 16)) as u8 | 1;
    (0..len).map(byte).collect()
}

fn open(memory: &Memory, block: u64, bytes: &[u8]) -> PagedFile {
    let options = memory.file_options().block_size(block);
    let options = options.access(FileAccess::ReadWrite);
    options.open_store(MemoryStore::from_bytes(bytes)).unwrap()
}

fn used(memory: &Memory) -> u64 {
    memory.stats().usage
}

// spec: P28
#[test]
fn a_slice_keeps_the_block_that_it_is_of_and_nothing_else() {
    for block in SIZES {
        let memory = Memory::with_limit(16 * MIB).unwrap();
        let bytes = pattern(block);
        let file = open(&memory, block, &bytes);
        let view = file.view(100..4000).unwrap();
        let slice = view.slice(10..20);
        let inner = slice.slice(5..);
        assert_eq!(slice.as_ptr(), view[10..].as_ptr(), "nothing is copied");
        drop((view, slice));
        file.write_at(&[0; 100], 100).unwrap();
        assert_eq!(inner[..], bytes[115..120]);
        drop(file);
        assert!(used(&memory) >= block / 4096, "the slice keeps its block");
        drop(inner);
        assert!(used(&memory) < block / 4096 + 8, "{}", used(&memory));
    }
}

#[test]
fn slices_have_the_bounds_of_slices() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let file = open(&memory, 4096, &pattern(10_000));
    let view = file.view(5..5000).unwrap();
    assert_eq!(view.slice(..)[..], view[..]);
    assert_eq!(view.slice(3..=7)[..], view[3..=7]);
    assert!(view.slice(4995..).is_empty());
    let beyond = std::panic::catch_unwind(|| view.slice(4990..5000));
    assert!(beyond.is_err());
    file.set_len(1 << 20).unwrap();
    let hole = file.view(500_000..500_100).unwrap();
    assert_eq!(hole.slice(50..)[..], [0; 50]);
}

#[test]
fn chunks_are_the_blocks_of_the_range_and_end_with_the_first_error() {
    for block in SIZES {
        let memory = Memory::with_limit(16 * MIB).unwrap();
        let bytes = pattern(2 * block + 500);
        let file = open(&memory, block, &bytes);
        let chunks = file.chunks(100..).unwrap();
        let chunks: Vec<View> = chunks.collect::<Result<_, _>>().unwrap();
        let lengths: Vec<u64> = chunks.iter().map(|chunk| chunk.len() as u64).collect();
        assert_eq!(lengths, [block - 100, block, 500]);
        assert!(
            chunks
                .iter()
                .flat_map(|chunk| chunk.iter())
                .eq(&bytes[100..])
        );
        assert_eq!(file.stats().copied_views, 0);

        let mut cut = file.chunks(..).unwrap();
        assert_eq!(cut.next().unwrap().unwrap()[..], bytes[..block as usize]);
        file.set_len(block).unwrap();
        let error = cut.next().unwrap().unwrap_err();
        assert!(matches!(error, FileError::PastEnd { .. }), "{error}");
        assert!(cut.next().is_none());
        assert!(matches!(
            file.chunks(..2 * block),
            Err(FileError::PastEnd { .. })
        ));
    }
}

#[test]
fn a_scatter_view_is_a_cursor_over_views_that_do_not_change() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let bytes = pattern(100_000);
    let file = open(&memory, 4096, &bytes);
    let mut scattered = file.scatter(1000..90_000).unwrap();
    file.write_at(&vec![0; 100_000], 0).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(scattered.len(), 89_000);
    let mut read = Vec::new();
    while read.len() < 50_000 {
        let some = scattered.chunk().len().min(1500);
        read.extend_from_slice(&scattered.chunk()[..some]);
        scattered.advance(some);
        assert_eq!(scattered.len() + read.len(), 89_000);
    }
    for view in &mut scattered {
        read.extend_from_slice(&view);
    }
    assert_eq!(read, bytes[1000..90_000]);
    assert!(scattered.is_empty() && scattered.chunk().is_empty());
    let empty = file.scatter(..).unwrap();
    assert_eq!((empty.len(), empty.count()), (0, 0));
}

#[cfg(feature = "bytes_1")]
#[test]
fn a_scatter_view_is_a_buffer_of_the_bytes_crate() {
    use bytes::Buf;
    use std::io::IoSlice;

    let memory = Memory::with_limit(4 * MIB).unwrap();
    let bytes = pattern(20_000);
    let file = open(&memory, 4096, &bytes);
    let mut scattered = file.scatter(1000..).unwrap();
    assert_eq!(Buf::remaining(&scattered), 19_000);
    Buf::advance(&mut scattered, 100);
    let mut slices = [IoSlice::new(&[]); 8];
    assert_eq!(scattered.chunks_vectored(&mut slices[..2]), 2);
    assert_eq!(slices.map(|slice| slice.len())[..3], [2996, 4096, 0]);
    assert_eq!(scattered.chunks_vectored(&mut slices), 5);
    let gathered: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
    assert_eq!(gathered, bytes[1100..]);
    assert_eq!(slices[1].as_ptr() as usize % 4096, 0, "the block itself");
    assert_eq!(scattered.get_u16().to_be_bytes(), bytes[1100..1102]);
    let mut rest = vec![0; 18_898];
    scattered.copy_to_slice(&mut rest);
    assert_eq!(rest, bytes[1102..]);
    assert!(!scattered.has_remaining());
    assert_eq!(scattered.chunks_vectored(&mut [IoSlice::new(&[])]), 0);
}

#[cfg(feature = "zerocopy_0_8")]
#[test]
fn values_that_are_aligned_in_the_file_are_aligned_in_a_view() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let bytes: Vec<u8> = (0..3000_u32).flat_map(u32::to_ne_bytes).collect();
    let file = open(&memory, 4096, &bytes);
    let view = file.view(400..4096).unwrap();
    let numbers = view.cast::<u32>().unwrap();
    assert!(numbers.iter().copied().eq(100..1024));
    assert!(file.view(401..405).unwrap().cast::<u32>().is_err());
    assert!(file.view(400..403).unwrap().cast::<u32>().is_err());
    assert!(file.view(0..0).unwrap().cast::<u64>().unwrap().is_empty());
}
