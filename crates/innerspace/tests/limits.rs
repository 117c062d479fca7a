//! Requests that a limit refuses while a group is over it, and pages that a cut may take.

use innerspace::store::{MemoryStore, Store};
use innerspace::{MIB, Map, Memory, PAGE_SIZE, Threads, file::FileAccess};

const PAGE: u64 = PAGE_SIZE as u64;

fn memory() -> Memory {
    Memory::builder(64 * MIB)
        .threads(Threads::None)
        .build()
        .unwrap()
}

#[test]
fn requests_are_refused_until_usage_is_under_a_lowered_limit() {
    let memory = memory();
    let group = memory.create_group("g", 4 * MIB).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let own = space.map(Map::anonymous(400 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    (0..300).for_each(|page| a.store(own + page * PAGE, 1_u64).unwrap());
    let max = 50 * PAGE;
    assert!(group.set_max(max).is_err(), "nothing can be evicted");
    // Some pages are given back one by one. The group is still far over its limit.
    let give_back = |pages: std::ops::Range<u64>| {
        for page in pages {
            let at = own + page * PAGE;
            space.discard(at, PAGE).unwrap();
        }
    };
    give_back(0..60);
    assert!(group.usage() > max);
    let mut store = |page: u64| a.store(own + page * PAGE, 1_u64).is_ok();
    assert_eq!((0..60).take_while(|page| store(*page)).count(), 0);
    // Under the limit again, exactly as many pages are granted as the limit allows.
    give_back(60..300);
    let stored = (0..60).take_while(|page| store(*page)).count();
    assert!(stored > 0 && group.usage() <= max, "{stored} stores");
    let root = memory.root_group();
    assert!(root.stats().peak <= root.stats().max.unwrap());
    memory.validate();
}

#[test]
fn a_cut_beside_a_view_of_a_clean_block_stays_under_the_limit() {
    let memory = memory();
    let max = 3 * MIB;
    let group = memory.create_group("g", max).unwrap();
    let store = MemoryStore::new();
    store.write_at(&vec![7; 2 << 20], 0).unwrap();
    let options = memory.file_options().group(&group).block_size(2 * MIB);
    let file = options
        .access(FileAccess::ReadWrite)
        .open_store(store)
        .unwrap();
    let view = file.view(0..10).unwrap();
    file.set_len(MIB + 1).unwrap();
    assert!(group.take_peak() <= max);
    assert_eq!((view[..].to_vec(), file.len()), (vec![7; 10], MIB + 1));
}

#[test]
fn a_copy_by_an_uncached_scan_has_room_in_a_small_group() {
    let memory = memory();
    for pages in [16, 32, 48] {
        let group = memory.create_group("g", pages * PAGE).unwrap();
        let options = memory.file_options().group(&group);
        let from = MemoryStore::from_bytes(&[7; 100 * PAGE_SIZE]);
        let from = options.clone().open_store(from).unwrap();
        let options = options.access(FileAccess::ReadWrite);
        let to = options.open_store(MemoryStore::new()).unwrap();
        let copy = |piece: &[u8]| {
            to.append(piece).unwrap();
        };
        from.scan_uncached(.., copy).unwrap();
        assert_eq!((to.len(), from.stats().cached.0), (100 * PAGE, 0));
    }
}

#[test]
fn what_a_block_reader_remembers_leaves_room_for_what_it_reads() {
    let memory = memory();
    for (pages, block) in [(12, PAGE), (3 * 512, 2 * MIB)] {
        let group = memory.create_group("g", pages * PAGE).unwrap();
        let options = memory.file_options().group(&group).block_size(block);
        let store = MemoryStore::new();
        store.set_len(20 * block).unwrap();
        for at in 0..20 {
            store.write_at(&[at], u64::from(at) * block).unwrap();
        }
        let file = options.open_store(store).unwrap();
        let mut blocks = file.block_reader();
        for at in 0..20 {
            let mut byte = [99];
            blocks.read_at(&mut byte, u64::from(at) * block).unwrap();
            assert_eq!(byte, [at]);
        }
        assert_eq!(group.events().oom, 0);
    }
}
