//! Direct-access files under random schedules: faults against each other, calls, cuts and sync.

use super::{PAGE, SCHEDULES, explore, memory};
use crate::dax::{DaxDevice, HoleWrites};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, thread};
use crate::{Accessor, DaxFile, Map, Memory, PAGE_SIZE, Space, VirtAddr};

const LARGE: u64 = 512 * PAGE;

/// Creates a hole of `len` bytes on a device and maps it for stores.
fn mapped(memory: &Memory, device: &DaxDevice, len: u64) -> (DaxFile, Space, VirtAddr) {
    let file = memory.create_dax_on(device, "data.bin").unwrap();
    file.set_len(len).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::dax(&file).shared().writable()).unwrap();
    (file, space, at)
}

// spec: D2, D5
#[test]
fn two_stores_to_one_hole_both_survive() {
    for len in [2 * PAGE, LARGE] {
        shuttle::check_random(
            move || {
                let memory = memory();
                let device = DaxDevice::memory(8 * PAGE).unwrap();
                let (file, space, at) = mapped(&memory, &device, len);
                let stores: Vec<_> = (0..2u64)
                    .map(|thread| {
                        let mut a = space.accessor().unwrap();
                        thread::spawn(move || {
                            if thread == 0 {
                                assert_eq!(a.load::<u64>(at + PAGE), Ok(0));
                            }
                            a.store(at + 8 * thread, thread + 1).unwrap();
                        })
                    })
                    .collect();
                stores.into_iter().for_each(|store| store.join().unwrap());
                let mut bytes = [0; 16];
                file.read_exact_at(&mut bytes, 0).unwrap();
                assert_eq!((bytes[0], bytes[8]), (1, 2));
                assert_eq!(device.free_pages().0, 7);
                space.validate();
            },
            SCHEDULES / 2,
        );
    }
}

// spec: D4, P29
#[test]
fn a_reader_of_a_hole_sees_a_write_that_was_done_before() {
    for (len, tries) in [(2 * PAGE, 0), (LARGE, 0), (2 * PAGE, 1)] {
        shuttle::check_random(
            move || {
                let memory = memory();
                let device = DaxDevice::memory(8 * PAGE).unwrap();
                let (file, space, at) = mapped(&memory, &device, len);
                let written = Arc::new(AtomicU64::new(0));
                let mut a = space.accessor().unwrap();
                let reader = {
                    let written = written.clone();
                    thread::spawn(move || {
                        for _ in 0..3 {
                            let before = written.load(Ordering::SeqCst);
                            let seen = a.load::<u64>(at).unwrap();
                            assert!(seen & 0xff >= before, "{seen} after {before}");
                        }
                    })
                };
                for value in 1..3u8 {
                    let tried = (0..tries).map(|_| file.try_write_at(&[value; 8], 0));
                    if !tried.into_iter().any(|tried| tried.is_ok()) {
                        file.write_at(&[value; 8], 0).unwrap();
                    }
                    written.store(value.into(), Ordering::SeqCst);
                    if value == 1 {
                        file.sync_all().unwrap();
                    }
                }
                reader.join().unwrap();
            },
            SCHEDULES / 3,
        );
    }
}

// spec: D16, D19
#[test]
fn a_store_through_an_old_translation_never_reaches_a_freed_block() {
    explore(|| {
        let memory = memory();
        let device = DaxDevice::memory(2 * PAGE).unwrap();
        let (file, space, at) = mapped(&memory, &device, 2 * PAGE);
        let mut a = space.accessor().unwrap();
        // The block has a translation only for loads, so the store has to make it writable.
        a.store(at, 1u64).unwrap();
        file.sync_all().unwrap();
        assert_eq!(a.load::<u64>(at), Ok(1));
        let store = thread::spawn(move || {
            a.store(at, 2u64).unwrap();
            a.load::<u64>(at).unwrap()
        });
        file.punch(0..2 * PAGE).unwrap();
        // The block may go to another file immediately.
        let other = memory.create_dax_on(&device, "other.bin").unwrap();
        other.write_at(&[7; PAGE_SIZE], 0).unwrap();
        let seen = store.join().unwrap();
        assert!(seen == 2 || seen == 0, "{seen}");
        let mut bytes = [0; PAGE_SIZE];
        other.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; PAGE_SIZE], "another file's block was stored to");
        let mut word = [9; 8];
        file.read_exact_at(&mut word, 0).unwrap();
        let mut a = space.accessor().unwrap();
        assert_eq!(a.load::<u64>(at), Ok(u64::from_le_bytes(word)));
        space.validate();
    });
}

