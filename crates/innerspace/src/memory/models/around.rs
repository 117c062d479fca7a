//! Fault-around under random schedules: loads map cached pages around their own, while other
//! threads take such pages away.

use std::sync::atomic::AtomicU64 as PlainU64;

use shuttle::rand::Rng;

use super::{PAGE, assert_nothing_left, explore, memory, numbered};
use crate::space::FaultKind;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, thread};
use crate::{Map, Memory, PagedFile};

/// Counts the neighbours that were mapped in all schedules of a model. Not part of the explored
/// state.
struct Mapped(PlainU64);

impl Mapped {
    const NONE: Mapped = Mapped(PlainU64::new(0));

    fn add_those_of(&self, memory: &Memory) {
        let mapped = memory.stats().totals.pgmap_around;
        self.0
            .fetch_add(mapped, std::sync::atomic::Ordering::Relaxed);
    }

    fn assert_some(&self) {
        let mapped = self.0.load(std::sync::atomic::Ordering::Relaxed);
        assert!(mapped > 0, "no schedule mapped a neighbour");
    }
}

/// Reads the whole file into the cache.
fn cache(file: &PagedFile) {
    file.prefetch(..).unwrap();
}

// spec: A2
#[test]
fn a_neighbour_that_is_evicted_while_it_is_mapped_shows_no_other_bytes() {
    static MAPPED: Mapped = Mapped::NONE;
    explore(|| {
        let memory = memory();
        let (file, _store) = numbered(&memory, memory.root_group(), 4);
        cache(&file);
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file)).unwrap();
        let readers = [[0, 1, 2], [3, 2, 1]].map(|pages| {
            let mut a = space.accessor().unwrap();
            thread::spawn(move || {
                for page in pages {
                    let seen = a.load::<u64>(at + page * PAGE);
                    assert_eq!(seen, Ok(page + 100), "another's bytes");
                }
            })
        });
        let other = memory.create_space().unwrap();
        let mine = other.map(Map::anonymous(4 * PAGE)).unwrap();
        let mut b = other.accessor().unwrap();
        for page in 0..3 {
            file.evict(..).unwrap();
            b.store(mine + page * PAGE, u64::MAX).unwrap();
        }
        for reader in readers {
            reader.join().unwrap();
        }
        space.validate();
        file.evict(..).unwrap();
        assert_eq!(space.stats().pages.file.0, 0, "mapped, and not found");
        drop((b, other, space, file));
        MAPPED.add_those_of(&memory);
        assert_nothing_left(memory);
    });
    MAPPED.assert_some();
}

// spec: P15
#[test]
fn a_neighbour_that_is_punched_or_cut_off_is_not_seen_afterwards() {
    static MAPPED: Mapped = Mapped::NONE;
    explore(|| {
        let memory = memory();
        let (file, _store) = numbered(&memory, memory.root_group(), 4);
        cache(&file);
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file)).unwrap();
        let stage = Arc::new(AtomicU32::new(0));
        let readers = [0, 1].map(|first| {
            let mut a = space.accessor().unwrap();
            let told = stage.clone();
            thread::spawn(move || {
                for page in [first, 2, 3, 2] {
                    let done = told.load(Ordering::Acquire);
                    let seen = a.load::<u64>(at + page * PAGE);
                    match (page, seen.map_err(|fault| fault.kind())) {
                        (2, Ok(0)) => {}
                        (2, Ok(102)) => assert_eq!(done, 0, "punched"),
                        (3, Ok(103)) => assert!(done < 2, "cut off"),
                        (3, Err(kind)) => assert_eq!(kind, FaultKind::PastEnd),
                        (page, seen) => assert_eq!(seen, Ok(page + 100)),
                    }
                }
            })
        });
        // A fault waits for a cut, but not the other way round: without this delay the readers
        // would always come too late.
        for _ in 0..shuttle::rand::thread_rng().gen_range(0..1000) {
            thread::yield_now();
        }
        file.punch(2 * PAGE..3 * PAGE).unwrap();
        stage.store(1, Ordering::Release);
        file.set_len(3 * PAGE).unwrap();
        stage.store(2, Ordering::Release);
        for reader in readers {
            reader.join().unwrap();
        }
        space.validate();
        drop((space, file));
        MAPPED.add_those_of(&memory);
        assert_nothing_left(memory);
    });
    MAPPED.assert_some();
}
