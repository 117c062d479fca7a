//! Stores that fail: which errors the caller gets, and which data stays.

use std::io;

use super::*;
use crate::cache::core::validate::validate;
use crate::cache::dirty::flush::write_some;
use crate::cache::{FileError, StoreAction};
use crate::frame::{FlagSet, HoldState};
use crate::group::Reclaimer;
use crate::reclaim::Retired;
use crate::store::SyncWhat;
use crate::store::faulty::{AfterTear, Failure, Fault, OperationKind, Release, Rule};
use crate::sync::{Mutex, thread};
use crate::units::PageCount;

// spec: P16, P18
#[test]
fn each_handle_hears_of_a_failed_write_once_and_the_data_stays() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let first = open(&cache, &store, &options(size));
        let second = first.clone();
        first.write_at(&[1; 100], 0).unwrap();
        store.add(fail(OperationKind::Write).times(2));
        let error = first.sync_all().unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("data.bin: write of ") && text.contains(" bytes at 0 failed: "),
            "{text}"
        );
        let later = first.clone();
        assert_eq!(core(&first).dirty_blocks(), 1, "it stays dirty");
        assert_eq!(first.view(0..100).unwrap()[..], [1; 100]);
        store.heal();
        first.sync_all().unwrap();
        assert_eq!(
            store.inner().to_vec()[..100],
            [1; 100],
            "and reaches the store when it heals"
        );
        let block = core(&first).lookup(0).unwrap();
        assert!(!block.meta().flags.load().contains(FlagSet::ERROR));
        drop(block);
        assert!(matches!(
            second.sync_all(),
            Err(FileError::Store {
                action: StoreAction::Write,
                ..
            })
        ));
        second.sync_all().unwrap();
        later.sync_all().unwrap();
        validate(core(&first));
    }
}

// spec: P16
#[test]
fn a_failed_block_does_not_take_its_neighbours_along() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(5 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&vec![1; 5 * size as usize], 0).unwrap();
        store.add(
            fail(OperationKind::Write)
                .within(2 * size..3 * size)
                .forever(),
        );
        file.sync_data().unwrap_err();
        assert_eq!(core(&file).dirty_blocks(), 1);
        let stored = store.inner().to_vec();
        assert!(stored[..2 * size as usize].iter().all(|byte| *byte == 1));
        assert!(stored[3 * size as usize..].iter().all(|byte| *byte == 1));
        let stats = file.stats();
        assert_eq!((stats.written, stats.write_errors), (4, 1), "{stats}");
        store.heal();
        file.sync_data().unwrap();
    }
}

#[test]
fn a_failed_write_is_counted_once_whoever_asked_for_it() {
    let cache = memory(64);
    let store = patterned(100_000);
    let file = open(&cache, &store, &options(4096));
    store.add(fail(OperationKind::Write).forever());
    file.write_at(&[1; 100], 0).unwrap();
    // Counts the write calls. All unwritten bytes are in one block.
    let calls = || {
        let log = store.log();
        let writes = log.iter().filter(|one| one.kind == OperationKind::Write);
        writes.count() as u64
    };
    let mut before = 0;
    let mut counted = |by: &str| {
        let counted = cache.pool.totals().write_error;
        assert_eq!(counted, calls(), "{by}");
        assert!(counted > before, "{by}");
        before = counted;
    };
    let root = cache.root.id();
    cache.pool.reclaim(root, PageCount(64), Some(root));
    counted("reclaim");
    file.sync_all().unwrap_err();
    counted("a sync");
    for _ in 0..35 {
        cache.tick();
    }
    counted("the flusher");
    drop(file);
    counted("the last drop");
}

// spec: P16, P20
#[test]
fn a_failed_read_wakes_everybody_and_leaves_nothing() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let file = file.clone();
                thread::spawn(move || file.view(0..100).map(|view| view.len()))
            })
            .collect();
        store.wait_hanging(1);
        while !core(&file).requests.is_waited_on() {
            thread::yield_now();
        }
        // A reader that comes after the failure makes a call of its own, which also fails.
        store.add(fail(OperationKind::Read).forever());
        store.release(Release::Fail(Failure::Io));
        for reader in readers {
            let error = reader.join().unwrap().unwrap_err();
            assert!(
                matches!(
                    error,
                    FileError::Store {
                        action: StoreAction::Read,
                        ..
                    }
                ),
                "{error}"
            );
        }
        assert!(core(&file).lookup(0).is_none());
        assert_eq!(cache.pool.totals().usage, 0);
        validate(core(&file));
        store.heal();
        assert_eq!(*file.view(0..100).unwrap(), *pattern(0..100));
    }
}

