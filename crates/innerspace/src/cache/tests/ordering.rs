//! Write orders: when blocks may be written, and which writers are refused meanwhile.

use super::*;
use crate::cache::core::validate::validate;
use crate::cache::dirty::flush::write_onwards;
use crate::cache::{FileError, HeldReason, WriteOrder};
use crate::group::GroupId;
use crate::reclaim::{Io, Owner};
use crate::store::faulty::OperationKind;
use crate::sync::failpoint;

fn written(store: &Faulty) -> usize {
    store
        .log()
        .iter()
        .filter(|record| record.kind == OperationKind::Write)
        .count()
}

// spec: P16, P25
#[test]
fn ordered_blocks_wait_for_their_barrier() {
    for size in SIZES {
        let cache = memory_of(64, size);
        let store = patterned(16 * size);
        let file = open(
            &cache,
            &store,
            &options(size).write_order(WriteOrder::Ordered),
        );
        file.write_at(&vec![1; size as usize], 0).unwrap();
        file.set_barrier(5);
        file.write_at(&vec![2; size as usize], size).unwrap();
        file.set_barrier(9);
        file.write_at(&vec![3; size as usize], 2 * size).unwrap();
        // Neither the flusher, nor reclaim, nor a sync writes the blocks.
        core(&file).flush(&EVERYTHING);
        let frame = core(&file).lookup(1).unwrap().frame;
        assert_eq!(core(&file).clean(&[frame], Io::Of(GroupId::ROOT)).0, 0);
        let error = file.sync_all().unwrap_err();
        assert!(
            matches!(
                &error,
                FileError::Held {
                    dirty,
                    reason: HeldReason::UntilRelease { barrier: 5 },
                    ..
                } if *dirty == 2 * size
            ),
            "{error}"
        );
        assert_eq!(store.inner().to_vec()[size as usize], byte_at(size));
        file.release_through(5);
        // A block written again under a later number now waits for that number.
        file.write_at(&[4; 10], size).unwrap();
        file.sync_all().unwrap_err();
        assert_eq!((written(&store), core(&file).dirty_blocks()), (1, 2));
        file.release_through(9);
        file.sync_all().unwrap();
        let stored = store.inner().to_vec();
        assert_eq!(
            (
                stored[0],
                stored[size as usize],
                stored[size as usize + 10],
                stored[2 * size as usize]
            ),
            (1, 4, 2, 3)
        );
        validate(core(&file));
    }
}

// spec: P24, P25
#[test]
fn a_sync_says_what_was_held_back_though_it_is_released_meanwhile() {
    let cache = memory(64);
    let store = patterned(16 * 4096);
    let ordered = options(4096).write_order(WriteOrder::Ordered);
    let file = open(&cache, &store, &ordered);
    file.set_barrier(5);
    file.write_at(&[2; 4096], 0).unwrap();
    let other = file.clone();
    let written = failpoint::on("OwnWritten", move || other.release_through(5));
    let outcome = file.sync_all();
    drop(written);
    assert_eq!(store.inner().to_vec()[0], byte_at(0));
    let error = outcome.unwrap_err();
    assert!(matches!(error, FileError::Held { .. }), "{error}");
    file.sync_all().unwrap();
    assert_eq!(store.inner().to_vec()[0], 2);
}

// spec: P25
#[test]
fn held_blocks_count_against_the_limit_and_refuse_writes_in_the_end() {
    let cache = memory(64);
    let store = patterned(1 << 20);
    let file = open(
        &cache,
        &store,
        &options(4096).write_order(WriteOrder::Ordered),
    );
    file.set_barrier(1);
    let mut accepted = 0;
    let error = loop {
        match file.write_at(&[7; 4096], accepted * 4096) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 64, "more than the memory is held back");
    };
    assert!(matches!(error, FileError::Held { .. }), "{error}");
    assert!(
        (20..40).contains(&accepted),
        "about half of 56 pages: {accepted}"
    );
    assert_eq!(written(&store), 0);
    file.release_through(1);
    file.write_at(&[7; 4096], accepted * 4096).unwrap();
    file.sync_all().unwrap();
    assert!(
        store.inner().to_vec()[..accepted as usize * 4096]
            .iter()
            .all(|byte| *byte == 7)
    );
}

// spec: P25, R19
#[test]
fn a_page_is_never_in_the_store_before_its_log() {
    let cache = memory(64);
    let (log_store, page_store) = (patterned(0), patterned(64 << 10));
    let log = open(&cache, &log_store, &options(4096));
    let ordered = options(4096).write_order(WriteOrder::Ordered);
    let pages = open(&cache, &page_store, &ordered);
    for number in 1..=200u64 {
        let page = number * 7 % 16;
        log.append(&number.to_le_bytes()).unwrap();
        pages.set_barrier(number);
        pages.write_at(&number.to_le_bytes(), page * 4096).unwrap();
        // All background writers run after every single write.
        core(&pages).flush(&EVERYTHING);
        if number % 10 == 0 {
            log.sync_data().unwrap();
            pages.release_through(number);
        }
        let logged = log_store.inner().to_vec().len() as u64 / 8;
        let stored = page_store.inner().to_vec();
        for page in stored.chunks(4096) {
            let number = u64::from_le_bytes(page[..8].try_into().unwrap());
            let untouched = page[..8] == pattern(0..8) || number > 1_000;
            assert!(
                untouched || number <= logged,
                "page {number} before its log record, {logged}"
            );
        }
    }
    drop(pages);
    assert_eq!(cache.take_errors().len(), 0, "the last number was released");
}

