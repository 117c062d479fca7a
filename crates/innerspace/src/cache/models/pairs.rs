//! Runs each operation concurrently with every other one, from two threads. The file must end as if
//! one operation had come after the other.
//!
//! The results of the two orders are found by running the operations one after the other. Real
//! threads run each pair a few times, shuttle's scheduler in many interleavings.

use crate::cache::core::FileCore;
use crate::cache::core::validate::validate;
use crate::cache::map::fault::fault_block;
use crate::cache::{
    Cache, FaultKind, FileAccess, FileError, FileOptions, PagedFile, Reading, Wait,
};
use crate::group::GroupId;
use crate::reclaim::{FlushRequest, Io, Owner, Pool, PoolOptions};
use crate::store::{FaultyStore, MemoryStore, Store};
use crate::sync::{Arc, thread};
use crate::units::PageCount;

const PAGE: usize = 4096;

/// One operation on a file of three pages of ones. The first page has unwritten twos, the second is
/// cached, and the third is not.
#[derive(Clone, Copy)]
struct Operation {
    name: &'static str,
    run: fn(&PagedFile),
}

const OPERATIONS: [Operation; 19] = [
    Operation {
        name: "read",
        run: read,
    },
    Operation {
        name: "view",
        run: view,
    },
    Operation {
        name: "view over blocks",
        run: view_across,
    },
    Operation {
        name: "write",
        run: |file| file.write_at(&[3; PAGE], 0).unwrap(),
    },
    Operation {
        name: "write a part",
        run: |file| file.write_at(&[4; 100], 5000).unwrap(),
    },
    Operation {
        name: "write a new block",
        run: |file| file.write_at(&[3; PAGE], 3 * PAGE as u64).unwrap(),
    },
    Operation {
        name: "write a part of a new block",
        run: |file| file.write_at(&[4; 100], 3 * PAGE as u64 + 50).unwrap(),
    },
    Operation {
        name: "append",
        run: |file| assert!(file.append(&[4; 3000]).is_ok()),
    },
    Operation {
        name: "append without waiting",
        run: append,
    },
    Operation {
        name: "read fault",
        run: |file| fault(file, FaultKind::Read),
    },
    Operation {
        name: "write fault",
        run: |file| fault(file, FaultKind::Write),
    },
    Operation {
        name: "truncate",
        run: |file| file.set_len(PAGE as u64 / 2).unwrap(),
    },
    Operation {
        name: "extend",
        run: |file| file.set_len(4 * PAGE as u64).unwrap(),
    },
    Operation {
        name: "punch",
        run: |file| file.punch(0..PAGE as u64).unwrap(),
    },
    Operation {
        name: "write back",
        run: write_back,
    },
    Operation {
        name: "evict",
        run: evict,
    },
    Operation {
        name: "sync",
        run: |file| file.sync_all().unwrap(),
    },
    Operation {
        name: "discard",
        run: |file| file.discard().unwrap(),
    },
    Operation {
        name: "invalidate",
        run: invalidate,
    },
];

fn invalidate(file: &PagedFile) {
    file.invalidate(..).unwrap();
}

fn core(file: &PagedFile) -> &FileCore {
    file.inner().core()
}

/// Reads the whole file. Each page must be in one whole state, never a mixture that no thread
/// wrote.
fn read(file: &PagedFile) {
    let mut bytes = vec![9; 3 * PAGE];
    let got = file.read_at(&mut bytes, 0).unwrap();
    assert!(bytes[..got].iter().all(|byte| *byte <= 4));
}