/// A thread that found a frame by an old word, of this file or another, may hold the frame for a
/// moment after its reuse, and be the last to release it.
// spec: P20
#[test]
fn the_error_of_a_fill_goes_with_the_block_whoever_held_it_last() {
    for last in [
        "a reference that waits",
        "a page that waits",
        "another file",
    ] {
        let cache = memory(64);
        let (store, other) = (patterned(2 * 4096), patterned(4096));
        let file = open(&cache, &store, &options(4096));
        let other = open(&cache, &other, &options(4096));
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
        let reader = {
            let file = file.clone();
            thread::spawn(move || file.view(0..100).map(drop))
        };
        store.wait_hanging(1);
        let frame = core(&file).lookup(0).unwrap().frame;
        let (pool, hold) = (&cache.pool, &cache.pool.frames.meta(frame).hold);
        match last {
            "a page that waits" => {
                assert!(hold.try_map_cached());
                pool.retire(Retired::Unmap(frame));
            }
            _ => assert!(hold.try_get_cached()),
        }
        store.release(Release::Fail(Failure::Io));
        reader.join().unwrap().unwrap_err();
        match last {
            "a reference that waits" => pool.retire(Retired::Put(frame)),
            "another file" => core(&other).put(frame),
            _ => {}
        }
        pool.flush_retired();
        validate(core(&file));
        drop((file, other));
        assert_empty(&cache);
    }
}

// spec: P19, P27
#[test]
fn a_store_that_was_cut_short_is_told_from_one_that_fails() {
    let cache = memory(64);
    let store = patterned(2 << 20);
    let file = open(&cache, &store, &options(4096));
    store.inner().set_len_externally(524_288).unwrap();
    let error = file.view(1_048_576..1_052_672).unwrap_err();
    assert_eq!(
        error.to_string(),
        "data.bin: wanted 4096 bytes at 1,048,576 but the file now ends at 524,288 (it was 2,097,152 when opened)"
    );
    assert!(file.view(0..4096).is_ok());
    store.add(fail(OperationKind::Read));
    let error = file.view(8192..8193).unwrap_err();
    assert!(matches!(error, FileError::Store { .. }), "{error}");
    // Short transfers are not errors.
    store.add(Rule::new(Fault::Short).on(&[OperationKind::Read]).times(3));
    assert_eq!(*file.view(8192..12_288).unwrap(), *pattern(8192..12_288));
    file.write_at(&[5; 4096], 8192).unwrap();
    store.add(Rule::new(Fault::Short).on(&[OperationKind::Write]).times(3));
    // The cut is a change by another process, which is reported to the handle once.
    let changed = file.sync_all();
    assert!(matches!(changed, Err(FileError::ChangedInPlace { .. })));
    file.sync_all().unwrap();
    assert_eq!(store.inner().to_vec()[8192..12_288], [5; 4096]);
}

// spec: P16, P19
#[test]
fn torn_writes_and_full_disks_lose_nothing() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(4 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&vec![3; 4 * size as usize], 0).unwrap();
        store.add(
            Rule::new(Fault::Tear {
                sectors: 3,
                then: AfterTear::Fail,
            })
            .on(&[OperationKind::Write])
            .times(2),
        );
        store.add(
            Rule::new(Fault::Fail(Failure::NoSpace))
                .on(&[OperationKind::Write])
                .times(3),
        );
        let error = file.sync_all().unwrap_err();
        assert!(matches!(error, FileError::Store { .. }), "{error}");
        assert_eq!(contents(&file), vec![3; 4 * size as usize]);
        store.heal();
        file.sync_all().unwrap();
        assert_eq!(store.inner().to_vec(), vec![3; 4 * size as usize]);
        store.add(fail(OperationKind::Sync));
        file.write_at(&[4; 1], 0).unwrap();
        let error = file.sync_data().unwrap_err();
        assert!(
            matches!(
                error,
                FileError::Store {
                    action: StoreAction::Sync,
                    ..
                }
            ),
            "{error}"
        );
        file.sync_data().unwrap();
    }
}

