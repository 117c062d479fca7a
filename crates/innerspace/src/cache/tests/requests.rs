//! Requests in flight: which ones reach the store, in what order they may complete, and which
//! callers they delay.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use super::blocking::{Bell, poll};
use super::mapped::Mapped;
use super::*;
use crate::cache::{FaultKind, FileError, Mappers, Revoke};
use crate::stats::Event;
use crate::store::faulty::Release;
use crate::store::{Batch, Limits, Request};
use crate::sync::Mutex;

/// A bound that only a failing test reaches.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// A store with a completion form, which keeps its requests until the test releases them.
#[derive(Default)]
pub(super) struct Holding {
    bytes: Vec<u8>,
    requests: Mutex<VecDeque<Request>>,
    /// The offset and length of each request, and of each plain call.
    pub(super) submitted: Mutex<Vec<(u64, usize)>>,
    called: Mutex<Vec<(u64, usize)>>,
}

impl Holding {
    pub(super) fn new(len: u64) -> Arc<Holding> {
        Arc::new(Holding {
            bytes: pattern(0..len),
            ..Holding::default()
        })
    }

    /// Returns the store's bytes of a range.
    fn stored(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset as usize).min(self.bytes.len());
        &self.bytes[start..(start + len).min(self.bytes.len())]
    }

    /// Completes the request that `which` takes from the queue. Returns whether there was one.
    pub(super) fn complete(&self, which: fn(&mut VecDeque<Request>) -> Option<Request>) -> bool {
        let taken = which(&mut self.requests.lock());
        let Some(mut request) = taken else {
            return false;
        };
        let len = request.len();
        request.fill(self.stored(request.offset(), len));
        request.complete(Ok(len));
        true
    }

    pub(super) fn complete_all(&self) {
        while self.complete(VecDeque::pop_front) {}
    }

    pub(super) fn held(&self) -> usize {
        self.requests.lock().len()
    }

    pub(super) fn calls(&self) -> usize {
        self.called.lock().len()
    }
}

impl Store for Holding {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.called.lock().push((offset, buf.len()));
        let stored = self.stored(offset, buf.len());
        buf[..stored.len()].copy_from_slice(stored);
        Ok(stored.len())
    }

    fn submit(&self, mut batch: Batch) {
        while let Some(request) = batch.take() {
            let what = (request.offset(), request.len());
            self.submitted.lock().push(what);
            self.requests.lock().push_back(request);
        }
    }

    fn limits(&self) -> Limits {
        Limits::default().preferred_size(64 << 10)
    }
}

pub(super) fn read_only(block_size: u64) -> FileOptions {
    FileOptions::new().block_size(block_size).name("data.bin")
}

// spec: R1
#[test]
fn neighbours_that_one_call_wants_are_one_request() {
    let cache = memory(4_096);
    let store = patterned(4 << 20);
    let file = open(&cache, &store, &options(4096));
    let mut bytes = vec![0; 1 << 20];
    file.read_exact_at(&mut bytes, 3 << 20).unwrap();
    assert_eq!(bytes, pattern(3 << 20..4 << 20));
    let reads = |kind| store.log().iter().filter(|one| one.kind == kind).count();
    assert_eq!(reads(OperationKind::Read), 1);
    assert_eq!(store.log().last().unwrap().len, 1 << 20);
    assert_eq!(file.stats().filled, 256, "nothing besides");
    // Around a cached block, there are two requests, neither of which covers it.
    file.evict(..).unwrap();
    file.read_exact_at(&mut [0; 10], (3 << 20) + (512 << 10))
        .unwrap();
    store.clear_log();
    file.read_exact_at(&mut bytes, 3 << 20).unwrap();
    assert_eq!(bytes, pattern(3 << 20..4 << 20));
    let sum: u64 = store.log().iter().map(|one| one.len).sum();
    assert_eq!(sum, (1 << 20) - 4096);
    drop(file);
    assert_empty(&cache);
}

/// Returns a block of a file of 2,048 blocks: a different one for each number, in no order.
fn scattered(number: u64) -> u64 {
    (number * 7_919) % 2_039
}

