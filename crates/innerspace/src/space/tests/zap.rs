//! Dropping pages with the gate open.

use std::sync::mpsc;

use super::*;
use crate::space::core::address::LEAF_BYTES;
use crate::sync::failpoint;

/// Creates a space with numbered pages: the first half of them ends a leaf, the other begins the
/// next.
fn numbered(pool: &Arc<Pool>) -> (Space, VirtAddr) {
    let space = space(pool);
    let at = VirtAddr(8 * LEAF_BYTES - 8 * PAGE);
    space.map(Map::anonymous(16 * PAGE).at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    (0..16).for_each(|page| a.store(at + page * PAGE, page + 1).unwrap());
    (space, at)
}

fn shown(space: &Space, at: VirtAddr) -> Vec<u64> {
    let mut a = space.accessor().unwrap();
    (0..16)
        .map(|page| a.load(at + page * PAGE).unwrap())
        .collect()
}

/// Returns the expected memory: unchanged, except for zeros in some pages.
fn without(dropped: std::ops::Range<u64>) -> Vec<u64> {
    let left = |page| if dropped.contains(&page) { 0 } else { page + 1 };
    (0..16).map(left).collect()
}

#[test]
fn less_than_a_leaf_is_dropped_with_one_grace_period_and_nothing_is_forgotten() {
    let pool = pool(64);
    let (space, at) = numbered(&pool);
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u64>(at), Ok(1));
    let used = pool.groups.usage(GroupId::ROOT).0;
    let before = pool.domain.grace_periods();
    // The range is in two leaves.
    let range = at + 6 * PAGE;
    space.discard(range, 5 * PAGE).unwrap();
    assert_eq!(pool.domain.grace_periods() - before, 1);
    assert!(
        !a.core.translator.sections.has_mail(),
        "nobody has to forget a leaf that stays"
    );
    assert_eq!(pool.groups.usage(GroupId::ROOT).0, used - 5);
    assert_eq!(shown(&space, at), without(6..11));
    // The zero frame, which loads have mapped, is not a page to wait for.
    let before = pool.domain.grace_periods();
    space.discard(range, 5 * PAGE).unwrap();
    assert_eq!(pool.domain.grace_periods(), before);
    a.store(range, 7u64).unwrap();
    assert_eq!(a.load::<u64>(range), Ok(7));
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}

// spec: F3
#[test]
fn what_others_share_is_theirs_still() {
    let pool = pool(64);
    let (space, at) = numbered(&pool);
    let child = space.fork().unwrap();
    space.discard(at, 4 * PAGE).unwrap();
    assert_eq!(shown(&space, at), without(0..4));
    assert_eq!(shown(&child, at), without(0..0));
    // Both leaves are exclusive to the child now, and borrow the pages to which the child has not
    // stored.
    let mut a = child.accessor().unwrap();
    a.store(at, 1u64).unwrap();
    a.store(at + 15 * PAGE, 16u64).unwrap();
    child.discard(at, 9 * PAGE).unwrap();
    assert_eq!(shown(&child, at), without(0..9));
    assert_eq!(shown(&space, at), without(0..4));
    space.validate();
    child.validate();
    drop((a, space, child));
    assert_nothing_left(&pool);
}

#[test]
fn whoever_goes_by_a_page_is_told_that_it_was_dropped() {
    let pool = pool(64);
    let (space, at) = numbered(&pool);
    let mut a = space.accessor().unwrap();
    space
        .protect(at, 2 * PAGE, Protection::READ_WRITE | Protection::EXECUTE)
        .unwrap();
    let code = a.watch_code(at).unwrap();
    let _everything = space.take_dirty(at, 16 * PAGE).unwrap();
    space.discard(at, PAGE).unwrap();
    assert!(!code.is_current());
    let dirty = space.take_dirty(at, 16 * PAGE).unwrap();
    assert_eq!(dirty, [at..at + PAGE]);
}

#[test]
fn a_restore_brings_back_what_was_dropped_since() {
    let pool = pool(64);
    let (space, at) = numbered(&pool);
    let snapshot = space.freeze().unwrap();
    let mut a = space.accessor().unwrap();
    for _ in 0..2 {
        // The leaf has become exclusive to the space; a restore in place relies on that.
        a.store(at, 99u64).unwrap();
        space.discard(at, 2 * PAGE).unwrap();
        assert_eq!(shown(&space, at), without(0..2));
        space.restore(&snapshot).unwrap();
        assert_eq!(shown(&space, at), without(0..0));
    }
    space.validate();
    drop((a, space, snapshot));
    assert_nothing_left(&pool);
}

