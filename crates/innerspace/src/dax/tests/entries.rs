//! Tests of entries and their locks.

use super::super::entries::{Entries, Found, Locked};
use super::super::entry::{Content, Entry, LOCKED, Size, WAITERS, Word};
use super::super::grab::Wanted;
use super::super::waits::Waits;
use super::*;
use crate::sync::raw;
use crate::units::FrameId;

fn locked(found: Found<'_>) -> Locked<'_> {
    match found {
        Found::Locked(locked) => locked,
        _ => panic!("the entry is not locked"),
    }
}

fn put(entries: &Entries, page: u64, wanted: Wanted, content: Content) {
    let locked = locked(entries.lock(page, wanted).unwrap());
    let size = locked.entry().size();
    locked.replace(Entry::new(size, content));
}

// spec: D8
#[test]
fn a_small_entry_anywhere_in_the_range_is_a_conflict() {
    let pool = pool(64);
    for slot in [0, 63, 64, 511] {
        let entries = Entries::new(&pool, &pool.root_group());
        let page = 5 * LARGE + slot;
        put(&entries, page, Wanted::Cover, Content::Block(77));
        let found = entries.lock(5 * LARGE + 200, Wanted::Large).unwrap();
        assert!(matches!(found, Found::Conflict), "slot {slot}");
        let there = entries.peek(page);
        assert_eq!(there, Some(Entry::new(Size::Small, Content::Block(77))));
        // An entry of the neighbouring range does not matter.
        drop(locked(entries.lock(4 * LARGE, Wanted::Large).unwrap()));
        entries.end();
    }
    assert_nothing_left(&pool);
}

#[test]
fn a_range_without_entries_is_had_whole_and_its_node_goes() {
    let pool = pool(64);
    let entries = Entries::new(&pool, &pool.root_group());
    // An entry that stays empty leaves nothing behind but its node.
    drop(locked(entries.lock(3, Wanted::Cover).unwrap()));
    assert_eq!((entries.peek(3), entries.node_count()), (None, 2));
    put(&entries, 3, Wanted::Large, Content::Zero);
    assert_eq!(entries.node_count(), 1);
    // The large entry covers every page of the range.
    for page in [0, 3, 511] {
        let large = locked(entries.lock(page, Wanted::Cover).unwrap());
        assert_eq!((large.first(), large.pages()), (0, 0..LARGE));
    }
    assert_eq!(entries.next(0, 4 * LARGE, |_, _| true), Some(0));
    assert_eq!(entries.next(7, 4 * LARGE, |_, _| true), Some(7));
    locked(entries.lock(9, Wanted::Present).unwrap()).remove();
    assert!(matches!(
        entries.lock(9, Wanted::Present).unwrap(),
        Found::Absent
    ));
    assert_eq!(entries.next(0, u64::MAX, |_, _| true), None);
    entries.end();
    drop(entries);
    assert_nothing_left(&pool);
}

// spec: D9
#[test]
fn a_large_hole_is_downgraded_for_a_change_and_a_large_block_is_not() {
    let pool = pool(64);
    let entries = Entries::new(&pool, &pool.root_group());
    put(&entries, 0, Wanted::Large, Content::Zero);
    put(&entries, LARGE, Wanted::Large, Content::Block(512));
    // A large hole can be read as it is.
    drop(locked(entries.lock(7, Wanted::Cover).unwrap()));
    let Found::InTheWay(hole) = entries.lock(7, Wanted::Change).unwrap() else {
        panic!("a block for one page in a hole of 2 MiB");
    };
    assert_eq!(hole.pages(), 0..LARGE);
    let waiter = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| locked(entries.lock(300, Wanted::Change).unwrap()).first());
        until(|| entries.waits.len() == 1);
        hole.finish();
        waiter.join().unwrap()
    });
    assert_eq!(waiter, 300, "who waited for the hole has its own page");
    assert_eq!(entries.node_count(), 2);
    let block = locked(entries.lock(LARGE + 9, Wanted::Change).unwrap());
    assert_eq!(
        (block.first(), block.content()),
        (LARGE, Content::Block(512))
    );
    drop(block);
    entries.prune(0..4 * LARGE);
    assert_eq!(entries.node_count(), 1);
    entries.end();
    drop(entries);
    assert_nothing_left(&pool);
}

