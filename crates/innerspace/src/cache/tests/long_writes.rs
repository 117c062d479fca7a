//! Writes of many pages: taking memory for several pages together, and ending half-way.

use super::*;
use crate::cache::core::validate::validate;
use crate::cache::{FileError, HeldReason, WriteOrder};
use crate::store::faulty::{Failure, Fault, OperationKind, Rule};
use crate::units::PageCount;

const PAGES: u64 = PAGE as u64;

fn reads(store: &Faulty) -> usize {
    let log = store.log();
    log.iter()
        .filter(|record| record.kind == OperationKind::Read)
        .count()
}

// spec: P7, P22
#[test]
fn a_long_write_goes_over_what_is_cached_evicted_stored_and_absent() {
    let cache = memory(16_384);
    let store = patterned(600 * PAGES);
    let file = open(&cache, &store, &options(4096));
    // The range has evicted pages, cached pages that are clean and dirty, a viewed page, and a
    // boundary between two nodes of the index.
    file.read_exact_at(&mut vec![0; 8 * PAGE], 490 * PAGES)
        .unwrap();
    file.evict(..).unwrap();
    assert!(file.stats().shadows == 0, "no node is left to keep them");
    file.write_at(&[9; PAGE], 520 * PAGES).unwrap();
    file.read_exact_at(&mut vec![0; 30 * PAGE], 530 * PAGES)
        .unwrap();
    file.evict(535 * PAGES..540 * PAGES).unwrap();
    let view = file.view(531 * PAGES..532 * PAGES).unwrap();
    let before = (reads(&store), file.stats());
    assert_eq!(before.1.shadows, 5);
    // The write is unaligned at both ends, and longer than the file.
    let (from, to) = (480 * PAGES + 100, 1_100 * PAGES + 7);
    let bytes: Vec<u8> = (from..to).map(|at| (at % 251) as u8).collect();
    file.write_at(&bytes, from).unwrap();
    let stats = file.stats();
    assert_eq!(reads(&store) - before.0, 1, "the rest of the first page");
    assert_eq!((stats.shadows, stats.refaulted), (0, 5));
    assert_eq!(
        (stats.moved - before.1.moved, stats.len),
        (1, to),
        "away from the view"
    );
    assert_eq!(stats.dirty, PageCount(1_101 - 480));
    assert_eq!(*view, *pattern(531 * PAGES..532 * PAGES));
    // The new blocks are referenced from the beginning.
    for block in [600, 601, 1_099] {
        let flags = core(&file).lookup(block).unwrap().meta().flags.load();
        assert!(flags.contains(crate::frame::FlagSet::REFERENCED), "{block}");
    }
    let mut expected = pattern(0..from);
    expected.extend(&bytes);
    assert!(contents(&file) == expected);
    validate(core(&file));
    cache.pool.validate();
    file.sync_all().unwrap();
    assert!(store.inner().to_vec() == expected);
    drop((view, file));
    assert_empty(&cache);
}

#[test]
fn a_long_write_stops_at_the_dirty_limit_as_short_ones_do() {
    for pages_a_call in [1, 7, 64] {
        let cache = memory(16_384);
        let group = cache.root.create_child("tenant", 100 * PAGES).unwrap();
        let options = options(4096).group(&group).write_order(WriteOrder::OnSync);
        let store = Arc::new(MemoryStore::new());
        let file = open(&cache, &store, &options);
        let bytes = vec![7; pages_a_call * PAGE];
        let mut at = 0;
        let error = loop {
            match file.write_at(&bytes, at) {
                Ok(()) => at += bytes.len() as u64,
                Err(error) => break error,
            }
        };
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
        // The dirty pages are more than half of the limit by exactly one page.
        assert_eq!(file.len(), 51 * PAGES, "calls of {pages_a_call} pages");
        assert_eq!(core(&file).dirty_blocks(), 51);
        assert!(contents(&file).iter().all(|byte| *byte == 7));
        validate(core(&file));
        file.sync_all().unwrap();
        assert_eq!(store.to_vec().len(), 51 * PAGE);
        drop((file, options));
        drop(group);
        assert_empty(&cache);
    }
}

#[test]
fn a_long_write_that_runs_out_of_memory_leaves_what_came_before() {
    for pages_a_call in [1, 7, 64] {
        let cache = memory(16_384);
        let group = cache.root.create_child("tenant", 64 * PAGES).unwrap();
        let options = options(4096).group(&group);
        // Viewed pages stay, and so do written ones, since the store refuses them.
        let viewed = open(&cache, &patterned(40 * PAGES), &options);
        let pages = (0..40).map(|page| page * PAGES..(page + 1) * PAGES);
        let views: Vec<_> = pages.map(|page| viewed.view(page).unwrap()).collect();
        drop(viewed);
        let store = patterned(0);
        store.add(
            Rule::new(Fault::Fail(Failure::Io))
                .on(&[OperationKind::Write])
                .forever(),
        );
        let file = open(&cache, &store, &options);
        let bytes: Vec<u8> = pattern(0..64 * PAGES);
        let mut pieces = bytes.chunks(pages_a_call * PAGE).enumerate();
        let error = loop {
            let (number, piece) = pieces.next().expect("not all of it fits");
            let at = (number * pages_a_call * PAGE) as u64;
            if let Err(error) = file.write_at(piece, at) {
                break error;
            }
        };
        assert!(matches!(error, FileError::Limit(_)), "{error}");
        // All pages fit, except those of the views and a node of the index.
        let fits = 64 - 40 - 1;
        assert_eq!(group.usage(), 64 * PAGES, "{error}");
        assert_eq!(file.len(), fits * PAGES, "calls of {pages_a_call} pages");
        assert!(contents(&file) == bytes[..(fits * PAGES) as usize]);
        validate(core(&file));
        cache.pool.validate();
        store.heal();
        drop(views);
        file.sync_all().expect_err("reclaim had tried to write");
        file.write_at(&bytes, 0).unwrap();
        file.sync_all().unwrap();
        assert!(store.inner().to_vec() == bytes);
        drop((file, options));
        drop(group);
        assert_empty(&cache);
    }
}

#[test]
fn what_is_had_together_goes_back_together() {
    let cache = memory(16_384);
    let pool = &cache.pool;
    let group = cache.root.id();
    let mut frames = pool.alloc_some(group, 100);
    let batch = pool.groups.first_batch();
    assert!(batch > 0);
    assert_eq!(frames.len(), batch);
    let first = frames.pop();
    assert_eq!(pool.totals().usage, batch as u64);
    drop(frames);
    assert_eq!(pool.totals().usage, 1);
    drop(first);
    assert_empty(&cache);
    // Near a limit there are none for several pages, which does not count as a refusal.
    let tenant = cache.root.create_child("tenant", 10 * PAGES).unwrap();
    assert_eq!(pool.alloc_some(tenant.id(), 8).len(), 0);
    assert_eq!(pool.totals().charge_refused, 0);
    let one = pool.alloc(tenant.id(), 0, crate::reclaim::AllocMode::NoWait);
    drop(one.unwrap());
    drop(tenant);
    assert_empty(&cache);
}
