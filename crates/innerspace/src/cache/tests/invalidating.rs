//! Discarding unwritten data, and invalidating the cache.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use super::*;
use crate::cache::FileError;
use crate::cache::core::validate::validate;
use crate::store::Version;
use crate::store::faulty::{Fault, OperationKind, Release, Rule};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{failpoint, thread};

// spec: P16, P30
#[test]
fn discard_gives_unwritten_data_up() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&[1; 100], 0).unwrap();
        file.write_at(&[2; 100], 50_000).unwrap();
        let view = file.view(0..100).unwrap();
        file.discard().unwrap();
        assert_eq!((file.len(), core(&file).dirty_blocks()), ((2 * size), 0));
        assert_eq!(*view, [1; 100]);
        assert_eq!(*file.view(0..100).unwrap(), *pattern(0..100));
        drop((view, file));
        assert_eq!(store.inner().to_vec(), pattern(0..2 * size));
        assert_empty(&cache);
    }
}

// spec: P30
#[test]
fn a_discard_to_which_the_store_says_no_length_gives_nothing_up() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(size);
        let file = open(&cache, &store, &options(size));
        file.append(&pattern(size..3 * size)).unwrap();
        store.add(fail(OperationKind::Len));
        file.discard().unwrap_err();
        assert!(contents(&file) == pattern(0..3 * size));
        file.discard().unwrap();
        assert!(contents(&file) == pattern(0..size));
    }
}

// spec: P27
#[test]
fn invalidate_shows_what_others_did_and_keeps_what_is_unwritten() {
    let cache = memory(64);
    let store = patterned(12_288);
    let file = open(&cache, &store, &options(4096));
    file.prefetch(..).unwrap();
    file.write_at(&[7; 4], 4096).unwrap();
    store.inner().change_externally(&[9; 12_288], 0).unwrap();
    store.inner().change_externally(b"more", 12_288).unwrap();
    assert_eq!(
        file.view(0..4).unwrap()[..],
        *pattern(0..4),
        "cached until told otherwise"
    );
    let dropped = file.invalidate(..).unwrap();
    assert_eq!(dropped.0, 2);
    assert_eq!(file.len(), 12_292);
    assert_eq!(file.view(0..4).unwrap()[..], [9; 4]);
    assert_eq!(file.view(4096..4104).unwrap()[..4], [7; 4]);
    assert_eq!(file.view(12_288..12_292).unwrap()[..], *b"more");
    // The store is now shorter as well, but the file keeps the unwritten data.
    store.inner().set_len_externally(100).unwrap();
    file.invalidate(..).unwrap();
    assert_eq!(file.len(), 8192);
    assert_eq!(file.view(4096..4100).unwrap()[..], [7; 4]);
}

// spec: P27
#[test]
fn invalidate_of_a_part_shows_what_others_put_behind_the_end() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size + 100);
        let file = open(&cache, &store, &options(size));
        file.prefetch(..).unwrap();
        let (old, new) = (file.len(), file.len() + 50);
        let inner = store.inner();
        inner.change_externally(&pattern(old..new), old).unwrap();
        file.invalidate(0..1).unwrap();
        assert!(contents(&file) == pattern(0..new));
        // Unwritten data at the end stays.
        file.write_at(&[7; 10], new - 10).unwrap();
        inner.change_externally(&[9; 50], new).unwrap();
        file.invalidate(0..1).unwrap();
        let bytes = contents(&file);
        assert!(bytes[..new as usize - 10] == pattern(0..new - 10));
        assert!(bytes[new as usize - 10..new as usize] == [7; 10]);
        assert_eq!(bytes.len() as u64, new + 50);
    }
}

