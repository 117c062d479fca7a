//! Files in a memory that is too small for all their blocks.

use super::*;
use crate::cache::core::gate::ROOMS;
use crate::cache::{FileError, with_room};
use crate::group::GroupId;
use crate::reclaim::{AllocMode, Step, StoreScope};
use crate::store::faulty::{Failure, Fault, OperationKind, Release, Rule};
use crate::sync::thread;

#[test]
fn a_file_larger_than_the_memory_is_read_and_written_through_it() {
    for size in SIZES {
        let frames = (size / PAGE as u64 * 6).max(64) as u32;
        let cache = memory(frames);
        let len = u64::from(frames) * PAGE as u64 * 4;
        let store = patterned(len);
        let file = open(&cache, &store, &options(size));
        let mut offset = 0;
        file.scan(.., |piece| {
            assert!(*piece == *pattern(offset..offset + piece.len() as u64));
            offset += piece.len() as u64;
        })
        .unwrap();
        assert_eq!(offset, len);
        for block in 0..len / size {
            file.write_at(&[block as u8; 100], block * size).unwrap();
        }
        file.sync_all().unwrap();
        let stored = store.inner().to_vec();
        for block in 0..len / size {
            let start = (block * size) as usize;
            assert!(
                stored[start..start + 100]
                    .iter()
                    .all(|byte| *byte == block as u8)
            );
            assert_eq!(stored[start + 100], byte_at(start as u64 + 100));
        }
        assert!(cache.pool.totals().pgsteal > u64::from(frames));
        cache.validate();
        drop(file);
        assert_empty(&cache);
    }
}

#[test]
fn a_memory_full_of_views_says_so() {
    let cache = memory(64);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    let mut views = Vec::new();
    let error = loop {
        let start = views.len() as u64 * 4096;
        match file.view(start..start + 4096) {
            Ok(view) => views.push(view),
            Err(error) => break error,
        }
    };
    let text = error.to_string();
    assert!(
        text.starts_with(
            "group root is full: 224.0 of 224.0 KiB, of which 220.0 pinned by 55 views"
        ),
        "{text}"
    );
    assert!(
        text.ends_with("nothing can be evicted. Drop views or raise the limit"),
        "{text}"
    );
    assert!(
        views
            .iter()
            .zip(0..)
            .all(|(view, n)| **view == *pattern(n * 4096..(n + 1) * 4096))
    );
    views.truncate(50);
    file.view(60 * 4096..61 * 4096).unwrap();
}

// spec: P14
#[test]
fn a_stream_leaves_what_was_used_twice() {
    let pages = 448u64;
    type Stream = fn(&PagedFile, u64);
    let streams: [(&str, Stream); 5] = [
        ("scan", |file, _| file.scan(.., |_| {}).unwrap()),
        ("read by copy", |file, pages| {
            (0..pages).for_each(|page| {
                file.read_exact_at(&mut [0; PAGE], page * 4096).unwrap();
            });
        }),
        ("views", |file, pages| {
            (0..pages).for_each(|page| drop(file.view(page * 4096..(page + 1) * 4096).unwrap()));
        }),
        // No two pages are in a row, so nothing is read ahead, and each read is a miss.
        ("far apart", |file, pages| {
            (0..pages).for_each(|turn| {
                let page = turn * 1789 % pages;
                drop(file.view(page * 4096..page * 4096 + 1).unwrap());
            });
        }),
        ("write by write", |file, pages| {
            (0..pages).for_each(|page| file.write_at(&[1; PAGE], page * 4096).unwrap());
        }),
    ];
    for (name, stream) in streams {
        let cache = memory(512);
        let hot = open(&cache, &patterned(100 * 4096), &options(4096));
        let streamed = open(&cache, &patterned(10 * pages * 4096), &options(4096));
        for _ in 0..2 {
            for page in 0..100u64 {
                hot.view(page * 4096..page * 4096 + 1).unwrap();
            }
        }
        stream(&streamed, 10 * pages);
        let resident = hot.stats().cached.0;
        assert_eq!(resident, 100, "{name}: {resident} of 100 pages are left");
        assert!(cache.pool.totals().pgsteal >= 9 * pages, "{name}");
    }
}