// spec: D11, D20
#[test]
fn a_store_beside_syncs_is_durable_after_the_next() {
    explore(|| {
        let memory = memory();
        let device = DaxDevice::with_power_cut(4 * PAGE).unwrap();
        let (file, space, at) = mapped(&memory, &device, 2 * PAGE);
        let mut a = space.accessor().unwrap();
        let done = Arc::new(AtomicU64::new(0));
        let store = {
            let done = done.clone();
            thread::spawn(move || {
                for value in 1..4u64 {
                    a.store(at + (value % 2) * PAGE, value).unwrap();
                    done.store(value, Ordering::SeqCst);
                }
            })
        };
        for _ in 0..2 {
            let before = done.load(Ordering::SeqCst);
            file.sync_all().unwrap();
            let image = device.durable_image();
            let words = image.chunks_exact(PAGE_SIZE).map(|page| page[0]);
            assert!(
                u64::from(words.max().unwrap()) >= before,
                "a store before a sync is lost"
            );
        }
        store.join().unwrap();
        file.sync_all().unwrap();
        assert_eq!(file.stats().dirty.0, 0);
    });
}

// spec: D9
#[test]
fn a_large_hole_that_two_spaces_read_is_parted_for_a_store() {
    explore(|| {
        let memory = memory();
        let device = DaxDevice::memory(8 * PAGE).unwrap();
        let (file, space, at) = mapped(&memory, &device, LARGE);
        let mut a = space.accessor().unwrap();
        assert_eq!(a.load::<u64>(at + 9 * PAGE), Ok(0));
        let fork = space.fork().unwrap();
        let mut b = fork.accessor().unwrap();
        let reader = thread::spawn(move || {
            let first = b.load::<u64>(at).unwrap();
            let second = b.load::<u64>(at).unwrap();
            assert!(second >= first, "{second} after {first}");
            b
        });
        a.store(at, 5u64).unwrap();
        let mut b = reader.join().unwrap();
        assert_eq!(b.load::<u64>(at), Ok(5));
        assert_eq!((file.stats().downgrades, file.stats().present.0), (1, 1));
        space.validate();
        fork.validate();
    });
}

// spec: D8, D9
#[test]
fn a_large_block_and_small_ones_do_not_meet() {
    explore(|| {
        let memory = memory();
        let device = DaxDevice::memory(4 * LARGE).unwrap();
        let options = memory.dax_options().hole_writes(HoleWrites::Large);
        let file = options.create_on(&device, "data.bin").unwrap();
        file.set_len(LARGE).unwrap();
        let space = memory.create_space().unwrap();
        let at = space.map(Map::dax(&file).shared().writable()).unwrap();
        let mut a = space.accessor().unwrap();
        let store = thread::spawn(move || a.store(at + 3 * PAGE, 3u64).unwrap());
        file.write_at(&[4; 8], 4 * PAGE).unwrap();
        store.join().unwrap();
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 3 * PAGE).unwrap();
        assert_eq!(bytes, 3u64.to_le_bytes());
        file.read_exact_at(&mut bytes, 4 * PAGE).unwrap();
        assert_eq!(bytes, [4; 8]);
        let pages = file.stats().present.0;
        assert!(pages == 2 || pages == 512, "{pages}");
        assert_eq!(device.free_pages().0, 4 * 512 - pages);
    });
}

/// Explores schedules in which one thread runs for long while others are stopped in the middle of
/// an operation. A flush of whole pages between two steps of a store needs that, and random
/// schedules hardly ever do it.
fn explore_in_long_runs(test: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18; // room for whole pages
    let schedules = shuttle::scheduler::PctScheduler::new(3, SCHEDULES);
    shuttle::Runner::new(schedules, config).run(test);
}

/// Stores `value` to all bytes of three pages by one access, with one fault for all of them.
fn long_store(a: &mut Accessor, at: VirtAddr, value: u8) {
    a.write(at, &[value; 3 * PAGE_SIZE]).unwrap();
}

