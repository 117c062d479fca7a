//! Whole operations of spaces under random schedules: faults, forks, unmaps, evictions and
//! writeback, with the protocol of `sync::domain`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::{PAGE, anonymous, assert_nothing_left, explore, memory, numbered};
use crate::cache::FileAccess;
use crate::space::{AtFork, FaultKind, Protection, SpaceError};
use crate::store::MemoryStore;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, thread};
use crate::{Map, Space, VirtAddr};

#[test]
fn stores_beside_a_fork_stay_on_their_side() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 2);
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let mut a = space.accessor().unwrap();
                let slot = at + writer * 8;
                // When the fork comes, the accessor remembers the leaf, for stores too.
                a.store(slot, 1u64).unwrap();
                thread::spawn(move || {
                    for value in 2..5u64 {
                        a.store(slot, value).unwrap();
                    }
                    assert_eq!(a.load::<u64>(slot), Ok(4));
                })
            })
            .collect();
        let child = space.fork().unwrap();
        let mut c = child.accessor().unwrap();
        let first = [0, 8].map(|slot| c.load::<u64>(at + slot).unwrap());
        c.store(at + 16, 77u64).unwrap();
        for writer in writers {
            writer.join().unwrap();
        }
        let later = [0, 8].map(|slot| c.load::<u64>(at + slot).unwrap());
        assert_eq!(first, later, "a store of the parent reached the child");
        let mut a = space.accessor().unwrap();
        assert_eq!(a.load::<u64>(at + 16), Ok(0), "and the reverse");
        assert_eq!(a.load::<u64>(at), Ok(4), "the parent has its own");
        space.validate();
        child.validate();
        drop((a, c, child, space));
        assert_nothing_left(memory);
    });
}

// spec: A6
#[test]
fn an_upgrade_is_seen_by_who_synchronises() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 2);
        let mut writer = space.accessor().unwrap();
        writer.store(at + PAGE, 5u64).unwrap();
        // From here on the leaf is shared: the first store replaces it.
        let fork = space.fork().unwrap();
        let mut reader = space.accessor().unwrap();
        assert_eq!(reader.load::<u64>(at), Ok(0)); // the zero page
        assert_eq!(reader.load::<u64>(at + PAGE), Ok(5)); // the page to be copied
        let stored = Arc::new(AtomicU32::new(0));
        let told = stored.clone();
        let reading = thread::spawn(move || {
            for _ in 0..3 {
                let done = told.load(Ordering::Acquire);
                let zero = reader.load::<u64>(at).unwrap();
                let copied = reader.load::<u64>(at + PAGE).unwrap();
                assert!(zero == 7 || zero == 0 && done < 1, "{zero} after {done}");
                assert!(
                    copied == 8 || copied == 5 && done < 2,
                    "{copied} after {done}"
                );
            }
            reader
        });
        writer.store(at, 7u64).unwrap();
        stored.store(1, Ordering::Release);
        writer.store(at + PAGE, 8u64).unwrap();
        stored.store(2, Ordering::Release);
        let mut reader = reading.join().unwrap();
        assert_eq!(reader.load::<u64>(at), Ok(7));
        assert_eq!(reader.load::<u64>(at + PAGE), Ok(8));
        drop((reader, writer, fork, space));
        assert_nothing_left(memory);
    });
}

