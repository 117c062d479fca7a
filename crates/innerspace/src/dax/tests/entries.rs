//! Tests of entries and their locks.

use super::super::entries::{Entries, Locked};
use super::super::entry::{Content, Entry, LOCKED, Size, WAITERS, Word};
use super::super::grab::Wanted;
use super::super::waits::Waits;
use super::*;
use crate::sync::raw;
use crate::units::FrameId;

fn locked(found: Option<Locked<'_>>) -> Locked<'_> {
    found.expect("the entry is locked")
}

/// Returns the first page with a wanted entry.
fn next(entries: &Entries, pages: Range<u64>, wanted: impl Fn(Entry, bool) -> bool) -> Option<u64> {
    let next = entries.next(pages.start, pages.end, wanted);
    next.map(|(page, _)| page)
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
        assert!(found.is_none(), "slot {slot}");
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
    assert_eq!(next(&entries, 0..4 * LARGE, |_, _| true), Some(0));
    assert_eq!(next(&entries, 7..4 * LARGE, |_, _| true), Some(7));
    locked(entries.lock(9, Wanted::Present).unwrap()).remove();
    assert!(entries.lock(9, Wanted::Present).unwrap().is_none());
    assert_eq!(next(&entries, 0..u64::MAX, |_, _| true), None);
    entries.end();
    drop(entries);
    assert_nothing_left(&pool);
}

// spec: D9
#[test]
fn a_large_hole_is_split_for_a_change_and_a_large_block_is_not() {
    let pool = pool(64);
    let device = device(16);
    let file = file(&pool, &device, 4 * LARGE);
    let (core, entries) = (file.core(), &file.core().entries);
    put(entries, 0, Wanted::Large, Content::Zero);
    put(entries, LARGE, Wanted::Large, Content::Block(512));
    let lock = |page, kind| core.lock_for(page, kind, Wait::Yes).unwrap();
    // A large hole can be read as it is.
    let hole = lock(7, FaultKind::Read);
    assert_eq!(hole.pages(), 0..LARGE);
    let waiter = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lock(300, FaultKind::Write).pages());
        until(|| entries.waits.len() == 1);
        drop(hole);
        waiter.join().unwrap()
    });
    assert_eq!(waiter, 300..301, "a page of its own");
    assert_eq!((entries.node_count(), file.stats().downgrades), (2, 1));
    let block = lock(LARGE + 9, FaultKind::Write);
    assert_eq!(
        (block.first(), block.content()),
        (LARGE, Content::Block(512))
    );
    block.remove();
    entries.prune(0..4 * LARGE);
    assert_eq!(entries.node_count(), 1);
    drop(file);
    assert_nothing_left(&pool);
}

