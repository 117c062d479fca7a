//! Blocks for faults, seen from a mapper that keeps a table of its own.

use std::cell::Cell;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::mapped::{Mapped, OWNER};
use super::*;
use crate::cache::core::validate::validate;
use crate::cache::map::fault::{fault_block, hole_still};
use crate::cache::{FaultKind, FaultPage, FileError, Mappers, Reading, Revoke, Wait, WriteOrder};
use crate::frame::FlagSet;
use crate::reclaim::{Io, Owner};
use crate::sync::domain::{CacheBinding, Domain};
use crate::sync::{failpoint, thread};

// spec: P29
#[test]
fn who_evicts_without_waiting_leaves_what_is_mapped() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    let mapped = Mapped::new(&cache, &file);
    file.prefetch(0..3 * 4096).unwrap();
    mapped.map(1, FaultKind::Read);
    assert_eq!(file.try_evict(..).unwrap(), PageCount(2));
    assert_eq!(mapped.rights(1), Some(false));
    assert_eq!(file.evict(..).unwrap(), PageCount(1));
    assert_eq!(mapped.rights(1), None);
}

// spec: N7
#[test]
fn an_eviction_for_others_waits_for_no_session_that_was_opened_meanwhile() {
    let cache = memory(64);
    let pool = cache.pool.clone();
    let file = open(&cache, &patterned(65_536), &options(4096));
    let mapped = Mapped::new(&cache, &file);
    mapped.map(0, FaultKind::Read);
    let frame = core(&file).lookup(0).unwrap().frame;
    let (opened, is_open) = channel();
    let (end, ended) = channel::<()>();
    let domain = pool.domain.clone();
    let there = failpoint::on("SessionsAsked", move || {
        let session = thread::spawn(move || {
            let places = [0_u8; 2];
            let binding =
                CacheBinding::new((&raw const places[0]).cast_mut(), &raw const places[1]);
            let mut sections = Domain::register_at(&domain, binding, OWNER);
            sections.enter();
            sections.narrow();
            opened.send(()).unwrap();
            let in_time = ended.recv_timeout(Duration::from_secs(20)).is_ok();
            sections.leave();
            in_time
        });
        is_open.recv().unwrap();
        SESSION.set(Some(session));
    });
    let count = core(&file).evict(&[frame], Io::Forbidden);
    drop(there);
    assert_eq!(count.freed, PageCount(0));
    pool.flush_retired();
    assert!(
        pool.frames.meta(frame).kind().is_live(),
        "I6: the session may hold it"
    );
    end.send(()).unwrap();
    assert!(
        SESSION.take().unwrap().join().unwrap(),
        "the eviction waited"
    );
    pool.flush_retired();
    assert!(!pool.frames.meta(frame).kind().is_live());
    drop((mapped, file));
    pool.validate();
}

thread_local! {
    /// The session of the test above.
    static SESSION: Cell<Option<thread::JoinHandle<bool>>> = const { Cell::new(None) };
}

#[test]
fn a_read_that_caches_nothing_leaves_what_is_mapped_meanwhile() {
    let cache = memory(64);
    let file = open(&cache, &patterned(65_536), &options(4096));
    let mapped = Mapped::new(&cache, &file);
    let mut pieces = 0;
    file.scan_uncached(.., |_| {
        if pieces == 0 {
            mapped.map(1, FaultKind::Read);
        }
        pieces += 1;
    })
    .unwrap();
    assert_eq!(mapped.rights(1), Some(false));
    assert_eq!(file.stats().cached, PageCount(1));
    mapped.table.revoke(0..16, Revoke::All);
}

#[test]
fn a_read_fault_maps_and_eviction_takes_it_away() {
    for size in SIZES {
        let cache = memory(2_048);
        let file = open(&cache, &patterned(2 * size), &options(size));
        let mapped = Mapped::new(&cache, &file);
        let last = size / PAGE as u64 - 1;
        mapped.map(last, FaultKind::Read);
        let held = core(&file).lookup(0).unwrap();
        assert_eq!(held.meta().hold.load().mapped(), 1);
        drop(held);
        let aged = || {
            let mut used = Vec::new();
            core(&file).age(0..2, &mut |block| used.push(block));
            used
        };
        assert_eq!((aged(), aged()), (vec![0], vec![]));
        assert_eq!(file.evict(..).unwrap().bytes(), size);
        assert_eq!(mapped.rights(last), None);
        let error = fault_block(
            core(&file),
            2 * size / PAGE as u64,
            FaultKind::Read,
            &(0..u64::MAX),
            Reading::Normal,
            Wait::Yes,
        )
        .unwrap_err();
        assert!(
            matches!(error, crate::cache::FileError::PastEnd { .. }),
            "{error}"
        );
    }
}