#[test]
fn a_sync_that_cannot_hold_a_block_for_its_views_says_so() {
    if cfg!(miri) {
        return; // too many failures
    }
    let cache = memory(64);
    let store = patterned(2 * 4096);
    let file = open(&cache, &store, &options(4096));
    file.write_at(&[1; 100], 0).unwrap();
    let view = file.view(0..100).unwrap();
    let views = vec![view; HoldState::MAX_VIEWS as usize];
    let error = file.sync_all().unwrap_err();
    assert_eq!(
        error.to_string(),
        "data.bin: write of 4096 bytes at 0 failed: more views of its block than can be counted"
    );
    assert_eq!(core(&file).dirty_blocks(), 1);
    drop(views);
    file.sync_all().unwrap();
    assert_eq!(store.inner().to_vec()[..100], [1; 100]);
    drop(file);
    assert_empty(&cache);
}

// spec: P16, P19
#[test]
fn a_write_that_hangs_holds_up_only_those_who_want_that_block() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(3 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&vec![1; size as usize], 0).unwrap();
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
        let syncer = {
            let file = file.clone();
            thread::spawn(move || file.sync_all())
        };
        store.wait_hanging(1);
        // While it is written, the block is stable: it can be read, other blocks can be written,
        // and a write to this one would block.
        assert_eq!(file.try_view(0..size).unwrap()[..], vec![1; size as usize]);
        file.write_at(&vec![2; size as usize], size).unwrap();
        assert!(file.try_write_at(&[3; 10], 0).unwrap_err().would_block());
        let writer = {
            let file = file.clone();
            thread::spawn(move || file.write_at(&vec![3; size as usize], 0))
        };
        store.release(Release::Proceed);
        writer.join().unwrap().unwrap();
        syncer.join().unwrap().unwrap();
        file.sync_all().unwrap();
        let stored = store.inner().to_vec();
        assert_eq!((stored[0], stored[size as usize]), (3, 2));
        validate(core(&file));
    }
}

// spec: P16
#[test]
fn a_failed_punch_leaves_unwritten_data() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(8 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&[1; 100], 2 * size).unwrap();
        store.add(fail(OperationKind::Punch));
        let error = file.punch(..).unwrap_err();
        let punch = StoreAction::Punch;
        assert!(matches!(error, FileError::Store { action, .. } if action == punch));
        assert_eq!(file.view(2 * size..2 * size + 100).unwrap()[..], [1; 100]);
        file.punch(..).unwrap();
        assert_eq!(
            file.view(2 * size..3 * size).unwrap()[..],
            vec![0; size as usize]
        );
        file.sync_all().unwrap();
        assert_eq!(store.inner().to_vec(), vec![0; 8 * size as usize]);
        validate(core(&file));
    }
}

/// A store that calls its own file inside a call.
struct Rude {
    inner: MemoryStore,
    file: Mutex<Option<PagedFile>>,
    outcomes: Mutex<Vec<FileError>>,
}

impl Rude {
    fn come_back(&self) {
        let Some(file) = self.file.lock().clone() else {
            return;
        };
        // Cached bytes can be viewed and evicted.
        assert_eq!(file.view(8192..8200).unwrap()[..], [7; 8]);
        let mut byte = [0; 1];
        assert_eq!((file.read_at(&mut byte, 8192).unwrap(), byte), (1, [7]));
        file.evict(4096..8192).unwrap();
        let mut outcomes = self.outcomes.lock();
        outcomes.extend(file.view(12_288..12_289).err());
        outcomes.extend(file.view(0..1).err());
        outcomes.extend(file.write_at(&[1], 0).err());
        outcomes.extend(file.append(&[1]).err());
        outcomes.extend(file.set_len(0).err());
        outcomes.extend(file.punch(..).err());
        outcomes.extend(file.discard().err());
        outcomes.extend(file.invalidate(..).err());
        outcomes.extend(file.sync_all().err());
        outcomes.extend(file.prefetch(12_288..16_384).err());
    }
}

impl Store for Rude {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.come_back();
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.come_back();
        self.inner.write_at(buf, offset)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.come_back();
        self.inner.set_len(len)
    }
    fn sync(&self, _: SyncWhat) -> io::Result<()> {
        self.come_back();
        Ok(())
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.come_back();
        self.inner.punch(offset, len)
    }
    fn writable(&self) -> bool {
        true
    }
}