// spec: D11
#[test]
fn a_long_store_beside_syncs_is_durable_after_the_next() {
    explore_in_long_runs(|| {
        let memory = memory();
        let device = DaxDevice::with_power_cut(4 * PAGE).unwrap();
        let (file, space, at) = mapped(&memory, &device, 4 * PAGE);
        let mut a = space.accessor().unwrap();
        // The blocks are clean: the fault of a long store takes the following ones with it.
        long_store(&mut a, at, 1);
        file.sync_all().unwrap();
        let done = Arc::new(AtomicU64::new(1));
        let store = {
            let done = done.clone();
            thread::spawn(move || {
                for value in 2..4u8 {
                    long_store(&mut a, at, value);
                    done.store(value.into(), Ordering::SeqCst);
                }
            })
        };
        for _ in 0..2 {
            let before = done.load(Ordering::SeqCst);
            file.sync_all().unwrap();
            let image = device.durable_image();
            let oldest = image.iter().copied().filter(|byte| *byte > 0).min();
            assert!(
                u64::from(oldest.unwrap()) >= before,
                "of a store before a sync something is lost"
            );
        }
        store.join().unwrap();
        file.sync_all().unwrap();
        let mut bytes = [0; 3 * PAGE_SIZE];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let mut image: Vec<u8> = device.durable_image();
        image.retain(|byte| *byte > 0);
        image.sort_unstable();
        bytes.sort_unstable();
        assert!(image == bytes, "something of the last stores is lost");
        assert_eq!(file.stats().dirty.0, 0);
        space.validate();
    });
}

// spec: D16
#[test]
fn a_long_store_beside_a_cut_never_reaches_a_freed_block() {
    for shorter in [false, true] {
        explore_in_long_runs(move || {
            let memory = memory();
            let device = DaxDevice::memory(4 * PAGE).unwrap();
            let (file, space, at) = mapped(&memory, &device, 4 * PAGE);
            let mut a = space.accessor().unwrap();
            long_store(&mut a, at, 1);
            file.sync_all().unwrap();
            let store = thread::spawn(move || {
                let _new_end_or_full_device = a.write(at, &[9; 3 * PAGE_SIZE]);
            });
            match shorter {
                true => file.set_len(PAGE).unwrap(),
                false => file.punch(PAGE..3 * PAGE).unwrap(),
            }
            // The blocks may go to another file immediately.
            let other = memory.create_dax_on(&device, "other.bin").unwrap();
            // The device may be full behind the first page.
            let _full = other.write_at(&[7; 2 * PAGE_SIZE], 0);
            let written = other.len() as usize;
            let mut bytes = [7; 2 * PAGE_SIZE];
            store.join().unwrap();
            other.read_exact_at(&mut bytes[..written], 0).unwrap();
            assert!(
                bytes.iter().all(|byte| *byte == 7),
                "another file's block was stored to"
            );
            // The file has the old bytes, the stored ones, or zeros, and its mapping has the same.
            let mut bytes = vec![0; file.len() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes.iter().all(|byte| [0, 1, 9].contains(byte)));
            let mut seen = vec![0; bytes.len()];
            space.accessor().unwrap().read(at, &mut seen).unwrap();
            assert!(seen == bytes);
            file.sync_all().unwrap();
            assert_eq!(file.stats().dirty.0, 0);
            space.validate();
        });
    }
}

// spec: D11
#[test]
fn a_sync_that_fails_beside_stores_loses_nothing() {
    explore(|| {
        let memory = memory();
        let device = DaxDevice::with_forgetful_host(4 * PAGE).unwrap();
        let (file, space, at) = mapped(&memory, &device, 3 * PAGE);
        let mut a = space.accessor().unwrap();
        (0..3).for_each(|page| a.store(at + page * PAGE, 1u8).unwrap());
        file.sync_all().unwrap();
        a.store(at, 2u8).unwrap();
        a.store(at + 2 * PAGE, 5u8).unwrap();
        device.fail_syncs(1);
        let store = thread::spawn(move || {
            a.store(at + PAGE, 3u8).unwrap();
            a.store(at, 4u8).unwrap();
        });
        // The sync covers only one page; the host may forget others.
        let failed = file.sync_range(..PAGE).unwrap_err().to_string();
        assert!(failed.ends_with("a write was lost"), "{failed}");
        assert!(file.stats().dirty.0 > 0, "what was not written is dirty");
        file.sync_all().unwrap();
        store.join().unwrap();
        file.sync_all().unwrap();
        let image = device.medium_image();
        let mut stored: Vec<u8> = image.chunks_exact(PAGE_SIZE).map(|page| page[0]).collect();
        stored.sort_unstable();
        assert_eq!(stored, [0, 3, 4, 5]);
        assert_eq!(file.stats().dirty.0, 0);
        space.validate();
    });
}
