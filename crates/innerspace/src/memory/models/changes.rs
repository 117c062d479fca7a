//! Changes under random schedules: pages are moved or dropped while they are stored to, and code is
//! stored to while it is watched.

use super::{PAGE, anonymous, assert_nothing_left, explore, memory, numbered, until};
use crate::space::{Advice, FaultKind, Protection, Remap};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, thread};
use crate::{Map, Memory, PagedFile, VirtAddr};

#[test]
fn a_page_that_moves_takes_all_stores_with_it_and_gets_none_by_its_old_address() {
    explore(|| {
        let memory = memory();
        let (space, from) = anonymous(&memory, 2);
        let to = VirtAddr(from.0 + 8 * PAGE);
        let mut storer = space.accessor().unwrap();
        storer.store(from, 1u64).unwrap();
        storer.store(from + PAGE, 1u64).unwrap();
        // A store may copy the first page before or during the move; the second page is moved as a
        // borrowed one.
        let child = space.fork().unwrap();
        let storing = thread::spawn(move || {
            let mut last = 1;
            for value in 2..9u64 {
                match storer.store(from, value) {
                    Ok(()) => last = value,
                    Err(fault) => {
                        assert_eq!(fault.kind(), FaultKind::NotMapped);
                        break;
                    }
                }
            }
            (last, storer.load::<u64>(to))
        });
        let moved = space.remap(from, 2 * PAGE, 2 * PAGE, Remap::Replacing(to));
        assert_eq!(moved.unwrap(), to);
        let mut a = space.accessor().unwrap();
        let gone = a.load::<u64>(from).unwrap_err();
        assert_eq!(gone.kind(), FaultKind::NotMapped);
        let seen = a.load::<u64>(to).unwrap();
        let (last, found) = storing.join().unwrap();
        assert_eq!(seen, last, "a store was lost, or came after the move");
        if let Ok(found) = found {
            assert_eq!(found, last);
        }
        assert_eq!(a.load::<u64>(to), Ok(last));
        assert_eq!(a.load::<u64>(to + PAGE), Ok(1));
        let mut c = child.accessor().unwrap();
        assert_eq!(c.load::<u64>(from), Ok(1), "the fork has what was there");
        assert_eq!(c.load::<u64>(from + PAGE), Ok(1));
        space.validate();
        child.validate();
        drop((a, c, child, space));
        assert_nothing_left(memory);
    });
}

#[test]
fn what_was_fetched_before_a_store_is_not_current_after_it() {
    explore(|| {
        let memory = memory();
        let space = memory.create_space().unwrap();
        let all = Protection::READ | Protection::WRITE | Protection::EXECUTE;
        let at = space.map(Map::anonymous(PAGE).protection(all)).unwrap();
        let mut storer = space.accessor().unwrap();
        storer.store(at, 0u64).unwrap();
        let stored = Arc::new(AtomicU64::new(0));
        let tells = stored.clone();
        let storing = thread::spawn(move || {
            for value in 1..=8u64 {
                storer.store(at, value).unwrap();
                tells.store(value, Ordering::Release);
            }
        });
        let mut a = space.accessor().unwrap();
        for _ in 0..8 {
            let page = a.watch_code(at).unwrap();
            let fetched = a.fetch::<u64>(at).unwrap();
            // This is checked before the next page is watched, because that would count, too.
            for _ in 0..4 {
                if stored.load(Ordering::Acquire) > fetched {
                    assert!(!page.is_current(), "{fetched} is not what is there");
                }
            }
        }
        storing.join().unwrap();
        // Without a store the page stays current.
        let page = a.watch_code(at).unwrap();
        assert_eq!(a.fetch::<u64>(at), Ok(8));
        assert!(page.is_current());
        a.store(at, 9u64).unwrap();
        assert!(!page.is_current());
        space.validate();
        drop((a, space));
        assert_nothing_left(memory);
    });
}

