//! Reports of a space's pages.

use super::direct::{device, hole};
use super::*;
use crate::cache::{Cache, FileAccess, FileOptions, PagedFile};
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