#[test]
fn a_large_hole_stays_mapped_if_there_is_no_memory_to_split_it() {
    let pool = pool(64);
    let group = pool.root_group().create_child("tenant", 16 * PAGE).unwrap();
    let device = device(16);
    let setup = DaxSetup::default();
    let file = DaxFile::on_device(&Cache::new(&pool), &group, &device, "data.bin", setup).unwrap();
    let core = file.core();
    put(&core.entries, 0, Wanted::Large, Content::Zero);
    let mut all = Vec::new();
    while let Ok(frame) = pool.alloc(group.id(), 0, crate::reclaim::AllocMode::Wait) {
        all.push(frame);
    }
    let full = core.lock_for(7, FaultKind::Write, Wait::Yes).map(drop);
    assert!(matches!(full, Err(DaxError::Limit(_))), "{full:?}");
    let hole = Entry::new(Size::Large, Content::Zero);
    assert_eq!(core.entries.peek(7), Some(hole));
    assert_eq!(file.stats().downgrades, 0);
    // It is not locked any more.
    drop(core.lock_for(7, FaultKind::Read, Wait::No).unwrap());
    drop(all);
    let page = core.lock_for(7, FaultKind::Write, Wait::Yes).unwrap();
    assert_eq!(page.pages(), 7..8);
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
    while let Some(page) = next(&entries, at..1 << 35, |_, _| true) {
        found.push(page);
        at = page + 1;
    }
    assert_eq!(found, pages);
    assert_eq!(next(&entries, 1..511, |_, _| true), None);
    let wanted = |entry: Entry, _| entry.content() == Content::Block(513 * LARGE);
    assert_eq!(next(&entries, 0..1 << 35, wanted), Some(513 * LARGE));
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
    drop(locked(entries.lock(0, Wanted::Cover).unwrap()));
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
fn who_waits_for_another_entry_in_the_same_queue_is_left_asleep() {
    let (waits, word) = (Waits::default(), raw::AtomicU64::new(0));
    let entry = Entry::new(Size::Small, Content::Zero);
    for (unlocked, woken) in [(entry.word(), 1), (0, 2)] {
        word.store(entry.locked(), raw::Ordering::SeqCst);
        // Keys 9 and 36 share a queue.
        let [other, first, second] = [36, 9, 9].map(|key| waits.enqueue(&word, key).unwrap());
        waits.release(&word, 9, entry.locked(), unlocked);
        let left = if woken == 1 { WAITERS } else { 0 };
        assert_eq!(word.load(raw::Ordering::SeqCst), unlocked | left);
        assert!(!first.rouse(), "woken already");
        assert_eq!(second.rouse(), woken == 1);
        assert!(other.rouse(), "of another entry");
        for key in [9, 36] {
            word.store(entry.locked() | WAITERS, raw::Ordering::SeqCst);
            waits.release(&word, key, entry.locked(), 0);
        }
        assert_eq!(waits.len(), 0);
    }
}

#[test]
fn an_entry_that_became_another_one_wakes_all_who_wait() {
    let pool = pool(64);
    let entries = Entries::new(&pool, &pool.root_group());
    put(&entries, 9, Wanted::Cover, Content::Zero);
    let waiting_after = |change: &dyn Fn(&mut Locked<'_>)| {
        let mut held = locked(entries.lock(9, Wanted::Cover).unwrap());
        let queued = [(); 3].map(|()| entries.queue_for(9));
        change(&mut held);
        drop(held);
        let left = entries.waits.len();
        // No thread sleeps here: the remaining unlocks take the entries out of the queue.
        while entries.waits.len() > 0 {
            drop(locked(entries.lock(9, Wanted::Cover).unwrap()));
        }
        drop(queued);
        left
    };
    assert_eq!(waiting_after(&|_| {}), 2, "one is woken");
    let block = Entry::new(Size::Small, Content::Block(5));
    assert_eq!(waiting_after(&|held| held.set(block)), 0);
    assert_eq!(waiting_after(&|held| held.set(block.dirty())), 2);
    assert_eq!(entries.peek(9), Some(block.dirty()));
    entries.end();
}

#[test]
fn who_is_woken_and_has_no_memory_wakes_the_next() {
    let pool = pool(64);
    let group = pool.root_group().create_child("tenant", 16 * PAGE).unwrap();
    let device = device(16);
    let setup = DaxSetup::default();
    let file = DaxFile::on_device(&Cache::new(&pool), &group, &device, "data.bin", setup).unwrap();
    let (core, entries) = (file.core(), &file.core().entries);
    put(entries, 0, Wanted::Large, Content::Zero);
    let mut all = Vec::new();
    while let Ok(frame) = pool.alloc(group.id(), 0, crate::reclaim::AllocMode::Wait) {
        all.push(frame);
    }
    let hole = locked(entries.lock(0, Wanted::Cover).unwrap());
    std::thread::scope(|scope| {
        // This thread wants to change a page of the hole, so it needs a node.
        let change = || core.lock_for(7, FaultKind::Write, Wait::Yes).map(drop);
        let first = scope.spawn(change);
        until(|| entries.waits.len() == 1);
        let second = scope.spawn(|| locked(entries.lock(8, Wanted::Cover).unwrap()).first());
        until(|| entries.waits.len() == 2);
        drop(hole);
        first.join().unwrap().unwrap_err();
        let waiting = entries.waits.len();
        // If the second one sleeps, this wakes it, so that the test ends.
        put(entries, 0, Wanted::Cover, Content::Block(512));
        assert_eq!(second.join().unwrap(), 0);
        assert_eq!(waiting, 0, "nobody has the entry, and one waits for it");
    });
    drop(all);
}
