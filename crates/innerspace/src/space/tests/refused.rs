//! Changes that are refused for lack of memory.

use super::*;
use crate::cache::{FileOptions, PagedFile};
use crate::store::MemoryStore;

/// A fork has the pages too, so the nodes above them have to be copied before the file can replace
/// them.
#[test]
fn a_mapping_that_was_refused_keeps_no_file_open() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    space.accessor().unwrap().store(at, 1u8).unwrap();
    let child = space.fork().unwrap();
    let mut all = all_of(&pool);
    let mut refused = 0;
    loop {
        let store = Arc::new(MemoryStore::with_len(4 * PAGE));
        let file = PagedFile::open(&Cache::new(&pool), store.clone(), &FileOptions::new());
        let file = file.unwrap();
        let mapped = space.map(Map::file(&file).replacing(at));
        drop(file);
        match mapped {
            Ok(_) => break assert_eq!(Arc::strong_count(&store), 2, "it is mapped"),
            Err(error) => assert!(matches!(error, SpaceError::Limit(_)), "{error}"),
        }
        assert_eq!(
            Arc::strong_count(&store),
            1,
            "it is open after refusal {refused}"
        );
        refused += 1;
        drop(all.pop());
    }
    assert!(refused > 2, "the set of mappings, and then the nodes");
    space.validate();
    drop((space, child, all));
    assert_nothing_left(&pool);
}
