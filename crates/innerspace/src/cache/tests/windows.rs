//! Windows of read-ahead: what is in flight while a reader reads on, failures in the middle of one,
//! and a window that is given up because memory is short.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc;
use std::task::Poll;

use super::blocking::{Bell, poll};
use super::completions::Keeping;
use super::mapped::Mapped;
use super::requests::{Holding, read_only};
use super::*;
use crate::cache::core::validate::validate;
use crate::cache::{FaultKind, FileError, Reading, StoreAction};
use crate::reclaim::AllocMode;
use crate::store::Request;
use crate::sync::failpoint;

const BLOCKS: u64 = 64;
/// The block that cannot be read.
const BAD: u64 = 4;

fn bytes_of(block: u64) -> Range<u64> {
    block * 4096..(block + 1) * 4096
}

/// Makes reads of the bad block fail until the store heals.
fn break_a_block(store: &Faulty) {
    store.add(fail(OperationKind::Read).within(bytes_of(BAD)).forever());
}

/// Creates a file whose first blocks were read in a row, and whose next window is in flight.
fn with_a_window<S: Store>(store: &Arc<S>) -> (Arc<Cache>, PagedFile, Range<u64>) {
    let cache = memory(256);
    let file = open(&cache, store, &read_only(4096));
    file.view(bytes_of(0)).unwrap();
    file.view(bytes_of(1)).unwrap();
    assert_eq!(core(&file).requests.len(), 1);
    let is_there = |block: &u64| core(&file).lookup(*block).is_some();
    let window = 2..(2..BLOCKS).take_while(is_there).last().unwrap() + 1;
    assert!(window.start < BAD && BAD + 1 < window.end, "{window:?}");
    (cache, file, window)
}

fn assert_is_bad(error: &FileError) {
    let is_read = matches!(
        error,
        FileError::Store {
            action: StoreAction::Read,
            offset,
            len: 4096,
            ..
        } if *offset == BAD * 4096
    );
    assert!(is_read, "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("data.bin: read of 4096 bytes at 16,384 failed: "),
        "{text}"
    );
}

/// Reads the file from front to back. Returns the errors of the blocks that could not be read.
fn read_on(file: &PagedFile) -> Vec<FileError> {
    let mut errors = Vec::new();
    for block in 0..BLOCKS {
        match file.view(bytes_of(block)) {
            Ok(view) => assert_eq!(view[..], pattern(bytes_of(block)), "block {block}"),
            Err(error) => errors.push(error),
        }
    }
    errors
}

/// Reads on past the bad block, and reads it again when the store has healed.
fn read_on_and_heal(cache: &Arc<Cache>, file: PagedFile, store: &Faulty) {
    let errors = read_on(&file);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_is_bad(&errors[0]);
    store.heal();
    assert!(read_on(&file).is_empty());
    let stats = file.stats();
    assert_eq!((stats.filled, stats.evicted), (BLOCKS, 0), "{stats}");
    validate(core(&file));
    drop(file);
    assert_empty(cache);
}

/// Checks a window that has landed: all of it but the bad block is cached, and counted.
fn assert_bad_block_alone_is_missing(file: &PagedFile, window: &Range<u64>) {
    assert_eq!(core(file).requests.len(), 0);
    let stats = file.stats();
    let landed = window.end - window.start - 1;
    assert_eq!(
        (stats.filled, stats.read_ahead, stats.read_ahead_unused),
        (2 + landed, landed, 0),
        "{stats}"
    );
    // There was one call for each of the first two blocks, one for the window, and one for each of
    // its blocks.
    assert_eq!(stats.store_reads, 2 + 1 + landed + 1, "{stats}");
    for block in window.clone().filter(|block| *block != BAD) {
        let view = file.try_view(bytes_of(block)).unwrap();
        assert_eq!(view[..], pattern(bytes_of(block)), "block {block}");
    }
    assert!(file.try_view(bytes_of(BAD)).unwrap_err().would_block());
}

// spec: R7
#[test]
fn a_bad_block_in_a_window_is_the_error_of_who_wants_that_block() {
    let store = patterned(BLOCKS * 4096);
    let (cache, file, window) = with_a_window(&store);
    break_a_block(&store);
    cache.tick();
    assert_bad_block_alone_is_missing(&file, &window);
    read_on_and_heal(&cache, file, &store);
}

// spec: R7
#[test]
fn a_reader_that_makes_the_call_of_its_window_gets_its_own_block() {
    for first in [BAD - 1, BAD, BAD + 1] {
        let store = patterned(BLOCKS * 4096);
        let (cache, file, _) = with_a_window(&store);
        break_a_block(&store);
        match file.view(bytes_of(first)) {
            Ok(view) => assert_eq!(view[..], pattern(bytes_of(first))),
            Err(error) => {
                assert_eq!(first, BAD);
                assert_is_bad(&error);
            }
        }
        read_on_and_heal(&cache, file, &store);
    }
}