#[test]
fn what_ends_holes_leaves_the_counts_of_blocks_alone() {
    for size in SIZES {
        let cache = memory(2_048);
        let file = open(&cache, &patterned(2 * size), &options(size));
        let mapped = Mapped::new(&cache, &file);
        let last = 2 * size / PAGE as u64 - 1;
        mapped.map(last, FaultKind::Read);
        // No lock of the block is held: eviction decides by the count of mapped pages.
        file.invalidate(0..size).unwrap();
        core(&file).end_hole(0..2);
        assert_eq!(mapped.rights(last), Some(false));
        let held = core(&file).lookup(1).unwrap();
        assert_eq!(held.meta().hold.load().mapped(), 1);
    }
}

#[test]
fn mapped_streams_are_read_ahead_also_when_they_mix() {
    let cache = memory(512);
    let store = patterned(1 << 20);
    let file = open(&cache, &store, &options(4096));
    let mapped = Mapped::new(&cache, &file);
    for page in 0..60 {
        mapped.map(page, FaultKind::Read);
        mapped.map(128 + page, FaultKind::Read);
    }
    let stats = file.stats();
    assert!(stats.filled >= 120 && stats.read_ahead > 100, "{stats}");
    assert!(
        stats.store_reads <= 16,
        "{} reads of the store",
        stats.store_reads
    );
    // Reads that jump about read only their own block.
    cache.tick();
    let before = file.stats().filled;
    for page in [250, 105, 230, 118] {
        mapped.map(page, FaultKind::Read);
    }
    assert_eq!(file.stats().filled, before + 4);
}

// spec: P16, P28
#[test]
fn a_view_of_a_writable_page_takes_the_right_to_store_away_first() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let file = open(&cache, &patterned(2 * size), &options(size));
        let mapped = Mapped::new(&cache, &file);
        mapped.map(0, FaultKind::Write);
        mapped.store(0, 0x55);
        let grace = cache.pool.domain.grace_periods();
        let view = file.view(0..16).unwrap();
        assert_eq!(view[..8], [0x55; 8]);
        assert_eq!(mapped.rights(0), Some(false));
        assert!(cache.pool.domain.grace_periods() > grace);
        // A store fault moves the page away from the view.
        mapped.map(0, FaultKind::Write);
        mapped.store(0, 0x66);
        assert_eq!(view[..8], [0x55; 8]);
        assert_eq!(file.stats().moved, 1);
        let mut bytes = [0; 8];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(
            bytes, [0x66; 8],
            "a read by copy does not disturb the mapping"
        );
        assert_eq!(mapped.rights(0), Some(true));
    }
}

#[test]
fn stores_through_a_mapping_reach_the_store() {
    for size in SIZES {
        let cache = memory(2_048);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        let mapped = Mapped::new(&cache, &file);
        let page = size / PAGE as u64; // the first page of the second block
        mapped.map(page, FaultKind::Write);
        assert_eq!(core(&file).dirty_blocks(), 1);
        mapped.store(page, 1);
        file.sync_all().unwrap();
        assert_eq!(
            mapped.rights(page),
            Some(false),
            "cleaned: the next store faults"
        );
        assert_eq!(
            store.inner().to_vec()[size as usize..size as usize + 8],
            [1; 8]
        );
        assert_eq!(core(&file).dirty_blocks(), 0);
        mapped.map(page, FaultKind::Write);
        mapped.store(page, 2);
        // A write call does the same.
        file.write_at(&[3; 4], size + 100).unwrap();
        assert_eq!(mapped.rights(page), Some(true));
        file.sync_all().unwrap();
        let stored = store.inner().to_vec();
        assert_eq!(stored[size as usize..size as usize + 8], [2; 8]);
        assert_eq!(stored[size as usize + 100..size as usize + 104], [3; 4]);
    }
}