#[test]
fn on_sync_nothing_else_writes() {
    let cache = memory(64);
    let store = patterned(1 << 20);
    let file = open(
        &cache,
        &store,
        &options(4096).write_order(WriteOrder::OnSync),
    );
    file.write_at(&[1; 8192], 0).unwrap();
    core(&file).flush(&EVERYTHING);
    let frame = core(&file).lookup(0).unwrap().frame;
    assert_eq!(core(&file).clean(&[frame], Io::Of(GroupId::ROOT)).0, 0);
    let error = file.write_at(&[2; 300 << 10], 0).unwrap_err();
    assert!(
        matches!(
            error,
            FileError::Held {
                reason: HeldReason::UntilSync,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(written(&store), 0);
    file.sync_all().unwrap();
    file.write_at(&[2; 8192], 0).unwrap();
    drop(file);
    assert_eq!(
        store.inner().to_vec()[..8192],
        [2; 8192],
        "the last drop is a sync, too"
    );
}

// spec: P31
#[test]
fn ticks_write_what_is_old_and_leave_what_is_young() {
    let cache = memory(640);
    let store = patterned(1 << 20);
    let file = open(&cache, &store, &options(4096));
    file.write_at(&[1; 4096], 0).unwrap();
    for _ in 0..20 {
        cache.tick();
    }
    file.write_at(&[2; 4096], 8192).unwrap();
    assert_eq!(written(&store), 0);
    for _ in 0..15 {
        cache.tick();
    }
    let stored = store.inner().to_vec();
    assert_eq!((stored[0], stored[8192]), (1, byte_at(8192)));
    for _ in 0..30 {
        cache.tick();
    }
    assert_eq!(store.inner().to_vec()[8192], 2);
    assert_eq!(core(&file).dirty_blocks(), 0);
    cache.validate();
}

#[test]
fn a_writer_at_the_hard_limit_writes_what_others_of_its_group_have_dirty() {
    let cache = memory(2_048);
    let group = cache.root.create_child("tenant", 100 * 4096).unwrap();
    let stores = [(); 3].map(|()| patterned(1 << 20));
    let in_group = options(4096).group(&group);
    let [first, second] = [0, 1].map(|at| open(&cache, &stores[at], &in_group));
    let outside = open(&cache, &stores[2], &options(4096));
    outside.write_at(&[3; 4096], 0).unwrap();
    let dirty = || cache.dirty_pages(group.id()).0;
    let mut block = 0;
    while dirty() <= 50 {
        first.write_at(&[1; 4096], block * 4096).unwrap();
        block += 1;
    }
    assert_eq!(stores.each_ref().map(|store| written(store)), [0; 3]);
    // The second file has no block of its own that may be written.
    second.write_at(&[2; 4096], 0).unwrap();
    assert!(written(&stores[0]) > 0);
    assert_eq!((written(&stores[1]), written(&stores[2])), (0, 0));
    assert!(dirty() <= 50, "{}", dirty());
}

#[test]
fn a_group_with_much_dirty_is_written_in_the_background_and_others_are_not() {
    let cache = memory(2_048);
    let group = cache.root.create_child("tenant", 100 * 4096).unwrap();
    let stores = [(); 3].map(|()| patterned(1 << 20));
    let in_group = options(4096).group(&group);
    let [first, second] = [0, 1].map(|at| open(&cache, &stores[at], &in_group));
    let outside = open(&cache, &stores[2], &options(4096));
    outside.write_at(&[3; 30 * 4096], 0).unwrap();
    first.write_at(&[1; 10 * 4096], 0).unwrap();
    second.write_at(&[2; 5 * 4096], 0).unwrap();
    cache.tick();
    assert!(
        stores.iter().all(|store| written(store) == 0),
        "young, and not much"
    );
    first.write_at(&[1; 10 * 4096], 40_960).unwrap();
    cache.tick();
    let left = [&first, &second, &outside].map(|file| core(file).dirty_blocks());
    assert_eq!(
        left,
        [0, 5, 30],
        "young, but more than a fifth of the group's limit"
    );
    // A block that is written again and again does not keep the others waiting.
    for round in 0..60u64 {
        first.write_at(&[9; 4096], 0).unwrap();
        first.write_at(&[9; 4096], (round + 1) * 2 * 4096).unwrap();
        write_onwards(
            core(&first),
            crate::cache::dirty::index::WriteReason::Pressure,
            1,
        );
    }
    let dirty = core(&first).dirty_blocks();
    assert!(dirty < 55, "{dirty} of 61 blocks are left");
    cache.validate();
}
