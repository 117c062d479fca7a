//! Mappings and the memory that they take: advice, locks, limits, eviction.

use std::io;
use std::sync::Mutex;

use innerspace::store::Store;

use super::*;

// spec: V19
#[test]
fn advice_drops_reads_ahead_ages_and_evicts() {
    let memory = memory();
    let (file, store) = numbered(&memory, 8);
    let space = memory.create_space().unwrap();
    let own = space.map(Map::anonymous(4 * PAGE)).unwrap();
    let private = space.map(Map::file(&file).private().writable()).unwrap();
    let shared = space.map(Map::file(&file).shared().writable()).unwrap();
    let mut a = space.accessor().unwrap();
    // DONTNEED: own pages read as zeros again, and file pages as the file; shared pages stay.
    a.store(own + PAGE, 5u64).unwrap();
    a.store(private, 50u8).unwrap();
    a.store(shared + PAGE, 51u8).unwrap();
    space.discard(own, 4 * PAGE).unwrap();
    space.discard(private, 8 * PAGE).unwrap();
    space.discard(shared, 8 * PAGE).unwrap();
    assert_eq!(space.stats().pages.resident.0, 0);
    assert_eq!(a.load::<u64>(own + PAGE), Ok(0));
    assert_eq!(a.load::<u8>(private), Ok(1));
    assert_eq!(a.load::<u8>(shared + PAGE), Ok(51));
    // WILLNEED: afterwards no fault reads the store.
    file.sync_all().unwrap();
    file.evict(..).unwrap();
    space.advise(shared, 8 * PAGE, Advice::WillNeed).unwrap();
    let before = memory.stats().totals.pgmajfault;
    (0..8).for_each(|page| assert!(a.load::<u8>(shared + page * PAGE).is_ok()));
    assert_eq!(memory.stats().totals.pgmajfault, before);
    // COLD: the pages are present, and marked as not used.
    assert_eq!(space.mapping_at(shared).unwrap().pages.referenced.0, 8);
    space.advise(shared, 8 * PAGE, Advice::Cold).unwrap();
    let pages = space.mapping_at(shared).unwrap().pages;
    assert_eq!((pages.referenced.0, pages.file.0), (0, 8));
    // PAGEOUT: the pages are written and evicted.
    a.store(shared + 3 * PAGE, 52u8).unwrap();
    space.advise(shared, 8 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.mapping_at(shared).unwrap().pages.file.0, 0);
    assert_eq!(store.to_vec()[3 * PAGE_SIZE], 52);
    assert_eq!(a.load::<u8>(shared + 3 * PAGE), Ok(52));
    let refused = space.discard(own, 64 * MIB);
    assert!(matches!(refused, Err(SpaceError::NotMapped { .. })));
    space.validate();
    memory.validate();
}

// spec: V20
#[test]
fn populated_and_locked_pages_are_there_and_stay() {
    let memory = memory();
    let (file, _store) = numbered(&memory, 16);
    let space = memory.create_space().unwrap();
    let own = space.map(Map::anonymous(8 * PAGE).populated()).unwrap();
    assert_eq!(space.mapping_at(own).unwrap().pages.own.0, 8);
    let shown = space.map(Map::file(&file).shared()).unwrap();
    space.populate(shown, 4 * PAGE).unwrap();
    // Pages that were read ahead are mapped next to these, and were not used.
    assert_eq!(space.mapping_at(shown).unwrap().pages.referenced.0, 4);
    space.lock(shown, 8 * PAGE).unwrap();
    assert_eq!(space.mapping_at(shown).unwrap().pages.referenced.0, 8);
    while memory.reclaim(8 * MIB) > 0 {}
    assert_eq!(
        space.mapping_at(shown).unwrap().pages.file.0,
        8,
        "reclaim has to leave them"
    );
    let refused = space.discard(shown, PAGE);
    assert!(matches!(refused, Err(SpaceError::Locked { .. })));
    space.unlock(shown, 8 * PAGE).unwrap();
    while memory.reclaim(8 * MIB) > 0 {}
    assert_eq!(space.mapping_at(shown).unwrap().pages.file.0, 0);
    space.validate();
}

