//! Mappings as accessors find them: by their own slots, in other spaces, during changes elsewhere.

use super::*;
use crate::cache::{Cache, FileOptions, PagedFile};
use crate::group::{Group, HeapBytes, MayReclaim};
use crate::reclaim::PoolFrame;
use crate::store::MemoryStore;
use crate::sync::failpoint;

fn lookups(space: &Space) -> (u64, u64) {
    let found = space.stats().lookups;
    assert_eq!(found.hits + found.misses, found.calls);
    (found.calls, found.hits)
}

// spec: V4
#[test]
fn a_fork_and_a_fresh_accessor_start_with_empty_slots() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    a.store(at + PAGE, 1u64).unwrap();
    let (calls, hits) = lookups(&space);
    assert!(hits > 0 && hits < calls, "{hits} of {calls}");
    let child = space.fork().unwrap();
    assert_eq!(lookups(&child), (0, 0));
    child.unmap(at, 64 * PAGE).unwrap();
    let mut c = child.accessor().unwrap();
    assert_eq!(c.load::<u64>(at).unwrap_err().kind(), FaultKind::NotMapped);
    assert_eq!(lookups(&child), (1, 0));
    assert_eq!(a.load::<u64>(at), Ok(1));
    let mut fresh = space.accessor().unwrap();
    let before = lookups(&space);
    fresh.load::<u64>(at + 2 * PAGE).unwrap();
    assert_eq!(lookups(&space).1, before.1, "its first lookup is a miss");
}

// spec: V5
#[test]
fn looking_into_another_space_leaves_the_slots_alone() {
    let pool = pool(256);
    let (here, there) = (space(&pool), space(&pool));
    let fixed = VirtAddr(0x10_0000);
    let map = || Map::anonymous(64 * PAGE).at(fixed);
    here.map(map()).unwrap();
    there.map(map().protection(Protection::NONE)).unwrap();
    let mut a = here.accessor().unwrap();
    a.load::<u64>(fixed).unwrap();
    let before = lookups(&here);
    let mut b = there.accessor().unwrap();
    let fault = b.load::<u64>(fixed + PAGE).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Forbidden);
    there.explain(fault);
    assert!(there.mapping_at(fixed).is_some() && here.mapping_at(fixed).is_some());
    assert_eq!(
        lookups(&here),
        before,
        "they are not this accessor's lookups"
    );
    a.load::<u64>(fixed + PAGE).unwrap();
    assert_eq!(
        lookups(&here),
        (before.0 + 1, before.1 + 1),
        "its slot is as it was"
    );
}

// spec: V6
#[test]
fn a_thread_that_changes_between_spaces_is_right_in_each() {
    let pool = pool(512);
    let spaces: Vec<Space> = (0..5).map(|_| space(&pool)).collect();
    let base = 0x10_0000;
    for (number, space) in spaces.iter().enumerate() {
        let first = VirtAddr(base + number as u64 * PAGE);
        space.map(Map::anonymous(4 * PAGE).at(first)).unwrap();
    }
    let mut accessors: Vec<Accessor> = spaces
        .iter()
        .map(|space| space.accessor().unwrap())
        .collect();
    for round in 0..3 {
        for page in 0..10u64 {
            for (number, a) in accessors.iter_mut().enumerate() {
                let at = VirtAddr(base + page * PAGE);
                let mapped = (number as u64..number as u64 + 4).contains(&page);
                let value = round << 32 | page << 8 | number as u64;
                let end = a.store(at, value).map_err(|fault| fault.kind());
                let want = if mapped {
                    Ok(())
                } else {
                    Err(FaultKind::NotMapped)
                };
                assert_eq!(end, want, "space {number} page {page}");
                assert!(!mapped || a.load::<u64>(at) == Ok(value));
            }
        }
        // The pages are mapped afresh, so that the next round faults.
        for (number, space) in spaces.iter().enumerate() {
            let first = VirtAddr(base + number as u64 * PAGE);
            space
                .map(Map::anonymous(4 * PAGE).replacing(first))
                .unwrap();
        }
    }
}

/// An unmap waits for a session that is idle for a while. Faults elsewhere go on meanwhile; faults
/// in the range wait.
// spec: V22
#[test]
fn a_fault_waits_for_no_change_elsewhere() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    space.accessor().unwrap().store(at, 1u64).unwrap();
    let (in_session, session_is_open) = std::sync::mpsc::channel();
    let (end_session, may_end) = std::sync::mpsc::channel();
    let mut idle = space.accessor().unwrap();
    let session = thread::spawn(move || {
        idle.session(|_| {
            in_session.send(()).unwrap();
            let _ = may_end.recv();
        });
    });
    session_is_open.recv().unwrap();
    let unmapping = {
        let space = space.clone();
        thread::spawn(move || space.unmap(at, 2 * PAGE).unwrap())
    };
    let is_closed = || {
        let section = pool.domain.reader();
        !space.0.gate.is_open(&section, &(at.0..at.0 + 1))
    };
    while !is_closed() {
        thread::yield_now();
    }
    // The faults are in the same leaf, and far away; new mappings are found as well.
    let mut a = space.accessor().unwrap();
    a.store(at + 2 * PAGE, 5u64).unwrap();
    assert_eq!(a.load::<u64>(at + 2 * PAGE), Ok(5));
    assert_eq!(a.load::<u64>(at + 63 * PAGE), Ok(0));
    assert!(is_closed(), "the change is under way still");
    end_session.send(()).unwrap();
    unmapping.join().unwrap();
    session.join().unwrap();
    let fault = a.load::<u64>(at).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotMapped);
    space.validate();
}

