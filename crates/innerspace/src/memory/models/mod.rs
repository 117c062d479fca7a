//! Whole operations under random schedules, and helpers that their models share.

mod around;
mod changes;
mod coalesced;
mod direct;
mod forks;
mod opening;
mod sessions;
mod spaces;

use crate::cache::FileAccess;
use crate::store::MemoryStore;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Group, Map, Memory, PAGE_SIZE, PagedFile, Space, Threads, VirtAddr};

const PAGE: u64 = PAGE_SIZE as u64;
/// The number of random schedules for each test.
const SCHEDULES: usize = 200;

fn explore(test: fn()) {
    shuttle::check_random(test, SCHEDULES);
}

/// Explores more schedules than [`explore`], for bugs that appear in one of a hundred.
fn explore_further(test: fn()) {
    shuttle::check_random(test, 6 * SCHEDULES);
}

fn memory() -> Memory {
    let options = Memory::builder(crate::MINIMUM_LIMIT).threads(Threads::None);
    options.build().unwrap()
}

/// Creates a file whose page n begins with the number n + 100.
fn numbered(memory: &Memory, group: &Group, pages: u64) -> (PagedFile, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::with_len(pages * PAGE));
    for page in 0..pages {
        let number = (page + 100).to_le_bytes();
        crate::store::write_all_at(&*store, &number, page * PAGE).unwrap();
    }
    let options = memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .group(group);
    (options.open_store(store.clone()).unwrap(), store)
}

fn anonymous(memory: &Memory, pages: u64) -> (Space, VirtAddr) {
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(pages * PAGE)).unwrap();
    (space, at)
}

/// Yields values from 2 on, until the others are done, and a few more.
fn until(done: Arc<AtomicU64>) -> impl Iterator<Item = u64> + Send {
    let mut more = 4;
    (2u64..).take_while(move |_| {
        more -= done.load(Ordering::Acquire);
        more > 0
    })
}

/// Checks, when all users are gone, that the accounts add up and nothing is left.
fn assert_nothing_left(memory: Memory) {
    memory.validate();
    memory.validate(); // frees the entries that the first flush retired
    assert_eq!(memory.root_group().usage(), 0);
}
