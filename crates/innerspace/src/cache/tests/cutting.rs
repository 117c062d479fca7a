//! Truncation and punching.

use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::cache::core::validate::validate;
use crate::cache::map::fault::fault_block;
use crate::cache::{FaultKind, FileError, Reading, Wait};
use crate::reclaim::Owner;
use crate::store::faulty::{AfterTear, Failure, Fault, OperationKind, Release, Rule};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{failpoint, thread};

// spec: P16
#[test]
fn what_is_cut_off_never_comes_back() {
    for size in SIZES {
        let cache = memory(4_096);
        let store = patterned(3 * size);
        let file = open(&cache, &store, &options(size));
        file.prefetch(..).unwrap();
        file.write_at(&[0xAA; 20], 2 * size).unwrap();
        let view = file.view(size + 10..size + 30).unwrap();
        file.set_len(size + 20).unwrap();
        assert_eq!(file.len(), size + 20);
        assert_eq!(
            *view,
            *pattern(size + 10..size + 30),
            "views keep what they show"
        );
        assert!(matches!(
            file.view(size + 10..size + 21),
            Err(FileError::PastEnd { .. })
        ));
        file.set_len(3 * size).unwrap();
        let mut bytes = Vec::new();
        file.scan(size.., |piece| bytes.extend_from_slice(piece))
            .unwrap();
        assert_eq!(bytes[..20], *pattern(size..size + 20));
        assert!(
            bytes[20..].iter().all(|byte| *byte == 0),
            "zeros where the file had ended"
        );
        validate(core(&file));
        drop((view, file));
        assert!(
            store.inner().to_vec()[size as usize + 20..]
                .iter()
                .all(|byte| *byte == 0)
        );
        assert_empty(&cache);
    }
}

// spec: P16
#[test]
fn a_truncation_that_fails_changes_nothing() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&vec![1; size as usize], 2 * size).unwrap();
        store.add(Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::SetLen]));
        let error = file.set_len(100).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("data.bin: resize to 100 bytes failed"),
            "{error}"
        );
        assert_eq!(file.len(), 4 * size);
        assert_eq!(file.view(2 * size..2 * size + 8).unwrap()[..], [1; 8]);
        file.sync_all().unwrap();
        assert_eq!(
            store.inner().to_vec()[2 * size as usize..(3 * size as usize)],
            vec![1; size as usize]
        );
    }
}

// spec: P23
#[test]
fn a_punched_range_reads_as_zeros_in_cache_and_store() {
    for size in SIZES {
        let cache = memory(4_096);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        file.view(size..size + 8).unwrap();
        let view = file.view(2 * size..2 * size + 8).unwrap();
        let (start, end) = (size / 2, 3 * size + 10);
        file.punch(start..end).unwrap();
        assert_eq!(*view, *pattern(2 * size..2 * size + 8));
        let mut expected = pattern(0..4 * size);
        expected[start as usize..end as usize].fill(0);
        let mut bytes = Vec::new();
        file.scan(.., |piece| bytes.extend_from_slice(piece))
            .unwrap();
        assert!(bytes == expected);
        // The whole blocks are holes again, and need no frames.
        file.sync_all().unwrap();
        assert!(store.inner().to_vec() == expected);
        file.punch(10..10).unwrap();
        file.punch(100 * size..200 * size).unwrap();
        assert_eq!(file.len(), 4 * size);
        drop((view, file));
        assert_empty(&cache);
    }
}

// spec: P16, P15
#[test]
fn a_read_that_began_before_a_punch_leaves_no_old_bytes() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
        let reader = {
            let file = file.clone();
            thread::spawn(move || file.view(0..size).map(|view| view.to_vec()))
        };
        store.wait_hanging(1);
        let puncher = {
            let file = file.clone();
            thread::spawn(move || file.punch(0..size))
        };
        store.release(Release::Proceed);
        let seen = reader.join().unwrap().unwrap();
        assert!(seen == pattern(0..size) || seen == vec![0; size as usize]);
        puncher.join().unwrap().unwrap();
        assert_eq!(
            *file.view(0..size).unwrap(),
            vec![0; size as usize],
            "after the punch"
        );
    }
}

