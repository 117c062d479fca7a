//! Tests in which other threads act in the middle of an operation: a structural change, a copy of a
//! leaf.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

use super::direct::{LARGE, device, hole, hole_with, shared};
use super::*;
use crate::cache::{Cache, FileAccess, FileOptions, PagedFile, WriteOrder};
use crate::dax::HoleWrites;
use crate::reclaim::Owner;
use crate::space::access::single::Single;
use crate::space::access::what::What;
use crate::space::core::address::slot_index;
use crate::space::table::pte::{self, VALID_W};
use crate::store::MemoryStore;
use crate::sync::failpoint;

/// Unmaps all of 2 MiB of a hole but the first page and the last, while another thread faults in
/// the first. Returns whether an access to the unmapped range succeeds afterwards.
fn reached_after_unmap(holes: HoleWrites, access: AccessKind) -> bool {
    let pool = pool(512);
    let device = device(8 * LARGE);
    let file = hole_with(&pool, &device, LARGE, holes);
    let space = space(&pool);
    let at = space.map(shared(&file).at(VirtAddr(1 << 30))).unwrap();
    let try_access = move |space: &Space, at| {
        let mut a = space.accessor().unwrap();
        match access {
            AccessKind::Store => a.store(at, 1u8),
            _ => a.load::<u8>(at).map(drop),
        }
    };
    let other = space.clone();
    let _there = failpoint::on("GateClosed", move || {
        let beside = thread::spawn(move || try_access(&other, at));
        beside.join().unwrap().unwrap();
    });
    space.unmap(at + PAGE, 510 * PAGE).unwrap();
    try_access(&space, at + 7 * PAGE).is_ok()
}

#[test]
fn a_store_beside_an_unmap_maps_no_neighbour_in_its_range() {
    assert!(!reached_after_unmap(HoleWrites::Large, AccessKind::Store));
}

#[test]
fn a_load_of_a_hole_beside_an_unmap_maps_no_neighbour_in_its_range() {
    assert!(!reached_after_unmap(HoleWrites::OnePage, AccessKind::Load));
}