// spec: A5
#[test]
fn after_unmap_and_protect_no_access_goes_through() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 2);
        let mut a = space.accessor().unwrap();
        a.store(at, 1u64).unwrap();
        a.store(at + PAGE, 1u64).unwrap();
        let stage = Arc::new(AtomicU32::new(0));
        let told = stage.clone();
        let accessing = thread::spawn(move || {
            for value in 2..6u64 {
                let done = told.load(Ordering::Acquire);
                let stored = a.store(at, value).map_err(|fault| fault.kind());
                let loaded = a.load::<u64>(at + PAGE).map_err(|fault| fault.kind());
                match stored {
                    Ok(()) => assert_eq!(done, 0, "a store after protect returned"),
                    Err(kind) => assert_eq!(kind, FaultKind::Forbidden),
                }
                match loaded {
                    Ok(value) => assert!(done < 2 && value == 1, "{value} after {done}"),
                    Err(kind) => assert_eq!(kind, FaultKind::NotMapped),
                }
            }
        });
        space.protect(at, PAGE, Protection::READ).unwrap();
        let mut other = space.accessor().unwrap();
        let kept = other.load::<u64>(at).unwrap();
        stage.store(1, Ordering::Release);
        space.unmap(at + PAGE, PAGE).unwrap();
        stage.store(2, Ordering::Release);
        // The unmapped frame is used again for another page.
        let elsewhere = VirtAddr(0x10_0000);
        space.map(Map::anonymous(PAGE).at(elsewhere)).unwrap();
        other.store(elsewhere, 99u64).unwrap();
        accessing.join().unwrap();
        assert_eq!(other.load::<u64>(at), Ok(kept), "stored after protect");
        space.validate();
        drop((other, space));
        assert_nothing_left(memory);
    });
}

/// In this build a node of the tree has room for four ranges, so each change splits or merges some
/// nodes.
// spec: V10
// spec: V2
#[test]
fn a_lookup_beside_splits_and_merges_finds_the_old_or_the_new_mapping() {
    explore(|| {
        let memory = memory();
        let space = memory.create_space().unwrap();
        let page = |number: u64| VirtAddr(0x10_0000 + number * PAGE);
        // Only every other page is mapped, so that nothing merges: the tree has three levels.
        for number in 0..12 {
            let map = Map::anonymous(PAGE).at(page(2 * number));
            space.map(map.protection(Protection::READ)).unwrap();
        }
        let stage = Arc::new(AtomicU32::new(0));
        let told = stage.clone();
        let mut a = space.accessor().unwrap();
        let looking = thread::spawn(move || {
            for _ in 0..2 {
                for number in [0, 7, 8, 9, 22] {
                    let done = told.load(Ordering::Acquire);
                    let got = a.load::<u64>(page(number)).map_err(|fault| fault.kind());
                    match (number, got) {
                        (0 | 22, got) => assert_eq!(got, Ok(0), "never changed"),
                        (8, Ok(0)) => assert!(done < 1, "found after unmap returned"),
                        (7 | 9, Ok(0)) => {}
                        (7 | 9, got) => {
                            assert_eq!(got, Err(FaultKind::NotMapped));
                            assert!(done < 2, "not found after map returned");
                        }
                        (_, got) => assert_eq!(got, Err(FaultKind::NotMapped)),
                    }
                }
            }
        });
        space.unmap(page(8), PAGE).unwrap();
        stage.store(1, Ordering::Release);
        for number in [7, 9, 11] {
            let map = Map::anonymous(PAGE).at(page(number));
            space.map(map.protection(Protection::READ)).unwrap();
        }
        stage.store(2, Ordering::Release);
        looking.join().unwrap();
        space.validate();
        drop(space);
        assert_nothing_left(memory);
    });
}

#[test]
fn an_evicted_frame_is_not_reused_under_a_load() {
    explore(|| {
        let memory = memory();
        let (file, _store) = numbered(&memory, memory.root_group(), 3);
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file)).unwrap();
        let mut a = space.accessor().unwrap();
        let reading = thread::spawn(move || {
            for page in [0, 1, 0, 2, 0] {
                let seen = a.load::<u64>(at + page * PAGE);
                assert_eq!(seen, Ok(page + 100), "another's bytes");
            }
        });
        let other = memory.create_space().unwrap();
        let mine = other.map(Map::anonymous(8 * PAGE)).unwrap();
        let mut b = other.accessor().unwrap();
        for page in 0..4 {
            file.evict(..).unwrap();
            b.store(mine + page * PAGE, u64::MAX).unwrap();
        }
        reading.join().unwrap();
        space.validate();
        drop((b, other, space, file));
        assert_nothing_left(memory);
    });
}