// spec: V25
#[test]
fn tables_and_mappings_are_charged_and_refused_at_the_limit() {
    let pool = pool(1024);
    let group = pool.root_group().create_child("tenant", 64 * PAGE).unwrap();
    let space = Space::new(&Cache::new(&pool), &group, AddressWidth::Bits48).unwrap();
    let mut a = space.accessor().unwrap();
    // There is one page in each 1 GiB: it takes two nodes and the page itself.
    let is_refused = (1..200u64).any(|number| {
        let at = VirtAddr(number << 30);
        match space.map(Map::anonymous(PAGE).at(at)) {
            Ok(_) => a.store(at, number).is_err_and(|fault| fault.is_limit()),
            Err(error) => matches!(error, SpaceError::Limit(_)),
        }
    });
    assert!(is_refused);
    assert!(group.usage() <= 64 * PAGE);
    let stats = space.stats();
    assert!(stats.tables.0 > stats.pages.own.0, "{stats}");
    assert_eq!(
        a.load::<u64>(VirtAddr(1 << 30)),
        Ok(1),
        "the space is usable"
    );
    drop((a, space));
    pool.flush_retired();
    pool.flush_retired();
    assert_eq!(group.usage(), 0);

    // Now only mappings take memory. Their protections alternate, so that they do not merge.
    let space = Space::new(&Cache::new(&pool), &group, AddressWidth::Bits48).unwrap();
    let mut mapped = 0;
    let refused = loop {
        let protection = [Protection::READ, Protection::NONE][mapped % 2];
        let map = Map::anonymous(PAGE).protection(protection);
        match space.map(map) {
            Ok(_) => mapped += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, SpaceError::Limit(_)), "{refused}");
    // A mapping takes about 64 bytes, and the tree is at least a third full.
    assert!((1500..6000).contains(&mapped), "{mapped}");
    assert_eq!(space.stats().mappings.len(), mapped, "nothing is changed");
    space
        .unmap(VirtAddr(1 << 16), (1 << 47) - (1 << 16))
        .unwrap();
    space.validate();
    drop(space);
    pool.flush_retired();
    pool.flush_retired();
    assert_eq!(group.usage(), 0);
}

/// Charges the group for all that is left to it, to the last bytes.
fn fill(group: &Group) -> Vec<HeapBytes> {
    let charge = |bytes| group.charge_heap(bytes, MayReclaim::Yes).ok();
    let sizes = [PAGE_SIZE, 512, 16, 1].into_iter();
    sizes
        .flat_map(|bytes| std::iter::from_fn(move || charge(bytes)))
        .collect()
}

/// Has the group filled when a change of one of its spaces is about to be undone.
fn filled_when_undoing(group: &Group, first: impl FnOnce() + 'static) -> impl Sized {
    let group = group.clone();
    failpoint::on("Undoing", move || {
        first();
        std::mem::forget(fill(&group));
        assert_eq!(group.usage(), 64 * PAGE, "it is full");
    })
}

// spec: N3
#[test]
fn what_cannot_be_locked_or_populated_is_undone_in_a_group_that_is_full_to_the_last_byte() {
    let pool = pool(1024);
    let group = pool.root_group().create_child("full", 64 * PAGE).unwrap();
    let space = Space::new(&Cache::new(&pool), &group, AddressWidth::Bits48).unwrap();
    let at = space.map(Map::anonymous(200 * PAGE)).unwrap();
    let filled = filled_when_undoing(&group, || ());
    space.lock(at, 200 * PAGE).unwrap_err();
    drop(filled);
    assert!(!space.mapping_at(at).unwrap().locked);

    let group = pool.root_group().create_child("shared", 64 * PAGE).unwrap();
    let space = Space::new(&Cache::new(&pool), &group, AddressWidth::Bits48).unwrap();
    // Neither end of the mapping is the end of a leaf, and a fork shares the leaf.
    let at = VirtAddr((1 << 30) + 100 * PAGE);
    let other = space.clone();
    let filled = filled_when_undoing(&group, move || std::mem::forget(other.fork().unwrap()));
    let map = Map::anonymous(200 * PAGE).at(at).populated();
    space.map(map).unwrap_err();
    drop(filled);
    assert!(space.mapping_at(at).is_none());
}

