//! A session, whose section stays open from access to access, while other threads take its page
//! away, under random schedules. Each session has its page before the others begin, and uses the
//! page again and again.

use super::{PAGE, anonymous, assert_nothing_left, explore, memory, numbered, until};
use crate::space::{FaultKind, Protection, Session};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, thread};
use crate::{Accessor, Map, VirtAddr};

/// Opens a session in another thread, which first stores 1 to `at` and to `at + 8`. Then the other
/// threads go on.
fn beside_session<R: Send + 'static>(
    mut a: Accessor,
    at: VirtAddr,
    work: impl FnOnce(&mut Session<'_>) -> R + Send + 'static,
) -> thread::JoinHandle<R> {
    let has_page = Arc::new(AtomicU64::new(0));
    let tells = has_page.clone();
    let running = thread::spawn(move || {
        a.session(|a| {
            a.store(at, 1u64).unwrap();
            a.store(at + 8, 1u64).unwrap();
            assert_eq!([0, 8].map(|slot| a.load::<u64>(at + slot)), [Ok(1); 2]);
            tells.store(1, Ordering::Release);
            work(a)
        })
    });
    while has_page.load(Ordering::Acquire) == 0 {
        thread::yield_now();
    }
    running
}

// spec: A4
#[test]
fn stores_of_a_session_beside_a_fork_stay_on_their_side() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 1);
        let done = Arc::new(AtomicU64::new(0));
        let values = until(done.clone());
        let storing = beside_session(space.accessor().unwrap(), at, move |a| {
            let mut last = 1;
            for value in values {
                a.store(at + 8, value).unwrap();
                last = value;
            }
            assert_eq!(a.load::<u64>(at + 8), Ok(last));
        });
        let child = space.fork().unwrap();
        let mut c = child.accessor().unwrap();
        let first = c.load::<u64>(at + 8).unwrap();
        done.store(1, Ordering::Release);
        storing.join().unwrap();
        let later = c.load::<u64>(at + 8).unwrap();
        assert_eq!(first, later, "a store of the parent reached the child");
        space.validate();
        child.validate();
        drop((c, child, space));
        assert_nothing_left(memory);
    });
}

// spec: A5
#[test]
fn after_protect_and_unmap_no_access_of_a_session_goes_through() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 1);
        let stage = Arc::new(AtomicU64::new(0));
        let (told, all) = (stage.clone(), Arc::new(AtomicU64::new(0)));
        let values = until(all.clone());
        let accessing = beside_session(space.accessor().unwrap(), at, move |a| {
            for value in values {
                let done = told.load(Ordering::Acquire);
                match a.store(at + 8, value).map_err(|fault| fault.kind()) {
                    Ok(()) => assert_eq!(done, 0, "a store after protect returned"),
                    Err(FaultKind::Forbidden) => {}
                    Err(kind) => assert_eq!(kind, FaultKind::NotMapped),
                }
                match a.load::<u64>(at).map_err(|fault| fault.kind()) {
                    Ok(loaded) => assert!(done < 2 && loaded == 1, "{loaded} after {done}"),
                    Err(kind) => assert_eq!(kind, FaultKind::NotMapped),
                }
            }
        });
        space.protect(at, PAGE, Protection::READ).unwrap();
        let mut other = space.accessor().unwrap();
        let kept = other.load::<u64>(at + 8);
        stage.store(1, Ordering::Release);
        assert_eq!(other.load::<u64>(at + 8), kept, "stored after protect");
        space.unmap(at, PAGE).unwrap();
        stage.store(2, Ordering::Release);
        // The unmapped frame is used again for another page.
        let elsewhere = VirtAddr(0x10_0000);
        space.map(Map::anonymous(PAGE).at(elsewhere)).unwrap();
        other.store(elsewhere, 99u64).unwrap();
        all.store(1, Ordering::Release);
        accessing.join().unwrap();
        assert_eq!(other.load::<u64>(elsewhere + 8), Ok(0));
        space.validate();
        drop((other, space));
        assert_nothing_left(memory);
    });
}

/// After a fork, a store by another accessor copies the session's page.
// spec: A6
#[test]
fn a_copy_by_another_is_seen_by_a_session_that_synchronises() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 2);
        let stored = Arc::new(AtomicU64::new(1));
        let told = stored.clone();
        let mut b = space.accessor().unwrap();
        b.store(at + PAGE, 1u64).unwrap();
        let all = Arc::new(AtomicU64::new(0));
        let values = until(all.clone());
        let reading = beside_session(space.accessor().unwrap(), at, move |a| {
            for _ in values {
                let done = told.load(Ordering::Acquire);
                let seen = a.load::<u64>(at + 8).unwrap();
                assert!(seen >= done, "{seen} after {done}");
            }
        });
        let child = space.fork().unwrap();
        for value in 2..4u64 {
            b.store(at + 8, value).unwrap();
            stored.store(value, Ordering::Release);
        }
        all.store(1, Ordering::Release);
        reading.join().unwrap();
        assert_eq!(child.accessor().unwrap().load::<u64>(at + 8), Ok(1));
        drop((b, child, space));
        assert_nothing_left(memory);
    });
}