// spec: P28
#[test]
fn a_cut_through_a_viewed_block_needs_no_memory() {
    let size = 2 << 20;
    for is_dirty in [false, true] {
        // There is room for two blocks, but then for none that one could move to.
        let cache = memory(3 * 512 - 64);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        if is_dirty {
            file.write_at(&[7; 10], size).unwrap();
        }
        let views = [0, size].map(|start| file.view(start..start + 300).unwrap());
        let mut want = contents(&file);
        file.set_len(size + 100).unwrap();
        assert_eq!(views[1][..], want[size as usize..size as usize + 300]);
        assert_eq!(file.len(), size + 100);
        if is_dirty {
            let error = file.set_len(2 * size).unwrap_err();
            assert!(matches!(error, FileError::Limit(_)), "{error}");
        }
        drop(views);
        file.set_len(2 * size).unwrap();
        want[size as usize + 100..].fill(0);
        assert!(contents(&file) == want);
        drop(file);
        assert!(store.inner().to_vec() == want);
        assert_empty(&cache);
    }
}

// spec: P28
#[test]
fn a_cut_takes_the_memory_that_it_needs_from_what_it_frees() {
    let size = 2 << 20;
    // There is room for four blocks. The store takes none of them.
    let cache = memory(5 * 512 - 64);
    let store = patterned(4 * size);
    let file = open(&cache, &store, &options(size));
    (1..4).for_each(|block| file.write_at(&[7; 10], block * size).unwrap());
    let views = [0, size].map(|start| file.view(start..start + 300).unwrap());
    let mut want = contents(&file);
    let refuse = Rule::new(Fault::Fail(Failure::NoSpace)).on(&[OperationKind::Write]);
    store.add(refuse.forever());
    file.set_len(size + 100).unwrap();
    // The block has moved, so nothing is left to do before the file grows.
    file.set_len(2 * size).unwrap();
    want.truncate(2 * size as usize);
    want[size as usize + 100..].fill(0);
    assert!(contents(&file) == want);
    drop(views);
    store.heal();
}

// spec: P28
#[test]
fn a_punch_takes_the_memory_that_it_needs_from_what_it_frees() {
    let size = 64 << 10;
    let cache = memory(4 * 16 + 8);
    let store = patterned(8 * size);
    let file = open(&cache, &store, &options(size));
    let refuse = Rule::new(Fault::Fail(Failure::NoSpace)).on(&[OperationKind::Write]);
    store.add(refuse.forever());
    // As many blocks as may be dirty are written, and the rest is viewed.
    let dirty = (2..8).find(|block| file.write_at(&[7; 10], block * size).is_err());
    assert!(dirty.is_some_and(|block| block > 3), "{dirty:?}");
    let views: Vec<_> = (0..2)
        .map_while(|block| file.view(block * size..block * size + 1).ok())
        .collect();
    file.punch(2 * size..7 * size + 10).unwrap();
    let bytes = contents(&file);
    assert!(
        bytes[2 * size as usize..7 * size as usize + 10]
            .iter()
            .all(|byte| *byte == 0)
    );
    drop(views);
    store.heal();
}

#[test]
fn a_punch_of_unwritten_data_at_the_end_keeps_the_length() {
    for block_size in SIZES {
        let cache = memory(2048);
        let store = patterned(5000);
        let file = open(&cache, &store, &options(block_size));
        file.append(&pattern(5000..5000 + 2 * block_size)).unwrap();
        let len = file.len();
        file.punch(5000..).unwrap();
        assert_eq!(file.len(), len);
        file.sync_all().unwrap();
        let mut want = pattern(0..5000);
        want.resize(len as usize, 0);
        assert!(
            store.inner().to_vec() == want,
            "the length went with the data"
        );
    }
}

