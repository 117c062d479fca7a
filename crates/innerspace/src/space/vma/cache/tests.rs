//! Tests of the slots alone, on a set of mappings without a space.

use super::super::area::Residence;
use super::super::protection::Sharing;
use super::super::set::VmaSet;
use super::*;
use crate::cache::Reading;

fn vma(start: u64, end: u64) -> Vma {
    Vma {
        start: start << PAGE_SHIFT,
        end: end << PAGE_SHIFT,
        protection: Protection::READ_WRITE,
        ceiling: Protection::READ_WRITE,
        sharing: Sharing::Private,
        residence: Residence::Pageable,
        reading: Reading::Normal,
        backing: Backing::Anonymous,
        first_page: 0,
    }
}

/// Stands in for a space.
struct Table {
    vmas: VmaSet,
    sequence: Sequence,
}

impl Table {
    fn new(width: u32) -> Table {
        Table {
            vmas: VmaSet::new(Arc::default()),
            sequence: Sequence::with_width(width),
        }
    }

    fn put(&mut self, start: u64, end: u64) {
        if !self.vmas.put(vma(start, end)).removed.is_empty() {
            self.sequence.bump();
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        let range = start << PAGE_SHIFT..end << PAGE_SHIFT;
        if !self.vmas.remove(&range).removed.is_empty() {
            self.sequence.bump();
        }
    }

    fn find(&self, cache: &mut VmaCache, page: u64) -> Option<(u64, u64)> {
        let at = page << PAGE_SHIFT;
        let mut named = None;
        let tree = || self.vmas.find_containing(at);
        let found = cache.find(&self.sequence, at, &mut named, tree);
        found.map(|vma| (vma.start >> PAGE_SHIFT, vma.end >> PAGE_SHIFT))
    }
}

fn counts(table: &Table) -> (u64, u64, u64) {
    let VmaLookups {
        calls,
        hits,
        misses,
    } = table.sequence.lookups();
    (calls, hits, misses)
}

/// A sequence of eight bits: one cache looks up, the number wraps while no other cache exists,
/// another cache is created and the number grows to the same value again, and the first cache looks
/// up again.
// spec: V3
#[test]
fn a_number_that_wraps_brings_no_slot_back() {
    for alone_until in [256, 300, 1000] {
        let mut table = Table::new(8);
        let mut first = VmaCache::new(&table.sequence);
        table.put(10, 20);
        assert_eq!(table.find(&mut first, 15), Some((10, 20)));
        let number = table.sequence.now();
        table.remove(10, 20);
        let mut bumps = 1;
        let mut second = None;
        while bumps < alone_until || table.sequence.now() != number {
            if bumps >= alone_until {
                second.get_or_insert_with(|| VmaCache::new(&table.sequence));
            }
            table.sequence.bump();
            bumps += 1;
        }
        assert_eq!(table.find(&mut first, 15), None, "after {bumps}");
    }
}

// spec: V8
#[test]
fn four_slots_hold_four_mappings_and_a_fifth_takes_only_its_own() {
    let mut table = Table::new(64);
    let pages = [0x100, 0x201, 0x302, 0x403];
    pages.iter().for_each(|page| table.put(*page, *page + 1));
    table.put(0x501, 0x502); // uses the slot of the second
    let mut cache = VmaCache::new(&table.sequence);
    pages
        .iter()
        .for_each(|page| assert!(table.find(&mut cache, *page).is_some()));
    assert_eq!(counts(&table), (4, 0, 4));
    pages
        .iter()
        .for_each(|page| assert!(table.find(&mut cache, *page).is_some()));
    assert_eq!(counts(&table), (8, 4, 4));
    assert_eq!(table.find(&mut cache, 0x501), Some((0x501, 0x502)));
    assert_eq!(counts(&table), (9, 4, 5));
    for page in [0x100, 0x302, 0x403] {
        assert!(table.find(&mut cache, page).is_some());
    }
    assert_eq!(counts(&table), (12, 7, 5));
    assert!(table.find(&mut cache, 0x201).is_some());
    assert_eq!(counts(&table), (13, 7, 6));
}

// spec: V9
#[test]
fn hits_and_misses_add_up_to_calls_whatever_happens() {
    let mut table = Table::new(64);
    table.put(10, 20);
    let mut cache = VmaCache::new(&table.sequence);
    table.find(&mut cache, 12);
    table.find(&mut cache, 13); // a hit, by whichever slot
    assert_eq!(counts(&table), (2, 1, 1));
    table.find(&mut cache, 30); // not mapped
    assert_eq!(counts(&table), (3, 1, 2));
    table.put(10, 11); // mapped already, so nothing changes
    table.remove(19, 20);
    table.find(&mut cache, 12); // counted though every slot is out of date
    assert_eq!(counts(&table), (4, 1, 3));
    table.sequence.forget_cache(&cache);
    drop(cache);
    assert_eq!(counts(&table), (4, 1, 3), "kept when the cache is gone");
    let mut cache = VmaCache::new(&table.sequence);
    table.find(&mut cache, 12);
    assert_eq!(counts(&table), (5, 1, 4), "a new cache is empty");
}

// spec: V7
#[test]
fn no_slot_keeps_bounds_that_changed() {
    let mut table = Table::new(64);
    let mut cache = VmaCache::new(&table.sequence);
    table.put(10, 20);
    let look = |table: &Table, cache: &mut VmaCache| {
        [9, 10, 14, 15, 19, 20, 24, 25].map(|page| table.find(cache, page))
    };
    let mut check = |table: &Table| {
        for _ in 0..2 {
            let got = look(table, &mut cache);
            let mut fresh = VmaCache::new(&table.sequence);
            assert_eq!(got, look(table, &mut fresh));
        }
    };
    check(&table);
    table.put(20, 25); // grows
    check(&table);
    table.remove(24, 25); // shrinks
    check(&table);
    table.remove(14, 15); // splits
    check(&table);
    table.put(14, 15); // merges
    check(&table);
    table.remove(0, 100);
    check(&table);
}

/// The mapping that a slot copied is gone, and another one is at its addresses, by the time the
/// slot is read.
// spec: V12
#[test]
fn a_mapping_that_took_the_place_of_another_is_told_apart() {
    let mut table = Table::new(64);
    table.put(10, 20);
    let mut cache = VmaCache::new(&table.sequence);
    table.find(&mut cache, 12);
    table.remove(10, 20);
    assert_eq!(table.find(&mut cache, 12), None);
    table.put(12, 13);
    assert_eq!(table.find(&mut cache, 12), Some((12, 13)));
    table.remove(12, 13);
    table.put(11, 30);
    assert_eq!(table.find(&mut cache, 12), Some((11, 30)));
}