// spec: P19
#[test]
fn dirty_pages_that_cannot_be_written_refuse_new_ones_and_are_not_dropped() {
    let cache = memory(64);
    let store = patterned(1 << 20);
    let file = open(&cache, &store, &options(4096));
    let other = open(
        &cache,
        &patterned(1 << 20),
        &options(4096).name("other.bin"),
    );
    store.add(
        Rule::new(Fault::Fail(Failure::NoSpace))
            .on(&[OperationKind::Write])
            .forever(),
    );
    let mut accepted = 0;
    let error = loop {
        match file.write_at(&[accepted as u8; 4096], accepted * 4096) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
    };
    let text = error.to_string();
    let start = format!(
        "data.bin: {}.0 KiB of unwritten data cannot be written (",
        accepted * 4
    );
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("(data.bin: write of "), "{text}");
    assert!(
        text.ends_with(
            " at 0 failed: no storage space); new writes are refused until that data is written. Sync again, or discard it"
        ),
        "{text}"
    );
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(
        (28..=30).contains(&accepted),
        "half of 56 pages: {accepted}"
    );
    // A writer of another file in this memory is refused as well. Reading continues.
    let error = other.write_at(&[1; 4096], 0).unwrap_err();
    assert!(error.to_string().starts_with("data.bin: "), "{error}");
    other.scan(.., |_| {}).unwrap();
    // Thousands of writes make the store fail only a few more times.
    store.clear_log();
    for turn in 0..4_300u64 {
        file.write_at(&[0; 4096], turn % 200 * 4096).unwrap_err();
    }
    let failed = store.log().len();
    assert!(failed < 100, "{failed} calls of a store that fails");
    for page in 0..accepted {
        assert_eq!(
            file.view(page * 4096..page * 4096 + 8).unwrap()[..],
            [page as u8; 8]
        );
    }
    // The store works again, as the next tick will notice.
    store.heal();
    cache.tick();
    file.write_at(&[99; 4096], accepted * 4096).unwrap();
    file.sync_all().unwrap_err();
    file.sync_all().unwrap();
    let stored = store.inner().to_vec();
    for page in 0..accepted as usize {
        assert_eq!(stored[page * 4096..page * 4096 + 8], [page as u8; 8]);
    }
    assert_eq!(stored[accepted as usize * 4096], 99);
}

#[test]
fn a_bad_stretch_of_a_store_does_not_hold_up_the_rest() {
    let cache = memory(256);
    let store = patterned(1 << 20);
    let file = open(&cache, &store, &options(4096));
    let bad = 3 * 4096..60 * 4096;
    let rule = Rule::new(Fault::Fail(Failure::Io)).on(&[OperationKind::Write]);
    store.add(rule.within(bad.clone()).forever());
    file.write_at(&[1; 100 * 4096], 0).unwrap();
    file.sync_all().unwrap_err();
    assert_eq!(
        core(&file).dirty_blocks(),
        57,
        "what is bad, and nothing else"
    );
    // Background writes get past the bad block as well.
    file.write_at(&[2; 4096], 80 * 4096).unwrap();
    for _ in 0..100 {
        cache.tick();
    }
    assert_eq!(core(&file).dirty_blocks(), 57);
    assert_eq!(store.inner().to_vec()[80 * 4096], 2);
}

#[test]
fn threads_that_read_write_cut_and_sync_at_once_agree_in_the_end() {
    let cache = memory(128);
    let store = patterned(1 << 20);
    let file = open(&cache, &store, &options(4096));
    let workers: Vec<_> = (0..4u64)
        .map(|number| {
            let file = file.clone();
            thread::spawn(move || {
                // Each thread has a quarter of the file to itself. The threads share memory, index
                // and dirty state.
                let base = number * 64;
                for round in 0..300u64 {
                    let page = base + round * 17 % 64;
                    let at = page * 4096;
                    match round % 5 {
                        0 | 1 => file.write_at(&[(round % 250) as u8 + 1; 4096], at).unwrap(),
                        2 => {
                            let view = file.view(at..at + 4096).unwrap();
                            let copy = view.to_vec();
                            file.write_at(&[9; 100], at).unwrap();
                            assert!(*view == *copy);
                        }
                        3 => file.punch(at..at + 4096).unwrap(),
                        _ => file.sync_range(at..at + 4096).unwrap(),
                    }
                    if round % 5 == 3 {
                        assert_eq!(file.view(at..at + 4096).unwrap()[..], [0; 4096]);
                    }
                }
            })
        })
        .collect();
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
    file.sync_all().unwrap();
    let mut bytes = Vec::new();
    file.scan(.., |piece| bytes.extend_from_slice(piece))
        .unwrap();
    assert!(bytes == store.inner().to_vec());
    drop(file);
    assert_empty(&cache);
}

/// A store may call `tick`: files above it are then skipped, and do not count as files that cannot
/// be written.
#[test]
fn a_tick_in_a_call_of_a_store_puts_no_flush_off() {
    let cache = memory(1024);
    let group = cache.root.create_child("both", 64 * 4096).unwrap();
    let options = options(4096).group(&group);
    let [file, other] = [(); 2].map(|()| open(&cache, &patterned(0), &options));
    core(&file).store.note_use();
    // The dirty pages are above the background limit and below the hard one.
    file.write_at(&[1; 20 * PAGE], 0).unwrap();
    let dirty = || cache.dirty_pages(group.id());
    assert_eq!(dirty(), PageCount(20));
    let call = core(&other).store_call();
    cache.tick();
    drop(call);
    assert_eq!(
        dirty(),
        PageCount(20),
        "it stands above a store that is called"
    );
    assert!(cache.pool.background.is_kicked());
    while cache.step() == Step::More {}
    assert!(dirty() < PageCount(20));
    drop((file, other));
    assert_empty(&cache);
}