#[test]
fn stores_beside_a_drop_in_place_are_before_or_after_it() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 4);
        let mut a = space.accessor().unwrap();
        a.store(at, 1u64).unwrap();
        let mut other = space.accessor().unwrap();
        other.store(at + PAGE, 1u64).unwrap();
        let storing = thread::spawn(move || {
            for value in 2..5u64 {
                a.store(at, value).unwrap();
                let seen = a.load::<u64>(at).unwrap();
                assert!(seen == value || seen == 0, "{seen} after {value}");
            }
            a
        });
        space.discard(at, PAGE).unwrap();
        // The dropped frame is used again for another page.
        other.store(at + 2 * PAGE, 99u64).unwrap();
        let a = storing.join().unwrap();
        let reused = other.load::<u64>(at + 2 * PAGE);
        assert_eq!(reused, Ok(99), "stored after the drop");
        let last = other.load::<u64>(at).unwrap();
        assert!(last == 4 || last == 0, "{last}");
        assert_eq!(other.load::<u64>(at + PAGE), Ok(1));
        space.validate();
        drop((a, other, space));
        assert_nothing_left(memory);
    });
}

#[test]
fn a_copy_beside_a_drop_brings_nothing_back() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 3);
        let mut a = space.accessor().unwrap();
        // There are two numbers at the beginning of each page.
        let both = |page: u64| u128::from(page + 1) << 64 | u128::from(page + 1);
        (0..3).for_each(|page| a.store(at + page * PAGE, both(page)).unwrap());
        let child = space.fork().unwrap();
        let mut c = child.accessor().unwrap();
        // From now on, the leaf belongs to the child alone; its other pages are borrowed.
        c.store(at, 10u64).unwrap();
        let dropper = child.clone();
        let dropping = thread::spawn(move || dropper.discard(at + PAGE, 2 * PAGE).unwrap());
        c.store(at + PAGE, 20u64).unwrap();
        dropping.join().unwrap();
        let first = c.load::<u64>(at + PAGE).unwrap();
        assert!(first == 20 || first == 0, "{first}");
        assert_eq!(c.load::<u64>(at + PAGE + 8), Ok(0), "what was dropped");
        assert_eq!(c.load::<u128>(at + 2 * PAGE), Ok(0));
        assert_eq!(c.load::<u128>(at), Ok(1 << 64 | 10));
        for page in 0..3 {
            assert_eq!(a.load::<u128>(at + page * PAGE), Ok(both(page)));
        }
        space.validate();
        child.validate();
        drop((a, c, space, child));
        assert_nothing_left(memory);
    });
}

/// Executes a page of a file, while a thread stores numbers to the page's second word.
fn code_beside(stores_to: fn(&Memory, &PagedFile) -> Box<dyn Fn(u64) + Send>) {
    let memory = memory();
    let (file, _store) = numbered(&memory, memory.root_group(), 1);
    let space = memory.create_space().unwrap();
    let execute = Protection::READ | Protection::EXECUTE;
    let code = space.map(Map::file(&file).protection(execute)).unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let stored = Arc::new(AtomicU64::new(0));
    let storing = {
        let (store, values) = (stores_to(&memory, &file), until(done.clone()));
        let stored = stored.clone();
        thread::spawn(move || {
            for value in values {
                store(value);
                stored.store(value, Ordering::Release);
            }
        })
    };
    let mut a = space.accessor().unwrap();
    for _ in 0..4 {
        let page = a.watch_code(code).unwrap();
        let fetched = a.fetch::<u64>(code + 8).unwrap();
        // This is checked before the next page is watched, because that would count, too.
        for _ in 0..8 {
            let there = stored.load(Ordering::Acquire);
            assert!(
                fetched >= there || !page.is_current(),
                "{fetched} is old: {there}"
            );
        }
    }
    done.store(1, Ordering::Release);
    storing.join().unwrap();
    let page = a.watch_code(code).unwrap();
    let last = stored.load(Ordering::Acquire);
    assert_eq!(a.fetch::<u64>(code + 8), Ok(last));
    assert!(page.is_current(), "nobody stores");
    drop((a, space, file));
    assert_nothing_left(memory);
}

// spec: V11
#[test]
fn code_beside_writes_by_calls_is_current_or_known_to_be_stale() {
    explore(|| {
        code_beside(|_, file| {
            let file = file.clone();
            Box::new(move |value| file.write_at(&value.to_le_bytes(), 8).unwrap())
        });
    });
}

// spec: V11
#[test]
fn code_beside_stores_elsewhere_is_current_or_known_to_be_stale() {
    explore(|| {
        code_beside(|memory, file| {
            let space = memory.create_space().unwrap();
            let at = space.map(Map::file(file).shared().writable()).unwrap();
            let a = Mutex::new(space.accessor().unwrap());
            Box::new(move |value| a.lock().store(at + 8, value).unwrap())
        });
    });
}