// spec: P16
#[test]
fn a_punch_takes_away_what_a_write_that_failed_has_left_in_the_store() {
    for block_size in SIZES {
        let cache = memory(2048);
        let store = patterned(5000);
        let file = open(&cache, &store, &options(block_size));
        let (start, len) = (4 * block_size, 6 * block_size);
        file.write_at(&pattern(start..len), start).unwrap();
        let torn = Fault::Tear {
            sectors: 1,
            then: AfterTear::Fail,
        };
        let torn = Rule::new(torn).on(&[OperationKind::Write]).forever();
        store.add(torn);
        file.sync_all().unwrap_err();
        store.heal();
        let found = store.inner().to_vec()[start as usize..].to_vec();
        assert_eq!(found[..100], pattern(start..start + 100), "it was torn");
        file.punch(start..start + block_size).unwrap();
        // The store now has the bytes after the block.
        file.sync_all().unwrap();
        let view = file.view(start..start + 100).unwrap();
        assert_eq!(view[..], [0; 100], "what was punched is back");
        let after = store.inner().to_vec()[start as usize..].to_vec();
        assert!(after[..block_size as usize].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_refused_cut_loses_nothing_beside_it() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        let twos = vec![2; 3 * size as usize];
        file.write_at(&twos, 0).unwrap();
        // A mapping may store to the first block as well.
        let fault = fault_block(
            core(&file),
            0,
            FaultKind::Write,
            &(0..1),
            Reading::Normal,
            Wait::Yes,
        );
        drop(fault.unwrap());
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::SetLen]));
        let cutter = {
            let file = file.clone();
            thread::spawn(move || file.set_len(100))
        };
        store.wait_hanging(1);
        core(&file).flush(&EVERYTHING);
        let syncer = {
            let (file, store, twos) = (file.clone(), store.clone(), twos.clone());
            thread::spawn(move || {
                let refusing = store.clone();
                let there = failpoint::on("PutOff", move || {
                    refusing.release(Release::Fail(Failure::Io));
                });
                file.sync_all().unwrap();
                assert!(
                    store.inner().to_vec()[..twos.len()] == twos,
                    "a sync that left something out"
                );
                drop(there);
            })
        };
        let synced = syncer.join();
        // A sync that did not wait for the cut would end here.
        store.release(Release::Fail(Failure::Io));
        cutter.join().unwrap().unwrap_err();
        synced.unwrap();
        assert_eq!(core(&file).dirty_blocks(), 0);
        file.evict(..).unwrap();
        let mut expected = pattern(0..4 * size);
        expected[..twos.len()].copy_from_slice(&twos);
        assert!(contents(&file) == expected);
        validate(core(&file));
    }
}

// spec: P16
#[test]
fn a_write_back_beside_a_cut_brings_nothing_back() {
    for (size, inside) in SIZES.into_iter().flat_map(|size| [(size, 0), (size, 100)]) {
        let new = 2 * size + inside;
        let cache = memory_of(64, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&vec![2; size as usize], 2 * size).unwrap();
        let cutter = Rc::new(Cell::new(None));
        // The writeback has read its length. The store is cut now, and the cache as soon as the
        // block is unlocked.
        let there = failpoint::on("WriteBeginning", {
            let (file, store, cutter) = (file.clone(), store.clone(), cutter.clone());
            move || {
                cutter.set(Some(thread::spawn(move || file.set_len(new))));
                while store.inner().len().unwrap() > new {
                    thread::yield_now();
                }
            }
        });
        file.sync_all().unwrap();
        drop(there);
        cutter.take().expect("begun above").join().unwrap().unwrap();
        assert_eq!(store.inner().len().unwrap(), new, "longer again");
        file.set_len(3 * size).unwrap();
        file.evict(..).unwrap();
        let mut expected = pattern(0..2 * size);
        expected.resize(new as usize, 2);
        expected.resize(3 * size as usize, 0);
        assert!(contents(&file) == expected, "what was cut off is back");
        validate(core(&file));
    }
}