// spec: R5, R20
#[test]
fn completions_come_in_any_order_and_from_any_thread() {
    let cache = memory(4_096);
    let store = Holding::new(8 << 20);
    let file = open(&cache, &store, &read_only(4096));
    let bell = Arc::new(Bell::default());
    // The view makes the file learn where the store's data is.
    file.view(0..1).unwrap();
    let places = || (1..500u64).map(|at| scattered(at) * 4096 + 7);
    let mut futures: Vec<_> = places()
        .map(|at| Box::pin(file.ready(at..at + 100)))
        .collect();
    for future in &mut futures {
        assert!(poll(future.as_mut(), &bell).is_pending());
    }
    assert_eq!(store.held(), 499);
    while store.held() > 0 {
        let store = store.clone();
        let last = thread::spawn(move || store.complete(VecDeque::pop_back));
        assert!(last.join().unwrap());
        // The tick calls the wakers that completions left.
        cache.tick();
    }
    for (future, at) in futures.iter_mut().zip(places()) {
        let Poll::Ready(view) = poll(future.as_mut(), &bell) else {
            panic!("it has landed")
        };
        assert_eq!(view.unwrap()[..], pattern(at..at + 100)[..]);
    }
    drop((futures, file));
    assert_empty(&cache);
}

// spec: R20
#[test]
fn ten_thousand_futures_have_no_thread_and_leave_nothing() {
    let cache = memory(140_000);
    cache.begin_service();
    let store = Holding::new(10_001 * 4096);
    let file = open(&cache, &store, &read_only(4096));
    // The view makes the file learn where the store's data is.
    file.view(0..1).unwrap();
    let bell = Arc::new(Bell::default());
    let mut futures: Vec<_> = (1..10_001u64)
        .map(|page| Box::pin(file.ready(page * 4096..page * 4096 + 1)))
        .collect();
    for future in &mut futures {
        assert!(poll(future.as_mut(), &bell).is_pending());
    }
    assert_eq!((store.held(), cache.workers.threads()), (10_000, 0));
    // Half of the requests are no longer wanted, but the store keeps them until it completes them.
    futures.truncate(5_000);
    store.complete_all();
    let woken = || futures.len() == bell.rung();
    while !woken() {
        thread::yield_now();
    }
    assert!(
        futures
            .iter_mut()
            .all(|future| matches!(poll(future.as_mut(), &bell), Poll::Ready(Ok(_))))
    );
    assert_eq!(core(&file).ready.len(), 0);
    assert_eq!(core(&file).requests.len(), 0);
}

// spec: R6
#[test]
fn a_store_that_is_late_writes_to_no_frame_of_others() {
    let cache = memory(64);
    let store = Holding::new(64 * 4096);
    let file = open(&cache, &store, &read_only(4096));
    file.read_exact_at(&mut [0; 8], 0).unwrap();
    file.read_exact_at(&mut [0; 8], 4096).unwrap();
    assert!(store.held() > 0, "it is read ahead");
    drop(file);
    assert!(store.held() > 0, "the store has not heard of that");
    // All of the memory has other bytes now.
    let other = open(&cache, &patterned(0), &options(4096));
    let mut pages = 0;
    while other.write_at(&[0xaa; 4096], pages * 4096).is_ok() && pages < 50 {
        pages += 1;
    }
    assert!(pages > 20, "{pages} pages");
    store.complete_all();
    for page in 0..pages {
        assert_eq!(
            *other.view(page * 4096..(page + 1) * 4096).unwrap(),
            [0xaa; 4096]
        );
    }
    drop(other);
    assert_empty(&cache);
}

// spec: R6
#[test]
fn a_request_that_nobody_has_begun_goes_with_its_file() {
    let cache = memory(64);
    let store = patterned(64 * 4096);
    let file = open(&cache, &store, &options(4096));
    file.view(0..1).unwrap();
    file.view(4096..4097).unwrap();
    assert_eq!(core(&file).requests.len(), 1);
    store.clear_log();
    drop(file);
    assert!(
        store
            .log()
            .iter()
            .all(|one| one.kind != OperationKind::Read)
    );
    assert_empty(&cache);
}