/// A store that was about to make the page writable again finds it gone. Until then the page is not
/// reused.
// spec: A5
#[test]
fn a_page_that_is_dropped_beside_a_fault_is_not_reused_before_the_fault_is_over() {
    let pool = pool(64);
    let space = space(&pool);
    let all = Protection::READ_WRITE | Protection::EXECUTE;
    let at = space.map(Map::anonymous(PAGE).protection(all)).unwrap();
    let mut storer = space.accessor().unwrap();
    storer.store(at, 0x707u16).unwrap();
    drop(space.accessor().unwrap().watch_code(at).unwrap());
    let (hand_over, dropping) = mpsc::channel();
    let other = space.clone();
    let _there = failpoint::on("WatchersNotified", move || {
        let pool = other.0.pool.clone();
        let (begun, used) = (pool.domain.begun(), pool.groups.usage(GroupId::ROOT));
        let advise = move || other.discard(at, PAGE).unwrap();
        let dropping = thread::spawn(advise);
        // The drop is over, or it waits for this thread.
        while !dropping.is_finished() && pool.domain.begun() == begun {
            thread::yield_now();
        }
        let freed = used.0 - pool.groups.usage(GroupId::ROOT).0;
        hand_over.send((dropping, freed)).unwrap();
    });
    storer.store(at, 8u8).unwrap();
    let (dropping, freed) = dropping.recv().unwrap();
    dropping.join().unwrap();
    assert_eq!(freed, 0, "a page that a fault was at");
    assert_eq!(storer.load(at), Ok(8u16), "what came after the drop");
    space.validate();
    drop((storer, space));
    assert_nothing_left(&pool);
}

#[test]
fn a_restore_brings_back_what_was_dropped_and_never_stored_to() {
    let pool = pool(64);
    let (space, at) = numbered(&pool);
    let snapshot = space.freeze().unwrap();
    let mut a = space.accessor().unwrap();
    for _ in 0..2 {
        // The dropped page is borrowed, so it is in no record of changes.
        a.store(at, 99u64).unwrap();
        space.discard(at + PAGE, PAGE).unwrap();
        space.restore(&snapshot).unwrap();
        assert_eq!(shown(&space, at), without(0..0));
    }
}

/// There is one accessor, so a fault releases the leaf that it has copied without a grace period:
/// then the leaf is exclusive to the fork.
// spec: F3
#[test]
fn a_drop_beside_the_copy_of_its_leaf_takes_nothing_from_the_fork() {
    let pool = pool(64);
    let space = space(&pool);
    let at = space.map(Map::anonymous(PAGE)).unwrap();
    space.accessor().unwrap().store(at, 7u64).unwrap();
    let child = space.fork().unwrap();
    let (hand_over, storing) = mpsc::channel();
    let storer = space.clone();
    let _there = failpoint::on("Walk", move || {
        let kept_out = storer.0.paths.try_lock().is_none();
        let storing = thread::spawn(move || storer.accessor().unwrap().store(at, 8u64).unwrap());
        while !kept_out && !storing.is_finished() {
            thread::yield_now();
        }
        hand_over.send(storing).unwrap();
    });
    space.discard(at, PAGE).unwrap();
    storing.recv().unwrap().join().unwrap();
    assert_eq!(child.accessor().unwrap().load(at), Ok(7u64));
    space.validate();
    child.validate();
    drop((space, child));
    assert_nothing_left(&pool);
}

/// A page of zeros is about to be dropped; a store first installs another page.
#[test]
fn what_a_store_puts_there_beside_the_drop_is_dropped() {
    let pool = pool(64);
    let space = space(&pool);
    let at = space.map(Map::anonymous(2 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at + PAGE, 1u64).unwrap();
    assert_eq!(a.load(at), Ok(0u64));
    let _there = failpoint::on("Zap", move || {
        let storing = thread::spawn(move || a.store(at, 7u64).unwrap());
        storing.join().unwrap();
    });
    space.discard(at, PAGE).unwrap();
    assert_eq!(space.accessor().unwrap().load(at), Ok(0u64));
    space.validate();
    drop(space);
    assert_nothing_left(&pool);
}

// spec: V2, A5
#[test]
fn after_unmap_and_protect_no_whole_leaf_is_remembered() {
    let pool = pool(256);
    let space = space(&pool);
    let leaf = 512 * PAGE;
    let at = VirtAddr(8 * leaf);
    let map = || Map::anonymous(2 * leaf).at(at);
    space.map(map()).unwrap();
    let mut a = space.accessor().unwrap();
    for session in [false, true] {
        for page in [0, 511, 512] {
            a.store(at + page * PAGE, 1u64).unwrap();
        }
        let none = Protection::NONE;
        let change = || {
            space
                .protect(at + leaf, leaf, none)
                .and_then(|()| space.unmap(at, leaf))
        };
        let mut kinds = Vec::new();
        let mut see =
            |fault: Result<u64, crate::space::Fault>| kinds.push(fault.unwrap_err().kind());
        if session {
            a.session(|session| {
                assert_eq!(session.load::<u64>(at), Ok(1));
                change().unwrap();
                see(session.load(at));
                see(session.store(at + 511 * PAGE, 2u64).map(|()| 2));
                see(session.load(at + leaf));
            });
        } else {
            change().unwrap();
            see(a.load(at));
            see(a.store(at + 511 * PAGE, 2u64).map(|()| 2));
            see(a.load(at + leaf));
        }
        let expected = [
            FaultKind::NotMapped,
            FaultKind::NotMapped,
            FaultKind::Forbidden,
        ];
        assert_eq!(kinds, expected);
        space.unmap(at + leaf, leaf).unwrap();
        space.map(map()).unwrap();
        for page in [0, 511, 512] {
            assert_eq!(a.load::<u64>(at + page * PAGE), Ok(0));
        }
        space.validate();
    }
    drop((a, space));
    assert_nothing_left(&pool);
}
