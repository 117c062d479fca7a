//! Reports of a space's pages.

use super::direct::{device, hole};
use super::*;
use crate::cache::{Cache, FileAccess, FileOptions, PagedFile};
use crate::space::table::nodes::MAX_BORROW_DEPTH;
use crate::store::MemoryStore;

/// Returns the numbers of dirty and of writable pages.
fn dirty(space: &Space) -> (u64, u64) {
    let pages = space.stats().pages;
    (pages.dirty.0, pages.writable.0)
}

#[test]
fn a_page_is_dirty_until_it_is_written_whoever_takes_its_rights() {
    let cache = Cache::new(&pool(256));
    let options = FileOptions::new().access(FileAccess::ReadWrite);
    let store = Arc::new(MemoryStore::with_len(2 * PAGE));
    let cached = PagedFile::open(&cache, store, &options).unwrap();
    let direct = hole(&cache.pool, &device(16 * PAGE), 2 * PAGE);
    for map in [Map::file(&cached), Map::dax(&direct)] {
        let space = space(&cache.pool);
        let at = space.map(map.shared().writable()).unwrap();
        let mut a = space.accessor().unwrap();
        a.store(at, 1u8).unwrap();
        a.load::<u8>(at + PAGE).unwrap();
        assert_eq!(dirty(&space), (1, 1));
        space.advise(at, PAGE, Advice::Cold).unwrap();
        space.protect(at, PAGE, Protection::READ).unwrap();
        assert_eq!(dirty(&space), (1, 0));
        space.sync(at, PAGE).unwrap();
        assert_eq!(dirty(&space), (0, 0));
    }
}

#[test]
fn a_page_that_two_spaces_own_counts_as_shared() {
    let pool = pool(512);
    let mut spaces = vec![space(&pool)];
    let at = spaces[0].map(Map::anonymous(4 * PAGE)).unwrap();
    let mut a = spaces[0].accessor().unwrap();
    (0..4).for_each(|page| a.store(at + page * PAGE, 1u8).unwrap());
    assert_eq!(spaces[0].stats().pages.own.0, 4);
    // Each fork borrows from the one before, until the chain is so long that the next one becomes
    // an owner of each page.
    for _ in 0..2 * MAX_BORROW_DEPTH {
        let fork = spaces.last().unwrap().fork().unwrap();
        fork.accessor().unwrap().store(at, 2u8).unwrap();
        let pages = fork.stats().pages;
        assert_eq!((pages.own.0, pages.shared.0), (1, 3));
        spaces.push(fork);
    }
    // A store needs a page of its own, whatever the counts said before.
    let last = spaces.last().unwrap();
    (1..4).for_each(|page| {
        let mut a = last.accessor().unwrap();
        a.store(at + page * PAGE, 3u8).unwrap();
    });
    assert_eq!(last.stats().pages.own.0, 4);
    assert_eq!(a.load::<u8>(at + PAGE), Ok(1));
}
