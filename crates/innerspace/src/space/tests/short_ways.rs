//! Faults by the short way: which ones take it, and that the result is the same.

use super::*;
use crate::cache::{Cache, FileAccess, FileOptions, PagedFile};
use crate::space::fault::driver::load_by_short_way;
use crate::space::table::pte::{self, Pte, VALID_R};
use crate::store::MemoryStore;

/// Tries a load by the short way, and returns whether it succeeded.
fn loads_shortly(a: &mut Accessor, at: VirtAddr) -> bool {
    let core = &mut a.core;
    core.translator.sections.enter();
    let done = load_by_short_way(&core.space, &core.translator, &mut core.vmas, at.0);
    core.translator.sections.leave();
    done
}

/// Returns the word of an address whose leaf exists.
fn word(space: &Space, at: VirtAddr) -> Pte {
    let nodes = space.0.nodes();
    space.0.inside(|_| {
        let leaf = nodes.find(at.0).unwrap().frame;
        pte::load(&nodes.words(leaf)[table::slot_index(at.0, 0)])
    })
}

fn zero_word(pool: &Pool) -> Pte {
    Pte::zero(pool.frames.host(FrameId::ZERO) as u64, VALID_R)
}

// spec: V9
#[test]
fn a_load_of_no_page_comes_to_the_same_by_either_way() {
    let pool = pool(256);
    let comes_to = |shortly: bool| {
        let space = space(&pool);
        let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
        let mut a = space.accessor().unwrap();
        assert_eq!(a.load::<u8>(at), Ok(0));
        let counts = || {
            let lookups = space.stats().lookups;
            let events = [Event::PgFault, Event::ZeroMap].map(|event| pool.counters.sum(event));
            let usage = pool.groups.usage(GroupId::ROOT).0;
            [events[0], events[1], lookups.calls, lookups.hits, usage]
        };
        let before = counts();
        for page in 1..64 {
            match shortly {
                true => assert!(loads_shortly(&mut a, at + page * PAGE)),
                false => space.0.post(Post::All), // the short way does not read mail
            }
            assert_eq!(a.load::<u8>(at + page * PAGE), Ok(0));
        }
        let after = counts();
        for page in 0..64 {
            assert_eq!(word(&space, at + page * PAGE), zero_word(&pool));
        }
        space.validate();
        let pages = space.stats().pages;
        (std::array::from_fn(|n| after[n] - before[n]), pages)
    };
    let (counts, pages) = comes_to(true);
    assert_eq!((counts, pages.zero.0), ([63, 63, 63, 63, 0], 64));
    assert_eq!((counts, pages), comes_to(false));
    assert_nothing_left(&pool);
}

#[test]
fn a_load_goes_the_short_way_where_it_knows_all_that_it_needs() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(16 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    assert!(!loads_shortly(&mut a, at), "there is no leaf");
    assert_eq!(a.load::<u8>(at), Ok(0));
    assert!(!loads_shortly(&mut a, at), "there is a page");
    assert!(loads_shortly(&mut a, at + PAGE), "known for loads");
    a.store(at, 1u8).unwrap();
    assert!(loads_shortly(&mut a, at + 2 * PAGE), "known for stores");
    assert!(!loads_shortly(&mut a, at + 16 * PAGE), "nothing is mapped");
    space.0.post(Post::All);
    assert!(!loads_shortly(&mut a, at + 3 * PAGE), "there is mail");
    assert_eq!(a.load::<u8>(at + 3 * PAGE), Ok(0));
    // The short way is refused while the gate is closed anywhere.
    let writer = space.0.gate.write();
    let closed = writer.close(&pool.domain, &(0..PAGE), || ());
    assert!(!loads_shortly(&mut a, at + 4 * PAGE));
    drop(closed);
    drop(writer);
    assert!(loads_shortly(&mut a, at + 4 * PAGE));
    // It is refused after a change of mappings, until the mapping is looked up again.
    space
        .protect(at + 8 * PAGE, PAGE, Protection::NONE)
        .unwrap();
    assert_eq!(a.load::<u8>(at), Ok(1));
    assert!(!loads_shortly(&mut a, at + 9 * PAGE), "not looked up since");
    assert_eq!(a.load::<u8>(at + 9 * PAGE), Ok(0));
    assert!(loads_shortly(&mut a, at + 10 * PAGE));
    let fault = a.load::<u8>(at + 8 * PAGE).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Forbidden);
    assert!(!loads_shortly(&mut a, at + 8 * PAGE));
    assert_eq!(word(&space, at + 8 * PAGE), Pte::EMPTY);
    space.protect(at, 16 * PAGE, Protection::READ).unwrap();
    assert_eq!(a.load::<u8>(at + 11 * PAGE), Ok(0));
    assert!(loads_shortly(&mut a, at + 12 * PAGE), "read-only");
    assert!(a.store(at + 12 * PAGE, 1u8).is_err());
    assert_eq!(a.load::<u8>(at + 12 * PAGE), Ok(0));
    space.validate();
}