// spec: D4
#[test]
fn a_restore_brings_back_no_zeros_that_a_write_has_replaced() {
    let pool = pool(512);
    let device = device(8 * LARGE);
    let file = hole(&pool, &device, 4 * LARGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    for hole in 0..4 {
        assert_eq!(a.load::<u8>(at + hole * LARGE), Ok(0));
    }
    let frozen = space.freeze().unwrap();
    a.store(at, 1u8).unwrap();
    let _there = failpoint::on("GateClosed", move || {
        let writing = thread::spawn(move || file.write_at(&[9], LARGE).unwrap());
        writing.join().unwrap();
    });
    space.restore(&frozen).unwrap();
    assert_eq!(a.load::<u8>(at + LARGE), Ok(9));
}

/// One accessor copies, for a store, the words of a leaf that a fork shares. Then the fork ends,
/// and another accessor stores to another page of the leaf. Only then does the copy replace the
/// leaf.
// spec: F3
#[test]
fn a_store_beside_the_copy_of_its_leaf_is_in_the_copy_when_the_other_sharer_ends() {
    let pool = pool(512);
    let space = space(&pool);
    let at = space
        .map(Map::anonymous(2 * LARGE).at(VirtAddr(1 << 30)))
        .unwrap();
    let shared = at + LARGE;
    let mut a = space.accessor().unwrap();
    let mut other = space.accessor().unwrap();
    a.store(shared, 7u8).unwrap();
    let child = space.fork().unwrap();
    // The path to the leaf is exclusive to the space again; the leaf is not.
    a.store(at, 1u8).unwrap();
    pool.flush_retired();
    let (to_end, ended) = mpsc::channel();
    let _there = failpoint::on("LeafCopied", move || {
        let (told, gone) = mpsc::channel();
        let ending = thread::spawn(move || {
            let _there = failpoint::on("TableGone", move || told.send(()).unwrap());
            drop(child);
        });
        gone.recv().unwrap();
        let (told, waits_or_stored) = mpsc::channel();
        let storing = thread::spawn(move || {
            let waits = told.clone();
            let _there = failpoint::on("Turn", move || waits.send(()).unwrap());
            other.store(shared + PAGE, 8u8).unwrap();
            let _ = told.send(());
        });
        waits_or_stored.recv().unwrap();
        to_end.send([ending, storing]).unwrap();
    });
    a.store(shared + 2 * PAGE, 9u8).unwrap();
    for thread in ended.recv().unwrap() {
        thread.join().unwrap();
    }
    let stored = [0, 1, 2].map(|page| a.load::<u8>(shared + page * PAGE).unwrap());
    assert_eq!(stored, [7, 8, 9]);
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}

/// Replaces, by a copy, a leaf that a fork shares. Before the accessors that remember the old leaf
/// are told, one of them stores to a page of it.
fn store_before_the_others_are_told(replace: impl FnOnce(&Space, VirtAddr)) {
    let pool = pool(512);
    let space = space(&pool);
    let at = VirtAddr(1 << 30);
    let at = space.map(Map::anonymous(3 * PAGE).at(at)).unwrap();
    let [mut a, mut reader] = [(); 2].map(|()| space.accessor().unwrap());
    a.store(at + PAGE, 7u8).unwrap();
    a.store(at + 2 * PAGE, 6u8).unwrap(); // stays borrowed
    let child = space.fork().unwrap();
    assert_eq!(reader.load(at + PAGE), Ok(7u8));
    let (to_end, ended) = mpsc::channel();
    let there = failpoint::on("Replaced", move || {
        let (told, waits_or_stored) = mpsc::channel();
        let storing = thread::spawn(move || {
            let waits = told.clone();
            let there = failpoint::on("Turn", move || waits.send(7).unwrap());
            a.store(at + PAGE, 8u8).unwrap();
            std::mem::forget(there); // the store need not wait
            let _ = told.send(8);
        });
        let there = waits_or_stored.recv().unwrap();
        let seen = reader.load(at + PAGE);
        to_end.send((storing, reader, there, seen)).unwrap();
    });
    replace(&space, at);
    drop(there);
    let (storing, mut reader, there, seen) = ended.recv().unwrap();
    storing.join().unwrap();
    assert_eq!(seen, Ok(there));
    assert_eq!(reader.load(at + PAGE), Ok(8u8));
    drop((reader, child, space));
    assert_nothing_left(&pool);
}

// spec: A6
#[test]
fn a_leaf_that_a_store_has_copied_and_another_has_stored_to_is_seen_by_who_remembers_the_old_one() {
    store_before_the_others_are_told(|space, at| {
        space.accessor().unwrap().store(at, 9u8).unwrap();
    });
}

// spec: A6
#[test]
fn a_leaf_that_a_map_has_copied_and_another_has_stored_to_is_seen_by_who_remembers_the_old_one() {
    store_before_the_others_are_told(|space, at| {
        space.map(Map::anonymous(PAGE).at(at + 3 * PAGE)).unwrap();
    });
}

/// A load walks through a node that a fork shares, to a leaf that does not exist. Meanwhile a store
/// replaces the node by a copy, but finds no memory for a leaf. So the load links a new leaf in the
/// old node, which only the child has now, and the accessor must not remember it.
// spec: A6
#[test]
fn a_leaf_that_a_load_links_below_a_node_that_was_replaced_is_forgotten_if_the_store_fails() {
    // The store needs three nodes. The test does not know how many frames are free otherwise, so it
    // tries numbers of frames.
    let copied = (0..40).map(load_beside_a_store_with_room_for);
    assert!(copied.into_iter().any(|nodes| nodes == 2));
}

/// Returns the number of nodes that the store has copied.
fn load_beside_a_store_with_room_for(frames: u64) -> u64 {
    let pool = pool(512);
    let space = space(&pool);
    let at = VirtAddr(1 << 30);
    let at = space.map(Map::anonymous(2 * LARGE).at(at)).unwrap();
    let [mut a, mut reader] = [(); 2].map(|()| space.accessor().unwrap());
    // The pages keep the limit from becoming too small for a memory.
    for page in 0..64 {
        a.store(at + page * PAGE, 7u8).unwrap();
    }
    let child = space.fork().unwrap();
    let copied = || pool.counters.totals().table_unshare;
    let before = copied();
    let groups = pool.groups.clone();
    let (to_end, ended) = mpsc::channel();
    let _there = failpoint::on("Filling", move || {
        let max = PageCount(groups.usage(GroupId::ROOT).0 + frames);
        groups.set_max(GroupId::ROOT, Some(max)).unwrap();
        let stored = a.try_store(at, 8u8); // in the reader's section: it must not wait
        groups.set_max(GroupId::ROOT, None).unwrap();
        to_end.send((a, stored)).unwrap();
    });
    assert_eq!(reader.load(at + LARGE), Ok(0u8));
    let (mut a, stored) = ended.recv().unwrap();
    let copied = copied() - before;
    assert!(stored.is_err() || copied == 3, "{stored:?}");
    a.store(at + LARGE, 9u8).unwrap();
    assert_eq!(reader.load(at + LARGE), Ok(9u8), "with {frames} frames");
    drop((a, reader, child, space));
    assert_nothing_left(&pool);
    copied
}

/// A store has counted its generation, but not made the page writable yet, when the page is
/// watched.
// spec: V11
#[test]
fn a_page_is_not_watched_beside_a_store_that_has_counted_and_not_stored() {
    let pool = pool(64);
    let space = space(&pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let at = space.map(Map::anonymous(PAGE).protection(all)).unwrap();
    let mut storer = space.accessor().unwrap();
    storer.store(at, 1u64).unwrap();
    // From here on, the first store after each watch takes a fault.
    drop(space.accessor().unwrap().watch_code(at).unwrap());
    let (hand_over, watched) = mpsc::channel();
    let other = space.clone();
    let _there = failpoint::on("WatchersNotified", move || {
        let domain = other.0.pool.domain.clone();
        let begun = domain.begun();
        let watching = thread::spawn(move || {
            let mut a = other.accessor().unwrap();
            let page = a.watch_code(at).unwrap();
            (a.fetch::<u64>(at).unwrap(), page)
        });
        // The watch is over, or it has read the generation and waits for this thread.
        while !watching.is_finished() && domain.begun() == begun {
            thread::yield_now();
        }
        hand_over.send(watching).unwrap();
    });
    storer.store(at, 2u64).unwrap();
    let (fetched, page) = watched.recv().unwrap().join().unwrap();
    assert!(
        fetched == 2 || !page.is_current(),
        "{fetched} is what was made of the page, and is stale"
    );
    let current = page.is_current();
    storer.store(at, 3u64).unwrap();
    assert!(!current || !page.is_current(), "a store that did not count");
}

/// A fault copies a page that a fork has too. Meanwhile the fork ends, another accessor stores to
/// the page in place, and a watch that began before takes away write validity.
// spec: A1
#[test]
fn a_store_beside_the_copy_of_its_page_is_not_lost_to_a_watch() {
    let pool = pool(512);
    let space = space(&pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let at = space.map(Map::anonymous(2 * PAGE).protection(all)).unwrap();
    let page = at + PAGE;
    let (mut a, mut other) = (space.accessor().unwrap(), space.accessor().unwrap());
    a.store(page, 7u64).unwrap();
    // This fetch makes later fetches change nothing.
    assert_eq!(a.fetch::<u64>(page), Ok(7));
    // The leaf of a pinned page is not shared, so each of its other pages has two owners.
    let pinned = space.pin(at, PAGE, AtFork::Copy).unwrap();
    let child = space.fork().unwrap();
    let (to_watch, begun) = mpsc::channel();
    let (copied, is_copied) = mpsc::channel();
    let (has_ended, ended) = mpsc::channel();
    let watched = space.clone();
    let watching = thread::spawn(move || {
        let counters = watched.0.pool.clone();
        let waits = move || counters.counters.totals().gate_wait;
        let before = waits();
        let _there = failpoint::on("PageGated", move || {
            to_watch.send(()).unwrap();
            // The page is copied, or the thread that copies it is kept out.
            while is_copied.try_recv().is_err() && waits() == before {
                thread::yield_now();
            }
        });
        let _ended = failpoint::on("WritesEnded", move || has_ended.send(()).unwrap());
        watched.accessor().unwrap().watch_code(page).unwrap();
    });
    begun.recv().unwrap();
    let done = mpsc::channel();
    let _there = failpoint::on("Copied", move || {
        let (told, gone) = mpsc::channel();
        let ending = thread::spawn(move || {
            let _there = failpoint::on("TableGone", move || told.send(()).unwrap());
            drop(child);
        });
        gone.recv().unwrap();
        let stored = thread::spawn(move || other.store(page, 8u64));
        stored.join().unwrap().unwrap();
        let _ = copied.send(());
        // The watch is over, or it has made the page read-only and waits for this thread.
        ended.recv().unwrap();
        done.0.send([ending, watching]).unwrap();
    });
    a.store(page + 8, 9u64).unwrap();
    for thread in done.1.recv().unwrap() {
        thread.join().unwrap();
    }
    let stored = [page, page + 8].map(|at| a.load::<u64>(at).unwrap());
    assert_eq!(stored, [8, 9]);
    space.validate();
    drop((a, space, pinned));
    assert_nothing_left(&pool);
}

/// A store has found its page writable when aging takes that validity away, and has not stored yet
/// when the page is watched.
// spec: V11
#[test]
fn a_page_is_not_watched_beside_a_store_whose_page_was_aged() {
    let cache = Cache::new(&pool(256));
    let options = FileOptions::new().access(FileAccess::ReadWrite);
    let store = Arc::new(MemoryStore::with_len(PAGE));
    let file = PagedFile::open(&cache, store, &options).unwrap();
    let space = space(&cache.pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let map = Map::file(&file).shared().protection(all);
    let at = space.map(map).unwrap();
    let mut storer = space.accessor().unwrap();
    storer.store(at, 1u64).unwrap();
    let fetched = Arc::new(AtomicBool::new(false));
    let (hand_over, stored) = mpsc::channel();
    let (other, is_fetched) = (space.clone(), fetched.clone());
    let _there = failpoint::on("PageGated", move || {
        let domain = other.0.pool.domain.clone();
        let (entered, in_section) = mpsc::channel();
        let (aged, is_aged) = mpsc::channel();
        let storing = thread::spawn(move || {
            let what = What::value::<u64>(AccessKind::Store);
            let stored = storer.core.access::<Single, ()>(at, what, |page| {
                entered.send(()).unwrap();
                let begun = is_aged.recv().unwrap();
                // The page is watched and fetched from, or the watch waits for this thread.
                while !is_fetched.load(SeqCst) && domain.begun() == begun {
                    thread::yield_now();
                }
                page.store(2u64);
            });
            stored.unwrap();
            storer
        });
        in_section.recv().unwrap();
        other.0.inside(|_| {
            let nodes = other.0.nodes();
            let leaf = nodes.find(at.0).unwrap();
            let word = &nodes.words(leaf.frame)[slot_index(at.0, 0)];
            assert!(pte::load(word).has(VALID_W), "the store has its page");
        });
        let mut used = Vec::new();
        (file.inner().core()).age(0..1, &mut |block| used.push(block));
        assert_eq!(used, [0]);
        aged.send(other.0.pool.domain.begun()).unwrap();
        hand_over.send(storing).unwrap();
    });
    let mut a = space.accessor().unwrap();
    let page = a.watch_code(at).unwrap();
    let found = a.fetch::<u64>(at).unwrap();
    fetched.store(true, SeqCst);
    let mut storer = stored.recv().unwrap().join().unwrap();
    assert!(
        found == 2 || !page.is_current(),
        "{found} is what was made of the page, and is stale"
    );
    let current = page.is_current();
    storer.store(at, 3u64).unwrap();
    assert!(!current || !page.is_current(), "a store that did not count");
}

/// Code that was translated from a page is known to be stale before any thread can see what a
/// change made of the page.
// spec: V11
#[test]
fn a_change_makes_code_stale_before_it_shows() {
    type Change = fn(&Space, VirtAddr, &Snapshot) -> Result<(), SpaceError>;
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let changes: [(&'static str, Change); 5] = [
        ("GateClosed", |space, at, _| space.unmap(at, PAGE)),
        ("GateClosed", |space, at, _| {
            space.map(Map::anonymous(PAGE).replacing(at)).map(drop)
        }),
        ("GateClosed", |space, at, _| space.discard(at, LARGE)),
        ("Zap", |space, at, _| space.discard(at, PAGE)),
        ("GateClosed", |space, _, snapshot| space.restore(snapshot)),
    ];
    for (point, change) in changes {
        let space = space(&pool(64));
        let at = space.map(Map::anonymous(LARGE).protection(all)).unwrap();
        let mut a = space.accessor().unwrap();
        a.store(at, 1u64).unwrap();
        let snapshot = space.freeze().unwrap();
        a.store(at, 2u64).unwrap();
        let page = a.watch_code(at).unwrap();
        assert!(page.is_current());
        let _there = failpoint::on(point, move || assert!(!page.is_current()));
        change(&space, at, &snapshot).unwrap();
    }
}

/// A store faults on a page and has its block, marked with the barrier number. Then the number is
/// increased, and then the page is made writable. Stores from then on, which need no fault, carry
/// the new number.
// spec: P25
#[test]
fn a_store_beside_a_new_barrier_carries_its_number() {
    let cache = Cache::new(&pool(512));
    let options = FileOptions::new()
        .access(FileAccess::ReadWrite)
        .write_order(WriteOrder::Ordered);
    let store = Arc::new(MemoryStore::with_len(PAGE));
    let file = PagedFile::open(&cache, store.clone(), &options).unwrap();
    file.set_barrier(1);
    let space = space(&cache.pool);
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    let raised = file.clone();
    let _there = failpoint::on("BlockAcquired", move || raised.set_barrier(2));
    a.store(at, 1u8).unwrap();
    a.store(at, 2u8).unwrap();
    file.release_through(1);
    file.sync_all().unwrap_err();
    assert_eq!(
        store.to_vec()[0],
        0,
        "what was stored under 2 is not released"
    );
    file.release_through(2);
    file.sync_all().unwrap();
    assert_eq!(store.to_vec()[0], 2);
}

/// A fault maps a neighbour of its page, which it has found in the file. Another thread then
/// punches the neighbour, which it finds not mapped. The fault counts the page as mapped, and the
/// punch is over before the fault has the page's lock.
// spec: P15
#[test]
fn a_neighbour_that_was_punched_is_not_mapped() {
    let cache = Cache::new(&pool(256));
    let options = FileOptions::new().access(FileAccess::ReadWrite);
    let store = Arc::new(MemoryStore::with_len(2 * PAGE));
    crate::store::write_all_at(&*store, &[7; 2 * PAGE_SIZE], 0).unwrap();
    let file = PagedFile::open(&cache, store, &options).unwrap();
    file.read_exact_at(&mut [0; 2 * PAGE_SIZE], 0).unwrap();
    let space = space(&cache.pool);
    let at = space.map(Map::file(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    let (to_go_on, goes_on) = mpsc::channel();
    let (gone, is_gone) = mpsc::channel();
    let (hand_over, punching) = mpsc::channel();
    let punched = file.clone();
    let _seen = failpoint::on("NeighbourSeen", move || {
        let (cut_off, is_cut_off) = mpsc::channel();
        let punch = thread::spawn(move || {
            let _cut_off = failpoint::on("CutOff", move || {
                cut_off.send(()).unwrap();
                goes_on.recv().unwrap();
            });
            let _gone = failpoint::on("BlocksGone", move || gone.send(()).unwrap());
            punched.punch(PAGE..2 * PAGE).unwrap();
        });
        is_cut_off.recv().unwrap();
        hand_over.send(punch).unwrap();
    });
    let _counted = failpoint::on("NeighbourCounted", move || {
        to_go_on.send(()).unwrap();
        is_gone.recv().unwrap();
    });
    assert_eq!(a.load::<u8>(at), Ok(7));
    punching.recv().unwrap().join().unwrap();
    assert_eq!(a.load::<u8>(at + PAGE), Ok(0), "what was punched");
    space.validate();
    drop((a, space, file));
    assert_nothing_left(&cache.pool);
}

/// Lets `change` reach `point`. There a session accesses another page of the same leaf. Returns
/// whether the change waits for the end of the session.
fn waits_for_who_came_back(
    point: &'static str,
    change: impl FnOnce(&Space, VirtAddr) + Send,
) -> bool {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    for page in 0..4 {
        a.store(at + page * PAGE, 1u64).unwrap();
    }
    let (ask, asked) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let waits = thread::scope(|scope| {
        let space = &space;
        let changing = scope.spawn(move || {
            let there = failpoint::on(point, move || {
                ask.send(()).unwrap();
                goes_on.recv().unwrap();
            });
            change(space, at);
            drop(there);
        });
        asked.recv().unwrap();
        a.session(|session| {
            assert_eq!(session.load::<u64>(at), Ok(1));
            let begun = pool.domain.begun();
            go_on.send(()).unwrap();
            // The change is over, or it waits for this thread.
            while !changing.is_finished() && pool.domain.begun() == begun {
                thread::yield_now();
            }
            !changing.is_finished()
        })
    });
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
    waits
}

/// The gate does not keep other threads out of the rest of the leaf, and so not from its words.
// spec: A5
#[test]
fn a_change_of_part_of_a_leaf_waits_for_who_came_back_to_it_meanwhile() {
    let unmap = |space: &Space, at| space.unmap(at + 2 * PAGE, PAGE).unwrap();
    assert!(waits_for_who_came_back("GateClosed", unmap));
    let protect = |space: &Space, at| {
        let done = space.protect(at + 2 * PAGE, PAGE, Protection::READ);
        done.unwrap();
    };
    assert!(waits_for_who_came_back("GateClosed", protect));
}

/// The access may be about to store to a page that the next take would then not name.
#[test]
fn a_take_of_dirty_pages_waits_for_who_accesses_them_meanwhile() {
    let take = |space: &Space, at| {
        let taken = space.take_dirty(at, 2 * PAGE).unwrap();
        assert_eq!(taken, [at..at + 2 * PAGE]);
    };
    assert!(waits_for_who_came_back("Taken", take));
}
