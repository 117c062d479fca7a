//! A leaf that an accessor has coalesced, or may have, while its pages change, under random
//! schedules. Accesses are made outside sessions, because every grace period makes a session look
//! up its leaf again.

use super::{PAGE, assert_nothing_left, explore, until};
use crate::space::Advice;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, thread};
use crate::{Accessor, MIB, Map, Memory, Space, Threads, VirtAddr};

const AT: VirtAddr = VirtAddr(8 * MIB);
const PAGES: u64 = 512;
/// A page in another leaf.
const BESIDE: VirtAddr = VirtAddr(4 * MIB);
/// The page under test. Accesses that only visit the leaf use other pages.
const PLACE: VirtAddr = VirtAddr(AT.0 + 100 * PAGE + 64);

/// Creates a leaf of memory in which every page has been stored to, in order.
fn leaf() -> (Memory, Space, Accessor) {
    let options = Memory::builder(4 * MIB).threads(Threads::None);
    let memory = options.build().unwrap();
    let space = memory.create_space().unwrap();
    space.map(Map::anonymous(2 * MIB).at(AT)).unwrap();
    space.map(Map::anonymous(PAGE).at(BESIDE)).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u64>(BESIDE), Ok(0));
    (0..PAGES).for_each(|page| a.store(AT + page * PAGE + 64, 1u64).unwrap());
    (memory, space, a)
}

/// Returns the beginning of a page other than the one under test. After sixteen such visits the
/// accessor reads the leaf's words.
fn beginning(visit: u64) -> VirtAddr {
    AT + visit % 16 * PAGE
}

/// Makes another thread coalesce the leaf and go on with `work`, while the caller does other
/// operations.
fn coalescing(
    mut a: Accessor,
    work: impl FnOnce(Accessor) + Send + 'static,
) -> thread::JoinHandle<()> {
    let coalesced = Arc::new(AtomicU64::new(0));
    let tells = coalesced.clone();
    let working = thread::spawn(move || {
        (0..16).for_each(|page| assert_eq!(a.load::<u8>(beginning(page)), Ok(0)));
        tells.store(1, Ordering::Release);
        work(a);
    });
    while coalesced.load(Ordering::Acquire) == 0 {
        thread::yield_now();
    }
    working
}

/// Makes the other thread store to the place until the others are done, and a few times more.
fn storing(a: Accessor, done: Arc<AtomicU64>) -> thread::JoinHandle<()> {
    coalescing(a, |mut a| {
        for value in until(done) {
            a.store(PLACE, value).unwrap();
        }
    })
}

// spec: A5, A6
#[test]
fn what_is_stored_after_a_drop_is_seen_by_who_coalesces() {
    explore(|| {
        let (memory, space, a) = leaf();
        let told = Arc::new(AtomicU64::new(0));
        let tells = told.clone();
        // The value is never older than the one this thread was told of. Meanwhile it visits the
        // leaf, so that it would coalesce the leaf again.
        let looking = coalescing(a, move |mut a| {
            for visit in 0.. {
                let least = tells.load(Ordering::Acquire);
                let seen = a.load::<u64>(PLACE).unwrap();
                assert!(least == 0 || seen >= least, "{seen} after {least}");
                if least == 3 {
                    return;
                }
                assert_eq!(a.load::<u8>(beginning(visit)), Ok(0));
            }
        });
        let drops = space.clone();
        let dropping = thread::spawn(move || {
            let page = VirtAddr(PLACE.0 - PLACE.0 % PAGE);
            drops.discard(page, PAGE).unwrap();
        });
        let mut b = space.accessor().unwrap();
        // The store came before the drop and is lost, or after it and stays.
        b.store(PLACE + 8, 2u64).unwrap();
        dropping.join().unwrap();
        // This store takes the frame, so that the dropped page gets another.
        b.store(BESIDE, 99u64).unwrap();
        for value in 2..4 {
            b.store(PLACE, value).unwrap();
            told.store(value, Ordering::Release);
        }
        looking.join().unwrap();
        space.validate();
        drop((b, space));
        assert_nothing_left(memory);
    });
}

// spec: A1
#[test]
fn a_store_by_who_coalesces_is_seen_by_a_look_at_what_is_dirty_or_named_by_the_next() {
    explore(|| {
        let (memory, space, a) = leaf();
        let all = Arc::new(AtomicU64::new(0));
        let storing = storing(a, all.clone());
        let mut b = space.accessor().unwrap();
        let mut seen = 0;
        for _ in 0..3 {
            drop(space.take_dirty(AT, 2 * MIB).unwrap());
            seen = b.load::<u64>(PLACE).unwrap();
        }
        all.store(1, Ordering::Release);
        storing.join().unwrap();
        let named = !space.take_dirty(AT, 2 * MIB).unwrap().is_empty();
        assert!(named || b.load(PLACE) == Ok(seen), "stored and not named");
        space.validate();
        drop((b, space));
        assert_nothing_left(memory);
    });
}

// spec: A4
#[test]
fn stores_by_who_coalesces_stay_on_their_side_of_a_fork() {
    explore(|| {
        let (memory, space, a) = leaf();
        let all = Arc::new(AtomicU64::new(0));
        let storing = storing(a, all.clone());
        let child = space.fork().unwrap();
        let mut c = child.accessor().unwrap();
        let first = c.load::<u64>(PLACE).unwrap();
        all.store(1, Ordering::Release);
        storing.join().unwrap();
        let later = c.load::<u64>(PLACE).unwrap();
        assert_eq!(first, later, "a store of the parent reached the child");
        space.validate();
        child.validate();
        drop((c, child, space));
        assert_nothing_left(memory);
    });
}