/// Takes a view of the whole file. For this its blocks are moved, or read, so that they lie in a
/// row.
fn view_across(file: &PagedFile) {
    let seen = match file.view(100..3 * PAGE as u64) {
        Ok(view) => view,
        Err(FileError::PastEnd { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    assert!(seen.iter().all(|byte| *byte <= 4));
    let before = seen.to_vec();
    thread::yield_now();
    assert_eq!(*seen, *before, "a view changed");
}

fn view(file: &PagedFile) {
    let seen = match file.view(0..PAGE as u64) {
        Ok(view) => view,
        Err(FileError::PastEnd { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    let before = seen.to_vec();
    let half = &before[..PAGE / 2];
    assert!(
        half.iter().all(|byte| *byte == half[0]),
        "parts of two writes"
    );
    thread::yield_now();
    assert_eq!(*seen, *before, "a view changed");
}

/// Appends after the third page, or where a cut has left the end. Does not wait, but tries again
/// until the append succeeds.
fn append(file: &PagedFile) {
    while let Err(error) = file.try_append(&[4; 1000]) {
        assert!(error.would_block(), "{error}");
        // Reads the last block. The file may have grown meanwhile.
        let last = file.len().saturating_sub(1);
        drop(file.view(last..last + 1));
        thread::yield_now();
    }
}

fn fault(file: &PagedFile, kind: FaultKind) {
    match fault_block(core(file), 0, kind, &(0..1), Reading::Normal, Wait::Yes) {
        Ok(_) | Err(FileError::PastEnd { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

fn write_back(file: &PagedFile) {
    core(file).flush(&FlushRequest {
        dirtied_by: u64::MAX,
        pages: PageCount(1 << 20),
    });
}

/// Acts as reclaim does: writes, syncs, evicts.
fn evict(file: &PagedFile) {
    let frames: Vec<_> = (0..3)
        .filter_map(|block| Some(core(file).lookup(block)?.frame))
        .collect();
    core(file).clean(&frames, Io::Of(GroupId::ROOT));
    Owner::evict(core(file), &frames, Io::Of(GroupId::ROOT));
}

struct World {
    cache: Arc<Cache>,
    store: Arc<FaultyStore<MemoryStore>>,
    file: PagedFile,
}

impl World {
    fn new() -> World {
        let pool = Pool::new(&PoolOptions::new(64)).expect("small arenas can be had");
        let cache = Cache::new(&pool);
        let store = Arc::new(FaultyStore::new(MemoryStore::from_bytes(&[1; 3 * PAGE])));
        let options = FileOptions::new().access(FileAccess::ReadWrite);
        let as_store: Arc<dyn Store> = store.clone();
        let file = PagedFile::open(&cache, as_store, &options).expect("the store is whole");
        file.write_at(&[2; PAGE], 0).unwrap();
        file.view(PAGE as u64..PAGE as u64 + 1).unwrap();
        World { cache, store, file }
    }

    /// Returns the content of the file at the end, which must be the store's after a sync. Checks
    /// that all memory is given back.
    fn end(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let file = self.file;
        file.scan(.., |piece| bytes.extend_from_slice(piece))
            .unwrap();
        file.sync_all().unwrap();
        assert!(
            self.store.inner().to_vec() == bytes,
            "the store has something else"
        );
        validate(core(&file));
        drop(file);
        let pool = &self.cache.pool;
        pool.flush_retired();
        assert_eq!(pool.totals().usage, 0, "pages are charged still");
        pool.frames.validate();
        bytes
    }
}

fn one_after_the_other(first: Operation, second: Operation) -> Vec<u8> {
    let world = World::new();
    (first.run)(&world.file);
    (second.run)(&world.file);
    world.end()
}

fn side_by_side(first: Operation, second: Operation) {
    let world = World::new();
    let other = {
        let file = world.file.clone();
        thread::spawn(move || (second.run)(&file))
    };
    (first.run)(&world.file);
    other.join().unwrap();
    let end = world.end();
    let orders = [
        one_after_the_other(first, second),
        one_after_the_other(second, first),
    ];
    let short = |bytes: &[u8]| {
        let mut runs: Vec<(u8, usize)> = Vec::new();
        for byte in bytes {
            match runs.last_mut() {
                Some((last, count)) if last == byte => *count += 1,
                _ => runs.push((*byte, 1)),
            }
        }
        runs
    };
    assert!(
        orders.contains(&end),
        "{} beside {}: {:?}, and not {:?} or {:?}",
        first.name,
        second.name,
        short(&end),
        short(&orders[0]),
        short(&orders[1])
    );
}

fn pairs() -> impl Iterator<Item = (Operation, Operation)> {
    let all = OPERATIONS.iter().enumerate();
    let pairs = all.flat_map(|(at, first)| OPERATIONS[at..].iter().map(|second| (*first, *second)));
    // In this pair the append may be overwritten, as its documentation says: it does not keep other
    // threads from making the file longer.
    pairs.filter(|(first, second)| [first.name, second.name] != ["write a new block", "append"])
}

#[cfg(not(shuttle))]
#[test]
fn every_pair_of_operations_ends_as_one_after_the_other() {
    for (first, second) in pairs() {
        for _ in 0..if cfg!(miri) { 1 } else { 10 } {
            side_by_side(first, second);
        }
    }
}

#[cfg(shuttle)]
#[test]
fn shuttle_every_pair_of_operations_ends_as_one_after_the_other() {
    for (first, second) in pairs() {
        shuttle::check_random(move || side_by_side(first, second), 60);
    }
}
