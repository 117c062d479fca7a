//! Restores in place after watches have taken write validity.

use super::*;

fn in_place(pool: &Arc<Pool>) -> u64 {
    pool.counters.totals().restore_in_place
}

/// Creates a space of eight pages, and restores it this many times. The first two pages are stored
/// to before each restore.
fn restored(pool: &Arc<Pool>, restores: u64) -> (Space, VirtAddr, Accessor, Snapshot) {
    let space = space(pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let at = space.map(Map::anonymous(8 * PAGE).protection(all)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    let snapshot = space.freeze().unwrap();
    for value in 0..restores {
        a.store(at, 100 + value).unwrap();
        a.store(at + PAGE, 100 + value).unwrap();
        space.restore(&snapshot).unwrap();
    }
    (space, at, a, snapshot)
}

// spec: F7
#[test]
fn pages_taken_as_dirty_are_restored_in_place_and_named_again() {
    // These counts reach all cases: given back, copied back, steady.
    for restores in [1, 2, 3, 6, 20] {
        let pool = pool(512);
        let (space, at, mut a, snapshot) = restored(&pool, restores);
        let mut expected = in_place(&pool);
        for round in 0..20 {
            let first = space.take_dirty(at, 8 * PAGE).unwrap();
            assert!(round == 0 || first == [at..at + 2 * PAGE], "{first:?}");
            for page in 0..2 {
                a.store(at + page * PAGE, 7u64).unwrap();
            }
            // This call takes the dirty bits of the stored pages, and their write validity.
            assert_eq!(space.take_dirty(at, 8 * PAGE).unwrap(), [at..at + 2 * PAGE]);
            space.restore(&snapshot).unwrap();
            expected += 1;
            assert_eq!(in_place(&pool), expected, "{restores} restores before");
            let seen = [0, 1].map(|page| a.load::<u64>(at + page * PAGE));
            assert_eq!(seen, [Ok(1), Ok(0)]);
        }
        space.validate();
        drop((a, space, snapshot));
        assert_nothing_left(&pool);
    }
}

// spec: F7
#[test]
fn code_that_a_restore_in_place_takes_back_is_stale() {
    for restores in [1, 2, 6] {
        let pool = pool(512);
        let (space, at, mut a, snapshot) = restored(&pool, restores);
        for _ in 0..8 {
            a.store(at, 7u64).unwrap();
            let code = a.watch_code(at).unwrap();
            assert!(code.is_current());
            let before = in_place(&pool);
            space.restore(&snapshot).unwrap();
            assert_eq!(in_place(&pool), before + 1);
            assert!(!code.is_current(), "the page is another now");
            assert_eq!(a.fetch::<u64>(at), Ok(1));
        }
        drop((a, space, snapshot));
        assert_nothing_left(&pool);
    }
}

// spec: F7
#[test]
fn a_page_that_one_of_the_last_restores_gave_back_is_kept() {
    for restores in 1..=6 {
        let pool = pool(512);
        let (space, at, mut a, snapshot) = restored(&pool, 1);
        a.store(at + PAGE, 7u64).unwrap();
        let with_page = in_use(&pool);
        space.restore(&snapshot).unwrap();
        assert_eq!(in_use(&pool), with_page - 1, "given back");
        (1..restores).for_each(|_| space.restore(&snapshot).unwrap());
        a.store(at + PAGE, 7u64).unwrap();
        space.restore(&snapshot).unwrap();
        let kept = in_use(&pool) == with_page;
        assert_eq!(kept, restores <= 4, "{restores} restores");
        assert_eq!(a.load::<u64>(at + PAGE), Ok(0));
        space.validate();
        drop((a, space, snapshot));
        assert_nothing_left(&pool);
    }
}

/// Stores a value made of the round and the page's number to each of this many pages.
fn store_all(a: &mut Accessor, at: VirtAddr, pages: u64, round: u64) {
    for page in 0..pages {
        a.store(at + page * PAGE, round << 32 | page).unwrap();
    }
}

fn assert_all(a: &mut Accessor, at: VirtAddr, pages: u64, round: u64) {
    for page in 0..pages {
        let found = a.load::<u64>(at + page * PAGE);
        assert_eq!(found, Ok(round << 32 | page), "page {page}");
    }
}

// spec: F7
#[test]
fn more_changes_than_are_noted_are_all_restored() {
    let pages = super::super::changes::MOST as u64 + 256;
    let pool = pool(3 * pages as u32);
    let space = space(&pool);
    let at = space.map(Map::anonymous(pages * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    store_all(&mut a, at, pages, 1);
    let snapshot = space.freeze().unwrap();
    for round in 2..5 {
        store_all(&mut a, at, pages, round);
        space.restore(&snapshot).unwrap();
        assert_all(&mut a, at, pages, 1);
    }
    assert_eq!(in_place(&pool), 0);
    space.validate();
    drop((a, space, snapshot));
    assert_nothing_left(&pool);
}

// spec: F7
#[test]
fn changes_that_the_group_has_no_memory_to_note_are_all_restored() {
    let (pages, max) = (400, 2_048);
    let pool = pool(4_096);
    let group = pool
        .root_group()
        .create_child("tenant", max * PAGE)
        .unwrap();
    let cache = crate::cache::Cache::new(&pool);
    let space = Space::new(&cache, &group, crate::space::AddressWidth::Bits48).unwrap();
    let at = VirtAddr(LEAF);
    space.map(Map::anonymous(pages * PAGE).at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    store_all(&mut a, at, pages, 1);
    let snapshot = space.freeze().unwrap();
    a.store(at, 2u64).unwrap();
    space.restore(&snapshot).unwrap();
    a.store(at, 2u64).unwrap();
    let mut taken = Vec::new();
    for page in 1..pages {
        // The group has memory for a copy of the page, and no more.
        while pool.flush_retired() > 0 {}
        loop {
            pool.groups.drain_stocks(group.id());
            let left = max - pool.groups.charged(group.id()).0;
            if left == 1 {
                break;
            }
            match left {
                0 => drop(taken.pop()),
                _ => taken.push(
                    pool.groups
                        .try_charge(group.id(), PageCount(left - 1))
                        .unwrap(),
                ),
            }
        }
        a.store(at + page * PAGE, 2u64).unwrap();
    }
    taken.clear();
    space.restore(&snapshot).unwrap();
    assert_all(&mut a, at, pages, 1);
    assert_eq!(in_place(&pool), 0, "not all that was stored to is known");
    space.validate();
    drop((a, space, snapshot, group, cache));
    assert_nothing_left(&pool);
}