#[test]
fn a_store_beside_writeback_is_never_lost() {
    explore(|| {
        let memory = memory();
        let (file, store) = numbered(&memory, memory.root_group(), 1);
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file).shared().writable()).unwrap();
        let mut a = space.accessor().unwrap();
        a.store(at, 1u64).unwrap();
        let storing = thread::spawn(move || {
            for value in 2..5u64 {
                a.store(at, value).unwrap();
            }
        });
        file.sync_data().unwrap();
        file.sync_data().unwrap();
        storing.join().unwrap();
        // The bytes were written already, or are dirty; then this writes them.
        file.sync_data().unwrap();
        assert_eq!(store.to_vec()[..8], 4u64.to_le_bytes(), "a lost store");
        space.validate();
        drop((space, file));
        assert_nothing_left(memory);
    });
}

// spec: A7
#[test]
fn two_accessors_that_fault_and_reclaim_do_not_wait_for_each_other() {
    explore(|| {
        let memory = memory();
        let group = memory.create_group("small", 22 * PAGE).unwrap();
        let (file, _store) = numbered(&memory, &group, 16);
        let space = memory.create_space_in(&group).unwrap();
        let at = space.map(Map::file(&file).shared().writable()).unwrap();
        let threads: Vec<_> = (0..2u64)
            .map(|number| {
                let mut a = space.accessor().unwrap();
                thread::spawn(move || {
                    for step in 0..12 {
                        let page = (step * 5 + number * 7) % 16;
                        let slot = at + page * PAGE;
                        assert_eq!(a.load::<u64>(slot), Ok(page + 100));
                        if step % 4 == number {
                            a.store(slot + 8, step).unwrap();
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        space.validate();
        memory.validate();
        drop((space, file));
        drop(group);
        assert_nothing_left(memory);
    });
}

// spec: A15
#[test]
fn a_session_that_never_faults_lets_eviction_and_unmap_go_on() {
    explore(|| {
        let memory = memory();
        let (file, _store) = numbered(&memory, memory.root_group(), 2);
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file)).unwrap();
        let own = space.map(Map::anonymous(PAGE)).unwrap();
        let mut a = space.accessor().unwrap();
        let mut b = space.accessor().unwrap();
        b.load::<u64>(at).unwrap();
        a.store(own, 3u64).unwrap();
        let stop = Arc::new(AtomicU32::new(0));
        let told = stop.clone();
        let running = thread::spawn(move || {
            a.session(|a| {
                while told.load(Ordering::Acquire) == 0 {
                    assert_eq!(a.load::<u64>(own), Ok(3));
                }
            });
        });
        // The session ends only after these calls have returned.
        assert_eq!(file.evict(..).unwrap().0, 1);
        space.unmap(at, 2 * PAGE).unwrap();
        stop.store(1, Ordering::Release);
        running.join().unwrap();
        drop((b, space, file));
        assert_nothing_left(memory);
    });
}

// spec: A10
#[test]
fn an_accessor_that_moves_ends_or_panics_leaves_no_section_open() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 4);
        let mut moved = space.accessor().unwrap();
        moved.store(at, 1u64).unwrap();
        let mut panics = space.accessor().unwrap();
        let theirs = thread::spawn(move || {
            assert_eq!(moved.load::<u64>(at), Ok(1));
            let ended = catch_unwind(AssertUnwindSafe(|| {
                panics.session(|a| {
                    a.store(at + PAGE, 2u64).unwrap();
                    resume_unwind(Box::new("on purpose"))
                })
            }));
            let ended: Result<(), _> = ended;
            assert!(ended.is_err());
            // The accessor still works after the panic, in the thread that was unwound.
            assert_eq!(panics.load::<u64>(at + PAGE), Ok(2));
            (moved, panics)
        });
        // Each of these waits for every open section.
        space.unmap(at + 2 * PAGE, PAGE).unwrap();
        let (moved, panics) = theirs.join().unwrap();
        space.unmap(at + 3 * PAGE, PAGE).unwrap();
        drop(panics);
        space.unmap(at, PAGE).unwrap();
        drop((moved, space));
        assert_nothing_left(memory);
    });
}