// spec: P23
#[test]
fn a_mapped_hole_is_the_zero_frame_until_somebody_writes() {
    for size in SIZES {
        let cache = memory(2_048);
        let store = Arc::new(FaultyStore::new(MemoryStore::with_len(4 * size)));
        let file = open(&cache, &store, &options(size));
        let mapped = Mapped::new(&cache, &file);
        mapped.map(0, FaultKind::Read);
        mapped.map(size / PAGE as u64, FaultKind::Read);
        assert_eq!(cache.pool.totals().usage, 0);
        let FaultPage::Hole(token) = mapped.fault(0, FaultKind::Read) else {
            panic!("a hole")
        };
        file.write_at(b"x", 5).unwrap();
        assert!(
            !hole_still(core(&file), &token),
            "too late to map the zero frame"
        );
        assert_eq!(mapped.rights(0), None, "the hole's translation is gone");
        assert!(
            mapped.rights(size / PAGE as u64).is_some(),
            "the other block is a hole still"
        );
        mapped.map(size / PAGE as u64, FaultKind::Write);
        assert_eq!(core(&file).dirty_blocks(), 2);
        mapped.store(size / PAGE as u64, 9);
        // A block that was written back and evicted is no longer a hole.
        file.sync_all().unwrap();
        file.evict(..).unwrap();
        assert!(matches!(
            mapped.fault(0, FaultKind::Read),
            FaultPage::Block(_)
        ));
        assert_eq!(file.view(size..size + 8).unwrap()[..], [9; 8]);
    }
}

/// Checks that writeback takes the right length.
// spec: P16
#[test]
fn a_block_over_a_mapped_hole_that_makes_the_file_longer_is_written_as_a_whole() {
    for size in SIZES {
        let cache = memory_of(8, size);
        let store = Arc::new(FaultyStore::new(MemoryStore::with_len(100)));
        let file = open(&cache, &store, &options(size));
        let _mapped = Mapped::new(&cache, &file);
        let other = file.clone();
        let filled = failpoint::on("HoleFilled", move || other.sync_all().unwrap());
        file.write_at(&[7; 50], 200).unwrap();
        drop(filled);
        file.sync_all().unwrap();
        assert_eq!(store.inner().to_vec().len(), 250);
        file.evict(..).unwrap();
        assert_eq!(file.view(200..250).unwrap()[..], [7; 50]);
    }
}

/// A hole is returned with the neighbours that are known to be holes as well. The store is asked
/// for data from the page on.
// spec: P23
#[test]
fn a_hole_ends_at_data_at_a_cached_block_and_at_the_end_of_the_file() {
    let cache = memory(2_048);
    let store = Arc::new(FaultyStore::new(MemoryStore::with_len(40 * PAGE as u64)));
    let file = open(&cache, &store, &options(PAGE as u64));
    file.write_at(&[1; PAGE], 30 * PAGE as u64).unwrap();
    file.sync_all().unwrap();
    file.evict(..).unwrap(); // data that only the store has
    file.write_at(&[1; PAGE], 4 * PAGE as u64).unwrap(); // and data that is cached
    let mapped = Mapped::new(&cache, &file);
    let usage = cache.pool.totals().usage;
    let hole = |page, around: Range<u64>| match mapped.fault_around(page, FaultKind::Read, &around)
    {
        FaultPage::Hole(hole) => hole,
        FaultPage::Block(_) => panic!("page {page} is a hole"),
    };
    assert_eq!(hole(10, 0..16).pages(), &(10..16));
    assert_eq!(hole(10, 8..12).pages(), &(10..12));
    assert_eq!(hole(2, 0..16).pages(), &(2..4), "a block is cached");
    assert_eq!(hole(10, 0..16).pages(), &(5..16), "and told of before");
    let told = hole(10, 0..64).pages().clone();
    assert!(
        told.start == 5 && (16..=30).contains(&told.end),
        "the store has data: {told:?}"
    );
    assert_eq!(hole(33, 0..64).pages(), &(33..40), "the file ends");
    assert_eq!(cache.pool.totals().usage, usage, "holes take no frame");
    let all = hole(10, 0..16);
    file.write_at(b"x", 12 * PAGE as u64).unwrap();
    assert!(
        !hole_still(core(&file), &all),
        "a neighbour is none any more"
    );
    assert_eq!(hole(10, 0..16).pages(), &(10..12));
    file.set_len(11 * PAGE as u64).unwrap();
    assert_eq!(hole(10, 0..16).pages(), &(10..11));
}

