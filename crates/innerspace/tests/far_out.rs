//! Compares files of a few bytes that are far apart, up to the largest offset, with a map of their
//! pages. Random operations are near powers of two, where an index grows a level, tags of blocks
//! end, and sums may overflow. A store may fail now and then.
//!
//! An operation may fail if it needs memory, or calls a store that fails. A write that failed has
//! written a beginning of its bytes. A punch that failed has left zeros in parts of its range.
//!
//! There are [`RUNS`] programs with fixed seeds. `INNERSPACE_FAR_RUNS=100000` runs that many with
//! other seeds, and `INNERSPACE_FAR_SEED=7` runs a single one again.
#![cfg(feature = "test-util")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use innerspace::store::faulty::{Failure, Fault, FaultyStore, OperationKind, Rule};
use innerspace::store::{MemoryStore, Store};
use innerspace::{
    KIB, MIB, Map, Memory, PagedFile, Threads, View,
    file::{FileAccess, FileError},
};

/// The number of programs in a run, unless the environment sets another.
const RUNS: u64 = 100;
const STEPS: u64 = 60;
const PAGE: u64 = innerspace::PAGE_SIZE as u64;
/// The length of the largest file.
const MOST: u64 = i64::MAX as u64;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// The bytes of a file: the pages that were written. All others are zeros.
#[derive(Default)]
struct Bytes {
    len: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Bytes {
    /// Splits a range by pages: returns each page, and the part of it in the range.
    fn parts(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        pages.map(move |page| {
            let inside = |at: u64| at.saturating_sub(page * PAGE).min(PAGE) as usize;
            (page, inside(range.start)..inside(range.end))
        })
    }

    fn get(&self, range: Range<u64>) -> Vec<u8> {
        let part = |(page, inside): (u64, Range<usize>)| match self.pages.get(&page) {
            Some(bytes) => bytes[inside].to_vec(),
            None => vec![0; inside.len()],
        };
        Bytes::parts(range).flat_map(part).collect()
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (page, inside) in Bytes::parts(at..at + bytes.len() as u64) {
            let (now, behind) = rest.split_at(inside.len());
            let page = self
                .pages
                .entry(page)
                .or_insert_with(|| vec![0; PAGE as usize]);
            page[inside].copy_from_slice(now);
            rest = behind;
        }
        if !bytes.is_empty() {
            self.len = self.len.max(at + bytes.len() as u64);
        }
    }

    fn zero(&mut self, range: Range<u64>) {
        for (page, bytes) in self.pages.range_mut(range.start / PAGE..) {
            let inside = |at: u64| at.saturating_sub(page * PAGE).min(PAGE) as usize;
            bytes[inside(range.start)..inside(range.end)].fill(0);
        }
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len..u64::MAX);
        }
        self.len = len;
    }
}