#[test]
fn a_present_page_gets_its_validity_by_the_short_way() {
    let cache = Cache::new(&pool(256));
    let bytes = [7; 64 * PAGE as usize];
    let store = Arc::new(MemoryStore::from_bytes(&bytes));
    let options = FileOptions::new().access(FileAccess::ReadWrite);
    let file = PagedFile::open(&cache, store, &options).unwrap();
    file.prefetch(..).unwrap();
    let space = space(&cache.pool);
    let at = space.map(Map::file(&file).shared()).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u8>(at), Ok(7)); // maps pages around
    let before = word(&space, at + PAGE);
    assert!(before.is_of_file() && !before.has(VALID_R));
    let faults = || cache.pool.counters.sum(Event::PgFault);
    let earlier = faults();
    assert!(loads_shortly(&mut a, at + PAGE));
    assert_eq!(word(&space, at + PAGE), before.with(VALID_R));
    assert_eq!(faults(), earlier + 1);
    assert!(
        !loads_shortly(&mut a, at + PAGE),
        "another thread was first"
    );
    assert_eq!(a.load::<u8>(at + PAGE), Ok(7));
    assert_eq!(faults(), earlier + 1);
    // The validity is not given where the mapping forbids loads.
    space
        .protect(at + 2 * PAGE, PAGE, Protection::NONE)
        .unwrap();
    assert_eq!(a.load::<u8>(at + 3 * PAGE), Ok(7)); // looks the mapping up
    assert!(!loads_shortly(&mut a, at + 2 * PAGE));
    assert!(a.load::<u8>(at + 2 * PAGE).is_err());
    // Nor where the page has gone.
    file.set_len(16 * PAGE).unwrap();
    file.set_len(4 * PAGE).unwrap();
    assert!(!loads_shortly(&mut a, at + 5 * PAGE));
    assert!(a.load::<u8>(at + 5 * PAGE).is_err());
    space.validate();
}