// spec: P16
#[test]
fn a_cut_waits_for_writes_that_had_begun() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        file.append(&vec![2; size as usize]).unwrap();
        let flush = hanging_flush(core(&file), &store);
        let passed = Arc::new(AtomicBool::new(false));
        let cutter = {
            let (file, passed) = (file.clone(), passed.clone());
            thread::spawn(move || {
                let there = failpoint::on("Cutting", {
                    let core = core(&file).clone();
                    move || {
                        passed.store(true, Ordering::Release);
                        assert!(!core.is_writing(), "it would come back behind the cut");
                    }
                });
                file.set_len(size).unwrap();
                drop(there);
            })
        };
        // This gives a wrong cut, one that does not wait, time to become visible.
        for _ in 0..1000 {
            if passed.load(Ordering::Acquire) {
                break;
            }
            thread::yield_now();
        }
        store.release(Release::Proceed);
        flush.join().unwrap();
        cutter.join().unwrap();
        assert_eq!(store.inner().len().unwrap(), size);
        assert!(contents(&file) == pattern(0..size));
        validate(core(&file));
    }
}

// spec: P7
#[test]
fn a_cut_takes_along_what_the_index_remembers_behind_it() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        file.prefetch(..).unwrap();
        file.evict(size..).unwrap();
        assert_eq!(file.stats().shadows, 3);
        file.set_len(3 * size).unwrap();
        assert_eq!(file.stats().shadows, 2);
        file.set_len(size).unwrap();
        assert_eq!((file.stats().shadows, file.stats().filled), (0, 4));
        validate(core(&file));
        drop(file);
        assert_empty(&cache);
    }
}

// spec: P23
#[test]
fn what_was_punched_costs_no_frame_when_it_is_read() {
    let cache = memory(2048);
    let size = 64 << 10;
    let store = patterned(4 * size);
    let file = open(&cache, &store, &options(4096));
    // The view makes the file learn where the store's data is.
    file.view(0..8).unwrap();
    file.punch(size..3 * size).unwrap();
    file.evict(..).unwrap();
    let mut bytes = vec![1; 2 * size as usize];
    file.read_exact_at(&mut bytes, size).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert_eq!(file.stats().cached.0, 0, "{}", file.stats());
}

#[test]
fn what_a_punch_that_failed_half_way_may_have_taken_is_written_again() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&[7; 100], size).unwrap();
        core(&file).flush(&EVERYTHING);
        // No sync has covered the second block. The third is durable, and the last unwritten.
        file.view(2 * size..2 * size + 1).unwrap();
        file.write_at(&[9; 100], 3 * size).unwrap();
        store.inner().punch(size, size).unwrap();
        store.inner().punch(2 * size, size).unwrap();
        store.add(fail(OperationKind::Punch));
        file.punch(size..4 * size).unwrap_err();
        assert_eq!(core(&file).dirty_blocks(), 2);
        validate(core(&file));
        file.sync_all().unwrap();
        for _ in 0..2 {
            let bytes =
                [1, 2, 3].map(|block| file.view(block * size..block * size + 1).unwrap()[0]);
            assert_eq!(bytes, [7, 0, 9]);
            file.evict(..).unwrap();
        }
        let rest = file.view(size + 100..size + 200).unwrap();
        assert_eq!(rest[..], pattern(size + 100..size + 200));
    }
}

// spec: P23
#[test]
fn what_was_cut_off_costs_no_frame_when_the_file_is_long_again() {
    let cache = memory(2048);
    let size = 64 << 10;
    let file = open(&cache, &patterned(4 * size), &options(4096));
    // The view makes the file learn where the store's data is.
    file.view(0..8).unwrap();
    file.set_len(size).unwrap();
    // A write extends the file, because a change of the length would also make it forget where data
    // is.
    file.write_at(&[1], 4 * size - 1).unwrap();
    file.sync_all().unwrap();
    file.evict(..).unwrap();
    let mut bytes = vec![1; 2 * size as usize];
    file.read_exact_at(&mut bytes, size).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert_eq!(file.stats().cached.0, 0, "{}", file.stats());
}