struct World {
    random: Random,
    memory: Memory,
    file: PagedFile,
    store: Arc<FaultyStore<MemoryStore>>,
    now: Bytes,
    views: Vec<(View, Vec<u8>)>,
    faulty: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let limit = random.pick(&[256 * KIB, MIB, 4 * MIB]);
        let options = Memory::builder(limit).threads(Threads::None);
        let memory = options.build().unwrap();
        let block = random.pick(&[4 * KIB, 4 * KIB, 16 * KIB, 64 * KIB]);
        let store = Arc::new(FaultyStore::new(MemoryStore::new()));
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let options = options.block_size(block.min(limit / 16));
        World {
            file: options.open_store(store.clone()).unwrap(),
            faulty: random.below(3) == 0,
            now: Bytes::default(),
            views: Vec::new(),
            random,
            memory,
            store,
        }
    }

    /// Returns an offset near the file's end, or near a power of two.
    fn place(&mut self) -> u64 {
        let (len, shift) = (self.now.len, self.random.below(64));
        let at = self
            .random
            .pick(&[0, 1 << shift, 1 << 21, 1 << 44, MOST, len, len, len]);
        let most = self.random.pick(&[10, 5_000, 70_000, 3 << 20]);
        let by = self.random.below(most);
        match self.random.below(2) {
            0 => at.saturating_add(by),
            _ => at.saturating_sub(by),
        }
    }

    /// Checks that the error is an allowed one.
    fn may_fail(&self, error: &FileError) {
        let by_store = matches!(error, FileError::Store { .. } | FileError::Unwritten { .. });
        let allowed = matches!(error, FileError::Limit(_)) || self.faulty && by_store;
        assert!(allowed, "an error out of nowhere: {error}");
    }

    /// Reads bytes of the file, with failures switched off.
    fn look_at(&mut self, range: Range<u64>) -> Vec<u8> {
        self.store.heal();
        let mut back = vec![0xa5; (range.end - range.start) as usize];
        if self.file.read_exact_at(&mut back, range.start).is_err() {
            self.views.clear();
            self.file.read_exact_at(&mut back, range.start).unwrap();
        }
        back
    }

    /// Reads the pages that were written.
    fn look_at_pages(&mut self) -> Vec<(u64, Vec<u8>)> {
        let pages = self
            .now
            .pages
            .keys()
            .filter(|page| **page * PAGE < self.now.len);
        let pages: Vec<u64> = pages.copied().collect();
        let part = |page: u64, len: u64| page * PAGE..((page + 1) * PAGE).min(len);
        let look = |page| (page * PAGE, self.look_at(part(page, self.now.len)));
        pages.into_iter().map(look).collect()
    }

    fn assert_pages(&mut self) {
        for (at, back) in self.look_at_pages() {
            let want = self.now.get(at..at + back.len() as u64);
            assert!(back == want, "the page at {at} differs");
        }
    }

    /// Records the end of a write: of all bytes, or of a beginning of them.
    fn wrote(&mut self, at: u64, bytes: &[u8], result: Result<(), FileError>) {
        let len = self.now.len;
        match result {
            Ok(()) => self.now.put(at, bytes),
            Err(FileError::TooLarge { .. }) => {
                let end = at.checked_add(bytes.len() as u64);
                assert!(end.is_none_or(|end| end > MOST));
            }
            Err(error) => {
                self.may_fail(&error);
                let new = self.file.len();
                let end = new.min(at + bytes.len() as u64).max(at);
                let back = self.look_at(at..end);
                let same = back.iter().zip(bytes).take_while(|(a, b)| a == b);
                let done = if new > len { back.len() } else { same.count() };
                self.now.put(at, &bytes[..done]);
                assert!(back == self.now.get(at..end), "neither old nor a beginning");
            }
        }
    }

    fn step(&mut self) {
        let (at, len) = (self.place(), self.now.len);
        let most = self.random.pick(&[300, 20_000, 150_000]);
        let size = 1 + self.random.below(most);
        let range = at..at.saturating_add(size);
        let value = self.random.next();
        let bytes: Vec<u8> = (0..size).map(|n| (value ^ (n * 7)) as u8 | 1).collect();
        match self.random.below(16) {
            0..=2 => {
                let mut buffer = vec![0xa5; size as usize];
                let got = match value % 3 {
                    0 => self.file.read_at_uncached(&mut buffer, at),
                    _ => self.file.read_at(&mut buffer, at),
                };
                match got {
                    Ok(count) => {
                        let end = range.end.min(len).max(at);
                        assert!(buffer[..count] == self.now.get(at..end), "a read differs");
                    }
                    Err(error) => self.may_fail(&error),
                }
            }
            3..=6 => {
                let result = self.file.write_at(&bytes, at);
                self.wrote(at, &bytes, result);
            }
            7 => {
                let result = self.file.append(&bytes);
                let result = result.map(|at| assert_eq!(at, len, "where it went"));
                self.wrote(len, &bytes, result);
            }
            8 => match self.file.set_len(at) {
                Ok(()) => self.now.set_len(at),
                Err(FileError::TooLarge { .. }) => assert!(at > MOST),
                Err(error) => self.may_fail(&error),
            },
            9 | 10 => {
                let end = self.random.pick(&[u64::MAX, range.end, at.max(1 << 30)]);
                self.punch(at..end);
            }
            11 => match self.file.view(range.clone()) {
                Ok(view) => {
                    let shows = self.now.get(range);
                    assert!(view[..] == shows, "a view differs");
                    self.views.truncate(3);
                    self.views.push((view, shows));
                }
                Err(FileError::PastEnd { .. }) => assert!(range.end > len),
                Err(FileError::ViewTooLarge { blocks, max, .. }) => assert!(blocks > max),
                Err(error) => self.may_fail(&error),
            },
            12 => {
                let range = value % 2 * at..u64::MAX;
                let result = match value / 2 % 3 {
                    0 => self.file.evict(range).map(drop),
                    1 => self.file.invalidate(range).map(drop),
                    _ => self.file.sync_range(range),
                };
                result.unwrap_or_else(|error| self.may_fail(&error));
            }
            13 => (0..value % 20).for_each(|_| self.memory.tick()),
            14 if self.faulty => {
                use OperationKind::{Punch, Read, SetLen, Sync, Write};
                let kind = self.random.pick(&[Read, Write, Punch, SetLen, Sync]);
                let rule = Rule::new(Fault::Fail(Failure::Io)).on(&[kind]);
                self.store
                    .add(rule.nth(1 + value % 4).times(1 + value / 4 % 3));
            }
            _ => self.store_by_mapping(at / PAGE, value as u8),
        }
    }

    fn punch(&mut self, range: Range<u64>) {
        let result = self.file.punch(range.clone());
        let Err(error) = result else {
            return self.now.zero(range);
        };
        self.may_fail(&error);
        for (at, back) in self.look_at_pages() {
            let old = self.now.get(at..at + back.len() as u64);
            let may_be_zero = |n: usize| range.contains(&(at + n as u64)) && back[n] == 0;
            let good = |n: usize| back[n] == old[n] || may_be_zero(n);
            assert!((0..back.len()).all(good), "neither old nor zeros at {at}");
            self.now.put(at, &back);
        }
    }

    /// Maps eight pages, and loads from and stores to them.
    fn store_by_mapping(&mut self, first: u64, byte: u8) {
        if first + 8 > MOST / PAGE {
            return;
        }
        let map = Map::file(&self.file).range(first * PAGE..(first + 8) * PAGE);
        let Ok(space) = self.memory.create_space() else {
            return;
        };
        let Ok(start) = space.map(map.shared().writable()) else {
            return;
        };
        let mut accessor = space.accessor().unwrap();
        for number in 0..8 {
            let (place, at) = (start + number * PAGE + 5, (first + number) * PAGE + 5);
            let is_inside = at < self.now.len;
            if let Ok(got) = accessor.load::<u8>(place) {
                assert!(!is_inside || [got] == self.now.get(at..at + 1)[..]);
            }
            // A store past the end cannot be read back.
            if accessor.store(place, byte).is_ok() && is_inside {
                self.now.put(at, &[byte]);
            }
        }
    }

    fn check(&self) {
        assert_eq!(self.file.len(), self.now.len, "the length");
        for (view, shows) in &self.views {
            assert!(view[..] == shows[..], "a view changed");
        }
        self.memory.validate();
    }

    /// Checks that no data is lost and no page stays charged.
    fn finish(mut self) {
        self.assert_pages();
        self.views.clear();
        let _failed_before = self.file.sync_all();
        self.file.sync_all().unwrap();
        self.file.evict(..).unwrap();
        self.assert_pages();
        drop(self.file);
        let stored = self.store.inner();
        assert_eq!(stored.len().unwrap(), self.now.len, "the store's length");
        for page in self.now.pages.keys() {
            let end = ((page + 1) * PAGE).min(self.now.len);
            let mut back = vec![0; end.saturating_sub(page * PAGE) as usize];
            stored.read_at(&mut back, page * PAGE).unwrap();
            assert!(back == self.now.get(page * PAGE..end.max(page * PAGE)));
        }
        assert!(self.memory.take_errors().is_empty());
        self.memory.validate();
        assert_eq!(self.memory.root_group().usage(), 0, "something is left");
    }
}

fn run(seed: u64) {
    let ended = std::panic::catch_unwind(|| {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
            world.check();
        }
        world.finish();
    });
    if let Err(panic) = ended {
        eprintln!("INNERSPACE_FAR_SEED={seed} fails");
        std::panic::resume_unwind(panic);
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

#[test]
fn random_operations_far_out_agree_with_a_map_of_pages() {
    if let Some(seed) = number("INNERSPACE_FAR_SEED") {
        return run(seed);
    }
    let runs = number("INNERSPACE_FAR_RUNS");
    let first = if runs.is_some() { 1_000_000 } else { 0 };
    for seed in first..first + runs.unwrap_or(RUNS) {
        run(seed);
    }
}