// spec: V20
#[test]
fn a_lock_ends_with_its_space_whatever_forks_and_snapshots_there_are() {
    let memory = memory();
    let (file, _store) = numbered(&memory, 16);
    let space = memory.create_space().unwrap();
    let shown = space.map(Map::file(&file).shared()).unwrap();
    let locked = |space: &Space| {
        let refused = space.discard(shown + PAGE, PAGE);
        matches!(refused, Err(SpaceError::Locked { .. }))
    };
    // A part in the middle is locked, so that the fork has fewer mappings.
    space.lock(shown + PAGE, 8 * PAGE).unwrap();
    let (snapshot, fork) = (space.freeze().unwrap(), space.fork().unwrap());
    let born = snapshot.fork().unwrap();
    assert!(locked(&space) && !locked(&fork) && !locked(&born));
    let parts = |space: &Space| {
        let parts = space.stats().mappings;
        parts.iter().map(|part| part.locked).collect::<Vec<_>>()
    };
    assert_eq!(parts(&space), [false, true, false]);
    assert_eq!(parts(&fork), [false], "as one mapping again");
    fork.advise(shown, PAGE, Advice::Random).unwrap();
    assert_eq!(fork.mapping_at(shown).unwrap().reading, Advice::Random);
    while memory.reclaim(8 * MIB) > 0 {}
    assert_eq!(space.stats().pages.file.0, 8, "the space's lock holds");
    space.unlock(shown, 16 * PAGE).unwrap();
    while memory.reclaim(8 * MIB) > 0 {}
    assert_eq!(space.stats().pages.file.0, 0, "others have none");
    space.restore(&snapshot).unwrap();
    assert!(locked(&space));
    for space in [&space, &fork, &born] {
        space.unmap(shown, 16 * PAGE).unwrap();
        space.validate();
    }
}

// spec: V20
#[test]
fn more_than_the_group_may_hold_is_not_locked() {
    let memory = memory();
    let group = memory.create_group("small", 32 * PAGE).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let own = space.map(Map::anonymous(64 * PAGE)).unwrap();
    space.lock(own, 2 * PAGE).unwrap();
    let refused = space.lock(own, 64 * PAGE).unwrap_err();
    assert!(refused.to_string().contains("small"), "{refused}");
    assert!(matches!(refused, SpaceError::Access { .. }));
    // The pages before the failure are still locked, and no others.
    assert!(space.discard(own, PAGE).is_err());
    space.discard(own + 2 * PAGE, 62 * PAGE).unwrap();
    assert_eq!(
        shape(&space).iter().map(|row| row.1).collect::<Vec<_>>(),
        [2, 62]
    );
    let refused = space.map(Map::anonymous(64 * PAGE).populated());
    assert!(refused.is_err());
    assert_eq!(shape(&space).len(), 2, "nothing stays mapped");
}

/// A store that does some work at its first read.
struct Interrupting(Arc<MemoryStore>, Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Store for Interrupting {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some(act) = self.1.lock().unwrap().take() {
            act();
        }
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(buf, offset)
    }
}

/// Another thread forks the space meanwhile. Then unmapping a part of a leaf needs a copy of the
/// table, and the group is full.
#[test]
fn a_mapping_that_could_not_be_populated_does_not_stay_beside_a_fork() {
    let memory = memory();
    let group = memory.create_group("full", 64 * PAGE).unwrap();
    let space = memory.create_space_in(&group).unwrap();
    let used = space.map(Map::anonymous(32 * PAGE).populated()).unwrap();
    let (forked, children) = std::sync::mpsc::channel();
    let beside = (space.clone(), group.clone());
    let fork = move || {
        let (space, group) = beside;
        let child = std::thread::spawn(move || space.fork().unwrap());
        forked.send(child.join().unwrap()).unwrap();
        // The new limit stays, even after the fault and its accessor have given their memory back.
        group.set_max(group.usage() - 4 * PAGE).unwrap_err();
    };
    let bytes = Arc::new(MemoryStore::from_bytes(&[7; 4 * PAGE_SIZE]));
    let store = Interrupting(bytes, Mutex::new(Some(Box::new(fork))));
    let file = memory.file_options().open_store(store).unwrap();
    let at = used + 100 * PAGE;
    let map = Map::file(&file).private().writable().at(at).populated();
    let refused = space.map(map).unwrap_err();
    assert!(matches!(refused, SpaceError::Access { .. }), "{refused}");
    assert!(space.mapping_at(at).is_none(), "it stays mapped");
    let child = children.recv().unwrap();
    assert_eq!(child.mapping_at(at).unwrap().pages.resident.0, 0);
    for space in [space, child] {
        space.validate();
        drop(space);
    }
    drop(file);
    assert_eq!(group.usage(), 0);
    memory.validate();
}