// spec: V11
#[test]
fn code_is_stale_once_its_mapping_shows_something_else_and_not_before() {
    let pool = pool(256);
    let space = space(&pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let code = |len| Map::anonymous(len).protection(all);
    let at = space.map(code(4 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    space.lock(at, PAGE).unwrap();
    let page = a.watch_code(at).unwrap();
    for advice in [Advice::Random, Advice::Sequential, Advice::Normal] {
        space.advise(at, 2 * PAGE, advice).unwrap();
    }
    space.unlock(at, 2 * PAGE).unwrap();
    assert!(page.is_current());
    let protect = |protection| space.protect(at, PAGE, protection);
    let changes: [&dyn Fn() -> Result<(), SpaceError>; 3] = [
        &|| protect(Protection::READ | Protection::EXECUTE),
        &|| protect(all),
        &|| space.map(code(PAGE).replacing(at)).map(drop),
    ];
    for change in changes {
        let page = a.watch_code(at).unwrap();
        assert!(page.is_current());
        change().unwrap();
        assert!(!page.is_current());
    }
}

/// There are a thousand mappings of one page each, in random order, and two mappings of all pages.
// spec: V23
#[test]
fn pages_are_evicted_from_the_few_of_many_mappings_that_show_them() {
    let cache = Cache::new(&pool(4096));
    let store = Arc::new(MemoryStore::with_len(1000 * PAGE));
    crate::store::write_all_at(&*store, &vec![7; 1000 * PAGE_SIZE], 0).unwrap();
    let file = PagedFile::open(&cache, store, &FileOptions::new()).unwrap();
    let space = space(&cache.pool);
    let mut a = space.accessor().unwrap();
    let mut load = |at| assert_eq!(a.load::<u8>(at), Ok(7));
    for number in 0..1000 {
        let page = number * 389 % 1000 * PAGE;
        let map = Map::file(&file).range(page..page + PAGE);
        load(
            space
                .map(map.at(VirtAddr(number * 2 * PAGE + (1 << 30))))
                .unwrap(),
        );
    }
    for number in 2..4 {
        let at = space.map(Map::file(&file).at(VirtAddr(number << 30)));
        let at = at.unwrap();
        (0..1000).for_each(|page| load(at + page * PAGE));
    }
    let shown = || space.stats().pages.file.0;
    assert_eq!(shown(), 3000);
    assert_eq!(file.evict(100 * PAGE..200 * PAGE).unwrap(), PageCount(100));
    assert_eq!(shown(), 2700);
    assert_eq!(file.evict(..).unwrap(), PageCount(900));
    assert_eq!(shown(), 0);
    space.validate();
}

// spec: M18
#[test]
fn the_bytes_of_the_files_of_a_space_depend_on_how_many_there_are_alone() {
    let cache = Cache::new(&pool(256));
    let files: Vec<_> = (0..20)
        .map(|_| {
            let store = Arc::new(MemoryStore::with_len(PAGE));
            PagedFile::open(&cache, store, &FileOptions::new()).unwrap()
        })
        .collect();
    let space = space(&cache.pool);
    let bytes = || space.0.gate.write().bytes_of_files();
    let map =
        |file: usize| space.map(Map::file(&files[file]).at(VirtAddr((file as u64 + 1) << 30)));
    let mut mapped = vec![bytes()];
    for file in 0..20 {
        map(file).unwrap();
        mapped.push(bytes());
    }
    for file in 0..20 {
        space.unmap(VirtAddr((file + 1) << 30), PAGE).unwrap();
        assert_eq!(
            bytes(),
            mapped[19 - file as usize],
            "{} are left",
            19 - file
        );
    }
    space.validate();
}

/// An unmap in parts leaves the leaf, and an access that fails finds it. When the whole range is
/// mapped again, the leaf is taken off, and its frame soon has another owner.
// spec: A2
#[test]
fn an_empty_leaf_that_a_new_mapping_replaces_is_remembered_by_nobody() {
    let pool = pool(64);
    let space = space(&pool);
    let at = VirtAddr(1 << 30);
    let half = direct::LARGE / 2;
    let map = || space.map(Map::anonymous(2 * half).at(at)).unwrap();
    map();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    space.unmap(at, half).unwrap();
    space.unmap(at + half, half).unwrap();
    let fault = a.load::<u64>(at + PAGE).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotMapped);
    map();
    pool.flush_retired();
    pool.flush_retired(); // releases the entries that the first flush retired
    // Every free frame gets words that lead to itself: a wrong access would read bytes that were
    // never stored here.
    let alloc = || pool.alloc(GroupId::ROOT, 0, AllocMode::NoWait).ok();
    let fill = |mut frame: PoolFrame<'_>| {
        let word = crate::space::table::pte::Pte::own(frame.address()).0;
        let slots = frame.words();
        slots.iter().for_each(|slot| slot.store(word, SeqCst));
    };
    let free: Vec<_> = std::iter::from_fn(alloc).collect();
    assert!(!free.is_empty());
    free.into_iter().for_each(fill);
    assert_eq!(a.load::<u64>(at + PAGE), Ok(0));
    space.validate();
}