/// A pin during forks: the page stays with the parent, and a child's copy does not change.
// spec: F1
#[test]
fn a_pinned_page_stays_with_its_space_beside_forks_and_stores() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 2);
        let mut a = space.accessor().unwrap();
        a.store(at, 1u64).unwrap();
        a.store(at + PAGE, 1u64).unwrap();
        let forking = {
            let space = space.clone();
            thread::spawn(move || {
                let child = space.fork().unwrap();
                let mut b = child.accessor().unwrap();
                let first = b.load::<u64>(at).unwrap();
                assert!((1..4).contains(&first), "{first}");
                b.store(at + PAGE, 8u64).unwrap();
                assert_eq!(b.load::<u64>(at), Ok(first), "a store behind the child");
                child.validate();
            })
        };
        let pinned = space.pin(at, PAGE, AtFork::Copy).unwrap();
        for value in 2..4u64 {
            let mut seen = [0; 8];
            match value {
                2 => pinned.write(0, &value.to_ne_bytes()),
                _ => a.store(at, value).unwrap(),
            }
            pinned.read(0, &mut seen);
            assert_eq!(u64::from_ne_bytes(seen), value);
            assert_eq!(a.load::<u64>(at), Ok(value), "the pinned page has moved");
        }
        forking.join().unwrap();
        assert_eq!(a.load::<u64>(at + PAGE), Ok(1));
        space.validate();
        drop((pinned, a, space));
        assert_nothing_left(memory);
    });
}

/// A restore during a pin is refused, or comes before or after it. Bytes that were stored through
/// the pin are gone after the next restore.
#[test]
fn a_restore_beside_a_pin_takes_back_what_the_pin_stored() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 1);
        let mut a = space.accessor().unwrap();
        a.store(at, 1u64).unwrap();
        let snapshot = space.freeze().unwrap();
        // From here on the page belongs to the space alone, and is recorded.
        for value in 2..4u64 {
            space.restore(&snapshot).unwrap();
            a.store(at, value).unwrap();
        }
        let restoring = {
            let (space, snapshot) = (space.clone(), snapshot.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    match space.restore(&snapshot) {
                        Ok(()) | Err(SpaceError::Pinned { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        };
        let pinned = space.pin(at, PAGE, AtFork::Copy).unwrap();
        pinned.write(0, &9u64.to_ne_bytes());
        assert_eq!(a.load::<u64>(at), Ok(9), "restored under the pin");
        drop(pinned);
        restoring.join().unwrap();
        space.restore(&snapshot).unwrap();
        assert_eq!(a.load::<u64>(at), Ok(1));
        space.validate();
        drop((a, space, snapshot));
        assert_nothing_left(memory);
    });
}

/// A load maps the holes around its own page. Meanwhile some of these holes are written, by a call
/// and through another mapping, written back and evicted. Every load that begins afterwards sees
/// the new bytes.
// spec: P23
#[test]
fn holes_that_are_mapped_together_end_one_by_one() {
    explore(|| {
        let memory = memory();
        let options = memory.file_options().access(FileAccess::ReadWrite);
        let store = MemoryStore::with_len(4 * PAGE);
        let file = options.open_store(Arc::new(store)).unwrap();
        let spaces = [0, 1].map(|_| memory.create_space().unwrap());
        let map = |space: &Space| space.map(Map::file(&file).shared().writable()).unwrap();
        let at = spaces.each_ref().map(map);
        let written = Arc::new([0; 3].map(AtomicU32::new));
        let by_call = {
            let (file, written) = (file.clone(), written.clone());
            thread::spawn(move || {
                file.write_at(&7u64.to_le_bytes(), PAGE).unwrap();
                written[1].store(1, Ordering::SeqCst);
                file.sync_all().unwrap();
                file.evict(PAGE..2 * PAGE).unwrap();
            })
        };
        let by_mapping = {
            let (mut a, at, written) = (spaces[1].accessor().unwrap(), at[1], written.clone());
            thread::spawn(move || {
                a.store(at + 2 * PAGE, 7u64).unwrap();
                written[2].store(1, Ordering::SeqCst);
            })
        };
        let mut a = spaces[0].accessor().unwrap();
        for first in [0, 1, 2, 3] {
            for page in (0..4).map(|page| (first + page) % 4) {
                let over = page == 1 || page == 2;
                let after = over && written[page as usize].load(Ordering::SeqCst) == 1;
                let seen: u64 = a.load(at[0] + page * PAGE).unwrap();
                assert!(seen == 0 || over && seen == 7, "page {page}: {seen}");
                assert!(seen == 7 || !after, "page {page} is a hole still");
            }
        }
        by_call.join().unwrap();
        by_mapping.join().unwrap();
        let loads = [0, 1, 2, 3].map(|page| a.load::<u64>(at[0] + page * PAGE).unwrap());
        assert_eq!(loads, [0, 7, 7, 0]);
        drop((a, spaces, file));
        assert_nothing_left(memory);
    });
}

#[test]
fn a_copy_made_while_it_is_stored_to_is_whole_in_the_end() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 2);
        let writers: Vec<_> = (0..2u64)
            .map(|page| {
                let mut a = space.accessor().unwrap();
                thread::spawn(move || {
                    for value in 1..4u64 {
                        a.store(at + page * PAGE, value).unwrap();
                    }
                })
            })
            .collect();
        let mut copy = [0u64; 2];
        let mut a = space.accessor().unwrap();
        let mut refresh = || {
            let named = space.take_dirty(at, 2 * PAGE).unwrap();
            for page in 0..2 {
                let first = at + page * PAGE;
                if named.iter().any(|range| range.contains(&first)) {
                    copy[page as usize] = a.load(first).unwrap();
                }
            }
            copy
        };
        for _ in 0..3 {
            refresh();
        }
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(refresh(), [3, 3], "a store was never named");
        drop((a, space));
        assert_nothing_left(memory);
    });
}