// spec: R7
#[test]
fn a_reader_beside_the_threads_hears_of_a_bad_block_once() {
    let cache = memory(256);
    cache.begin_service();
    let store = patterned(BLOCKS * 4096);
    break_a_block(&store);
    let file = open(&cache, &store, &read_only(4096));
    let errors = read_on(&file);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_is_bad(&errors[0]);
    store.heal();
    assert!(read_on(&file).is_empty());
    validate(core(&file));
}

// spec: R7
#[test]
fn an_error_of_a_window_that_is_over_is_nobodys() {
    let store = patterned(BLOCKS * 4096);
    let (cache, file, window) = with_a_window(&store);
    store.add(fail(OperationKind::Read).within(bytes_of(BAD)));
    cache.tick();
    assert_eq!(file.stats().filled, window.end);
    assert!(read_on(&file).is_empty());
    drop(file);
    assert_empty(&cache);
}

// spec: R7
#[test]
fn a_future_that_finds_a_failed_block_gone_finds_its_error() {
    let store = patterned(BLOCKS * 4096);
    break_a_block(&store);
    let (cache, file, _) = with_a_window(&store);
    let mut ready = Box::pin(file.ready(bytes_of(BAD)));
    let bell = Arc::new(Bell::default());
    assert!(poll(ready.as_mut(), &bell).is_pending());
    let (done, polled) = mpsc::channel();
    let armed = failpoint::on("FillAbandoned", move || {
        let poller = std::thread::spawn(move || poll(ready.as_mut(), &bell));
        done.send(poller.join().unwrap()).unwrap();
    });
    cache.tick();
    drop(armed);
    match polled.recv().unwrap() {
        Poll::Ready(Err(error)) => assert_is_bad(&error),
        other => panic!("{other:?}"),
    }
    assert_eq!(core(&file).requests.len(), 0, "asked for once");
}

// spec: R8
#[test]
fn a_short_read_in_a_window_goes_on_where_it_stopped() {
    let store = patterned(BLOCKS * 4096);
    let (cache, file, window) = with_a_window(&store);
    store.add(Rule::new(Fault::Short).on(&[OperationKind::Read]));
    store.clear_log();
    cache.tick();
    let (start, end) = (window.start * 4096, window.end * 4096);
    let half = (end - start) / 2;
    let calls: Vec<_> = store
        .log()
        .iter()
        .map(|one| (one.offset, one.len))
        .collect();
    assert_eq!(calls, [(start, end - start), (start + half, half)]);
    let stats = file.stats();
    let ahead = window.end - window.start;
    assert_eq!(
        (stats.filled, stats.read_ahead),
        (window.end, ahead),
        "{stats}"
    );
    assert!(read_on(&file).is_empty());
    drop(file);
    assert_empty(&cache);
}

// spec: R7, R8
#[test]
fn a_short_read_of_a_window_and_then_an_error_cost_the_bad_block_alone() {
    let store = patterned(BLOCKS * 4096);
    let (cache, file, window) = with_a_window(&store);
    store.add(Rule::new(Fault::Short).on(&[OperationKind::Read]));
    break_a_block(&store);
    cache.tick();
    assert_bad_block_alone_is_missing(&file, &window);
    read_on_and_heal(&cache, file, &store);
}

// spec: R7, R8
#[test]
fn a_window_that_a_store_completes_badly_costs_the_bad_block_alone() {
    /// Fills the blocks before the bad one, and half of the bad one.
    fn fill_half(request: &mut Request) {
        let start = request.offset();
        let len = request.fill(&pattern(start..BAD * 4096 + 2_048));
        assert_eq!(start + len as u64, BAD * 4096 + 2_048);
    }
    type Answer = fn(Request);
    let answers: [(&str, Answer); 4] = [
        ("an error", |request| {
            request.complete(Err(io::Error::from_raw_os_error(5)));
        }),
        ("half of it", |mut request| {
            fill_half(&mut request);
            request.complete(Ok(1));
        }),
        ("half of it and an error", |mut request| {
            fill_half(&mut request);
            request.complete(Err(io::Error::from_raw_os_error(5)));
        }),
        ("nothing", drop),
    ];
    for (name, answer) in answers {
        let store = Arc::new(Keeping::new(BLOCKS * 4096));
        let (cache, file, window) = with_a_window(&store);
        break_a_block(&store.calls);
        let request = store.take().expect(name);
        store.drop_from_now_on();
        answer(request);
        cache.tick();
        assert_bad_block_alone_is_missing(&file, &window);
        read_on_and_heal(&cache, file, &store.calls);
    }
}

/// Reads pages 0 to `pages` in order, with `read`. Before each read, the store answers all its
/// requests. Returns how many times the reader had to call the store itself.
fn misses(pages: u64, mut read: impl FnMut(u64), store: &Holding) -> usize {
    for page in 0..pages {
        store.complete_all();
        read(page);
    }
    store.complete_all();
    store.calls()
}