#[test]
fn entries_far_apart_are_found_in_order() {
    let pool = pool(128);
    let entries = Entries::new(&pool, &pool.root_group());
    let pages = [
        0,
        511,
        512,
        70 * LARGE + 1,
        513 * LARGE,
        5_000 * LARGE + 13,
        (1 << 35) - 1,
    ];
    for page in pages {
        put(&entries, page, Wanted::Cover, Content::Block(page));
    }
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(page) = entries.next(at, 1 << 35, |_, _| true) {
        found.push(page);
        at = page + 1;
    }
    assert_eq!(found, pages);
    assert_eq!(entries.next(1, 511, |_, _| true), None);
    let wanted = |entry: Entry, _| entry.content() == Content::Block(513 * LARGE);
    assert_eq!(entries.next(0, 1 << 35, wanted), Some(513 * LARGE));
    for page in pages {
        locked(entries.lock(page, Wanted::Present).unwrap()).remove();
    }
    entries.prune(0..1 << 35);
    entries.end();
    drop(entries);
    assert_nothing_left(&pool);
}

#[test]
fn a_full_group_refuses_a_node_and_leaves_nothing_locked() {
    let pool = pool(64);
    let group = pool.root_group().create_child("tenant", 16 * PAGE).unwrap();
    let entries = Entries::new(&pool, &group);
    let mut page = 0;
    let error = loop {
        match entries.lock(page, Wanted::Cover) {
            Ok(found) => locked(found).replace(Entry::new(Size::Small, Content::Zero)),
            Err(error) => break error,
        }
        page += LARGE;
    };
    assert!(
        error.to_string().starts_with("group root/tenant is full"),
        "{error}"
    );
    assert_eq!(entries.peek(page), None);
    // Entries that exist can still be locked.
    drop(locked(entries.lock(0, Wanted::Change).unwrap()));
    entries.end();
    drop(entries);
    pool.flush_retired();
    assert_eq!(group.stats().usage, PageCount(0));
}

// spec: D6
#[test]
fn many_threads_lock_one_page_in_turn() {
    let pool = pool(64);
    let entries = Entries::new(&pool, &pool.root_group());
    const ROUNDS: u64 = 2_000;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let locked = locked(entries.lock(9, Wanted::Cover).unwrap());
                    let count = match locked.content() {
                        Content::Block(count) => count,
                        _ => 0,
                    };
                    locked.replace(Entry::new(Size::Small, Content::Block(count + 1)));
                }
            });
        }
    });
    let end = Entry::new(Size::Small, Content::Block(4 * ROUNDS));
    assert_eq!((entries.peek(9), entries.waits.len()), (Some(end), 0));
    entries.end();
}

// spec: D7
#[test]
fn who_waits_for_a_large_entry_is_woken() {
    let pool = pool(64);
    let entries = Arc::new(Entries::new(&pool, &pool.root_group()));
    let held = locked(entries.lock(0, Wanted::Large).unwrap()).into_held();
    // The waiter has a thread of its own: even if it slept for ever, the test would end.
    let waiter = std::thread::spawn({
        let entries = entries.clone();
        move || locked(entries.lock(300, Wanted::Cover).unwrap()).pages()
    });
    until(|| entries.waits.len() == 1);
    entries
        .adopt(held)
        .replace(Entry::new(Size::Large, Content::Zero));
    assert_eq!(entries.waits.len(), 0, "a waiter was passed over");
    assert_eq!(waiter.join().unwrap(), 0..LARGE);
}

#[test]
fn a_node_in_place_of_a_locked_entry_is_not_waited_for() {
    let waits = Waits::default();
    let unlocked = Word::node(FrameId(5));
    // Another thread is checking whether the node is empty, and will store the word as it was.
    let word = raw::AtomicU64::new(unlocked | LOCKED);
    assert!(waits.enqueue(&word, 0).is_none(), "nobody wakes it");
    assert_eq!(word.load(raw::Ordering::SeqCst), unlocked | LOCKED);
    assert_eq!(waits.len(), 0);
}

// spec: D6
#[test]
fn all_who_wait_for_an_entry_are_woken_and_no_others() {
    let (waits, word) = (Waits::default(), raw::AtomicU64::new(0));
    let entry = Entry::new(Size::Small, Content::Zero);
    for unlocked in [entry.word(), 0] {
        word.store(entry.locked(), raw::Ordering::SeqCst);
        // Keys 9 and 36 share a queue.
        let [first, _, other] = [9, 9, 36].map(|key| waits.enqueue(&word, key).unwrap());
        waits.release(&word, 9, entry.locked(), unlocked);
        assert_eq!(
            (word.load(raw::Ordering::SeqCst), waits.len()),
            (unlocked, 1)
        );
        assert!(!first.rouse(), "woken already");
        assert!(other.rouse(), "of another entry");
        word.store(entry.locked() | WAITERS, raw::Ordering::SeqCst);
        waits.release(&word, 36, entry.locked(), unlocked);
    }
    assert_eq!(waits.len(), 0);
}