// spec: R7
#[test]
fn of_a_request_that_fails_the_bad_blocks_alone_are_errors() {
    let cache = memory(1_000);
    /// A store whose reads of this byte fail.
    struct Bad(Arc<Holding>, u64);
    impl Store for Bad {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            match (offset..offset + buf.len() as u64).contains(&self.1) {
                true => Err(io::Error::other("a bad sector")),
                false => self.0.read_at(buf, offset),
            }
        }
    }
    let store = Arc::new(Bad(Holding::new(64 * 4096), 5 * 4096 + 100));
    let file = open(&cache, &store, &read_only(4096));
    let mut bytes = vec![0; 16 * 4096];
    let error = file.read_exact_at(&mut bytes, 0).unwrap_err();
    assert!(error.to_string().contains("20,480"), "{error}");
    for page in (0..16).filter(|page| *page != 5) {
        let at = page * 4096..(page + 1) * 4096;
        assert_eq!(*file.try_view(at.clone()).unwrap(), *pattern(at), "{page}");
    }
}

// spec: R7, R8
#[test]
fn what_a_request_in_flight_lacks_is_read_again() {
    let cache = memory(1_000);
    let store = Holding::new(100 * 4096 + 50);
    let file = open(&cache, &store, &read_only(4096));
    let bell = Arc::new(Bell::default());
    let end = store.bytes.len() as u64;
    file.view(0..1).unwrap();
    let mut futures: Vec<_> = [(10, 14), (20, 24), (30, 31), (97, 101)]
        .map(|(from, to)| Box::pin(file.ready(from * 4096..(to * 4096).min(end))))
        .into();
    for future in &mut futures {
        assert!(poll(future.as_mut(), &bell).is_pending());
    }
    cache.tick();
    let take = || store.requests.lock().pop_front().unwrap();
    // The store reads only a part, reports an error, drops a block, or reports more than there is.
    let mut short = take();
    short.fill(store.stored(short.offset(), 5_000));
    short.complete(Ok(5_000));
    take().complete(Err(io::ErrorKind::TimedOut.into()));
    drop(take());
    let mut boasting = take();
    boasting.finish(Ok(1 << 30));
    cache.tick();
    for (future, from) in futures.iter_mut().zip([10u64, 20, 30, 97]) {
        let Poll::Ready(view) = poll(future.as_mut(), &bell) else {
            panic!("read again")
        };
        let view = view.unwrap();
        let from = from * 4096;
        assert_eq!(*view, *pattern(from..from + view.len() as u64));
    }
}

// spec: R8
#[test]
fn a_store_that_ends_early_is_an_error_of_its_own() {
    let cache = memory(64);
    let store = Holding::new(8 * 4096);
    let file = open(&cache, &store, &read_only(4096));
    struct Short(Arc<Holding>);
    impl Store for Short {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            let left = (3u64 * 4096 + 100).saturating_sub(offset);
            let len = left.min(buf.len() as u64) as usize;
            self.0.read_at(&mut buf[..len], offset)
        }
    }
    let short = open(&cache, &Arc::new(Short(store.clone())), &read_only(4096));
    let error = short.read_exact_at(&mut [0; 6 * 4096], 0).unwrap_err();
    assert!(matches!(error, FileError::Short { .. }), "{error}");
    assert_eq!(*short.try_view(0..4096).unwrap(), *pattern(0..4096));
    drop((file, short));
    assert_empty(&cache);
}

// spec: R9
#[test]
fn a_store_that_hangs_holds_nobody_elses_futures() {
    let cache = memory(1_000);
    cache.begin_service();
    let (slow, quick) = (patterned(8 << 20), patterned(100 * 4096));
    let hung = open(&cache, &slow, &options(4096));
    let other = open(&cache, &quick, &options(4096).name("other.bin"));
    hung.view(0..1).unwrap();
    slow.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]).forever());
    let bell = Arc::new(Bell::default());
    let at = |number| scattered(number) * 4096..scattered(number) * 4096 + 1;
    let mut waiting: Vec<_> = (1..100)
        .map(|number| Box::pin(hung.ready(at(number))))
        .collect();
    for future in &mut waiting {
        assert!(poll(future.as_mut(), &bell).is_pending());
    }
    slow.wait_hanging(16);
    let mut view = file_ready(&other);
    assert!(view.wait_timeout(LONG).unwrap().is_ok());
    let mut read = other.defer_shared(move |file| file.read_to_vec(10..2_000));
    assert_eq!(
        read.wait_timeout(LONG).unwrap().unwrap(),
        pattern(10..2_000)
    );
    let mut sync = other.defer(|file| file.sync_all());
    sync.wait_timeout(LONG).unwrap().unwrap();
    drop(other);
    assert_eq!(slow.hanging(), 16, "as many as the store has places");
    slow.heal();
    slow.release(Release::Proceed);
    for future in &mut waiting {
        assert!(future.wait_timeout(LONG).unwrap().is_ok());
    }
}