#[test]
fn a_store_that_comes_back_to_its_file_gets_what_is_cached_and_is_told_off() {
    type Call = fn(&PagedFile);
    let calls: [(&str, Call); 5] = [
        ("read", |file| drop(file.view(0..1).unwrap())),
        ("write", |file| assert_eq!(write_some(core(file)), 1)),
        ("sync", |file| file.sync_all().unwrap()),
        ("punch", |file| file.punch(4096..8192).unwrap()),
        ("set_len", |file| file.set_len(20_000).unwrap()),
    ];
    for (name, call) in calls {
        let cache = memory(64);
        let store = Arc::new(Rude {
            inner: MemoryStore::from_bytes(&pattern(0..16_384)),
            file: Mutex::new(None),
            outcomes: Mutex::new(Vec::new()),
        });
        let file = open(&cache, &store, &options(4096));
        file.write_at(&[7; 4096], 8192).unwrap();
        *store.file.lock() = Some(file.clone());
        call(&file);
        let own = store.file.lock().take();
        let outcomes = std::mem::take(&mut *store.outcomes.lock());
        assert!(outcomes.len() >= 10, "{name}: {outcomes:?}");
        let told = |error: &FileError| matches!(error, FileError::Reentered { .. });
        assert!(outcomes.iter().all(told), "{name}: {outcomes:?}");
        assert_eq!(
            outcomes[0].to_string(),
            "data.bin: its store made a call of the file that would wait for the store"
        );
        // Outside the store's calls, all of these calls work, since no lock is held.
        file.write_at(&[1; 10], 0).unwrap();
        file.sync_all().unwrap();
        drop((own, file));
        assert_empty(&cache);
    }
}

#[test]
fn a_handle_that_its_store_drops_last_is_closed_later() {
    let cache = memory(64);
    let store = Arc::new(Rude {
        inner: MemoryStore::from_bytes(&pattern(0..16_384)),
        file: Mutex::new(None),
        outcomes: Mutex::new(Vec::new()),
    });
    let file = open(&cache, &store, &options(4096));
    file.write_at(&[7; 4096], 8192).unwrap();
    let core = core(&file).clone();
    {
        let _call = core.store_call();
        drop(file);
        assert!(!core.is_closed());
    }
    cache.tick();
    assert!(core.is_closed());
    assert_eq!(store.inner.to_vec()[8192], 7);
    drop(core);
    assert_empty(&cache);
}

/// A refusal whose retry succeeds is not counted as a failure.
#[test]
fn a_limit_that_fails_an_operation_that_may_be_tried_again_counts_once() {
    let cache = memory(256);
    let group = cache.root.create_child("both", 64 * 4096).unwrap();
    let options = options(4096).group(&group);
    let store = patterned(0);
    let above = open(&cache, &store, &options);
    core(&above).store.note_use();
    above.write_at(&[1; 12 * PAGE], 0).unwrap();
    group.set_max(group.usage()).unwrap();
    let failed = || (group.events().oom, cache.pool.totals().limit_error);
    let file = open(&cache, &patterned(0), &options);
    file.append(&[2; 100]).unwrap();
    assert_eq!(failed(), (0, 0), "room was made for it");
    drop(file);
    above.sync_all().unwrap();
    let page = |number: u64| above.view(number * 4096..(number + 1) * 4096).unwrap();
    let views: Vec<_> = (0..12).map(page).collect();
    group.set_max(64 * 4096).unwrap();
    above.write_at(&[3; PAGE], 12 * 4096).unwrap();
    store.add(fail(OperationKind::Write).forever());
    let file = open(&cache, &patterned(0), &options);
    cache.pool.flush_retired();
    group.set_max(group.usage()).unwrap();
    let refused = file.append(&[2; 100]).unwrap_err();
    assert!(matches!(refused, FileError::Limit(_)), "{refused}");
    assert_eq!(failed(), (1, 1));
    store.heal();
    drop((views, file, above));
    assert_empty(&cache);
}

// spec: P16
#[test]
fn an_interrupted_call_is_made_again_whichever_it_is() {
    use OperationKind::{Len, Punch, Read, Seek, SetLen, Sync, Write};
    for kind in [Len, Read, Write, SetLen, Sync, Punch, Seek] {
        let cache = memory(64);
        let store = patterned(8 * 4096);
        let interrupt = || {
            let rule = Rule::new(Fault::Fail(Failure::Interrupted)).on(&[kind]);
            store.add(rule.times(3));
        };
        interrupt();
        let file = open(&cache, &store, &options(4096));
        type Call = fn(&PagedFile) -> Result<(), FileError>;
        let calls: [Call; 7] = [
            |file| file.read_exact_at(&mut [0; 100], 7 * 4096),
            |file| file.write_at(&[1; 4096], 0),
            |file| file.set_len(9 * 4096),
            PagedFile::sync_all,
            |file| file.punch(4096..3 * 4096),
            |file| file.invalidate(..).map(drop),
            PagedFile::discard,
        ];
        for call in calls {
            interrupt();
            call(&file).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        }
        drop(file);
        assert_empty(&cache);
    }
}