#[test]
fn truncation_and_punching_take_translations_away() {
    for size in SIZES {
        let cache = memory(4_096);
        let file = open(&cache, &patterned(4 * size), &options(size));
        let mapped = Mapped::new(&cache, &file);
        let per_block = size / PAGE as u64;
        for block in 0..4 {
            mapped.map(block * per_block, FaultKind::Write);
            mapped.map((block + 1) * per_block - 1, FaultKind::Read);
        }
        file.punch(size..2 * size).unwrap();
        assert_eq!(mapped.rights(per_block), None);
        assert!(mapped.rights(0).is_some() && mapped.rights(2 * per_block).is_some());
        // The file now ends in the first page of block 2.
        file.set_len(2 * size + 10).unwrap();
        assert!(mapped.rights(2 * per_block).is_some());
        assert_eq!(mapped.rights(3 * per_block), None);
        if per_block > 1 {
            assert_eq!(
                mapped.rights(3 * per_block - 1),
                None,
                "past the end, in the last block"
            );
        }
        // Bytes stored past the end through the last page must not become visible when the file
        // grows.
        mapped.map(2 * per_block, FaultKind::Write);
        mapped.store(2 * per_block, 7);
        file.set_len(2 * size + 4).unwrap();
        mapped.map(2 * per_block, FaultKind::Write);
        mapped.store(2 * per_block, 7);
        file.write_at(b"!", 2 * size + 20).unwrap();
        let view = file.view(2 * size..2 * size + 21).unwrap();
        assert_eq!(view[..4], [7; 4]);
        assert_eq!(view[4..20], [0; 16]);
        assert_eq!(view[20], b'!');
    }
}

#[test]
fn stores_past_the_end_are_gone_when_their_mapping_is() {
    let cache = memory(64);
    let store = patterned(100);
    let file = open(&cache, &store, &options(4096));
    for round in 0..2u64 {
        let mapped = Mapped::new(&cache, &file);
        mapped.map(0, FaultKind::Write);
        let head = core(&file).lookup(0).unwrap().frame;
        cache.pool.frames.store_for_test(head, 2_000, &[7; 8]);
        // The block is cleaned by a writeback, or by a view, and then unmapped. After that, nothing
        // records that a mapping could store there.
        if round == 0 {
            file.sync_all().unwrap();
        } else {
            file.view(0..10).unwrap();
        }
        mapped.table.revoke(0..1, Revoke::All);
        drop(mapped);
        let end = 2_100 + round * 100;
        file.write_at(b"!", end).unwrap();
        assert_eq!(
            file.view(2_000..2_008).unwrap()[..],
            [0; 8],
            "round {round}"
        );
        file.set_len(100).unwrap();
    }
}

// spec: P16
#[test]
fn a_write_fault_waits_for_the_write_under_way_and_keeps_the_dirty_flag() {
    for size in SIZES {
        use crate::store::faulty::{Fault, OperationKind, Release, Rule};
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        file.write_at(&vec![1; size as usize], 0).unwrap();
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Write]));
        let syncer = {
            let file = file.clone();
            crate::sync::thread::spawn(move || file.sync_all())
        };
        store.wait_hanging(1);
        let mapped = Mapped::new(&cache, &file);
        // A read fault does not wait.
        mapped.map(0, FaultKind::Read);
        let faulting = {
            let file = file.clone();
            crate::sync::thread::spawn(move || {
                let found = fault_block(
                    core(&file),
                    0,
                    FaultKind::Write,
                    &(0..1),
                    Reading::Normal,
                    Wait::Yes,
                )
                .unwrap();
                let FaultPage::Block(block) = found else {
                    panic!("a hole")
                };
                let flags = block.meta().flags.load();
                assert!(flags.contains(FlagSet::DIRTY) && !flags.contains(FlagSet::WRITEBACK));
                assert!(block.meta().hold.load().is_wmapped());
            })
        };
        store.release(Release::Proceed);
        syncer.join().unwrap().unwrap();
        faulting.join().unwrap();
        assert_eq!(core(&file).dirty_blocks(), 1);
    }
}