// spec: P16
#[test]
fn a_sync_beside_a_discard_does_not_write_what_is_given_up() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        file.append(&vec![2; size as usize]).unwrap();
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
        let syncer = Rc::new(Cell::new(None));
        // Nothing is being written at this point. The discard looks for dirty blocks next.
        let there = failpoint::on("Cutting", {
            let (file, store, syncer) = (file.clone(), store.clone(), syncer.clone());
            move || {
                let waits = Arc::new(AtomicBool::new(false));
                let put_off = waits.clone();
                syncer.set(Some(thread::spawn(move || {
                    let there =
                        failpoint::on("PutOff", move || put_off.store(true, Ordering::Release));
                    file.sync_all().unwrap();
                    drop(there);
                })));
                while !waits.load(Ordering::Acquire) && store.hanging() == 0 {
                    thread::yield_now();
                }
                let writes = store.hanging() > 0;
                store.release(Release::Proceed);
                assert!(!writes, "it is being given up");
            }
        });
        file.discard().unwrap();
        drop(there);
        syncer.take().expect("begun above").join().unwrap();
        assert_eq!(file.len(), 4 * size);
        assert!(store.inner().to_vec() == pattern(0..4 * size));
        assert!(contents(&file) == pattern(0..4 * size));
        validate(core(&file));
    }
}

// spec: P27
#[test]
fn invalidate_knows_what_the_store_got_meanwhile() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(size);
        let file = open(&cache, &store, &options(size));
        file.append(&vec![2; size as usize]).unwrap();
        let there = failpoint::on("LengthRead", {
            let file = file.clone();
            move || {
                let syncer = thread::spawn(move || file.sync_all());
                syncer.join().unwrap().unwrap();
            }
        });
        file.invalidate(0..1).unwrap();
        drop(there);
        file.evict(..).unwrap();
        let mut expected = pattern(0..size);
        expected.resize(2 * size as usize, 2);
        assert!(contents(&file) == expected);
        validate(core(&file));
    }
}

// spec: P27
#[test]
fn invalidate_keeps_what_is_being_written() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(size);
        let file = open(&cache, &store, &options(size));
        file.append(&vec![2; size as usize]).unwrap();
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
        let syncer = {
            let file = file.clone();
            thread::spawn(move || file.sync_all())
        };
        store.wait_hanging(1);
        let invalidator = {
            let file = file.clone();
            thread::spawn(move || file.invalidate(0..1))
        };
        // The invalidation need not wait. If it cut the file, it would have to wait for the write.
        while !invalidator.is_finished() && file.len() == 2 * size {
            thread::yield_now();
        }
        store.release(Release::Proceed);
        invalidator.join().unwrap().unwrap();
        syncer.join().unwrap().unwrap();
        let mut expected = pattern(0..size);
        expected.resize(2 * size as usize, 2);
        assert!(contents(&file) == expected);
        validate(core(&file));
    }
}

// spec: P27
#[test]
fn invalidate_shows_what_others_put_into_a_hole() {
    let cache = memory(2048);
    let size = 64 << 10;
    let store = patterned(size);
    store.inner().set_len(8 * size).unwrap();
    let file = open(&cache, &store, &options(4096));
    // The view makes the file learn where the hole is.
    assert_eq!(file.view(2 * size..2 * size + 8).unwrap()[..], [0; 8]);
    crate::store::write_all_at(store.inner(), &pattern(0..100), 5 * size).unwrap();
    file.invalidate(..).unwrap();
    let view = file.view(5 * size..5 * size + 100).unwrap();
    assert_eq!(view[..], pattern(0..100));
}

