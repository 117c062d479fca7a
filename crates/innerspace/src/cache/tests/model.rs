//! Random operations against plain vectors, at several block sizes, in a memory smaller than the
//! file, with a store that fails now and then.

use super::*;
use crate::cache::core::validate::validate;
use crate::cache::{FileError, View};
use crate::store::faulty::{Failure, Fault, OperationKind, Rule};

struct Random(u64);

impl Random {
    /// Returns a number below `bound` (xorshift64*).
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % bound
    }
}

/// The file, its expected bytes, and views with the bytes that they must keep.
struct World {
    cache: Arc<Cache>,
    store: Arc<Faulty>,
    file: PagedFile,
    expected: Vec<u8>,
    views: Vec<(View, Vec<u8>)>,
    random: Random,
    max: u64,
}

impl World {
    fn new(block_size: u64, frames: u32, max: u64, seed: u64) -> World {
        let cache = memory(frames);
        let store = patterned(max / 2);
        let file = open(&cache, &store, &options(block_size));
        let expected = pattern(0..max / 2);
        World {
            cache,
            store,
            file,
            expected,
            views: Vec::new(),
            random: Random(seed | 1),
            max,
        }
    }

    fn range(&mut self, longest: u64) -> (u64, usize) {
        let offset = self.random.below(self.max);
        let len = 1 + self.random.below(longest.min(self.max - offset));
        (offset, len as usize)
    }

    fn slice(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset as usize).min(self.expected.len());
        &self.expected[start..(start + len).min(self.expected.len())]
    }

    fn step(&mut self) {
        match self.random.below(13) {
            0..=2 => self.write(),
            3..=4 => self.read(),
            5..=6 => self.view(),
            7 => self.punch(),
            8 => self.set_len(),
            9 => self.file.sync_all().expect("the store is whole"),
            10 => {
                self.file.evict(..).expect("the range is good");
            }
            11 => self.failing(),
            _ => {
                if !self.views.is_empty() {
                    let at = self.random.below(self.views.len() as u64) as usize;
                    self.views.swap_remove(at);
                }
            }
        }
        for (view, bytes) in &self.views {
            assert!(**view == **bytes, "a view changed");
        }
        validate(core(&self.file));
    }

    fn write(&mut self) {
        let (offset, len) = self.range(100_000);
        let value = self.random.below(255) as u8 + 1;
        let bytes: Vec<u8> = (0..len).map(|at| value.wrapping_add(at as u8)).collect();
        match self.file.write_at(&bytes, offset) {
            Ok(()) => {}
            // Views hold most of the memory, so they are dropped.
            Err(FileError::Limit(_)) => {
                self.views.clear();
                self.file
                    .write_at(&bytes, offset)
                    .expect("there is room without views");
            }
            Err(error) => panic!("{error}"),
        }
        let end = offset as usize + len;
        if self.expected.len() < end {
            self.expected.resize(end, 0);
        }
        self.expected[offset as usize..end].copy_from_slice(&bytes);
    }

    fn read(&mut self) {
        let (offset, len) = self.range(100_000);
        let mut bytes = vec![0xEE; len];
        let mut got = self.file.read_at(&mut bytes, offset);
        if matches!(got, Err(FileError::Limit(_))) {
            self.views.clear();
            got = self.file.read_at(&mut bytes, offset);
        }
        let expected = self.slice(offset, len);
        assert_eq!(got.expect("the store is whole"), expected.len());
        assert!(
            bytes[..expected.len()] == *expected,
            "read {len} at {offset}"
        );
    }

    fn view(&mut self) {
        let (offset, len) = self.range(30_000);
        let range = offset..offset + len as u64;
        match self.file.view(range.clone()) {
            Ok(view) => {
                assert!(range.end <= self.expected.len() as u64);
                let bytes = self.slice(offset, len).to_vec();
                assert!(*view == *bytes, "view of {range:?}");
                if self.views.len() < 6 {
                    self.views.push((view, bytes));
                }
            }
            Err(FileError::PastEnd { .. }) => assert!(range.end > self.expected.len() as u64),
            Err(FileError::Limit(_)) => self.views.clear(),
            Err(error) => panic!("{error}"),
        }
    }

    fn punch(&mut self) {
        let (offset, len) = self.range(200_000);
        if let Err(error) = self.file.punch(offset..offset + len as u64) {
            assert!(matches!(error, FileError::Limit(_)), "{error}");
            self.views.clear();
            self.file
                .punch(offset..offset + len as u64)
                .expect("there is room without views");
        }
        let end = (offset as usize + len).min(self.expected.len());
        if (offset as usize) < end {
            self.expected[offset as usize..end].fill(0);
        }
    }

    fn set_len(&mut self) {
        let len = self.random.below(self.max);
        self.file.set_len(len).expect("the store is whole");
        self.expected.resize(len as usize, 0);
        assert_eq!(self.file.len(), len);
    }

    /// Makes the store fail, and checks that a sync then loses nothing.
    fn failing(&mut self) {
        let kinds = [OperationKind::Write];
        let rule = match self.random.below(2) {
            0 => Rule::new(Fault::Fail(Failure::Io)).on(&kinds).times(2),
            _ => Rule::new(Fault::Forget(Failure::Io)),
        };
        self.store.add(rule);
        let dirty = core(&self.file).dirty_blocks();
        let failed = self.file.sync_all().is_err();
        self.store.heal();
        assert!(failed || dirty <= 1 || core(&self.file).dirty_blocks() == 0);
    }

    fn finish(mut self) {
        self.file.sync_all().expect("the store is whole");
        let mut bytes = Vec::new();
        self.file
            .scan(.., |piece| bytes.extend_from_slice(piece))
            .expect("the store is whole");
        assert!(bytes == self.expected, "the file at the end");
        let stored = self.store.inner().to_vec();
        assert!(stored == self.expected, "the store at the end");
        // Views outlive the file.
        let views = std::mem::take(&mut self.views);
        drop(self.file);
        for (view, bytes) in &views {
            assert!(
                **view == **bytes,
                "a view changed with the drop of its file"
            );
        }
        drop(views);
        assert_empty(&self.cache);
    }
}

fn run(block_size: u64, frames: u32, max: u64, steps: u32) {
    for seed in 1..=4u64 {
        let mut world = World::new(block_size, frames, max, seed * 0x9E37_79B9 + block_size);
        for _ in 0..steps {
            world.step();
        }
        world.finish();
    }
}

// spec: P16
#[test]
fn a_file_of_small_blocks_agrees_with_a_vector() {
    run(SIZES[0], 160, 1 << 20, 400);
}

// spec: P16
#[test]
fn a_file_of_middle_blocks_agrees_with_a_vector() {
    run(SIZES[1], 1_024, 3 << 20, 250);
}

// spec: P16
#[test]
fn a_file_of_large_blocks_agrees_with_a_vector() {
    run(SIZES[2], 512 * 12, 12 << 20, 60);
}

// spec: P16
#[test]
fn a_file_in_a_memory_where_pages_are_had_together_agrees_with_a_vector() {
    run(SIZES[0], 4_096, 1 << 20, 300);
}
