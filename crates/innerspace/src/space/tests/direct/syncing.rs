//! Sync, cuts and reclaim, concurrent with stores through mappings.

use super::*;

// spec: D11
#[test]
fn a_store_after_a_sync_faults_again_and_is_dirty_again() {
    let pool = pool(512);
    let device = DaxDevice::with_power_cut(64 * PAGE).unwrap();
    let file = hole(&pool, &device, 16 * PAGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    let durable = |value: u64| {
        let image = device.durable_image();
        let words = image.chunks_exact(8);
        let mut words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        words.any(|word| word == value)
    };
    for value in [0x1111_u64, 0x2222, 0x3333] {
        a.store(at + 3 * PAGE, value).unwrap();
        assert_eq!((file.stats().dirty.0, space.stats().pages.dirty.0), (1, 1));
        assert!(!durable(value), "a store is not durable before a sync");
        space.sync(at, 16 * PAGE).unwrap();
        assert_eq!((file.stats().dirty.0, space.stats().pages.dirty.0), (0, 0));
        assert!(durable(value), "what was synced");
    }
}

// spec: D11
#[test]
fn a_store_beside_a_sync_is_synced_or_dirty() {
    let pool = pool(512);
    let device = DaxDevice::with_power_cut(16 * PAGE).unwrap();
    let file = hole(&pool, &device, 4 * PAGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    const STORES: u64 = 3_000;
    let done = crate::sync::atomic::AtomicU64::new(0);
    let done = &done;
    std::thread::scope(|scope| {
        let stores = scope.spawn(move || {
            let mut a = space.accessor().unwrap();
            for value in 1..=STORES {
                a.store(at + (value % 4) * PAGE, value).unwrap();
                done.store(value, crate::sync::atomic::Ordering::Release);
            }
        });
        while !stores.is_finished() {
            let before = done.load(crate::sync::atomic::Ordering::Acquire);
            file.sync_all().unwrap();
            let image = device.durable_image();
            let words = image.chunks_exact(8);
            let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            assert!(
                words.max().unwrap() >= before,
                "a store before the sync is lost"
            );
        }
    });
    file.sync_all().unwrap();
    assert_eq!(file.stats().dirty.0, 0);
}

// spec: D16
#[test]
fn a_block_that_was_punched_out_is_never_written_again() {
    let pool = pool(512);
    let device = device(16 * PAGE);
    let (file, other) = (
        hole(&pool, &device, 4 * PAGE),
        hole(&pool, &device, 16 * PAGE),
    );
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let stop = crate::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (space, stop) = (&space, &stop);
            scope.spawn(move || {
                let mut a = space.accessor().unwrap();
                while stop.load(crate::sync::atomic::Ordering::Relaxed) == 0 {
                    for page in 0..4 {
                        a.store(at + page * PAGE + 8 * thread, u64::MAX).unwrap();
                    }
                }
            });
        }
        for round in 0..300_u64 {
            file.punch(0..4 * PAGE).unwrap();
            // These blocks were the first file's a moment ago.
            let bytes = [round as u8 | 1; PAGE_SIZE];
            for page in 0..12 {
                other.write_at(&bytes, page * PAGE).unwrap();
            }
            let mut back = [0; PAGE_SIZE];
            for page in 0..12 {
                other.read_exact_at(&mut back, page * PAGE).unwrap();
                assert!(
                    back == bytes,
                    "round {round}, page {page}: another file's store"
                );
            }
            other.punch(0..16 * PAGE).unwrap();
        }
        stop.store(1, crate::sync::atomic::Ordering::Relaxed);
    });
    drop((space, file, other));
    assert_eq!(device.free_pages().0, 16);
    assert_all_given_back(&pool);
}

// spec: D15
#[test]
fn a_full_memory_takes_no_mapped_entry_away() {
    let pool = pool(96);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, 16 * PAGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let anonymous = space.map(Map::anonymous(1024 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    for page in 0..16 {
        a.store(at + page * PAGE, page).unwrap();
    }
    let full = (0..1024).find_map(|page| a.store(anonymous + page * PAGE, 1_u64).err());
    assert_eq!(
        full.expect("96 frames are not enough").kind(),
        FaultKind::Limit
    );
    let faults = file.stats().faults;
    for page in 0..16 {
        assert_eq!(a.load::<u64>(at + page * PAGE), Ok(page));
    }
    assert_eq!((file.stats().faults, file.stats().dirty.0), (faults, 16));
}

// spec: D11
#[test]
fn a_long_store_after_a_sync_takes_one_fault_for_all_its_pages() {
    let pool = pool(256);
    let device = device(64 * PAGE);
    let file = hole(&pool, &device, 64 * PAGE);
    let space = space(&pool);
    let at = space.map(shared(&file)).unwrap();
    let mut a = space.accessor().unwrap();
    let mut bytes: Vec<u8> = (0..40 * PAGE).map(|i| (i / 7) as u8).collect();
    a.write(at + 100, &bytes).unwrap();
    for round in 1..4u8 {
        file.sync_all().unwrap();
        assert_eq!(file.stats().dirty.0, 0);
        let before = file.stats().faults;
        bytes.iter_mut().for_each(|byte| *byte ^= round);
        a.write(at + 100, &bytes).unwrap();
        assert_eq!(file.stats().faults - before, 1);
        assert_eq!(file.stats().dirty.0, 41);
        let mut found = vec![0; bytes.len()];
        file.read_exact_at(&mut found, 100).unwrap();
        assert!(found == bytes, "round {round}");
    }
    // A store to one page makes no other page dirty.
    file.sync_all().unwrap();
    a.store(at + 3 * PAGE, 5u64).unwrap();
    assert_eq!(file.stats().dirty.0, 1);
    drop(a);
    space.validate();
    drop((space, file));
    assert_all_given_back(&pool);
}
