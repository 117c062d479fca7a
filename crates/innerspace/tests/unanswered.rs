//! Requests that a program's own store never answers.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use innerspace::store::{Batch, MemoryStore, Request, Store, SyncWhat};
use innerspace::{
    Grouped, MIB, Memory, PagedFile, Threads, View,
    file::{FileAccess, FileError, Ready},
};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 128;
/// The number of futures, each of which waits for a block.
const WANTED: u64 = 10;
/// A time longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A store that keeps its requests until it is told to answer.
#[derive(Default)]
struct Keeping {
    bytes: MemoryStore,
    kept: Mutex<Vec<Request>>,
    /// Whether plain calls that read fail.
    is_broken: Mutex<bool>,
}

impl Keeping {
    /// Answers all requests but the one at `offset`.
    fn answer_all_but(&self, offset: u64) {
        let mut kept = self.kept.lock().unwrap();
        let (left, answered) = kept.drain(..).partition(|one| one.offset() == offset);
        *kept = left;
        drop(kept);
        let answered: Vec<Request> = answered;
        for mut request in answered {
            let len = request.len();
            request.fill(&vec![number_at(request.offset()); len]);
            request.complete(Ok(len));
        }
    }

    fn kept(&self) -> usize {
        self.kept.lock().unwrap().len()
    }

    fn take(&self) -> Request {
        self.kept.lock().unwrap().pop().expect("one is kept")
    }
}

impl Store for Keeping {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match *self.is_broken.lock().unwrap() {
            true => Err(io::Error::other("broken")),
            false => self.bytes.read_at(buf, offset),
        }
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.bytes.write_at(buf, offset)
    }
    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        self.bytes.sync(what)
    }
    fn submit(&self, mut batch: Batch) {
        while let Some(request) = batch.take() {
            self.kept.lock().unwrap().push(request);
        }
    }
    fn writable(&self) -> bool {
        true
    }
}

fn number_at(offset: u64) -> u8 {
    (offset / BLOCK) as u8 + 1
}

fn block(number: u64) -> std::ops::Range<u64> {
    number * BLOCK..(number + 1) * BLOCK
}

/// Returns the block that future `number` waits for. No two of these blocks are neighbours.
fn wanted(number: u64) -> u64 {
    10 + number * 7
}

/// The number of the request that is never answered.
const NEVER: u64 = 4;

/// Creates a memory, a file of it, and futures for [`WANTED`] blocks, whose requests the store has.
fn with_requests(threads: Threads) -> (Memory, PagedFile, Vec<Ready>, Arc<Keeping>) {
    let options = Memory::builder(4 * MIB).threads(threads);
    let memory: Memory = options.build().unwrap();
    let store = Arc::new(Keeping::default());
    let bytes: Vec<u8> = (0..BLOCKS * BLOCK).map(number_at).collect();
    store.bytes.write_at(&bytes, 0).unwrap();
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.name("data.bin").open_store(store.clone()).unwrap();
    file.view(block(0)).unwrap();
    let mut futures: Vec<Ready> = (0..WANTED).map(|n| file.ready(block(wanted(n)))).collect();
    for future in &mut futures {
        assert!(poll(future).is_pending());
    }
    assert_eq!(store.kept(), WANTED as usize);
    (memory, file, futures, store)
}

fn poll(future: &mut Ready) -> Poll<Result<View, FileError>> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

// spec: R6, R9
#[test]
fn a_request_that_is_never_answered_holds_nobody_else() {
    let ends: [fn(Request); 2] = [drop, |request| request.complete(Ok(0))];
    for threads in [Threads::None, Threads::Service] {
        for end in ends {
            let (memory, file, mut futures, store) = with_requests(threads);
            store.answer_all_but(wanted(NEVER) * BLOCK);
            for number in (0..WANTED).filter(|number| *number != NEVER) {
                let view = futures[number as usize].wait_timeout(LONG).unwrap();
                let expected = number_at(wanted(number) * BLOCK);
                assert_eq!(view.unwrap()[..], [expected; BLOCK as usize]);
            }
            // Only the block of that request would block.
            let never = block(wanted(NEVER));
            assert!(poll(&mut futures[NEVER as usize]).is_pending());
            let refused = file.try_view(never.clone()).unwrap_err();
            assert!(refused.would_block(), "{refused}");
            let refused = file.try_read_at(&mut [0; 8], never.start).unwrap_err();
            assert!(refused.would_block(), "{refused}");
            file.view(block(wanted(NEVER) + 1)).unwrap();
            file.write_at(&[7; BLOCK as usize], 0).unwrap();
            file.sync_all().unwrap();
            file.evict(..).unwrap();

            // Neither the end of the file nor that of the memory waits for the request.
            let mut future = futures.swap_remove(NEVER as usize);
            drop(futures);
            drop(file);
            let closed = future.wait_timeout(LONG).unwrap().unwrap_err();
            assert!(matches!(closed, FileError::Closed { .. }), "{closed}");
            drop(future);
            memory.validate();
            drop(memory);
            assert_eq!(store.kept(), 1);
            let mut byte = [0];
            store.bytes.read_at(&mut byte, 0).unwrap();
            assert_eq!(byte, [7]);
            // The memory of the request belongs to the request until its end.
            let mut request = store.take();
            assert_eq!(request.fill(&[9; BLOCK as usize]), BLOCK as usize);
            end(request);
            // After this, the last use of the store ends some time later.
            let limit = Instant::now() + LONG;
            while Arc::strong_count(&store) > 1 {
                assert!(Instant::now() < limit, "the store is kept ({threads:?})");
                std::thread::yield_now();
            }
        }
    }
}

// spec: R6
#[test]
fn a_future_hears_of_a_request_that_is_dropped_when_the_memory_is_gone() {
    for threads in [Threads::None, Threads::Service] {
        let (memory, file, mut futures, store) = with_requests(threads);
        store.answer_all_but(wanted(NEVER) * BLOCK);
        let mut future = futures.swap_remove(NEVER as usize);
        drop((memory, futures));
        assert!(poll(&mut future).is_pending());
        *store.is_broken.lock().unwrap() = true;
        drop(store.take());
        let error = future.wait_timeout(LONG).unwrap().unwrap_err().to_string();
        let expected = format!(
            "data.bin: read of 4096 bytes at {} failed: broken",
            Grouped(wanted(NEVER) * BLOCK)
        );
        assert_eq!(error, expected);
        *store.is_broken.lock().unwrap() = false;
        // The future hears of the error first. A view that comes before the block is out of the
        // file as well shares the error, and the next one reads the block again.
        let again = || file.view(block(wanted(NEVER)));
        again().or_else(|_| again()).unwrap();
    }
}