fn file_ready(file: &PagedFile) -> crate::cache::Ready {
    file.ready(5 * 4096..5 * 4096 + 10)
}

// spec: R10
#[test]
fn a_panic_of_a_store_fails_its_own_requests_alone() {
    struct Panics(u64);
    impl Store for Panics {
        fn len(&self) -> io::Result<u64> {
            Ok(64 * 4096)
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            assert!(
                offset > self.0 || offset + buf.len() as u64 <= self.0,
                "bad block"
            );
            buf.fill(7);
            Ok(buf.len())
        }
    }
    let cache = memory(256);
    cache.begin_service();
    let file = open(&cache, &Arc::new(Panics(9 * 4096)), &read_only(4096));
    file.view(0..1).unwrap();
    let mut good = file.ready(30 * 4096..30 * 4096 + 1);
    let mut bad = file.ready(8 * 4096..10 * 4096);
    let error = bad.wait_timeout(LONG).unwrap().unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    assert_eq!(good.wait_timeout(LONG).unwrap().unwrap()[..], [7]);
    assert_eq!(file.view(11 * 4096..11 * 4096 + 1).unwrap()[..], [7]);
}

// spec: R11
#[test]
fn without_threads_whoever_waits_makes_the_calls() {
    let cache = memory(256);
    let store = patterned(64 * 4096);
    let file = open(&cache, &store, &options(4096));
    file.view(0..1).unwrap();
    file.view(4096..4097).unwrap();
    let reads = || store.log().len();
    let before = reads();
    assert_eq!(core(&file).requests.len(), 1);
    // The reader meets the queued request, and makes its call.
    file.view(2 * 4096..2 * 4096 + 1).unwrap();
    assert_eq!(reads(), before + 1);
    // The request that the reader has just put in flight waits for a tick.
    assert_eq!(core(&file).requests.len(), 1);
    cache.tick();
    assert_eq!((core(&file).requests.len(), reads()), (0, before + 2));
    assert_eq!(cache.workers.threads(), 0);
}

// spec: R12
#[test]
fn what_is_in_flight_is_a_part_of_the_nearest_limit() {
    let cache = memory(4_096);
    let group = cache.root.create_child("small", 256 * 4096).unwrap();
    let store = Holding::new(4 << 20);
    let file = open(&cache, &store, &read_only(4096).group(&group));
    file.prefetch(0..4096).unwrap();
    for page in [0u64, 1, 2, 3] {
        file.view(page * 4096..page * 4096 + 1).unwrap();
        let in_flight = cache.in_flight.of(group.id());
        assert!(in_flight <= 256 / 8, "{in_flight} pages");
        store.complete_all();
    }
    let bell = Arc::new(Bell::default());
    let pages = (1..100u64).map(|number| (number * number * 7 + number) % 1_021);
    let mut futures: Vec<_> = pages
        .map(|page| Box::pin(file.ready(page * 4096..page * 4096 + 1)))
        .collect();
    for future in &mut futures {
        drop(poll(future.as_mut(), &bell));
        let in_flight = cache.in_flight.of(group.id());
        assert!(in_flight <= 256 / 8, "{in_flight} pages");
    }
    // Futures for which there was no room get their turn.
    let mut left = futures.len();
    while left > 0 {
        store.complete_all();
        cache.tick();
        futures.retain_mut(|future| poll(future.as_mut(), &bell).is_pending());
        assert!(futures.len() < left, "{left} futures stand still");
        left = futures.len();
    }
    drop((futures, file, group));
    // Until now, the store held the requests for the last blocks read ahead.
    store.complete_all();
    assert_empty(&cache);
}