// spec: P27
#[test]
fn a_file_that_others_change_in_place_is_read_no_more_until_that_is_accepted() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(8 * size);
        let file = open(&cache, &store, &options(size));
        let other = file.clone();
        // No two blocks are neighbours, so that nothing is read ahead.
        let seen = |block: u64| {
            let view = file.view(block * size..block * size + 4).unwrap();
            assert_eq!(view[..], *pattern(block * size..block * size + 4));
        };
        seen(6);
        store.inner().change_externally(&[9; 10], 4 * size).unwrap();
        // The store is asked for its version once in a tick.
        seen(2);
        cache.tick();
        let changed = |result: Result<(), FileError>| match result {
            Err(error @ FileError::ChangedInPlace { was, now, .. }) => {
                assert_ne!(was, now);
                assert!(
                    error
                        .to_string()
                        .starts_with("data.bin: another program has changed it")
                );
            }
            result => panic!("{result:?}"),
        };
        changed(file.view(4 * size..4 * size + 4).map(drop));
        changed(file.read_exact_at(&mut [0; 4], 0));
        seen(2);
        let mut bytes = 0;
        changed(file.scan_uncached(2 * size.., |piece| bytes += piece.len()));
        changed(file.write_at(&[1; 4], 4 * size));
        assert_eq!(bytes as u64, size, "what is cached is the old contents");
        // A write of a whole block needs no old bytes. The change is reported to each handle once.
        file.write_at(&vec![3; size as usize], 7 * size).unwrap();
        for handle in [&file, &other] {
            changed(handle.sync_all());
            handle.sync_all().unwrap();
        }
        file.invalidate(..).unwrap();
        assert_eq!(file.view(4 * size..4 * size + 4).unwrap()[..], [9; 4]);
        assert_eq!(file.view(7 * size..7 * size + 4).unwrap()[..], [3; 4]);
        cache.tick();
        file.read_exact_at(&mut [0; 4], 0).unwrap();
        validate(core(&file));
    }
}

// spec: P27
#[test]
fn a_sync_sees_a_change_in_place_and_a_scan_asks_once_a_tick() {
    let cache = memory(64);
    let store = Arc::new(Asked::default());
    store.bytes.set_len(40 * 4096).unwrap();
    let file = open(&cache, &store, &options(4096));
    file.scan(.., |_| ()).unwrap();
    assert_eq!(
        store.versions.load(Ordering::Relaxed),
        1,
        "when it was opened"
    );
    file.invalidate(..).unwrap();
    cache.tick();
    let before = store.versions.load(Ordering::Relaxed);
    file.scan(.., |_| ()).unwrap();
    assert_eq!(store.versions.load(Ordering::Relaxed), before + 1);
    store.bytes.change_externally(&[9; 10], 0).unwrap();
    let changed = file.sync_all();
    assert!(
        matches!(changed, Err(FileError::ChangedInPlace { .. })),
        "{changed:?}"
    );
}

#[test]
fn a_store_that_stops_reporting_its_version_is_changed_once() {
    let cache = memory(64);
    let store = Arc::new(Asked::default());
    store.bytes.set_len(4 * 4096).unwrap();
    let file = open(&cache, &store, &options(4096));
    let is_changed =
        |result: Result<(), FileError>| matches!(result, Err(FileError::ChangedInPlace { .. }));
    store.is_silent.store(true, Ordering::Relaxed);
    assert!(is_changed(file.sync_all()));
    file.sync_all().unwrap();
    assert!(is_changed(file.read_exact_at(&mut [0; 4], 0)));
    // A version that the store reports later is named by the error.
    store.bytes.change_externally(&[9; 10], 0).unwrap();
    store.is_silent.store(false, Ordering::Relaxed);
    file.sync_all().unwrap();
    let newer = store.bytes.version().unwrap().unwrap();
    match file.read_exact_at(&mut [0; 4], 0) {
        Err(FileError::ChangedInPlace { was, now, .. }) => assert!(was != now && now == newer),
        result => panic!("{result:?}"),
    }
    file.invalidate(..).unwrap();
    file.read_exact_at(&mut [0; 4], 0).unwrap();
    file.sync_all().unwrap();
}

/// A store that counts how many times it is asked for its version, and may stop reporting it.
#[derive(Default)]
struct Asked {
    bytes: MemoryStore,
    versions: AtomicUsize,
    is_silent: AtomicBool,
}

impl Store for Asked {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.bytes.read_at(buf, offset)
    }

    fn version(&self) -> io::Result<Option<Version>> {
        self.versions.fetch_add(1, Ordering::Relaxed);
        match self.is_silent.load(Ordering::Relaxed) {
            true => Ok(None),
            false => self.bytes.version(),
        }
    }

    fn writable(&self) -> bool {
        true
    }
}