// spec: P16, A1
#[test]
fn a_store_beside_writeback_is_never_lost() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(2 * size);
        let file = open(&cache, &store, &options(size));
        let mapped = Mapped::new(&cache, &file);
        mapped.map(0, FaultKind::Write);
        let mut accessor = crate::sync::Domain::register(&cache.pool.domain);
        accessor.enter();
        assert_eq!(mapped.rights(0), Some(true));
        let host = mapped.table.pages.lock()[&0].host;
        let syncer = {
            let file = file.clone();
            crate::sync::thread::spawn(move || file.sync_all())
        };
        // The access continues with its translation, until the flusher waits for it (or wrongly
        // does not).
        while !accessor.has_mail() && !syncer.is_finished() {
            crate::sync::thread::yield_now();
        }
        let frames = &cache.pool.frames;
        frames.store_for_test(frames.frame_of(host as usize), 0, &[0x77; 8]);
        accessor.leave();
        syncer.join().unwrap().unwrap();
        let written = store.inner().to_vec()[..8] == [0x77; 8];
        assert!(
            written || core(&file).dirty_blocks() == 1,
            "in the written bytes, or dirty again"
        );
    }
}

// spec: P25
#[test]
fn a_store_through_a_mapping_carries_the_barrier_of_its_time() {
    for size in SIZES {
        let cache = memory_of(8, size);
        let store = patterned(2 * size);
        let ordered = options(size).write_order(WriteOrder::Ordered);
        let file = open(&cache, &store, &ordered);
        let mapped = Mapped::new(&cache, &file);
        mapped.map(0, FaultKind::Write);
        mapped.store(0, 1);
        file.set_barrier(5);
        assert_eq!(mapped.rights(0), Some(false), "it has to ask again");
        mapped.map(0, FaultKind::Write);
        mapped.store(0, 2);
        let error = file.sync_all().unwrap_err();
        assert!(matches!(error, FileError::Held { .. }), "{error}");
        core(&file).flush(&EVERYTHING);
        assert_eq!(store.inner().to_vec()[0], byte_at(0), "not yet");
        file.release_through(5);
        file.sync_all().unwrap();
        assert_eq!(store.inner().to_vec()[0], 2);
        mapped.table.revoke(0..u64::MAX, Revoke::All);
    }
}

// spec: P25
#[test]
fn write_faults_are_refused_when_too_much_is_held_back() {
    let cache = memory(64);
    let store = patterned(64 * 4096);
    let on_sync = options(4096).write_order(WriteOrder::OnSync);
    let file = open(&cache, &store, &on_sync);
    let fault = |page| {
        let fault = fault_block(
            core(&file),
            page,
            FaultKind::Write,
            &(page..page + 1),
            Reading::Normal,
            Wait::Yes,
        );
        fault.map(drop)
    };
    let refused = (0..64).map(|page| (page, fault(page)));
    let refused = refused.filter_map(|(page, fault)| Some((page, fault.err()?)));
    let (page, error) = { refused }.next().expect("the memory is full of them");
    assert!((20..40).contains(&page), "about half of 56 pages: {page}");
    assert!(matches!(error, FileError::Held { .. }), "{error}");
    fault(0).unwrap_err();
    file.sync_all().unwrap();
    fault(page).unwrap();
}

// spec: A5
#[test]
fn a_cut_takes_the_translations_of_holes_away() {
    for size in SIZES {
        let cache = memory(64);
        let store = Arc::new(MemoryStore::with_len(4 * size));
        let file = open(&cache, &store, &options(size));
        let mapped = Mapped::new(&cache, &file);
        let per_block = size / PAGE as u64;
        let pages = [0, 1, 2, 3].map(|block| block * per_block);
        for page in pages {
            mapped.map(page, FaultKind::Read);
        }
        file.set_len(2 * size).unwrap();
        let rights = pages.map(|page| mapped.rights(page));
        assert_eq!(rights, [Some(false), Some(false), None, None]);
        assert_empty(&cache);
    }
}

// spec: A5
#[test]
fn a_cut_takes_the_translations_of_scattered_blocks_away() {
    for size in SIZES {
        let cache = memory_of(8, size);
        let file = open(&cache, &patterned(8 * size), &options(size));
        let mapped = Mapped::new(&cache, &file);
        let per_block = size / PAGE as u64;
        let pages = [1, 3, 4, 6].map(|block| block * per_block);
        for page in pages {
            mapped.map(page, FaultKind::Read);
        }
        file.set_len(size).unwrap();
        assert_eq!(pages.map(|page| mapped.rights(page)), [None; 4]);
        validate(core(&file));
    }
}
