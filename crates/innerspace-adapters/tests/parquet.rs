//! Chunks of Parquet files.

#![cfg(feature = "parquet_60")]

use std::io::Read;

use innerspace::{MIB, Memory, store::MemoryStore};
use innerspace_adapters::parquet::PagedReader;
use parquet::file::reader::{ChunkReader, Length};

#[test]
fn chunks_are_those_of_the_file_and_end_with_it() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
    let memory = Memory::with_limit(MIB).unwrap();
    let file = memory
        .file_options()
        .open_store(MemoryStore::from_bytes(&bytes))
        .unwrap();
    let reader = PagedReader::new(file);
    assert_eq!(reader.len(), 100_000);
    for (start, len) in [(0, 8), (4_090, 12), (99_992, 8), (50_000, 40_000), (7, 0)] {
        let chunk = reader.get_bytes(start, len).unwrap();
        assert_eq!(chunk, &bytes[start as usize..][..len]);
    }
    assert!(reader.get_bytes(99_993, 8).is_err());
    assert!(reader.get_bytes(u64::MAX, 8).is_err());
    let mut tail = Vec::new();
    reader
        .get_read(99_000)
        .unwrap()
        .read_to_end(&mut tail)
        .unwrap();
    assert_eq!(tail, &bytes[99_000..]);
}