/// Restores give pages back, keep them, or copy them back, while stores are made: a store is
/// entirely on one side of a restore.
// spec: F3
#[test]
fn stores_beside_restores_in_place_are_kept_or_taken_back_whole() {
    explore(|| {
        let memory = memory();
        let (space, at) = anonymous(&memory, 2);
        let mut a = space.accessor().unwrap();
        a.store(at, 1u64).unwrap();
        let snapshot = space.freeze().unwrap();
        space.restore(&snapshot).unwrap();
        let storing = {
            let mut b = space.accessor().unwrap();
            thread::spawn(move || {
                for value in 2..6u64 {
                    for page in 0..2 {
                        b.store(at + page * PAGE, value).unwrap();
                        let seen = b.load::<u64>(at + page * PAGE).unwrap();
                        assert!(seen == value || seen == 1 - page, "{seen} after {value}");
                    }
                }
            })
        };
        for _ in 0..3 {
            space.restore(&snapshot).unwrap();
            for (page, image) in [(0, 1), (1, 0)] {
                let seen = a.load::<u64>(at + page * PAGE).unwrap();
                assert!(seen == image || (2..6).contains(&seen), "{seen}");
            }
        }
        storing.join().unwrap();
        space.restore(&snapshot).unwrap();
        assert_eq!(a.load::<u64>(at), Ok(1));
        assert_eq!(a.load::<u64>(at + PAGE), Ok(0));
        assert_eq!(snapshot.accessor().unwrap().load::<u64>(at), Ok(1));
        space.validate();
        drop((a, space, snapshot));
        assert_nothing_left(memory);
    });
}

#[test]
fn a_page_unmapped_beside_a_fault_that_maps_its_neighbours_stays_unmapped() {
    explore(|| {
        let memory = memory();
        let device = crate::dax::DaxDevice::memory(8 * PAGE).unwrap();
        let file = memory.create_dax_on(&device, "data.bin").unwrap();
        file.set_len(4 * PAGE).unwrap();
        let space = memory.create_space().unwrap();
        let at = space.map(Map::dax(&file)).unwrap();
        let mut a = space.accessor().unwrap();
        let faulting = thread::spawn(move || {
            // The page is a hole: the holes after it are mapped with it.
            assert_eq!(a.load::<u64>(at), Ok(0));
            a
        });
        space.unmap(at + 2 * PAGE, PAGE).unwrap();
        let mut a = faulting.join().unwrap();
        let fault = a.load::<u64>(at + 2 * PAGE).unwrap_err();
        assert_eq!(fault.kind(), FaultKind::NotMapped);
        assert_eq!(a.load::<u64>(at + 3 * PAGE), Ok(0));
    });
}