// spec: V26
#[test]
fn a_full_group_fails_the_access_and_leaves_the_space_usable() -> Result<(), GroupError> {
    let memory = memory();
    let group = memory.create_group("small", 24 * PAGE)?;
    let space = memory.create_space_in(&group).unwrap();
    let own = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let stored = (0..64)
        .take_while(|page| a.store(own + page * PAGE, *page).is_ok())
        .count() as u64;
    assert!((4..24).contains(&stored), "{stored}");
    for _ in 0..3 {
        let fault = a.store(own + stored * PAGE, 1u64).unwrap_err();
        assert!(fault.is_limit(), "{fault}");
        assert!(a.explain(fault).to_string().contains("small"));
    }
    (0..stored).for_each(|page| assert_eq!(a.load::<u64>(own + page * PAGE), Ok(page)));
    assert_eq!(
        a.load::<u64>(own + 63 * PAGE),
        Ok(0),
        "the zero page costs nothing"
    );
    space.unmap(own, 2 * PAGE).unwrap();
    a.store(own + stored * PAGE, 1u64).unwrap();
    space.validate();
    Ok(())
}

/// Two threads use a page that is mapped in many spaces, while it is evicted again and again.
// spec: V23
#[test]
fn an_evicted_page_loses_every_translation_first() {
    let memory = memory();
    let (file, _store) = numbered(&memory, 4);
    let first = memory.create_space().unwrap();
    let at = first.map(Map::file(&file).shared()).unwrap();
    let mut spaces = vec![first];
    // Forks share the table; the other spaces have their own.
    for _ in 0..4 {
        spaces.push(spaces[0].fork().unwrap());
        let other = memory.create_space().unwrap();
        other.map(Map::file(&file).shared().at(at)).unwrap();
        spaces.push(other);
    }
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let users: Vec<_> = spaces
        .iter()
        .take(4)
        .map(|space| {
            let (mut a, stop) = (space.accessor().unwrap(), stop.clone());
            std::thread::spawn(move || {
                let mut rounds = 0u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) || rounds == 0 {
                    for page in 0..4 {
                        let got = a.load::<u64>(at + page * PAGE);
                        assert_eq!(
                            got,
                            Ok((page + 1) * 0x0101_0101_0101_0101),
                            "another's bytes"
                        );
                    }
                    rounds += 1;
                }
            })
        })
        .collect();
    // The frames are used for other pages as soon as they are free.
    let other = memory.create_space().unwrap();
    let scratch = other.map(Map::anonymous(16 * PAGE)).unwrap();
    let mut b = other.accessor().unwrap();
    let mut evicted = 0;
    for round in 0..300 {
        spaces
            .iter()
            .for_each(|space| assert!(space.accessor().unwrap().load::<u8>(at).is_ok()));
        evicted += file.evict(..).unwrap().0;
        for page in 0..16 {
            b.store(scratch + page * PAGE, u64::MAX - round).unwrap();
        }
        other.discard(scratch, 16 * PAGE).unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    users.into_iter().for_each(|user| user.join().unwrap());
    assert!(evicted > 0);
    file.evict(..).unwrap();
    for space in &spaces {
        assert_eq!(space.stats().pages.file.0, 0);
        space.validate();
    }
    memory.validate();
}

/// Pages that are used again and again stay, while ten times the memory is read past them.
// spec: A12
#[test]
fn a_hot_set_stays_under_a_mapped_stream() {
    let memory = memory();
    let (hot, _store) = numbered(&memory, 200);
    let stream_pages = 10 * 8 * MIB / PAGE;
    let store = Arc::new(MemoryStore::with_len(stream_pages * PAGE));
    // The pages are written first, since holes would cost no memory.
    for page in 0..stream_pages {
        innerspace::store::Store::write_at(&*store, &[1], page * PAGE).unwrap();
    }
    let stream = memory.file_options().open_store(store).unwrap();
    let space = memory.create_space().unwrap();
    let (hot_at, stream_at) = (
        space.map(Map::file(&hot)).unwrap(),
        space.map(Map::file(&stream)).unwrap(),
    );
    let mut a = space.accessor().unwrap();
    let mut least = 200;
    for page in 0..stream_pages {
        assert_eq!(a.load::<u8>(stream_at + page * PAGE), Ok(1));
        if page % 256 == 0 {
            let resident = space.mapping_at(hot_at).unwrap().pages.file.0;
            least = if page > 1024 {
                least.min(resident)
            } else {
                least
            };
            (0..200).for_each(|page| assert!(a.load::<u8>(hot_at + page * PAGE).is_ok()));
        }
    }
    assert!(
        memory.stats().totals.pgsteal > stream_pages / 2,
        "nothing was evicted"
    );
    assert!(least >= 190, "of 200 pages in use, {least} were left");
}
