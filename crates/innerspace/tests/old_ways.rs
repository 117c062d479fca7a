//! The old ways of the published tables do the same as the new ones. They are chosen for the whole
//! process, so here.
#![cfg(feature = "tables")]

use innerspace::store::MemoryStore;
use innerspace::tables::{HoleRead, set_hole_read};
use innerspace::{FileAccess, MIB, Map, Memory, PAGE_SIZE};

#[test]
fn a_hole_reads_as_zeros_in_the_old_way_too_and_takes_a_page_each() {
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let pages = 100;
    for (way, resident) in [(HoleRead::CachedPage, pages), (HoleRead::ZeroFrame, 0)] {
        set_hole_read(way);
        let store = MemoryStore::with_len(pages * PAGE_SIZE as u64);
        let options = memory.options().access(FileAccess::ReadWrite);
        let file = options.open(store).unwrap();
        let space = memory.space().unwrap();
        let at = space.map(Map::file(&file).shared().writable()).unwrap();
        let mut accessor = space.accessor();
        let mut load = |page: u64| accessor.load::<u64>(at + page * PAGE_SIZE as u64).unwrap();
        assert!((0..pages).all(|page| load(page) == 0));
        assert_eq!(space.stats().pages.resident, resident, "{way:?}");
        assert_eq!(file.stats().dirty.0, 0);
        // A write by call is seen, whatever was mapped.
        file.write_at(&[7; 8], 3 * PAGE_SIZE as u64).unwrap();
        assert_eq!(load(3), u64::from_ne_bytes([7; 8]));
        accessor.store(at + 4 * PAGE_SIZE as u64, 9_u64).unwrap();
        let mut word = [0; 8];
        file.read_at(&mut word, 4 * PAGE_SIZE as u64).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 9);
    }
}