/// This does the same for blocks that reclaim needs written.
#[test]
fn a_tick_in_a_call_of_a_store_forgets_no_write_that_reclaim_wants() {
    let cache = memory(1024);
    let [file, other] = [(); 2].map(|()| open(&cache, &patterned(0), &options(4096)));
    core(&file).store.note_use();
    file.write_at(&[1; 20 * PAGE], 0).unwrap();
    let dirty = || cache.dirty_pages(cache.root.id());
    cache.pool.background.want_flush();
    let call = core(&other).store_call();
    cache.tick();
    drop(call);
    assert_eq!(
        dirty(),
        PageCount(20),
        "it stands above a store that is called"
    );
    while cache.step() == Step::More {}
    assert_eq!(dirty(), PageCount(0));
    drop((file, other));
    assert_empty(&cache);
}

#[test]
fn the_limit_of_an_append_that_stopped_half_way_is_counted_once() {
    let cache = memory(256);
    let group = cache.root.create_child("both", 64 * PAGE as u64).unwrap();
    let store = patterned(0);
    let file = open(&cache, &store, &options(4096).group(&group));
    let charge = cache
        .pool
        .charge(group.id(), PageCount(50), AllocMode::Wait)
        .unwrap();
    store.add(fail(OperationKind::Write).forever());
    let failed = || (group.events().oom, cache.pool.totals().limit_error);
    assert_eq!(failed(), (0, 0));
    let refused = file.append(&[2; 30 * PAGE]).unwrap_err();
    assert!(matches!(refused, FileError::Limit(_)), "{refused}");
    assert!(!file.is_empty());
    assert_eq!(failed(), (1, 1));
    store.heal();
    drop(charge);
}

#[test]
fn what_succeeds_when_room_was_made_to_the_last_has_failed_nobody() {
    let cache = memory(256);
    let file = open(&cache, &patterned(200 * 4096), &options(4096));
    contents(&file);
    let (pool, full) = (
        &cache.pool,
        cache.root.create_child("full", 16 * 4096).unwrap(),
    );
    for good in [true, false] {
        let mut times = 0;
        let result = with_room(
            pool,
            GroupId::ROOT,
            PageCount(0),
            |()| Some(GroupId::ROOT),
            || {
                times += 1;
                // A refusal inside the operation, which may still succeed in the end.
                pool.charge(full.id(), PageCount(17), AllocMode::Wait)
                    .unwrap_err();
                StoreScope::note_skipped();
                if good && times == ROOMS + 1 {
                    Ok(())
                } else {
                    Err(())
                }
            },
        );
        assert_eq!((result.is_ok(), times), (good, ROOMS + 1));
        assert_eq!(full.events().oom, u64::from(!good));
    }
}

#[test]
fn a_tick_in_a_store_call_forgets_no_high() {
    let cache = memory(1024);
    let group = cache.root.create_child("both", 256 * PAGE as u64).unwrap();
    let options = options(4096).group(&group);
    let [file, other] = [(); 2].map(|()| open(&cache, &patterned(0), &options));
    core(&file).store.note_use();
    file.write_at(&[1; 40 * PAGE], 0).unwrap();
    group.set_high(Some(10 * PAGE as u64)).unwrap();
    let charge = |mode| cache.pool.charge(group.id(), PageCount(1), mode);
    charge(AllocMode::NoWait).unwrap_err();
    let call = core(&other).store_call();
    cache.tick();
    drop(call);
    assert!(cache.pool.background.is_kicked());
    while cache.step() == Step::More {}
    assert!(group.usage() <= 10 * PAGE as u64, "{}", group.usage());
}

#[test]
fn nothing_is_stuck_for_good_while_a_write_is_under_way() {
    let cache = memory(64);
    let failing = patterned(1 << 16);
    let stuck = open(&cache, &failing, &options(4096));
    failing.add(fail(OperationKind::Write).forever());
    stuck.write_at(&[1; 4096], 0).unwrap();
    stuck.sync_all().unwrap_err();
    let is_refused = || cache.unwritten_error(GroupId::ROOT).is_some();
    assert!(is_refused());
    let store = patterned(1 << 16);
    let other = open(&cache, &store, &options(4096).name("other.bin"));
    other.write_at(&[1; 4096], 0).unwrap();
    let flush = hanging_flush(core(&other), &store);
    let meanwhile = is_refused();
    store.release(Release::Proceed);
    flush.join().unwrap();
    assert!(!meanwhile, "what is being written makes room");
    assert!(is_refused());
}

// spec: P7
#[test]
fn a_refault_counts_the_pages_of_its_block() {
    for size in SIZES {
        let cache = memory_of(8, size);
        let file = open(&cache, &patterned(4 * size), &options(size));
        file.view(0..8).unwrap();
        file.view(2 * size..2 * size + 8).unwrap();
        file.evict(2 * size..).unwrap();
        file.view(2 * size..2 * size + 8).unwrap();
        assert_eq!(file.stats().refaulted, 1);
        assert_eq!(cache.pool.totals().refault, size / PAGE as u64);
    }
}