#[test]
fn a_load_of_a_page_of_a_file_that_is_not_mapped_yet_does_not_go_the_short_way() {
    let cache = Cache::new(&pool(256));
    let store = Arc::new(MemoryStore::with_len(64 * PAGE));
    let file = PagedFile::open(&cache, store, &FileOptions::new()).unwrap();
    let space = space(&cache.pool);
    let at = space.map(Map::file(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u8>(at), Ok(0));
    assert_eq!(word(&space, at + 40 * PAGE), Pte::EMPTY);
    assert!(!loads_shortly(&mut a, at + 40 * PAGE));
    assert_eq!(word(&space, at + 40 * PAGE), Pte::EMPTY);
    assert_eq!(a.load::<u8>(at + 40 * PAGE), Ok(0));
}

#[test]
fn a_short_load_in_a_leaf_that_forks_share_is_right_for_each_of_them() {
    let pool = pool(512);
    let space = space(&pool);
    let at = space.map(Map::anonymous(16 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u8).unwrap();
    let child = space.fork().unwrap();
    let mut c = child.accessor().unwrap();
    assert_eq!(c.load::<u8>(at + 15 * PAGE), Ok(0)); // looks the mapping up
    assert!(loads_shortly(&mut c, at + PAGE));
    assert_eq!(word(&space, at + PAGE), zero_word(&pool), "one leaf");
    assert_eq!(pool.counters.sum(Event::TableUnshare), 0);
    a.store(at + PAGE, 2u8).unwrap();
    assert_eq!(c.load::<u8>(at + PAGE), Ok(0));
    // Of two spaces that share a leaf, one forbids loads of a page.
    let other = child.fork().unwrap();
    assert_eq!(c.load::<u8>(at), Ok(1));
    other
        .protect(at + 2 * PAGE, PAGE, Protection::NONE)
        .unwrap();
    assert!(loads_shortly(&mut c, at + 2 * PAGE));
    assert_eq!(word(&other, at + 2 * PAGE), Pte::EMPTY);
    let fault = other
        .accessor()
        .unwrap()
        .load::<u8>(at + 2 * PAGE)
        .unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Forbidden);
    drop(other);
    // Of two spaces that share a leaf, one maps more of it, while an accessor remembers the leaf.
    let other = child.fork().unwrap();
    assert_eq!(c.load::<u8>(at), Ok(1));
    let more = at + 32 * PAGE;
    child.map(Map::anonymous(4 * PAGE).at(more)).unwrap();
    assert_eq!(c.load::<u8>(more), Ok(0));
    assert!(loads_shortly(&mut c, more + PAGE));
    assert_eq!(word(&other, more), Pte::EMPTY);
    assert_eq!(word(&other, more + PAGE), Pte::EMPTY);
    [&space, &child, &other]
        .into_iter()
        .for_each(Space::validate);
    drop((a, c, space, child, other));
    assert_nothing_left(&pool);
}

#[test]
fn short_loads_in_a_snapshot_leave_its_space_as_it_is() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(16 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1u8).unwrap();
    let snapshot = space.freeze().unwrap();
    let mut s = snapshot.accessor().unwrap();
    assert_eq!(s.load::<u8>(at + 15 * PAGE), Ok(0)); // looks the mapping up
    assert!(loads_shortly(&mut s, at + PAGE));
    a.store(at + PAGE, 2u8).unwrap();
    assert_eq!(s.load::<u8>(at + PAGE), Ok(0));
    let fault = s.store(at + PAGE, 3u8).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Frozen);
    space.restore(&snapshot).unwrap();
    assert_eq!(a.load::<u8>(at + PAGE), Ok(0));
    space.validate();
}

#[test]
fn a_short_load_takes_nothing_of_a_group_that_is_full() {
    let pool = pool(512);
    let group = pool.root_group().create_child("full", 40 * PAGE).unwrap();
    let space = Space::new(&Cache::new(&pool), &group, AddressWidth::Bits48).unwrap();
    let at = space.map(Map::anonymous(256 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let is_had = |page: &u64| a.store(at + page * PAGE, 1u8).is_ok();
    let stored = (0..256).take_while(is_had).count() as u64;
    assert!(stored < 40);
    let (usage, refused) = (group.usage(), group.events().refused);
    for page in stored..256 {
        assert!(loads_shortly(&mut a, at + page * PAGE));
        assert_eq!(a.load::<u8>(at + page * PAGE), Ok(0));
    }
    assert_eq!((group.usage(), group.events().refused), (usage, refused));
    assert_eq!(space.stats().pages.zero.0, 256 - stored);
    space.validate();
}

/// A store tries to get its page by the short way, in the step, and where it may wait. Only the
/// last try counts as an event.
#[test]
fn a_store_is_refused_and_slowed_down_once() {
    let pool = pool(512);
    let group = pool.root_group().create_child("small", 30 * PAGE).unwrap();
    group.set_high(Some(25 * PAGE)).unwrap();
    let space = Space::new(&Cache::new(&pool), &group, AddressWidth::Bits48).unwrap();
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    pool.flush_retired(); // memory given back during a wait would repeat the request
    let mut over = 0;
    for page in 0.. {
        let before = group.events();
        let stored = a.store(at + page * PAGE, 1u8);
        let events = group.events();
        let counted = [
            events.high - before.high,
            events.refused - before.refused,
            events.max - before.max,
            events.oom - before.oom,
        ];
        let is_over = group.usage() > 25 * PAGE;
        match stored {
            Ok(()) => assert_eq!(counted, [is_over.into(), 0, 0, 0], "page {page}"),
            Err(fault) => {
                assert_eq!(fault.kind(), FaultKind::Limit);
                assert_eq!(counted, [0, 1, 1, 1], "page {page}");
                break;
            }
        }
        over += u64::from(is_over);
    }
    assert_eq!(over, 5);
    space.validate();
}