#[test]
fn stores_of_a_session_are_named_by_who_takes_what_is_dirty() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 1);
        let mut b = space.accessor().unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let values = until(done.clone());
        let storing = beside_session(space.accessor().unwrap(), at, move |a| {
            let last = values.inspect(|value| a.store(at + 8, *value).unwrap());
            last.last().unwrap_or(1)
        });
        let mut sent = 0;
        for _ in 0..3 {
            if !space.take_dirty(at, PAGE).unwrap().is_empty() {
                sent = b.load::<u64>(at + 8).unwrap();
            }
        }
        done.store(1, Ordering::Release);
        let last = storing.join().unwrap();
        if space.take_dirty(at, PAGE).unwrap().is_empty() {
            assert_eq!(sent, last, "a store that nobody named");
        }
        drop((b, space));
        assert_nothing_left(memory);
    });
}

#[test]
fn what_was_fetched_before_a_store_of_a_session_is_not_current_after_it() {
    explore(|| {
        let memory = memory();
        let space = memory.create_space().unwrap();
        let all = Protection::READ_WRITE | Protection::EXECUTE;
        let at = space.map(Map::anonymous(PAGE).protection(all)).unwrap();
        let mut b = space.accessor().unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let values = until(done.clone());
        let storing = beside_session(space.accessor().unwrap(), at, move |a| {
            let last = values.inspect(|value| a.store(at + 8, *value).unwrap());
            last.last().unwrap_or(1)
        });
        let page = b.watch_code(at).unwrap();
        let fetched = b.fetch::<u64>(at + 8).unwrap();
        done.store(1, Ordering::Release);
        let last = storing.join().unwrap();
        assert!(
            !page.is_current() || fetched == last,
            "{fetched} is not what is there"
        );
        drop((b, space));
        assert_nothing_left(memory);
    });
}

// spec: F7
#[test]
fn stores_of_a_session_beside_restores_are_kept_or_taken_back_whole() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 1);
        let mut b = space.accessor().unwrap();
        b.store(at, 1u64).unwrap();
        b.store(at + 8, 1u64).unwrap();
        let snapshot = space.freeze().unwrap();
        space.restore(&snapshot).unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let values = until(done.clone());
        let storing = beside_session(space.accessor().unwrap(), at, move |a| {
            for value in values {
                a.store(at + 8, value).unwrap();
                let seen = a.load::<u64>(at + 8).unwrap();
                assert!(seen == value || seen == 1, "{seen} after {value}");
            }
        });
        for _ in 0..2 {
            space.restore(&snapshot).unwrap();
            let seen = b.load::<u64>(at + 8).unwrap();
            assert!(seen >= 1, "{seen}");
        }
        done.store(1, Ordering::Release);
        storing.join().unwrap();
        space.restore(&snapshot).unwrap();
        assert_eq!(b.load::<u64>(at + 8), Ok(1));
        assert_eq!(snapshot.accessor().unwrap().load::<u64>(at + 8), Ok(1));
        space.validate();
        drop((b, space, snapshot));
        assert_nothing_left(memory);
    });
}

#[test]
fn an_evicted_frame_is_not_reused_under_a_session() {
    explore(|| {
        let memory = memory();
        let (file, _store) = numbered(&memory, memory.root_group(), 1);
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file)).unwrap();
        let mut a = space.accessor().unwrap();
        let reading = thread::spawn(move || {
            a.session(|a| {
                for slot in [0, 0, 8, 8, 0, 8] {
                    let seen = a.load::<u64>(at + slot);
                    assert_eq!(seen, Ok([100, 0][usize::from(slot > 0)]), "another's bytes");
                }
            });
        });
        let other = memory.create_space().unwrap();
        let mine = other.map(Map::anonymous(8 * PAGE)).unwrap();
        let mut b = other.accessor().unwrap();
        for page in 0..3 {
            file.evict(..).unwrap();
            b.fill(mine + page * PAGE, 0xff, 16).unwrap();
        }
        reading.join().unwrap();
        space.validate();
        drop((b, other, space, file));
        assert_nothing_left(memory);
    });
}