// spec: R2
#[test]
fn who_reads_on_misses_at_the_beginning_alone() {
    const PAGES: u64 = 500;
    type Each = Box<dyn FnMut(u64)>;
    type Run<'r> = &'r mut dyn FnMut(Each);
    let read_all = |read: &dyn Fn(&PagedFile, Run<'_>)| {
        let cache = memory(1_000);
        let store = Holding::new(PAGES * 4096);
        let file = open(&cache, &store, &read_only(4096));
        let mut calls = 0;
        read(&file, &mut |each| calls = misses(PAGES, each, &store));
        assert!(calls <= 2, "{calls} misses");
        assert!(
            store
                .submitted
                .lock()
                .iter()
                .any(|(_, len)| *len == 64 << 10)
        );
        drop(file);
        assert_empty(&cache);
    };
    read_all(&|file, run| {
        let file = file.clone();
        run(Box::new(move |page| {
            file.read_exact_at(&mut [0; 4096], page * 4096).unwrap();
        }));
    });
    read_all(&|file, run| {
        let file = file.clone();
        run(Box::new(move |page| {
            let view = file.view(page * 4096..page * 4096 + 10).unwrap();
            assert_eq!(view[..], pattern(page * 4096..page * 4096 + 10)[..]);
        }));
    });
    read_all(&|file, run| {
        let mut blocks = file.block_reader();
        run(Box::new(move |page| {
            blocks.read_at(&mut [0; 8], page * 4096).unwrap();
        }));
    });
    read_all(&|file, run| {
        let mut cursor = file.cursor();
        run(Box::new(move |_| {
            io::Read::read_exact(&mut cursor, &mut [0; 4096]).unwrap();
        }));
    });
    read_all(&|file, run| {
        let array = file.array::<u64>().unwrap();
        run(Box::new(move |page| {
            array.get(page * 512).unwrap();
        }));
    });
}

// spec: R2
#[test]
fn a_stream_has_eight_requests_in_flight_all_along() {
    const REQUEST: u64 = 64 << 10;
    // An eighth of the limit has room for eight, and not for nine.
    let cache = memory(1100);
    let store = Holding::new(256 * REQUEST);
    let file = open(&cache, &store, &read_only(4096));
    file.set_reading(Reading::Sequential);
    file.view(0..1).unwrap();
    for request in 0..248 {
        assert_eq!(store.held(), 8, "at request {request}");
        assert!(store.complete(VecDeque::pop_front));
        // The first request begins after the block that was missed.
        for block in request * 16 + 1..request * 16 + 17 {
            let bytes = block * 4096..block * 4096 + 1;
            assert_eq!(file.try_view(bytes.clone()).unwrap()[..], pattern(bytes));
        }
    }
    let submitted = store.submitted.lock().clone();
    let is_whole = |(_, len): &(u64, usize)| *len as u64 == REQUEST;
    assert!(submitted[..248].iter().all(is_whole));
    store.complete_all();
    drop(file);
    assert_empty(&cache);
}

// spec: R2
#[test]
fn a_mapping_that_is_read_on_misses_at_the_beginning_alone() {
    let cache = memory(1_000);
    let store = Holding::new(500 * 4096);
    let file = open(&cache, &store, &read_only(4096));
    let mapped = Mapped::new(&cache, &file);
    let calls = misses(500, |page| mapped.map(page, FaultKind::Read), &store);
    assert!(calls <= 2, "{calls} misses");
}

// spec: R3
#[test]
fn what_is_read_ahead_for_nothing_is_counted() {
    let cache = memory(1_000);
    let file = open(&cache, &patterned(1 << 20), &options(4096));
    for page in 0..3u64 {
        file.view(page * 4096..page * 4096 + 1).unwrap();
    }
    cache.tick();
    let stats = file.stats();
    assert!(stats.read_ahead > 2, "{stats}");
    assert_eq!(stats.read_ahead_unused, 0);
    file.evict(..).unwrap();
    let unused = file.stats().read_ahead_unused;
    assert_eq!(unused, stats.read_ahead - 1, "one of them was page 2");
}

// spec: R11
#[test]
fn without_threads_a_request_for_memory_gives_up_reads_that_are_queued() {
    let cache = memory(256);
    let group = cache.root.create_child("small", 32 * 4096).unwrap();
    let store = patterned(64 * 4096);
    let file = open(&cache, &store, &options(4096).group(&group));
    file.view(0..1).unwrap();
    file.view(4096..4097).unwrap();
    let (ahead, reads) = (core(&file).requests.len(), store.log().len());
    assert_eq!(ahead, 1);
    // All memory of the group but the blocks read ahead becomes unevictable.
    let mut taken = Vec::new();
    while core(&file).requests.len() == 1 {
        let page = cache.pool.alloc(group.id(), 0, AllocMode::Wait);
        taken.push(page.expect("the blocks read ahead can be evicted"));
    }
    assert!(taken.len() < 32);
    assert_eq!(store.log().len(), reads, "no call was made for them");
    drop(taken);
    let view = file.view(2 * 4096..2 * 4096 + 1).unwrap();
    assert_eq!(view[..], pattern(2 * 4096..2 * 4096 + 1)[..]);
    drop((view, file, group));
    assert_empty(&cache);
}
