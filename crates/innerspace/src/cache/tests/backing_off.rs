//! Reclaim and stores that refuse its writes: they are called ever more rarely until the next tick.

use std::io;

use super::*;
use crate::reclaim::AllocMode;
use crate::store::faulty::OperationKind;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::units::PageCount;

/// Lets a group need memory again and again while a store refuses its dirty pages, of which no two
/// are adjacent. In one call, reclaim may call the store `most` times.
fn asked_ever_more_rarely<S: Store>(
    store: &Arc<S>,
    refuse: impl Fn(bool),
    writes: impl Fn() -> usize,
    most: usize,
) {
    let cache = memory(256);
    let group = cache.root.create_child("tenant", 100 * 4096).unwrap();
    let file = open(&cache, store, &options(4096).group(&group));
    (0..40).for_each(|page| file.write_at(&[1; PAGE], page * 8192).unwrap());
    refuse(true);
    let rest = PageCount(100 - group.usage() / 4096);
    let (pool, id) = (&cache.pool, group.id());
    let rest = pool.charge(id, rest, AllocMode::NoWait).unwrap();
    let before = writes();
    for _ in 0..100 {
        let error = pool.alloc(id, 0, AllocMode::Wait).unwrap_err();
        let holders = error.details().holders;
        assert_eq!(holders.dirty.0 + holders.failing.0, 40);
    }
    let in_vain = writes();
    let calls = in_vain - before;
    assert!(calls <= 20 * most, "{calls} calls of the store");
    pool.alloc(id, 0, AllocMode::Wait).unwrap_err();
    assert!(writes() - in_vain <= most);
    // The store works again, and is called again after a tick at the latest.
    refuse(false);
    cache.tick();
    pool.alloc(id, 0, AllocMode::Wait).map(drop).unwrap();
    drop(rest);
    drop(file);
    assert_empty(&cache);
}

#[test]
fn reclaim_asks_a_store_that_fails_ever_more_rarely_until_the_next_tick() {
    let store = patterned(0);
    let refuse = |refuses| match refuses {
        true => store.add(fail(OperationKind::Write).forever()),
        false => store.heal(),
    };
    let writes = || {
        let log = store.log();
        let is_write = |kind| kind == OperationKind::Write;
        log.iter().filter(|one| is_write(one.kind)).count()
    };
    asked_ever_more_rarely(&store, refuse, writes, 1);
}

/// A store over files that may lack memory.
struct OverFiles {
    bytes: MemoryStore,
    is_short: AtomicBool,
    writes: AtomicUsize,
}

impl Store for OverFiles {
    fn uses_files(&self) -> bool {
        true
    }

    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.bytes.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        match self.is_short.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => self.bytes.write_at(buf, offset),
        }
    }

    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn reclaim_asks_a_store_whose_files_lack_memory_ever_more_rarely_until_the_next_tick() {
    let store = Arc::new(OverFiles {
        bytes: MemoryStore::new(),
        is_short: AtomicBool::new(false),
        writes: AtomicUsize::new(0),
    });
    let refuse = |refuses| store.is_short.store(refuses, Ordering::Relaxed);
    let writes = || store.writes.load(Ordering::Relaxed);
    asked_ever_more_rarely(&store, refuse, writes, 40);
}