// spec: R13
#[test]
fn a_store_that_fills_nothing_shows_nothing_old() {
    /// A store that reports a read that it has not made, or that looks at the buffer.
    struct Empty(mpsc::Sender<bool>);
    impl Store for Empty {
        fn len(&self) -> io::Result<u64> {
            Ok(32 * 4096)
        }
        fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
            let is_clear = buf.iter().all(|byte| *byte == 0);
            self.0.send(is_clear).unwrap();
            Ok(buf.len())
        }
    }
    let cache = memory(64);
    let secret = open(&cache, &patterned(50 * 4096), &options(4096));
    assert_eq!(contents(&secret), pattern(0..50 * 4096));
    cache.tick();
    drop(secret);
    let (looked, looks) = mpsc::channel();
    let file = open(&cache, &Arc::new(Empty(looked)), &read_only(4096));
    // The blocks are read alone, several together, and by a request in flight.
    assert_eq!(*file.view(0..4096).unwrap(), [0; 4096]);
    let mut bytes = vec![1; 31 * 4096];
    file.read_exact_at(&mut bytes, 4096).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    cache.tick();
    assert!(looks.try_iter().all(|is_clear| is_clear));
}

// spec: R17
#[test]
fn a_punch_and_a_cut_wait_for_what_is_in_flight() {
    let works: [fn(&PagedFile); 2] = [
        |file| file.punch(4 * 4096..8 * 4096).unwrap(),
        |file| file.set_len(4 * 4096).unwrap(),
    ];
    for work in works {
        let cache = memory(256);
        cache.begin_service();
        let store = patterned(64 * 4096);
        let file = open(&cache, &store, &options(4096));
        store.add(Rule::new(Fault::Hang).on(&[OperationKind::Read]));
        let bell = Arc::new(Bell::default());
        let mut ready = pin!(file.ready(4 * 4096..8 * 4096));
        assert!(poll(ready.as_mut(), &bell).is_pending());
        store.wait_hanging(1);
        let changing = {
            let file = file.clone();
            thread::spawn(move || work(&file))
        };
        // The cut gets no further than its wait for the request.
        while core(&file).locks.try_shared().is_some() {
            thread::yield_now();
        }
        assert!(!changing.is_finished());
        store.release(Release::Proceed);
        changing.join().unwrap();
        if file.len() > 4 * 4096 {
            assert_eq!(*file.view(4 * 4096..8 * 4096).unwrap(), [0; 4 * 4096]);
        } else {
            assert!(matches!(
                file.view(4 * 4096..8 * 4096),
                Err(FileError::PastEnd { .. })
            ));
        }
    }
}

// spec: R10
#[test]
fn a_panic_as_a_window_is_put_in_flight_is_no_business_of_its_reader() {
    struct Panicking(AtomicBool);
    impl Store for Panicking {
        fn len(&self) -> io::Result<u64> {
            Ok(256 * 4096)
        }
        fn read_at(&self, buf: &mut [u8], _: u64) -> io::Result<usize> {
            buf.fill(7);
            Ok(buf.len())
        }
        fn submit(&self, batch: Batch) {
            assert!(!self.0.load(Ordering::Relaxed), "as it is told");
            batch.call(self);
        }
    }
    let cache = memory(512);
    let store = Arc::new(Panicking(AtomicBool::new(false)));
    let file = open(&cache, &store, &read_only(4096));
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    file.read_exact_at(&mut byte, 4096).unwrap();
    // The tick lands blocks that were read ahead.
    cache.tick();
    store.0.store(true, Ordering::Relaxed);
    for page in 2..100u64 {
        file.read_exact_at(&mut byte, page * 4096).unwrap();
        assert_eq!(byte, [7]);
    }
    store.0.store(false, Ordering::Relaxed);
    cache.tick();
    file.evict(..).unwrap();
    assert_eq!(file.stats().cached, PageCount(0), "held for good");
    drop(file);
    assert_empty(&cache);
}

// spec: R21
#[test]
fn misses_over_a_full_memory_share_grace_periods() {
    let cache = memory(16_384);
    let file = open(&cache, &patterned(128 << 20), &options(4096));
    let mapped = Mapped::new(&cache, &file);
    for page in 0..32_768 {
        mapped.map(page, FaultKind::Read);
    }
    let evicted = cache.pool.counters.sum(Event::PgSteal);
    let periods = cache.pool.domain.grace_periods();
    assert!(evicted > 16_000, "{evicted} pages were evicted");
    let each = evicted / periods.max(1);
    assert!(each >= 64, "{evicted} pages in {periods} grace periods");
    mapped.table.revoke(0..32_768, Revoke::All);
}
