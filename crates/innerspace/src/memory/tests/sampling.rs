//! The periods in which uses of mapped pages are sampled.

use std::time::{Duration, Instant};

use crate::store::MemoryStore;
use crate::{MIB, Map, Memory, PAGE_SIZE, Threads};

const PAGE: u64 = PAGE_SIZE as u64;

#[test]
fn uses_of_mapped_pages_are_seen_in_every_stretch_and_not_between() {
    let options = Memory::builder(2 * MIB).threads(Threads::None);
    let memory = options.sample_misses().build().unwrap();
    let store = MemoryStore::from_bytes(&[7; 20 * PAGE_SIZE]);
    let file = memory.file_options().open_store(store).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    let pool = &memory.0.pool;
    let mut uses = 0;
    while pool.samples() {
        assert_eq!(a.load::<u8>(at + uses % 20 * PAGE), Ok(7));
        uses += 1;
    }
    let stretch = memory.miss_curve().unwrap();
    assert_eq!(stretch.samples(), uses, "each of them was seen");
    let faults = |a: &mut crate::Accessor, rounds: u64| {
        let before = memory.stats().totals.pgfault;
        for page in 0..rounds * 20 {
            assert_eq!(a.load::<u8>(at + page % 20 * PAGE), Ok(7));
        }
        memory.stats().totals.pgfault - before
    };
    assert_eq!(
        faults(&mut a, 3),
        20,
        "the last use of each took its validity away"
    );
    pool.tick_samples(Instant::now());
    assert_eq!(faults(&mut a, 3), 0, "a rest");
    pool.tick_samples(Instant::now() + Duration::from_secs(1_000_000));
    assert!(pool.samples());
    assert_eq!(faults(&mut a, 3), 60, "another stretch");
}

#[test]
fn uses_of_hot_pages_by_calls_are_seen_in_every_stretch() {
    let options = Memory::builder(2 * MIB).threads(Threads::None);
    let memory = options.sample_misses().build().unwrap();
    let store = MemoryStore::from_bytes(&[7; 20 * PAGE_SIZE]);
    let file = memory.file_options().open_store(store).unwrap();
    let pool = &memory.0.pool;
    let view = |uses: u64| {
        let at = uses % 20 * PAGE;
        assert_eq!(file.view(at..at + 1).unwrap()[0], 7);
    };
    let mut stretches = [0; 2];
    for uses in &mut stretches {
        while pool.samples() && *uses < 1_000_000 {
            view(*uses);
            *uses += 1;
        }
        // Between the periods of sampling the pages become hot.
        (0..5 * 20).for_each(view);
        let hot = pool.frames.metas().iter();
        let hot = hot.filter(|meta| meta.hold.load().is_cached() && !meta.hold.load().is_cold());
        assert_eq!(hot.count(), 20);
        pool.tick_samples(Instant::now() + Duration::from_secs(1_000_000));
    }
    assert_eq!(stretches[0], stretches[1], "each of them was seen");
    assert!(stretches[0] < 1_000_000);
}
